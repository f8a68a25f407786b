//! Checks that a job leaves nothing on its host.

use std::time::Instant;

use crate::job::WATCHDOG;

/// Fails if anything of the job at `address` is left. A process that another test is just starting
/// has a copy of this process' descriptors for a moment, so sockets get time to disappear.
pub fn assert_none(address: &str) {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        let left = sockets(address);
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "sockets are left: {left:?}");
        std::thread::yield_now();
    }
    let files = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    let left: Vec<_> = files
        .map(|file| file.file_name())
        .filter(|name| name.to_string_lossy().contains("ringfold"))
        .collect();
    assert!(left.is_empty(), "files are left in /dev/shm: {left:?}");
}

/// Returns this host's sockets with the name in `address`.
fn sockets(address: &str) -> Vec<String> {
    let Some(name) = address.strip_prefix("unix:") else {
        return Vec::new();
    };
    let table = std::fs::read_to_string("/proc/net/unix").expect("the kernel lists sockets");
    let named = table.lines().filter(|line| line.ends_with(name));
    named.map(str::to_string).collect()
}
