//! Links inside the network with several concurrent messages: their bandwidth is shared max-min
//! fairly (Bertsekas & Gallager, Data Networks, 1992), and recomputed whenever a message begins or
//! ends.
//!
//! Rates are `f64`, of which only basic operations are used. The end of a message is rounded to a
//! whole picosecond, so a message alone on its links takes exactly its bytes times β.

use crate::simulate::model::Switch;

/// A message that is leaving.
pub(in crate::simulate) struct Flow {
    pub message: u32,
    /// Shared links that the message crosses.
    pub links: Vec<usize>,
    /// Maximum rate of the sender's port, in bytes per picosecond.
    pub most: f64,
    pub rate: f64,
    pub bytes_left: f64,
    pub begin_ps: u64,
    pub end_ps: u64,
}

/// The shared links and their flows.
pub(in crate::simulate) struct SharedLinks {
    /// Bandwidth in bytes per picosecond, alternately out of the near side and into it.
    capacity: Vec<f64>,
    /// Whether a rank is on the near side, by switch and rank.
    near: Vec<Vec<bool>>,
    pub flows: Vec<Flow>,
    dealt_ps: u64,
    /// Number of times that bandwidth was shared out.
    pub deal: u64,
}

impl SharedLinks {
    pub fn new(switches: &[Switch], world_size: usize) -> SharedLinks {
        let near = |switch: &Switch| {
            (0..world_size)
                .map(|rank| switch.ranks.contains(&rank))
                .collect()
        };
        let capacity = switches
            .iter()
            .flat_map(|switch| [1.0 / switch.ps_per_byte as f64; 2]);
        SharedLinks {
            capacity: capacity.collect(),
            near: switches.iter().map(near).collect(),
            flows: Vec::new(),
            dealt_ps: 0,
            deal: 0,
        }
    }

    /// Whether there are no shared links.
    pub fn is_empty(&self) -> bool {
        self.capacity.is_empty()
    }

    /// Returns the shared links between two ranks.
    pub fn links_between(&self, from: usize, to: usize) -> Vec<usize> {
        let crossing = self
            .near
            .iter()
            .enumerate()
            .filter(|(_, near)| near[from] != near[to]);
        crossing
            .map(|(switch, near)| 2 * switch + usize::from(near[to]))
            .collect()
    }

    /// Advances every flow to `now`.
    pub fn move_on(&mut self, now: u64) {
        let passed = (now - self.dealt_ps) as f64;
        for flow in &mut self.flows {
            flow.bytes_left = (flow.bytes_left - flow.rate * passed).max(0.0);
        }
        self.dealt_ps = now;
    }

    /// Sets every flow's rate: raises all rates evenly, and fixes flows that are saturated or on a
    /// saturated link.
    pub fn deal_out(&mut self) {
        self.deal += 1;
        let mut spare = self.capacity.clone();
        let mut open: Vec<usize> = (0..self.flows.len()).collect();
        while !open.is_empty() {
            let mut users = vec![0u32; spare.len()];
            for &flow in &open {
                for &link in &self.flows[flow].links {
                    users[link] += 1;
                }
            }
            let fair = |link: usize| spare[link] / f64::from(users[link]);
            let shared = (0..spare.len()).filter(|&link| users[link] > 0).map(fair);
            let least = open.iter().map(|&flow| self.flows[flow].most);
            let level = least.chain(shared).fold(f64::INFINITY, f64::min);
            let full: Vec<bool> = (0..spare.len())
                .map(|link| users[link] > 0 && fair(link) <= level)
                .collect();
            let is_fixed =
                |flow: &Flow| flow.most <= level || flow.links.iter().any(|&link| full[link]);
            let (fixed, rest) = open.iter().partition(|&&flow| is_fixed(&self.flows[flow]));
            open = rest;
            let fixed: Vec<usize> = fixed;
            for flow in fixed {
                let flow = &mut self.flows[flow];
                flow.rate = level;
                for &link in &flow.links {
                    spare[link] = (spare[link] - level).max(0.0);
                }
            }
        }
        for flow in &mut self.flows {
            flow.end_ps = self.dealt_ps + (flow.bytes_left / flow.rate).round() as u64;
        }
    }
}
