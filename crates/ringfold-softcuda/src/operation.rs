//! What a stream does: operations that advance in steps, so that threads and stepping run the same
//! code.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::{Driver, lock, now_ns};
use crate::event::Mark;
use crate::link::{Direction, Link};
use crate::memory;
use crate::ptx::{INSTRUCTIONS_MAX, Launch, Step};
use crate::report::end;
use crate::settings::Mode;

/// What a target holds while it is copied to.
const POISON: u8 = 0xff;
/// The most that a copy moves in a step.
const PIECE_BYTES_MAX: usize = 256 * 1024;

/// How a wait compares a word with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The word is at or past the value, on the circle of 32-bit numbers.
    AtLeast,
    Equal,
    And,
    Nor,
}

impl Compare {
    /// The comparison of `CU_STREAM_WAIT_VALUE_*`.
    pub fn from_flags(flags: u32) -> Option<Compare> {
        let kinds = [Compare::AtLeast, Compare::Equal, Compare::And, Compare::Nor];
        kinds.get(flags as usize).copied()
    }

    /// Whether a word that is `now` ends a wait for `value`.
    pub fn holds(self, now: u32, value: u32) -> bool {
        match self {
            Compare::AtLeast => now.wrapping_sub(value).cast_signed() >= 0,
            Compare::Equal => now == value,
            Compare::And => now & value != 0,
            Compare::Nor => !(now | value) != 0,
        }
    }
}

/// Which memory a copy is between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Device to host.
    Down,
    /// Host to device.
    Up,
    /// Within a device.
    Within,
}

/// A copy, and how far it is.
#[derive(Clone, Debug)]
pub struct Transfer {
    pub from: usize,
    pub to: usize,
    pub bytes: usize,
    pub route: Route,
    /// Bytes that are moved; nothing before it has begun.
    moved: Option<usize>,
    /// When the piece that is being moved arrives.
    due_ns: Option<u64>,
}

/// A function of the program that runs as an operation of a stream, in place of a kernel.
pub type Kernel = extern "C" fn(argument: usize);

/// One operation of a stream. Addresses are the program's.
#[derive(Clone, Debug)]
pub enum Operation {
    Launch {
        kernel: Kernel,
        argument: usize,
    },
    Copy(Transfer),
    Fill {
        at: usize,
        byte: u8,
        bytes: usize,
    },
    Write {
        word: usize,
        value: u32,
    },
    Wait {
        word: usize,
        value: u32,
        compare: Compare,
    },
    Run(Launch),
    Record(Arc<Mark>),
    Await(Arc<Mark>),
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The operation is done.
    Done,
    /// It has moved and is not done.
    Moved,
    /// It goes on at this time.
    Until(u64),
    /// It waits for something else.
    Blocked,
}

impl Operation {
    /// A copy that has not begun.
    pub fn copy(from: usize, to: usize, bytes: usize, route: Route) -> Operation {
        Operation::Copy(Transfer {
            from,
            to,
            bytes,
            route,
            moved: None,
            due_ns: None,
        })
    }

    /// Goes one step on. `clock_ns` is the stream's modelled time: when its last operation ended.
    pub fn advance(&mut self, driver: &Driver, link: &Link, clock_ns: &mut u64) -> Progress {
        match self {
            Operation::Launch { kernel, argument } => {
                kernel(*argument);
                *clock_ns = (*clock_ns).max(now_ns());
                Progress::Done
            }
            Operation::Copy(transfer) => transfer.advance(driver, link, clock_ns),
            Operation::Fill { at, byte, bytes } => {
                run(driver.memory.fill(*at, *byte, *bytes));
                Progress::Done
            }
            Operation::Write { word, value } => {
                // Release: pairs with the program's Acquire load of the word; the copies before are
                // visible then.
                let store = |word: &AtomicU32| word.store(*value, Ordering::Release);
                run(driver.memory.with_word(*word, store));
                Progress::Done
            }
            Operation::Wait {
                word,
                value,
                compare,
            } => {
                // Acquire: pairs with the program's Release store to the word.
                let load = |word: &AtomicU32| word.load(Ordering::Acquire);
                let now = run(driver.memory.with_word(*word, load));
                if !compare.holds(now, *value) {
                    return Progress::Blocked;
                }
                *clock_ns = (*clock_ns).max(now_ns());
                Progress::Done
            }
            Operation::Run(launch) => {
                let instructions = match driver.settings.mode {
                    Mode::Threads => INSTRUCTIONS_MAX,
                    // Other queues see it wherever it is.
                    Mode::Seeded | Mode::Stepped => {
                        1 + lock(&driver.random).below(INSTRUCTIONS_MAX)
                    }
                };
                match launch.advance(&driver.memory, instructions) {
                    Step::Ended => Progress::Done,
                    Step::Moved => Progress::Moved,
                    Step::Spun => Progress::Blocked,
                }
            }
            Operation::Record(mark) => {
                mark.reach();
                Progress::Done
            }
            Operation::Await(mark) => match mark.reached() {
                Some(reached_ns) => {
                    *clock_ns = (*clock_ns).max(reached_ns);
                    Progress::Done
                }
                None => Progress::Blocked,
            },
        }
    }

    /// The word that it waits for.
    pub fn word(&self) -> Option<usize> {
        match self {
            Operation::Wait { word, .. } => Some(*word),
            _ => None,
        }
    }
}

impl Transfer {
    fn advance(&mut self, driver: &Driver, link: &Link, clock_ns: &mut u64) -> Progress {
        let (from, to) = self.places(driver);
        let Some(moved) = self.moved else {
            driver.memory.begin_use(self.from, self.bytes);
            driver.memory.begin_use(self.to, self.bytes);
            if driver.settings.poison {
                memory::fill(to, POISON, self.bytes);
            }
            self.moved = Some(0);
            *clock_ns += link.latency_ns;
            return Progress::Moved;
        };
        // Two pieces at least, so that a copy is seen half done.
        let piece = self.bytes.div_ceil(2).clamp(1, PIECE_BYTES_MAX);
        let piece = piece.min(self.bytes - moved);
        if link.is_timed {
            let gap_ns = if moved == 0 { link.gap_ns } else { 0 };
            let due_ns = *self.due_ns.get_or_insert_with(|| match self.route {
                Route::Down => link.reserve(Direction::Down, piece, *clock_ns, gap_ns),
                Route::Up => link.reserve(Direction::Up, piece, *clock_ns, gap_ns),
                Route::Within => *clock_ns,
            });
            if now_ns() < due_ns {
                return Progress::Until(due_ns);
            }
            *clock_ns = due_ns;
            self.due_ns = None;
        }
        memory::copy(from + moved, to + moved, piece);
        self.moved = Some(moved + piece);
        if moved + piece < self.bytes {
            return Progress::Moved;
        }
        driver.memory.end_use(self.from, self.bytes);
        driver.memory.end_use(self.to, self.bytes);
        Progress::Done
    }

    /// Where the driver finds both sides; ends the process if one is gone.
    fn places(&self, driver: &Driver) -> (usize, usize) {
        let (memory, bytes) = (&driver.memory, self.bytes);
        let (from, to) = match self.route {
            Route::Down => (memory.device(self.from, bytes), memory.host(self.to, bytes)),
            Route::Up => (memory.host(self.from, bytes), memory.device(self.to, bytes)),
            Route::Within => (
                memory.device(self.from, bytes),
                memory.device(self.to, bytes),
            ),
        };
        (run(from), run(to))
    }
}

/// What was found or done, or the end of the process.
fn run<T>(found: Result<T, String>) -> T {
    found.unwrap_or_else(|why| end(format!("an operation runs, but {why}")))
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Copy(Transfer {
                from,
                to,
                bytes,
                moved,
                ..
            }) => {
                let moved = moved.unwrap_or(0);
                write!(
                    f,
                    "copy {from:#x} to {to:#x}, {moved} of {bytes} bytes moved"
                )
            }
            Operation::Launch { kernel, .. } => write!(f, "a kernel at {kernel:p}"),
            Operation::Fill { at, bytes, .. } => write!(f, "fill {bytes} bytes at {at:#x}"),
            Operation::Write { word, value } => write!(f, "write {value} to {word:#x}"),
            Operation::Wait {
                word,
                value,
                compare,
            } => write!(f, "wait until {word:#x} is {compare:?} {value}"),
            Operation::Run(_) => f.write_str("run a kernel of a module"),
            Operation::Record(_) => f.write_str("record an event"),
            Operation::Await(_) => f.write_str("wait for an event"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_compares_on_a_circle() {
        let at_least = |now, value| Compare::AtLeast.holds(now, value);
        assert!(at_least(7, 7) && at_least(8, 7) && !at_least(6, 7));
        // Past the largest number, and half the circle away.
        assert!(at_least(2, u32::MAX) && !at_least(u32::MAX, 2));
        assert!(at_least(0x7fff_ffff, 0) && !at_least(0x8000_0000, 0));
    }

    #[test]
    fn other_comparisons_are_the_interface_s() {
        assert!(Compare::Equal.holds(3, 3) && !Compare::Equal.holds(4, 3));
        assert!(Compare::And.holds(6, 2) && !Compare::And.holds(4, 2));
        assert!(Compare::Nor.holds(1, 2) && !Compare::Nor.holds(u32::MAX, 0));
        assert_eq!(Compare::from_flags(4), None);
    }
}
