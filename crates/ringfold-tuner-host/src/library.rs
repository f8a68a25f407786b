//! Loading a plugin's library: which names are tried, which symbol is taken, once for a process.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringfold::internals::sys::Library as Loaded;

use super::LOG;
use super::abi::{Finish, Init, InitWithConstants, Pick, Price, PriceUnregistered, Tuner};

/// The name that stands for the program itself. Only in full: NCCL takes every beginning of it,
/// such as `s`.
const PROGRAM: &str = "STATIC_PLUGIN";

/// A library that is loaded for good.
#[derive(Debug)]
pub struct Library {
    /// What the plugin calls itself.
    pub name: String,
    /// How it begins a communicator.
    pub begin: Begin,
    /// How it is asked.
    pub ask: Ask,
    /// How it ends a communicator.
    pub finish: Option<Finish>,
    /// Held while it is called.
    turn: Mutex<()>,
}

/// How a communicator begins.
#[derive(Clone, Copy, Debug)]
pub enum Begin {
    /// Versions 2 to 4.
    Plain(Init),
    /// Versions 5 to 7.
    WithConstants(InitWithConstants),
}

/// How a call is asked about.
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

/// What reads the structure behind a symbol; `None` if a function that it cannot do without is
/// missing.
type Read = fn(*mut c_void) -> Option<Library>;

/// The versions and how what stands behind their symbols is read, newest first: the first symbol
/// that a library has is taken.
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

/// The structure at a version's `symbol`, whose functions have the types that `begin` and `ask`
/// take.
fn plugin<I, A>(symbol: *mut c_void, begin: fn(I) -> Begin, ask: fn(A) -> Ask) -> Option<Library> {
    // SAFETY: `read` found it under the name by which the interface promises this layout, which
    // later versions begin with, too; and every bit pattern of a pointer may stand there.
    let tuner = unsafe { symbol.cast_const().cast::<Tuner<I, A>>().read() };
    Some(Library {
        begin: begin(tuner.init?),
        ask: ask(tuner.answer?),
        finish: tuner.finish,
        name: called(tuner.name),
        turn: Mutex::new(()),
    })
}

/// The library that `name` stands for. The first call loads it, and says so or warns; later ones
/// get the same answer.
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
            // It is never unloaded, so what describes it need not go either.
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

/// What a library exports in the newest version that it has, and that version.
fn read(loaded: &Loaded) -> Result<(u32, Library), String> {
    for (version, plugin) in VERSIONS {
        let symbol = CString::new(format!("ncclTunerPlugin_v{version}"));
        let symbol = symbol.map_err(|error| error.to_string())?;
        let Some(symbol) = loaded.symbol(&symbol) else {
            continue;
        };
        let library = plugin(symbol).ok_or("it lacks init or getCollInfo")?;
        return Ok((version, library));
    }
    Err("it exports none of ncclTunerPlugin_v2 to v7".into())
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

/// What is opened for a name, in this order; `None` is the program itself.
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
