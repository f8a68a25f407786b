//! Measures those properties of a device and its driver on which lanes depend; for `bench/gpu.sh`.
//!
//! `ringfold run --ranks 2 -- device_facts copies sizes=64K,1M,16M total=64M`
//!
//! Runs one of the measurements below on the device of each rank, whose ordinal is the local rank
//! modulo the number of devices. Rank 0 prints lines of CSV without a header: name, setting, value,
//! unit. Arguments `name=value` have defaults.
//!
//! * `copies`: the rate of copies down, up and both ways, on all ranks at once, by `sizes`
//! * `signals`: the time until words, events and small copies are seen, and the cost of enqueuing
//! * `register`: the time to pin and to unpin `bytes` of a memfd
//! * `meanwhile`: the driver calls that return, and the copies in other streams that run, while a
//!   stream waits
//! * `rounds`: copies of `bytes` up and down between two words, `rounds` times, and whether data is
//!   ever stale
//! * `churn`: all-reduces of `bytes` for `seconds`, while another thread allocates and frees memory
//! * `held`: such all-reduces until a rank dies; the time when the streams are empty, and whether
//!   the outputs are valid

mod copies;
mod held;
mod lanes;
mod meanwhile;
mod rig;
mod rounds;
mod signals;

use ringfold::env::init_logging;
use ringfold::{Communicator, Error, Result};

use rig::Rig;

fn main() -> Result<()> {
    init_logging()?;
    let what = std::env::args().nth(1).unwrap_or_default();
    let measure = match what.as_str() {
        "copies" => copies::measure,
        "signals" => signals::measure,
        "register" => signals::register,
        "meanwhile" => meanwhile::measure,
        "rounds" => rounds::measure,
        "churn" => lanes::measure,
        "held" => held::measure,
        _ => {
            let text = format!("unknown measurement `{what}`; see the head of the source");
            return Err(Error::InvalidArgument(text));
        }
    };
    let rig = Rig::new(Communicator::init()?)?;
    measure(&rig)
}
