//! The subject of a measurement: type, operation and root, and sizes as nccl-tests defines them.

use ringfold::{Collective, DType};

use crate::parse::OpName;

/// Alignment to which a rank's share is rounded down, as in nccl-tests.
const SHARE_ALIGN_BYTES: u64 = 16;

/// Parameters of one line of the table, except the size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    pub dtype: DType,
    /// The operation; `None` if the collective combines nothing.
    pub op: Option<OpName>,
    /// The root rank; `None` if the collective has none.
    pub root: Option<usize>,
}

/// The size of one line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Number of elements as the request counts them: in the whole buffer, or in one rank's share.
    pub count: u64,
    /// Number of bytes as nccl-tests counts them: in the whole buffer, or in all ranks' shares.
    pub bytes: u64,
}

/// Whether a collective divides its data into one share per rank.
const fn is_shared_out(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll
    )
}

impl Size {
    /// Returns the largest size up to `bytes` that nccl-tests would measure. The size is at least
    /// one element per share, unless `bytes` is 0. A barrier's size is 0.
    pub fn nearest(collective: Collective, dtype: DType, world_size: usize, bytes: u64) -> Size {
        let element = dtype.size_bytes() as u64;
        let shares = match is_shared_out(collective) {
            true => world_size as u64,
            false => 1,
        };
        let exact = bytes / element / shares;
        let unit = SHARE_ALIGN_BYTES / element;
        let count = match exact {
            _ if collective == Collective::Barrier => 0,
            0 if bytes > 0 => 1,
            _ if shares > 1 && exact >= unit => exact - exact % unit,
            _ => exact,
        };
        Size {
            count,
            bytes: count * element * shares,
        }
    }

    /// Returns the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it.
    pub fn bus_factor(collective: Collective, world_size: usize) -> f64 {
        let n = world_size as f64;
        match collective {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            _ if is_shared_out(collective) => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_what_nccl_tests_would_count() {
        let size = |collective, n, bytes| {
            let size = Size::nearest(collective, DType::F32, n, bytes);
            (size.count, size.bytes)
        };
        assert_eq!(size(Collective::AllReduce, 2, 1024), (256, 1024));
        assert_eq!(size(Collective::AllReduce, 2, 3), (1, 4));
        assert_eq!(size(Collective::AllReduce, 2, 0), (0, 0));
        assert_eq!(size(Collective::AllGather, 4, 1024), (64, 1024));
        assert_eq!(size(Collective::AllGather, 3, 1024), (84, 1008));
        assert_eq!(size(Collective::ReduceScatter, 8, 8), (1, 32));
        assert_eq!(size(Collective::Barrier, 8, 8), (0, 0));
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(Size::bus_factor(Collective::AllReduce, 4), 1.5);
        assert_eq!(Size::bus_factor(Collective::AllToAll, 4), 0.75);
        assert_eq!(Size::bus_factor(Collective::Broadcast, 4), 1.0);
        assert_eq!(Size::bus_factor(Collective::AllReduce, 1), 0.0);
    }
}
