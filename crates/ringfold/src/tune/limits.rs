//! In which pieces calls are pipelined, which results are stored past the caches, and when helpers help, as data.
//!
//! A [`Limits`] is derived from a [`Machine`] by a pure function, so that no number here belongs to one machine. The
//! lowest rank of a communicator derives it and sends it to all (`communicator/agree.rs`): all ranks go by the same
//! table, whatever each of them would have derived. Executors and [`choose`](super::choose) read it; nobody else holds a
//! size of his own. Which way a call goes is not decided here but by prices ([`model`](super::model)).
//!
//! In text it is `name=bytes,name=bytes`, with `never` for what is not done: what travels between ranks, what
//! `RINGFOLD_LIMITS` holds and what the log says. Text from outside is a claim: every name is known, every value in its
//! range, or it is refused.

use std::fmt;

use crate::topology::Machine;

/// As a least size: it is never done.
pub const NEVER: u64 = u64::MAX;

/// The longest text of a table that is looked at.
const TEXT_BYTES_MAX: usize = 4096;

/// Makes the struct and the list of its fields from one table: a new limit is one entry here and one line in `derive`.
macro_rules! limits {
    ($($(#[doc = $about:literal])+ $name:ident: $least:expr, $most:expr;)+) => {
        /// The sizes that a communicator goes by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Limits {
            $($(#[doc = $about])+ pub $name: u64,)+
        }

        /// Every limit, in the order of the struct.
        pub const FIELDS: &[Field] = &[$(Field {
            name: stringify!($name),
            about: concat!($($about),+).trim_ascii(),
            least: $least,
            most: $most,
            read: |limits| limits.$name,
            write: |limits, value| limits.$name = value,
        },)+];
    };
}

limits! {
    /// The piece in which published memory is pipelined; a slot's size bounds it too.
    shared_slice_bytes: 64, 1 << 30;
    /// The same where only the root gives or takes and nothing is combined, once a call has more than one piece.
    rooted_slice_bytes: 64, 1 << 30;
    /// From here on results that lie apart from their inputs are stored past the caches.
    stream_bytes_min: 0, NEVER;
    /// From here on idle cores help.
    helper_bytes_min: 0, NEVER;
}

/// One limit of the table, by name.
#[derive(Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it decides.
    pub about: &'static str,
    least: u64,
    /// [`NEVER`] where it can be left out.
    most: u64,
    read: fn(&Limits) -> u64,
    write: fn(&mut Limits, u64),
}

impl Limits {
    /// The limits for `ranks` ranks of one host, by the sizes of its caches.
    pub fn derive(machine: &Machine, ranks: usize) -> Limits {
        let share = |cache| machine.share_bytes(cache, ranks) as u64;
        let (l2, last) = (share(machine.l2), share(machine.last));
        let is_crowded = ranks > machine.cores;
        let within = |bytes: u64, least: u64, most: u64| bytes.clamp(least << 10, most << 10);
        Limits {
            // Input, output, and the slots of two ranks twice over, because slices overlap, in the second level. Where ranks
            // take turns with a core, only one of them is at it, and every slice costs a round of turns.
            shared_slice_bytes: within(if is_crowded { l2 / 4 } else { l2 / 8 }, 64, 1024),
            // All slots of a rank twice over in the second level: one rank fills them while another empties them.
            rooted_slice_bytes: within(if is_crowded { l2 / 4 } else { l2 / 16 }, 32, 1024),
            // A result that is not in the last level when it is used next.
            stream_bytes_min: within((last / 8 * 3).min(l2.saturating_mul(6)), 1024, NEVER >> 10),
            helper_bytes_min: if machine.cores >= 2 * ranks {
                1 << 20
            } else {
                NEVER
            },
        }
    }

    /// These limits with some replaced.
    pub fn with(mut self, overrides: &Overrides) -> Limits {
        for (field, value) in &overrides.0 {
            (field.write)(&mut self, *value);
        }
        self
    }

    /// These limits, without what `other` never does.
    pub fn barring(mut self, other: &Limits) -> Limits {
        for field in FIELDS.iter().filter(|field| field.most == NEVER) {
            if (field.read)(other) == NEVER {
                (field.write)(&mut self, NEVER);
            }
        }
        self
    }

    /// The table that another rank sent; `None` unless it is whole and within its bounds.
    pub fn decode(bytes: &[u8]) -> Option<Limits> {
        let text = std::str::from_utf8(bytes).ok()?;
        let overrides: Overrides = text.parse().ok()?;
        let is_given = |field: &Field| overrides.names(field.name);
        // Every value below is replaced.
        let blank = Limits::derive(&Machine::read(std::path::Path::new(""), 1), 1);
        (FIELDS.iter().all(is_given)).then(|| blank.with(&overrides))
    }
}

/// The form that [`Limits::decode`] reads.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, field) in FIELDS.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}={}", field.name, field.text(self))?;
        }
        Ok(())
    }
}

/// Some limits that somebody insists on, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(Vec<(&'static Field, u64)>);

impl Overrides {
    /// Whether the limit of this name is among them.
    pub fn names(&self, name: &str) -> bool {
        self.0.iter().any(|(field, _)| field.name == name)
    }
}

impl std::str::FromStr for Overrides {
    type Err = String;

    fn from_str(text: &str) -> Result<Overrides, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("must be {TEXT_BYTES_MAX} characters or fewer"));
        }
        let mut overrides = Overrides::default();
        for entry in text.split(',').map(str::trim) {
            let (name, value) = entry
                .split_once('=')
                .ok_or_else(|| format!("`{entry}` is not `name=bytes`"))?;
            let field = Field::named(name.trim())?;
            if overrides.0.iter().any(|(given, _)| *given == field) {
                return Err(format!("`{}` is there twice", field.name));
            }
            overrides.0.push((field, field.parse(value.trim())?));
        }
        Ok(overrides)
    }
}

impl Field {
    /// What `limits` says of it, in words.
    pub fn text(&self, limits: &Limits) -> String {
        match (self.read)(limits) {
            NEVER => "never".into(),
            value => value.to_string(),
        }
    }

    fn named(name: &str) -> Result<&'static Field, String> {
        FIELDS
            .iter()
            .find(|field| field.name == name)
            .ok_or_else(|| {
                let known = FIELDS.iter().map(|field| field.name);
                format!(
                    "no limit is called `{name}`; did you mean {}?",
                    crate::units::nearest(name, known)
                )
            })
    }

    fn parse(&self, text: &str) -> Result<u64, String> {
        let value = match text {
            "0" => 0,
            "never" => NEVER,
            _ => crate::env::bytes(text).map_err(|why| format!("{}: {why}", self.name))? as u64,
        };
        if (self.least..=self.most).contains(&value) {
            return Ok(value);
        }
        let (name, least) = (self.name, self.least);
        Err(match self.most {
            NEVER => format!("{name} must be {least} bytes or more, or never"),
            most => format!("{name} must be {least} to {most} bytes"),
        })
    }
}

impl PartialEq for Field {
    fn eq(&self, other: &Field) -> bool {
        self.name == other.name
    }
}

impl Eq for Field {}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::machine::Shared;

    const KIB: u64 = 1 << 10;

    /// Caches in KiB, each with the number of logical cores that share it.
    fn machine(
        l1: (usize, usize),
        l2: (usize, usize),
        last: (usize, usize),
        cores: usize,
    ) -> Machine {
        let cache = |(kib, shared_by): (usize, usize)| Shared {
            bytes: kib << 10,
            shared_by,
        };
        Machine {
            l1: cache(l1),
            l2: cache(l2),
            last: cache(last),
            cores,
        }
    }

    fn two_cores() -> Machine {
        machine((32, 1), (1024, 1), (32 << 10, 2), 2)
    }

    /// What a machine of two cores shows of its caches. One was recorded; the other is written as it was reported.
    fn recorded(name: &str) -> Machine {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sysfs");
        Machine::read(&std::path::Path::new(fixtures).join(name), 2)
    }

    #[test]
    fn a_machine_has_one_table() {
        let machine = recorded("epyc-4-2-cores");
        assert_eq!(machine, two_cores());
        let limits = Limits::derive(&machine, 2);
        assert_eq!(limits, Limits::derive(&machine, 2));
        assert_eq!(limits.shared_slice_bytes, 128 * KIB);
        assert_eq!(limits.rooted_slice_bytes, 64 * KIB);
        assert_eq!(limits.stream_bytes_min, 6 << 20);
        assert_eq!(limits.helper_bytes_min, NEVER);
    }

    #[test]
    fn another_machine_has_another_table() {
        let machine = recorded("sapphire-rapids-2-cores");
        let limits = Limits::derive(&machine, 2);
        assert_eq!(limits.shared_slice_bytes, 256 * KIB);
        assert_eq!(limits.stream_bytes_min, 12 << 20);
        // Four ranks have half of each cache, and take turns.
        let crowded = Limits::derive(&machine, 4);
        assert_eq!(crowded.shared_slice_bytes, 256 * KIB);
    }

    /// From no cache to absurd ones, from one rank to far more than cores.
    #[test]
    fn every_machine_has_limits_within_their_bounds() {
        for kib in [0, 1, 48, 1 << 20, usize::MAX >> 10] {
            for cores in [1, 7, 4096] {
                for ranks in [1, 2, 64, 100_000] {
                    let machine = machine((kib, 1), (kib, 2), (kib, cores), cores);
                    let limits = Limits::derive(&machine, ranks);
                    for field in FIELDS {
                        let value = (field.read)(&limits);
                        assert!(
                            (field.least..=field.most).contains(&value),
                            "{field:?} {value} for {ranks} ranks of {machine:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_table_survives_its_text() {
        let limits = Limits::derive(&two_cores(), 2);
        assert_eq!(Limits::decode(limits.to_string().as_bytes()), Some(limits));
    }

    #[test]
    fn a_damaged_table_is_refused_or_whole() {
        let text = Limits::derive(&two_cores(), 2).to_string().into_bytes();
        for length in 0..text.len() {
            // A shorter last number is a number all the same; anything else is missing.
            let last_value = text.iter().rposition(|byte| *byte == b'=').unwrap() + 1;
            if length <= last_value {
                assert_eq!(Limits::decode(&text[..length]), None, "{length} bytes");
            }
        }
        for place in 0..text.len() {
            for bit in 0..8 {
                let mut damaged = text.clone();
                damaged[place] ^= 1 << bit;
                if let Some(limits) = Limits::decode(&damaged) {
                    for field in FIELDS {
                        let value = (field.read)(&limits);
                        assert!((field.least..=field.most).contains(&value), "{field:?}");
                    }
                }
            }
        }
        assert_eq!(Limits::decode(&[b'x'; TEXT_BYTES_MAX + 1]), None);
    }

    #[test]
    fn overrides_replace_what_they_name() {
        let overrides: Overrides =
            "rooted_slice_bytes=16K, stream_bytes_min=never,helper_bytes_min=0"
                .parse()
                .unwrap();
        let limits = Limits::derive(&two_cores(), 2);
        let expected = Limits {
            rooted_slice_bytes: 16 * KIB,
            stream_bytes_min: NEVER,
            helper_bytes_min: 0,
            ..limits
        };
        assert_eq!(limits.with(&overrides), expected);
    }

    #[test]
    fn a_wrong_override_says_what_is_wrong() {
        for (text, why) in [
            ("shared_slice_byte=64", "did you mean shared_slice_bytes?"),
            ("helper_bytes_min", "is not `name=bytes`"),
            ("rooted_slice_bytes=never", "must be 64 to 1073741824 bytes"),
            ("shared_slice_bytes=1", "must be 64 to"),
            ("stream_bytes_min=much", "must be bytes"),
            ("helper_bytes_min=1,helper_bytes_min=2", "is there twice"),
        ] {
            let error = text.parse::<Overrides>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
