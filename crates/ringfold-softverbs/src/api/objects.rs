//! Domains, memory, channels, queues and queue pairs.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use super::{
    INLINE_BYTES_MAX, QUEUE_ENTRIES_MAX, REQUESTS_MAX, device_of, fail, is_refused, refusal,
};
use crate::fabric::fabric;
use crate::layout::{CompChannel, Cq, IbvContext, Mr, Pd, Qp, QpAttr, QpInitAttr};
use crate::pair::{ERROR, INIT, Pair, Peer, READY_TO_RECEIVE, RESET};
use crate::queue::Queue;

/// Allocates a protection domain.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut IbvContext) -> *mut Pd {
    if is_refused("alloc_pd") {
        return ptr::null_mut();
    }
    let pd = Box::into_raw(Box::new(Pd { context, handle: 0 }));
    let (domain, device) = (pd as usize, context as usize);
    fabric().lock().domains.insert(domain, device);
    pd
}

/// # Safety
/// `pd` is from `ibv_alloc_pd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    let mut state = fabric().lock();
    let domain = pd as usize;
    let has_pairs = state.pairs.values().any(|pair| pair.domain == domain);
    if has_pairs || state.memories.has(domain) {
        return libc::EBUSY;
    }
    state.domains.remove(&domain);
    // SAFETY: allocated by `ibv_alloc_pd`.
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
    let writes_remotely_alone = access & 2 != 0 && access & 1 == 0;
    // Linux refuses both, too.
    if length == 0 || writes_remotely_alone {
        fail(libc::EINVAL);
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
        // Differs from `lkey`, so that a mix-up of the keys fails.
        rkey: !key,
    }))
}

/// # Safety
/// `mr` is from `ibv_reg_mr`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: allocated by `ibv_reg_mr`.
    let mr = unsafe { Box::from_raw(mr) };
    fabric().lock().memories.remove(mr.lkey);
    0
}

/// Creates a completion channel, whose `refcnt` holds the pipe's write end.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut IbvContext) -> *mut CompChannel {
    let mut ends = [0; 2];
    if is_refused("create_comp_channel") {
        return ptr::null_mut();
    }
    // SAFETY: room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if made != 0 {
        return ptr::null_mut();
    }
    let channel = Box::into_raw(Box::new(CompChannel {
        context,
        fd: ends[0],
        refcnt: ends[1],
    }));
    let (address, device) = (channel as usize, context as usize);
    fabric().lock().channels.insert(address, device);
    channel
}

/// # Safety
/// `channel` is from `ibv_create_comp_channel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    let mut state = fabric().lock();
    // SAFETY: the caller's promise.
    let end = unsafe { (*channel).refcnt };
    if state.queues.values().any(|queue| queue.channel() == end) {
        return libc::EBUSY;
    }
    state.channels.remove(&(channel as usize));
    // SAFETY: allocated by `ibv_create_comp_channel`.
    let channel = unsafe { Box::from_raw(channel) };
    for end in [channel.fd, channel.refcnt] {
        // SAFETY: the channel's own descriptor.
        unsafe { libc::close(end) };
    }
    0
}

/// Creates a completion queue.
///
/// # Safety
/// `channel` is null or from `ibv_create_comp_channel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut IbvContext,
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
/// `cq` is from `ibv_create_cq`.
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
    // SAFETY: allocated by `ibv_create_cq`.
    drop(unsafe { Box::from_raw(cq) });
    0
}

/// # Safety
/// `channel` is from `ibv_create_comp_channel`; the other pointers are writable.
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

/// Does nothing: events need no acknowledgment.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(_: *mut Cq, _: c_uint) {}

/// # Safety
/// `pd` and the queues belong to this library; `wanted` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, wanted: *mut QpInitAttr) -> *mut Qp {
    if is_refused("create_qp") {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let (wanted, context) = unsafe { (&mut *wanted, (*pd).context) };
    let cap = &mut wanted.cap;
    let is_too_deep = cap.max_send_wr.max(cap.max_recv_wr) > REQUESTS_MAX;
    if is_too_deep || cap.max_inline_data > INLINE_BYTES_MAX || wanted.sq_sig_all != 0 {
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
        mtu: 0,
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
/// `qp` is from `ibv_create_qp`, and `attributes` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, attributes: *mut QpAttr, mask: c_int) -> c_int {
    if let Some(code) = refusal("modify_qp") {
        return code;
    }
    // SAFETY: the caller's promise.
    let (number, attributes) = unsafe { ((*qp).qp_num, &*attributes) };
    let mut state = fabric().lock();
    let mtu_max = state.ports.mtu;
    let Some(pair) = state.pairs.get_mut(&number) else {
        return libc::EINVAL;
    };
    let to = attributes.qp_state;
    if !pair.permits(to, mask as u32) {
        return libc::EINVAL;
    }
    match to {
        ERROR => state.end(number),
        // The port has one partition key.
        INIT if attributes.pkey_index > 0 || attributes.port_num != 1 => return libc::EINVAL,
        INIT => {
            pair.state = INIT;
            pair.rights = attributes.qp_access_flags;
        }
        READY_TO_RECEIVE => {
            let gid = attributes.ah_attr.grh.dgid;
            let is_way = attributes.ah_attr.dlid == u16::from(gid[15]);
            if !is_way || !(1..=mtu_max).contains(&attributes.path_mtu) {
                return libc::EINVAL;
            }
            pair.state = READY_TO_RECEIVE;
            pair.mtu = attributes.path_mtu;
            pair.peer = Peer {
                process: u32::from_be_bytes(gid[8..12].try_into().expect("four bytes")),
                pair: attributes.dest_qp_num,
            };
        }
        other => pair.state = other,
    }
    drop(state);
    fabric().wake();
    0
}

/// # Safety
/// `qp` is from `ibv_create_qp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: allocated by `ibv_create_qp`.
    let qp = unsafe { Box::from_raw(qp) };
    fabric().lock().pairs.remove(&qp.qp_num);
    0
}
