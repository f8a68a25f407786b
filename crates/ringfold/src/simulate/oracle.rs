//! The ranks' inputs and the expected results, from the definition of the collectives.
//!
//! Values are small whole numbers, so that sums are exact in every order. Each value is a function
//! of rank and position, so that a contribution that counts twice, is missing, or is misplaced is
//! detected. Values repeat after [`PERIOD`] elements; no buffer is cut into multiples of that
//! length.

use super::Scenario;
use crate::element::{BF16, F8E4M3, F8E5M2, F16};
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::types::{Collective, DType, Op};

/// Number of elements after which values repeat: a prime.
const PERIOD: usize = 1021;

/// Inputs and expected results of one call.
pub(super) struct Oracle {
    collective: Collective,
    ranks: usize,
    root: usize,
    count: usize,
    size: usize,
    dtype: DType,
    op: Op,
    /// One period of the reduction of all ranks' values.
    reduced: Vec<u8>,
}

/// Origin of values: one rank, or the reduction of all.
#[derive(Clone, Copy)]
enum ValueSource {
    Rank(usize),
    All,
}

impl Oracle {
    /// Computes the values; `Unsupported` for averages, scaled sums and inexact sums.
    pub fn new(scenario: &Scenario) -> Result<Oracle> {
        let mut oracle = Oracle::without_values(scenario);
        if scenario.collective.reduces() {
            oracle.check_exact()?;
            oracle.reduced = oracle.encoded(|index| oracle.combined(index));
        }
        Ok(oracle)
    }

    /// Returns an oracle that knows only the sizes of buffers.
    pub fn without_values(scenario: &Scenario) -> Oracle {
        Oracle {
            collective: scenario.collective,
            ranks: scenario.ranks,
            root: scenario.root,
            count: scenario.count() as usize,
            size: scenario.dtype.size_bytes(),
            dtype: scenario.dtype,
            op: scenario.op,
            reduced: Vec::new(),
        }
    }

    /// Returns the bytes of a rank's input and output.
    pub fn buffer_bytes(&self, rank: usize) -> (usize, usize) {
        let (block, all) = (self.count * self.size, self.count * self.size * self.ranks);
        let at_root = |bytes| if rank == self.root { bytes } else { 0 };
        match self.collective {
            Collective::Barrier => (0, 0),
            Collective::Broadcast => (at_root(block), block),
            Collective::Reduce => (block, at_root(block)),
            Collective::AllGather => (block, all),
            Collective::Gather => (block, at_root(all)),
            Collective::ReduceScatter => (all, block),
            Collective::Scatter => (at_root(all), block),
            Collective::AllToAll => (all, all),
            _ => (block, block),
        }
    }

    /// Fills a rank's input.
    pub fn fill(&self, rank: usize, input: Region) {
        let period = self.period(ValueSource::Rank(rank));
        self.tile(&period, 0, input.bytes(), |at, bytes| {
            input.part(at..at + bytes.len()).write(bytes)
        });
    }

    /// Returns the offset of the first wrong byte of a rank's output.
    pub fn first_wrong(&self, rank: usize, output: Region) -> Option<usize> {
        let block = self.count * self.size;
        let (n, root, count) = (self.ranks, self.root, self.count);
        let parts: Vec<(ValueSource, usize)> = match self.collective {
            Collective::AllGather | Collective::Gather => {
                (0..n).map(|from| (ValueSource::Rank(from), 0)).collect()
            }
            Collective::AllToAll => (0..n)
                .map(|from| (ValueSource::Rank(from), rank * count))
                .collect(),
            Collective::ReduceScatter => vec![(ValueSource::All, rank * count)],
            Collective::Scatter => vec![(ValueSource::Rank(root), rank * count)],
            Collective::Broadcast => vec![(ValueSource::Rank(root), 0)],
            Collective::SendRecv => vec![(ValueSource::Rank((rank + n - 1) % n), 0)],
            _ => vec![(ValueSource::All, 0)],
        };
        let mut begin = 0;
        let mut wrong = None;
        for (source, first) in parts {
            if begin >= output.bytes() {
                break;
            }
            let period = self.period(source);
            let mut got = vec![0; period.len()];
            self.tile(&period, first, block, |at, due| {
                let got = &mut got[..due.len()];
                output.part(begin + at..begin + at + due.len()).read(got);
                if wrong.is_none() && got != due {
                    let offset = got.iter().zip(due).position(|(got, due)| got != due);
                    wrong = offset.map(|offset| begin + at + offset);
                }
            });
            begin += block;
        }
        wrong
    }

    /// Passes to `f`, piece by piece, the bytes of elements from `first` on.
    fn tile(&self, period: &[u8], first: usize, bytes: usize, mut f: impl FnMut(usize, &[u8])) {
        let mut at = 0;
        let mut offset = first % PERIOD * self.size;
        while at < bytes {
            let piece = (period.len() - offset).min(bytes - at);
            f(at, &period[offset..offset + piece]);
            at += piece;
            offset = 0;
        }
    }

    fn period(&self, source: ValueSource) -> Vec<u8> {
        match source {
            ValueSource::All => self.reduced.clone(),
            ValueSource::Rank(rank) => self.encoded(|index| self.value(rank, index)),
        }
    }

    /// Encodes one period of elements, or all if there are fewer.
    fn encoded(&self, value: impl Fn(usize) -> i64) -> Vec<u8> {
        let elements = (self.count * self.ranks).min(PERIOD);
        let mut bytes = Vec::with_capacity(elements * self.size);
        for index in 0..elements {
            encode(value(index), self.dtype, &mut bytes);
        }
        bytes
    }

    /// Returns the value of an element of a rank's input.
    fn value(&self, rank: usize, index: usize) -> i64 {
        let mixed = (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ (index as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        match (self.dtype, self.op) {
            (DType::Bool, _) => (mixed % 2) as i64,
            // Few factors other than 1, so that products stay exact.
            (_, Op::Prod) => 1 + i64::from(rank < 6 && mixed.is_multiple_of(5)),
            (_, Op::Band | Op::Bor | Op::Bxor) => (mixed % 64) as i64,
            _ => (mixed % 5) as i64,
        }
    }

    /// Returns the reduction of all ranks' values.
    fn combined(&self, index: usize) -> i64 {
        let values = (0..self.ranks).map(|rank| self.value(rank, index));
        let combine = |one: i64, other: i64| match self.op {
            Op::Sum | Op::Avg | Op::PremulSum(_) if self.dtype == DType::Bool => one | other,
            Op::Sum | Op::Avg | Op::PremulSum(_) => one.wrapping_add(other),
            Op::Prod if self.dtype == DType::Bool => one & other,
            Op::Prod => one.wrapping_mul(other),
            Op::Min => one.min(other),
            Op::Max => one.max(other),
            Op::Band => one & other,
            Op::Bor => one | other,
            Op::Bxor => one ^ other,
        };
        values.reduce(combine).unwrap_or_default()
    }

    fn check_exact(&self) -> Result<()> {
        let unsupported = |text: String| Err(Error::Unsupported(text));
        let largest = match self.dtype {
            DType::F8E5M2 => 1u64 << 3,
            DType::F8E4M3 => 1 << 4,
            DType::BF16 => 1 << 8,
            DType::F16 => 1 << 11,
            DType::F32 => 1 << 24,
            _ => u64::MAX,
        };
        if matches!(self.op, Op::Avg | Op::PremulSum(_)) {
            return unsupported(format!(
                "results of {} are not compared; simulate sum, or hollow payloads",
                self.op
            ));
        }
        if 4 * self.ranks as u64 > largest && self.op == Op::Sum {
            return unsupported(format!(
                "sums of {} ranks are not exact in {}; simulate hollow payloads",
                self.ranks, self.dtype
            ));
        }
        Ok(())
    }
}

/// Appends a small number as an element.
fn encode(value: i64, dtype: DType, bytes: &mut Vec<u8>) {
    let float = value as f32;
    match dtype {
        DType::I8 | DType::U8 => bytes.push(value as u8),
        DType::Bool => bytes.push(u8::from(value != 0)),
        DType::I16 | DType::U16 => bytes.extend((value as u16).to_le_bytes()),
        DType::I32 | DType::U32 => bytes.extend((value as u32).to_le_bytes()),
        DType::I64 | DType::U64 => bytes.extend(value.to_le_bytes()),
        DType::F16 => bytes.extend(F16::from_f32(float).0.to_le_bytes()),
        DType::BF16 => bytes.extend(BF16::from_f32(float).0.to_le_bytes()),
        DType::F32 => bytes.extend(float.to_le_bytes()),
        DType::F64 => bytes.extend((value as f64).to_le_bytes()),
        DType::F8E4M3 => bytes.push(F8E4M3::from_f32(float).0),
        DType::F8E5M2 => bytes.push(F8E5M2::from_f32(float).0),
    }
}
