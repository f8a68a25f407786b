//! What a device and its driver do, as far as lanes depend on it: for `bench/gpu.sh`.
//!
//! `ringfold run --ranks 2 -- device_facts copies sizes=64K,1M,16M total=64M`
//!
//! One measurement of those below on the device of each rank: its local rank, modulo the devices
//! that there are. Rank 0 prints lines of CSV without a header: name, setting, value, unit. Words
//! `name=value` have defaults.
//!
//! * `copies`: the rate of copies down, up and both ways, of all ranks at once, by `sizes`
//! * `signals`: how long words, events and small copies take to be seen; what enqueuing costs
//! * `register`: pinning and unpinning `bytes` of a memfd
//! * `meanwhile`: which calls of the driver return, and which copies in other streams run, while a
//!   stream waits
//! * `rounds`: copies of `bytes` up and down between two words, `rounds` times, and whether data is
//!   ever stale
//! * `churn`: all-reduces of `bytes` for `seconds`, combined by what `reducer` says, while another
//!   thread allocates and frees memory
//! * `held`: such all-reduces until a rank dies: when the streams are empty, and what they left

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
            let text = format!("there is no measurement `{what}`; see the head of the source");
            return Err(Error::InvalidArgument(text));
        }
    };
    let rig = Rig::new(Communicator::init()?)?;
    measure(&rig)
}
