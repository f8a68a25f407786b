//! Reading the memory of another process.

use std::io;

use crate::region::Region;

/// A part of another process's memory, and where the bytes go here.
pub type RemotePart = (u64, Region);

/// Copies `parts` from the memory of process `pid`, one after the other, up to the first page that
/// cannot be read. Returns the number of bytes copied.
///
/// The kernel copies, and checks the addresses and the permission: that of tracing a process, which
/// security modules and sandboxes restrict.
pub fn read<const N: usize>(pid: i32, parts: [RemotePart; N]) -> io::Result<usize> {
    let local = parts.map(|(_, into)| libc::iovec {
        iov_base: into.address().cast(),
        iov_len: into.bytes(),
    });
    let remote = parts.map(|(from, into)| libc::iovec {
        iov_base: from as usize as *mut libc::c_void,
        iov_len: into.bytes(),
    });
    let count = N as libc::c_ulong;
    // SAFETY: the local parts are valid for writes of their lengths (the contract of
    // `Region::new`), and bytes of any value are valid there; the remote parts are addresses in
    // another process, which this process does not access.
    let copied =
        unsafe { libc::process_vm_readv(pid, local.as_ptr(), count, remote.as_ptr(), count, 0) };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}
