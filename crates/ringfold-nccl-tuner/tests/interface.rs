//! The plugin as its hosts use it: by every version of the interface, from a C harness in place of
//! NCCL; and from ringfold's own host.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use ringfold::internals::tune::{CommunicatorInfo, PluginHost};
use ringfold::internals::tune::{CostTable, Question};
use ringfold::{Collective, Method, Protocol};
use ringfold_tuner_host::Host;

/// Bits of the usable entries: all entries of the table.
const ALL: u32 = 0x1f_ffff;
/// Bits of the usable entries: ring by all protocols.
const RING: u32 = 0o70;

const BROADCAST: i32 = 0;
const ALL_GATHER: i32 = 2;
const ALL_REDUCE: i32 = 4;

/// Returns the path of the library, which cargo builds beside the tests.
fn plugin() -> PathBuf {
    let tests = std::env::current_exe().expect("this program has a path");
    tests.with_file_name("libringfold_nccl_tuner.so")
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Returns the harness, which is compiled once.
fn harness() -> &'static Path {
    static HARNESS: OnceLock<PathBuf> = OnceLock::new();
    HARNESS.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = folder().join("harness");
        let status = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args(["-Wall", "-Wextra", "-Werror", "-I"])
            .arg(here.join("../ringfold-tuner-host/tests/plugins"))
            .arg(here.join("tests/harness.c"))
            .args(["-ldl", "-o"])
            .arg(&program)
            .status();
        assert!(status.expect("a C compiler").success());
        program
    })
}

/// Output of a harness.
struct Said {
    /// The plugin's name, the result of `init`, and a line for each question.
    lines: Vec<String>,
    /// The plugin's log, and its standard error.
    log: String,
}

/// A run of the harness.
struct Run<'a> {
    version: u32,
    ranks: usize,
    nodes: usize,
    rows: usize,
    variables: Vec<(&'a str, &'a str)>,
    folder: PathBuf,
}

impl Run<'_> {
    fn new(version: u32) -> Run<'static> {
        Run {
            version,
            ranks: 8,
            nodes: 1,
            rows: 7,
            variables: Vec::new(),
            folder: folder().to_owned(),
        }
    }

    /// Returns a run with `text` as the file of rules that is found without a variable.
    fn with_rules(version: u32, name: &str, text: &str) -> Run<'static> {
        let folder = folder().join(format!("{name}-{version}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("nccl_tuner.conf"), text).unwrap();
        let run = Run::new(version);
        Run { folder, ..run }
    }

    fn ask(&self, questions: &str) -> Said {
        let numbers = [self.version as usize, self.ranks, self.nodes, self.rows];
        let mut child = Command::new(harness())
            .arg(plugin())
            .args(numbers.map(|number| number.to_string()))
            .env_remove("NCCL_TUNER_CONFIG_FILE")
            .env_remove("RINGFOLD_TUNER_CONFIG")
            .env_remove("NCCL_DEBUG")
            .envs(self.variables.iter().copied())
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the harness was compiled");
        let mut input = child.stdin.take().expect("it is a pipe");
        input.write_all(questions.as_bytes()).unwrap();
        drop(input);
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "version {}: {log}", self.version);
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<_> = lines.lines().map(str::to_owned).collect();
        assert_eq!(lines[..2], ["ringfold", "0 keeps constants"]);
        Said { lines, log }
    }
}

impl Said {
    fn answers(&self) -> &[String] {
        &self.lines[2..]
    }

    fn logs(&self, words: &str) -> usize {
        self.log.lines().filter(|line| line.contains(words)).count()
    }
}

fn question(function: i32, bytes: u64, usable: u32) -> String {
    format!("{function} {bytes} 1 0 {usable:x}\n")
}

const RULES: &str = "\
# A table as NCCL's example has it.
allreduce,0,1024,tree,ll,-1,-1,-1
allreduce,1025,65536,nvls,simple,16,1,8
allreduce,1025,65536,ring,ll128,4,1,8      # where there is no NVLS
allreduce,65537,-1,ring,simple,-1,-1,-1,-1,-1
allgather,0,-1,push,zero_copy,-1,-1,-1
allgather,0,-1,pat,simple,2,-1,-1
";

#[test]
fn every_version_gives_the_first_rule_that_can_be_gone() {
    let questions = [
        question(ALL_REDUCE, 0, ALL),
        question(ALL_REDUCE, 1024, ALL),
        question(ALL_REDUCE, 1025, ALL),
        question(ALL_REDUCE, 65536, RING),
        question(ALL_REDUCE, u64::MAX, ALL),
        question(ALL_REDUCE, 1024, RING),
        question(ALL_GATHER, 7, ALL),
        question(BROADCAST, 1024, ALL),
    ];
    for version in 2..=7 {
        let said = Run::with_rules(version, "rules", RULES).ask(&questions.concat());
        let expected = [
            "0 0 0/0=0",
            "0 0 0/0=0",
            "0 16 4/2=0",
            "0 4 1/1=0",
            "0 0 1/2=0",
            // Version 2 shows no costs, so the plugin picks a way that NCCL then does not use.
            "0 0",
            "0 2 6/2=0",
            "0 0",
        ];
        assert_eq!(said.answers(), expected, "version {version}\n{}", said.log);
    }
}

#[test]
fn rules_for_other_topologies_do_not_match() {
    let asked = question(ALL_REDUCE, 4096, ALL);
    let run = Run::with_rules(6, "topology", RULES);
    assert_eq!(run.ask(&asked).answers(), ["0 16 4/2=0"]);
    let run = Run { nodes: 2, ..run };
    assert_eq!(run.ask(&asked).answers(), ["0 0"]);
    let run = Run {
        nodes: 1,
        ranks: 4,
        ..run
    };
    assert_eq!(run.ask(&asked).answers(), ["0 0"]);
}

#[test]
fn groups_and_registration_are_told_apart() {
    let rules = "allreduce,0,-1,ring,ll,1,-1,-1,4\nallreduce,0,-1,ring,simple,2,-1,-1,-1,1\n";
    let run = Run::with_rules(5, "groups", rules);
    let said = run.ask("4 8 4 0 1fffff\n4 8 1 1 1fffff\n4 8 1 0 1fffff\n");
    assert_eq!(said.answers(), ["0 1 1/0=0", "0 2 1/2=0", "0 0"]);
    // Version 3 does not know of registration.
    let said = Run::with_rules(3, "groups", rules).ask("4 8 1 1 1fffff\n");
    assert_eq!(said.answers(), ["0 0"]);
}

#[test]
fn a_smaller_table_is_not_left() {
    // Before 2.23 there was no PAT, so the table had six rows.
    let run = Run::with_rules(3, "rows", RULES);
    let run = Run { rows: 6, ..run };
    assert_eq!(run.ask(&question(ALL_GATHER, 7, ALL)).answers(), ["0 0"]);
    let run = Run { rows: 1, ..run };
    assert_eq!(run.ask(&question(ALL_REDUCE, 4096, 7)).answers(), ["0 0"]);
}

#[test]
fn nothing_makes_it_fail() {
    for version in 2..=7 {
        let said = Run::with_rules(version, "abuse", RULES).ask("abuse\n");
        assert_eq!(said.answers(), ["0 0"; 4], "version {version}");
    }
}

#[test]
fn a_bad_line_is_said_with_its_place_and_nothing_holds() {
    let rules = "allreduce,0,1024,ring,ll,-1,-1,-1\nallreduce,0,-1,rign,simple,-1,-1,-1\n";
    let run = Run::with_rules(6, "bad", rules);
    let said = run.ask(&question(ALL_REDUCE, 8, ALL));
    assert_eq!(said.answers(), ["0 0"]);
    let place = "nccl_tuner.conf:2:16: `rign` is no algorithm; did you mean `ring`?";
    let warning = format!("WARN 0x40 ringfold tuner: {place}");
    assert_eq!(said.logs(&warning), 1);
    assert_eq!(
        said.logs(place),
        2,
        "standard error has it, too, because NCCL_DEBUG is not set"
    );
    let run = Run {
        variables: vec![("NCCL_DEBUG", "WARN")],
        ..run
    };
    assert_eq!(run.ask("").logs(place), 1);
}

#[test]
fn the_file_is_the_one_that_is_named() {
    let file = |name: &str, channels: u32| {
        let path = folder().join(name);
        let rule = format!("allreduce,0,-1,ring,simple,{channels},-1,-1\n");
        std::fs::write(&path, rule).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (theirs, ours) = (file("theirs.csv", 11), file("ours.csv", 12));
    let asked = question(ALL_REDUCE, 8, ALL);
    let run = Run::with_rules(7, "named", "allreduce,0,-1,ring,simple,13,-1,-1\n");
    assert_eq!(run.ask(&asked).answers(), ["0 13 1/2=0"]);
    let run = Run {
        variables: vec![("RINGFOLD_TUNER_CONFIG", &ours)],
        ..run
    };
    assert_eq!(run.ask(&asked).answers(), ["0 12 1/2=0"]);
    let both = vec![
        ("RINGFOLD_TUNER_CONFIG", &*ours),
        ("NCCL_TUNER_CONFIG_FILE", &*theirs),
    ];
    let run = Run {
        variables: both,
        ..run
    };
    assert_eq!(run.ask(&asked).answers(), ["0 11 1/2=0"]);
    let run = Run {
        variables: vec![("NCCL_TUNER_CONFIG_FILE", "/no/such/file")],
        ..run
    };
    let said = run.ask(&asked);
    assert_eq!(said.answers(), ["0 0"]);
    assert!(
        said.logs("WARN 0x40 ringfold tuner: cannot read the tuner's rules `/no/such/file`") == 1
    );
    let empty = folder().join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let run = Run {
        variables: Vec::new(),
        folder: empty,
        ..run
    };
    assert_eq!(run.ask("").logs("INFO 0x40 ringfold tuner: neither"), 1);
}

#[test]
fn a_decision_is_logged_once() {
    let many =
        question(ALL_REDUCE, 4096, RING).repeat(50) + &question(BROADCAST, 8, RING).repeat(50);
    let said = Run::with_rules(4, "once", RULES).ask(&many);
    assert_eq!(said.answers().len(), 100);
    assert_eq!(said.logs("6 rules from nccl_tuner.conf"), 1);
    assert_eq!(
        said.logs(
            "`allreduce,1025,65536,nvls,simple,16,1,8,-1,-1` of nccl_tuner.conf:3 is not usable"
        ),
        1
    );
    assert_eq!(
        said.logs("all_reduce of 4096 bytes by ring/ll128, 4 channels, by `allreduce,"),
        1
    );
    assert_eq!(
        said.logs("no rule for broadcast of 8 bytes, so NCCL decides"),
        1
    );
    assert_eq!(
        said.logs("nccl_tuner.conf:6: `allgather,0,18446744073709551615,push,zero_copy"),
        1
    );
    assert_eq!(said.log.lines().count(), 6, "{}", said.log);
}

#[test]
#[ignore = "started by the next test, with a variable"]
fn as_the_host_sees_it() {
    let members = CommunicatorInfo {
        communicator: 1,
        ranks: 8,
        hosts: 1,
        ranks_per_host_min: 8,
        ranks_per_host_max: 8,
    };
    let plugin = plugin();
    let plugin = Host
        .open(plugin.to_str().unwrap(), &members)
        .expect("a usable plugin");
    assert_eq!(plugin.name(), "ringfold");
    let mut call = Question::new(Collective::AllReduce, 1024, 8);
    let mut table = CostTable::unusable();
    table.set((Method::Direct, Protocol::Simple), 3.0);
    table.set((Method::Tree, Protocol::Ll), 5.0);
    table.set((Method::Ring, Protocol::Simple), 9.0);
    let prices = table;
    let mut channels = 0;
    plugin.adjust(&call, &mut table, &mut channels);
    assert_eq!(table.best(), Some((Method::Tree, Protocol::Ll)));
    assert_eq!(channels, 0);
    (call.bytes, table) = (4096, prices);
    // LL128 and NVLS exist in NCCL only.
    plugin.adjust(&call, &mut table, &mut channels);
    assert_eq!((table, channels), (prices, 0));
}

#[test]
fn ringfolds_own_host_loads_it() {
    let path = folder().join("host.csv");
    std::fs::write(&path, RULES).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_the_host_sees_it", "--ignored"])
        .env_remove("NCCL_TUNER_CONFIG_FILE")
        .env("RINGFOLD_TUNER_CONFIG", path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}
