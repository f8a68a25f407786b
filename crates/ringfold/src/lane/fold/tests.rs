//! Kernels by themselves, as the software driver reads their text: what they combine is, bit by
//! bit, what the host does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use super::text::{NAME, PARAMETERS, VECTOR_BYTES, text};
use crate::device::{Current, Device, PinnedRegion, Platform, Stream};
use crate::element::convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::lane::tests::driver;
use crate::memory::{Owned, Region};
use crate::random::SplitMix64;
use crate::reduce::{Factor, ReductionKernel, scale};
use crate::skipped::skipped;
use crate::types::{DType, Op};

pub const OPS: [Op; 8] = [
    Op::Sum,
    Op::Prod,
    Op::Min,
    Op::Max,
    Op::Avg,
    Op::Band,
    Op::Bor,
    Op::Bxor,
];

/// Whole vectors of every type.
const ROW_BYTES: usize = 64 * VECTOR_BYTES;
const ROWS_MAX: usize = 5;
/// Behind the rows: the word that says whether there is a fault.
const FAULT: usize = ROWS_MAX * ROW_BYTES;
const HOST_BYTES: usize = FAULT + 4096;

/// Bits of which many are no numbers, infinite, zeros of both signs, or too small to be normal.
pub fn content(dtype: DType, random: &mut SplitMix64, bytes: usize) -> Vec<u8> {
    let size = dtype.size_bytes();
    let special: [u64; 8] = match dtype {
        DType::F16 => [0, 0x8000, 0x7c00, 0xfc00, 0x7e01, 0x0001, 0x83ff, 0x7bff],
        DType::BF16 => [0, 0x8000, 0x7f80, 0xff80, 0x7fc1, 0x0001, 0x807f, 0x7f7f],
        DType::F32 => [
            0,
            1 << 31,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0001,
            1,
            0x807f_ffff,
            0x7f7f_ffff,
        ],
        DType::F64 => [
            0,
            1 << 63,
            0x7ff << 52,
            0xfff << 52,
            0x7ff8 << 48 | 1,
            1,
            1 << 63 | 9,
            !(1 << 63),
        ],
        _ => [0, 1, 2, 0x7f, 0x80, 0xff, u64::MAX, 1 << 63],
    };
    let mut content = Vec::with_capacity(bytes);
    while content.len() < bytes {
        let any = match random.index(3) {
            0 => special[random.index(special.len())],
            _ => random.below(u64::MAX),
        };
        content.extend_from_slice(&any.to_le_bytes()[..size]);
    }
    content
}

/// Whether the bits are no number of a float type.
fn is_nan(dtype: DType, element: &[u8]) -> bool {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    let bits = u64::from_le_bytes(bytes);
    match dtype {
        DType::F16 => bits & 0x7fff > 0x7c00,
        DType::BF16 => bits & 0x7fff > 0x7f80,
        DType::F32 => f32::from_bits(bits as u32).is_nan(),
        DType::F64 => f64::from_bits(bits).is_nan(),
        _ => false,
    }
}

/// The same numbers as `f32`, if they are 16-bit floats.
fn widened(dtype: DType, row: &[u8]) -> Vec<u8> {
    let wide = |each: &[u8]| {
        let bits = u16::from_le_bytes([each[0], each[1]]);
        match dtype {
            DType::F16 => f16_to_f32(bits),
            _ => bf16_to_f32(bits),
        }
    };
    match dtype {
        DType::F16 | DType::BF16 => row
            .chunks(2)
            .flat_map(|each| wide(each).to_le_bytes())
            .collect(),
        _ => row.to_vec(),
    }
}

/// `row` rounded to what was widened, `bytes` bytes.
fn narrowed(dtype: DType, row: Vec<u8>, bytes: usize) -> Vec<u8> {
    if row.len() == bytes {
        return row;
    }
    let narrow = |each: &[u8]| {
        let value = f32::from_le_bytes(each.try_into().expect("four bytes"));
        match dtype {
            DType::F16 => f32_to_f16(value),
            _ => f32_to_bf16(value),
        }
    };
    row.chunks(4)
        .flat_map(|each| narrow(each).to_le_bytes())
        .collect()
}

/// The host's result, from the first row to the last: short floats as `f32`, rounded once.
pub fn on_host(op: Op, dtype: DType, rows: &[Vec<u8>]) -> Vec<u8> {
    let wide: Vec<Vec<u8>> = rows.iter().map(|row| widened(dtype, row)).collect();
    let memory: Vec<Owned> = wide.iter().map(|row| Owned::zeroed(row.len())).collect();
    let regions: Vec<Region> = memory.iter().map(|each| each.region()).collect();
    for (region, row) in regions.iter().zip(&wide) {
        region.write(row);
    }
    let kernel = match wide[0].len() == rows[0].len() {
        true => ReductionKernel::new(op, dtype),
        false => ReductionKernel::new(op, DType::F32),
    }
    .expect("a kernel");
    let sum = regions[0];
    match &regions[1..] {
        [] => kernel.fold(sum, &[sum]),
        others => others.iter().for_each(|row| kernel.fold(sum, &[sum, *row])),
    }
    let bytes = rows[0].len();
    let target = Owned::zeroed(bytes);
    let into = target.region();
    let mut result = vec![0; wide[0].len()];
    sum.read(&mut result);
    into.write(&narrowed(dtype, result, bytes));
    if op == Op::Avg {
        scale(dtype, into, into, Factor::Divide(rows.len() as u64)).expect("a mean");
    }
    let mut result = vec![0; bytes];
    into.read(&mut result);
    result
}

/// Panics unless the bits are the same, but for those of what is no number.
pub fn check_same(op: Op, dtype: DType, found: &[u8], rows: &[Vec<u8>], seed: u64) {
    let (size, expected) = (dtype.size_bytes(), on_host(op, dtype, rows));
    assert_eq!(found.len(), expected.len());
    for (index, (one, other)) in found.chunks(size).zip(expected.chunks(size)).enumerate() {
        let is_same = one == other || is_nan(dtype, one) && is_nan(dtype, other);
        let from: Vec<&[u8]> = rows
            .iter()
            .map(|row| &row[index * size..][..size])
            .collect();
        assert!(
            is_same,
            "seed {seed}, {op:?} of {dtype}: {from:x?} gives {one:x?}, not {other:x?}"
        );
    }
}

/// The device's.
struct Bench<'a> {
    current: Current<'a>,
    stream: Stream,
    host: PinnedRegion,
    memory: crate::device::DeviceMemory,
}

impl Bench<'_> {
    fn combine(&self, op: Op, dtype: DType, rows: &[Vec<u8>]) -> Vec<u8> {
        let text = text(op, dtype).expect("a text");
        let text = std::ffi::CString::new(text).expect("no zero");
        let kernel = self.current.kernel(&text, NAME, PARAMETERS.len());
        let kernel = kernel.expect("it is compiled");
        // SAFETY: all that is enqueued is waited for below.
        let device = unsafe { self.memory.region() };
        for (index, row) in rows.iter().enumerate() {
            let place = index * ROW_BYTES..(index + 1) * ROW_BYTES;
            self.host.region().part(place.clone()).write(row);
            let from = self.host.part(place.clone());
            self.current
                .take(&self.stream, from, device.part(place))
                .expect("a copy");
        }
        // In place of one of the rows.
        let own = device.part(ROW_BYTES..2 * ROW_BYTES);
        let arguments = [
            own.address() as u64,
            device.address() as u64,
            ROW_BYTES as u64,
            rows.len() as u64,
            (ROW_BYTES / VECTOR_BYTES) as u64,
            (self.host.device_address() + FAULT) as u64,
            (1.0 / rows.len() as f64).to_bits(),
        ];
        // SAFETY: it accesses the rows and the word, which outlive it.
        unsafe {
            self.current
                .launch(&self.stream, &kernel, [2, 24], &arguments)
        }
        .expect("a launch");
        let result = self.host.part(0..ROW_BYTES);
        self.current
            .bring(&self.stream, own, result)
            .expect("a copy");
        while !self.current.is_idle(&self.stream).expect("an answer") {
            std::thread::yield_now();
        }
        let mut found = vec![0; ROW_BYTES];
        result.region().read(&mut found);
        found
    }
}

fn bench(with: impl FnOnce(Bench<'_>)) {
    let device = Device::open(driver(Platform::Cuda), 0).expect("a device");
    let current = device.enter().expect("a context");
    let host = Owned::zeroed(HOST_BYTES);
    let pin = current
        .pin(host.region(), Arc::new(host))
        .expect("pinned memory");
    with(Bench {
        stream: current.stream().expect("a stream"),
        memory: current.allocate(FAULT).expect("memory"),
        current: device.enter().expect("a context"),
        host: pin.whole(),
    });
}

#[test]
fn kernels_combine_as_the_host_does() {
    let seed = 17;
    let mut random = SplitMix64::stream(seed, 0);
    let mut found = 0;
    bench(|bench| {
        for (dtype, op) in DType::ALL
            .iter()
            .flat_map(|dtype| OPS.map(|op| (*dtype, op)))
        {
            // Devices combine whatever the host combines, except fp8.
            let is_fp8 = matches!(dtype, DType::F8E4M3 | DType::F8E5M2);
            let combines = op.check(dtype).is_ok() && !is_fp8;
            assert_eq!(combines, text(op, dtype).is_some(), "{op:?} {dtype}");
            if !combines {
                continue;
            }
            for count in 2..=ROWS_MAX {
                let row = |_| content(dtype, &mut random, ROW_BYTES);
                let rows: Vec<Vec<u8>> = (0..count).map(row).collect();
                check_same(op, dtype, &bench.combine(op, dtype, &rows), &rows, seed);
                found += 1;
            }
        }
    });
    assert!(found > 250, "{found}");
}

#[test]
fn after_a_fault_a_kernel_gives_bytes_of_ones() {
    bench(|bench| {
        let rows = vec![vec![1; ROW_BYTES]; 2];
        assert_eq!(
            bench.combine(Op::Sum, DType::I32, &rows),
            vec![2; ROW_BYTES]
        );
        bench.host.region().part(FAULT..FAULT + 1).write(&[1]);
        for dtype in [DType::I8, DType::F64] {
            let combined = bench.combine(Op::Sum, dtype, &rows);
            assert_eq!(combined, vec![0xff; ROW_BYTES], "{dtype}");
        }
    });
}

/// The assembler of NVIDIA that comes with triton, if Python finds that.
fn assembler() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let find = "import importlib.util as u; print(u.find_spec('triton').origin)";
    let found = Command::new(python).args(["-c", find]).output().ok()?;
    let found = String::from_utf8(found.stdout).ok()?;
    let assembler = Path::new(found.trim()).with_file_name("backends/nvidia/bin/ptxas");
    assembler.is_file().then_some(assembler)
}

#[test]
fn the_assembler_takes_every_text() {
    assemble("fold", text);
}

/// Has NVIDIA's assembler read the kernels `name` of all operations and types.
pub fn assemble(name: &str, text: impl Fn(Op, DType) -> Option<String>) {
    let Some(assembler) = assembler() else {
        return skipped("no ptxas: install triton in .venv");
    };
    let folder = std::env::temp_dir().join(format!("ringfold-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let source = folder.join("all.ptx");
    // One text of all kernels, because the assembler takes long to start.
    let mut all = String::new();
    for (dtype, op) in DType::ALL
        .iter()
        .flat_map(|dtype| OPS.map(|op| (*dtype, op)))
    {
        let Some(text) = text(op, dtype) else {
            continue;
        };
        let begin = text.find(".visible").expect("a kernel");
        if all.is_empty() {
            all.push_str(&text[..begin]);
        }
        let own = format!("{name}_{}_{}(", op.name(), dtype.name());
        all.push_str(&text[begin..].replacen(&format!("{name}("), &own, 1));
    }
    std::fs::write(&source, &all).expect("a file");
    // Whatever the assembler does not know yet, or any more, it names.
    let mut taken = 0;
    for target in ["sm_70", "sm_80", "sm_90", "sm_100"] {
        let ended = Command::new(&assembler)
            .args(["-arch", target, "-o", "/dev/null"])
            .arg(&source)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        let is_unknown = said.contains("not defined for option 'gpu-name'");
        assert!(ended.status.success() || is_unknown, "{target}: {said}");
        taken += usize::from(ended.status.success());
    }
    std::fs::remove_dir_all(&folder).expect("a folder");
    assert!(taken > 1, "{taken}");
}
