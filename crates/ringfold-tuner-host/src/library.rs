//! Loads a plugin's library, once for a process: the names to try, and the symbol to use.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfold::internals::sys::Library as Loaded;

use super::LOG;
use super::abi::{Finish, Init, InitWithConstants, Pick, Price, PriceUnregistered, Tuner};

/// The name of the program itself. Only the full name counts: NCCL accepts every prefix, such as
/// `s`.
const PROGRAM: &str = "STATIC_PLUGIN";

/// A library that is never unloaded.
#[derive(Debug)]
pub struct Library {
    /// The plugin's own name.
    pub name: String,
    /// The function that begins a communicator.
    pub begin: Begin,
    /// The function that is asked about a call.
    pub ask: Ask,
    /// The function that ends a communicator.
    pub finish: Option<Finish>,
    /// Held while the library is called.
    turn: Mutex<()>,
}

/// The function that begins a communicator, by version.
#[derive(Clone, Copy, Debug)]
pub enum Begin {
    /// Versions 2 to 4.
    Plain(Init),
    /// Versions 5 to 7.
    WithConstants(InitWithConstants),
}

/// The function that is asked about a call, by version.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// Version 2.
    Pick(Pick),
    /// Version 3.
    PriceUnregistered(PriceUnregistered),
    /// Versions 4 to 7.
    Price(Price),
}

impl Library {
    /// Waits until no other thread is in the library.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A function that reads the structure of a symbol; `None` if a required function is missing.
type Read = fn(*mut c_void) -> Option<Library>;

/// The versions and the functions that read their symbols, newest first: the first symbol that a
/// library has is used.
const VERSIONS: [(u32, Read); 6] = [
    (7, |symbol| plugin(symbol, Begin::WithConstants, Ask::Price)),
    (6, |symbol| plugin(symbol, Begin::WithConstants, Ask::Price)),
    (5, |symbol| plugin(symbol, Begin::WithConstants, Ask::Price)),
    (4, |symbol| plugin(symbol, Begin::Plain, Ask::Price)),
    (3, |symbol| {
        plugin(symbol, Begin::Plain, Ask::PriceUnregistered)
    }),
    (2, |symbol| plugin(symbol, Begin::Plain, Ask::Pick)),
];

/// Reads the structure at a version's `symbol`, whose functions have the types that `begin` and
/// `ask` take.
fn plugin<I, A>(symbol: *mut c_void, begin: fn(I) -> Begin, ask: fn(A) -> Ask) -> Option<Library> {
    // SAFETY: `read` found the symbol under the name for which the interface promises this layout,
    // with which later versions begin, too; and every bit pattern of a pointer may be there.
    let tuner = unsafe { symbol.cast_const().cast::<Tuner<I, A>>().read() };
    Some(Library {
        begin: begin(tuner.init?),
        ask: ask(tuner.answer?),
        finish: tuner.finish,
        name: called(tuner.name),
        turn: Mutex::new(()),
    })
}

/// Returns the library of `name`. The first call loads it and logs the result; later calls return
/// the same.
pub fn library(name: &str) -> Option<&'static Library> {
    static LIBRARIES: Mutex<BTreeMap<String, Option<&'static Library>>> =
        Mutex::new(BTreeMap::new());
    let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = libraries.get(name) {
        return *known;
    }
    let library = match load(name) {
        Ok((version, library)) => {
            let called = &library.name;
            log::info!(
                target: LOG,
                "plugin `{called}` of `{name}`, version {version} of NCCL's interface"
            );
            // The library is never unloaded, so its description need not be freed either.
            Some(&*Box::leak(Box::new(library)))
        }
        Err(why) => {
            log::warn!(target: LOG, "no tuner plugin `{name}`, so the model decides: {why}");
            None
        }
    };
    libraries.insert(name.to_owned(), library);
    library
}

fn load(name: &str) -> Result<(u32, Library), String> {
    let mut failures = Vec::new();
    for candidate in candidates(name) {
        match Loaded::open(candidate.as_deref()) {
            Ok(loaded) => return read(&loaded),
            Err(why) => failures.push(why),
        }
    }
    Err(failures.join("; "))
}

/// Returns the number of the newest version that a library exports, and the plugin read from it.
fn read(loaded: &Loaded) -> Result<(u32, Library), String> {
    for (version, plugin) in VERSIONS {
        let symbol = CString::new(format!("ncclTunerPlugin_v{version}"));
        let symbol = symbol.map_err(|error| error.to_string())?;
        let Some(symbol) = loaded.symbol(&symbol) else {
            continue;
        };
        let library = plugin(symbol).ok_or("no init or getCollInfo function")?;
        return Ok((version, library));
    }
    Err("no symbol ncclTunerPlugin_v2 to v7".into())
}

fn called(name: *const c_char) -> String {
    if name.is_null() {
        return "unnamed".into();
    }
    // SAFETY: the interface promises text that ends with a zero and lives as long as the library,
    // which stays.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

/// Returns the libraries to try for a name, in this order; `None` is the program itself.
fn candidates(name: &str) -> Vec<Option<String>> {
    if name == PROGRAM {
        return vec![None];
    }
    let is_path = name.contains('/');
    let is_library = name.starts_with("lib") && name.ends_with(".so");
    let mut candidates = vec![Some(name.to_owned())];
    if !is_path && !is_library {
        candidates.push(Some(format!("libnccl-tuner-{name}.so")));
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_libraries_as_nccl_has_it() {
        let tried = |name| -> Vec<String> { candidates(name).into_iter().flatten().collect() };
        assert_eq!(tried("mine"), ["mine", "libnccl-tuner-mine.so"]);
        assert_eq!(tried("libmine"), ["libmine", "libnccl-tuner-libmine.so"]);
        assert_eq!(tried("mine.so"), ["mine.so", "libnccl-tuner-mine.so.so"]);
        assert_eq!(tried("libmine.so"), ["libmine.so"]);
        assert_eq!(tried("./mine"), ["./mine"]);
    }

    #[test]
    fn only_the_whole_word_is_the_program() {
        assert_eq!(candidates("STATIC_PLUGIN"), [None]);
        for word in ["static", "s", "STATIC_PLUGI", "static_plugin"] {
            assert!(candidates(word).iter().all(Option::is_some), "{word}");
        }
    }
}
