//! The processor's name, its cores and the memory, read from `/proc` and `/sys`.
//!
//! Everything is optional: containers hide much of it. The files are read below a root, so that
//! tests can supply their own.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Parent folder of `proc` and `sys`.
pub const ROOT: &str = "/";

/// The machine's processor, cores and memory.
#[derive(Debug, PartialEq, Serialize)]
pub struct Machine {
    pub cpu_model: Option<String>,
    /// Online cores, as the kernel writes them: `0-3,8`.
    pub cores_online: Option<String>,
    pub cores_allowed: Option<String>,
    pub memory_bytes: Option<u64>,
    pub memory_available_bytes: Option<u64>,
    /// Mode of transparent huge pages for anonymous memory: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    pub reserved_huge_pages: Option<u64>,
}

impl Machine {
    /// Reads the files below `root` (`/`).
    pub fn read(root: &Path) -> Machine {
        let at = |path: &str| text(root.join(path));
        let meminfo = at("proc/meminfo").unwrap_or_default();
        Machine {
            cpu_model: field(&at("proc/cpuinfo").unwrap_or_default(), "model name")
                .map(str::to_owned),
            cores_online: at("sys/devices/system/cpu/online"),
            cores_allowed: field(
                &at("proc/self/status").unwrap_or_default(),
                "Cpus_allowed_list",
            )
            .map(str::to_owned),
            memory_bytes: kibibytes(&meminfo, "MemTotal"),
            memory_available_bytes: kibibytes(&meminfo, "MemAvailable"),
            transparent_huge_pages: at("sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|choice| bracketed(&choice).map(str::to_owned)),
            reserved_huge_pages: field(&meminfo, "HugePages_Total").and_then(|n| n.parse().ok()),
        }
    }
}

/// Returns a file's text without white space around it; `None` if it is unreadable or empty.
pub fn text(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the value of the first line `name : value`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let number = field(text, name)?.strip_suffix("kB")?;
    number.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the word in brackets, by which the kernel marks the choice.
fn bracketed(choice: &str) -> Option<&str> {
    choice
        .split_once('[')?
        .1
        .split_once(']')
        .map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read_from_its_files() {
        let root = std::env::temp_dir().join(format!("ringfold-machine-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/cpuinfo", "processor : 0\nmodel name\t: Fast CPU\n");
        put(
            "proc/meminfo",
            "MemTotal:  1000 kB\nMemAvailable: 10 kB\nHugePages_Total:  3\n",
        );
        put("proc/self/status", "Cpus_allowed_list:\t0-1,3\n");
        put("sys/devices/system/cpu/online", "0-3\n");
        put(
            "sys/kernel/mm/transparent_hugepage/enabled",
            "always [madvise] never\n",
        );
        let machine = Machine::read(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(machine.cpu_model.as_deref(), Some("Fast CPU"));
        assert_eq!(machine.cores_allowed.as_deref(), Some("0-1,3"));
        assert_eq!(machine.memory_bytes, Some(1_024_000));
        assert_eq!(machine.transparent_huge_pages.as_deref(), Some("madvise"));
        assert_eq!(machine.reserved_huge_pages, Some(3));
    }

    #[test]
    fn a_machine_that_shows_nothing_is_no_error() {
        let machine = Machine::read(Path::new("/no/such/root"));
        assert!(machine.cpu_model.is_none() && machine.memory_bytes.is_none());
    }
}
