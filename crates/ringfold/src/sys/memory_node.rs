//! Which memory node pages come from.
//!
//! The policy of a shared mapping is that of its file, so it holds for pages that a peer touches
//! first, too.

use std::io;

use crate::memory::region::Region;

/// The most memory nodes that Linux has, on any machine (`MAX_NUMNODES`).
const NODES_MAX: usize = 1024;

const WORD_BITS: usize = u64::BITS as usize;

/// A set of nodes, as the system takes it.
type Nodes = [u64; NODES_MAX / WORD_BITS];

/// Has pages of `memory` that are not there yet come from `node`, as long as that has some.
/// `memory` is whole pages of one mapping.
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

    /// The node that pages at the beginning of `memory` come from, if the system says that it was
    /// told.
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
