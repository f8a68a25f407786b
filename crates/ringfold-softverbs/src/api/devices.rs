//! Devices and their ports.

use std::ffi::{CStr, c_int, c_uint};
use std::ptr;

use super::requests::{poll_cq, post_recv, post_send, req_notify_cq};
use super::{NAMES, device_of, fail, is_refused, refusal};
use crate::events::{DEVICE_FATAL, PORT_ACTIVE, PORT_ERROR, QUEUE_ERROR};
use crate::fabric::fabric;
use crate::layout::{AsyncEvent, ContextOps, Gid, IbvContext, IbvDevice, PortAttr, Text};

/// # Safety
/// `count` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut IbvDevice {
    if is_refused("get_device_list") {
        return ptr::null_mut();
    }
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *count = NAMES.len() as c_int };
    }
    let address = |name: &&CStr| ptr::from_ref(*name).cast::<IbvDevice>().cast_mut();
    let list: Box<[*mut IbvDevice]> = NAMES.iter().map(address).collect();
    Box::into_raw(list).cast()
}

/// # Safety
/// `list` is from `ibv_get_device_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut IbvDevice) {
    let list = ptr::slice_from_raw_parts_mut(list, NAMES.len());
    // SAFETY: from `ibv_get_device_list`, with as many entries.
    drop(unsafe { Box::from_raw(list) });
}

/// Returns a device's name.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *mut IbvDevice) -> Text {
    device.cast_const().cast()
}

/// Opens a device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut IbvDevice) -> *mut IbvContext {
    if is_refused("open_device") {
        return ptr::null_mut();
    }
    fabric().open();
    // SAFETY: no memory is passed.
    let async_fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    let context = IbvContext {
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
    let context = Box::into_raw(Box::new(context));
    fabric().lock().contexts.add(context as usize, async_fd);
    context
}

/// # Safety
/// `context` is from `ibv_open_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut IbvContext) -> c_int {
    let mut state = fabric().lock();
    let address = context as usize;
    let mut users = state.domains.values().chain(state.channels.values());
    if users.any(|user| *user == address) {
        return libc::EBUSY;
    }
    state.contexts.remove(address);
    drop(state);
    // SAFETY: allocated by `ibv_open_device`.
    let context = unsafe { Box::from_raw(context) };
    // SAFETY: the context's own descriptor.
    unsafe { libc::close(context.async_fd) };
    fabric().close();
    0
}

/// Returns a device's next asynchronous event.
///
/// # Safety
/// `event` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut IbvContext,
    event: *mut AsyncEvent,
) -> c_int {
    let Some(event_type) = fabric().lock().contexts.take(context as usize) else {
        fail(libc::EAGAIN);
        return -1;
    };
    let told = AsyncEvent {
        element: context.cast(),
        event_type,
    };
    // SAFETY: the caller's promise.
    unsafe { *event = told };
    0
}

/// Does nothing: events need no acknowledgment.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(_: *mut AsyncEvent) {}

/// Returns the name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_uint) -> Text {
    match event {
        QUEUE_ERROR => c"CQ error",
        DEVICE_FATAL => c"local catastrophic error",
        PORT_ACTIVE => c"port active",
        PORT_ERROR => c"port error",
        _ => c"another event",
    }
    .as_ptr()
}

/// Returns the name of a completion's status.
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
/// `attributes` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut IbvContext,
    port: u8,
    attributes: *mut PortAttr,
) -> c_int {
    if let Some(code) = refusal("query_port") {
        return code;
    }
    if port != 1 {
        return libc::EINVAL;
    }
    let ports = fabric().lock().ports;
    let found = PortAttr {
        state: if ports.is_down { 1 } else { 4 },
        max_mtu: 5,
        active_mtu: ports.mtu,
        gid_tbl_len: 1,
        max_msg_sz: 1 << 30,
        pkey_tbl_len: 1,
        lid: device_of(context) as u16 + 1,
        link_layer: if ports.is_ethernet { 2 } else { 1 },
        ..PortAttr::default()
    };
    // SAFETY: the caller's promise.
    unsafe { *attributes = found };
    0
}

/// # Safety
/// `gid` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut IbvContext,
    _: u8,
    index: c_int,
    gid: *mut Gid,
) -> c_int {
    if is_refused("query_gid") {
        return -1;
    }
    let mut found = [0; 16];
    if index == 0 && !fabric().lock().ports.is_ethernet {
        found[..2].copy_from_slice(&[0xfe, 0x80]);
        found[8..12].copy_from_slice(&std::process::id().to_be_bytes());
        found[15] = device_of(context) as u8 + 1;
    }
    // SAFETY: the caller's promise.
    unsafe { *gid = found };
    0
}
