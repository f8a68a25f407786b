//! Aligns the clocks of several hosts by the calls that their ranks made with each other.
//!
//! Processes of one host read one clock. Between hosts, no rank can leave an all_reduce or a
//! barrier before the last rank has entered it. So the end of such a call on either host is later
//! than its beginning on the other, which bounds the offset of the clocks from both sides, like the
//! two ways of a ping (Cristian, 1989; Duda et al., 1987, for traces). The bounds of many calls are
//! tighter than a measurement at the job's start, and follow clocks that drift: if no single offset
//! fits all calls, each window of time has its own, with interpolation between windows.

use std::collections::BTreeMap;

use ringfold::Collective;

use super::files::Recorded;
use super::ranks::{Key, Ranks, key};
use crate::numbers::time;

/// Window within which drifting clocks are assumed to have a constant offset.
const WINDOW_NS: i128 = 10_000_000_000;

/// Identifier of a clock.
type Id = [u64; 3];

/// The clocks of all hosts, aligned with the first rank's.
pub struct Clocks {
    known: BTreeMap<Id, Clock>,
    /// Beginning of the first call of all, on the first rank's clock.
    begin_ns: i128,
}

/// One host's clock.
#[derive(Clone, Debug, Default)]
struct Clock {
    host: String,
    /// Offsets to subtract in turn; each leads one clock further towards the first one.
    steps: Vec<Offset>,
    source: Source,
}

/// The method by which a clock was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Source {
    /// The first rank's clock, to which the others are compared.
    #[default]
    Same,
    /// Comparison by calls, with this maximum error in nanoseconds.
    Calls(i128),
    /// Comparison by the calendars of the hosts, because there is no such call.
    Calendar,
}

/// The lead of a clock over another one, at some of its times.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offset {
    points: Vec<(i128, i128)>,
}

/// A call's bounds of a clock's offset, and the clock's time at which they hold.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    at_ns: i128,
    least: i128,
    most: i128,
}

impl Offset {
    fn at(&self, time: i128) -> i128 {
        let after = self.points.partition_point(|(at, _)| *at <= time);
        let before = after.checked_sub(1).map(|index| self.points[index]);
        match (before, self.points.get(after).copied()) {
            (Some((from, offset)), Some((to, next))) => {
                offset + (next - offset) * (time - from) / (to - from)
            }
            (Some((_, offset)), None) | (None, Some((_, offset))) => offset,
            (None, None) => 0,
        }
    }

    /// Returns the offset that fits `bounds`, and its maximum error.
    fn fitting(bounds: &[Bounds]) -> Option<(Offset, i128)> {
        let all = middle(bounds)?;
        if let (offset, Some(error)) = all {
            let at_ns = bounds[0].at_ns;
            return Some((
                Offset {
                    points: vec![(at_ns, offset)],
                },
                error,
            ));
        }
        let mut windows: BTreeMap<i128, Vec<Bounds>> = BTreeMap::new();
        for bound in bounds {
            windows
                .entry(bound.at_ns.div_euclid(WINDOW_NS))
                .or_default()
                .push(*bound);
        }
        let mut points = Vec::new();
        let mut most = 0;
        for (window, bounds) in &windows {
            let (offset, error) = middle(bounds)?;
            points.push((window * WINDOW_NS + WINDOW_NS / 2, offset));
            // If bounds contradict each other within a window, a clock was set.
            most = most.max(error.unwrap_or(WINDOW_NS));
        }
        Some((Offset { points }, most))
    }
}

/// Returns the middle of the offsets that all bounds allow, and its maximum error; no error if the
/// bounds contradict each other.
fn middle(bounds: &[Bounds]) -> Option<(i128, Option<i128>)> {
    let least = bounds.iter().map(|bound| bound.least).max()?;
    let most = bounds.iter().map(|bound| bound.most).min()?;
    let error = (most >= least).then_some((most - least + 1) / 2);
    Some(((least + most) / 2, error))
}

/// A call on one clock: the times at which the last of its ranks there entered, and the first left.
#[derive(Clone, Copy, Debug)]
struct Passage {
    begin_ns: i128,
    end_ns: i128,
}

/// The passages of each call, by clock.
type Passages = BTreeMap<(Key, u64), BTreeMap<Id, Passage>>;

/// Collects the calls that no rank leaves before all have entered.
fn passages(boards: &[Recorded], is_closed: fn(Collective) -> bool) -> Passages {
    let mut passages = Passages::new();
    for board in boards {
        let closed = board
            .calls
            .iter()
            .filter(|call| is_closed(call.kind.collective));
        for call in
            closed.filter(|call| call.bytes > 0 || call.kind.collective == Collective::Barrier)
        {
            let Some(end_ns) = call.end_ns else { continue };
            let passage = Passage {
                begin_ns: call.begin_ns.into(),
                end_ns: end_ns.into(),
            };
            let call = passages
                .entry((key(&board.picture), call.sequence))
                .or_default();
            let known = call.entry(board.picture.clock).or_insert(passage);
            known.begin_ns = known.begin_ns.max(passage.begin_ns);
            known.end_ns = known.end_ns.min(passage.end_ns);
        }
    }
    passages
}

/// Returns the calls' bounds for the lead of the clock `other` over `one`.
fn bounds(passages: &Passages, one: Id, other: Id) -> Vec<Bounds> {
    let both = passages
        .values()
        .filter_map(|call| Some((call.get(&one)?, call.get(&other)?)));
    let bounds = both.map(|(one, other)| Bounds {
        at_ns: other.end_ns,
        least: other.begin_ns - one.end_ns,
        most: other.end_ns - one.begin_ns,
    });
    bounds.collect()
}

impl Clocks {
    /// Compares all clocks with that of the first rank.
    pub fn compare(boards: &[Recorded], ranks: &Ranks) -> Clocks {
        let first = (0..boards.len()).min_by_key(|board| {
            (
                ranks.process_of[*board],
                ranks.number(key(&boards[*board].picture)),
            )
        });
        let first = &boards[first.expect("at least one file was read")].picture;
        let mut known = BTreeMap::from([(first.clock, Clock::first(&first.host))]);
        // Second best are collectives that a rank can leave before a rank without data has entered.
        for is_closed in [
            (|c| matches!(c, Collective::AllReduce | Collective::Barrier))
                as fn(Collective) -> bool,
            |c| matches!(c, Collective::AllGather | Collective::ReduceScatter),
        ] {
            let passages = passages(boards, is_closed);
            while let Some((id, clock)) = next(boards, &known, &passages) {
                known.insert(id, clock);
            }
        }
        for Recorded { picture, .. } in boards {
            known.entry(picture.clock).or_insert_with(|| {
                let since = |ns: u64, calendar_ns: u64| i128::from(ns) - i128::from(calendar_ns);
                let own = since(picture.made_ns, picture.made_calendar_ns);
                let ahead = own - since(first.made_ns, first.made_calendar_ns);
                Clock {
                    host: picture.host.clone(),
                    steps: vec![Offset {
                        points: vec![(0, ahead)],
                    }],
                    source: Source::Calendar,
                }
            });
        }
        let mut clocks = Clocks { known, begin_ns: 0 };
        let times = boards.iter().flat_map(|board| {
            board
                .calls
                .first()
                .map(|call| clocks.common_ns(board.picture.clock, call.begin_ns))
        });
        clocks.begin_ns = times.min().unwrap_or_default();
        clocks
    }

    fn common_ns(&self, clock: Id, time_ns: u64) -> i128 {
        let steps = self.known.get(&clock).map_or(&[][..], |clock| &clock.steps);
        steps
            .iter()
            .fold(time_ns.into(), |time, step| time - step.at(time))
    }

    /// Converts a time of the clock `clock` to microseconds since the first call of all.
    pub fn us(&self, clock: Id, time_ns: u64) -> f64 {
        (self.common_ns(clock, time_ns) - self.begin_ns) as f64 / 1e3
    }

    /// Describes the possible errors of times of different hosts.
    pub fn findings(&self) -> Vec<String> {
        let found = self.known.values().filter_map(|clock| match clock.source {
            Source::Same => None,
            Source::Calls(error) => Some(format!(
                "the clock of {} was compared by calls: its times are accurate within {}",
                clock.host,
                time(error as f64)
            )),
            Source::Calendar => Some(format!(
                "the clock of {} was compared by the hosts' calendars, for lack of a common \
                 all_reduce or barrier: its times may be wrong by milliseconds",
                clock.host
            )),
        });
        found.collect()
    }
}

impl Clock {
    fn first(host: &str) -> Clock {
        Clock {
            host: host.to_owned(),
            ..Clock::default()
        }
    }
}

/// Returns a clock that is not known yet, compared with the known clock that shares most calls.
fn next(
    boards: &[Recorded],
    known: &BTreeMap<Id, Clock>,
    passages: &Passages,
) -> Option<(Id, Clock)> {
    let unknown = boards
        .iter()
        .filter(|board| !known.contains_key(&board.picture.clock));
    for Recorded { picture, .. } in unknown {
        let by_calls = known
            .iter()
            .map(|(id, clock)| (bounds(passages, *id, picture.clock), clock));
        let Some((bounds, clock)) = by_calls.max_by_key(|(bounds, _)| bounds.len()) else {
            continue;
        };
        if let Some((offset, error)) = Offset::fitting(&bounds) {
            let before = match clock.source {
                Source::Calls(error) => error,
                _ => 0,
            };
            let steps = [vec![offset], clock.steps.clone()].concat();
            let clock = Clock {
                host: picture.host.clone(),
                steps,
                source: Source::Calls(before + error),
            };
            return Some((picture.clock, clock));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns calls every `every_ms`, in which each side sees the other after 40 to 80 µs.
    fn calls(count: i128, every_ms: i128, offset: impl Fn(i128) -> i128) -> Vec<Bounds> {
        let call = |index: i128| {
            let begin = index * every_ms * 1_000_000;
            let (late, early) = (begin + (index % 3) * 20_000, begin);
            let end = late + 40_000;
            let there = |time: i128| time + offset(time);
            Bounds {
                at_ns: there(end),
                least: there(early) - end,
                most: there(end) - late,
            }
        };
        (0..count).map(call).collect()
    }

    #[test]
    fn an_offset_is_found_within_its_error() {
        let (offset, error) = Offset::fitting(&calls(100, 1, |_| -7_000_000_000)).unwrap();
        let found = offset.at(50_000_000);
        assert!((found + 7_000_000_000).abs() <= error, "{found} {error}");
        assert!(error <= 60_000, "{error}");
    }

    #[test]
    fn clocks_that_drift_are_followed() {
        // 50 ppm: 3 ms in a minute.
        let drift = |time: i128| 1_000_000 + time / 20_000;
        let (offset, _) = Offset::fitting(&calls(6000, 10, drift)).unwrap();
        assert!(offset.points.len() >= 6);
        for second in [5, 17, 30, 44] {
            let time = second * 1_000_000_000;
            let wrong = (offset.at(time + drift(time)) - drift(time)).abs();
            assert!(wrong < 400_000, "{wrong} ns after {second} s");
        }
    }

    #[test]
    fn no_call_says_nothing() {
        assert!(Offset::fitting(&[]).is_none());
    }
}
