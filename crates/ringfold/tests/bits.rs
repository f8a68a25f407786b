//! The same data gives the same bits: on every rank, in every repetition, and in every run of the
//! program.
//!
//! The numbers differ so much in magnitude that their sum depends on the order of additions, and
//! ranks enter each call at different times, so that the first to arrive is not always the same.

#[allow(dead_code, reason = "other tests start their scenes more simply")]
mod scenes;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use ringfold::Region;
use ringfold::{Collective, Communicator, Counts, DType, Method, Request};
use scenes::{Scene, play_with};

const SCENES: [(&str, Scene); 2] = [("chosen", chosen), ("every_way", every_way)];

/// Seed of the data, which a failing scene prints.
const SEED: u64 = 20_261_122;

/// Number of times that a process makes the same call.
const REPETITIONS: usize = 2;

/// Numbers of elements: for the head of a slot, a slot, several slices, and more slices than are in
/// flight.
const COUNTS: [usize; 5] = [1, 7, 3000, 20_001, 100_000];

/// The variable `RINGFOLD_TUNER_CONFIG` and its value, a file of rules.
macro_rules! rules {
    ($name:literal) => {
        (
            "RINGFOLD_TUNER_CONFIG",
            concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/fixtures/rules/",
                $name,
                ".csv"
            ),
        )
    };
}

/// The variable that names the file for rank 0's results.
const FOUND: &str = "RINGFOLD_TEST_FOUND";

/// Rules by which all sums use one method.
const CLAIM: (&str, &str) = rules!("claim");
const DIRECT: (&str, &str) = rules!("direct");
const PUSH: (&str, &str) = rules!("push");

#[test]
#[ignore = "started as a rank by the other tests"]
fn a_rank() {
    scenes::act(&SCENES);
}

#[test]
fn sums_of_published_memory_are_the_same_bits() {
    compare_runs("every_way", 2, &[("RINGFOLD_TRANSPORT", "shm")]);
    compare_runs("every_way", 5, &[("RINGFOLD_TRANSPORT", "shm")]);
}

#[test]
fn sums_of_blocks_that_anybody_claims_are_the_same_bits() {
    let variables = [("RINGFOLD_TRANSPORT", "shm"), CLAIM];
    compare_runs("chosen", 4, &variables);
}

#[test]
fn sums_pushed_into_registered_memory_are_the_same_bits() {
    let variables = [("RINGFOLD_TRANSPORT", "shm"), PUSH];
    compare_runs("chosen", 2, &variables);
    compare_runs("chosen", 4, &variables);
}

#[test]
fn sums_with_helpers_are_the_same_bits() {
    let variables = [
        ("RINGFOLD_TRANSPORT", "shm"),
        ("RINGFOLD_LIMITS", "helper_bytes_min=4K"),
        DIRECT,
        ("RINGFOLD_HELPERS", "2"),
    ];
    compare_runs("chosen", 2, &variables);
    compare_runs("chosen", 3, &variables);
}

#[test]
fn sums_by_messages_are_the_same_bits() {
    compare_runs("every_way", 3, &[("RINGFOLD_TRANSPORT", "tcp")]);
    compare_runs("every_way", 4, &[("RINGFOLD_TRANSPORT", "tcp")]);
}

/// Plays the scene twice; rank 0 must find the same results both times.
fn compare_runs(scene: &str, ranks: usize, variables: &[(&str, &str)]) {
    println!("seed {SEED}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let run = |number: usize| {
        let thread = std::thread::current().id();
        let file = format!("bits-{}-{thread:?}-{number}", std::process::id());
        let path = folder.join(file);
        let found = (FOUND, path.to_str().expect("a plain path"));
        // `stragglar` needs a late rank.
        let late = ("RINGFOLD_LATE_RANK", "1");
        play_with(scene, ranks, &[variables, &[found, late]].concat());
        let text = std::fs::read_to_string(&path).expect("what rank 0 wrote");
        std::fs::remove_file(&path).expect("it was there");
        text
    };
    let (first, second) = (run(1), run(2));
    assert!(!first.is_empty());
    assert_eq!(first, second, "{scene}, {ranks} ranks");
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns element `index` of `rank`'s data: of either sign, scaled by 2^-12 to 2^11.
fn element(rank: usize, index: usize) -> f32 {
    let bits = mix(SEED ^ (rank as u64) << 40 ^ index as u64);
    let fraction = (bits >> 32) as f32 / (1u64 << 31) as f32 - 1.0;
    fraction * ((bits % 24) as f32 - 12.0).exp2()
}

fn hash(data: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    data.iter()
        .for_each(|value| value.to_bits().hash(&mut hasher));
    hasher.finish()
}

fn chosen(comm: Communicator) {
    sums(&comm, &[None]);
}

fn every_way(comm: Communicator) {
    let all = Method::ALL.iter().copied().map(Some);
    sums(&comm, &std::iter::once(None).chain(all).collect::<Vec<_>>());
}

/// Sums the same data by each of `ways`, repeatedly, and compares the results of all ranks and
/// repetitions.
fn sums(comm: &Communicator, ways: &[Option<Method>]) {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    assert_order_counts(ranks);
    let most = COUNTS[COUNTS.len() - 1];
    let mut shared = comm.alloc(4 * most).expect("memory");
    let mut ordinary = vec![0f32; most];
    let mut found = String::new();
    for way in ways.iter().copied() {
        for count in COUNTS {
            let mut results = Vec::new();
            for repetition in 0..REPETITIONS {
                for data in [&mut ordinary[..], shared.as_mut_slice()] {
                    let data = &mut data[..count];
                    for (index, value) in data.iter_mut().enumerate() {
                        *value = element(rank, index);
                    }
                    come_late(rank, results.len() + repetition);
                    if sum(comm, data, way) {
                        results.push(hash(data));
                    }
                }
            }
            let mut of_all = vec![0; results.len() * ranks];
            comm.all_gather(&results, &mut of_all).expect("all hashes");
            let is_same = of_all.iter().all(|one| *one == of_all[0]);
            assert!(
                is_same,
                "seed {SEED}, {way:?}, {count} elements: {of_all:x?}"
            );
            found += &format!("{way:?} {count} {:x?}\n", of_all.first());
        }
    }
    if rank == 0 {
        let path = std::env::var(FOUND).expect("a place for it");
        std::fs::write(path, found).expect("a file");
    }
}

/// Sums in place; returns false if the method is unsupported.
fn sum(comm: &Communicator, data: &mut [f32], way: Option<Method>) -> bool {
    let counts = Counts::Even(data.len() as u64);
    // SAFETY: the slice is exclusively ours, and outlives the blocking call.
    let region = unsafe { Region::new(data.as_mut_ptr().cast(), size_of_val(data)) };
    let mut request = Request::new(Collective::AllReduce, DType::F32, counts, region, region);
    request.options.algorithm = way;
    // SAFETY: as above.
    match unsafe { comm.run(&request, &mut || Ok(())) } {
        Ok(_) => true,
        Err(error) if way.is_some() && error.class() == "Unsupported" => false,
        Err(error) => panic!("seed {SEED}, {way:?}, {} elements: {error}", data.len()),
    }
}

/// Lets the other ranks arrive first at some calls.
fn come_late(rank: usize, turn: usize) {
    match mix((rank * 1000 + turn) as u64) % 4 {
        0 => std::thread::sleep(Duration::from_micros(200)),
        1 => std::thread::yield_now(),
        _ => {}
    }
}

/// Asserts that adding this data in another order gives other bits, except for two ranks; otherwise
/// the test would show nothing.
fn assert_order_counts(ranks: usize) {
    let add = |order: &mut dyn Iterator<Item = usize>, index| {
        order.fold(0f32, |sum, rank| sum + element(rank, index))
    };
    let is_other =
        |index: &usize| add(&mut (0..ranks), *index) != add(&mut (0..ranks).rev(), *index);
    assert!(ranks == 2 || (0..1000).filter(is_other).count() > 100);
}
