//! A communicator's context in a plugin's library: the questions about calls, and the parts of the
//! answers that are used.

use std::array;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfold::internals::tune::CostTable;
use ringfold::internals::tune::names::{
    ALGORITHMS, COLLECTIVES, NCCL_ALGORITHMS, NCCL_PROTOCOLS, Name, PROTOCOLS,
};
use ringfold::{Method, Protocol};

use super::abi::{CONSTANTS, Code, Domains, IGNORED, SUCCESS, UNDEFINED};
use super::library::{Ask, Begin, Library};
use super::logger::logger;
use super::{CommunicatorInfo, LOG, Plugin, Question};

/// NCCL's cost table: one array, row after row.
type Table = [[f32; NCCL_PROTOCOLS]; NCCL_ALGORITHMS];

/// A communicator's context in a library.
#[derive(Debug)]
pub struct Context {
    library: &'static Library,
    /// The library's own pointer to the context, which may be null.
    context: *mut c_void,
    /// Memory into which `context` may point: NCCL's constants live as long as its communicator.
    _given: Box<Given>,
    has_failed: AtomicBool,
    has_erred: AtomicBool,
}

/// Values that a library receives when a communicator begins, and may change or keep.
#[derive(Debug)]
struct Given {
    domains: Domains,
    /// Neutral numbers: every hop costs the same, and every link carries 1 GB/s, so that a division
    /// by one of them gives a number.
    constants: [f64; CONSTANTS],
}

// SAFETY: the interface lets a communicator make its calls from different threads, one at a time,
// and `Library::turn` is held in every one of them.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Begins a communicator; logs a warning and returns `None` if the library refuses.
    pub fn begin(library: &'static Library, members: &CommunicatorInfo) -> Option<Context> {
        let mut given = Box::new(Given {
            domains: Domains {
                count: saturated(members.hosts),
                ranks_min: saturated(members.ranks_per_host_min),
                ranks_max: saturated(members.ranks_per_host_max),
            },
            constants: [1.0; CONSTANTS],
        });
        let mut context = ptr::null_mut();
        let code = {
            let _turn = library.turn();
            begin(library.begin, members, &mut given, &mut context)
        };
        if code != SUCCESS {
            let (name, why) = (&library.name, meaning(code));
            log::warn!(
                target: LOG,
                "plugin `{name}` failed to start ({why}), so the model decides"
            );
            return None;
        }
        Some(Context {
            library,
            context,
            _given: given,
            has_failed: AtomicBool::new(false),
            has_erred: AtomicBool::new(false),
        })
    }

    /// Asks the plugin about a call, whose collective is `function` in the interface. Stores the
    /// answer in `table` and `channels`.
    fn ask(
        &self,
        function: c_int,
        call: &Question,
        table: &mut Table,
        channels: &mut c_int,
    ) -> Code {
        let bytes = usize::try_from(call.bytes).unwrap_or(usize::MAX);
        let group = c_int::try_from(call.group).unwrap_or(c_int::MAX);
        let (rows, columns) = (NCCL_ALGORITHMS as c_int, NCCL_PROTOCOLS as c_int);
        let registered = call.is_registered.into();
        let context = self.context;
        // The interface declares a pointer to pointers for the pointer to the first float.
        let costs = (&raw mut *table).cast::<*mut f32>();
        let _turn = self.library.turn();
        match self.library.ask {
            Ask::Price(price) => {
                // SAFETY: the interface promises these arguments to this function; `costs` is valid
                // for reads and writes of `rows * columns` floats, `channels` of an int, and
                // `context` is the result of `begin`.
                unsafe {
                    price(
                        context, function, bytes, group, costs, rows, columns, registered, channels,
                    )
                }
            }
            Ask::PriceUnregistered(price) => {
                // SAFETY: as above.
                unsafe {
                    price(
                        context, function, bytes, group, costs, rows, columns, channels,
                    )
                }
            }
            Ask::Pick(pick) => {
                let (mut row, mut column) = (UNDEFINED, UNDEFINED);
                let way = (&raw mut row, &raw mut column);
                // SAFETY: as above; `row` and `column` are valid for reads and writes, too.
                let code = unsafe {
                    pick(
                        context, function, bytes, 0, 0, group, way.0, way.1, channels,
                    )
                };
                let picked = usize::try_from(row).ok().zip(usize::try_from(column).ok());
                let picked = picked.and_then(|(row, column)| table.get_mut(row)?.get_mut(column));
                // Version 2 may name an entry that cannot be chosen; the interface allows that,
                // without effect.
                if let Some(cost) = picked.filter(|cost| **cost != IGNORED) {
                    *cost = 0.0;
                }
                code
            }
        }
    }

    /// Applies the changes that the plugin made in its table.
    fn take(&self, offered: &Table, answered: &Table, table: &mut CostTable) {
        let mut refused = None;
        for (row, column) in entries() {
            let (offered, answered) = (offered[row][column], answered[row][column]);
            if offered.to_bits() == answered.to_bits() {
                continue;
            }
            if !way(row, column).is_some_and(|way| table.reprice(way, answered)) {
                refused = Some((row, column, answered));
            }
        }
        if let Some((row, column, cost)) = refused {
            self.warn_of_nonsense(|| {
                let way = called(row, column);
                format!(
                    "sets the cost of {way} to {cost}, but the way is unusable or the cost \
                    invalid"
                )
            });
        }
    }

    /// Logs a warning the first time that a part of an answer is ignored.
    fn warn_of_nonsense(&self, what: impl FnOnce() -> String) {
        // Relaxed: the flag publishes no other memory.
        if !self.has_erred.swap(true, Ordering::Relaxed) {
            let name = &self.library.name;
            log::warn!(target: LOG, "plugin `{name}` {}; such answers are ignored", what());
        }
    }
}

impl Plugin for Context {
    fn name(&self) -> &str {
        &self.library.name
    }

    fn adjust(&self, call: &Question, table: &mut CostTable, channels: &mut i32) {
        let number = Name::of(&COLLECTIVES, call.collective).and_then(|name| name.nccl);
        let Some(function) = number else {
            return;
        };
        let offered = offer(table);
        let (mut answered, mut wanted) = (offered, 0);
        let code = self.ask(function.into(), call, &mut answered, &mut wanted);
        if code != SUCCESS {
            // Relaxed: as above.
            if !self.has_failed.swap(true, Ordering::Relaxed) {
                let (name, collective, why) = (self.name(), call.collective, meaning(code));
                log::warn!(
                    target: LOG,
                    "plugin `{name}` fails for {collective} ({why}); where it does, the model \
                     decides"
                );
            }
            return;
        }
        self.take(&offered, &answered, table);
        if wanted < 0 {
            self.warn_of_nonsense(|| format!("wants {wanted} channels"));
        } else if wanted > 0 {
            *channels = wanted;
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let Some(finish) = self.library.finish else {
            return;
        };
        let _turn = self.library.turn();
        // SAFETY: `begin` succeeded with this context, which is not used afterwards. The result
        // changes nothing.
        let _ = unsafe { finish(self.context) };
    }
}

/// Returns all entries of NCCL's table.
fn entries() -> impl Iterator<Item = (usize, usize)> {
    let columns = |row| (0..NCCL_PROTOCOLS).map(move |column| (row, column));
    (0..NCCL_ALGORITHMS).flat_map(columns)
}

/// Returns ringfold's method and protocol for an entry of NCCL's table.
fn way(row: usize, column: usize) -> Option<(Method, Protocol)> {
    let algorithm = Name::numbered(&ALGORITHMS, row as i32)?.ours?;
    let protocol = Name::numbered(&PROTOCOLS, column as i32)?.ours?;
    Some((algorithm, protocol))
}

/// Returns NCCL's name of an entry of its table.
fn called(row: usize, column: usize) -> String {
    let algorithm = Name::numbered(&ALGORITHMS, row as i32).map_or("?", |name| name.text);
    let protocol = Name::numbered(&PROTOCOLS, column as i32).map_or("?", |name| name.text);
    format!("{algorithm}/{protocol}")
}

/// Returns NCCL's table with the costs of usable ways.
fn offer(table: &CostTable) -> Table {
    let cost = |row, column| table.get(way(row, column)?);
    array::from_fn(|row| array::from_fn(|column| cost(row, column).unwrap_or(IGNORED)))
}

fn saturated(count: usize) -> c_int {
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

fn meaning(code: Code) -> String {
    let meaning = match code {
        1 => "a GPU's error",
        2 => "a system error",
        3 => "an internal error",
        4 => "an invalid argument",
        5 => "invalid usage",
        6 => "a remote error",
        _ => return format!("code {code}"),
    };
    format!("code {code}, {meaning}")
}

/// Begins a communicator in a library.
fn begin(
    how: Begin,
    members: &CommunicatorInfo,
    given: &mut Given,
    context: &mut *mut c_void,
) -> Code {
    let (ranks, hosts, id) = (members.ranks, members.hosts, members.communicator);
    let (log, domains) = (logger(), &raw mut given.domains);
    match how {
        Begin::Plain(init) => {
            // SAFETY: the interface promises these arguments to this function, and `context` is
            // valid for a write.
            unsafe { init(ranks, hosts, log, context) }
        }
        Begin::WithConstants(init) => {
            let constants = given.constants.as_mut_ptr();
            // SAFETY: as above; `given` is valid for reads and writes, holds as many constants as
            // any version has, and is kept by the context.
            unsafe { init(context, id, ranks, hosts, log, domains, constants) }
        }
    }
}
