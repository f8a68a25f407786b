//! How fast one core reduces buffers that do not fit its caches, compared with memory.
//!
//! cargo test --release -p ringfold --test kernel_rate -- --ignored --nocapture
//!
//! The yardstick is a loop that does almost nothing with what it reads: two arrays XORed into a
//! third, or into the first of them, word by word. Every kernel at every CPU level of this machine
//! alternates with it in each round. A ratio of 1 means that memory, and not arithmetic, is the
//! limit. Prints CSV: medians over the rounds, and the median and the range of the rounds' ratios.

use std::hint::black_box;
use std::time::Instant;

use ringfold::Region;
use ringfold::internals::reduce::{Kernel, Level};
use ringfold::{DType, Op};

/// Of each array.
const SIZES_BYTES: [usize; 3] = [4 << 20, 16 << 20, 64 << 20];

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

const ROUNDS: usize = 11;

/// What one time is taken of, at least: small sizes are gone through several times.
const PASS_BYTES: usize = 64 << 20;

/// One in every type that is measured.
fn one(dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => 1f32.to_ne_bytes().to_vec(),
        DType::BF16 => 0x3f80_u16.to_ne_bytes().to_vec(),
        _ => 0x3c00_u16.to_ne_bytes().to_vec(),
    }
}

/// As large buffers are aligned.
#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page([u64; 512]);

/// An array of such words.
fn array(word: u64, bytes: usize) -> Vec<Page> {
    vec![Page([word; 512]); bytes / size_of::<Page>()]
}

fn ones(dtype: DType, bytes: usize) -> Vec<Page> {
    let one = one(dtype);
    let word = std::array::from_fn(|at| one[at % one.len()]);
    array(u64::from_ne_bytes(word), bytes)
}

fn region(pages: &mut [Page]) -> Region {
    // SAFETY: the pages are used through regions alone until the last of these is used no more.
    unsafe { Region::new(pages.as_mut_ptr().cast(), size_of_val(pages)) }
}

/// The yardstick, with arrays of its own.
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

/// Seconds for a pass, of as many as are timed together.
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

/// What is compared with the yardstick.
struct Sum {
    kernel: Kernel,
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
                    let kernel = Kernel::at_level(Op::Sum, dtype, level).unwrap();
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

/// Both in turn: the times and ratios of a row.
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
