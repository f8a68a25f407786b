//! Every collective by every algorithm, with every data type and operation, odd sizes and uneven
//! counts, in ordinary and in registered memory, between real processes: the results, the inputs
//! and the memory around both are compared byte by byte.
//!
//! `a_rank` joins the job that its environment names, so the ranks may be on several hosts:
//!
//!     RINGFOLD_TEST_SCENE=exact bench/rdma_vm.sh bench/rdma_hosts.py --ranks 4 --run -- \
//!         target/debug/deps/exact-... --exact a_rank --ignored --nocapture

mod oracle;
#[allow(dead_code, reason = "other tests start their scenes more simply")]
mod scenes;

use std::collections::BTreeMap;

use oracle::{Call, Due, PREMUL, encoded};
use ringfold::{Collective, Communicator, DType, Method, Op, Region, Request, Target};
use scenes::{Scene, play_with};

const SCENES: [(&str, Scene); 1] = [("exact", exact)];

/// Numbers of elements: none, fewer than ranks, around lines and slices, many slices.
const COUNTS: [usize; 8] = [0, 1, 3, 17, 300, 2500, 20_001, 100_003];

/// Numbers of elements for every data type and operation.
const TYPED_COUNTS: [usize; 2] = [131, 9001];

/// The variable that is set if each type and operation uses one of `TYPED_COUNTS` in turn; using
/// all counts takes twice as long.
const ALTERNATE: (&str, &str) = ("TEST_TYPED_COUNTS", "alternate");

/// Bytes before and after each buffer.
const GUARD_BYTES: usize = 64;

/// Contents of memory that no call may write.
const UNTOUCHED: u8 = 0xa5;

/// Minimum number of pairs of a collective and an algorithm: several for almost all collectives.
const WAYS_MIN: usize = 40;

const OPS: [Op; 9] = [
    Op::Sum,
    Op::Prod,
    Op::Min,
    Op::Max,
    Op::Avg,
    Op::PremulSum(PREMUL),
    Op::Band,
    Op::Bor,
    Op::Bxor,
];

#[test]
#[ignore = "started as a rank by the other tests"]
fn a_rank() {
    scenes::act(&SCENES);
}

/// `stragglar` needs a late rank.
const LATE: (&str, &str) = ("RINGFOLD_LATE_RANK", "1");

#[test]
fn through_shared_memory() {
    through("shm", Some(ALTERNATE));
}

#[test]
fn over_tcp() {
    through("tcp", Some(ALTERNATE));
}

#[test]
fn over_rdma() {
    over_software_devices(Some(ALTERNATE));
}

#[test]
#[ignore = "long: each type and operation with each length, on every transport"]
fn every_type_and_operation_is_exact_with_every_length() {
    through("shm", None);
    through("tcp", None);
    over_software_devices(None);
}

fn through(transport: &str, lengths: Option<(&str, &str)>) {
    let mut variables = vec![("RINGFOLD_TRANSPORT", transport), LATE];
    variables.extend(lengths);
    play_with("exact", 3, &variables);
}

/// Plays the scene over RDMA, in pieces and in memory that is registered for each call.
fn over_software_devices(lengths: Option<(&str, &str)>) {
    let library = std::env::current_exe().expect("this program");
    let library = library.with_file_name("libringfold_softverbs.so");
    let library = library.to_str().expect("a plain path");
    let mut variables = vec![
        ("RINGFOLD_TRANSPORT", "rdma"),
        ("RINGFOLD_VERBS_LIBRARY", library),
        ("RINGFOLD_IB_REGISTER_BYTES", "16K"),
        LATE,
    ];
    variables.extend(lengths);
    play_with("exact", 2, &variables);
}

/// Two pieces of memory of one kind; calls use parts of them.
struct Memory {
    name: &'static str,
    pieces: [Region; 2],
}

/// All calls of a job.
struct Suite<'a> {
    comm: &'a Communicator,
    memories: Vec<Memory>,
    /// Number of calls made by each pair of a collective and an algorithm.
    made: BTreeMap<String, u32>,
}

fn exact(comm: Communicator) {
    let most = 8 * comm.world_size() * COUNTS[COUNTS.len() - 1] + 2 * GUARD_BYTES;
    let mut ordinary = [vec![0u8; most], vec![0u8; most]];
    let registered = [0, 1].map(|_| comm.alloc(most).expect("registered memory"));
    let memories = vec![
        Memory {
            name: "ordinary",
            pieces: ordinary.each_mut().map(|piece| {
                // SAFETY: the piece outlives the suite, which alone uses it.
                unsafe { Region::new(piece.as_mut_ptr(), most) }
            }),
        },
        Memory {
            name: "registered",
            pieces: registered.each_ref().map(|piece| piece.region()),
        },
    ];
    let mut suite = Suite {
        comm: &comm,
        memories,
        made: BTreeMap::new(),
    };
    suite.sizes();
    suite.types();
    suite.uneven();
    suite.messages();
    suite.report();
}

/// Returns the tuner's choice, and every algorithm.
fn algorithms() -> impl Iterator<Item = Option<Method>> {
    std::iter::once(None).chain(Method::ALL.iter().copied().map(Some))
}

impl Suite<'_> {
    fn call(&self, collective: Collective, count: usize) -> Call {
        Call {
            collective,
            dtype: DType::F32,
            op: Op::Sum,
            root: 0,
            counts: vec![count; self.comm.world_size()],
        }
    }

    /// Calls every collective, with odd sizes and every root.
    fn sizes(&mut self) {
        let is_whole = |one: &Collective| !matches!(one, Collective::Send | Collective::Recv);
        for collective in Collective::ALL.iter().copied().filter(is_whole) {
            for (index, count) in COUNTS.into_iter().enumerate() {
                let root = index % self.comm.world_size();
                let call = self.call(collective, count);
                self.make(&Call { root, ..call });
            }
        }
    }

    /// Moves every data type, and reduces it by every operation that exists for it.
    fn types(&mut self) {
        use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
        let is_alternate = std::env::var_os(ALTERNATE.0).is_some();
        let mut turn = 0;
        for &dtype in DType::ALL {
            let ops = || OPS.into_iter().filter(|op| op.check(dtype).is_ok());
            let moves = [AllGather, Broadcast].map(|collective| (collective, Op::Sum));
            let reduces =
                [AllReduce, Reduce, ReduceScatter].map(|one| ops().map(move |op| (one, op)));
            for (collective, op) in moves.into_iter().chain(reduces.into_iter().flatten()) {
                // Averages of floats are exact if the number of ranks is a power of two.
                let is_exact = self.comm.world_size().is_power_of_two() || !dtype.is_float();
                turn += 1;
                let counts = match is_alternate {
                    true => &TYPED_COUNTS[turn % 2..][..1],
                    false => &TYPED_COUNTS[..],
                };
                for &count in counts {
                    let call = Call {
                        dtype,
                        op,
                        root: 1,
                        ..self.call(collective, count)
                    };
                    if op != Op::Avg || is_exact {
                        self.make(&call);
                    }
                }
            }
        }
    }

    /// Makes calls whose counts differ from rank to rank, and from pair to pair.
    fn uneven(&mut self) {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        let ranks = 0..self.comm.world_size();
        let counts: Vec<usize> = ranks.map(|rank| rank * 21_101 % 30_000).collect();
        for collective in [AllGather, Gather, ReduceScatter, Scatter, AllToAll] {
            self.make(&Call {
                counts: counts.clone(),
                root: 1,
                ..self.call(collective, 0)
            });
        }
    }

    /// Sends messages from every rank to every other.
    fn messages(&mut self) {
        let (rank, ranks) = (self.comm.rank(), self.comm.world_size());
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            let (collective, root) = match rank {
                _ if from == to => continue,
                _ if rank == from => (Collective::Send, to),
                _ if rank == to => (Collective::Recv, from),
                _ => continue,
            };
            for count in COUNTS {
                let call = self.call(collective, count);
                self.make(&Call { root, ..call });
            }
        }
    }

    /// Makes a call by every algorithm, in each kind of memory, out of place and in place.
    fn make(&mut self, call: &Call) {
        let due = call.due(self.comm.rank());
        let forms = [false, has_in_place_form(call.collective)];
        let forms = &forms[..1 + usize::from(forms[1])];
        for memory in 0..self.memories.len() {
            for &in_place in forms {
                let laid = Laid::new(call, &due, in_place, self.memories[memory].pieces);
                for algorithm in algorithms() {
                    self.make_by(algorithm, call, memory, &laid);
                }
            }
        }
    }

    fn make_by(&mut self, algorithm: Option<Method>, call: &Call, memory: usize, laid: &Laid) {
        let (rank, memory) = (self.comm.rank(), self.memories[memory].name);
        let about = || format!("rank {rank}, {memory} memory, {algorithm:?}, {call:?}");
        laid.fill();
        let counts = call.counts_of(rank);
        let [input, output] = laid.buffers;
        let mut request = Request::new(call.collective, call.dtype, counts, input, output);
        (request.op, request.options.algorithm) = (call.op, algorithm);
        request.target = Target::of(call.collective, call.root);
        // SAFETY: the regions outlive the blocking call, and nothing else uses them.
        match unsafe { self.comm.run(&request, &mut || Ok(())) } {
            Ok(_) => laid.check(&about),
            Err(error) if algorithm.is_some() && error.class() == "Unsupported" => return,
            Err(error) => panic!("{}: {error}", about()),
        }
        let algorithm = algorithm.map_or("chosen", |algorithm| algorithm.name());
        let way = format!("{} {algorithm}", call.collective);
        *self.made.entry(way).or_default() += 1;
    }

    /// Prints the number of calls of each way; fails if there are too few ways.
    fn report(&self) {
        let ways = self.made.len();
        if self.comm.rank() == 0 {
            for (way, calls) in &self.made {
                println!("{way}: {calls}");
            }
            println!(
                "{} calls in {ways} ways: exact",
                self.made.values().sum::<u32>()
            );
        }
        assert!(ways >= WAYS_MIN, "only {ways} ways were used");
    }
}

/// A call's buffers in two pieces of memory, or in the first one if in place, between guards.
struct Laid {
    buffers: [Region; 2],
    pieces: [Region; 2],
    /// Contents of the pieces before the call, and the expected contents after it.
    before: [Vec<u8>; 2],
    after: [Vec<u8>; 2],
}

impl Laid {
    fn new(call: &Call, due: &Due, in_place: bool, pieces: [Region; 2]) -> Laid {
        let size = call.dtype.size_bytes();
        let [input, output] = [&due.input, &due.output].map(|values| encoded(values, call.dtype));
        let shares = in_place && !input.is_empty() && !output.is_empty();
        let starts = if shares { due.starts } else { [0, 0] };
        let [input_at, output_at] = starts.map(|start| GUARD_BYTES + start * size);
        let input_at = input_at..input_at + input.len();
        let output_at = output_at..output_at + output.len();
        let fills = usize::from(!shares);
        let bytes = GUARD_BYTES + input_at.end.max(output_at.end);
        let mut before = [vec![UNTOUCHED; bytes], vec![UNTOUCHED; bytes]];
        before[0][input_at.clone()].copy_from_slice(&input);
        let mut after = before.clone();
        after[fills][output_at.clone()].copy_from_slice(&output);
        Laid {
            buffers: [pieces[0].part(input_at), pieces[fills].part(output_at)],
            pieces: pieces.map(|piece| piece.part(0..bytes)),
            before,
            after,
        }
    }

    fn fill(&self) {
        for (piece, before) in self.pieces.iter().zip(&self.before) {
            piece.write(before);
        }
    }

    /// Compares the pieces with their expected contents.
    fn check(&self, about: &dyn Fn() -> String) {
        for (piece, after) in self.pieces.iter().zip(&self.after) {
            let mut found = vec![0; after.len()];
            piece.read(&mut found);
            if found != *after {
                let wrong = (0..after.len()).filter(|place| found[*place] != after[*place]);
                let places: Vec<usize> = wrong.take(5).collect();
                panic!("{}: bytes {places:?} of {} are wrong", about(), after.len());
            }
        }
    }
}

fn has_in_place_form(collective: Collective) -> bool {
    use Collective::{AllToAll, Barrier, Recv, Send, SendRecv};
    !matches!(collective, AllToAll | Barrier | Recv | Send | SendRecv)
}
