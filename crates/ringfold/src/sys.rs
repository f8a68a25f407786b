//! System calls that copy bytes between descriptors and regions, and others that neither std nor
//! rustix offers.
//!
//! A region is not a slice, so the safe wrappers cannot take one. These few calls pass the region's
//! address to the kernel, which copies the bytes and keeps nothing.

pub mod file_limit;
pub mod fork;
pub mod library;
pub mod memory_node;
pub mod peer_memory;
pub mod unshared;

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::region::Region;

/// Up to this many bytes, the parts are gathered in one buffer: a call with one part is faster than
/// a call with three, by more than the copies cost.
const GATHERED_BYTES_MAX: usize = 512;

/// Sends `before`, `body` and `after` in one call, without blocking and without a signal. Returns
/// the number of bytes sent.
pub fn send_from(
    socket: BorrowedFd<'_>,
    before: &[u8],
    body: Region,
    after: &[u8],
) -> io::Result<usize> {
    let (body_end, end) = ends(before, body, after);
    if end <= GATHERED_BYTES_MAX {
        let mut gathered = [0; GATHERED_BYTES_MAX];
        gathered[..before.len()].copy_from_slice(before);
        body.read(&mut gathered[before.len()..body_end]);
        gathered[body_end..end].copy_from_slice(after);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        return Ok(retry_on_intr(|| send(socket, &gathered[..end], flags))?);
    }
    let parts = [
        part(before.as_ptr().cast_mut(), before.len()),
        part(body.address(), body.bytes()),
        part(after.as_ptr().cast_mut(), after.len()),
    ];
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    retry(|| {
        let message = message(&parts);
        // SAFETY: the three parts are valid for reads of their lengths (two borrows; the contract
        // of `Region::new`), and sendmsg only reads them.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) }
    })
}

/// Receives into `before`, `body` and `after`, filled in this order, in one call and without
/// blocking. Returns the number of bytes received; 0 is the end of the stream (if there was room).
pub fn recv_into(
    socket: BorrowedFd<'_>,
    before: &mut [u8],
    body: Region,
    after: &mut [u8],
) -> io::Result<usize> {
    let (body_end, end) = ends(before, body, after);
    if end <= GATHERED_BYTES_MAX {
        let mut gathered = [0; GATHERED_BYTES_MAX];
        let came = retry_on_intr(|| recv(socket, &mut gathered[..end], RecvFlags::DONTWAIT))?.0;
        let to = |place: usize| came.min(place);
        let head = to(before.len());
        before[..head].copy_from_slice(&gathered[..head]);
        let into = body.part(0..to(body_end) - head);
        into.write(&gathered[head..to(body_end)]);
        after[..came - to(body_end)].copy_from_slice(&gathered[to(body_end)..came]);
        return Ok(came);
    }
    let parts = [
        part(before.as_mut_ptr(), before.len()),
        part(body.address(), body.bytes()),
        part(after.as_mut_ptr(), after.len()),
    ];
    retry(|| {
        let mut message = message(&parts);
        // SAFETY: the three parts are valid for writes of their lengths (two exclusive borrows; the
        // contract of `Region::new`), and bytes of any value are valid there.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) }
    })
}

/// Returns the ends of the second and the third of the concatenated parts.
fn ends(before: &[u8], body: Region, after: &[u8]) -> (usize, usize) {
    let body_end = before.len() + body.bytes();
    (body_end, body_end + after.len())
}

/// Limits the time until a TCP connection retries an unsuccessful transmission to `longest`.
/// Kernels before 6.15 cannot, and continue to double the interval.
pub fn limit_tcp_retry(socket: BorrowedFd<'_>, longest: Duration) {
    /// A TCP option of linux/tcp.h that libc lacks.
    const TCP_RTO_MAX_MS: libc::c_int = 44;
    let milliseconds = longest.as_millis() as libc::c_int;
    // SAFETY: the value is valid for reads of its size.
    let refused = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const milliseconds).cast(),
            size_of_val(&milliseconds) as libc::socklen_t,
        )
    };
    if refused != 0 {
        let error = io::Error::last_os_error();
        log::debug!(target: "ringfold::control", "the kernel does not limit the TCP retry \
            interval: {error}");
    }
}

/// The kernel's view of a TCP connection.
#[derive(Clone, Copy, Debug)]
pub struct TcpState {
    /// Segments sent but not acknowledged.
    pub unacknowledged: u32,
    /// Bytes not sent yet, for example because the other end has no room.
    pub unsent_bytes: u32,
    /// Milliseconds since the last data or acknowledgement from the other end.
    pub quiet_ms: u32,
    /// The shortest round trip so far.
    pub round_trip: Duration,
}

/// Reads a connection's [`TcpState`]; `None` if this kernel does not provide it.
pub fn tcp_state(socket: BorrowedFd<'_>) -> io::Result<Option<TcpState>> {
    /// `struct tcp_info` of linux/tcp.h up to `tcpi_min_rtt`; libc's declaration ends before it.
    const INFO_BYTES: usize = 152;
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
        round_trip: Duration::from_micros(word(148).into()),
    }))
}

/// Writes all of `body` into a file, at `offset`.
pub fn write_at(file: BorrowedFd<'_>, body: Region, offset: u64) -> io::Result<()> {
    file_limit::without_signal(|| write_all_at(file, body, offset))
}

fn write_all_at(file: BorrowedFd<'_>, body: Region, offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < body.bytes() {
        let rest = body.part(done..body.bytes());
        let count = retry(|| {
            // SAFETY: `rest` is valid for reads of its length (contract of `Region::new`), and
            // pwrite only reads it.
            unsafe {
                libc::pwrite(
                    file.as_raw_fd(),
                    rest.address().cast(),
                    rest.bytes(),
                    (offset + done as u64) as libc::off_t,
                )
            }
        })?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        done += count;
    }
    Ok(())
}

/// A mapping of this process.
#[derive(Clone, Debug)]
pub struct MappingAt {
    /// The mapping's addresses.
    pub range: Range<usize>,
    /// The file's inode number; 0 without a file.
    pub inode: u64,
    /// Offset in the file at which the mapping begins.
    pub offset: u64,
}

/// Queries `maps`, an open `/proc/self/maps`, for the mapping at `address`; an error if there is
/// none, `None` if this kernel (before 6.11) does not answer.
pub fn mapping_at(maps: BorrowedFd<'_>, address: usize) -> Option<io::Result<MappingAt>> {
    /// `struct procmap_query` of linux/fs.h, which libc lacks.
    #[repr(C)]
    #[derive(Default)]
    struct Query {
        size: u64,
        flags: u64,
        address: u64,
        start: u64,
        end: u64,
        map_flags: u64,
        page_bytes: u64,
        offset: u64,
        inode: u64,
        device: [u32; 2],
        name_bytes: u32,
        build_id_bytes: u32,
        name: u64,
        build_id: u64,
    }
    const _: () = assert!(size_of::<Query>() == 104);
    /// `_IOWR('f', 17, struct procmap_query)`.
    const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | 0x66 << 8 | 17;
    let mut query = Query {
        size: size_of::<Query>() as u64,
        address: address as u64,
        ..Query::default()
    };
    // SAFETY: the request takes a structure of this layout, which says its size and names no other
    // memory.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &mut query) };
    if result == 0 {
        return Some(Ok(MappingAt {
            range: query.start as usize..query.end as usize,
            inode: query.inode,
            offset: query.offset,
        }));
    }
    let error = io::Error::last_os_error();
    (error.raw_os_error() != Some(libc::ENOTTY)).then_some(Err(error))
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
