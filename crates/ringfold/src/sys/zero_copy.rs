//! Zero-copy sends from the caller's pages (`MSG_ZEROCOPY`), and the kernel's reports that it no
//! longer reads the pages.
//!
//! Source: Documentation/networking/msg_zerocopy.rst of Linux, and linux/errqueue.h.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{message, part, retry};
use crate::region::Region;

/// Constants of linux/errqueue.h that libc lacks.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

/// `struct sock_extended_err` of linux/errqueue.h: the offsets of the fields that are read, and its
/// length.
const ORIGIN_AT: usize = 4;
const CODE_AT: usize = 6;
const FIRST_AT: usize = 8;
const LAST_AT: usize = 12;
const REPORT_BYTES: usize = 16;

/// Room for a report and the address that follows it, with their header.
const CONTROL_BYTES: usize = 128;

/// A report: the sends with the numbers `first` to `last` are complete. The kernel numbers the
/// successful sends of a connection from 0 on, and again from 0 after 2³² of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendNotification {
    /// Number of the first complete send.
    pub first: u32,
    /// Number of the last complete send, which may be the same.
    pub last: u32,
    /// Whether the kernel made a copy after all.
    pub is_copied: bool,
}

/// Permits [`send`] on a socket.
pub fn permit(socket: BorrowedFd<'_>) -> io::Result<()> {
    let one: libc::c_int = 1;
    // SAFETY: the value is valid for reads of its size.
    let refused = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const one).cast(),
            size_of_val(&one) as libc::socklen_t,
        )
    };
    match refused {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends from `body`, which is not empty, in one call without blocking and without a signal.
/// Returns the number of bytes sent, which the kernel reads until it reports the send complete.
pub fn send(socket: BorrowedFd<'_>, body: Region) -> io::Result<usize> {
    let parts = [part(body.address(), body.bytes())];
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_ZEROCOPY;
    retry(|| {
        let message = message(&parts);
        // SAFETY: the part is valid for reads of its length (the contract of `Region::new`). The
        // kernel holds the pages themselves, so that they may even be unmapped before it is done.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) }
    })
}

/// Takes the next report, if there is one.
pub fn completion(socket: BorrowedFd<'_>) -> io::Result<Option<SendNotification>> {
    #[repr(C, align(8))]
    struct ControlBuffer([u8; CONTROL_BYTES]);
    const _: () = assert!(align_of::<ControlBuffer>() >= align_of::<libc::cmsghdr>());
    let mut control = ControlBuffer([0; CONTROL_BYTES]);
    let taken = retry(|| {
        let mut message = message(&[]);
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the message has no parts, and its control data is valid for writes of its length.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) }
    });
    match taken {
        Ok(_) => parse(&control.0).map(Some),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses the control data of a message from the error queue.
fn parse(control: &[u8; CONTROL_BYTES]) -> io::Result<SendNotification> {
    let word = |at: usize| {
        let bytes = [
            control[at],
            control[at + 1],
            control[at + 2],
            control[at + 3],
        ];
        u32::from_ne_bytes(bytes)
    };
    let level = word(offset_of!(libc::cmsghdr, cmsg_level)) as libc::c_int;
    let kind = word(offset_of!(libc::cmsghdr, cmsg_type)) as libc::c_int;
    /// Offset of a control message's data: the header's size is a multiple of its alignment.
    const REPORT_AT: usize = size_of::<libc::cmsghdr>();
    const _: () = assert!(REPORT_AT + REPORT_BYTES <= CONTROL_BYTES);
    let is_error = [
        (libc::SOL_IP, libc::IP_RECVERR),
        (libc::SOL_IPV6, libc::IPV6_RECVERR),
    ]
    .contains(&(level, kind));
    if !is_error || control[REPORT_AT + ORIGIN_AT] != SO_EE_ORIGIN_ZEROCOPY {
        return Err(io::Error::other(format!(
            "unexpected message in the socket's error queue (level {level}, type {kind})"
        )));
    }
    Ok(SendNotification {
        first: word(REPORT_AT + FIRST_AT),
        last: word(REPORT_AT + LAST_AT),
        is_copied: control[REPORT_AT + CODE_AT] & SO_EE_CODE_ZEROCOPY_COPIED != 0,
    })
}
