//! A communicator's context in a plugin's library: what it is asked, and what of its answer is
//! taken.

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
use super::{LOG, Members, Plugin, Question};

/// NCCL's cost table: one array, row after row.
type Table = [[f32; NCCL_PROTOCOLS]; NCCL_ALGORITHMS];

/// A communicator in a library.
#[derive(Debug)]
pub struct Context {
    library: &'static Library,
    /// What the library calls it; it may be null.
    context: *mut c_void,
    /// What `context` may point into: NCCL's constants live as long as its communicator.
    _given: Box<Given>,
    has_failed: AtomicBool,
    has_erred: AtomicBool,
}

/// What a library is handed when a communicator begins, and may change or keep.
#[derive(Debug)]
struct Given {
    domains: Domains,
    /// Numbers that mean nothing: every hop costs as much, and every link carries 1 GB/s, so that a
    /// division by one of them gives a number.
    constants: [f64; CONSTANTS],
}

// SAFETY: the interface lets a communicator's calls come from different threads, one at a time, and
// `Library::turn` is held in every one of them.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Begins a communicator; `None` if the library will not, which a warning says.
    pub fn begin(library: &'static Library, members: &Members) -> Option<Context> {
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
            log::warn!(target: LOG, "plugin `{name}` does not begin ({why}), so the model decides");
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

    /// Asks about a call, `function` in the interface's numbers. `table` and `channels` become the
    /// answer.
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
        // The pointer to pointers that the interface declares is one to the first float.
        let costs = (&raw mut *table).cast::<*mut f32>();
        let _turn = self.library.turn();
        match self.library.ask {
            Ask::Price(price) => {
                // SAFETY: the interface promises these arguments to this function; `costs` is valid
                // for reads and writes of `rows * columns` floats, `channels` of an int, and
                // `context` is what `begin` got.
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
                // Version 2 may name what cannot be chosen; that was allowed, and means nothing.
                if let Some(cost) = picked.filter(|cost| **cost != IGNORED) {
                    *cost = 0.0;
                }
                code
            }
        }
    }

    /// Takes over what the plugin changed in its table.
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
                format!("sets the cost of {way} to {cost}, which cannot be chosen or means nothing")
            });
        }
    }

    /// Says the first time that something of an answer was ignored.
    fn warn_of_nonsense(&self, what: impl FnOnce() -> String) {
        // A number by itself: nothing is published with it.
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
            // A number by itself, as above.
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
        // SAFETY: `begin` succeeded with this context, and it is not used any more. What it returns
        // changes nothing.
        let _ = unsafe { finish(self.context) };
    }
}

/// All entries of NCCL's table.
fn entries() -> impl Iterator<Item = (usize, usize)> {
    let columns = |row| (0..NCCL_PROTOCOLS).map(move |column| (row, column));
    (0..NCCL_ALGORITHMS).flat_map(columns)
}

/// What an entry of NCCL's table is here.
fn way(row: usize, column: usize) -> Option<(Method, Protocol)> {
    let algorithm = Name::numbered(&ALGORITHMS, row as i32)?.ours?;
    let protocol = Name::numbered(&PROTOCOLS, column as i32)?.ours?;
    Some((algorithm, protocol))
}

/// What NCCL calls an entry of its table.
fn called(row: usize, column: usize) -> String {
    let algorithm = Name::numbered(&ALGORITHMS, row as i32).map_or("?", |name| name.text);
    let protocol = Name::numbered(&PROTOCOLS, column as i32).map_or("?", |name| name.text);
    format!("{algorithm}/{protocol}")
}

/// NCCL's table with what is usable here.
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
fn begin(how: Begin, members: &Members, given: &mut Given, context: &mut *mut c_void) -> Code {
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
            // SAFETY: as above; what is given is valid for reads and writes, as long as any
            // version's constants are, and the context keeps it.
            unsafe { init(context, id, ranks, hosts, log, domains, constants) }
        }
    }
}
