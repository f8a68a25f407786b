//! C programs that use the installed library, as their authors would build and run them.

use std::env;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[path = "../../ringfold/tests/skipped/mod.rs"]
mod skipped;

use skipped::skipped;

/// Time limit of a program, more than any of these programs takes on a busy machine.
const WATCHDOG: Duration = Duration::from_secs(120);

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the library that cargo has built beside this test.
fn built_library() -> PathBuf {
    let program = env::current_exe().expect("this test is a program");
    let library = program.parent().expect("a folder").join("libringfold_c.so");
    assert!(library.exists(), "no {}", library.display());
    library
}

/// An installation of the library; each test of this file has its own.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Installed {
        let folder = tempfile::tempdir().expect("a folder");
        let status = Command::new(crate_folder().join("install.sh"))
            .arg("--library")
            .arg(built_library())
            .arg("--prefix")
            .arg(folder.path())
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("install.sh runs").success());
        Installed(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the flags in a field of pkg-config's file, as pkg-config would expand them.
    fn flags(&self, field: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path("lib/pkgconfig/ringfold.pc")).expect("a file");
        let prefix = self.0.path().display().to_string();
        assert!(text.contains(&format!("prefix={prefix}\n")), "{text}");
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        let line = line
            .expect("the field")
            .replace("${includedir}", &format!("{prefix}/include"));
        let line = line.replace("${libdir}", &format!("{prefix}/lib"));
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program; a warning is an error.
    fn compile(&self, source: &Path) -> PathBuf {
        let program = self.path(
            source
                .file_stem()
                .expect("a name")
                .to_str()
                .expect("a text"),
        );
        let status = Command::new("cc")
            .args([
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-O1",
                // A program that loads the library itself is not linked with it.
                "-Wl,--as-needed",
            ])
            .arg(source)
            .arg("-o")
            .arg(&program)
            .args(self.flags("Cflags:"))
            .args(self.flags("Libs:"))
            .args(["-pthread", "-ldl"])
            .status();
        assert!(
            status.expect("a C compiler").success(),
            "{}",
            source.display()
        );
        program
    }

    /// Runs a program as the ranks of a job; returns the outcome of each rank.
    fn run(&self, program: &Path, ranks: usize, arguments: &[&str]) -> Vec<Outcome> {
        let address = format!("unix:@ringfold-c-{}-{ranks}", program.display());
        let start = |rank: usize| {
            Command::new(program)
                .args(arguments)
                .env("LD_LIBRARY_PATH", self.path("lib"))
                .env("RINGFOLD_RANK", rank.to_string())
                .env("RINGFOLD_WORLD_SIZE", ranks.to_string())
                .env("RINGFOLD_ADDR", &address)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the program starts")
        };
        let children: Vec<Child> = (0..ranks).map(start).collect();
        children.into_iter().map(finish).collect()
    }
}

/// Outcome of a rank.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    output: String,
    #[allow(dead_code, reason = "printed")]
    errors: String,
}

/// Waits for a rank, which is killed if it hangs.
fn finish(mut child: Child) -> Outcome {
    let deadline = Instant::now() + WATCHDOG;
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill().expect("a child");
                panic!("a rank hangs");
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let (mut output, mut errors) = (String::new(), String::new());
    let mut streams = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    streams.0.read_to_string(&mut output).expect("a text");
    streams.1.read_to_string(&mut errors).expect("a text");
    Outcome {
        code: status.code(),
        output,
        errors,
    }
}

fn assert_all_succeed(outcomes: &[Outcome]) {
    assert!(
        outcomes.iter().all(|outcome| outcome.code == Some(0)),
        "{outcomes:#?}"
    );
}

#[test]
fn the_examples_work() {
    let installed = Installed::new();
    let examples = crate_folder().join("../../examples/c");
    let average = installed.compile(&examples.join("average.c"));
    let outcomes = installed.run(&average, 3, &[]);
    assert_all_succeed(&outcomes);
    assert_eq!(outcomes[2].output, "rank 2 of 3: 1\n");
    let overlap = installed.compile(&examples.join("overlap.c"));
    assert_all_succeed(&installed.run(&overlap, 2, &[]));
}

#[test]
#[ignore = "deep: valgrind takes its time"]
fn programs_run_under_valgrind() {
    let installed = Installed::new();
    let source = crate_folder().join("../../examples/c/average.c");
    let program = installed.compile(&source);
    let checked = installed.path("checked");
    let script = format!("#!/bin/sh\nexec valgrind -q {} \"$@\"\n", program.display());
    fs::write(&checked, script).expect("a file");
    fs::set_permissions(&checked, PermissionsExt::from_mode(0o700)).expect("permissions");
    if Command::new("valgrind").arg("--version").output().is_err() {
        skipped("valgrind is not installed");
        return;
    }
    let outcomes = installed.run(&checked, 2, &[]);
    assert_all_succeed(&outcomes);
    assert_eq!(outcomes[1].output, "rank 1 of 2: 0.5\n");
}

#[test]
fn all_functions_do_what_the_header_says() {
    let installed = Installed::new();
    let program = installed.compile(&crate_folder().join("tests/functions.c"));
    for ranks in 1..=3 {
        assert_all_succeed(&installed.run(&program, ranks, &[]));
    }
}

#[test]
fn wrong_arguments_are_refused_and_harm_nothing() {
    let installed = Installed::new();
    let program = installed.compile(&crate_folder().join("tests/misuse.c"));
    for ranks in 1..=2 {
        assert_all_succeed(&installed.run(&program, ranks, &[]));
    }
}

#[test]
fn failures_name_their_ranks() {
    let installed = Installed::new();
    let program = installed.compile(&crate_folder().join("tests/failures.c"));
    for case in ["exit", "mismatch", "abort", "interrupt"] {
        let outcomes = installed.run(&program, 3, &[case]);
        for (rank, outcome) in outcomes.iter().enumerate() {
            let expected = if case == "exit" && rank == 1 { 3 } else { 0 };
            assert_eq!(outcome.code, Some(expected), "{case}: {outcomes:#?}");
        }
    }
}

#[test]
fn handles_and_processes_end_in_any_order() {
    let installed = Installed::new();
    let program = installed.compile(&crate_folder().join("tests/lifetimes.c"));
    let cases = [
        "threads", "order", "sizes", "callback", "cancel", "signals", "return", "exit", "kill",
        "fork",
    ];
    for case in cases {
        let outcomes = installed.run(&program, 2, &[case]);
        let rank_1 = if case == "kill" { None } else { Some(0) };
        let codes = [outcomes[0].code, outcomes[1].code];
        assert_eq!(codes, [Some(0), rank_1], "{case}: {outcomes:#?}");
    }
}

#[test]
fn a_program_may_unload_the_library_and_load_it_again() {
    let installed = Installed::new();
    let program = installed.compile(&crate_folder().join("tests/unload.c"));
    assert_all_succeed(&installed.run(&program, 2, &[]));
}

#[test]
fn the_header_is_cpp_too() {
    let installed = Installed::new();
    let source = installed.path("header.cpp");
    fs::write(
        &source,
        "#include <ringfold.h>\nint main() { return ringfold_abi_version(); }\n",
    )
    .expect("a file");
    let outcome = Command::new("c++")
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .args(installed.flags("Cflags:"))
        .arg(&source)
        .output();
    // Without a C++ compiler, the header is checked as C only.
    let Ok(outcome) = outcome else { return };
    assert!(
        outcome.status.success(),
        "{}",
        String::from_utf8_lossy(&outcome.stderr)
    );
}
