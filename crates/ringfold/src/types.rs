//! The vocabulary of a call: data types, operations, collectives and algorithms.
//!
//! Names are the field's own (NCCL's types, torch's spelling of collectives). Each enum is one byte
//! on the wire; the number never changes once released.

use std::fmt;
use std::str::FromStr;

use crate::spelling;

/// A name or a combination of this vocabulary that does not exist; the text says which, and what
/// does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(pub(crate) String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

/// Builds an enum whose variants have a name, with the conversions both ways.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident, $kind:literal {
        $($(#[$vmeta:meta])* $variant:ident $(= $number:literal)?, $text:literal;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant $(= $number)?,)* }

        impl $name {
            /// Every value, in the order above.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The name used in commands, tables, logs and Python.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::types::Unknown;
            fn from_str(text: &str) -> Result<$name, $crate::types::Unknown> {
                $name::ALL.iter().copied().find(|v| v.name() == text).ok_or_else(|| {
                    let names: Vec<_> = $name::ALL.iter().map(|v| v.name()).collect();
                    $crate::types::unknown($kind, text, &names)
                })
            }
        }
    };
}
pub(crate) use named;

/// The error of a name that means nothing.
pub(crate) fn unknown(kind: &str, text: &str, names: &[&str]) -> Unknown {
    let nearest = spelling::nearest(text, names.iter().copied());
    let all = names.join(", ");
    Unknown(format!(
        "unknown {kind} `{text}`; did you mean {nearest}? One of {all}"
    ))
}

/// Builds an enum of one byte as [`named`] does, whose variants also have a wire number.
macro_rules! named_byte {
    ($(#[$meta:meta])* $name:ident, $kind:literal {
        $($(#[$vmeta:meta])* $variant:ident = $number:literal, $text:literal;)*
    }) => {
        named! {
            $(#[$meta])*
            #[repr(u8)]
            $name, $kind { $($(#[$vmeta])* $variant = $number, $text;)* }
        }

        impl $name {
            /// The value with this wire number, if there is one.
            pub const fn from_wire(number: u8) -> Option<$name> {
                match number { $($number => Some($name::$variant),)* _ => None }
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
/// NaN: `Min` and `Max` give NaN if any operand is NaN; which NaN is not promised. `Max` of the two
/// zeros is `+0`. `Bool`: `Sum`, `Max` and `Bor` are "or", `Prod`, `Min` and `Band` are "and",
/// `Bxor` is "exclusive or"; every byte but 0 is true, and results are 0 or 1.
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
    /// Every operation's name, by wire number.
    pub const NAMES: [&'static str; 9] = [
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
        if (number as usize) < Op::NAMES.len() {
            Op::NAMES[number as usize]
        } else {
            "?"
        }
    }

    /// The name used in commands, tables and Python.
    pub const fn name(self) -> &'static str {
        Op::wire_name(self.wire())
    }

    /// The operation that combines two partial results: `Avg` and `PremulSum` are sums between
    /// their first and last step.
    pub const fn combining(self) -> Op {
        match self {
            Op::Avg | Op::PremulSum(_) => Op::Sum,
            other => other,
        }
    }

    /// Checks that this operation exists for `dtype`.
    pub fn check(self, dtype: DType) -> Result<(), Unknown> {
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
            Err(Unknown(format!(
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
    type Err = Unknown;
    fn from_str(text: &str) -> Result<Op, Unknown> {
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
            _ => return Err(unknown("operation", text, &Op::NAMES)),
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
        /// No rank leaves before all have entered.
        Barrier = 8, "barrier";
        /// One rank's buffer to one other.
        Send = 9, "send";
        /// The other end of `Send`.
        Recv = 10, "recv";
        /// Every rank sends to the next and receives from the previous one.
        SendRecv = 11, "sendrecv";
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

    /// Whether the call is one end of a message between two ranks.
    pub const fn is_message(self) -> bool {
        matches!(self, Collective::Send | Collective::Recv)
    }
}

named_byte! {
    /// How a rank reaches the data of its peers.
    Access, "access" {
        /// Messages between pairs: any transport.
        Messages = 0, "messages";
        /// Through published memory, into which each rank copies what others read: all ranks on one
        /// host.
        Staged = 1, "staged";
        /// In the registered buffers of all ranks, without a copy: all ranks on one host.
        Registered = 2, "registered";
    }
}

impl Access {
    /// Whether ranks of one host read each other's memory.
    pub const fn is_shared(self) -> bool {
        !matches!(self, Access::Messages)
    }

    /// What carries the data, as `ringfold schedule` and the log name it.
    pub const fn medium(self) -> &'static str {
        match self {
            Access::Messages => "messages",
            Access::Staged | Access::Registered => "shared",
        }
    }
}

named_byte! {
    /// Which rank does which part of the work.
    Assignment, "assignment" {
        /// The rank that owns the part.
        Owner = 0, "owner";
        /// Any rank that has a core, block by block: for ranks that outnumber their cores.
        Dynamic = 1, "dynamic";
    }
}

/// Builds the algorithms and the methods from one table: each algorithm is also a method, and some
/// combinations with an access and an assignment are methods of their own.
macro_rules! methods {
    (
        algorithms { $($(#[$meta:meta])* $plain:ident = $number:literal, $text:literal;)* }
        combinations { $(
            $(#[$own_meta:meta])* $own:ident = $own_number:literal, $own_text:literal:
                $algorithm:ident, $access:pat, $assignment:ident;
        )* }
    ) => {
        named_byte! {
            /// The order in which ranks exchange and combine; see docs/explanation/algorithms.md.
            Algorithm, "algorithm" { $($(#[$meta])* $plain = $number, $text;)* }
        }

        named_byte! {
            /// The name of a combination of algorithm, access and assignment: what users ask for,
            /// and with the protocol the key of the tuner's table. Most are named after their
            /// algorithm; three of `direct` have names of their own.
            Method, "algorithm" {
                $($(#[$meta])* $plain = $number, $text;)*
                $($(#[$own_meta])* $own = $own_number, $own_text;)*
            }
        }

        impl Method {
            /// The name of this combination.
            pub const fn new(
                algorithm: Algorithm,
                access: Access,
                assignment: Assignment,
            ) -> Method {
                match (algorithm, access, assignment) {
                    $((Algorithm::$algorithm, $access, Assignment::$assignment) => Method::$own,)*
                    $((Algorithm::$plain, ..) => Method::$plain,)*
                }
            }

            /// Its algorithm.
            pub const fn algorithm(self) -> Algorithm {
                match self {
                    $(Method::$plain => Algorithm::$plain,)*
                    $(Method::$own => Algorithm::$algorithm,)*
                }
            }
        }
    };
}

methods! {
    algorithms {
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
        /// All to all: each rank combines its own chunk for all others.
        Direct = 5, "direct";
        /// Every rank gives everything to every rank, and each reduces for itself: one step.
        OneShot = 6, "one_shot";
        /// Within hosts first, then between them; on one host, within domains that share a cache or
        /// a socket first, then between them.
        Hierarchical = 7, "hierarchical";
        /// One rank is known to come late: the others reduce before it comes.
        Stragglar = 8, "stragglar";
        /// One rank of each host combines and exchanges for it.
        Leader = 12, "leader";
        /// As many ranks of each host as the smallest has combine a part each, and exchange it in
        /// pairs at doubling distance.
        MultiLeader = 13, "multi_leader";
    }
    combinations {
        /// `direct` in registered buffers: each rank reads its chunk from all of them and stores
        /// the result into all.
        Push = 9, "push": Direct, Access::Registered, Owner;
        /// `direct` in registered buffers with dynamic assignment.
        Serve = 10, "serve": Direct, Access::Registered, Dynamic;
        /// `direct`, staged, with dynamic assignment.
        Claim = 11, "claim": Direct, _, Dynamic;
    }
}

impl Method {
    /// Whether it works in all ranks' registered buffers: it goes by [`Protocol::ZeroCopy`], as no
    /// other does, and falls back to another where they are not all registered.
    pub const fn is_registered(self) -> bool {
        matches!(self, Method::Push | Method::Serve)
    }

    /// Who does which part of its work.
    pub const fn assignment(self) -> Assignment {
        match self {
            Method::Claim | Method::Serve => Assignment::Dynamic,
            _ => Assignment::Owner,
        }
    }
}

impl From<Algorithm> for Method {
    fn from(algorithm: Algorithm) -> Method {
        Method::new(algorithm, Access::Messages, Assignment::Owner)
    }
}

named_byte! {
    /// How the bytes of a call travel, in NCCL's words: with the method the key of the tuner's
    /// table.
    Protocol, "protocol" {
        /// The payload stands in the line that says it has come: least latency, small calls only.
        Ll = 0, "ll";
        /// Staged and pipelined: through published memory, rings of shared memory or sockets.
        Simple = 1, "simple";
        /// Not staged: peers read and write the registered buffers themselves.
        ZeroCopy = 2, "zero_copy";
    }
}

impl Protocol {
    /// The protocol of calls with this access, and with the payload in the synchronising line or
    /// not.
    pub const fn new(access: Access, is_inline: bool) -> Protocol {
        match (access, is_inline) {
            (Access::Registered, _) => Protocol::ZeroCopy,
            (_, true) => Protocol::Ll,
            (_, false) => Protocol::Simple,
        }
    }
}
