//! The links of a device: one in each direction, which carries one copy at a time, first come,
//! first served. While both are busy, each has a part of its rate.

use std::collections::VecDeque;

use crate::simulate::devices::Direction;

/// A copy on its way, or one that waits for the link.
struct Copy {
    rank: u32,
    /// What is left of it, in picoseconds at the link's whole rate.
    left_ps: f64,
    /// When it had the link.
    begin_ps: u64,
}

/// A copy that has passed its link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Passed {
    pub rank: u32,
    pub direction: Direction,
    pub begin_ps: u64,
}

/// Both directions of a device's link.
pub(in crate::simulate) struct DeviceLinks {
    /// Copies in each direction, the one that has the link in front.
    copies: [VecDeque<Copy>; 2],
    duplex: f64,
    /// Up to when `left_ps` counts.
    counted_ps: u64,
    /// Changes of what is on the links.
    pub change: u64,
}

impl DeviceLinks {
    pub fn new(duplex: f64) -> DeviceLinks {
        DeviceLinks {
            copies: Default::default(),
            duplex,
            counted_ps: 0,
            change: 0,
        }
    }

    /// Puts a copy behind those of its direction; alone it takes `link_ps`.
    pub fn put(&mut self, now: u64, rank: u32, direction: Direction, link_ps: u64) {
        self.count(now);
        self.copies[direction as usize].push_back(Copy {
            rank,
            left_ps: link_ps as f64,
            begin_ps: now,
        });
        self.change += 1;
    }

    /// When the next copy has passed, if nothing changes.
    pub fn next_ps(&self) -> Option<u64> {
        let rate = self.rate();
        let fronts = self.copies.iter().filter_map(|copies| copies.front());
        let due = fronts.map(|copy| self.counted_ps + (copy.left_ps / rate).round() as u64);
        due.min()
    }

    /// The copies that have passed by `now`. Those behind them have the link.
    pub fn take_passed(&mut self, now: u64) -> Vec<Passed> {
        self.count(now);
        let mut passed = Vec::new();
        for direction in [Direction::Out, Direction::In] {
            let copies = &mut self.copies[direction as usize];
            let has_passed = copies.front().is_some_and(|copy| copy.left_ps < 1.0);
            let Some(copy) = has_passed.then(|| copies.pop_front()).flatten() else {
                continue;
            };
            passed.push(Passed {
                rank: copy.rank,
                direction,
                begin_ps: copy.begin_ps,
            });
            if let Some(next) = copies.front_mut() {
                next.begin_ps = now;
            }
        }
        self.change += 1;
        passed
    }

    /// The part of its rate that a direction has now.
    fn rate(&self) -> f64 {
        match self.copies.iter().all(|copies| !copies.is_empty()) {
            true => self.duplex,
            false => 1.0,
        }
    }

    /// Takes into account what has passed until `now`.
    fn count(&mut self, now: u64) {
        let passed_ps = (now - self.counted_ps) as f64 * self.rate();
        for copies in &mut self.copies {
            if let Some(copy) = copies.front_mut() {
                copy.left_ps = (copy.left_ps - passed_ps).max(0.0);
            }
        }
        self.counted_ps = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When each copy passes, in order.
    fn passed(links: &mut DeviceLinks) -> Vec<(u32, u64)> {
        let mut all = vec![];
        while let Some(now) = links.next_ps() {
            let passed = links.take_passed(now);
            all.extend(passed.into_iter().map(|copy| (copy.rank, now)));
        }
        all
    }

    #[test]
    fn copies_of_a_direction_follow_each_other() {
        let mut links = DeviceLinks::new(0.5);
        links.put(100, 0, Direction::Out, 40);
        links.put(110, 1, Direction::Out, 40);
        assert_eq!(passed(&mut links), [(0, 140), (1, 180)]);
    }

    #[test]
    fn both_directions_together_have_their_part_of_the_rate() {
        let mut links = DeviceLinks::new(0.5);
        links.put(0, 0, Direction::Out, 100);
        // From 40 on both are at half the rate: 60 are left of the first, and take until 160. Then
        // 40 of the second are left, at the whole rate.
        links.put(40, 1, Direction::In, 100);
        assert_eq!(passed(&mut links), [(0, 160), (1, 200)]);
        let mut links = DeviceLinks::new(1.0);
        links.put(0, 0, Direction::Out, 100);
        links.put(40, 1, Direction::In, 100);
        assert_eq!(passed(&mut links), [(0, 100), (1, 140)]);
    }
}
