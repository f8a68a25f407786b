//! System calls that move bytes between descriptors and regions, and what else neither std nor rustix offers.
//!
//! A region is no slice, so the safe wrappers cannot take one; these few calls hand its address to the kernel, which
//! copies and keeps nothing.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::memory::Region;

/// Sends `before`, `body` and `after` in one call, without blocking and without a signal. Gives how much was taken.
pub fn send_from(
    socket: BorrowedFd<'_>,
    before: &[u8],
    body: Region,
    after: &[u8],
) -> io::Result<usize> {
    let parts = [
        part(before.as_ptr().cast_mut(), before.len()),
        part(body.address(), body.bytes()),
        part(after.as_ptr().cast_mut(), after.len()),
    ];
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    retry(|| {
        let message = message(&parts);
        // SAFETY: the three parts are valid for reads of their lengths (two borrows; the contract of `Region::new`),
        // and sendmsg only reads them.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) }
    })
}

/// Receives into `before`, `body` and `after`, filled in this order, in one call and without blocking. Gives how much came;
/// 0 is the end of the stream (if there was room).
pub fn recv_into(
    socket: BorrowedFd<'_>,
    before: &mut [u8],
    body: Region,
    after: &mut [u8],
) -> io::Result<usize> {
    let parts = [
        part(before.as_mut_ptr(), before.len()),
        part(body.address(), body.bytes()),
        part(after.as_mut_ptr(), after.len()),
    ];
    retry(|| {
        let mut message = message(&parts);
        // SAFETY: the three parts are valid for writes of their lengths (two exclusive borrows; the contract of
        // `Region::new`), and bytes of any value may stand there.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) }
    })
}

/// What the kernel knows about the other end of a TCP connection.
#[derive(Clone, Copy, Debug)]
pub struct TcpState {
    /// Segments that were sent and not acknowledged.
    pub unacknowledged: u32,
    /// Bytes that were not sent yet, because the other end has no room.
    pub unsent_bytes: u32,
    /// Milliseconds since anything came from the other end.
    pub quiet_ms: u32,
}

/// Reads a connection's [`TcpState`]; `None` if this kernel does not tell.
pub fn tcp_state(socket: BorrowedFd<'_>) -> io::Result<Option<TcpState>> {
    /// `struct tcp_info` of linux/tcp.h up to `tcpi_notsent_bytes`; libc's declaration ends before it.
    const INFO_BYTES: usize = 148;
    let mut info = [0_u8; INFO_BYTES];
    let mut length = INFO_BYTES as libc::socklen_t;
    // SAFETY: `info` is valid for writes of `length` bytes, and `length` for reads and writes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < INFO_BYTES {
        return Ok(None);
    }
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let (last_data_ms, last_acknowledgement_ms) = (word(52), word(56));
    Ok(Some(TcpState {
        unacknowledged: word(24),
        unsent_bytes: word(144),
        quiet_ms: last_data_ms.min(last_acknowledgement_ms),
    }))
}

fn part(start: *mut u8, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start.cast(),
        iov_len: bytes,
    }
}

fn message(parts: &[libc::iovec; 3]) -> libc::msghdr {
    // SAFETY: a msghdr of zeros is a valid one: no address, no parts, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len() as _;
    message
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
