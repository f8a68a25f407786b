//! The environments of this process' ancestors, which show the newer of two launchers.
//!
//! A launcher sets its variables for the processes that it starts. Its own environment lacks them,
//! and has those of the launcher that started it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Maximum number of ancestors to check: more than any chain of launchers and shells has.
const GENERATIONS_MAX: usize = 32;

/// Counts the nearest ancestors in a row that have these variables with this process' values.
pub type Ancestry<'a> = &'a dyn Fn(&[&str]) -> usize;

/// The [`Ancestry`] of this process. Ancestors of other users, or beyond a process namespace,
/// cannot be read and end the row.
pub(super) fn ancestry(names: &[&str]) -> usize {
    let own: Vec<Vec<u8>> = names.iter().map(|name| assignment(name)).collect();
    let mut process = std::os::unix::process::parent_id();
    for generation in 0..GENERATIONS_MAX {
        let has_all = std::fs::read(format!("/proc/{process}/environ")).is_ok_and(|text| {
            let there: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
            own.iter().all(|one| there.contains(&one.as_slice()))
        });
        match parent(process).filter(|_| has_all) {
            Some(next) => process = next,
            None => return generation + usize::from(has_all),
        }
    }
    GENERATIONS_MAX
}

/// Returns `NAME=value`, as in this process' environment.
fn assignment(name: &str) -> Vec<u8> {
    let value = std::env::var_os(name).unwrap_or_default();
    [name.as_bytes(), b"=", OsStr::as_bytes(&value)].concat()
}

/// Returns the parent of a process.
fn parent(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in parentheses, may contain anything.
    let fields = &stat[stat.rfind(')')? + 1..];
    let parent = fields.split_whitespace().nth(1)?.parse().ok()?;
    (parent != 0).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_has_what_it_gave() {
        // cargo sets variables for tests, and has those of its own parent.
        assert!(ancestry(&["PATH"]) >= 1);
        assert_eq!(ancestry(&["RINGFOLD_TEST_WITHOUT_VALUE"]), 0);
        assert!(parent(std::process::id()).is_some());
    }
}
