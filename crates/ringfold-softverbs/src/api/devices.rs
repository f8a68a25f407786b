//! Devices and their ports.

use std::ffi::{CStr, c_int, c_uint};
use std::ptr;

use super::requests::{poll_cq, post_recv, post_send, req_notify_cq};
use super::{NAMES, device_of, fail, is_refused};
use crate::fabric::fabric;
use crate::layout::{AsyncEvent, Context, ContextOps, Device, Gid, PortAttr, Text};

/// # Safety
/// `count` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    if is_refused("get_device_list") {
        return ptr::null_mut();
    }
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *count = NAMES.len() as c_int };
    }
    let address = |name: &&CStr| ptr::from_ref(*name).cast::<Device>().cast_mut();
    let list: Box<[*mut Device]> = NAMES.iter().map(address).collect();
    Box::into_raw(list).cast()
}

/// # Safety
/// `list` is of `ibv_get_device_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    let list = ptr::slice_from_raw_parts_mut(list, NAMES.len());
    // SAFETY: made above, with as many entries.
    drop(unsafe { Box::from_raw(list) });
}

/// A device's name.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *mut Device) -> Text {
    device.cast_const().cast()
}

/// A context of a device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    if is_refused("open_device") {
        return ptr::null_mut();
    }
    fabric().open();
    // SAFETY: no memory is passed.
    let async_fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    let context = Context {
        device,
        ops: ContextOps {
            before_poll: [ptr::null_mut(); 11],
            poll_cq,
            req_notify_cq,
            before_post: [ptr::null_mut(); 12],
            post_send,
            post_recv,
            rest: [ptr::null_mut(); 5],
        },
        cmd_fd: -1,
        async_fd,
    };
    Box::into_raw(Box::new(context))
}

/// # Safety
/// `context` is of `ibv_open_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    // SAFETY: made above.
    let context = unsafe { Box::from_raw(context) };
    // SAFETY: the context's own descriptor.
    unsafe { libc::close(context.async_fd) };
    fabric().close();
    0
}

/// There are no events.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_async_event(_: *mut Context, _: *mut AsyncEvent) -> c_int {
    fail(libc::EAGAIN);
    -1
}

/// Nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(_: *mut AsyncEvent) {}

/// The name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(_: c_uint) -> Text {
    c"an event".as_ptr()
}

/// The name of a status.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_uint) -> Text {
    match status {
        0 => c"success",
        1 => c"local length error",
        4 => c"local protection error",
        5 => c"Work Request Flushed Error",
        9 => c"remote invalid request error",
        10 => c"remote access error",
        12 => c"transport retry counter exceeded",
        13 => c"RNR retry counter exceeded",
        _ => c"another error",
    }
    .as_ptr()
}

/// # Safety
/// `attributes` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    port: u8,
    attributes: *mut PortAttr,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    let found = PortAttr {
        state: 4,
        max_mtu: 5,
        active_mtu: 5,
        gid_tbl_len: 1,
        max_msg_sz: 1 << 30,
        lid: device_of(context) as u16 + 1,
        link_layer: 1,
        ..PortAttr::default()
    };
    // SAFETY: the caller's promise.
    unsafe { *attributes = found };
    0
}

/// # Safety
/// `gid` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    _: u8,
    index: c_int,
    gid: *mut Gid,
) -> c_int {
    let mut found = [0; 16];
    if index == 0 {
        found[..2].copy_from_slice(&[0xfe, 0x80]);
        found[8..12].copy_from_slice(&std::process::id().to_be_bytes());
        found[15] = device_of(context) as u8 + 1;
    }
    // SAFETY: the caller's promise.
    unsafe { *gid = found };
    0
}
