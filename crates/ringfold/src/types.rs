//! The vocabulary of a call: data types, operations, collectives and algorithms.
//!
//! Names are the field's own (NCCL's types, torch's spelling of collectives). Each enum is one byte on the wire; the
//! number never changes once released.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Builds a one-byte enum whose variants have a wire number and a name, with the conversions both ways.
macro_rules! named_byte {
    ($(#[$meta:meta])* $name:ident, $kind:literal { $($(#[$vmeta:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$vmeta])* $variant = $number,)* }

        impl $name {
            /// Every value, in wire order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name used in commands, tables, logs and Python.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The value with this wire number, if there is one.
            pub const fn from_wire(number: u8) -> Option<$name> {
                match number { $($number => Some($name::$variant),)* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.pad(self.name()) }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<$name, Error> {
                $name::ALL.iter().copied().find(|v| v.name() == text).ok_or_else(|| {
                    let names: Vec<_> = $name::ALL.iter().map(|v| v.name()).collect();
                    Error::InvalidArgument(format!(concat!("unknown ", $kind, " `{}`; one of {}"), text, names.join(", ")))
                })
            }
        }
    };
}

named_byte! {
    /// The type of a buffer's elements.
    DType, "data type" {
        /// Signed, 8 bits.
        I8 = 0, "int8";
        /// Unsigned, 8 bits.
        U8 = 1, "uint8";
        /// Signed, 16 bits.
        I16 = 2, "int16";
        /// Unsigned, 16 bits.
        U16 = 3, "uint16";
        /// Signed, 32 bits.
        I32 = 4, "int32";
        /// Unsigned, 32 bits.
        U32 = 5, "uint32";
        /// Signed, 64 bits.
        I64 = 6, "int64";
        /// Unsigned, 64 bits.
        U64 = 7, "uint64";
        /// IEEE half precision; sums accumulate in `F32`.
        F16 = 8, "float16";
        /// bfloat16; sums accumulate in `F32`.
        BF16 = 9, "bfloat16";
        /// IEEE single precision.
        F32 = 10, "float32";
        /// IEEE double precision.
        F64 = 11, "float64";
        /// One byte, 0 or 1.
        Bool = 12, "bool";
        /// 8-bit float, 4 exponent bits; moved, never added.
        F8E4M3 = 13, "float8_e4m3";
        /// 8-bit float, 5 exponent bits; moved, never added.
        F8E5M2 = 14, "float8_e5m2";
    }
}

impl DType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// Whether this is a floating-point type with arithmetic (fp8 is not).
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }
}

/// How elements of several ranks become one.
///
/// NaN: `Min` and `Max` give NaN if any operand is NaN; which NaN is not promised. `Max` of the two zeros is `+0`.
/// `Bool`: `Sum`, `Max` and `Bor` are "or", `Prod`, `Min` and `Band` are "and", `Bxor` is "exclusive or".
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Addition; integers wrap.
    Sum,
    /// Multiplication; integers wrap.
    Prod,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The sum divided by the world size: one multiplication by `1/n` for floats, truncating
    /// division for integers. The sum must fit the type: of 60000 and 60000 as `float16` the
    /// average is infinite. `PremulSum` divides first.
    Avg,
    /// The sum of each rank's input times that rank's own factor (floats only).
    PremulSum(f64),
    /// Bitwise and (integers and `Bool`).
    Band,
    /// Bitwise or (integers and `Bool`).
    Bor,
    /// Bitwise exclusive or (integers and `Bool`).
    Bxor,
}

impl Op {
    /// The wire number; `PremulSum`'s factor is local to its rank and does not travel.
    pub const fn wire(self) -> u8 {
        match self {
            Op::Sum => 0,
            Op::Prod => 1,
            Op::Min => 2,
            Op::Max => 3,
            Op::Avg => 4,
            Op::PremulSum(_) => 5,
            Op::Band => 6,
            Op::Bor => 7,
            Op::Bxor => 8,
        }
    }

    /// The name of a wire number, for messages about a peer's call.
    pub const fn wire_name(number: u8) -> &'static str {
        const NAMES: [&str; 9] = [
            "sum",
            "prod",
            "min",
            "max",
            "avg",
            "premul_sum",
            "band",
            "bor",
            "bxor",
        ];
        if (number as usize) < NAMES.len() {
            NAMES[number as usize]
        } else {
            "?"
        }
    }

    /// The name used in commands, tables and Python.
    pub const fn name(self) -> &'static str {
        Op::wire_name(self.wire())
    }

    /// The operation that combines two partial results: `Avg` and `PremulSum` are sums between their first and last step.
    pub const fn combining(self) -> Op {
        match self {
            Op::Avg | Op::PremulSum(_) => Op::Sum,
            other => other,
        }
    }

    /// Checks that this operation exists for `dtype`.
    pub fn check(self, dtype: DType) -> Result<(), Error> {
        let bits = matches!(self, Op::Band | Op::Bor | Op::Bxor);
        let ok = match dtype {
            DType::F8E4M3 | DType::F8E5M2 => false,
            DType::Bool => !matches!(self, Op::Avg | Op::PremulSum(_)),
            d if d.is_float() => !bits,
            _ => !matches!(self, Op::PremulSum(_)),
        };
        if ok {
            Ok(())
        } else {
            Err(Error::InvalidArgument(format!(
                "operation `{}` does not exist for {dtype}",
                self.name()
            )))
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Op {
    type Err = Error;
    fn from_str(text: &str) -> Result<Op, Error> {
        Ok(match text {
            "sum" => Op::Sum,
            "prod" => Op::Prod,
            "min" => Op::Min,
            "max" => Op::Max,
            "avg" | "mean" => Op::Avg,
            "premul_sum" | "mulsum" => Op::PremulSum(1.0),
            "band" => Op::Band,
            "bor" => Op::Bor,
            "bxor" => Op::Bxor,
            _ => {
                return Err(Error::InvalidArgument(format!(
                    "unknown operation `{text}`; one of sum, prod, min, max, avg, premul_sum, band, bor, bxor"
                )));
            }
        })
    }
}

named_byte! {
    /// What the ranks of a communicator do together, or two of them with each other.
    Collective, "collective" {
        /// Every rank gets the reduction of all inputs.
        AllReduce = 0, "all_reduce";
        /// Every rank gets the root's buffer.
        Broadcast = 1, "broadcast";
        /// The root gets the reduction of all inputs.
        Reduce = 2, "reduce";
        /// Every rank gets all inputs, in rank order.
        AllGather = 3, "all_gather";
        /// Rank `i` gets block `i` of the reduction of all inputs.
        ReduceScatter = 4, "reduce_scatter";
        /// The root gets all inputs, in rank order.
        Gather = 5, "gather";
        /// Rank `i` gets block `i` of the root's input.
        Scatter = 6, "scatter";
        /// Block `j` of rank `i`'s input becomes block `i` of rank `j`'s output.
        AllToAll = 7, "all_to_all";
        /// Nobody leaves before everybody has entered.
        Barrier = 8, "barrier";
        /// One rank's buffer to one other.
        Send = 9, "send";
        /// The other end of `Send`.
        Recv = 10, "recv";
        /// Every rank sends to the next and receives from the previous one.
        SendRecv = 11, "sendrecv";
    }
}

impl Algorithm {
    /// Whether it works in all ranks' registered buffers: it goes by [`Protocol::ZeroCopy`], as no
    /// other does, and gives way to another where they are not all registered.
    pub const fn works_in_registered(self) -> bool {
        matches!(self, Algorithm::Push | Algorithm::Serve)
    }
}

impl Collective {
    /// Whether elements are combined, so that an operation matters.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter
        )
    }

    /// Whether one rank is distinguished.
    pub const fn has_root(self) -> bool {
        matches!(
            self,
            Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
        )
    }
}

named_byte! {
    /// How a collective is carried out; see docs/algorithms.md.
    Algorithm, "algorithm" {
        /// Master and workers: everything through the root, in place.
        Flat = 0, "flat";
        /// Neighbours pass chunks around a ring.
        Ring = 1, "ring";
        /// A binomial tree towards and from the root.
        Tree = 2, "tree";
        /// Pairs at doubling distance exchange everything.
        RecursiveDoubling = 3, "recursive_doubling";
        /// Recursive halving, then recursive doubling.
        Rabenseifner = 4, "rabenseifner";
        /// All to all: each rank serves its own chunk.
        Direct = 5, "direct";
        /// Every rank gives everything to every rank, and each reduces for itself: one step.
        OneShot = 6, "one_shot";
        /// Every rank reads its chunk from all ranks' registered buffers and stores the result into all of them.
        Push = 7, "push";
        /// Within domains that share a cache or a socket first, then between them.
        Hierarchical = 8, "hierarchical";
        /// Whoever runs combines what all have published: for ranks that outnumber their cores.
        Claim = 9, "claim";
        /// Whoever runs does a block of what `push` does: for ranks that outnumber their cores.
        Serve = 10, "serve";
        /// One rank is known to come late: the others reduce before it comes.
        Stragglar = 11, "stragglar";
    }
}

named_byte! {
    /// How the bytes of an algorithm travel; with the algorithm the key of the tuner's table.
    Protocol, "protocol" {
        /// The payload stands in the line, or the piece, that says it has come: least latency, small messages only.
        Ll = 0, "ll";
        /// Staged and pipelined: through published memory, rings of shared memory or sockets.
        Simple = 1, "simple";
        /// Not staged: peers read and write the registered buffers themselves.
        ZeroCopy = 2, "zero_copy";
    }
}
