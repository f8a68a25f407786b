//! What fills the results of direct calls with ones after a fault.
//!
//! Of a call that the host carries out, a slice that is released without being done has a result
//! that the lane's thread has filled. A direct slice is copied from the slots of other ranks, and
//! these may hold anything then: what they had before, or what comes next. So behind the last
//! copies of each direct call a kernel looks at the word [`Fault`](super::words::Word::Fault), and
//! where it holds anything but 0, fills all of the output.
//!
//! A rank stores that word, its own and that of every other rank, before it releases anything that
//! is not done, and before it lets its own slots be filled while others may still read them. So a
//! kernel that sees no fault comes behind copies of data that was right.
//!
//! Its threads look one by one, and a fault may come in between: some then fill what is theirs, and
//! others leave it. So a thread has whole elements, and what it leaves is right.
//!
//! For `sm_70` and later: the driver compiles the text for the device that there is.

use std::ffi::CStr;

use super::staging::Staging;
use crate::device::{Current, DeviceRegion, Kernel, Stream};
use crate::error::Result;

/// The address, the bytes there, and the word that says whether there is a fault: 64 bits each.
const PARAMETERS: usize = 3;

/// A thread fills the units of [`UNIT_BYTES`] whose number is its own, and every so many further
/// ones. Byte by byte, because a region need not be aligned to a unit.
const TEXT: &CStr = c"
.version 6.3
.target sm_70
.address_size 64
.visible .entry guard(.param .u64 into, .param .u64 bytes, .param .u64 fault)
{
.reg .pred %is_fine, %is_end;
.reg .b64 %into, %bytes, %fault, %at, %step, %thread64, %unit, %end, %to;
.reg .b32 %word, %ones, %block, %threads, %blocks, %thread;
ld.param.u64 %into, [into];
ld.param.u64 %bytes, [bytes];
ld.param.u64 %fault, [fault];
cvta.to.global.u64 %into, %into;
cvta.to.global.u64 %fault, %fault;
ld.relaxed.sys.global.u32 %word, [%fault];
setp.eq.u32 %is_fine, %word, 0;
@%is_fine bra END;
mov.b32 %ones, -1;
mov.u32 %block, %ctaid.x;
mov.u32 %threads, %ntid.x;
mov.u32 %blocks, %nctaid.x;
mov.u32 %thread, %tid.x;
mul.wide.u32 %at, %block, %threads;
cvt.u64.u32 %thread64, %thread;
add.u64 %unit, %at, %thread64;
shl.b64 %unit, %unit, 4;
mul.wide.u32 %step, %threads, %blocks;
shl.b64 %step, %step, 4;
UNITS:
setp.ge.u64 %is_end, %unit, %bytes;
@%is_end bra END;
mov.b64 %at, %unit;
add.u64 %end, %unit, 16;
min.u64 %end, %end, %bytes;
BYTES:
add.u64 %to, %into, %at;
st.global.u8 [%to], %ones;
add.u64 %at, %at, 1;
setp.lt.u64 %is_end, %at, %end;
@%is_end bra BYTES;
add.u64 %unit, %unit, %step;
bra UNITS;
END:
ret;
}
";
const NAME: &CStr = c"guard";

/// Bytes of a unit: whole elements of every type, as a region begins with one.
#[cfg(test)]
const UNIT_BYTES: usize = 16;

/// The threads of a block, for how many bytes there is one block, and the most blocks. Almost
/// always they end at once.
const THREADS: u32 = 64;
const BYTES_PER_BLOCK: usize = 1 << 20;
const BLOCKS_MAX: usize = 16;

/// The kernel.
#[derive(Debug)]
pub struct Guard {
    kernel: Kernel,
}

impl Guard {
    /// That of a device. An error where its driver does not compile kernels.
    pub fn new(current: &Current<'_>) -> Result<Guard> {
        Ok(Guard {
            kernel: current.kernel(TEXT, NAME, PARAMETERS)?,
        })
    }

    /// Enqueues it for `output`, behind the last copies of a call.
    pub fn enqueue(
        &self,
        current: &Current<'_>,
        staging: &Staging,
        output: DeviceRegion,
    ) -> Result<()> {
        let fault = staging.fault().device_address() as u64;
        // SAFETY: the kernel reads the word, which is pinned, and writes the output of a call under
        // way, which is this rank's until the stream has gone past.
        unsafe { self.launch(current, &staging.into, fault, output) }
    }

    /// The same in `stream`, with the word at `fault`.
    ///
    /// # Safety
    /// Both stay until the stream has gone past, and nothing else accesses `output` until then.
    unsafe fn launch(
        &self,
        current: &Current<'_>,
        stream: &Stream,
        fault: u64,
        output: DeviceRegion,
    ) -> Result<()> {
        let (into, bytes) = (output.address() as u64, output.bytes() as u64);
        let blocks = output.bytes().div_ceil(BYTES_PER_BLOCK).min(BLOCKS_MAX) as u32;
        if blocks == 0 {
            return Ok(());
        }
        let arguments: [u64; PARAMETERS] = [into, bytes, fault];
        // SAFETY: the caller's promise, passed on.
        unsafe { current.launch(stream, &self.kernel, [blocks, THREADS], &arguments) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::device::{Device, Platform};
    use crate::lane::tests::driver;
    use crate::memory::Owned;

    /// Not whole units.
    const OUTPUT_BYTES: usize = 300 * UNIT_BYTES + 8;
    const WORD: usize = 2 * 4096;
    const HOST_BYTES: usize = WORD + 4096;

    #[test]
    fn a_fault_while_it_runs_leaves_whole_elements() {
        let device = Device::open(driver(Platform::Cuda), 0).expect("a device");
        let current = device.enter().expect("a context");
        let host = Owned::zeroed(HOST_BYTES);
        let pin = current.pin(host.region(), Arc::new(host)).expect("a pin");
        let (host, stream) = (pin.whole(), current.stream().expect("a stream"));
        let (output, word) = (host.part(0..OUTPUT_BYTES), host.part(WORD..WORD + 4));
        let guard = Guard::new(&current).expect("a kernel");
        let memory = current.allocate(OUTPUT_BYTES).expect("memory");
        // SAFETY: all that is enqueued is waited for in each round.
        let region = unsafe { memory.region() };
        let due = vec![1; OUTPUT_BYTES];
        for round in 0..500 {
            word.region().write(&0_u32.to_ne_bytes());
            output.region().write(&due);
            current.take(&stream, output, region).expect("a copy");
            let fault = word.device_address() as u64;
            // SAFETY: the word and the output outlive it, and only this stream accesses them.
            unsafe { guard.launch(&current, &stream, fault, region) }.expect("a launch");
            current.bring(&stream, region, output).expect("a copy");
            // Somewhere within the copy and the kernel.
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(2 * round) {}
            word.region().write(&1_u32.to_ne_bytes());
            while !current.is_idle(&stream).expect("an answer") {
                thread::yield_now();
            }
            let mut found = vec![0; OUTPUT_BYTES];
            output.region().read(&mut found);
            for unit in found.chunks(UNIT_BYTES) {
                let is_whole = |byte: u8| unit.iter().all(|each| *each == byte);
                assert!(is_whole(1) || is_whole(0xff), "round {round}: {unit:x?}");
            }
        }
    }
}
