//! What an all-reduce by one kernel on each device should take: a closed form.
//!
//! A kernel begins, stores its vector in memory of the host, raises a flag, sees those of its
//! peers, and reads what each of these has stored. The link carries one after the other:
//!
//! ```text
//! T = enqueue + launch + S/out + flag + (N-1) S/read + signal        S bytes, N ranks
//! ```
//!
//! A device has one rank. The form leaves out the device's own memory, which is faster than a link,
//! and a list's copies.

use super::DeviceConstants;

/// The time of an all-reduce of `bytes` bytes of `ranks` ranks in microseconds, from the call until
/// its end is seen.
pub fn time_us(ranks: usize, constants: &DeviceConstants, bytes: u64) -> f64 {
    let peers = ranks.saturating_sub(1) as f64;
    let us_per_byte = constants.out_us_per_byte() + peers * constants.read_us_per_byte();
    let begun_us = constants.device_enqueue_us + constants.device_launch_us;
    let seen_us = constants.device_flag_us + constants.device_signal_us;
    begun_us + seen_us + us_per_byte * bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the design note: 8 µs without bytes, which a signal to the host follows.
    #[test]
    fn a_call_without_bytes_takes_eight_microseconds_and_a_signal() {
        let constants = DeviceConstants::default();
        let least_us = time_us(2, &constants, 0);
        assert_eq!(least_us, 8.0 + constants.device_signal_us);
        let of = |ranks| time_us(ranks, &constants, 1 << 16) - least_us;
        // 64 KiB at 25 GB/s, and at 16 for each peer.
        assert!((of(2) - 65.536 * (1.0 / 25.0 + 1.0 / 16.0)).abs() < 1e-9);
        assert!((of(4) - of(2) - 2.0 * 65.536 / 16.0).abs() < 1e-9);
    }
}
