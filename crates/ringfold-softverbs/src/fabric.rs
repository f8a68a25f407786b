//! The devices of this process and the fabric between them: a thread that executes the requests.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::events::{Contexts, Idle, QUEUE_ERROR};
use crate::layout::Wc;
use crate::memory::{LOCAL_WRITE, Memories, REMOTE_WRITE};
use crate::pair::{ERROR, Pair, Peer, READY_TO_RECEIVE, READY_TO_SEND, Request, SEND, WRITE};
use crate::queue::{Entry, FLUSHED, Queue, SUCCESS};
use crate::settings::{Faults, Lateness, Ports, number, seed};
use crate::wire::{self, Packet, Receiver};

/// `IBV_WC_LOC_LEN_ERR` and so on.
const TOO_LONG: u32 = 1;
const NOT_OURS: u32 = 4;
const REFUSED_LENGTH: u32 = 9;
const REFUSED_ACCESS: u32 = 10;
const NO_ANSWER: u32 = 12;
const NO_RECEIVE: u32 = 13;
/// `IBV_WC_RDMA_WRITE`, `IBV_WC_RECV`, `IBV_WC_RECV_RDMA_WITH_IMM`, `IBV_WC_WITH_IMM`.
const WROTE: u32 = 1;
const RECEIVED: u32 = 1 << 7;
const WRITTEN: u32 = RECEIVED + 1;
const WITH_IMM: u32 = 2;

/// State that the fabric's lock protects.
#[derive(Debug)]
pub struct State {
    pub contexts: Contexts,
    /// Addresses of the domains' contexts, by domain; `channels` likewise.
    pub domains: HashMap<usize, usize>,
    pub channels: HashMap<usize, usize>,
    pub memories: Memories,
    pub pairs: HashMap<u32, Pair>,
    pub queues: HashMap<u32, Queue>,
    pub faults: Faults,
    pub ports: Ports,
    pub made: u32,
    pub seed: u64,
    pub lateness: Lateness,
    /// Number of open devices; `worker` executes their requests.
    open: usize,
    worker: Option<JoinHandle<()>>,
}

/// The software devices of a process.
#[derive(Debug)]
pub struct Fabric {
    state: Mutex<State>,
    changed: Condvar,
    /// Serializes opening and closing of devices, and is locked before all other locks. The last
    /// close ends the threads, which a concurrent open would need.
    life: Mutex<()>,
}

/// Returns the process's only fabric.
pub fn fabric() -> &'static Fabric {
    static FABRIC: OnceLock<&'static Fabric> = OnceLock::new();
    FABRIC.get_or_init(|| {
        let seed = seed();
        let fabric: &'static Fabric = Box::leak(Box::new(Fabric {
            state: Mutex::new(State {
                contexts: Contexts::default(),
                domains: HashMap::new(),
                channels: HashMap::new(),
                memories: Memories::new(number("SOFTVERBS_MEMLOCK")),
                pairs: HashMap::new(),
                queues: HashMap::new(),
                faults: Faults::read(),
                ports: Ports::read(),
                made: 0,
                seed,
                lateness: Lateness::new(seed),
                open: 0,
                worker: None,
            }),
            changed: Condvar::new(),
            life: Mutex::new(()),
        }));
        fabric
    })
}

impl Fabric {
    /// Counts an opened device, and starts the threads for the first.
    pub fn open(&'static self) {
        let _life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        wire::listen(self);
        let mut state = self.lock();
        state.open += 1;
        if state.worker.is_none() {
            let worker = thread::Builder::new().name("softverbs".into());
            let work = worker.spawn(move || self.work());
            state.worker = Some(work.expect("a thread"));
        }
    }

    /// Counts a closed device; the last close ends the threads, and leaves only the memory.
    pub fn close(&self) {
        let _life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = {
            let mut state = self.lock();
            state.open -= 1;
            if state.open > 0 {
                return;
            }
            state.worker.take()
        };
        self.wake();
        if let Some(worker) = worker {
            // The thread's panic has been printed.
            let _ = worker.join();
        }
        wire::close();
    }

    /// Executes requests while a device is open.
    fn work(&self) {
        let mut state = self.lock();
        while state.open > 0 {
            let now = Instant::now();
            let idle = state.contexts.idle_until(now);
            if idle == Idle::No
                && let Some(number) = state.choose(now)
            {
                state.begin(number);
                continue;
            }
            state.release(now);
            state = match state.next(idle) {
                Some(next) => {
                    let time = next.saturating_duration_since(Instant::now());
                    let waited = self.changed.wait_timeout(state, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the worker after a change of the state.
    pub fn wake(&self) {
        self.changed.notify_all();
    }
}

impl Receiver for Fabric {
    fn deliver(&self, packet: &Packet, content: &[u8]) -> u32 {
        let status = self.lock().deliver(packet, content);
        self.wake();
        status
    }

    fn finish(&self, pair: u32, status: u32) {
        self.lock().finish(pair, status);
        self.wake();
    }

    fn lose(&self, process: u32) {
        self.lock().lose(process);
        self.wake();
    }
}

impl State {
    /// Chooses a random pair whose first request is due.
    fn choose(&mut self, now: Instant) -> Option<u32> {
        let is_ready = |pair: &Pair| pair.due().is_some_and(|due| due <= now);
        let mut ready: Vec<u32> = self
            .pairs
            .iter()
            .filter(|(_, pair)| is_ready(pair))
            .map(|(number, _)| *number)
            .collect();
        // The map's own order differs from run to run.
        ready.sort_unstable();
        let place = self.lateness.below(ready.len());
        ready.get(place).copied()
    }

    /// Makes due completions of armed queues pollable.
    fn release(&mut self, now: Instant) {
        let armed = self.queues.values_mut();
        for queue in armed.filter(|queue| queue.next().is_some_and(|next| next <= now)) {
            queue.release(now, &mut self.lateness);
        }
    }

    /// Returns the time of the worker's next action.
    fn next(&self, idle: Idle) -> Option<Instant> {
        let shows = self.queues.values().filter_map(Queue::next).min();
        let is_done = match idle {
            Idle::No => self.pairs.values().filter_map(Pair::due).min(),
            Idle::Until(until) => Some(until),
            Idle::Forever => return None,
        };
        [shows, is_done].into_iter().flatten().min()
    }

    /// Injects the faults of `SOFTVERBS_FAULTS` that are due with this request.
    pub fn mishap(&mut self) {
        if self.faults.failure("cut").is_some() {
            self.faults.is_cut = [true; 2];
        }
        if self.faults.failure("fatal").is_some() {
            self.contexts.die();
        }
        if self.faults.failure("flap").is_some() {
            self.contexts.flap(Instant::now());
        }
        if self.faults.failure("overrun").is_some() {
            self.queues.values_mut().for_each(Queue::overrun);
            self.contexts.tell(QUEUE_ERROR);
        }
    }

    /// Executes a pair's first request, or sends it to another process.
    fn begin(&mut self, number: u32) {
        let Some(pair) = self.pairs.get(&number) else {
            return;
        };
        let Some(request) = pair.sends.front().cloned() else {
            return;
        };
        let (peer, is_cut) = (pair.peer, self.faults.is_cut[pair.device]);
        let Some(content) = self.content(pair, &request) else {
            return self.finish(number, NOT_OURS);
        };
        if is_cut {
            return self.finish(number, NO_ANSWER);
        }
        let packet = Packet {
            from: Peer {
                process: std::process::id(),
                pair: number,
            },
            to: peer.pair,
            opcode: request.opcode,
            imm: request.imm,
            address: request.remote_address,
            rkey: request.rkey,
            is_last: true,
            bytes: content.len() as u32,
            mtu: pair.mtu,
        };
        if peer.process == packet.from.process {
            let status = self.deliver(&packet, &content);
            self.finish(number, status);
        } else if wire::send(peer.process, packet, &content) {
            if let Some(pair) = self.pairs.get_mut(&number) {
                pair.is_awaiting = true;
            }
        } else {
            self.finish(number, NO_ANSWER);
        }
    }

    /// Returns a request's payload, or `None` if a key does not permit the access.
    fn content(&self, pair: &Pair, request: &Request) -> Option<Vec<u8>> {
        if let Some(inline) = &request.inline {
            return Some(inline.clone());
        }
        let mut content = Vec::new();
        for piece in &request.pieces {
            let range = (piece.address, piece.bytes);
            if !self.memories.permits(piece.lkey, pair.domain, range, 0) {
                return None;
            }
            // SAFETY: registered, and so valid until it is deregistered, which takes this lock.
            let part =
                unsafe { std::slice::from_raw_parts(piece.address as *const u8, piece.bytes) };
            content.extend_from_slice(part);
        }
        Some(content)
    }

    /// Receives a packet for a pair of this process, and returns the status.
    fn deliver(&mut self, packet: &Packet, content: &[u8]) -> u32 {
        let Some(pair) = self.pairs.get(&packet.to) else {
            return NO_ANSWER;
        };
        let is_open = [READY_TO_RECEIVE, READY_TO_SEND].contains(&pair.state);
        if !is_open || pair.peer != packet.from || self.faults.is_cut[pair.device] {
            return NO_ANSWER;
        }
        if pair.mtu != packet.mtu {
            return REFUSED_LENGTH;
        }
        let place = (packet.address, content.len());
        let is_write = packet.opcode != SEND;
        if is_write {
            let has_right = pair.rights & REMOTE_WRITE != 0;
            let domain = pair.domain;
            let memories = &self.memories;
            let is_permitted =
                has_right && memories.permits(!packet.rkey, domain, place, REMOTE_WRITE);
            if !is_permitted && !content.is_empty() {
                self.end(packet.to);
                return REFUSED_ACCESS;
            }
            store(packet.address, content);
        }
        match packet.is_last && packet.opcode != WRITE {
            true => self.consume(packet, content),
            false => SUCCESS,
        }
    }

    /// Consumes a receive for a send or for a write with immediate data.
    fn consume(&mut self, packet: &Packet, content: &[u8]) -> u32 {
        let is_send = packet.opcode == SEND;
        let Some(pair) = self.pairs.get_mut(&packet.to) else {
            return NO_ANSWER;
        };
        let Some(receive) = pair.receives.pop_front() else {
            self.end(packet.to);
            return NO_RECEIVE;
        };
        let (domain, queue) = (pair.domain, pair.queues[1]);
        let mut wc = Wc {
            wr_id: receive.id,
            opcode: if is_send { RECEIVED } else { WRITTEN },
            byte_len: packet.bytes,
            imm_data: packet.imm,
            wc_flags: if is_send { 0 } else { WITH_IMM },
            qp_num: packet.to,
            ..Wc::default()
        };
        let room = receive.piece.filter(|_| is_send);
        if let Some(room) = room {
            let range = (room.address, room.bytes);
            if !self.memories.permits(room.lkey, domain, range, LOCAL_WRITE) {
                wc.status = NOT_OURS;
            }
        }
        if is_send && content.len() > room.map_or(0, |room| room.bytes) {
            wc.status = TOO_LONG;
        }
        if wc.status == SUCCESS
            && let Some(room) = room
        {
            store(room.address, content);
        }
        self.push(queue, entry(wc, 0, true));
        if wc.status == SUCCESS {
            return SUCCESS;
        }
        self.end(packet.to);
        REFUSED_LENGTH
    }

    fn push(&mut self, queue: u32, entry: Entry) {
        let due = Instant::now() + self.lateness.delay();
        if let Some(queue) = self.queues.get_mut(&queue)
            && !queue.push(entry, due)
        {
            self.contexts.tell(QUEUE_ERROR);
        }
    }

    /// Completes a pair's first request.
    pub fn finish(&mut self, number: u32, status: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.is_awaiting = false;
        let Some(request) = pair.sends.pop_front() else {
            return;
        };
        pair.unsignaled += 1;
        if request.is_signaled || status != SUCCESS {
            let frees = std::mem::take(&mut pair.unsignaled);
            let queue = pair.queues[0];
            let wc = Wc {
                wr_id: request.id,
                status,
                opcode: if request.opcode == SEND { 0 } else { WROTE },
                qp_num: number,
                ..Wc::default()
            };
            self.push(queue, entry(wc, frees, false));
        }
        if status != SUCCESS {
            self.end(number);
        }
    }

    /// Puts a pair into the error state, and flushes all posted requests.
    pub fn end(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.state = ERROR;
        pair.is_awaiting = false;
        let sends = std::mem::take(&mut pair.sends).into_iter();
        let sends = sends.map(|request| (request.id, 1, pair.queues[0], false));
        let receives = std::mem::take(&mut pair.receives).into_iter();
        let receives = receives.map(|receive| (receive.id, 0, pair.queues[1], true));
        let flushed: Vec<_> = sends.chain(receives).collect();
        for (id, frees, queue, is_receive) in flushed {
            let wc = Wc {
                wr_id: id,
                status: FLUSHED,
                qp_num: number,
                ..Wc::default()
            };
            self.push(queue, entry(wc, frees, is_receive));
        }
    }

    /// Fails the requests in transit to a process that has ended.
    fn lose(&mut self, process: u32) {
        wire::forget(process);
        let awaiting: Vec<u32> = self
            .pairs
            .iter()
            .filter(|(_, pair)| pair.is_awaiting && pair.peer.process == process)
            .map(|(number, _)| *number)
            .collect();
        for number in awaiting {
            self.finish(number, NO_ANSWER);
        }
    }
}

fn entry(wc: Wc, frees: usize, is_receive: bool) -> Entry {
    Entry {
        wc,
        frees,
        is_receive,
    }
}

/// Copies `content` to registered memory.
fn store(address: u64, content: &[u8]) {
    // SAFETY: the caller has checked that the memory is registered with the right to be written,
    // and so valid until it is deregistered, which takes the fabric's lock.
    unsafe {
        std::ptr::copy_nonoverlapping(content.as_ptr(), address as *mut u8, content.len());
    }
}
