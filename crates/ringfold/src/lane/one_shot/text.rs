//! The kernel's text, in PTX: filled in by operation, data type and rank.
//!
//! ```text
//! all threads   input → own row (vectors of 16 bytes, dealt out to blocks and threads)
//! thread 0      own flag of this block := number                        (release, system)
//! thread r < N  until the flag of rank r, of this block, is number      (acquire, system)
//! all threads   rows 0 … N-1 combined in this order → output
//! thread 0      taken := due, where that is asked for                   (release, system)
//! ```
//!
//! Barriers of the block stand between these parts; no block waits for another one of its grid. The
//! own row is read from the input again, which is nearer, and by the thread that then stores the
//! result, so input and output may be the same. What does not fill a vector, and memory that is not
//! aligned to one, is loaded and stored by units of at most an element.
//!
//! A flag that has the number of this call, in its lower half, and another description of it in its
//! upper half is a different call of that rank; that, and a fault, make the result bytes of ones. A
//! kernel that finds a fault when it begins stores nothing that peers see.
//!
//! Arithmetic is that of [`element`](super::element).

#![forbid(unsafe_code)]

use std::fmt::Write;

use super::area::LINE_BYTES;
use super::element::{Element, VECTOR_BYTES};
use crate::lane::ptx;
use crate::types::{DType, Op};

/// The name of the kernel in each text.
pub const NAME: &std::ffi::CStr = c"one_shot";

/// Input and output, their bytes, the number in flags, the word that says whether there is a fault,
/// the word to store at the end (or 0) and what it is then, the number of ranks, and what an
/// average of floats is multiplied by (bits of an `f64`): 64 bits each. A row and a flag of each
/// rank follow.
const PARAMETERS: [&str; 9] = [
    "input", "output", "bytes", "number", "fault", "taken", "due", "count", "factor",
];

/// How many parameters the kernel of `world_size` ranks has.
pub fn parameters(world_size: usize) -> usize {
    PARAMETERS.len() + 2 * world_size
}

/// The text for `op` and `dtype`, of `rank` among `world_size`; nothing if devices do not combine
/// them.
pub fn text(op: Op, dtype: DType, rank: usize, world_size: usize) -> Option<String> {
    op.check(dtype).ok()?;
    let element = Element::new(op, dtype)?;
    let writer = Writer {
        unit_bits: (8 * dtype.size_bytes()).min(element.wide()),
        element,
        rank,
        world_size,
    };
    let mut text = String::new();
    writer.write(&mut text).ok()?;
    Some(text)
}

/// What fills in the text.
#[derive(Clone, Copy, Debug)]
struct Writer {
    element: Element,
    /// What is loaded or stored at once where there is no whole vector.
    unit_bits: usize,
    rank: usize,
    world_size: usize,
}

impl Writer {
    fn write(self, out: &mut String) -> std::fmt::Result {
        self.head(out)?;
        self.publish(out)?;
        self.meet(out)?;
        self.combine(out)?;
        writeln!(
            out,
            "COMBINED:\n\
             bar.sync 0;\n\
             setp.ne.u32 %p, %thread, 0;\n\
             @%p bra END;\n\
             setp.eq.u64 %p, %taken, 0;\n\
             @%p bra END;\n\
             cvta.to.global.u64 %from, %taken;\n\
             st.release.sys.global.u32 [%from], %due32;\n\
             END:\n\
             ret;\n\
             }}"
        )
    }

    /// How many registers hold a vector.
    fn words(self) -> usize {
        8 * VECTOR_BYTES / self.element.wide()
    }

    fn names(self) -> Vec<String> {
        let ranks =
            (0..self.world_size).flat_map(|rank| [format!("row{rank}"), format!("flag{rank}")]);
        let first = PARAMETERS.iter().map(|name| (*name).to_owned());
        first.chain(ranks).collect()
    }

    /// Everything before the first vector.
    fn head(self, out: &mut String) -> std::fmt::Result {
        let names = self.names();
        let (wide, (count, _)) = (self.element.wide(), self.element.counts());
        let words = self.words();
        let rows: Vec<String> = (0..self.world_size)
            .map(|rank| format!("%x{rank}_<{words}>"))
            .collect();
        ptx::entry(out, "one_shot", &names)?;
        writeln!(
            out,
            ".reg .pred %is_end, %is_bad, %p;\n\
             .reg .b64 %first, %at, %offset, %from, %seen, %line, %left;\n\
             .reg .b64 %vectors, %whole, %fast_in, %fast_out, %rest;\n\
             .reg .b32 %count32, %factor32, %word, %bad;\n\
             .reg .b32 %number32, %seen32, %due32;\n\
             .reg .b16 %half;\n\
             .reg .b{wide} %w<{words}>, %a<{count}>, %b<{count}>, %t, %u;\n\
             .reg .b{wide} {};",
            rows.join(", ")
        )?;
        ptx::load(out, &names, |name| {
            let is_place = name.starts_with("row") || name.starts_with("flag");
            is_place || ["input", "output", "fault"].contains(&name)
        })?;
        for (side, fast) in [("input", "fast_in"), ("output", "fast_out")] {
            // Whole vectors, if they are aligned.
            writeln!(
                out,
                "and.b64 %whole, %bytes, -{VECTOR_BYTES};\n\
                 and.b64 %rest, %{side}, {};\n\
                 setp.eq.u64 %p, %rest, 0;\n\
                 selp.b64 %{fast}, %whole, 0, %p;",
                VECTOR_BYTES - 1
            )?;
        }
        writeln!(
            out,
            "cvt.u32.u64 %count32, %count;\n\
             cvt.u32.u64 %number32, %number;\n\
             cvt.u32.u64 %due32, %due;\n\
             cvt.rn.f32.f64 %factor32, %factor;\n\
             add.u64 %vectors, %bytes, {};\n\
             shr.u64 %vectors, %vectors, 4;",
            VECTOR_BYTES - 1
        )?;
        ptx::numbers(out, "first")?;
        writeln!(out, "mul.wide.u32 %line, %block, {LINE_BYTES};")
    }

    /// Copies the input to this rank's row and raises its flag, unless there is a fault.
    fn publish(self, out: &mut String) -> std::fmt::Result {
        let (rank, vector) = (self.rank, self.vector("w"));
        writeln!(
            out,
            "ld.relaxed.sys.global.u32 %word, [%fault];\n\
             setp.ne.u32 %p, %word, 0;\n\
             bar.red.or.pred %is_bad, 0, %p;\n\
             @%is_bad bra COMBINE;\n\
             mov.u64 %at, %first;\n\
             COPY:\n\
             setp.ge.u64 %is_end, %at, %vectors;\n\
             @%is_end bra COPIED;\n\
             shl.b64 %offset, %at, 4;"
        )?;
        self.load(out, "COPY")?;
        writeln!(
            out,
            "add.u64 %from, %row{rank}, %offset;\n\
             st.global.{} [%from], {};\n\
             add.u64 %at, %at, %step;\n\
             bra COPY;\n\
             COPIED:\n\
             bar.sync 0;\n\
             setp.ne.u32 %p, %thread, 0;\n\
             @%p bra PUBLISHED;\n\
             add.u64 %from, %flag{rank}, %line;\n\
             st.release.sys.global.u64 [%from], %number;\n\
             PUBLISHED:",
            vector.0, vector.1
        )
    }

    /// Waits for the flags of all ranks, and agrees in the block whether these are good.
    fn meet(self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "mov.u32 %bad, 0;\n\
             setp.ge.u32 %p, %thread, {};\n\
             @%p bra MET;\n\
             mov.u64 %from, %flag0;",
            self.world_size
        )?;
        for rank in 1..self.world_size {
            writeln!(
                out,
                "setp.eq.u32 %p, %thread, {rank};\n\
                 selp.b64 %from, %flag{rank}, %from, %p;"
            )?;
        }
        // The fault is loaded first: the flag's load holds back what comes behind it.
        writeln!(
            out,
            "add.u64 %from, %from, %line;\n\
             WAIT:\n\
             ld.relaxed.sys.global.u32 %word, [%fault];\n\
             ld.acquire.sys.global.u64 %seen, [%from];\n\
             setp.eq.u64 %p, %seen, %number;\n\
             @%p bra MET;\n\
             cvt.u32.u64 %seen32, %seen;\n\
             setp.eq.u32 %p, %seen32, %number32;\n\
             @%p bra DIFFERS;\n\
             setp.eq.u32 %p, %word, 0;\n\
             @%p bra WAIT;\n\
             DIFFERS:\n\
             mov.u32 %bad, 1;\n\
             MET:\n\
             setp.ne.u32 %p, %bad, 0;\n\
             bar.red.or.pred %is_bad, 0, %p;"
        )
    }

    /// Combines the rows into the output, which is bytes of ones where something is bad.
    fn combine(self, out: &mut String) -> std::fmt::Result {
        let (element, (count, _)) = (self.element, self.element.counts());
        writeln!(
            out,
            "COMBINE:\n\
             mov.u64 %at, %first;\n\
             VECTORS:\n\
             setp.ge.u64 %is_end, %at, %vectors;\n\
             @%is_end bra COMBINED;\n\
             shl.b64 %offset, %at, 4;\n\
             @%is_bad bra BAD;"
        )?;
        // All that is far is under way before anything is used.
        for rank in (0..self.world_size).filter(|rank| *rank != self.rank) {
            let (shape, registers) = self.vector(&format!("x{rank}_"));
            writeln!(
                out,
                "add.u64 %from, %row{rank}, %offset;\n\
                 ld.global.{shape} {registers}, [%from];"
            )?;
        }
        self.load(out, "OWN")?;
        for word in 0..self.words() {
            let (wide, rank) = (element.wide(), self.rank);
            writeln!(out, "mov.b{wide} %x{rank}_{word}, %w{word};")?;
        }
        for index in 0..count {
            element.unpack(out, "a", "x0_", index)?;
            for rank in 1..self.world_size {
                element.unpack(out, "b", &format!("x{rank}_"), index)?;
                element.join(out, index)?;
            }
            element.round(out, index)?;
            element.average(out, index)?;
            element.pack(out, index)?;
        }
        writeln!(out, "bra STORE;\nBAD:")?;
        for word in 0..self.words() {
            writeln!(out, "mov.b{} %w{word}, -1;", element.wide())?;
        }
        writeln!(out, "STORE:")?;
        self.store(out)?;
        writeln!(out, "add.u64 %at, %at, %step;\nbra VECTORS;")
    }

    /// The vector of the input at `%offset` into `%w0, …`; `label` is in the text once.
    fn load(self, out: &mut String, label: &str) -> std::fmt::Result {
        let (wide, unit) = (self.element.wide(), self.unit_bits);
        let (shape, registers) = self.vector("w");
        for word in 0..self.words() {
            writeln!(out, "mov.b{wide} %w{word}, 0;")?;
        }
        writeln!(
            out,
            "add.u64 %from, %input, %offset;\n\
             setp.lt.u64 %p, %offset, %fast_in;\n\
             @%p bra {label}_VECTOR;\n\
             sub.u64 %left, %bytes, %offset;"
        )?;
        for (at, word, begin) in self.units() {
            writeln!(out, "setp.gt.u64 %p, %left, {at};")?;
            match unit == wide {
                true => writeln!(out, "@%p ld.global.b{wide} %w{word}, [%from+{at}];")?,
                false => writeln!(
                    out,
                    "@%p ld.global.u{unit} %word, [%from+{at}];\n\
                     @%p bfi.b32 %w{word}, %word, %w{word}, {begin}, {unit};"
                )?,
            }
        }
        writeln!(
            out,
            "bra {label}_LOADED;\n\
             {label}_VECTOR:\n\
             ld.global.{shape} {registers}, [%from];\n\
             {label}_LOADED:"
        )
    }

    /// `%w0, …` to the vector of the output at `%offset`.
    fn store(self, out: &mut String) -> std::fmt::Result {
        let (wide, unit) = (self.element.wide(), self.unit_bits);
        let (shape, registers) = self.vector("w");
        writeln!(
            out,
            "add.u64 %from, %output, %offset;\n\
             setp.lt.u64 %p, %offset, %fast_out;\n\
             @%p bra STORE_VECTOR;\n\
             sub.u64 %left, %bytes, %offset;"
        )?;
        for (at, word, begin) in self.units() {
            writeln!(out, "setp.gt.u64 %p, %left, {at};")?;
            match unit == wide {
                true => writeln!(out, "@%p st.global.b{wide} [%from+{at}], %w{word};")?,
                false => writeln!(
                    out,
                    "bfe.u32 %word, %w{word}, {begin}, {unit};\n\
                     @%p st.global.u{unit} [%from+{at}], %word;"
                )?,
            }
        }
        writeln!(
            out,
            "bra STORED;\n\
             STORE_VECTOR:\n\
             st.global.{shape} [%from], {registers};\n\
             STORED:"
        )
    }

    /// Of each unit of a vector: its byte, its register, and its first bit there.
    fn units(self) -> impl Iterator<Item = (usize, usize, usize)> {
        let (unit, wide) = (self.unit_bits, self.element.wide());
        (0..8 * VECTOR_BYTES)
            .step_by(unit)
            .map(move |bit| (bit / 8, bit / wide, bit % wide))
    }

    /// The shape of a load or store of a vector, and the registers `%name0, …`.
    fn vector(self, name: &str) -> (String, String) {
        let (words, wide) = (self.words(), self.element.wide());
        let registers: Vec<String> = (0..words).map(|word| format!("%{name}{word}")).collect();
        let registers = format!("{{{}}}", registers.join(", "));
        (format!("v{words}.b{wide}"), registers)
    }
}
