//! A queue pair of a reliable connection.

use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Arc;

use super::domain::Domain;
use super::layout::{AhAttr, Gid, GlobalRoute, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Sge};
use super::queue::CompletionQueue;
use crate::error::Result;
use crate::memory::Region;

/// `IBV_QPT_RC`.
const RELIABLE: u32 = 2;
/// `IBV_QPS_INIT` and so on.
const INIT: u32 = 1;
const READY_TO_RECEIVE: u32 = 2;
const READY_TO_SEND: u32 = 3;
const ERROR: u32 = 6;
/// `IBV_QP_STATE` and so on: the attributes that a change of state sets.
mod says {
    pub const STATE: i32 = 1;
    pub const ACCESS_FLAGS: i32 = 1 << 3;
    pub const PKEY_INDEX: i32 = 1 << 4;
    pub const PORT: i32 = 1 << 5;
    pub const AV: i32 = 1 << 7;
    pub const PATH_MTU: i32 = 1 << 8;
    pub const TIMEOUT: i32 = 1 << 9;
    pub const RETRY_CNT: i32 = 1 << 10;
    pub const RNR_RETRY: i32 = 1 << 11;
    pub const RQ_PSN: i32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub const MIN_RNR_TIMER: i32 = 1 << 15;
    pub const SQ_PSN: i32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub const DEST_QPN: i32 = 1 << 20;
}
/// `IBV_ACCESS_REMOTE_WRITE`.
const REMOTE_WRITE: u32 = 2;
/// `IBV_WR_RDMA_WRITE`, `IBV_WR_RDMA_WRITE_WITH_IMM`, `IBV_WR_SEND`.
const WRITE: u32 = 0;
const WRITE_WITH_IMM: u32 = 1;
const SEND: u32 = 2;
/// `IBV_SEND_SIGNALED` and `IBV_SEND_INLINE`.
const SIGNALED: u32 = 1 << 1;
const INLINE: u32 = 1 << 3;
/// Hop limit of routed packets.
const HOPS: u8 = 64;
/// Maximum number of pieces from which one message is gathered.
pub const PIECES_MAX: usize = 2;
/// Requested number of inline bytes in a request. Devices round up.
const INLINE_BYTES: u32 = 220;

/// Numbers of requests that a pair holds.
#[derive(Clone, Copy, Debug)]
pub struct Depths {
    pub send: usize,
    pub receive: usize,
}

/// The route from a port to a peer's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// This rank's port; `gid_index` is the index of the port's address.
    pub port: u8,
    pub gid_index: u8,
    /// Whether the route uses addresses, as on Ethernet and between subnets.
    pub is_global: bool,
    /// The peer's queue pair; `lid` and `gid` are its port's.
    pub pair: u32,
    pub lid: u16,
    pub gid: Gid,
    /// Maximum payload of the packets.
    pub mtu_bytes: u32,
}

/// User options of a connection; NCCL's variables of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Exponent of the time until an unanswered packet is sent again: 4.096 us * 2^timeout.
    pub timeout: u8,
    /// Number of times that an unanswered packet is sent again.
    pub retries: u8,
    /// InfiniBand's service level.
    pub service_level: u8,
    /// Traffic class of routed packets.
    pub traffic_class: u8,
    /// Index of the partition's key in the port's table.
    pub pkey_index: u16,
}

impl Default for LinkOptions {
    /// Returns 1.07 s and six retries: the control plane detects a death sooner. Some devices treat
    /// the largest number of retries as infinitely many.
    fn default() -> LinkOptions {
        LinkOptions {
            timeout: 18,
            retries: 6,
            service_level: 0,
            traffic_class: 0,
            pkey_index: 0,
        }
    }
}

/// Registered memory for a request.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub region: Region,
    /// Key of the memory; 0 for content inline in the request.
    pub lkey: u32,
}

/// Destination of a write: the peer's address and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    pub address: u64,
    pub rkey: u32,
}

/// A queue pair, destroyed when dropped. Used by one thread at a time.
#[derive(Debug)]
pub struct QueuePair {
    domain: Arc<Domain>,
    qp: *mut Qp,
    inline_bytes: usize,
}

// SAFETY: libibverbs allows calls from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates a pair on `port`, which accepts receives from now on.
    ///
    /// # Errors
    /// `System` if the device has no more pairs, or none that is so deep.
    pub fn new(
        domain: &Arc<Domain>,
        queue: &CompletionQueue,
        depths: Depths,
        port: u8,
        pkey_index: u16,
    ) -> Result<QueuePair> {
        let mut wanted = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: queue.cq(),
            recv_cq: queue.cq(),
            srq: ptr::null_mut(),
            cap: QpCap {
                max_send_wr: depths.send as u32,
                max_recv_wr: depths.receive as u32,
                max_send_sge: PIECES_MAX as u32,
                max_recv_sge: 1,
                max_inline_data: INLINE_BYTES,
            },
            qp_type: RELIABLE,
            sq_sig_all: 0,
        };
        let verbs = domain.device().verbs;
        // SAFETY: a living domain and queue; the library writes what it grants.
        let mut qp = unsafe { (verbs.table.create_qp)(domain.pd(), &mut wanted) };
        if qp.is_null() {
            // Some devices support no inline content.
            wanted.cap.max_inline_data = 0;
            // SAFETY: as above.
            qp = unsafe { (verbs.table.create_qp)(domain.pd(), &mut wanted) };
        }
        if qp.is_null() {
            return Err(verbs.failure("create_qp"));
        }
        let pair = QueuePair {
            domain: domain.clone(),
            qp,
            inline_bytes: wanted.cap.max_inline_data as usize,
        };
        let mut change = QpAttr {
            qp_state: INIT,
            pkey_index,
            port_num: port,
            qp_access_flags: REMOTE_WRITE,
            ..QpAttr::default()
        };
        let what = says::STATE | says::PKEY_INDEX | says::PORT | says::ACCESS_FLAGS;
        let call = match pkey_index {
            0 => "modify_qp".into(),
            place => format!("modify_qp (check the partition key at RINGFOLD_IB_PKEY={place})"),
        };
        pair.modify(&mut change, what, &call)?;
        Ok(pair)
    }

    /// Returns the pair's number, by which the peer reaches it.
    pub fn number(&self) -> u32 {
        // SAFETY: a living pair.
        unsafe { (*self.qp).qp_num }
    }

    /// Returns the maximum number of inline bytes in a request.
    pub fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// Connects the pair. The peer may send when this call returns, and this rank when the peer's
    /// call does.
    ///
    /// # Errors
    /// `System` if the route does not exist.
    pub fn connect(&self, route: &Route, options: &LinkOptions) -> Result<()> {
        let mut change = QpAttr {
            qp_state: READY_TO_RECEIVE,
            path_mtu: route.mtu_bytes.clamp(256, 4096).ilog2() - 7,
            dest_qp_num: route.pair,
            // No reads and no atomics; some devices refuse 0.
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ah_attr: AhAttr {
                grh: GlobalRoute {
                    dgid: route.gid,
                    flow_label: 0,
                    sgid_index: route.gid_index,
                    hop_limit: HOPS,
                    traffic_class: options.traffic_class,
                },
                dlid: route.lid,
                sl: options.service_level,
                is_global: route.is_global.into(),
                port_num: route.port,
                ..AhAttr::default()
            },
            ..QpAttr::default()
        };
        let what = says::STATE
            | says::AV
            | says::PATH_MTU
            | says::DEST_QPN
            | says::RQ_PSN
            | says::MAX_DEST_RD_ATOMIC
            | says::MIN_RNR_TIMER;
        let gid = Ipv6Addr::from(route.gid);
        let call = format!("modify_qp for a route to the address {gid}");
        self.modify(&mut change, what, &call)?;
        let mut change = QpAttr {
            qp_state: READY_TO_SEND,
            timeout: options.timeout,
            retry_cnt: options.retries,
            // Never needed: every send has a posted receive.
            rnr_retry: 0,
            max_rd_atomic: 1,
            ..QpAttr::default()
        };
        let what = says::STATE
            | says::TIMEOUT
            | says::RETRY_CNT
            | says::RNR_RETRY
            | says::SQ_PSN
            | says::MAX_QP_RD_ATOMIC;
        self.modify(&mut change, what, "modify_qp")
    }

    /// Ends the pair: all posted requests fail, and peers' sends and writes are dropped.
    pub fn end(&self) {
        if self.domain.device().is_inherited() {
            return;
        }
        let mut change = QpAttr {
            qp_state: ERROR,
            ..QpAttr::default()
        };
        // Cannot fail in a state in which a pair is left.
        let _ = self.modify(&mut change, says::STATE, "modify_qp");
    }

    fn modify(&self, change: &mut QpAttr, what: i32, call: &str) -> Result<()> {
        let verbs = self.domain.device().verbs;
        // SAFETY: a living pair; `what` selects the members that count.
        let code = unsafe { (verbs.table.modify_qp)(self.qp, change, what) };
        verbs.check(call, code)
    }

    /// Posts a receive of a message, or of the number of a write, which needs no memory.
    ///
    /// # Errors
    /// `System` if there are more receives than the pair holds.
    pub fn post_receive(&self, id: u64, room: Option<Piece>) -> Result<()> {
        let mut piece = room.map(sge);
        let mut request = RecvWr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: piece.as_mut().map_or(ptr::null_mut(), ptr::from_mut),
            num_sge: room.is_some().into(),
        };
        let mut refused = ptr::null_mut();
        // SAFETY: a living pair; the request is copied, and its memory registered until it has
        // ended, or the device refuses it by its key.
        let code = unsafe {
            let post = (*(*self.qp).context).ops.post_recv;
            post(self.qp, &mut request, &mut refused)
        };
        self.domain.device().verbs.check("post_recv", code)
    }

    /// Sends the `pieces`, one after the other, as a message; the device reads them until the
    /// request ends.
    ///
    /// # Errors
    /// `System` if there are more requests than the pair holds.
    pub fn post_send(&self, id: u64, pieces: &[Piece]) -> Result<()> {
        self.post(id, pieces, (SEND, SIGNALED), 0, None)
    }

    /// Sends inline `pieces`, which may be reused at once. An unsignaled request has no completion
    /// of its own: the completion of a later request covers it.
    ///
    /// # Errors
    /// `System` if there are more requests than the pair holds.
    pub fn post_inline(&self, id: u64, pieces: &[Piece], is_signaled: bool) -> Result<()> {
        let flags = if is_signaled {
            SIGNALED | INLINE
        } else {
            INLINE
        };
        self.post(id, pieces, (SEND, flags), 0, None)
    }

    /// Writes `piece` to `place`; a `number`, if any, notifies the peer.
    ///
    /// # Errors
    /// `System` if there are more requests than the pair holds.
    pub fn post_write(
        &self,
        id: u64,
        piece: Piece,
        place: RemoteAddress,
        number: Option<u32>,
    ) -> Result<()> {
        let opcode = number.map_or(WRITE, |_| WRITE_WITH_IMM);
        let number = number.unwrap_or(0);
        self.post(id, &[piece], (opcode, SIGNALED), number, Some(place))
    }

    fn post(
        &self,
        id: u64,
        pieces: &[Piece],
        (opcode, send_flags): (u32, u32),
        number: u32,
        place: Option<RemoteAddress>,
    ) -> Result<()> {
        let mut list = [Sge::default(); PIECES_MAX];
        let mut count = 0;
        for piece in pieces.iter().filter(|piece| !piece.region.is_empty()) {
            list[count] = sge(*piece);
            count += 1;
        }
        let mut request = SendWr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: count as i32,
            opcode,
            send_flags,
            imm_data: number.to_be(),
            remote_addr: place.map_or(0, |place| place.address),
            rkey: place.map_or(0, |place| place.rkey),
            rest: [0; 9],
        };
        let mut refused = ptr::null_mut();
        // SAFETY: a living pair; the request and its inline content are copied; other memory is
        // valid as a region, and the device reads only memory that is registered under the key.
        let code = unsafe {
            let post = (*(*self.qp).context).ops.post_send;
            post(self.qp, &mut request, &mut refused)
        };
        self.domain.device().verbs.check("post_send", code)
    }
}

fn sge(piece: Piece) -> Sge {
    Sge {
        addr: piece.region.address() as u64,
        length: piece.region.bytes() as u32,
        lkey: piece.lkey,
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.domain.device().is_inherited() {
            return;
        }
        // SAFETY: created once, and used by its owner alone.
        unsafe { (self.domain.device().verbs.table.destroy_qp)(self.qp) };
    }
}
