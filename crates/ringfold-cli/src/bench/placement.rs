//! The placement of a collective's data: regions in and out of place, and the expected output.

use ringfold::Region;
use ringfold::{Collective, Counts, Op, Request, Target};

use super::case::{Case, Size};
use super::data::{BLOCK, Data};

/// The content of an output before a call, by which unwritten elements are detected.
const UNWRITTEN: u8 = 0xa5;

/// One call's data: this rank's input and output.
pub struct Placement {
    collective: Collective,
    case: Case,
    rank: usize,
    world_size: usize,
    count: u64,
    input: Region,
    output: Region,
}

impl Placement {
    /// Cuts the regions of a call on `rank` from two pieces of memory of `size.bytes` each. `None`
    /// if the call is to be in place, but the collective has no in-place form.
    pub fn new(
        collective: Collective,
        case: Case,
        (rank, world_size): (usize, usize),
        size: Size,
        in_place: bool,
        [first, second]: [Region; 2],
    ) -> Option<Placement> {
        let share = size.count as usize * case.dtype.size_bytes();
        let own = rank * share..(rank + 1) * share;
        let is_root = case.root.is_none_or(|root| root == rank);
        let whole = |memory: Region| memory.part(0..size.bytes as usize);
        let (input, output) = match collective {
            Collective::AllToAll | Collective::SendRecv | Collective::Barrier if in_place => {
                return None;
            }
            Collective::AllGather | Collective::Gather if !is_root => {
                (first.part(0..share), Region::EMPTY)
            }
            Collective::Scatter if !is_root => (Region::EMPTY, second.part(0..share)),
            Collective::Broadcast if !is_root => (Region::EMPTY, whole(second)),
            Collective::Reduce if !is_root => (whole(first), Region::EMPTY),
            Collective::AllGather | Collective::Gather if in_place => {
                (first.part(own), whole(first))
            }
            Collective::ReduceScatter | Collective::Scatter if in_place => {
                (whole(first), first.part(own))
            }
            Collective::AllGather | Collective::Gather => (first.part(0..share), whole(second)),
            Collective::ReduceScatter | Collective::Scatter => {
                (whole(first), second.part(0..share))
            }
            _ if in_place => (whole(first), whole(first)),
            _ => (whole(first), whole(second)),
        };
        Some(Placement {
            collective,
            case,
            rank,
            world_size,
            count: size.count,
            input,
            output,
        })
    }

    /// Returns the request of the call.
    pub fn request(&self) -> Request {
        let counts = Counts::Even(self.count);
        let (dtype, input, output) = (self.case.dtype, self.input, self.output);
        let mut request = Request::new(self.collective, dtype, counts, input, output);
        request.op = match self.case.op {
            Some("premul_sum") => Op::PremulSum(Data::factor(self.rank) as f64),
            // Never fails: the names come from the operations themselves.
            Some(name) => name.parse().unwrap_or(Op::Sum),
            None => Op::Sum,
        };
        request.target = Target::of(self.collective, self.root());
        request
    }

    /// Returns the data of one call of this placement.
    pub fn data(&self, seed: u64) -> Data {
        Data::new(self.case.dtype, self.case.op, self.world_size, seed)
    }

    /// Writes a byte of every cache line of the input, which removes the lines from all other
    /// cores' caches. A zero in an element's lowest byte keeps its value small.
    pub fn rewrite(&self) {
        const LINE_BYTES: usize = 64;
        for line in (0..self.input.bytes()).step_by(LINE_BYTES) {
            self.input.part(line..line + 1).write(&[0]);
        }
    }

    /// Fills the output with a pattern that no call leaves there, then the input with `data`.
    pub fn write(&self, data: &Data) {
        let blank = [UNWRITTEN; BLOCK];
        for start in (0..self.output.bytes()).step_by(BLOCK) {
            let end = self.output.bytes().min(start + BLOCK);
            self.output.part(start..end).write(&blank[..end - start]);
        }
        // Elements are numbered from 0 through the whole input, over all shares of a scatter.
        let mut values = [0; BLOCK];
        self.each_block(self.input, |first, region| {
            let count = region.bytes() / self.case.dtype.size_bytes();
            let mut bytes = [0; BLOCK * 8];
            let bytes = &mut bytes[..region.bytes()];
            data.give(self.rank, first, &mut values[..count]);
            data.encode(&values[..count], bytes);
            region.write(bytes);
        });
    }

    /// Returns the number of wrong elements of the output.
    pub fn wrong(&self, data: &Data) -> u64 {
        if self.output.is_empty() {
            return 0;
        }
        let share = self.count;
        let (own, n) = (self.rank as u64 * share, self.world_size);
        let all = |from| self.wrong_in(data, 0, share, Origin::All(from));
        let one = |rank, from| self.wrong_in(data, 0, share, Origin::One(rank, from));
        let each = |from| {
            let wrong = |peer: usize| {
                self.wrong_in(data, peer as u64 * share, share, Origin::One(peer, from))
            };
            (0..n).map(wrong).sum()
        };
        match self.collective {
            Collective::AllReduce | Collective::Reduce => all(0),
            Collective::ReduceScatter => all(own),
            Collective::Broadcast => one(self.root(), 0),
            Collective::Scatter => one(self.root(), own),
            Collective::SendRecv => one((self.rank + n - 1) % n, 0),
            Collective::AllGather | Collective::Gather => each(0),
            Collective::AllToAll => each(own),
            Collective::Barrier | Collective::Send | Collective::Recv => 0,
        }
    }

    fn root(&self) -> usize {
        self.case.root.unwrap_or(0)
    }

    /// Counts the wrong elements among the `count` elements of the output from `at` on, which come
    /// from `origin`.
    fn wrong_in(&self, data: &Data, at: u64, count: u64, origin: Origin) -> u64 {
        let element = self.case.dtype.size_bytes();
        let start = at as usize * element;
        let region = self.output.part(start..start + count as usize * element);
        let mut wrong = 0;
        let mut values = [0; BLOCK];
        self.each_block(region, |first, region| {
            let values = &mut values[..region.bytes() / element];
            let (mut expected, mut found) = ([0; BLOCK * 8], [0; BLOCK * 8]);
            let expected = &mut expected[..region.bytes()];
            let found = &mut found[..region.bytes()];
            match origin {
                Origin::All(offset) => {
                    data.combined(offset + first, values);
                    data.encode_result(values, expected);
                }
                Origin::One(rank, offset) => {
                    data.give(rank, offset + first, values);
                    data.encode(values, expected);
                }
            }
            region.read(found);
            if expected != found {
                let pairs = expected.chunks(element).zip(found.chunks(element));
                wrong += pairs.filter(|(a, b)| a != b).count() as u64;
            }
        });
        wrong
    }

    /// Calls `work` with every block of `region` and the index of the block's first element in it.
    fn each_block(&self, region: Region, mut work: impl FnMut(u64, Region)) {
        let element = self.case.dtype.size_bytes();
        for start in (0..region.bytes()).step_by(BLOCK * element) {
            let end = region.bytes().min(start + BLOCK * element);
            work((start / element) as u64, region.part(start..end));
        }
    }
}

/// The origin of elements: the reduction over all ranks, or one rank's input. The last number is
/// the index of the first element.
#[derive(Clone, Copy)]
enum Origin {
    All(u64),
    One(usize, u64),
}

#[cfg(test)]
mod tests {
    use ringfold::DType;

    use super::*;
    use crate::bench::memory::Memory;

    fn case(collective: Collective, dtype: DType) -> Case {
        Case {
            dtype,
            op: collective.reduces().then_some("sum"),
            root: collective.has_root().then_some(1),
        }
    }

    const MEASURED: [Collective; 9] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::SendRecv,
    ];

    #[test]
    fn an_unwritten_output_is_wrong_in_every_element() {
        for collective in MEASURED {
            let case = case(collective, DType::F64);
            let size = Size::nearest(collective, DType::F64, 3, 3 * 5000 * 8);
            let memory = [
                Memory::new(size.bytes as usize).unwrap(),
                Memory::new(size.bytes as usize).unwrap(),
            ];
            let regions = [
                memory[0].region(size.bytes as usize),
                memory[1].region(size.bytes as usize),
            ];
            let placement = Placement::new(collective, case, (1, 3), size, false, regions).unwrap();
            let data = placement.data(5);
            placement.write(&data);
            let elements = placement.output.bytes() as u64 / 8;
            assert!(
                elements > 0 || collective == Collective::Scatter,
                "{collective}"
            );
            assert_eq!(placement.wrong(&data), elements, "{collective}");
        }
    }

    #[test]
    fn one_rank_alone_gets_back_what_it_gave() {
        for collective in MEASURED {
            let mut case = case(collective, DType::BF16);
            case.root = case.root.map(|_| 0);
            let size = Size::nearest(collective, DType::BF16, 1, 9000);
            let memory = [Memory::new(9000).unwrap(), Memory::new(9000).unwrap()];
            let regions = [memory[0].region(9000), memory[1].region(9000)];
            let placement = Placement::new(collective, case, (0, 1), size, false, regions).unwrap();
            let data = placement.data(5);
            placement.write(&data);
            placement.output.copy_from(placement.input);
            assert_eq!(placement.wrong(&data), 0, "{collective}");
            placement.output.part(100..101).write(&[0x11]);
            assert_eq!(placement.wrong(&data), 1, "{collective}");
        }
    }

    #[test]
    fn in_place_is_the_same_memory_where_it_makes_sense() {
        for collective in MEASURED {
            let case = case(collective, DType::U8);
            let size = Size::nearest(collective, DType::U8, 2, 64);
            let memory = [Memory::new(64).unwrap(), Memory::new(64).unwrap()];
            let regions = [memory[0].region(64), memory[1].region(64)];
            let placement = Placement::new(collective, case, (1, 2), size, true, regions);
            let has_form = !matches!(collective, Collective::AllToAll | Collective::SendRecv);
            assert_eq!(placement.is_some(), has_form, "{collective}");
            if let Some(placement) = placement {
                let ends = |region: Region| {
                    (
                        region.address() as usize,
                        region.address() as usize + region.bytes(),
                    )
                };
                let (input, output) = (ends(placement.input), ends(placement.output));
                assert!(
                    input.0.max(output.0) < input.1.min(output.1),
                    "{collective}"
                );
            }
        }
    }
}
