//! The memory node from which pages come.
//!
//! A shared mapping has the policy of its file, which also applies to pages that a peer touches
//! first.

use std::io;

use crate::region::Region;

/// Maximum number of memory nodes that Linux has, on any machine (`MAX_NUMNODES`).
const NODES_MAX: usize = 1024;

const WORD_BITS: usize = u64::BITS as usize;

/// A set of nodes, in the kernel's format.
type Nodes = [u64; NODES_MAX / WORD_BITS];

/// Prefers `node` for pages of `memory` that are not present yet, as long as the node has free
/// pages. `memory` consists of whole pages of one mapping.
pub fn prefer(memory: Region, node: usize) -> io::Result<()> {
    if node >= NODES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut nodes: Nodes = [0; NODES_MAX / WORD_BITS];
    nodes[node / WORD_BITS] |= 1 << (node % WORD_BITS);
    // SAFETY: the system reads the set, of as many bits as are passed (one fewer counts), and
    // changes nothing of the pages' contents.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory.address(),
            memory.bytes(),
            libc::MPOL_PREFERRED,
            nodes.as_ptr(),
            NODES_MAX + 1,
            0,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::mapping::Mapping;

    const PAGE_BYTES: usize = 4096;

    /// Returns the preferred node of pages at the beginning of `memory`, if the system reports one.
    fn preferred(memory: Region) -> Option<usize> {
        const OF_ADDRESS: usize = 2;
        let (mut policy, mut nodes): (libc::c_int, Nodes) = (0, [0; NODES_MAX / WORD_BITS]);
        // SAFETY: the system stores a number, and as many bits as there is room for.
        let done = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &mut policy,
                nodes.as_mut_ptr(),
                NODES_MAX + 1,
                memory.address(),
                OF_ADDRESS,
            )
        };
        let mut all = (0..NODES_MAX).filter(|node| nodes[node / 64] >> (node % 64) & 1 == 1);
        (done == 0 && policy == libc::MPOL_PREFERRED).then(|| all.next())?
    }

    #[test]
    fn the_first_node_is_there_and_one_beyond_all_is_refused() {
        let memory = Mapping::anonymous(PAGE_BYTES).expect("a page");
        let refused = prefer(memory.region(), NODES_MAX).expect_err("beyond all");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        match prefer(memory.region(), 0) {
            Ok(()) => assert_eq!(preferred(memory.region()), Some(0)),
            // A container may not allow it, and kernels may lack it.
            Err(error) => {
                let text = format!("no policies of memory here: {error}");
                crate::skipped::skipped(&text);
            }
        }
    }
}
