//! Access of forked children to registered memory.

use std::io::{Read, Write};

use ringfold::{Communicator, Op};

use super::sum;

/// Forks; the child calls `what` and exits with the result. Returns the child's wait status.
pub fn in_child(what: impl FnOnce() -> i32) -> libc::c_int {
    // SAFETY: the child calls nothing that another thread may hold a lock of, and ends without
    // returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork");
    if child == 0 {
        let code = what();
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: our own child, waited for once.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

pub fn forked(comm: Communicator) {
    let mut memory = comm.alloc(1 << 16).expect("memory");
    let mut vector = vec![0f32; 1 << 16];
    let mut registered = comm.register(&mut vector).expect("registered");
    for count in [1, 1 << 14] {
        let status = in_child(|| {
            let mut data = vec![1f32; count];
            match comm.all_reduce(&mut data, Op::Sum) {
                Err(error) if error.class() == "Unsupported" => 7,
                _ => 8,
            }
        });
        assert_eq!(libc::WEXITSTATUS(status), 7, "{status}");
    }
    memory.as_mut_slice::<f32>().fill(3.0);
    registered.fill(3.0);
    let touch = |data: &mut [f32]| {
        let status = in_child(|| {
            let all = data.iter().all(|value| *value == 3.0);
            data.fill(4.0);
            // A child of the child sees the child's writes.
            let inner = in_child(|| data[data.len() - 1] as i32);
            i32::from(all) + libc::WEXITSTATUS(inner) + data[0] as i32
        });
        assert_eq!(libc::WEXITSTATUS(status), 1 + 4 + 4, "{status}");
        assert!(data.iter().all(|value| *value == 3.0), "the child's writes");
    };
    touch(memory.as_mut_slice::<f32>());
    touch(&mut registered);
    // A child that lives on keeps its view of the memory, although the parent ends the
    // registration.
    let mut short = vec![5f32; 1 << 16];
    let guard = comm.register(&mut short).expect("registered");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
    // SAFETY: the child calls nothing that another thread may hold a lock of, and ends without
    // returning.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut word = [0];
        let _ = (&theirs).read_exact(&mut word);
        let all = guard.iter().all(|value| *value == 5.0);
        // SAFETY: ends the child.
        unsafe { libc::_exit(if all { 7 } else { 8 }) }
    }
    drop(guard);
    (&ours).write_all(&[1]).expect("a word");
    let mut status = 0;
    // SAFETY: our own child, waited for once.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7, "{status}");
    // Drops in the child end neither the parent's memory nor its communicator.
    let mut memory_in_child = Some(memory);
    let mut ends = Some((comm, registered));
    let status = in_child(|| {
        drop(memory_in_child.take());
        drop(ends.take());
        7
    });
    assert_eq!(libc::WEXITSTATUS(status), 7, "{status}");
    memory = memory_in_child.take().expect("the parent's");
    let (comm, mut registered) = ends.take().expect("the parent's");
    sum(&comm, memory.as_mut_slice::<f32>());
    sum(&comm, &mut registered);
}
