//! What a job must not leave on its host.

/// Fails if anything of the job that met at `address` is left.
pub fn assert_none(address: &str) {
    if let Some(name) = address.strip_prefix("unix:") {
        let sockets = std::fs::read_to_string("/proc/net/unix").expect("the kernel lists sockets");
        let left: Vec<&str> = sockets
            .lines()
            .filter(|line| line.ends_with(name))
            .collect();
        assert!(left.is_empty(), "sockets are left: {left:?}");
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
