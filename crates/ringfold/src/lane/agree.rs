//! What ranks tell each other while they open a lane: twice, a record of numbers each.
//!
//! Before there is memory, each rank says what it has and is to have ([`Offer`]); from all offers
//! every rank derives the same [`Agreed`]. When all is made, each says what of it came about
//! ([`Made`]). What one rank cannot have, none has. Records of peers are claims: a number out of
//! bounds is refused.

#![forbid(unsafe_code)]

use super::config::LaneConfig;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::reduce::parallel::HELPERS_MAX;
use crate::tune::DeviceConstants;
use crate::tune::parameters::ParameterTable;

/// The numbers of an offer beside the constants, and of what was made.
const OFFER_WORDS: usize = 11;
const MADE_WORDS: usize = 3;

/// What a rank has before there is memory.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    pub config: LaneConfig,
    /// Whether the device can end direct calls.
    pub has_guard: bool,
    /// The device's UUID.
    pub uuid: [u8; 16],
    /// The constants of its device, if they were measured.
    pub constants: Option<DeviceConstants>,
    /// The threads of this rank that can combine a slice.
    pub threads: usize,
}

/// What all ranks have before there is memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreed {
    /// Whether there are direct slots.
    pub has_direct: bool,
    /// The most ranks that have the same device.
    pub ranks_per_device: usize,
    /// Whether each rank has a device of its own, for certain.
    pub are_apart: bool,
    /// The constants of rank 0's device, if they were measured.
    pub constants: Option<DeviceConstants>,
    /// The threads that each rank has to combine a slice: at least one.
    pub threads: usize,
}

/// What has come about of a rank's part, and then of all ranks'.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Whether the device reaches the slots of all ranks.
    pub is_direct: bool,
    /// Whether the device has the kernels of small all-reduces.
    pub has_one_shot: bool,
}

impl Offer {
    /// Tells all ranks of `begun`, with which this rank makes this offer, and returns what all
    /// have. Collective; an error is one on all ranks.
    pub fn agree<T>(self, communicator: &Communicator, begun: Result<T>) -> Result<(Agreed, T)> {
        let own = self.words(begun.is_ok());
        let (all, begun) = exchange(communicator, &own, begun)?;
        for (rank, words) in all.chunks(own.len()).enumerate() {
            self.check_config(rank, &own, words)?;
        }
        let records = || all.chunks(own.len());
        let uuids: Vec<&[u64]> = records().map(|words| &words[7..9]).collect();
        let count = |one: &&[u64]| uuids.iter().filter(|other| *other == one).count();
        let ranks_per_device = uuids.iter().map(count).max().unwrap_or(1);
        let agreed = Agreed {
            has_direct: self.config.direct && records().all(|words| words[6] == 1),
            ranks_per_device,
            are_apart: ranks_per_device == 1 && !uuids.contains(&&[0, 0][..]),
            constants: constants(&all[..own.len()])?,
            threads: records()
                .map(|words| words[10].clamp(1, 1 + HELPERS_MAX as u64) as usize)
                .min()
                .unwrap_or(1),
        };
        Ok((agreed, begun))
    }

    fn words(&self, is_ready: bool) -> Vec<u64> {
        let LaneConfig {
            slot_bytes,
            slice_bytes,
            depth,
            direct,
            one_shot,
        } = self.config;
        let uuid = u128::from_ne_bytes(self.uuid);
        let first: [u64; OFFER_WORDS] = [
            u64::from(is_ready),
            slot_bytes as u64,
            u64::from(depth),
            slice_bytes.map_or(0, |bytes| bytes as u64),
            u64::from(direct),
            one_shot.map_or(0, |is_asked| 1 + u64::from(is_asked)),
            u64::from(self.has_guard),
            (uuid >> 64) as u64,
            uuid as u64,
            u64::from(self.constants.is_some()),
            self.threads as u64,
        ];
        let constants = self.constants.unwrap_or_default();
        let values = DeviceConstants::PARAMETERS.iter();
        let values = values.map(|parameter| parameter.value(&constants).to_bits());
        first.into_iter().chain(values).collect()
    }

    fn check_config(&self, rank: usize, own: &[u64], other: &[u64]) -> Result<()> {
        for (name, word) in [("slice_bytes", 3), ("direct", 4), ("one_shot", 5)] {
            if other[word] != own[word] {
                return Err(Error::InvalidArgument(format!(
                    "rank {rank}'s lane has another `{name}`: give all ranks the same"
                )));
            }
        }
        if other[1..3] != own[1..3] {
            return Err(Error::InvalidArgument(format!(
                "this rank's lane has {} slots of {} bytes, that of rank {rank} {} of {}: give \
                 all ranks the same",
                own[2], own[1], other[2], other[1]
            )));
        }
        Ok(())
    }
}

/// The constants in the offer of rank 0, if it has measured ones.
fn constants(words: &[u64]) -> Result<Option<DeviceConstants>> {
    let mut constants = DeviceConstants::default();
    let values = DeviceConstants::PARAMETERS
        .iter()
        .zip(&words[OFFER_WORDS..]);
    for (parameter, bits) in values {
        let value = f64::from_bits(*bits);
        if !parameter.bounds.contains(&value) {
            return Err(Error::corrupt(
                0,
                "constants of devices that are out of bounds",
            ));
        }
        parameter.set(&mut constants, value);
    }
    Ok((words[9] == 1).then_some(constants))
}

impl Made {
    /// Tells all ranks of `made`, with which this rank has `self`, and returns what all have.
    /// Collective; an error is one on all ranks.
    pub fn agree<T>(self, communicator: &Communicator, made: Result<T>) -> Result<(Made, T)> {
        let own: [u64; MADE_WORDS] = [
            u64::from(made.is_ok()),
            u64::from(self.is_direct),
            u64::from(self.has_one_shot),
        ];
        let (all, made) = exchange(communicator, &own, made)?;
        let all_have = |word: usize| all.chunks(MADE_WORDS).all(|words| words[word] == 1);
        let of_all = Made {
            is_direct: all_have(1),
            has_one_shot: all_have(2),
        };
        Ok((of_all, made))
    }
}

/// The records of all ranks, and `made`, if all ranks have made theirs. The first word of a record
/// says so.
fn exchange<T>(communicator: &Communicator, own: &[u64], made: Result<T>) -> Result<(Vec<u64>, T)> {
    let mut all = vec![0; own.len() * communicator.world_size()];
    communicator.all_gather(own, &mut all)?;
    let made = made?;
    match all.chunks(own.len()).position(|words| words[0] == 0) {
        Some(rank) => Err(Error::System {
            what: format!("rank {rank} failed to open its lane, so no rank has one; see its error"),
            kind: std::io::ErrorKind::Other,
        }),
        None => Ok((all, made)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of the ranks with these offers gets, or the class of its error.
    fn agreed(offers: Vec<(Offer, bool)>) -> Vec<Result<Agreed>> {
        let ranks = Communicator::threads(offers.len()).into_iter().zip(offers);
        let agree = |(communicator, (offer, is_ready)): (Communicator, (Offer, bool))| {
            let begun = is_ready.then_some(()).ok_or(Error::Closed);
            offer.agree(&communicator, begun).map(|(agreed, ())| agreed)
        };
        std::thread::scope(|scope| {
            let ranks = ranks.map(|rank| scope.spawn(move || agree(rank)));
            let ranks: Vec<_> = ranks.collect();
            let ranks = ranks.into_iter();
            ranks.map(|rank| rank.join().expect("a rank")).collect()
        })
    }

    fn offer(device: u8) -> Offer {
        Offer {
            config: LaneConfig::default(),
            has_guard: true,
            uuid: [device; 16],
            constants: None,
            threads: usize::from(device),
        }
    }

    #[test]
    fn all_ranks_have_what_each_of_them_has() {
        let all = |offers: Vec<Offer>| {
            let offers = offers.into_iter().map(|offer| (offer, true)).collect();
            let all = agreed(offers);
            let first = all[0].as_ref().expect("no error");
            let is_same = |one: &Result<Agreed>| one.as_ref().is_ok_and(|one| one == first);
            assert!(all.iter().all(is_same), "{all:?}");
            *first
        };
        let apart = all(vec![offer(1), offer(2), offer(3)]);
        assert!(apart.has_direct && apart.are_apart);
        assert_eq!((apart.ranks_per_device, apart.constants), (1, None));
        assert_eq!(apart.threads, 1);
        let shared = all(vec![offer(1), offer(2), offer(1)]);
        assert!(shared.has_direct && !shared.are_apart);
        assert_eq!(shared.ranks_per_device, 2);
        assert!(
            !all(vec![offer(1), offer(0)]).are_apart,
            "an unknown device"
        );
        let without = Offer {
            has_guard: false,
            ..offer(2)
        };
        assert!(!all(vec![offer(1), without]).has_direct);
        // Rank 0's constants are those of all.
        let measured = DeviceConstants {
            device_gap_us: 2.5,
            ..DeviceConstants::default()
        };
        let measures = |device| Offer {
            constants: Some(measured),
            ..offer(device)
        };
        assert_eq!(all(vec![measures(1), offer(2)]).constants, Some(measured));
        assert_eq!(all(vec![offer(1), measures(2)]).constants, None);
    }

    #[test]
    fn a_rank_that_differs_or_fails_is_named() {
        let other = |change: fn(&mut LaneConfig)| {
            let mut other = offer(2);
            change(&mut other.config);
            (other, true)
        };
        for (other, name) in [
            (other(|config| config.slot_bytes = 8192), "8192"),
            (other(|config| config.depth = 8), "8 of"),
            (other(|config| config.slice_bytes = Some(7)), "slice_bytes"),
            (other(|config| config.direct = false), "direct"),
            (other(|config| config.one_shot = Some(false)), "one_shot"),
            ((offer(2), false), "rank 1 failed"),
        ] {
            let all = agreed(vec![(offer(1), true), other]);
            let error = all[0].as_ref().expect_err(name).to_string();
            assert!(error.contains(name) && error.contains("rank 1"), "{error}");
            assert!(all[1].is_err(), "{name}");
        }
    }

    #[test]
    fn constants_out_of_bounds_are_refused() {
        let mut words = offer(1).words(true);
        assert_eq!(constants(&words).expect("bounds"), None);
        words[OFFER_WORDS] = (-1f64).to_bits();
        let error = constants(&words).expect_err("out of bounds");
        assert_eq!(error.class(), "Corrupt");
    }
}
