//! Links inside the network with several concurrent messages: their bandwidth is shared max-min
//! fairly (Bertsekas & Gallager, Data Networks, 1992), and recomputed whenever a message begins or
//! ends.
//!
//! Rates are `f64`, of which only basic operations are used; the end of a message is rounded to a
//! whole picosecond, so a message that has its links for itself ends exactly after its bytes times
//! β.

use super::model::{Sending, Switch};
use super::world::{Event, World};

/// A message that is leaving.
struct Flow {
    message: u32,
    /// The shared links that it is on.
    links: Vec<usize>,
    /// The most that its port gives, bytes per picosecond.
    most: f64,
    rate: f64,
    bytes_left: f64,
    begin_ps: u64,
    end_ps: u64,
}

/// The shared links and their flows.
pub(super) struct Shares {
    /// Bytes per picosecond; out of the near side and into it by turns.
    capacity: Vec<f64>,
    /// By switch and rank: whether it is on the near side.
    near: Vec<Vec<bool>>,
    flows: Vec<Flow>,
    dealt_ps: u64,
    /// How many times it was dealt out.
    deal: u64,
}

impl Shares {
    pub fn new(switches: &[Switch], world_size: usize) -> Shares {
        let near = |switch: &Switch| {
            (0..world_size)
                .map(|rank| switch.ranks.contains(&rank))
                .collect()
        };
        let capacity = switches
            .iter()
            .flat_map(|switch| [1.0 / switch.ps_per_byte as f64; 2]);
        Shares {
            capacity: capacity.collect(),
            near: switches.iter().map(near).collect(),
            flows: Vec::new(),
            dealt_ps: 0,
            deal: 0,
        }
    }

    /// Whether there are no such links.
    pub fn is_empty(&self) -> bool {
        self.capacity.is_empty()
    }

    /// The shared links between two ranks.
    fn links_between(&self, from: usize, to: usize) -> Vec<usize> {
        let crossing = self
            .near
            .iter()
            .enumerate()
            .filter(|(_, near)| near[from] != near[to]);
        crossing
            .map(|(switch, near)| 2 * switch + usize::from(near[to]))
            .collect()
    }

    /// Moves every flow on to `now`.
    fn move_on(&mut self, now: u64) {
        let passed = (now - self.dealt_ps) as f64;
        for flow in &mut self.flows {
            flow.bytes_left = (flow.bytes_left - flow.rate * passed).max(0.0);
        }
        self.dealt_ps = now;
    }

    /// Gives every flow its share: raises all flows evenly, and fixes those that are saturated or
    /// on a saturated link.
    fn deal_out(&mut self) {
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

impl World {
    /// Has a message wait for its sender's port, where links are shared.
    pub fn queue_at_port(&mut self, number: u32) {
        let message = self.messages.see(number);
        let (from, is_local) = (message.from, message.is_local);
        let port = &mut self.ranks[from as usize].ports[usize::from(is_local)];
        port.queue.push_back(number);
        if !port.is_taken {
            self.port_rested(from, is_local);
        }
    }

    /// The next message of a port sets off.
    pub fn port_rested(&mut self, rank: u32, is_local: bool) {
        let port = &mut self.ranks[rank as usize].ports[usize::from(is_local)];
        port.is_taken = false;
        let Some(number) = port.queue.pop_front() else {
            return;
        };
        port.is_taken = true;
        let message = self.messages.see(number);
        let (sending_ps, _) = self.durations_ps(message);
        let bytes = message.bytes() as f64;
        let most = match sending_ps {
            0 => f64::MAX,
            ps => bytes / ps as f64,
        };
        let links = self
            .shares
            .links_between(message.from as usize, message.to as usize);
        let begin_ps = self.now;
        self.shares.move_on(begin_ps);
        self.shares.flows.push(Flow {
            message: number,
            links,
            most,
            rate: 0.0,
            bytes_left: bytes,
            begin_ps,
            end_ps: begin_ps,
        });
        self.deal_out();
    }

    fn deal_out(&mut self) {
        self.shares.deal_out();
        let next = self.shares.flows.iter().map(|flow| flow.end_ps).min();
        if let Some(end_ps) = next {
            self.schedule(end_ps, Event::Drained(self.shares.deal));
        }
    }

    /// Messages have left, unless it was dealt out anew since this was planned.
    pub fn drained(&mut self, deal: u64) {
        if deal != self.shares.deal {
            return;
        }
        let now = self.now;
        self.shares.move_on(now);
        let gone = self.shares.flows.extract_if(.., |flow| flow.end_ps <= now);
        let gone: Vec<(u32, u64)> = gone.map(|flow| (flow.message, flow.begin_ps)).collect();
        self.deal_out();
        for (number, begin_ps) in gone {
            self.leave_port(number, begin_ps, now);
            let message = self.messages.see(number);
            let (from, to, is_local) = (message.from, message.to, message.is_local);
            let source = (from, message.channel);
            let links = *self.model.network.links_between(from as usize, to as usize);
            self.incoming(to, source).busy_ps += now - begin_ps;
            if self.model.network.sending == Sending::Eager {
                self.sent(number);
            }
            self.schedule(
                now.max(self.first_byte_ps(number)),
                Event::FirstByte(number),
            );
            self.schedule(
                now + links.gap_ps,
                Event::PortRested {
                    rank: from,
                    is_local,
                },
            );
        }
    }
}
