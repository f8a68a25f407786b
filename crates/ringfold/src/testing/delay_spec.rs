//! The specification of slow reductions. The simulator injects them in virtual time,
//! `ringfold perf` on real processes.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::random::SplitMix64;
use crate::units::{nearest, parse_time_ps};

/// Some reductions of one rank, or of all, that take longer.
///
/// Parsed from text such as `rank=3,step=*,delay=exp(20us),p=0.1`; `step` and `p` may be omitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// The rank; `None` (`*`) is every rank.
    pub rank: Option<usize>,
    /// The ordinal of the rank's reduction in a call, from 1: in a ring of one slice, the position
    /// of the rank behind the chunk's origin. `None` (`*`) is every reduction.
    pub step: Option<u32>,
    /// The additional time.
    pub delay: Delay,
    /// The probability that the reduction is slow, from 0 to 1.
    pub probability: f64,
}

/// The additional time of a slow reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delay {
    /// A fixed time, in picoseconds.
    Fixed(u64),
    /// A time from the exponential distribution.
    Exponential {
        /// The mean in picoseconds.
        mean_ps: u64,
    },
    /// A time evenly distributed over a range.
    Uniform {
        /// The minimum in picoseconds.
        from_ps: u64,
        /// The maximum in picoseconds.
        to_ps: u64,
    },
}

/// The keys in the text of a [`Slow`].
const KEYS: [&str; 4] = ["rank", "step", "delay", "p"];

impl Slow {
    /// Whether this reduction may be slow, before anything is drawn.
    pub fn concerns(&self, rank: usize, step: u32) -> bool {
        self.rank.is_none_or(|slow| slow == rank) && self.step.is_none_or(|slow| slow == step)
    }

    /// Returns the delay of this reduction in picoseconds: 0 if it is not slow.
    pub fn delay_ps(&self, rank: usize, step: u32, random: &mut SplitMix64) -> u64 {
        // A certain delay draws nothing, so that events added by hand change no other draw.
        if !self.concerns(rank, step)
            || (self.probability < 1.0 && !random.happens(self.probability))
        {
            return 0;
        }
        match self.delay {
            Delay::Fixed(ps) => ps,
            Delay::Exponential { mean_ps } => random.exponential(mean_ps),
            Delay::Uniform { from_ps, to_ps } => from_ps + random.below(to_ps - from_ps + 1),
        }
    }
}

impl Delay {
    /// Returns the longest possible delay in picoseconds.
    pub fn longest_ps(self) -> u64 {
        match self {
            Delay::Fixed(ps) => ps,
            // A draw is the mean times the logarithm of a number of 53 bits.
            Delay::Exponential { mean_ps } => mean_ps.saturating_mul(37),
            Delay::Uniform { to_ps, .. } => to_ps,
        }
    }
}

impl FromStr for Slow {
    type Err = Error;

    fn from_str(text: &str) -> Result<Slow> {
        let (mut rank, mut step, mut delay, mut probability) = (None, None, None, 1.0);
        for part in words(text) {
            let Some((key, value)) = part.split_once('=') else {
                let text = "write for example `rank=3,step=*,delay=exp(20us),p=0.1`";
                return Err(invalid(format!(
                    "`{part}` is not of the form key=value; {text}"
                )));
            };
            match key.trim() {
                "rank" => rank = Some(number_or_all(key, value.trim())?.map(|rank| rank as usize)),
                "step" => step = number_or_all(key, value.trim())?,
                "delay" => delay = Some(value.trim().parse()?),
                "p" => probability = parse_probability(value.trim())?,
                unknown => {
                    let near = nearest(unknown, KEYS.into_iter());
                    return Err(invalid(format!(
                        "unknown key `{unknown}` of a slow reduction; did you mean `{near}`?"
                    )));
                }
            }
        }
        let missing = |what: &str| invalid(format!("`{text}` does not say which {what} is slow"));
        if step == Some(0) {
            return Err(invalid("step=0: a rank's reductions count from 1".into()));
        }
        Ok(Slow {
            rank: rank.ok_or_else(|| missing("rank"))?,
            step,
            delay: delay.ok_or_else(|| {
                invalid(format!(
                    "`{text}` has no delay; write for example `delay=20us`"
                ))
            })?,
            probability,
        })
    }
}

impl FromStr for Delay {
    type Err = Error;

    /// Parses `20us`, `exp(20us)` or `uniform(5us,20us)`.
    fn from_str(text: &str) -> Result<Delay> {
        let Some((name, rest)) = text.split_once('(') else {
            return Ok(Delay::Fixed(parse_time_ps(text)?));
        };
        let Some(arguments) = rest.strip_suffix(')') else {
            return Err(invalid(format!("`{text}` lacks its closing parenthesis")));
        };
        let times: Result<Vec<u64>> = arguments
            .split(',')
            .map(|t| parse_time_ps(t.trim()))
            .collect();
        match (name, times?.as_slice()) {
            ("exp", &[mean_ps]) => Ok(Delay::Exponential { mean_ps }),
            ("uniform", &[from_ps, to_ps]) if from_ps <= to_ps => {
                Ok(Delay::Uniform { from_ps, to_ps })
            }
            ("exp", _) => Err(invalid(format!(
                "`{text}`: exp takes its mean, as in `exp(20us)`"
            ))),
            ("uniform", _) => Err(invalid(format!(
                "`{text}`: uniform takes the least and the most, as in `uniform(5us,20us)`"
            ))),
            _ => Err(invalid(format!(
                "unknown distribution `{name}`; did you mean `{}`?",
                nearest(name, ["exp", "uniform"].into_iter())
            ))),
        }
    }
}

impl fmt::Display for Slow {
    /// Writes the specification as it is parsed, with times in picoseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = |number: Option<String>| number.unwrap_or_else(|| "*".into());
        let rank = star(self.rank.map(|rank| rank.to_string()));
        let step = star(self.step.map(|step| step.to_string()));
        write!(f, "rank={rank},step={step},delay={}", self.delay)?;
        match self.probability {
            1.0 => Ok(()),
            p => write!(f, ",p={p}"),
        }
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Delay::Fixed(ps) => write!(f, "{ps}ps"),
            Delay::Exponential { mean_ps } => write!(f, "exp({mean_ps}ps)"),
            Delay::Uniform { from_ps, to_ps } => write!(f, "uniform({from_ps}ps,{to_ps}ps)"),
        }
    }
}

/// Returns the parts between commas outside of parentheses.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    })
}

fn number_or_all(key: &str, value: &str) -> Result<Option<u32>> {
    if value == "*" {
        return Ok(None);
    }
    value
        .parse()
        .map(Some)
        .map_err(|_| invalid(format!("`{key}={value}`: neither a number nor `*`")))
}

fn parse_probability(value: &str) -> Result<f64> {
    let number = value.parse().ok();
    number
        .filter(|p| (0.0..=1.0).contains(p))
        .ok_or_else(|| invalid(format!("`p={value}`: not a number from 0 to 1")))
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_are_read_and_written() {
        let read = |text: &str| text.parse::<Slow>().unwrap();
        let slow = read("rank=3,step=*,delay=exp(20us),p=0.1");
        assert_eq!(slow.rank, Some(3));
        assert_eq!((slow.step, slow.probability), (None, 0.1));
        assert_eq!(
            slow.delay,
            Delay::Exponential {
                mean_ps: 20_000_000
            }
        );
        let slow = read("rank=*, step=1, delay=uniform(5us, 8us)");
        assert_eq!(
            (slow.rank, slow.step, slow.probability),
            (None, Some(1), 1.0)
        );
        for slow in [
            slow,
            read("rank=1,delay=8us"),
            read("rank=0,step=2,delay=0,p=0.5"),
        ] {
            assert_eq!(read(&slow.to_string()), slow);
        }
    }

    #[test]
    fn errors_name_the_word_and_the_right_one() {
        let cases = [
            ("rnak=3,delay=1us", "did you mean `rank`"),
            ("rank=3,delay=expo(1us)", "did you mean `exp`"),
            ("rank=3,delay=1mus", "did you mean `us`"),
            ("rank=3,delay=exp(1us", "closing parenthesis"),
            ("rank=3,delay=uniform(2us,1us)", "the least and the most"),
            ("rank=three,delay=1us", "`rank=three`"),
            ("rank=3,step=0,delay=1us", "count from 1"),
            ("rank=3,delay=1us,p=1.5", "`p=1.5`"),
            ("rank=3", "no delay"),
            ("delay=1us", "which rank"),
            ("3", "key=value"),
        ];
        for (text, due) in cases {
            let error = text.parse::<Slow>().unwrap_err().to_string();
            assert!(error.contains(due), "{text}: {error}");
        }
    }

    #[test]
    fn only_the_reductions_that_are_named_are_slow() {
        let slow: Slow = "rank=1,step=2,delay=7ps".parse().unwrap();
        let mut random = SplitMix64(1);
        let mut delay = |rank, step| slow.delay_ps(rank, step, &mut random);
        assert_eq!([delay(1, 2), delay(1, 1), delay(0, 2)], [7, 0, 0]);
        let uniform: Slow = "rank=*,delay=uniform(5ps,6ps)".parse().unwrap();
        for _ in 0..100 {
            assert!([5, 6].contains(&uniform.delay_ps(9, 9, &mut random)));
        }
    }
}
