//! Names and numbers of NCCL and of ringfold, by which rules, variables and plugins name
//! collectives, algorithms and protocols.
//!
//! Each of the three tables has a row for each name. Most names exist on one side only: `nvls`
//! needs NVIDIA's switches, `push` needs registered host memory. A file or a variable may use all
//! names, so that one file serves NCCL and ringfold; a library never uses a way that it lacks.
//!
//! NCCL's numbers are those of its interface for tuner plugins (`nccl_tuner.h`), which never
//! change.

#![forbid(unsafe_code)]

use std::str::FromStr;

use crate::types::{Collective, Method, Protocol};
use crate::units;

/// Number of algorithms in NCCL's tuner: the rows of its cost table.
pub const NCCL_ALGORITHMS: usize = 7;

/// Number of protocols in NCCL's tuner: the columns of its cost table.
pub const NCCL_PROTOCOLS: usize = 3;

/// A named collective, algorithm or protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name<T: 'static> {
    /// The name in rules: NCCL's word if it has one.
    pub text: &'static str,
    /// The value in ringfold; `None` for a name that only NCCL has.
    pub ours: Option<T>,
    /// NCCL's number; `None` for a name that only ringfold has.
    pub nccl: Option<u8>,
}

/// The names of the tuned collectives.
pub static COLLECTIVES: [Name<Collective>; 9] = [
    name("broadcast", Some(Collective::Broadcast), Some(0)),
    name("reduce", Some(Collective::Reduce), Some(1)),
    name("allgather", Some(Collective::AllGather), Some(2)),
    name("reducescatter", Some(Collective::ReduceScatter), Some(3)),
    name("allreduce", Some(Collective::AllReduce), Some(4)),
    name("gather", Some(Collective::Gather), None),
    name("scatter", Some(Collective::Scatter), None),
    name("alltoall", Some(Collective::AllToAll), None),
    name("barrier", Some(Collective::Barrier), None),
];

/// The names of the algorithms.
pub static ALGORITHMS: [Name<Method>; 19] = [
    algorithm(Method::Tree, Some(0)),
    algorithm(Method::Ring, Some(1)),
    theirs("collnet_direct", 2),
    theirs("collnet_chain", 3),
    theirs("nvls", 4),
    theirs("nvls_tree", 5),
    theirs("pat", 6),
    algorithm(Method::Flat, None),
    algorithm(Method::RecursiveDoubling, None),
    algorithm(Method::Rabenseifner, None),
    algorithm(Method::Direct, None),
    algorithm(Method::OneShot, None),
    algorithm(Method::Push, None),
    algorithm(Method::Hierarchical, None),
    algorithm(Method::Claim, None),
    algorithm(Method::Serve, None),
    algorithm(Method::Stragglar, None),
    algorithm(Method::Leader, None),
    algorithm(Method::MultiLeader, None),
];

/// The names of the protocols.
pub static PROTOCOLS: [Name<Protocol>; 4] = [
    protocol(Protocol::Ll, Some(0)),
    theirs("ll128", 1),
    protocol(Protocol::Simple, Some(2)),
    protocol(Protocol::ZeroCopy, None),
];

/// Algorithms of earlier versions, with the advice for a user who names one.
static REMOVED: [(&str, &str); 1] = [(
    "pull",
    "it was removed, because `direct` is quicker everywhere; use `direct`",
)];

const fn algorithm(ours: Method, nccl: Option<u8>) -> Name<Method> {
    name(ours.name(), Some(ours), nccl)
}

const fn protocol(ours: Protocol, nccl: Option<u8>) -> Name<Protocol> {
    name(ours.name(), Some(ours), nccl)
}

/// Returns a row that only NCCL has.
const fn theirs<T: Copy>(text: &'static str, nccl: u8) -> Name<T> {
    name(text, None, Some(nccl))
}

const fn name<T: Copy>(text: &'static str, ours: Option<T>, nccl: Option<u8>) -> Name<T> {
    Name { text, ours, nccl }
}

impl<T: Copy + PartialEq + FromStr> Name<T> {
    /// Returns the row that is called `text` in a file of rules, or elsewhere in ringfold. The
    /// comparison is case-sensitive, as in NCCL's own reader.
    pub fn exact(table: &'static [Name<T>], text: &str) -> Option<&'static Name<T>> {
        let named = table.iter().find(|name| name.text == text);
        named.or_else(|| Name::of(table, text.parse().ok()?))
    }

    /// Returns the row that `text` means in a variable: case and underscores are ignored.
    pub fn loose(table: &'static [Name<T>], text: &str) -> Option<&'static Name<T>> {
        let text = plain(text);
        table.iter().find(|name| plain(name.text) == text)
    }

    /// Returns the row of ringfold's value `ours`.
    pub fn of(table: &'static [Name<T>], ours: T) -> Option<&'static Name<T>> {
        table.iter().find(|name| name.ours == Some(ours))
    }

    /// Returns the row of NCCL's `number`.
    pub fn numbered(table: &'static [Name<T>], number: i32) -> Option<&'static Name<T>> {
        let number = u8::try_from(number).ok()?;
        table.iter().find(|name| name.nccl == Some(number))
    }

    /// Returns the advice for an unknown `word`: its replacement, or the nearest name of the table,
    /// and all names.
    pub fn advice(table: &'static [Name<T>], word: &str) -> String {
        let word = word.to_lowercase();
        if let Some((_, why)) = REMOVED.iter().find(|(removed, _)| *removed == word) {
            return (*why).to_owned();
        }
        let nearest = units::nearest(&word, table.iter().map(|name| name.text));
        let all: Vec<_> = table.iter().map(|name| name.text).collect();
        format!("did you mean `{nearest}`? One of {}", all.join(", "))
    }
}

/// Returns a word in lower case, without underscores.
fn plain(text: &str) -> String {
    let letters = text.chars().filter(|letter| *letter != '_');
    letters.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_ours_has_one_name() {
        for ours in Method::ALL {
            assert_eq!(
                Name::of(&ALGORITHMS, *ours).map(|name| name.text),
                Some(ours.name())
            );
        }
        for ours in Protocol::ALL {
            assert_eq!(
                Name::of(&PROTOCOLS, *ours).map(|name| name.text),
                Some(ours.name())
            );
        }
        let known = ALGORITHMS.iter().filter(|name| name.ours.is_some());
        assert_eq!(known.count(), Method::ALL.len());
    }

    #[test]
    fn nccls_numbers_are_those_of_its_header() {
        fn text<T: Copy + PartialEq + FromStr>(
            table: &'static [Name<T>],
            number: i32,
        ) -> &'static str {
            Name::numbered(table, number).map_or("", |name| name.text)
        }
        let collectives = [0, 1, 2, 3, 4].map(|number| text(&COLLECTIVES, number));
        let due = [
            "broadcast",
            "reduce",
            "allgather",
            "reducescatter",
            "allreduce",
        ];
        assert_eq!(collectives, due);
        let algorithms = [0, 1, 2, 3, 4, 5, 6, 7].map(|number| text(&ALGORITHMS, number));
        let due = [
            "tree",
            "ring",
            "collnet_direct",
            "collnet_chain",
            "nvls",
            "nvls_tree",
            "pat",
            "",
        ];
        assert_eq!(algorithms, due);
        let protocols = [-1, 0, 1, 2, 3, 256].map(|number| text(&PROTOCOLS, number));
        assert_eq!(protocols, ["", "ll", "ll128", "simple", "", ""]);
        assert_eq!((NCCL_ALGORITHMS, NCCL_PROTOCOLS), (7, 3));
    }

    #[test]
    fn a_variable_is_read_more_kindly_than_a_file() {
        for text in ["NVLSTree", "nvls_tree", "NVLS_TREE"] {
            assert_eq!(
                Name::loose(&ALGORITHMS, text).and_then(|name| name.nccl),
                Some(5)
            );
        }
        assert_eq!(
            Name::loose(&ALGORITHMS, "OneShot").and_then(|name| name.ours),
            Some(Method::OneShot)
        );
        assert_eq!(Name::exact(&ALGORITHMS, "Ring"), None);
        for text in ["allreduce", "all_reduce"] {
            let name = Name::exact(&COLLECTIVES, text);
            assert_eq!(name.and_then(|name| name.ours), Some(Collective::AllReduce));
        }
    }
}
