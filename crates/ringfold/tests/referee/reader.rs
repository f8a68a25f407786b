//! A reader of GOAL texts: full-duplex ports, eager messages, processors that run one operation at
//! a time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// The task of a line.
enum Task {
    Send { bytes: u64, to: usize, tag: u32 },
    Recv { from: usize, tag: u32 },
    Calc { ps: u64, cpu: u32 },
}

struct Node {
    rank: usize,
    task: Task,
    /// Number of tasks for which this task still waits.
    waits: usize,
    /// Tasks that wait until this task is complete, and tasks that wait until it has begun.
    on_end: Vec<usize>,
    on_begin: Vec<usize>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(usize),
    /// The first byte of message (from, to, tag), and the message's duration in picoseconds.
    FirstByte((usize, usize, u32), u64),
    Arrived((usize, usize, u32)),
}

#[derive(Default)]
struct State {
    now: u64,
    count: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    transmit_free: HashMap<usize, u64>,
    receive_free: HashMap<usize, u64>,
    cpus: HashMap<(usize, u32), (bool, VecDeque<usize>)>,
    arrived: HashMap<(usize, usize, u32), bool>,
    posted: HashMap<(usize, usize, u32), usize>,
}

/// Returns the time that a text takes over links of this latency and inverse bandwidth.
pub fn time_ps(text: &str, alpha_ps: u64, ps_per_byte: u64) -> u64 {
    let mut nodes = parse(text);
    let mut state = State::default();
    let mut ready: VecDeque<usize> = (0..nodes.len())
        .filter(|node| nodes[*node].waits == 0)
        .collect();
    let mut done = 0;
    loop {
        while let Some(node) = ready.pop_front() {
            state.begin(node, &nodes, alpha_ps, ps_per_byte);
            let next = std::mem::take(&mut nodes[node].on_begin);
            release(&mut nodes, next, &mut ready);
        }
        let Some(Reverse((at, _, event))) = state.events.pop() else {
            assert_eq!(done, nodes.len(), "a deadlock");
            return state.now;
        };
        state.now = at;
        let ended = match event {
            Event::End(node) => Some(node),
            Event::FirstByte(message, ps) => {
                let free = state.receive_free.entry(message.1).or_default();
                *free = at.max(*free) + ps;
                let end = *free;
                state.at(end, Event::Arrived(message));
                None
            }
            Event::Arrived(message) => {
                state.arrived.insert(message, true);
                state.posted.remove(&message)
            }
        };
        if let Some(node) = ended {
            done += 1;
            state.leave_cpu(node, &nodes);
            let next = std::mem::take(&mut nodes[node].on_end);
            release(&mut nodes, next, &mut ready);
        }
    }
}

fn release(nodes: &mut [Node], waiting: Vec<usize>, ready: &mut VecDeque<usize>) {
    for node in waiting {
        nodes[node].waits -= 1;
        if nodes[node].waits == 0 {
            ready.push_back(node);
        }
    }
}

impl State {
    fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, event)));
    }

    fn begin(&mut self, node: usize, nodes: &[Node], alpha_ps: u64, ps_per_byte: u64) {
        let (now, rank) = (self.now, nodes[node].rank);
        match nodes[node].task {
            Task::Send { bytes, to, tag } => {
                let free = self.transmit_free.entry(rank).or_default();
                let (begin, ps) = (now.max(*free), bytes * ps_per_byte);
                *free = begin + ps;
                self.at(begin + ps, Event::End(node));
                self.at(begin + alpha_ps, Event::FirstByte((rank, to, tag), ps));
            }
            Task::Recv { from, tag } => {
                let message = (from, rank, tag);
                if self.arrived.contains_key(&message) {
                    self.at(now, Event::End(node));
                } else {
                    self.posted.insert(message, node);
                }
            }
            Task::Calc { ps, cpu } => {
                let (is_busy, queue) = self.cpus.entry((rank, cpu)).or_default();
                if *is_busy {
                    queue.push_back(node);
                } else {
                    *is_busy = true;
                    self.at(now + ps, Event::End(node));
                }
            }
        }
    }

    fn leave_cpu(&mut self, node: usize, nodes: &[Node]) {
        let Task::Calc { cpu, .. } = nodes[node].task else {
            return;
        };
        let place = (nodes[node].rank, cpu);
        let (is_busy, queue) = self.cpus.entry(place).or_default();
        let next = queue.pop_front();
        *is_busy = next.is_some();
        if let Some(next) = next {
            let Task::Calc { ps, .. } = nodes[next].task else {
                unreachable!("only calculations wait for a processor");
            };
            self.at(self.now + ps, Event::End(next));
        }
    }
}

fn parse(text: &str) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut rank = 0;
    let mut labels: HashMap<(usize, String), usize> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].trim_end_matches('b').parse::<u64>().unwrap();
        let task = match words.as_slice() {
            [] | ["num_ranks", _] | ["}"] => continue,
            ["rank", own, "{"] => {
                rank = own.parse().unwrap();
                continue;
            }
            [later, kind @ ("requires" | "irequires"), earlier] => {
                let node = |label: &str| labels[&(rank, label.to_string())];
                let (later, earlier) = (node(later), node(earlier));
                nodes[later].waits += 1;
                match *kind {
                    "requires" => nodes[earlier].on_end.push(later),
                    _ => nodes[earlier].on_begin.push(later),
                }
                continue;
            }
            [_, "send", ..] => Task::Send {
                bytes: number(2),
                to: number(4) as usize,
                tag: number(6) as u32,
            },
            [_, "recv", ..] => Task::Recv {
                from: number(4) as usize,
                tag: number(6) as u32,
            },
            [_, "calc", ..] => Task::Calc {
                ps: number(2),
                cpu: number(4) as u32,
            },
            _ => panic!("invalid line: {line}"),
        };
        labels.insert(
            (rank, words[0].trim_end_matches(':').to_string()),
            nodes.len(),
        );
        nodes.push(Node {
            rank,
            task,
            waits: 0,
            on_end: Vec::new(),
            on_begin: Vec::new(),
        });
    }
    nodes
}
