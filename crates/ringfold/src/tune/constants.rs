//! What the cost model knows of a machine and its network: named, bounded numbers, and corrections where formulas do not
//! reach.
//!
//! A [`Constants`] is derived from a [`Machine`] by a pure function, from defaults that were measured once, or read from what
//! `ringfold tune calibrate` has measured here. Rank 0's hold for all ranks of a communicator, so that they price alike.
//! [`model`](super::model) reads them; nobody else holds a time of his own.
//!
//! In text they are `name=value,name=value`, with corrections behind them as `all_reduce.ring.simple@20=1.25`: at 2²⁰ bytes that way
//! takes 1.25 times what the formula says. That is what travels between ranks, what a calibration's file holds and what the log
//! says. Text from outside is a claim: every name is known, every value finite and within its bounds, or it is refused.

#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use crate::topology::Machine;
use crate::types::{Algorithm, Collective, Protocol};

/// The longest text that is looked at.
pub const TEXT_BYTES_MAX: usize = 48 << 10;

/// The most points of all corrections together.
const POINTS_MAX: usize = 1024;

/// A correction's factor lies between one over this and this.
const FACTOR_MAX: f64 = 100.0;

/// The largest size that has a correction of its own, as a power of two.
const LOG2_BYTES_MAX: u8 = 40;

/// The most microseconds that one event takes.
const EVENT_US_MAX: f64 = 1e6;

/// The most microseconds that a byte takes.
const BYTE_US_MAX: f64 = 10.0;

/// Makes the struct and the list of its fields from one table: a new constant is one entry here.
macro_rules! constants {
    ($($(#[doc = $about:literal])+ $name:ident = $default:expr, $least:expr, $most:expr;)+) => {
        /// The constants of a communicator's cost model.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Constants {
            $($(#[doc = $about])+ pub $name: f64,)+
            /// Where formulas do not reach.
            pub corrections: Corrections,
        }

        /// Every constant, in the order of the struct.
        pub const FIELDS: &[Field] = &[$(Field {
            name: stringify!($name),
            about: concat!($($about),+).trim_ascii(),
            least: $least,
            most: $most,
            read: |constants| constants.$name,
            write: |constants, value| constants.$name = value,
        },)+];

        impl Default for Constants {
            /// A machine with a core for every rank and 1 MiB of cache each, and a network of 20 Gbit/s.
            fn default() -> Constants {
                Constants {
                    $($name: $default,)+
                    corrections: Corrections::default(),
                }
            }
        }
    };
}

constants! {
    /// Ranks of one machine for each of its cores, where that is more than one.
    load = 1.0, 1.0, 1e6;
    /// What a rank has of the cache that its copies go through.
    cache_bytes = 4.0 * MIB, 0.0, 1e15;
    /// What a call costs that goes the shortest way.
    call_us = 0.05, 0.0, EVENT_US_MAX;
    /// What a call costs more that goes by a plan.
    plan_us = 0.6, 0.0, EVENT_US_MAX;
    /// From a publication in shared memory until a peer has seen it.
    hop_us = 0.2, 0.0, EVENT_US_MAX;
    /// What a hop costs less whose payload stands in the line that announces it.
    inline_us = 0.05, 0.0, EVENT_US_MAX;
    /// What each rank of another domain adds to a hop of which all ranks are part.
    domain_us = 0.1, 0.0, EVENT_US_MAX;
    /// What a rank waits, where several share a core, until all of them had one turn; for each of them.
    turn_us = 2.5, 0.0, EVENT_US_MAX;
    /// What each slice of published memory costs.
    slice_us = 0.3, 0.0, EVENT_US_MAX;
    /// What a byte that a peer has just written costs more than others.
    line_us_per_byte = 3e-5, 0.0, BYTE_US_MAX;
    /// Copying a byte within the caches.
    copy_us_per_byte = 1.5e-5, 0.0, BYTE_US_MAX;
    /// Combining a byte of two operands within the caches.
    reduce_us_per_byte = 1.5e-5, 0.0, BYTE_US_MAX;
    /// The host's memory port: what each copied or combined byte beyond the caches takes of it, all ranks together.
    memory_us_per_byte = 2.5e-5, 0.0, BYTE_US_MAX;
    /// What a rank spends on claiming blocks.
    claim_us = 3.6, 0.0, EVENT_US_MAX;
    /// What a rank spends on finding out where others' registered buffers lie.
    expose_us = 0.5, 0.0, EVENT_US_MAX;
    /// From the sending of an empty message through a ring of shared memory until it is received.
    ring_hop_us = 0.4, 0.0, EVENT_US_MAX;
    /// What a rank spends on each further message through a ring.
    ring_message_us = 0.15, 0.0, EVENT_US_MAX;
    /// What a message through a ring costs more where ranks share cores.
    ring_turn_us = 0.66, 0.0, EVENT_US_MAX;
    /// A byte through a ring, in and out.
    ring_us_per_byte = 1.15e-4, 0.0, BYTE_US_MAX;
    /// From the sending of an empty message through a socket until it is received: α.
    socket_hop_us = 25.0, 0.0, EVENT_US_MAX;
    /// What a rank spends on each further message through a socket: o.
    socket_message_us = 3.0, 0.0, EVENT_US_MAX;
    /// What a short message through a socket costs less that is taken in together with what announces it.
    socket_inline_us = 0.7, 0.0, EVENT_US_MAX;
    /// What a message through a socket costs more where ranks share cores.
    socket_turn_us = 8.0, 0.0, EVENT_US_MAX;
    /// A byte through a link: β.
    socket_us_per_byte = 4e-4, 0.0, BYTE_US_MAX;
    /// What the cores at both ends spend on a byte through a socket.
    socket_work_us_per_byte = 7e-4, 0.0, BYTE_US_MAX;
    /// By how much a link's time grows with each further sender that crowds a receiver.
    incast = 0.08, 0.0, 1.0;
}

const MIB: f64 = (1 << 20) as f64;

/// One constant of the table, by name.
#[derive(Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub about: &'static str,
    least: f64,
    most: f64,
    read: fn(&Constants) -> f64,
    write: fn(&mut Constants, f64),
}

impl Constants {
    /// The constants for `ranks` ranks of one machine, by its cores and the sizes of its caches; times are the default ones.
    pub fn derive(machine: &Machine, ranks: usize) -> Constants {
        Constants::default().on(machine, ranks)
    }

    /// These times for `ranks` ranks of `machine`: how many share a core and what each has of the caches.
    pub fn on(self, machine: &Machine, ranks: usize) -> Constants {
        let share = |cache| machine.share_bytes(cache, ranks);
        Constants {
            load: (ranks as f64 / machine.cores.max(1) as f64).max(1.0),
            cache_bytes: share(machine.l2).max(share(machine.last)) as f64,
            ..self
        }
    }

    /// Whether ranks outnumber the cores of their machine.
    pub fn is_crowded(&self) -> bool {
        self.load > 1.0
    }

    /// The constants that another rank sent, or a file holds; `None` unless they are whole and within their bounds.
    pub fn decode(bytes: &[u8]) -> Option<Constants> {
        let text = std::str::from_utf8(bytes).ok()?;
        let overrides: Overrides = text.parse().ok()?;
        // Every value below is replaced.
        let is_whole = FIELDS.iter().all(|field| overrides.names(field.name));
        is_whole.then(|| Constants::default().with(&overrides))
    }

    /// These constants with some replaced.
    pub fn with(mut self, overrides: &Overrides) -> Constants {
        for (field, value) in &overrides.fields {
            (field.write)(&mut self, *value);
        }
        for (way, log2_bytes, factor) in &overrides.points {
            self.corrections.set(*way, *log2_bytes, *factor);
        }
        self
    }
}

/// The form that [`Constants::decode`] reads.
impl fmt::Display for Constants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, field) in FIELDS.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}={}", field.name, field.value(self))?;
        }
        for (way, log2_bytes, factor) in self.corrections.points() {
            write!(f, ",{way}@{log2_bytes}={factor}")?;
        }
        Ok(())
    }
}

/// What a correction is about: a collective's algorithm by a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    /// The collective.
    pub collective: Collective,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Way {
            collective,
            algorithm,
            protocol,
        } = self;
        write!(f, "{collective}.{algorithm}.{protocol}")
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        let mut parts = text.split('.');
        let mut next = || parts.next().unwrap_or_default();
        let way = (next(), next(), next());
        if parts.next().is_some() {
            return Err(format!("`{text}` is not `collective.algorithm.protocol`"));
        }
        let say = |error: crate::error::Error| error.to_string();
        Ok(Way {
            collective: way.0.parse().map_err(say)?,
            algorithm: way.1.parse().map_err(say)?,
            protocol: way.2.parse().map_err(say)?,
        })
    }
}

/// By what factor ways differ from their formulas, at powers of two of the size. In between it is interpolated, beyond the
/// points it is that of the next one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Corrections(Vec<(Way, Vec<(u8, f64)>)>);

impl Corrections {
    /// The factor of a way at a size; 1 where nothing is known.
    pub fn factor(&self, way: Way, bytes: u64) -> f64 {
        let Ok(index) = self.0.binary_search_by(|(known, _)| known.cmp(&way)) else {
            return 1.0;
        };
        let points = &self.0[index].1;
        let at = (bytes.max(1) as f64).log2();
        let after = points.partition_point(|(log2_bytes, _)| f64::from(*log2_bytes) <= at);
        match (
            after.checked_sub(1).map(|before| points[before]),
            points.get(after),
        ) {
            (Some((low, from)), Some((high, to))) => {
                let part = (at - f64::from(low)) / f64::from(high - low);
                from + (to - from) * part
            }
            (Some((_, factor)), None) | (None, Some(&(_, factor))) => factor,
            (None, None) => 1.0,
        }
    }

    /// Whether nothing is known of a way.
    pub fn is_empty_for(&self, way: Way) -> bool {
        self.0.iter().all(|(known, _)| *known != way)
    }

    /// Sets the factor of a way at `2^log2_bytes` bytes; one that is beyond bounds to the bound.
    pub fn set(&mut self, way: Way, log2_bytes: u8, factor: f64) {
        let factor = factor.clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        let index = match self.0.binary_search_by(|(known, _)| known.cmp(&way)) {
            Ok(index) => index,
            Err(index) => {
                self.0.insert(index, (way, Vec::new()));
                index
            }
        };
        let points = &mut self.0[index].1;
        match points.binary_search_by_key(&log2_bytes, |(at, _)| *at) {
            Ok(at) => points[at].1 = factor,
            Err(at) => points.insert(at, (log2_bytes, factor)),
        }
    }

    /// Every way, size and factor.
    pub fn points(&self) -> impl Iterator<Item = (Way, u8, f64)> {
        let each = |(way, points): &'_ (Way, Vec<(u8, f64)>)| {
            let way = *way;
            let points: Vec<_> = points
                .iter()
                .map(move |(at, factor)| (way, *at, *factor))
                .collect();
            points
        };
        self.0.iter().flat_map(each)
    }
}

/// Some constants and corrections that somebody insists on, each once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    fields: Vec<(&'static Field, f64)>,
    points: Vec<(Way, u8, f64)>,
}

impl Overrides {
    /// Whether there are corrections only.
    pub fn are_corrections(&self) -> bool {
        self.fields.is_empty()
    }

    /// Whether the constant of this name is among them.
    pub fn names(&self, name: &str) -> bool {
        self.fields.iter().any(|(field, _)| field.name == name)
    }
}

impl FromStr for Overrides {
    type Err = String;

    fn from_str(text: &str) -> Result<Overrides, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("must be {TEXT_BYTES_MAX} characters or fewer"));
        }
        let mut overrides = Overrides::default();
        for entry in text.split(',').map(str::trim) {
            let (name, value) = entry
                .split_once('=')
                .ok_or_else(|| format!("`{entry}` is not `name=value`"))?;
            let (name, value) = (name.trim(), value.trim());
            match name.split_once('@') {
                Some((way, log2_bytes)) => overrides.add_point(way, log2_bytes, value)?,
                None => overrides.add_field(name, value)?,
            }
        }
        Ok(overrides)
    }
}

impl Overrides {
    fn add_field(&mut self, name: &str, value: &str) -> Result<(), String> {
        let field = Field::named(name)?;
        if self.names(name) {
            return Err(format!("`{name}` is there twice"));
        }
        self.fields.push((field, field.parse(value)?));
        Ok(())
    }

    fn add_point(&mut self, way: &str, log2_bytes: &str, value: &str) -> Result<(), String> {
        let of = way.parse::<Way>()?;
        let at = log2_bytes
            .parse::<u8>()
            .ok()
            .filter(|at| *at <= LOG2_BYTES_MAX);
        let at = at.ok_or_else(|| format!("{way}: `{log2_bytes}` is not 0 to {LOG2_BYTES_MAX}"))?;
        let is_factor = |factor: &f64| (1.0 / FACTOR_MAX..=FACTOR_MAX).contains(factor);
        let factor = value.parse::<f64>().ok().filter(is_factor);
        let factor = factor.ok_or_else(|| {
            let least = 1.0 / FACTOR_MAX;
            format!("{way}: the factor `{value}` is not {least} to {FACTOR_MAX}")
        })?;
        if self
            .points
            .iter()
            .any(|(known, size, _)| (*known, *size) == (of, at))
        {
            return Err(format!("`{way}@{at}` is there twice"));
        }
        if self.points.len() == POINTS_MAX {
            return Err(format!("more than {POINTS_MAX} corrections"));
        }
        self.points.push((of, at, factor));
        Ok(())
    }
}

impl Field {
    /// Its value in `constants`.
    pub fn value(&self, constants: &Constants) -> f64 {
        (self.read)(constants)
    }

    /// Sets it in `constants`, to the bound if `value` is beyond; what is no number is not taken.
    pub fn set(&self, constants: &mut Constants, value: f64) {
        if !value.is_nan() {
            (self.write)(constants, value.clamp(self.least, self.most));
        }
    }

    fn named(name: &str) -> Result<&'static Field, String> {
        FIELDS
            .iter()
            .find(|field| field.name == name)
            .ok_or_else(|| {
                let known = FIELDS.iter().map(|field| field.name);
                let nearest = crate::units::nearest(name, known);
                format!("no constant is called `{name}`; did you mean {nearest}?")
            })
    }

    fn parse(&self, text: &str) -> Result<f64, String> {
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        let is_within = |value: &f64| (self.least..=self.most).contains(value);
        value.filter(is_within).ok_or_else(|| {
            let Field {
                name, least, most, ..
            } = self;
            format!("{name} must be a number from {least} to {most}, not `{text}`")
        })
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Fields are told apart by their names.
impl PartialEq for Field {
    fn eq(&self, other: &Field) -> bool {
        self.name == other.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Way {
        "all_reduce.ring.simple".parse().expect("a way")
    }

    #[test]
    fn constants_survive_their_text() {
        let mut constants = Constants::derive(&Machine::here(), 5);
        constants.corrections.set(ring(), 20, 1.25);
        constants.corrections.set(ring(), 3, 0.5);
        let text = constants.to_string();
        assert_eq!(Constants::decode(text.as_bytes()), Some(constants));
    }

    #[test]
    fn text_that_means_nothing_is_refused() {
        let whole = Constants::default().to_string();
        let spoiled = |from: &str, to: &str| {
            let text = whole.replacen(from, to, 1);
            assert_ne!(text, whole);
            Constants::decode(text.as_bytes())
        };
        for (from, to) in [
            ("load=1", "load=0"),
            ("load=1", "load=NaN"),
            ("load=1", "load=inf"),
            ("load=1", "load=-1"),
            ("load=1,", ""),
            (",hop_us", ",hopp_us"),
            (",hop_us=0.2", ",hop_us=0.2,hop_us=0.2"),
        ] {
            assert_eq!(spoiled(from, to), None, "{to}");
        }
        for point in [
            "all_reduce.ring.simple@20=0",
            "all_reduce.ring.simple@20=NaN",
            "all_reduce.ring.simple@41=1",
            "all_reduce.ring@20=1",
            "all_reduce.ring.simple.x@20=1",
            "all_reduce.rung.simple@20=1",
            "all_reduce.ring.simple@20=1,all_reduce.ring.simple@20=1",
        ] {
            let text = format!("{whole},{point}");
            assert_eq!(Constants::decode(text.as_bytes()), None, "{point}");
        }
        assert_eq!(Constants::decode(&[0xff]), None);
        assert_eq!(Constants::decode(&vec![b' '; TEXT_BYTES_MAX + 1]), None);
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_nearest_one() {
        let error = "hop_uss=1".parse::<Overrides>().unwrap_err();
        assert!(error.contains("hop_us"), "{error}");
        let error = "load=0.5".parse::<Overrides>().unwrap_err();
        assert!(error.contains("load must be a number from 1 to"), "{error}");
    }

    #[test]
    fn a_correction_is_interpolated_between_its_points() {
        let mut corrections = Corrections::default();
        assert_eq!(corrections.factor(ring(), 1 << 20), 1.0);
        corrections.set(ring(), 10, 2.0);
        corrections.set(ring(), 12, 4.0);
        for (bytes, factor) in [
            (0, 2.0),
            (8, 2.0),
            (1 << 10, 2.0),
            (1 << 11, 3.0),
            (1 << 12, 4.0),
            (u64::MAX, 4.0),
        ] {
            assert_eq!(corrections.factor(ring(), bytes), factor, "{bytes} bytes");
        }
        corrections.set(ring(), 12, 1.0);
        assert_eq!(corrections.factor(ring(), 1 << 12), 1.0);
    }

    #[test]
    fn ranks_share_cores_and_caches() {
        let machine = Machine {
            cores: 2,
            ..Machine::here()
        };
        let loads = [1, 2, 3, 4, 8].map(|ranks| Constants::derive(&machine, ranks).load);
        assert_eq!(loads, [1.0, 1.0, 1.5, 2.0, 4.0]);
        let caches = [2, 4].map(|ranks| Constants::derive(&machine, ranks).cache_bytes);
        assert!(caches[1] < caches[0], "{caches:?}");
    }
}
