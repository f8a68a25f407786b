//! Measures how fast one core reduces buffers that do not fit its caches, compared with memory.
//!
//! cargo test --release -p ringfold --test kernel_rate -- --ignored --nocapture
//!
//! The yardstick is a loop with almost no arithmetic: it XORs two arrays word by word into a third,
//! or into the first. Every kernel at every CPU level of this machine alternates with the yardstick
//! in each round. A ratio of 1 means that memory, not arithmetic, is the limit. The test prints
//! CSV: medians over the rounds, and the median and the range of the rounds' ratios.

use std::hint::black_box;
use std::time::Instant;

use ringfold::Region;
use ringfold::internals::reduce::{Level, ReductionKernel};
use ringfold::{DType, Op};

/// Sizes of each array.
const SIZES_BYTES: [usize; 3] = [4 << 20, 16 << 20, 64 << 20];

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

const ROUNDS: usize = 11;

/// Minimum bytes of a timing: small arrays are reduced several times.
const PASS_BYTES: usize = 64 << 20;

/// Returns 1 in any type that is measured.
fn one(dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => 1f32.to_ne_bytes().to_vec(),
        DType::BF16 => 0x3f80_u16.to_ne_bytes().to_vec(),
        _ => 0x3c00_u16.to_ne_bytes().to_vec(),
    }
}

/// A page: large buffers are aligned to pages.
#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page([u64; 512]);

/// Returns an array of words that all have this value.
fn array(word: u64, bytes: usize) -> Vec<Page> {
    vec![Page([word; 512]); bytes / size_of::<Page>()]
}

fn ones(dtype: DType, bytes: usize) -> Vec<Page> {
    let one = one(dtype);
    let word = std::array::from_fn(|at| one[at % one.len()]);
    array(u64::from_ne_bytes(word), bytes)
}

fn region(pages: &mut [Page]) -> Region {
    // SAFETY: the pages are accessed through regions alone until the last region is out of use.
    unsafe { Region::new(pages.as_mut_ptr().cast(), size_of_val(pages)) }
}

/// The yardstick and its own arrays.
struct Yardstick {
    from: [Vec<Page>; 2],
    into: Vec<Page>,
}

impl Yardstick {
    fn new(bytes: usize) -> Yardstick {
        Yardstick {
            from: [array(1, bytes), array(2, bytes)],
            into: array(3, bytes),
        }
    }

    fn run(&mut self, in_place: bool) {
        let [first, second] = &mut self.from;
        if in_place {
            for (into, with) in first.iter_mut().zip(&*second) {
                for (into, with) in into.0.iter_mut().zip(&with.0) {
                    *into ^= with;
                }
            }
            black_box(first);
        } else {
            for ((into, a), b) in self.into.iter_mut().zip(&*first).zip(&*second) {
                for ((into, a), b) in into.0.iter_mut().zip(&a.0).zip(&b.0) {
                    *into = a ^ b;
                }
            }
            black_box(&mut self.into);
        }
    }
}

/// Returns the seconds per pass, from as many passes as are timed together.
fn seconds(bytes: usize, mut pass: impl FnMut()) -> f64 {
    let passes = (PASS_BYTES / bytes).max(1);
    let begin = Instant::now();
    for _ in 0..passes {
        pass();
    }
    begin.elapsed().as_secs_f64() / passes as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The sum that is compared with the yardstick.
struct Sum {
    kernel: ReductionKernel,
    into: Region,
    sources: [Region; 2],
}

#[test]
#[ignore = "measures for a minute, on a machine that does nothing else"]
fn sums_beside_the_memory_rate() {
    println!("bytes,placement,dtype,level,kernel_us,memory_us,ratio,least_ratio,largest_ratio");
    for bytes in SIZES_BYTES {
        let mut yardstick = Yardstick::new(bytes);
        for dtype in DTYPES {
            let mut arrays = [(); 3].map(|()| ones(dtype, bytes));
            let [a, b, c] = arrays.each_mut().map(|words| region(words));
            for (placement, into) in [("out", c), ("in", a)] {
                for level in Level::available() {
                    let kernel = ReductionKernel::at_level(Op::Sum, dtype, level).unwrap();
                    let sources = [a, b];
                    let sum = Sum {
                        kernel,
                        into,
                        sources,
                    };
                    let row = compare(bytes, &sum, placement == "in", &mut yardstick);
                    println!("{bytes},{placement},{dtype},{},{row}", level.name());
                }
            }
        }
    }
}

/// Times the sum and the yardstick in turn; returns the times and ratios of a row.
fn compare(bytes: usize, sum: &Sum, in_place: bool, yardstick: &mut Yardstick) -> String {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let kernel_s = seconds(bytes, || sum.kernel.fold(sum.into, &sum.sources));
        let memory_s = seconds(bytes, || yardstick.run(in_place));
        let round = [kernel_s, memory_s, kernel_s / memory_s];
        for (times, value) in times.iter_mut().zip(round) {
            times.push(value);
        }
    }
    let [kernel_s, memory_s, ratio] = times.each_mut().map(|values| median(values));
    let (least, largest) = (times[2][0], times[2][ROUNDS - 1]);
    let (kernel_us, memory_us) = (kernel_s * 1e6, memory_s * 1e6);
    format!("{kernel_us:.1},{memory_us:.1},{ratio:.3},{least:.3},{largest:.3}")
}
