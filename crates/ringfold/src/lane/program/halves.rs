//! The order of a call whose slices have two halves.
//!
//! A slice that devices combine is brought and taken twice: its *scatter* half gives each rank the
//! block that is its own, of all ranks; its *gather* half gives all ranks the combined blocks.
//! Every half has a number, like the slice of another call. As many scatter halves as there are
//! slots come first, then one of either kind in turn:
//!
//! ```text
//! S0 S1 S2 S3 G0 S4 G1 S5 G2 G3 G4 G5        depth 4
//! ```
//!
//! So the scatter half of a slice is taken, and combined, while others are on their way, and no
//! gather half waits for one that a slot holds back.

/// A half of slice `.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// To the rank that combines each block.
    Scatter(u32),
    /// From there to all.
    Gather(u32),
}

/// The halves of a call.
#[derive(Clone, Copy, Debug)]
pub struct Halves {
    slices: u32,
    /// How many scatter halves come before the first gather half.
    ahead: u32,
}

impl Halves {
    /// Those of `slices` slices, where there are `depth` slots.
    pub fn new(slices: u32, depth: u32) -> Halves {
        let ahead = depth.min(slices);
        Halves { slices, ahead }
    }

    /// How many there are.
    pub fn count(self) -> u32 {
        2 * self.slices
    }

    /// The half at `place` in the order.
    pub fn at(self, place: u32) -> Half {
        let Some(behind) = place.checked_sub(self.ahead) else {
            return Half::Scatter(place);
        };
        // Pairs of a gather half and a scatter half, until there are no more of these.
        let pairs = self.slices - self.ahead;
        match behind {
            _ if behind >= 2 * pairs => Half::Gather(behind - pairs),
            _ if behind.is_multiple_of(2) => Half::Gather(behind / 2),
            _ => Half::Scatter(self.ahead + behind / 2),
        }
    }

    /// The place of what must have been taken before the half at `place` is brought.
    pub fn needed(self, place: u32) -> Option<u32> {
        match self.at(place) {
            Half::Scatter(_) => None,
            Half::Gather(slice) if slice < self.ahead => Some(slice),
            Half::Gather(slice) => Some(2 * slice - self.ahead + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_half_has_one_place_and_its_need_comes_before() {
        for depth in 1..6 {
            for slices in 0..14 {
                let halves = Halves::new(slices, depth);
                let all: Vec<Half> = (0..halves.count()).map(|place| halves.at(place)).collect();
                for slice in 0..slices {
                    let place = |half| all.iter().position(|each| *each == half).unwrap();
                    let scatter = place(Half::Scatter(slice));
                    let gather = place(Half::Gather(slice));
                    assert!(scatter < gather, "depth {depth}: {all:?}");
                    assert_eq!(halves.needed(gather as u32), Some(scatter as u32));
                    assert_eq!(halves.needed(scatter as u32), None);
                }
                // The rows of slice `s` are those of `s + depth`, too, and free by then.
                for slice in depth..slices {
                    let place = |half| all.iter().position(|each| *each == half).unwrap();
                    assert!(place(Half::Gather(slice - depth)) < place(Half::Scatter(slice)));
                }
            }
        }
    }
}
