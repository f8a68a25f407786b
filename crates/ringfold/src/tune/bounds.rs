//! The number of channels of a communicator, and the bounds for its calls.

#![forbid(unsafe_code)]

use std::fmt;

use crate::error::{Error, Result};

/// Maximum number of channels of a communicator. Each channel is a connection to every peer.
pub const CHANNELS_MAX: usize = 64;

/// The minimum and maximum number of channels of a call: 1 ≤ least ≤ most ≤ [`CHANNELS_MAX`]. The
/// same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    least: usize,
    most: usize,
}

impl Default for Bounds {
    /// Returns the bounds of a single channel.
    fn default() -> Bounds {
        Bounds { least: 1, most: 1 }
    }
}

impl Bounds {
    /// Returns bounds with this minimum and maximum. `None` means the default, moved to the other
    /// bound if they conflict.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a bound of 0 or above [`CHANNELS_MAX`], and for a minimum above the
    /// maximum.
    pub fn new(least: Option<usize>, most: Option<usize>) -> Result<Bounds> {
        let default = Bounds::default();
        let bounds = Bounds {
            least: least.unwrap_or_else(|| default.least.min(most.unwrap_or(usize::MAX))),
            most: most.unwrap_or_else(|| default.most.max(least.unwrap_or(0))),
        };
        let is_one = |channels| (1..=CHANNELS_MAX).contains(&channels);
        if !is_one(bounds.least) || !is_one(bounds.most) || bounds.least > bounds.most {
            return Err(Error::InvalidArgument(format!(
                "invalid bounds, {bounds}: the minimum (RINGFOLD_MIN_CHANNELS) and the maximum \
                 (RINGFOLD_MAX_CHANNELS) must be 1 to {CHANNELS_MAX}, and the maximum not below \
                 the minimum"
            )));
        }
        Ok(bounds)
    }

    /// Returns bounds from one channel to one for each rail; the maximum is clamped to 1 to
    /// [`CHANNELS_MAX`].
    pub fn of_rails(rails: usize) -> Bounds {
        Bounds {
            least: 1,
            most: rails.clamp(1, CHANNELS_MAX),
        }
    }

    /// Returns the minimum.
    pub fn least(self) -> usize {
        self.least
    }

    /// Returns the maximum, the number of pipelines of the communicator.
    pub fn most(self) -> usize {
        self.most
    }

    /// Returns `wanted`, clamped to the bounds.
    pub fn clamp(self, wanted: usize) -> usize {
        wanted.clamp(self.least, self.most)
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} channels", self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_gives_way_to_what_is() {
        let bounds =
            |least, most| Bounds::new(least, most).map(|bounds| (bounds.least, bounds.most));
        assert_eq!(bounds(Some(3), None).expect("bounds").0, 3);
        assert_eq!(bounds(None, Some(1)).expect("bounds"), (1, 1));
        assert_eq!(bounds(Some(2), Some(8)).expect("bounds"), (2, 8));
        assert_eq!(
            Bounds::new(Some(2), Some(8))
                .map(|bounds| bounds.clamp(64))
                .expect("bounds"),
            8
        );
    }

    #[test]
    fn impossible_bounds_are_refused() {
        for (least, most) in [
            (Some(0), None),
            (None, Some(0)),
            (Some(65), None),
            (Some(4), Some(2)),
        ] {
            let text = Bounds::new(least, most).expect_err("a refusal").to_string();
            assert!(text.contains("RINGFOLD_MAX_CHANNELS"), "{text}");
        }
    }
}
