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
//! For `sm_70` and later: the driver compiles the text for the device that there is.

use std::ffi::CStr;

use super::staging::Staging;
use crate::device::{Current, DeviceRegion, Kernel};
use crate::error::Result;

/// The address, the bytes there, and the word that says whether there is a fault: 64 bits each.
const PARAMETERS: usize = 3;

/// A thread fills the bytes whose number is its own, and every so many further ones.
const TEXT: &CStr = c"
.version 6.3
.target sm_70
.address_size 64
.visible .entry guard(.param .u64 into, .param .u64 bytes, .param .u64 fault)
{
.reg .pred %is_fine, %is_end;
.reg .b64 %into, %bytes, %fault, %at, %step, %thread64, %to;
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
add.u64 %at, %at, %thread64;
mul.wide.u32 %step, %threads, %blocks;
BYTES:
setp.ge.u64 %is_end, %at, %bytes;
@%is_end bra END;
add.u64 %to, %into, %at;
st.global.u8 [%to], %ones;
add.u64 %at, %at, %step;
bra BYTES;
END:
ret;
}
";
const NAME: &CStr = c"guard";

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
        let blocks = output.bytes().div_ceil(BYTES_PER_BLOCK).min(BLOCKS_MAX) as u32;
        if blocks == 0 {
            return Ok(());
        }
        let arguments: [u64; PARAMETERS] = [
            output.address() as u64,
            output.bytes() as u64,
            staging.fault().device_address() as u64,
        ];
        // SAFETY: the kernel reads the word, which is pinned, and writes the output of a call under
        // way, which is this rank's until the stream has gone past.
        unsafe { current.launch(&staging.into, &self.kernel, [blocks, THREADS], &arguments) }
    }
}
