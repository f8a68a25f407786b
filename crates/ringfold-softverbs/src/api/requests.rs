//! Posting of requests, and polling of completions.

use std::ffi::c_int;
use std::time::Instant;

use super::{INLINE, SIGNALED, is_refused, refusal};
use crate::fabric::{State, fabric};
use crate::layout::{Cq, Qp, RecvWr, SendWr, Sge, Wc};
use crate::pair::{ERROR, Piece, RESET, Receive, Request, SEND};

/// # Safety
/// The requirements of `ibv_poll_cq` in `infiniband/verbs.h`.
pub unsafe extern "C" fn poll_cq(cq: *mut Cq, count: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: a queue of this library.
    let handle = unsafe { (*cq).handle };
    if is_refused("poll_cq") {
        return -1;
    }
    let mut state = fabric().lock();
    let State {
        queues,
        pairs,
        lateness,
        ..
    } = &mut *state;
    let polled = queues
        .get_mut(&handle)
        .map(|queue| queue.poll(count as usize, Instant::now(), lateness));
    let Some(Ok(entries)) = polled else {
        return -1;
    };
    for (place, entry) in entries.iter().enumerate() {
        if let Some(pair) = pairs.get_mut(&entry.wc.qp_num) {
            pair.send_used -= entry.frees;
        }
        // SAFETY: room for `count` completions.
        unsafe { *wc.add(place) = entry.wc };
    }
    entries.len() as c_int
}

/// # Safety
/// The requirements of `ibv_req_notify_cq` in `infiniband/verbs.h`.
pub unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _: c_int) -> c_int {
    // SAFETY: a queue of this library.
    let handle = unsafe { (*cq).handle };
    if let Some(code) = refusal("req_notify_cq") {
        return code;
    }
    if let Some(queue) = fabric().lock().queues.get_mut(&handle) {
        queue.arm();
    }
    fabric().wake();
    0
}

/// Returns the pieces of a request.
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

/// # Safety
/// The requirements of `ibv_post_send` in `infiniband/verbs.h`.
pub unsafe extern "C" fn post_send(qp: *mut Qp, wr: *mut SendWr, _: *mut *mut SendWr) -> c_int {
    if let Some(code) = refusal("post_send") {
        return code;
    }
    // SAFETY: a queue pair of this library, and one request.
    let (number, wr) = unsafe { ((*qp).qp_num, &*wr) };
    // Unsupported: lists of requests, sends with immediate data, reads, atomics.
    if !wr.next.is_null() || wr.opcode > SEND {
        return libc::EINVAL;
    }
    // SAFETY: the request's own list.
    let pieces = unsafe { pieces(wr.sg_list, wr.num_sge) };
    let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
    let inline = (wr.send_flags & INLINE != 0).then(|| {
        let mut content = Vec::with_capacity(bytes);
        for piece in &pieces {
            // SAFETY: the caller's memory, read during this call.
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
        due: Instant::now(),
    };
    let code = enqueue(&mut fabric().lock(), number, request, bytes);
    fabric().wake();
    code
}

fn enqueue(state: &mut State, number: u32, mut request: Request, bytes: usize) -> c_int {
    state.mishap();
    request.due += state.lateness.delay();
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

/// # Safety
/// The requirements of `ibv_post_recv` in `infiniband/verbs.h`.
pub unsafe extern "C" fn post_recv(qp: *mut Qp, wr: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    if let Some(code) = refusal("post_recv") {
        return code;
    }
    // SAFETY: a queue pair of this library, and one request.
    let (number, wr) = unsafe { ((*qp).qp_num, &*wr) };
    if !wr.next.is_null() || wr.num_sge > 1 {
        return libc::EINVAL;
    }
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
