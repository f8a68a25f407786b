//! Runs the fuzz targets briefly on the stable compiler: with random bytes, and with damaged valid
//! ones, from a seed.

#[path = "../../../fuzz/src/targets.rs"]
mod targets;

use ringfold::internals::random::SplitMix64;

/// Number of inputs per target.
const INPUTS: usize = 20_000;
/// Maximum bytes of a random input: about fifty steps of the target with the longest steps.
const BYTES_MAX: usize = 4000;

fn random_bytes(random: &mut SplitMix64, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.next_u64() as u8).collect()
}

/// Returns `honest` with a few bytes changed, cut off or inserted.
fn damaged(random: &mut SplitMix64, honest: &[u8]) -> Vec<u8> {
    let mut bytes = honest.to_vec();
    for _ in 0..random.index(4) {
        let at = random.index(bytes.len() + 1);
        match random.index(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next_u64() as u8),
            2 if at < bytes.len() => bytes[at] = random.next_u64() as u8,
            _ if at < bytes.len() => bytes[at] ^= 1 << random.index(8),
            _ => {}
        }
    }
    bytes
}

#[test]
fn no_bytes_from_a_peer_make_a_panic() {
    let seed = 0x9e37_79b9_7f4a_7c15;
    println!("seed {seed:#x}");
    let honest = targets::seeds();
    for (name, target) in targets::TARGETS {
        let mut random = SplitMix64(seed);
        for input in 0..INPUTS {
            let mut bytes = match input % 3 {
                0 => {
                    let length = random.index(BYTES_MAX);
                    random_bytes(&mut random, length)
                }
                _ => {
                    let which = random.index(honest.len());
                    damaged(&mut random, &honest[which])
                }
            };
            // The hub and the splitter read a control byte first.
            if input % 3 == 2 {
                bytes.insert(0, random.next_u64() as u8);
            }
            let outcome = std::panic::catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "{name}, input {input}: {bytes:02x?}");
        }
    }
}
