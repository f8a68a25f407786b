//! Each rank's input to a call and its expected output, element by element, from the definition.
//!
//! Values are small integers, so every reduction of up to 16 ranks is exact in every type and in
//! any order. The conformance suite includes this file, too.

use std::ops::Range;

use ringfold::{BF16, Collective, Counts, DType, F8E4M3, F8E5M2, F16, Op};

/// One call as all ranks make it.
#[derive(Clone, Debug)]
pub struct Call {
    pub collective: Collective,
    pub dtype: DType,
    pub op: Op,
    pub root: usize,
    /// Number of elements in each rank's block or, for collectives without blocks, in the vector.
    pub counts: Vec<usize>,
}

/// The elements of one rank's buffers, and the starts of both in a piece of memory if in place.
pub struct Due {
    pub input: Vec<i64>,
    pub output: Vec<i64>,
    pub starts: [usize; 2],
}

/// The factor of every `PremulSum`.
pub const PREMUL: f64 = 2.0;

/// Returns the number of elements that `from` sends to `to` in an uneven `all_to_all`.
pub fn pairwise(from: usize, to: usize) -> u64 {
    ((from * 3 + to * 5) % 7 * 41) as u64
}

impl Call {
    fn ranks(&self) -> usize {
        self.counts.len()
    }

    fn value(&self, rank: usize, index: usize) -> i64 {
        let mixed = (rank * 7 + index * 13 + index / 17) as i64;
        // Number of values, so few that sums are exact.
        let values = match self.dtype {
            DType::F8E4M3 | DType::F8E5M2 if self.collective.reduces() => 2,
            _ => 5,
        };
        match (self.dtype, self.op) {
            (DType::Bool, _) => mixed % 3 % 2,
            // Few factors other than 1, so that products stay exact.
            (_, Op::Prod) => 1 + i64::from(mixed % 5 == 0),
            (_, Op::Band | Op::Bor | Op::Bxor) => mixed % 64,
            // Multiples of the number of ranks, so that averages are integers.
            (dtype, Op::Avg) if dtype.is_float() => mixed % values * self.ranks() as i64,
            _ => mixed % values,
        }
    }

    /// Returns `rank`'s input at these places.
    fn given(&self, rank: usize, places: Range<usize>) -> Vec<i64> {
        places.map(|index| self.value(rank, index)).collect()
    }

    /// Returns the reduction of all ranks' inputs at these places.
    fn combined(&self, places: Range<usize>) -> Vec<i64> {
        let one = |index| {
            let values = (0..self.ranks()).map(|rank| self.value(rank, index));
            let total = match self.op {
                Op::Sum | Op::Avg | Op::PremulSum(_) => values.sum::<i64>(),
                Op::Prod => values.product(),
                Op::Min => values.min().expect("ranks"),
                Op::Max => values.max().expect("ranks"),
                Op::Band => values.reduce(|a, b| a & b).expect("ranks"),
                Op::Bor => values.reduce(|a, b| a | b).expect("ranks"),
                Op::Bxor => values.reduce(|a, b| a ^ b).expect("ranks"),
            };
            match (self.op, self.dtype) {
                (Op::Avg, _) => total / self.ranks() as i64,
                (Op::PremulSum(_), _) => total * PREMUL as i64,
                (Op::Sum, DType::Bool) => i64::from(total != 0),
                _ => total,
            }
        };
        places.map(one).collect()
    }

    fn block(&self, rank: usize) -> Range<usize> {
        let start = self.counts[..rank].iter().sum();
        start..start + self.counts[rank]
    }

    /// Returns the number of elements that `from` sends to `to` in an `all_to_all`: uneven if the
    /// blocks are.
    fn between(&self, from: usize, to: usize) -> usize {
        match self.is_even() {
            true => self.counts[0],
            false => pairwise(from, to) as usize,
        }
    }

    fn is_even(&self) -> bool {
        self.counts.iter().all(|count| *count == self.counts[0])
    }

    /// Returns the counts that `rank` passes.
    pub fn counts_of(&self, rank: usize) -> Counts {
        let all = 0..self.ranks();
        match (self.is_even(), self.collective) {
            (true, _) => Counts::Even(self.counts[0] as u64),
            (false, Collective::AllToAll) => Counts::Pairwise {
                input: all
                    .clone()
                    .map(|to| self.between(rank, to) as u64)
                    .collect(),
                output: all.map(|from| self.between(from, rank) as u64).collect(),
            },
            (false, _) => Counts::PerRank(self.counts.iter().map(|count| *count as u64).collect()),
        }
    }

    /// Returns the input and the expected output of `rank`.
    pub fn due(&self, rank: usize) -> Due {
        use Collective::{
            AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Recv, Reduce,
            ReduceScatter, Scatter, Send, SendRecv,
        };
        let (ranks, root, own) = (self.ranks(), self.root, self.block(rank));
        let vector = 0..self.counts[0];
        let whole = 0..self.counts.iter().sum();
        let at_root = |values: Vec<i64>| if rank == root { values } else { Vec::new() };
        let blocks = || {
            let one = |from| self.given(from, 0..self.counts[from]);
            (0..ranks).flat_map(one).collect::<Vec<i64>>()
        };
        let (input, output) = match self.collective {
            AllReduce => (self.given(rank, vector.clone()), self.combined(vector)),
            Reduce => (
                self.given(rank, vector.clone()),
                at_root(self.combined(vector)),
            ),
            Broadcast => (
                at_root(self.given(rank, vector.clone())),
                self.given(root, vector),
            ),
            AllGather => (self.given(rank, 0..own.len()), blocks()),
            Gather => (self.given(rank, 0..own.len()), at_root(blocks())),
            ReduceScatter => (self.given(rank, whole), self.combined(own.clone())),
            Scatter => (
                at_root(self.given(rank, whole)),
                self.given(root, own.clone()),
            ),
            AllToAll => self.all_to_all(rank),
            SendRecv => {
                let left = (rank + ranks - 1) % ranks;
                (self.given(rank, vector.clone()), self.given(left, vector))
            }
            Send => (self.given(rank, vector), Vec::new()),
            Recv => (Vec::new(), self.given(root, vector)),
            Barrier => (Vec::new(), Vec::new()),
        };
        let starts = match self.collective {
            AllGather | Gather => [own.start, 0],
            ReduceScatter | Scatter => [0, own.start],
            _ => [0, 0],
        };
        Due {
            input,
            output,
            starts,
        }
    }

    fn all_to_all(&self, rank: usize) -> (Vec<i64>, Vec<i64>) {
        let before = |from, to| (0..to).map(|to| self.between(from, to)).sum::<usize>();
        let from = |from| {
            let start = before(from, rank);
            self.given(from, start..start + self.between(from, rank))
        };
        let given = self.given(rank, 0..before(rank, self.ranks()));
        (given, (0..self.ranks()).flat_map(from).collect())
    }
}

/// Returns the bytes of these values.
pub fn encoded(values: &[i64], dtype: DType) -> Vec<u8> {
    let each = values.iter().copied();
    let floats = values.iter().map(|value| *value as f32);
    match dtype {
        DType::I8 | DType::U8 => each.map(|value| value as u8).collect(),
        DType::Bool => each.map(|value| u8::from(value != 0)).collect(),
        DType::I16 | DType::U16 => each
            .flat_map(|value| (value as u16).to_le_bytes())
            .collect(),
        DType::I32 | DType::U32 => each
            .flat_map(|value| (value as u32).to_le_bytes())
            .collect(),
        DType::I64 | DType::U64 => each.flat_map(i64::to_le_bytes).collect(),
        DType::F16 => floats
            .flat_map(|value| F16::from_f32(value).0.to_le_bytes())
            .collect(),
        DType::BF16 => floats
            .flat_map(|value| BF16::from_f32(value).0.to_le_bytes())
            .collect(),
        DType::F32 => floats.flat_map(f32::to_le_bytes).collect(),
        DType::F64 => each
            .flat_map(|value| (value as f64).to_le_bytes())
            .collect(),
        DType::F8E4M3 => floats.map(|value| F8E4M3::from_f32(value).0).collect(),
        DType::F8E5M2 => floats.map(|value| F8E5M2::from_f32(value).0).collect(),
    }
}
