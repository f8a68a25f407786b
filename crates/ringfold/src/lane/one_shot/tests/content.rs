//! Contents that show how kernels combine, and what the host combines of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::element::convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
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
fn on_host(op: Op, dtype: DType, rows: &[Vec<u8>]) -> Vec<u8> {
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

/// The assembler of NVIDIA that comes with triton, if Python finds that.
fn assembler() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let find = "import importlib.util as u; print(u.find_spec('triton').origin)";
    let found = Command::new(python).args(["-c", find]).output().ok()?;
    let found = String::from_utf8(found.stdout).ok()?;
    let assembler = Path::new(found.trim()).with_file_name("backends/nvidia/bin/ptxas");
    assembler.is_file().then_some(assembler)
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
