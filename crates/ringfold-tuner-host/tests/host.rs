//! The host of tuner plugins, with libraries that are compiled here: every version of the
//! interface, and plugins that misbehave.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ringfold::internals::tune::{CommunicatorInfo, PluginHost};
use ringfold::internals::tune::{CostTable, Plugin, Question};
use ringfold::{Collective, Method, Protocol};
use ringfold_tuner_host::Host;

const MEMBERS: CommunicatorInfo = CommunicatorInfo {
    communicator: 42,
    ranks: 4,
    hosts: 2,
    ranks_per_host_min: 1,
    ranks_per_host_max: 3,
};
const CALL: Question = Question {
    group: 3,
    is_registered: true,
    ..Question::new(Collective::AllReduce, 4096, 4)
};

/// The log lines of all tests.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl log::Log for Lines {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Info
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            assert_eq!(record.target(), "ringfold::tuning");
            let line = format!("{} {}", record.level(), record.args());
            self.lines().push(line);
        }
    }

    fn flush(&self) {}
}

impl Lines {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, words: &str) -> usize {
        let lines = self.lines();
        lines.iter().filter(|line| line.contains(words)).count()
    }
}

/// A library that is compiled from `plugin.c`.
struct Library(PathBuf);

impl Library {
    fn compile(version: u32, behaviour: &str) -> Library {
        static LOGGER: OnceLock<()> = OnceLock::new();
        LOGGER.get_or_init(|| {
            log::set_logger(&LINES).expect("only this sets one");
            log::set_max_level(log::LevelFilter::Trace);
        });
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugins");
        // Each library has its own path, because a process loads a path once.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let index = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("plugin-{version}-{behaviour}-{index}.so");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let defined = [
            format!("-DVERSION={version}"),
            format!("-DBEHAVIOUR={behaviour}"),
        ];
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let status = Command::new(compiler)
            .args([
                "-shared",
                "-fPIC",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused",
            ])
            .args(defined)
            .arg(sources.join("plugin.c"))
            .arg("-o")
            .arg(&path)
            .status();
        assert!(status.expect("a C compiler").success());
        Library(path)
    }

    fn open(&self) -> Option<Arc<dyn Plugin>> {
        Host.open(self.name(), &MEMBERS)
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("a path that is text")
    }

    /// Returns the address of a variable of the library, which `open` has loaded.
    fn variable<T>(&self, name: &CStr) -> *const T {
        let path = CString::new(self.name()).unwrap();
        // SAFETY: `path` ends with a zero; `RTLD_NOLOAD` loads nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
        assert!(!handle.is_null());
        // SAFETY: the handle is valid, and `name` ends with a zero.
        let variable = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!variable.is_null());
        variable.cast_const().cast()
    }

    fn count(&self, name: &CStr) -> c_int {
        // SAFETY: `plugin.c` declares such variables as int.
        unsafe { self.variable::<c_int>(name).read() }
    }

    fn complaint(&self) -> Option<String> {
        // SAFETY: `plugin.c` declares `complaint` as a pointer to text.
        let text = unsafe { self.variable::<*const c_char>(c"complaint").read() };
        if text.is_null() {
            return None;
        }
        // SAFETY: the text is a literal of the library, which is never unloaded.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    }
}

/// Returns the model's costs in these tests: ringfold's own `direct` is best.
fn prices() -> CostTable {
    let mut table = CostTable::unusable();
    table.set((Method::Tree, Protocol::Simple), 5.0);
    table.set((Method::Ring, Protocol::Simple), 9.0);
    table.set((Method::Ring, Protocol::Ll), 7.0);
    table.set((Method::Direct, Protocol::Simple), 3.0);
    table
}

fn asked(plugin: &dyn Plugin) -> (CostTable, i32) {
    let (mut table, mut channels) = (prices(), 0);
    plugin.adjust(&CALL, &mut table, &mut channels);
    (table, channels)
}

#[test]
fn every_version_of_the_interface_is_spoken() {
    let names = ["two", "three", "four", "five", "six", "seven"];
    for (version, name) in (2..).zip(names) {
        let library = Library::compile(version, "PREFERS");
        let plugin = library.open().expect("a usable plugin");
        assert_eq!(plugin.name(), name);
        let line = format!(
            "INFO plugin `{name}` of `{}`, version {version} of",
            library.name()
        );
        assert_eq!(LINES.with(&line), 1);
        let (table, channels) = asked(&*plugin);
        assert_eq!(library.complaint(), None, "version {version}");
        assert_eq!(
            table.best(),
            Some((Method::Ring, Protocol::Simple)),
            "version {version}"
        );
        assert_eq!(channels, 3);
        let mut expected = prices();
        expected.set((Method::Ring, Protocol::Simple), 0.0);
        assert_eq!(table, expected);
        let second = library
            .open()
            .expect("a library has as many communicators as are wanted");
        drop(plugin);
        assert_eq!((library.count(c"begun"), library.count(c"ended")), (2, 1));
        drop(second);
        assert_eq!(library.count(c"ended"), 2);
    }
    assert!(LINES.with("INFO began with 4 ranks, words and 1.50") >= 12);
}

#[test]
fn nonsense_changes_nothing_and_is_said_once() {
    for version in [2, 3, 7] {
        let library = Library::compile(version, "TALKS_NONSENSE");
        let plugin = library.open().unwrap();
        let mut expected = prices();
        if version > 2 {
            // The valid part of the answer is used all the same.
            expected.set((Method::Tree, Protocol::Simple), 2.0);
        }
        for _ in 0..3 {
            assert_eq!(asked(&*plugin), (expected, 0), "version {version}");
        }
        assert_eq!(library.complaint(), None);
    }
    for name in ["two", "three", "seven"] {
        assert_eq!(LINES.with(&format!("WARN plugin `{name}` ")), 1, "{name}");
    }
}

#[test]
fn a_plugin_that_fails_leaves_the_choice_to_the_model() {
    let plugin = Library::compile(4, "FAILS").open().unwrap();
    for _ in 0..3 {
        assert_eq!(asked(&*plugin), (prices(), 0));
    }
    let warning = "WARN plugin `four` fails for all_reduce (code 2, a system error)";
    assert_eq!(LINES.with(warning), 1);
}

#[test]
fn a_plugin_that_does_not_begin_is_none() {
    let library = Library::compile(5, "DOES_NOT_BEGIN");
    assert!(library.open().is_none());
    assert_eq!(library.count(c"ended"), 0);
    assert_eq!(
        LINES.with("WARN plugin `five` failed to start (code 5, invalid usage)"),
        1
    );
    assert!(Library::compile(6, "IS_HOLLOW").open().is_none());
    assert_eq!(LINES.with("no init or getCollInfo function"), 1);
}

#[test]
fn what_is_no_plugin_is_warned_of_once() {
    let nothing = Library::compile(99, "PREFERS");
    for name in [
        nothing.name(),
        "no-such-plugin-anywhere",
        "STATIC_PLUGIN",
        "zero\0byte",
    ] {
        for _ in 0..2 {
            assert!(Host.open(name, &MEMBERS).is_none());
        }
        assert_eq!(
            LINES.with(&format!("WARN no tuner plugin `{name}`")),
            1,
            "{name}"
        );
    }
    assert_eq!(LINES.with("libnccl-tuner-no-such-plugin-anywhere.so"), 1);
}

#[test]
fn a_collective_that_nccl_does_not_tune_is_not_asked_about() {
    let library = Library::compile(6, "FAILS");
    let plugin = library.open().unwrap();
    for collective in [
        Collective::AllToAll,
        Collective::Barrier,
        Collective::Gather,
    ] {
        let (mut table, mut channels) = (prices(), 0);
        let call = Question { collective, ..CALL };
        plugin.adjust(&call, &mut table, &mut channels);
        assert_eq!((table, channels), (prices(), 0));
    }
    assert_eq!(library.complaint(), None);
}

#[test]
fn a_library_is_called_by_one_thread_at_a_time() {
    let library = Library::compile(3, "PREFERS");
    let plugins = [library.open().unwrap(), library.open().unwrap()];
    std::thread::scope(|scope| {
        for plugin in plugins.iter().chain(&plugins) {
            scope.spawn(|| {
                for _ in 0..1000 {
                    assert_eq!(asked(&**plugin).1, 3);
                }
            });
        }
    });
    assert_eq!(library.complaint(), None);
}
