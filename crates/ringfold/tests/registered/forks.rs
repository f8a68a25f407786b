//! Forks in one thread while another registers memory, or makes and closes connections.

use std::sync::atomic::{AtomicBool, Ordering};

use ringfold::Communicator;

use super::forked::in_child;
use super::sum;

/// Number of children in a scene: enough to meet each moment of the scene many times.
const CHILDREN: usize = 250;

/// Forks [`CHILDREN`] children in a thread, each of which calls `what` and succeeds if that returns
/// 0. Calls `meanwhile` until the forks are done on all ranks.
fn fork_meanwhile(comm: &Communicator, what: impl Fn() -> i32 + Sync, mut meanwhile: impl FnMut()) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for child in 0..CHILDREN {
                let status = in_child(&what);
                if status != 0 {
                    eprintln!("child {child} has ended with {status:#x}");
                    std::process::exit(1);
                }
            }
            is_done.store(true, Ordering::Relaxed);
        });
        loop {
            meanwhile();
            let mine = [u8::from(is_done.load(Ordering::Relaxed))];
            let mut all = [0; 2];
            comm.all_gather(&mine, &mut all).expect("a call");
            if all == [1, 1] {
                break;
            }
        }
    });
}

pub fn register(comm: Communicator) {
    // A size whose pages are moved back, and a size whose contents are copied back.
    for count in [9 << 20, 1 << 17] {
        register_while_forking(&comm, count);
    }
}

fn register_while_forking(comm: &Communicator, count: u32) {
    const FIRST: usize = 7;
    let mut data: Vec<u32> = (0..count).collect();
    let start = data.as_mut_ptr();
    let count = data.len();
    let address = start as usize;
    // Elements of the first and the last page, which stay, and of some in between, which move.
    let places = [
        FIRST,
        FIRST + 1,
        5000,
        count / 3,
        count / 2,
        count - 5000,
        count - 1,
    ];
    let look = || {
        let start = address as *mut u32;
        let is_whole = places.iter().all(|place| {
            // SAFETY: an element of `data`, which the parent does not change meanwhile; this is a
            // child, whose memory is its own.
            unsafe {
                let here = start.add(*place);
                let was = here.read_volatile();
                here.write_volatile(u32::MAX);
                was == *place as u32
            }
        });
        i32::from(!is_whole)
    };
    let mut elements: Vec<f32> = vec![0.0; 1 << 16];
    fork_meanwhile(comm, look, || {
        // SAFETY: the elements of `data`, which no other thread uses; children have their own
        // copies.
        let slice = unsafe { std::slice::from_raw_parts_mut(start.add(FIRST), count - FIRST) };
        let mut registered = comm.register(slice).expect("registered");
        let mut mine = comm.alloc(1 << 16).expect("memory");
        sum(comm, mine.as_mut_slice::<f32>());
        sum(comm, &mut elements);
        comm.broadcast(&mut registered[..1000], 1).expect("a call");
    });
    assert!(
        (0..).zip(&data).all(|(index, value)| index == *value),
        "a child's writes"
    );
}

/// Returns whether this process has a socket that is connected or listens.
fn has_connection() -> bool {
    const NUMBERS: libc::c_int = 512;
    (0..NUMBERS).any(|number| {
        let mut listens: libc::c_int = 0;
        let mut bytes = size_of_val(&listens) as libc::socklen_t;
        let (value, at) = (&raw mut listens, &raw mut bytes);
        let (level, option) = (libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
        // SAFETY: `value` is valid for writes of as many bytes as `at` holds.
        let is_socket = unsafe { libc::getsockopt(number, level, option, value.cast(), at) } == 0;
        let mut name = [0_u8; 128];
        let mut bytes = name.len() as libc::socklen_t;
        let (name, at) = (name.as_mut_ptr(), &raw mut bytes);
        // SAFETY: `name` is valid for writes of as many bytes as `at` holds.
        is_socket && (listens != 0 || unsafe { libc::getpeername(number, name.cast(), at) } == 0)
    })
}

pub fn split(comm: Communicator) {
    assert!(has_connection(), "those of `comm`");
    fork_meanwhile(
        &comm,
        || i32::from(has_connection()),
        || {
            let part = comm.split(Some(0), 0).expect("a part").expect("a part");
            part.barrier().expect("a call");
        },
    );
}
