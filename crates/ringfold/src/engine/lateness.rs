//! Statistics of late ranks: which were late, by how much, and for which of them this rank waited.
//! Always on.
//!
//! # What is counted
//!
//! In a collective call a peer has *arrived* with its first sign, a message or a publication. If
//! this rank need not wait for any first sign, all peers were there before: this rank was the last.
//! Otherwise the last was the peer whose first sign this rank waited for last. That peer's lateness
//! is the time from when this rank first had nothing left to do in the call until that sign. Later
//! waits for a peer that has arrived show the speed of its links and cores, not its arrival, and
//! only count as waits. If any rank may do the work of any other (`claim`, `serve`), a wait belongs
//! to no peer, and no rank was the last.
//!
//! A sign that arrives through others (in a ring, a rank hears only from the one before) is
//! attributed to the peer that sent it. So one rank's view is a hint. The proof is a rank that
//! found all others there and for which the others wait.
//!
//! # Cost
//!
//! A rank that does not wait pays next to nothing. The clock is read only in a wait that has lasted
//! for [`UNTIMED_ATTEMPTS`], a few microseconds; a shorter wait counts as zero time. Counting
//! allocates nothing after the beginning.
//!
//! The engine adds arrivals, its driver adds waits. Times are arguments, as everywhere in the
//! engine.

use std::time::Duration;

use crate::transport::Time;

/// Number of fruitless attempts of a wait, each 20 to 60 ns, before the clock is read. No wait
/// takes as many between ranks that arrive together and have a core each.
pub const UNTIMED_ATTEMPTS: u32 = 64;

/// Number of classes of lateness; see [`PeerStats::histogram`].
pub const LATENESS_CLASSES: usize = 28;

/// The waits of a rank in the collective calls of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of finished collective calls.
    pub calls: u64,
    /// Number of calls in which this rank was the last: it waited for no peer's first sign.
    pub times_last: u64,
    /// Total time in which this rank could do nothing but wait.
    pub waited: Duration,
    /// Statistics by peer; this rank's own entry stays empty.
    pub peers: Vec<PeerStats>,
}

/// The lateness of a peer as one rank sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerStats {
    /// Number of calls in which this peer was the last to arrive.
    pub last: u64,
    /// Total lateness in these calls.
    pub lateness: Duration,
    /// Maximum lateness in one of these calls.
    pub most: Duration,
    /// Total time blocked on this peer, including later waits in a call.
    pub waited: Duration,
    /// Number of these calls by lateness: class 0 is below 1024 ns (or not timed), class `i` below
    /// `2^i` times as much. The last class has all above, a minute and more.
    pub histogram: [u64; LATENESS_CLASSES],
}

impl Stats {
    /// Adds the statistics of another period, among as many ranks.
    pub fn merge(&mut self, other: &Stats) {
        self.calls += other.calls;
        self.times_last += other.times_last;
        self.waited += other.waited;
        self.peers.resize(other.peers.len(), PeerStats::default());
        for (peer, other) in self.peers.iter_mut().zip(&other.peers) {
            peer.merge(other);
        }
    }
}

impl PeerStats {
    /// Adds the statistics of another period, or of another rank.
    pub fn merge(&mut self, other: &PeerStats) {
        self.last += other.last;
        self.lateness += other.lateness;
        self.most = self.most.max(other.most);
        self.waited += other.waited;
        for (count, other) in self.histogram.iter_mut().zip(other.histogram) {
            *count += other;
        }
    }

    fn was_last(&mut self, lateness: Duration) {
        let units = lateness.as_nanos() as u64 >> 10;
        let class = (u64::BITS - units.leading_zeros()) as usize;
        self.last += 1;
        self.lateness += lateness;
        self.most = self.most.max(lateness);
        self.histogram[class.min(LATENESS_CLASSES - 1)] += 1;
    }
}

/// The counters behind [`Stats`].
#[derive(Debug, Default)]
pub struct Lateness {
    /// The statistics, except for calls and the counters below.
    stats: Stats,
    /// Number of tiny calls, by peer, that waited for that peer last, too short for the clock.
    short: Vec<u64>,
    /// Number of other calls in which this rank was not the last.
    awaited: u64,
    /// Number of collective calls that were done before counting began.
    calls_before: u64,
    /// The number of the call under way, and of the last call in which each peer arrived.
    call: u64,
    arrived_in: Vec<u64>,
    is_running: bool,
    /// Whether a call has ended and is not counted yet: the driver may not have ended the call's
    /// last wait.
    has_ended: bool,
    /// Whether a peer arrived after this rank in the call under way, the beginning of this rank's
    /// first wait, and the last peer so far with its lateness.
    is_early: bool,
    first_wait: Option<Time>,
    last: Option<(usize, Duration)>,
    /// The last peer, with its lateness, in the call that was counted last.
    latest: Option<(usize, Duration)>,
    /// Whether anything but short waits was counted since the last `take_news`.
    has_news: bool,
    /// Whether a wait is under way, its beginning as far as it is timed, and the peer that ended
    /// the wait with whether this was its first sign.
    waits: bool,
    since: Option<Time>,
    ended_by: Option<(usize, bool)>,
}

impl Lateness {
    /// Creates zero counters for `world_size` ranks.
    pub fn new(world_size: usize) -> Lateness {
        Lateness {
            stats: Stats {
                peers: vec![PeerStats::default(); world_size],
                ..Stats::default()
            },
            short: vec![0; world_size],
            arrived_in: vec![0; world_size],
            ..Lateness::default()
        }
    }

    /// Returns the statistics up to now, when `calls` collective calls are done in all.
    pub fn stats(&self, calls: u64) -> Stats {
        let mut stats = self.stats.clone();
        for (peer, short) in stats.peers.iter_mut().zip(&self.short) {
            peer.last += short;
            peer.histogram[0] += short;
        }
        stats.calls = calls - self.calls_before;
        let awaited = self.awaited + self.short.iter().sum::<u64>();
        stats.times_last = stats.calls.saturating_sub(awaited);
        stats
    }

    /// Resets the counters, when `calls` collective calls are done in all.
    pub fn reset(&mut self, calls: u64) {
        let world_size = self.short.len();
        self.stats = Stats::default();
        self.stats.peers.resize(world_size, PeerStats::default());
        self.short.fill(0);
        (self.awaited, self.calls_before) = (0, calls);
        self.has_news = true;
    }

    /// Returns whether anything but short waits was counted since the last `take_news`.
    #[inline]
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Whether [`take_news`](Lateness::take_news) would return true.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Returns the total wait of this rank, the number of calls in which it was not the last (short
    /// waits excepted), and the number of counted calls. `calls` is the number of calls done in
    /// all.
    pub fn totals(&self, calls: u64) -> (Duration, u64, u64) {
        let counted = calls.saturating_sub(self.calls_before);
        (self.stats.waited, self.awaited, counted)
    }

    /// Returns the statistics of a peer, and separately the number of short waits for it.
    pub fn peer(&self, rank: usize) -> (&PeerStats, u64) {
        (&self.stats.peers[rank], self.short[rank])
    }

    /// Returns the last peer in the call counted last, with its lateness, zero if not timed.
    pub fn latest(&self) -> Option<(usize, Duration)> {
        self.latest
    }

    /// Records that a collective call begins to run.
    pub fn begin_call(&mut self) {
        self.call += 1;
        self.is_running = true;
    }

    /// Records that the running call is done.
    pub fn end_call(&mut self) {
        self.has_ended |= std::mem::take(&mut self.is_running);
    }

    /// Records a sign of `peer` in the running call.
    #[inline]
    pub fn peer_arrived(&mut self, peer: usize) {
        let before = std::mem::replace(&mut self.arrived_in[peer], self.call);
        if self.waits && self.ended_by.is_none() {
            self.ended_by = Some((peer, before != self.call));
        }
    }

    /// Records that a send to `peer` is complete.
    #[inline]
    pub fn send_completed(&mut self, peer: usize) {
        if self.waits && self.ended_by.is_none() {
            self.ended_by = Some((peer, false));
        }
    }

    /// Counts a tiny call that waited for `peer` last, too short for the clock.
    #[inline]
    pub fn count_short(&mut self, peer: usize) {
        self.short[peer] += 1;
    }

    /// Records that this rank has nothing to do now.
    #[inline]
    pub fn begin_wait(&mut self) {
        if !self.waits && self.is_running {
            (self.waits, self.since, self.ended_by) = (true, None, None);
        }
    }

    /// Records that the wait under way has lasted long enough to be timed.
    pub fn time_wait(&mut self, now: Time) {
        if self.waits {
            self.since.get_or_insert(now);
            self.first_wait.get_or_insert(now);
        }
    }

    /// Forgets the wait under way, and those before it in this call: this rank's own device has
    /// held it up.
    pub fn forget_waits(&mut self) {
        (self.waits, self.since, self.ended_by) = (false, None, None);
        self.first_wait = None;
    }

    /// Ends the wait under way; `now` is called if the wait was timed.
    #[inline]
    pub fn end_wait(&mut self, now: impl FnOnce() -> Time) {
        if !std::mem::take(&mut self.waits) {
            return;
        }
        let now = self.since.map(|_| now());
        let from = |begin: Option<Time>| match (begin, now) {
            (Some(begin), Some(now)) => now.since(begin),
            _ => Duration::ZERO,
        };
        let wait = from(self.since);
        self.stats.waited += wait;
        if let Some((peer, is_first)) = self.ended_by {
            self.stats.peers[peer].waited += wait;
            if is_first {
                self.last = Some((peer, from(self.first_wait)));
            }
        }
        self.is_early |= self.ended_by.is_none_or(|(_, is_first)| is_first);
    }

    /// Counts a call that has ended. The caller calls `end_wait` first, which may end the call's
    /// last wait.
    #[inline]
    pub fn count_ended_call(&mut self) {
        if !std::mem::take(&mut self.has_ended) {
            return;
        }
        self.awaited += u64::from(std::mem::take(&mut self.is_early));
        self.latest = self.last.take();
        if let Some((peer, lateness)) = self.latest {
            self.stats.peers[peer].was_last(lateness);
        }
        self.has_news = true;
        self.first_wait = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_us(us: u128) -> Time {
        Time(us * 1_000_000)
    }

    /// Waits from one time to another, until `peer` is heard.
    fn wait(lateness: &mut Lateness, from_us: u128, until_us: u128, peer: usize) {
        lateness.begin_wait();
        lateness.time_wait(at_us(from_us));
        lateness.peer_arrived(peer);
        lateness.end_wait(|| at_us(until_us));
    }

    #[test]
    fn the_last_to_arrive_was_late_since_the_first_wait() {
        let mut lateness = Lateness::new(4);
        lateness.begin_call();
        wait(&mut lateness, 10, 15, 1);
        wait(&mut lateness, 20, 50, 3);
        // This peer was heard before: its link is slow.
        wait(&mut lateness, 60, 160, 1);
        lateness.end_call();
        lateness.count_ended_call();
        let stats = lateness.stats(1);
        assert_eq!((stats.calls, stats.times_last), (1, 0));
        assert_eq!(stats.waited, Duration::from_micros(5 + 30 + 100));
        assert_eq!(stats.peers[1].waited, Duration::from_micros(105));
        assert_eq!((stats.peers[1].last, stats.peers[3].last), (0, 1));
        assert_eq!(stats.peers[3].most, Duration::from_micros(40));
        // 40 µs are 39 units: the sixth bit.
        assert_eq!(stats.peers[3].histogram[6], 1);
    }

    #[test]
    fn a_rank_that_waits_for_no_first_sign_was_the_last() {
        let mut lateness = Lateness::new(2);
        for _ in 0..3 {
            lateness.begin_call();
            lateness.peer_arrived(1);
            wait(&mut lateness, 10, 20, 1);
            lateness.end_call();
            lateness.count_ended_call();
        }
        // The fourth call is a tiny one without a wait.
        let stats = lateness.stats(4);
        assert_eq!((stats.calls, stats.times_last), (4, 4));
        assert_eq!((stats.peers[1].last, stats.waited.as_micros()), (0, 30));
    }

    #[test]
    fn a_wait_too_short_for_the_clock_counts_and_takes_no_time() {
        let mut lateness = Lateness::new(2);
        lateness.begin_call();
        lateness.begin_wait();
        lateness.peer_arrived(1);
        lateness.end_wait(|| unreachable!("no clock"));
        lateness.end_call();
        lateness.count_ended_call();
        lateness.count_short(1);
        assert_eq!(lateness.stats(3).times_last, 1);
        let peer = lateness.stats(3).peers[1];
        assert_eq!((peer.last, peer.histogram[0]), (2, 2));
        assert_eq!(peer.lateness, Duration::ZERO);
    }

    #[test]
    fn calls_that_end_together_waited_once_and_no_wait_is_counted_between_calls() {
        let mut lateness = Lateness::new(2);
        lateness.begin_wait();
        lateness.end_wait(|| unreachable!("no call is under way"));
        lateness.begin_call();
        lateness.begin_wait();
        lateness.time_wait(at_us(1));
        lateness.send_completed(1);
        lateness.end_call();
        lateness.begin_call();
        lateness.end_call();
        lateness.end_wait(|| at_us(3));
        lateness.count_ended_call();
        let stats = lateness.stats(2);
        assert_eq!(
            (stats.calls, stats.times_last, stats.peers[1].last),
            (2, 2, 0)
        );
        assert_eq!(stats.peers[1].waited, Duration::from_micros(2));
        lateness.reset(2);
        assert_eq!(lateness.stats(2), Lateness::new(2).stats(0));
    }

    #[test]
    fn hours_are_in_the_last_class() {
        let mut peer = PeerStats::default();
        peer.was_last(Duration::from_secs(7200));
        peer.was_last(Duration::from_nanos(1023));
        peer.was_last(Duration::from_nanos(1024));
        assert_eq!((peer.histogram[0], peer.histogram[1]), (1, 1));
        assert_eq!(peer.histogram[LATENESS_CLASSES - 1], 1);
    }
}
