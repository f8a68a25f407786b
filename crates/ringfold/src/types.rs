//! The vocabulary of a call: data types, operations, collectives and algorithms.
//!
//! Names are the field's own (NCCL's types, torch's spelling of collectives). Each enum is one byte
//! on the wire; the number never changes once released.

use std::fmt;
use std::str::FromStr;

use crate::spelling;

/// An unknown name or combination of this vocabulary; the text says which, and what exists.
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
            /// All values, in the order of their declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Returns the name used in commands, tables, logs and Python.
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

/// Returns the error of an unknown name.
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
            /// Returns the value with this wire number, if there is one.
            pub const fn from_wire(number: u8) -> Option<$name> {
                match number { $($number => Some($name::$variant),)* _ => None }
            }
        }
    };
}

named_byte! {
    /// The type of a buffer's elements.
    DType, "data type" {
        /// Signed 8-bit integer.
        I8 = 0, "int8";
        /// Unsigned 8-bit integer.
        U8 = 1, "uint8";
        /// Signed 16-bit integer.
        I16 = 2, "int16";
        /// Unsigned 16-bit integer.
        U16 = 3, "uint16";
        /// Signed 32-bit integer.
        I32 = 4, "int32";
        /// Unsigned 32-bit integer.
        U32 = 5, "uint32";
        /// Signed 64-bit integer.
        I64 = 6, "int64";
        /// Unsigned 64-bit integer.
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
        /// 8-bit float with 4 exponent bits and no infinity, torch's `float8_e4m3fn`; sums
        /// accumulate in `F32`, and a result beyond 464 is NaN.
        F8E4M3 = 13, "float8_e4m3";
        /// 8-bit float with 5 exponent bits, torch's `float8_e5m2`; sums accumulate in `F32`, and a
        /// result from 61440 on is infinite.
        F8E5M2 = 14, "float8_e5m2";
    }
}

impl DType {
    /// Returns the size of one element in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 | DType::Bool | DType::F8E4M3 | DType::F8E5M2 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// Whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DType::F8E4M3 | DType::F8E5M2 | DType::F16 | DType::BF16 | DType::F32 | DType::F64
        )
    }
}

/// An operation that combines elements of several ranks.
///
/// NaN: `Min` and `Max` return NaN if any operand is NaN; which NaN is not promised. `Max` of the
/// two zeros is `+0`. `Bool`: `Sum`, `Max` and `Bor` are "or", `Prod`, `Min` and `Band` are "and",
/// `Bxor` is "exclusive or"; every byte but 0 is true, and results are 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Addition; integers wrap.
    Sum,
    /// Multiplication; integers wrap.
    Prod,
    /// The smallest element.
    Min,
    /// The largest element.
    Max,
    /// The sum divided by the world size: one multiplication by `1/n` for floats, truncating
    /// division for integers. The sum must fit the type: the average of 60000 and 60000 as
    /// `float16` is infinite. `PremulSum` scales the inputs first.
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

    /// Returns the wire number. `PremulSum`'s factor is local to its rank, and is not sent.
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

    /// Returns the name of a wire number, for messages about a peer's call.
    pub const fn wire_name(number: u8) -> &'static str {
        if (number as usize) < Op::NAMES.len() {
            Op::NAMES[number as usize]
        } else {
            "?"
        }
    }

    /// Returns the name used in commands, tables and Python.
    pub const fn name(self) -> &'static str {
        Op::wire_name(self.wire())
    }

    /// Returns the operation that combines two partial results: `Avg` and `PremulSum` are sums
    /// between their first and last step.
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
    /// An operation of all ranks of a communicator, or of two ranks with each other.
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
        /// One rank sends its buffer to another.
        Send = 9, "send";
        /// One rank receives the buffer of another's `Send`.
        Recv = 10, "recv";
        /// Every rank sends to the next and receives from the previous one.
        SendRecv = 11, "sendrecv";
    }
}

impl Collective {
    /// Whether the collective combines elements, and needs an operation.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter
        )
    }

    /// Whether one rank is the root.
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
    /// A rank's access to the data of its peers.
    #[non_exhaustive]
    Access, "access" {
        /// Messages between pairs of ranks: any transport.
        Messages = 0, "messages";
        /// Published memory, into which each rank copies data for the others: all on one host.
        Staged = 1, "staged";
        /// The registered buffers of all ranks, without a copy: all ranks on one host.
        Registered = 2, "registered";
        /// Slots that devices of all ranks fill and read: all ranks on one host.
        Slots = 3, "slots";
    }
}

impl Access {
    /// Whether ranks of one host read each other's memory.
    pub const fn is_shared(self) -> bool {
        !matches!(self, Access::Messages)
    }

    /// Returns the medium of the data, as named by `ringfold schedule` and the log.
    pub const fn medium(self) -> &'static str {
        match self {
            Access::Messages => "messages",
            _ => "shared",
        }
    }
}

named_byte! {
    /// The assignment of parts of the work to ranks.
    #[non_exhaustive]
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
            #[non_exhaustive]
            Algorithm, "algorithm" { $($(#[$meta])* $plain = $number, $text;)* }
        }

        named_byte! {
            /// The name of a combination of algorithm, access and assignment, as users specify it.
            /// The method and the protocol are the key of the tuner's table. Most methods are named
            /// after their algorithm; three of `direct` have names of their own.
            #[non_exhaustive]
            Method, "algorithm" {
                $($(#[$meta])* $plain = $number, $text;)*
                $($(#[$own_meta])* $own = $own_number, $own_text;)*
            }
        }

        impl Method {
            /// Returns the method of this combination.
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

            /// Returns the method's algorithm.
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
        /// Master and workers: all data goes through the root, in place.
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
        /// Every rank sends all its data to every rank, and each reduces alone: one step.
        OneShot = 6, "one_shot";
        /// Within hosts first, then between them.
        Hierarchical = 7, "hierarchical";
        /// One rank is known to arrive late: the others reduce before it arrives.
        Stragglar = 8, "stragglar";
        /// One rank of each host combines and exchanges the host's data.
        Leader = 12, "leader";
        /// On each host, as many ranks as the smallest host has combine a part each, and exchange
        /// it in pairs at doubling distance.
        MultiLeader = 13, "multi_leader";
    }
    combinations {
        /// `direct` in registered buffers: each rank reads its chunk from all buffers and stores
        /// the result into all.
        Push = 9, "push": Direct, Access::Registered, Owner;
        /// `direct` in registered buffers with dynamic assignment.
        Serve = 10, "serve": Direct, Access::Registered, Dynamic;
        /// `direct`, staged, with dynamic assignment.
        Claim = 11, "claim": Direct, _, Dynamic;
    }
}

impl Method {
    /// Whether the method works in all ranks' registered buffers. Only such methods use
    /// [`Protocol::ZeroCopy`]; they fall back to another method if a buffer is not registered.
    pub const fn is_registered(self) -> bool {
        matches!(self, Method::Push | Method::Serve)
    }

    /// Returns the assignment of the method's work.
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
    /// The protocol of a call's data, in NCCL's terms: with the method, the key of the tuner's
    /// table.
    #[non_exhaustive]
    Protocol, "protocol" {
        /// The payload is in the line that signals its arrival: least latency, small calls only.
        Ll = 0, "ll";
        /// Staged and pipelined: through published memory, rings of shared memory or sockets.
        Simple = 1, "simple";
        /// Not staged: peers read and write the registered buffers themselves.
        ZeroCopy = 2, "zero_copy";
    }
}

impl Protocol {
    /// Returns the protocol of calls with this access. With `is_inline`, the payload is in the
    /// synchronising line.
    pub const fn new(access: Access, is_inline: bool) -> Protocol {
        match (access, is_inline) {
            (Access::Registered, _) => Protocol::ZeroCopy,
            (_, true) => Protocol::Ll,
            (_, false) => Protocol::Simple,
        }
    }
}
