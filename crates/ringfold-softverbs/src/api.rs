//! The functions, as `infiniband/verbs.h` declares them.
//!
//! Objects are allocated here and freed by their own functions; what they are is in the fabric's
//! state, by their handles.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use crate::fabric::{State, fabric};
use crate::layout::{
    AsyncEvent, CompChannel, Context, ContextOps, Cq, Device, Gid, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr, RecvWr, SendWr, Sge, Text, Wc,
};
use crate::pair::{ERROR, INIT, Pair, Peer, Piece, READY_TO_RECEIVE, RESET, Receive, Request};
use crate::queue::{Entry, Queue};

/// The names of the devices; a device is the address of its own.
static NAMES: [&CStr; 2] = [c"soft0", c"soft1"];
/// What a device permits.
const QUEUE_ENTRIES_MAX: c_int = 1 << 16;
const REQUESTS_MAX: u32 = 1 << 12;
const INLINE_BYTES_MAX: u32 = 256;
/// `IBV_SEND_SIGNALED`, `IBV_SEND_INLINE`.
const SIGNALED: c_uint = 1 << 1;
const INLINE: c_uint = 1 << 3;

fn fail(code: c_int) {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = code };
}

/// Whether a test wants this call to fail.
fn is_refused(function: &str) -> bool {
    let is_refused = fabric().lock().faults.fails(function);
    if is_refused {
        fail(libc::ENOMEM);
    }
    is_refused
}

fn device_of(context: *mut Context) -> usize {
    // SAFETY: a context of `ibv_open_device`.
    let device = unsafe { (*context).device } as usize;
    let place = |name: &&CStr| ptr::from_ref(*name).cast::<u8>() as usize == device;
    NAMES.iter().position(place).expect("a device")
}

/// Has the `at`-th call of a function from now on fail.
///
/// # Safety
/// `function` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softverbs_fail(function: *const c_char, at: u64) {
    // SAFETY: the caller's promise.
    let function = unsafe { CStr::from_ptr(function) };
    let name = function.to_string_lossy();
    fabric().lock().faults.fail(&name, at);
}

/// Cuts a device's cable, or mends it.
#[unsafe(no_mangle)]
pub extern "C" fn softverbs_cut(device: c_int, is_cut: c_int) {
    fabric().lock().faults.is_cut[device as usize] = is_cut != 0;
}

/// How many registrations there are.
#[unsafe(no_mangle)]
pub extern "C" fn softverbs_registrations() -> u64 {
    fabric().lock().memories.count() as u64
}

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

/// A domain.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    if is_refused("alloc_pd") {
        return ptr::null_mut();
    }
    Box::into_raw(Box::new(Pd { context, handle: 0 }))
}

/// # Safety
/// `pd` is of `ibv_alloc_pd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(pd) });
    0
}

/// Registers memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    if is_refused("reg_mr") {
        return ptr::null_mut();
    }
    let mut state = fabric().lock();
    let Some(key) = state
        .memories
        .add(pd as usize, addr as usize, length, access as u32)
    else {
        fail(libc::ENOMEM);
        return ptr::null_mut();
    };
    Box::into_raw(Box::new(Mr {
        context: ptr::null_mut(),
        pd,
        addr,
        length,
        handle: 0,
        lkey: key,
        rkey: key,
    }))
}

/// # Safety
/// `mr` is of `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: made above.
    let mr = unsafe { Box::from_raw(mr) };
    fabric().lock().memories.remove(mr.lkey);
    0
}

/// A channel. Its other end is the reference count's place.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut CompChannel {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if made != 0 || is_refused("create_comp_channel") {
        return ptr::null_mut();
    }
    Box::into_raw(Box::new(CompChannel {
        context,
        fd: ends[0],
        refcnt: ends[1],
    }))
}

/// # Safety
/// `channel` is of `ibv_create_comp_channel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: made above.
    let channel = unsafe { Box::from_raw(channel) };
    for end in [channel.fd, channel.refcnt] {
        // SAFETY: the channel's own descriptor.
        unsafe { libc::close(end) };
    }
    0
}

/// A completion queue.
///
/// # Safety
/// `channel` is null or of `ibv_create_comp_channel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut CompChannel,
    _: c_int,
) -> *mut Cq {
    if is_refused("create_cq") {
        return ptr::null_mut();
    }
    if !(1..=QUEUE_ENTRIES_MAX).contains(&cqe) {
        fail(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let end = unsafe { channel.as_ref() }.map_or(-1, |channel| channel.refcnt);
    let mut state = fabric().lock();
    state.made += 1;
    let handle = state.made;
    let cq = Box::into_raw(Box::new(Cq {
        context,
        channel,
        cq_context,
        handle,
        cqe,
    }));
    let queue = Queue::new(cqe as usize, end, cq as usize);
    state.queues.insert(handle, queue);
    cq
}

/// # Safety
/// `cq` is of `ibv_create_cq`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: the caller's promise.
    let handle = unsafe { (*cq).handle };
    let mut state = fabric().lock();
    if state
        .pairs
        .values()
        .any(|pair| pair.queues.contains(&handle))
    {
        return libc::EBUSY;
    }
    state.queues.remove(&handle);
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(cq) });
    0
}

/// # Safety
/// `channel` is of `ibv_create_comp_channel`; the others may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut CompChannel,
    cq: *mut *mut Cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let mut event = [0; 8];
    // SAFETY: the channel's own descriptor, and room for eight bytes.
    let count = unsafe { libc::read((*channel).fd, event.as_mut_ptr().cast(), event.len()) };
    if count != event.len() as isize {
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { *cq = usize::from_ne_bytes(event) as *mut Cq };
    // SAFETY: as above.
    unsafe { *cq_context = ptr::null_mut() };
    0
}

/// Nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(_: *mut Cq, _: c_uint) {}

/// # Safety
/// `pd` and the queues are of this library; `wanted` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, wanted: *mut QpInitAttr) -> *mut Qp {
    if is_refused("create_qp") {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let (wanted, context) = unsafe { (&mut *wanted, (*pd).context) };
    let cap = &mut wanted.cap;
    let is_too_deep = cap.max_send_wr.max(cap.max_recv_wr) > REQUESTS_MAX;
    if is_too_deep || cap.max_inline_data > INLINE_BYTES_MAX {
        fail(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: as above.
    let queues = unsafe { [(*wanted.send_cq).handle, (*wanted.recv_cq).handle] };
    let mut state = fabric().lock();
    state.made += 1;
    let number = state.made;
    let pair = Pair {
        device: device_of(context),
        domain: pd as usize,
        queues,
        state: RESET,
        peer: Peer {
            process: 0,
            pair: 0,
        },
        rights: 0,
        sends: Default::default(),
        receives: Default::default(),
        send_room: cap.max_send_wr as usize,
        receive_room: cap.max_recv_wr as usize,
        inline_bytes: cap.max_inline_data as usize,
        send_used: 0,
        unsignaled: 0,
        is_awaiting: false,
    };
    state.pairs.insert(number, pair);
    Box::into_raw(Box::new(Qp {
        context,
        qp_context: wanted.qp_context,
        pd,
        send_cq: wanted.send_cq,
        recv_cq: wanted.recv_cq,
        srq: ptr::null_mut(),
        handle: number,
        qp_num: number,
        state: RESET,
        qp_type: wanted.qp_type,
    }))
}

/// # Safety
/// `qp` is of `ibv_create_qp`, and `attributes` may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, attributes: *mut QpAttr, mask: c_int) -> c_int {
    if is_refused("modify_qp") {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    let (number, attributes) = unsafe { ((*qp).qp_num, &*attributes) };
    let mut state = fabric().lock();
    let Some(pair) = state.pairs.get_mut(&number) else {
        return libc::EINVAL;
    };
    let to = attributes.qp_state;
    if !pair.permits(to, mask as u32) {
        return libc::EINVAL;
    }
    match to {
        ERROR => state.end(number),
        INIT => {
            pair.state = INIT;
            pair.rights = attributes.qp_access_flags;
        }
        READY_TO_RECEIVE => {
            let gid = attributes.ah_attr.grh.dgid;
            pair.state = READY_TO_RECEIVE;
            pair.peer = Peer {
                process: u32::from_be_bytes(gid[8..12].try_into().expect("four bytes")),
                pair: attributes.dest_qp_num,
            };
        }
        other => pair.state = other,
    }
    0
}

/// # Safety
/// `qp` is of `ibv_create_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: made above.
    let qp = unsafe { Box::from_raw(qp) };
    fabric().lock().pairs.remove(&qp.qp_num);
    0
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, count: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: a queue of this library.
    let handle = unsafe { (*cq).handle };
    let mut state = fabric().lock();
    for place in 0..count as usize {
        let polled = state.queues.get_mut(&handle).map(Queue::poll);
        match polled {
            Some(Ok(Some(Entry { wc: entry, frees }))) => {
                if let Some(pair) = state.pairs.get_mut(&entry.qp_num) {
                    pair.send_used -= frees;
                }
                // SAFETY: room for `count` completions.
                unsafe { *wc.add(place) = entry };
            }
            Some(Ok(None)) => return place as c_int,
            _ => return -1,
        }
    }
    count
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _: c_int) -> c_int {
    // SAFETY: a queue of this library.
    let handle = unsafe { (*cq).handle };
    if let Some(queue) = fabric().lock().queues.get_mut(&handle) {
        queue.arm();
    }
    0
}

/// The pieces of a request.
///
/// # Safety
/// `list` has `count` entries.
unsafe fn pieces(list: *mut Sge, count: c_int) -> Vec<Piece> {
    let piece = |place: c_int| {
        // SAFETY: the caller's promise.
        let sge = unsafe { *list.add(place as usize) };
        Piece {
            address: sge.addr,
            bytes: sge.length as usize,
            lkey: sge.lkey,
        }
    };
    (0..count).map(piece).collect()
}

unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, _: *mut *mut SendWr) -> c_int {
    if is_refused("post_send") {
        return libc::ENOMEM;
    }
    // SAFETY: a queue pair of this library, and one request.
    let (number, wr) = unsafe { ((*qp).qp_num, &*wr) };
    // SAFETY: the request's own list.
    let pieces = unsafe { pieces(wr.sg_list, wr.num_sge) };
    let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
    let inline = (wr.send_flags & INLINE != 0).then(|| {
        let mut content = Vec::with_capacity(bytes);
        for piece in &pieces {
            // SAFETY: memory of the caller's, which is read now.
            let part =
                unsafe { std::slice::from_raw_parts(piece.address as *const u8, piece.bytes) };
            content.extend_from_slice(part);
        }
        content
    });
    let request = Request {
        id: wr.wr_id,
        opcode: wr.opcode,
        is_signaled: wr.send_flags & SIGNALED != 0,
        pieces,
        inline,
        imm: wr.imm_data,
        remote_address: wr.remote_addr,
        rkey: wr.rkey,
    };
    let code = enqueue(&mut fabric().lock(), number, request, bytes);
    fabric().wake();
    code
}

fn enqueue(state: &mut State, number: u32, request: Request, bytes: usize) -> c_int {
    let Some(pair) = state.pairs.get_mut(&number) else {
        return libc::EINVAL;
    };
    if pair.state < 3 || (request.inline.is_some() && bytes > pair.inline_bytes) {
        return libc::EINVAL;
    }
    if pair.send_used == pair.send_room {
        return libc::ENOMEM;
    }
    pair.send_used += 1;
    let has_failed = pair.state == ERROR;
    pair.sends.push_back(request);
    if has_failed {
        state.end(number);
    }
    0
}

unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    if is_refused("post_recv") {
        return libc::ENOMEM;
    }
    // SAFETY: a queue pair of this library, and one request.
    let (number, wr) = unsafe { ((*qp).qp_num, &*wr) };
    // SAFETY: the request's own list.
    let piece = unsafe { pieces(wr.sg_list, wr.num_sge) }.first().copied();
    let mut state = fabric().lock();
    let Some(pair) = state.pairs.get_mut(&number) else {
        return libc::EINVAL;
    };
    if pair.state == RESET {
        return libc::EINVAL;
    }
    if pair.receives.len() == pair.receive_room {
        return libc::ENOMEM;
    }
    let has_failed = pair.state == ERROR;
    pair.receives.push_back(Receive {
        id: wr.wr_id,
        piece,
    });
    if has_failed {
        state.end(number);
    }
    0
}
