//! The arithmetic of kernels, in PTX: how an element is loaded, combined, rounded and stored.
//!
//! A thread combines 16 bytes at a time. What is shorter than 32 bits is taken apart into
//! registers; 16-bit floats are combined as `f32` and rounded once, as on the host.
//!
//! Additions and multiplications say that they round, because a compiler may fuse those that do
//! not; extrema are selections, as in `reduce`: a NaN wins, and of two zeros the minimum is `-0`.

#![forbid(unsafe_code)]

use std::fmt::Write;

use crate::types::{DType, Op};

/// What a thread combines at once.
pub const VECTOR_BYTES: usize = 16;

/// How an element is stored and combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Unsigned,
    Signed,
    /// Every byte but 0 is true; results are 0 or 1.
    Truth,
    Float,
    /// Combined as `f32`.
    Half,
    Brain,
}

/// An element, and what is done with two.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    format: Format,
    /// As it is stored.
    bits: usize,
    op: Op,
}

/// Whether devices combine elements of `dtype` by `op`.
pub fn is_combined(op: Op, dtype: DType) -> bool {
    op.check(dtype).is_ok() && Element::new(op, dtype).is_some()
}

impl Element {
    pub fn new(op: Op, dtype: DType) -> Option<Element> {
        // Bit operations are the same at any width.
        let bitwise = match (op, dtype) {
            (Op::Bor, _) | (Op::Sum | Op::Max, DType::Bool) => Some(Op::Bor),
            (Op::Band, _) | (Op::Prod | Op::Min, DType::Bool) => Some(Op::Band),
            (Op::Bxor, _) => Some(Op::Bxor),
            _ => None,
        };
        let (format, bits) = match dtype {
            DType::Bool => (Format::Truth, 8),
            _ if bitwise.is_some() => (Format::Unsigned, 32),
            DType::I8 => (Format::Signed, 8),
            DType::I16 => (Format::Signed, 16),
            DType::I32 => (Format::Signed, 32),
            DType::I64 => (Format::Signed, 64),
            DType::U8 => (Format::Unsigned, 8),
            DType::U16 => (Format::Unsigned, 16),
            DType::U32 => (Format::Unsigned, 32),
            DType::U64 => (Format::Unsigned, 64),
            DType::F16 => (Format::Half, 16),
            DType::BF16 => (Format::Brain, 16),
            DType::F32 => (Format::Float, 32),
            DType::F64 => (Format::Float, 64),
            DType::F8E4M3 | DType::F8E5M2 => return None,
        };
        // A factor is each rank's own.
        let op = match bitwise.unwrap_or(op) {
            Op::PremulSum(_) => return None,
            op => op,
        };
        Some(Element { format, bits, op })
    }

    /// Bits of a register that holds one.
    pub fn wide(self) -> usize {
        self.bits.max(32)
    }

    fn is_float(self) -> bool {
        !matches!(
            self.format,
            Format::Unsigned | Format::Signed | Format::Truth
        )
    }

    /// The type as which two are combined.
    fn kind(self) -> String {
        let class = match self.format {
            Format::Unsigned | Format::Truth => 'u',
            Format::Signed => 's',
            Format::Float | Format::Half | Format::Brain => 'f',
        };
        format!("{class}{}", self.wide())
    }

    /// How many there are in a vector, and in a register of one.
    pub fn counts(self) -> (usize, usize) {
        (8 * VECTOR_BYTES / self.bits, self.wide() / self.bits)
    }

    /// The element `index` of the vector in `words` into a register `name`.
    pub fn unpack(
        self,
        out: &mut String,
        name: &str,
        words: &str,
        index: usize,
    ) -> std::fmt::Result {
        let (_, packed) = self.counts();
        let (word, begin) = (index / packed, index % packed * self.bits);
        match (packed, self.format) {
            (1, _) => return writeln!(out, "mov.b{} %{name}{index}, %{words}{word};", self.wide()),
            (_, Format::Signed) => write!(out, "bfe.s32")?,
            _ => write!(out, "bfe.u32")?,
        }
        writeln!(
            out,
            " %{name}{index}, %{words}{word}, {begin}, {};",
            self.bits
        )?;
        self.widen(out, name, index)
    }

    fn widen(self, out: &mut String, name: &str, index: usize) -> std::fmt::Result {
        let x = format!("%{name}{index}");
        match self.format {
            Format::Half => {
                writeln!(out, "cvt.u16.u32 %half, {x};\ncvt.f32.f16 {x}, %half;")
            }
            Format::Brain => writeln!(out, "shl.b32 {x}, {x}, 16;"),
            Format::Truth => writeln!(out, "min.u32 {x}, {x}, 1;"),
            _ => Ok(()),
        }
    }

    /// Rounds a 16-bit float to the bits that are stored, and cuts what integers have too many.
    pub fn round(self, out: &mut String, index: usize) -> std::fmt::Result {
        let x = format!("%a{index}");
        match self.format {
            Format::Half => writeln!(out, "cvt.rn.f16.f32 %half, {x};\ncvt.u32.u16 {x}, %half;"),
            Format::Brain => writeln!(
                out,
                "shr.u32 %t, {x}, 16;\n\
                 and.b32 %t, %t, 1;\n\
                 add.u32 %t, %t, 0x7fff;\n\
                 add.u32 %t, %t, {x};\n\
                 or.b32 %u, {x}, 0x400000;\n\
                 setp.nan.f32 %p, {x}, {x};\n\
                 selp.b32 {x}, %u, %t, %p;\n\
                 shr.u32 {x}, {x}, 16;"
            ),
            Format::Signed if self.bits < 32 => {
                writeln!(out, "bfe.s32 {x}, {x}, 0, {};", self.bits)
            }
            Format::Unsigned if self.bits < 32 => {
                writeln!(out, "bfe.u32 {x}, {x}, 0, {};", self.bits)
            }
            _ => Ok(()),
        }
    }

    /// Divides what was rounded, as the host does.
    pub fn average(self, out: &mut String, index: usize) -> std::fmt::Result {
        if self.op != Op::Avg {
            return Ok(());
        }
        let (x, kind) = (format!("%a{index}"), self.kind());
        let narrow = if self.wide() == 32 { "32" } else { "" };
        if !self.is_float() {
            return writeln!(out, "div.{kind} {x}, {x}, %count{narrow};");
        }
        self.widen(out, "a", index)?;
        writeln!(out, "mul.rn.{kind} {x}, {x}, %factor{narrow};")?;
        self.round(out, index)
    }

    pub fn pack(self, out: &mut String, index: usize) -> std::fmt::Result {
        let (_, packed) = self.counts();
        let (word, begin) = (index / packed, index % packed * self.bits);
        match packed {
            1 => writeln!(out, "mov.b{} %w{word}, %a{index};", self.wide()),
            _ => writeln!(
                out,
                "bfi.b32 %w{word}, %a{index}, %w{word}, {begin}, {};",
                self.bits
            ),
        }
    }

    /// `a = join(a, b)` of element `index`.
    pub fn join(self, out: &mut String, index: usize) -> std::fmt::Result {
        let (a, b) = (format!("%a{index}"), format!("%b{index}"));
        let (kind, wide) = (self.kind(), self.wide());
        let name = match (self.op, self.is_float()) {
            (Op::Sum | Op::Avg | Op::PremulSum(_), false) => format!("add.{kind}"),
            (Op::Sum | Op::Avg | Op::PremulSum(_), true) => format!("add.rn.{kind}"),
            (Op::Prod, false) => format!("mul.lo.{kind}"),
            (Op::Prod, true) => format!("mul.rn.{kind}"),
            (Op::Min, false) => format!("min.{kind}"),
            (Op::Max, false) => format!("max.{kind}"),
            (Op::Min, true) => return extremum(out, ["lt", "or"], &kind, wide, &a, &b),
            (Op::Max, true) => return extremum(out, ["gt", "and"], &kind, wide, &a, &b),
            (Op::Band, _) => format!("and.b{wide}"),
            (Op::Bor, _) => format!("or.b{wide}"),
            (Op::Bxor, _) => format!("xor.b{wide}"),
        };
        writeln!(out, "{name} {a}, {a}, {b};")
    }
}

/// Of floats: `a` where the comparison holds, else `b`, which is also taken if it is no number; of
/// equal ones, which differ at most in a zero's sign, the bits of both; and `a` if it is no number.
fn extremum(
    out: &mut String,
    [compare, both]: [&str; 2],
    kind: &str,
    wide: usize,
    a: &str,
    b: &str,
) -> std::fmt::Result {
    writeln!(
        out,
        "setp.{compare}.{kind} %p, {a}, {b};\n\
         selp.b{wide} %t, {a}, {b}, %p;\n\
         {both}.b{wide} %u, {a}, {b};\n\
         setp.eq.{kind} %p, {a}, {b};\n\
         selp.b{wide} %t, %u, %t, %p;\n\
         setp.nan.{kind} %p, {a}, {a};\n\
         selp.b{wide} {a}, {a}, %t, %p;"
    )
}
