//! The instructions for the program of a rank, in a variable of its environment.

/// The instructions for a rank.
#[derive(Clone, Debug)]
pub struct Script {
    /// The collective that is called in a loop.
    pub collective: String,
    /// Bytes of one rank's data.
    pub bytes: usize,
    /// Number of calls; 0 continues until something ends the rank.
    pub iterations: u64,
    /// Whether even and odd ranks make the calls separately, in communicators of their own.
    pub in_halves: bool,
    /// Pause between two calls, in microseconds.
    pub pause_us: u64,
    /// The action in place of the call with number `at`: none, or `close`, `abort`, `exit`,
    /// `count`, `op`, `dtype`, `collective`, `root`; or `stop`, which stops the process and makes
    /// the call when the process is continued; or `fork`, which leaves a child that lives on, and
    /// makes the call; or `fork_and_drop`, whose child ends first.
    pub act: String,
    /// Number of the call that `act` replaces.
    pub at: u64,
    /// The deadline of an `all_reduce` after `stop`, in milliseconds; 0 is the communicator's.
    pub deadline_ms: u64,
    /// Whether the rank reports every successful call.
    pub tells: bool,
}

impl Default for Script {
    fn default() -> Script {
        Script {
            collective: "all_reduce".into(),
            bytes: 64 << 10,
            iterations: 0,
            in_halves: false,
            pause_us: 0,
            act: String::new(),
            at: 0,
            deadline_ms: 0,
            tells: false,
        }
    }
}

impl Script {
    pub fn encode(&self) -> String {
        format!(
            "collective={} bytes={} iterations={} in_halves={} pause_us={} act={} at={} \
             deadline_ms={} tells={}",
            self.collective,
            self.bytes,
            self.iterations,
            self.in_halves,
            self.pause_us,
            self.act,
            self.at,
            self.deadline_ms,
            self.tells
        )
    }

    pub fn decode(text: &str) -> Script {
        let word = |name: &str| {
            let mut words = text.split(' ').filter_map(|word| word.split_once('='));
            let found = words.find(|(key, _)| *key == name);
            found.expect("a whole script").1.to_string()
        };
        let number = |name: &str| word(name).parse().expect("a number");
        Script {
            collective: word("collective"),
            bytes: number("bytes") as usize,
            iterations: number("iterations"),
            in_halves: word("in_halves") == "true",
            pause_us: number("pause_us"),
            act: word("act"),
            at: number("at"),
            deadline_ms: number("deadline_ms"),
            tells: word("tells") == "true",
        }
    }
}
