//! Packets between processes of this machine, over UNIX sockets that keep message boundaries.
//!
//! A process listens at a name with its id: an abstract name or, for several network namespaces, a
//! file in the folder `SOFTVERBS_FOLDER`. A sender connects, and receives an answer to the last
//! packet of each request on the same connection.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::pair::{Peer, SEND};

/// Maximum payload of one packet.
const CONTENT_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = 44;
const ANSWER_BYTES: usize = 8;
/// Variable with the folder for socket files, which replace abstract names.
const FOLDER: &str = "SOFTVERBS_FOLDER";

/// Part of a request, in transit.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub from: Peer,
    pub to: u32,
    pub opcode: u32,
    /// Immediate data, big endian.
    pub imm: u32,
    pub address: u64,
    pub rkey: u32,
    /// Whether this packet is the last of its request.
    pub is_last: bool,
    /// Payload bytes of the whole request.
    pub bytes: u32,
    /// The `IBV_MTU_*` number (1 for 256 bytes).
    pub mtu: u32,
}

/// The receiver of packets and answers from other processes.
pub trait Receiver: Sync {
    /// Receives a packet for a pair of this process, and returns the status.
    fn deliver(&self, packet: &Packet, content: &[u8]) -> u32;

    /// Completes a pair's first request.
    fn finish(&self, pair: u32, status: u32);

    /// Fails the requests in transit to a process that has ended.
    fn lose(&self, process: u32);
}

/// The connections of this process. Each outgoing one has a thread that writes, because a full
/// socket must not delay incoming packets.
#[derive(Default)]
struct Wire {
    by_process: HashMap<u32, Sender<Vec<u8>>>,
    /// All open sockets; shutting them down ends blocked calls.
    sockets: Vec<Arc<OwnedFd>>,
    threads: Vec<JoinHandle<()>>,
    /// The receiver, while this process listens.
    receiver: Option<&'static dyn Receiver>,
}

static WIRE: Mutex<Option<Wire>> = Mutex::new(None);

/// Runs `act` on the connections. The caller may hold the fabric's lock; `act` must not take it.
fn with_wire<R>(act: impl FnOnce(&mut Wire) -> R) -> R {
    let mut wire = WIRE.lock().unwrap_or_else(PoisonError::into_inner);
    act(wire.get_or_insert_default())
}

/// Starts to listen for other processes on behalf of `receiver`, once.
pub fn listen(receiver: &'static dyn Receiver) {
    with_wire(|wire| {
        if wire.receiver.replace(receiver).is_some() {
            return;
        }
        let socket = Arc::new(socket());
        let (address, length) = name(std::process::id());
        // SAFETY: the socket's own descriptor, and an address of this length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        assert_eq!(bound, 0, "softverbs cannot bind its socket");
        // SAFETY: as above.
        unsafe { libc::listen(socket.as_raw_fd(), 128) };
        wire.sockets.push(socket.clone());
        wire.spawn(move || accept(&socket, receiver));
    });
}

/// Closes everything and waits for the threads. The caller must not hold the fabric's state lock.
pub fn close() {
    let closed = with_wire(std::mem::take);
    for socket in &closed.sockets {
        // SAFETY: a socket's own descriptor.
        unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
    drop(closed.by_process);
    if let Ok(folder) = std::env::var(FOLDER) {
        // Otherwise the name stays in use.
        let _ = std::fs::remove_file(format!("{folder}/softverbs-{}", std::process::id()));
    }
    for thread in closed.threads {
        // The thread's panic has been printed.
        let _ = thread.join();
    }
}

/// Sends a request's packets to a process; false if the process has ended.
pub fn send(process: u32, packet: Packet, content: &[u8]) -> bool {
    let Some(writer) = with_wire(|wire| wire.writer(process)) else {
        return false;
    };
    let mut offset = 0;
    loop {
        let part = &content[offset..content.len().min(offset + CONTENT_BYTES)];
        let packet = Packet {
            address: packet.address + offset as u64,
            is_last: offset + part.len() == content.len(),
            ..packet
        };
        let is_sent = writer.send([&encode(&packet)[..], part].concat()).is_ok();
        offset += part.len();
        if !is_sent || packet.is_last {
            return is_sent;
        }
    }
}

/// Closes the connection to a process that has ended.
pub fn forget(process: u32) {
    with_wire(|wire| wire.by_process.remove(&process));
}

impl Wire {
    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) {
        let thread = thread::Builder::new().name("softverbs".into()).spawn(work);
        self.threads.push(thread.expect("a thread"));
    }

    /// Returns the queue of a process's writing thread; connects first.
    fn writer(&mut self, process: u32) -> Option<Sender<Vec<u8>>> {
        if let Some(writer) = self.by_process.get(&process) {
            return Some(writer.clone());
        }
        let receiver = self.receiver?;
        let socket = Arc::new(socket());
        let (address, length) = name(process);
        // SAFETY: the socket's own descriptor, and an address of this length.
        let connected =
            unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if connected != 0 {
            return None;
        }
        let (writer, messages) = channel::<Vec<u8>>();
        self.by_process.insert(process, writer.clone());
        self.sockets.push(socket.clone());
        let answers = socket.clone();
        self.spawn(move || {
            while let Ok(message) = messages.recv()
                && write(&socket, &message)
            {}
        });
        self.spawn(move || {
            let mut answer = [0; ANSWER_BYTES];
            while read(&answers, &mut answer) == ANSWER_BYTES {
                let word = |at: usize| {
                    u32::from_le_bytes(answer[at..at + 4].try_into().expect("four bytes"))
                };
                receiver.finish(word(0), word(4));
            }
            receiver.lose(process);
        });
        Some(writer)
    }
}

/// Accepts connections until the listener is shut down.
fn accept(listener: &OwnedFd, receiver: &'static dyn Receiver) {
    loop {
        let (none, flags) = (std::ptr::null_mut(), libc::SOCK_CLOEXEC);
        // SAFETY: the socket's own descriptor; no address is asked for.
        let end = unsafe { libc::accept4(listener.as_raw_fd(), none, none.cast(), flags) };
        if end < 0 {
            return;
        }
        // SAFETY: just accepted, and owned by nothing else.
        let end = Arc::new(unsafe { OwnedFd::from_raw_fd(end) });
        with_wire(|wire| {
            // A connection accepted during `close` is not served.
            if wire.receiver.is_some() {
                wire.sockets.push(end.clone());
                wire.spawn(move || serve(&end, receiver));
            }
        });
    }
}

/// Receives the packets of another process.
fn serve(end: &OwnedFd, receiver: &dyn Receiver) {
    let mut room = vec![0; HEADER_BYTES + CONTENT_BYTES];
    // Result of a failed request, whose other packets are skipped.
    let mut failed = None;
    // A send is delivered as a whole.
    let mut message = Vec::new();
    loop {
        let count = read(end, &mut room);
        if count < HEADER_BYTES {
            return;
        }
        let packet = decode(&room);
        let part = &room[HEADER_BYTES..count];
        let status = match failed {
            Some(status) => status,
            None if packet.opcode != SEND => receiver.deliver(&packet, part),
            None => {
                message.extend_from_slice(part);
                match packet.is_last {
                    true => receiver.deliver(&packet, &std::mem::take(&mut message)),
                    false => 0,
                }
            }
        };
        failed = (status != 0).then_some(status);
        if packet.is_last {
            failed = None;
            let pair = packet.from.pair.to_le_bytes();
            if !write(end, &[pair, status.to_le_bytes()].concat()) {
                return;
            }
        }
    }
}

fn encode(packet: &Packet) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let words = [
        packet.from.process,
        packet.from.pair,
        packet.to,
        packet.opcode,
        packet.imm,
        packet.rkey,
        packet.is_last.into(),
        packet.bytes,
        packet.mtu,
    ];
    for (place, word) in words.iter().enumerate() {
        bytes[4 * place..4 * place + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes[36..].copy_from_slice(&packet.address.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Packet {
    let word =
        |at: usize| u32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().expect("four bytes"));
    Packet {
        from: Peer {
            process: word(0),
            pair: word(1),
        },
        to: word(2),
        opcode: word(3),
        imm: word(4),
        rkey: word(5),
        is_last: word(6) != 0,
        bytes: word(7),
        mtu: word(8),
        address: u64::from_le_bytes(bytes[36..44].try_into().expect("eight bytes")),
    }
}

fn socket() -> OwnedFd {
    // SAFETY: no memory is passed.
    let socket =
        unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    assert!(socket >= 0, "softverbs cannot create a socket");
    // SAFETY: just made, and owned by nothing else.
    unsafe { OwnedFd::from_raw_fd(socket) }
}

/// Returns the socket address of a process, and its length.
fn name(process: u32) -> (libc::sockaddr_un, u32) {
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let name = match std::env::var(FOLDER) {
        Ok(folder) => format!("{folder}/softverbs-{process}"),
        Err(_) => format!("\0softverbs-{process}"),
    };
    for (place, byte) in address.sun_path.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    (address, (2 + name.len()) as u32)
}

/// Sends a message; false unless all of it was sent.
fn write(socket: &OwnedFd, message: &[u8]) -> bool {
    // SAFETY: the socket's own descriptor, and the message's bytes.
    let count = unsafe {
        let start = message.as_ptr().cast();
        libc::send(socket.as_raw_fd(), start, message.len(), libc::MSG_NOSIGNAL)
    };
    count == message.len() as isize
}

/// Receives a message and returns its length, or 0 if no more will arrive.
fn read(socket: &OwnedFd, room: &mut [u8]) -> usize {
    // SAFETY: the socket's own descriptor, and room for so many bytes.
    let count = unsafe { libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
    usize::try_from(count).unwrap_or(0)
}
