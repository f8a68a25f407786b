//! The spread of ranks over hosts, on which times depend, but which rules do not distinguish.

/// Maximum number of hosts whose numbers of ranks are listed.
const LISTED_MAX: usize = 16;

/// Returns `even` if each host has equally many ranks in a row; otherwise the unequal numbers, such
/// as `3+1`, and `dealt out` if a host's ranks are not in a row. Hosts are numbered by first rank.
pub fn placement(hosts_of_ranks: &[usize]) -> String {
    let count = hosts_of_ranks.iter().max().map_or(0, |last| last + 1);
    let mut sizes = vec![0_usize; count];
    for &host in hosts_of_ranks {
        sizes[host] += 1;
    }
    let is_equal = sizes.windows(2).all(|pair| pair[0] == pair[1]);
    let texts: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let sizes = match is_equal {
        true => None,
        false if count > LISTED_MAX => Some("uneven".to_owned()),
        false => Some(texts.join("+")),
    };
    let order = (!hosts_of_ranks.is_sorted()).then(|| "dealt out".to_owned());
    match (sizes, order) {
        (None, None) => "even".into(),
        (sizes, order) => sizes.into_iter().chain(order).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_named() {
        for (hosts_of_ranks, due) in [
            (&[0, 0, 0][..], "even"),
            (&[0, 1, 2], "even"),
            (&[0, 0, 1, 1], "even"),
            (&[0, 0, 0, 1], "3+1"),
            (&[0, 1, 0, 1], "dealt out"),
            (&[0, 1, 1, 0, 2], "2+2+1 dealt out"),
            (&[], "even"),
        ] {
            assert_eq!(placement(hosts_of_ranks), due);
        }
        let many: Vec<usize> = (0..40).chain([39]).collect();
        assert_eq!(placement(&many), "uneven");
    }
}
