//! The cores that this process may use.

/// Cores in this process' affinity, no more than its cgroup's quota.
pub fn available() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
