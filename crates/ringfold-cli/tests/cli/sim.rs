//! `ringfold sim`: times, files, pictures, and what it says when something is mistyped.

mod constants;
mod devices;
mod papers;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::{Finished, finish};

/// The ring of the slow-node paper: 3 us for a reduction, 8 KiB, 5 us and 100 Gbit/s.
const PAPER: &str = "reduce_scatter --algorithm ring --set chunk_bytes=8K --slice-bytes whole \
    --set reduce_time=3us";

fn sim(line: &str) -> Finished {
    let arguments: Vec<_> = ["sim"].into_iter().chain(line.split_whitespace()).collect();
    finish(&arguments)
}

/// The rows of a CSV on standard output, as maps from column to value.
fn rows(done: &Finished) -> Vec<std::collections::HashMap<String, String>> {
    let mut reader = csv::Reader::from_reader(done.stdout.as_bytes());
    reader
        .deserialize()
        .map(|row| row.expect("a row of CSV"))
        .collect()
}

/// Microseconds of one simulation.
fn time_us(line: &str) -> f64 {
    let done = sim(&format!("{line} --csv -"));
    assert!(done.status.success(), "{line}: {}", done.stderr);
    let rows = rows(&done);
    assert_eq!(rows.len(), 1, "{line}");
    rows[0]["time_us"].parse().unwrap()
}

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ringfold-sim-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sim")
}

#[test]
fn rings_take_the_golden_times() {
    let cases = [
        ("--ranks 4 --set server=parallel", 25.96608),
        ("--ranks 8 --set server=parallel", 60.58752),
        ("--ranks 16 --set server=parallel", 129.83040),
        ("--ranks 128 --set server=parallel", 1099.23072),
        (
            "--ranks 4 --set server=parallel --slow rank=1,step=1,delay=8us",
            33.96608,
        ),
        (
            "--ranks 8 --set server=parallel --slow rank=1,step=1,delay=20us",
            80.58752,
        ),
        (
            "--ranks 8 --set server=parallel --slow rank=1,step=*,delay=8us",
            68.58752,
        ),
        (
            "--ranks 8 --set server=serial --slow rank=1,step=*,delay=8us",
            82.65536,
        ),
        (
            "--ranks 8 --set server=serial --set sending=rendezvous --slow rank=1,step=*,delay=8us",
            116.58752,
        ),
    ];
    for (flags, due) in cases {
        let found = time_us(&format!("{PAPER} {flags}"));
        assert!((found - due).abs() < 5e-6, "{flags}: {found} and not {due}");
    }
}

#[test]
fn the_table_has_time_traffic_path_and_blame() {
    let done = sim(&format!(
        "{PAPER} --set server=parallel --slow rank=1,step=1,delay=8us"
    ));
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!(done.stderr, "");
    for text in [
        "# reduce_scatter by ring over messages, 4 ranks, 32 KiB of float32, one slice",
        "33.966 us",
        "algbw",
        "busbw",
        "# critical path",
        "slow           1              8.000   23.55",
        "# ranks, by how much of the critical path was spent on them",
        "# links, by how long they were busy",
        "# all calls returned Ok, all guarantees held",
    ] {
        assert!(
            done.stdout.contains(text),
            "`{text}` is not in {}",
            done.stdout
        );
    }
}

#[test]
fn the_json_adds_up() {
    let done = sim(&format!(
        "{PAPER} --set server=parallel --slow rank=1,step=1,delay=8us --json -"
    ));
    assert!(done.status.success(), "{}", done.stderr);
    let json: Value = serde_json::from_str(&done.stdout).unwrap();
    let simulation = &json["simulations"][0];
    assert_eq!(simulation["time_us"], 33.96608);
    let path = simulation["critical_path"].as_array().unwrap();
    let length: f64 = path
        .iter()
        .map(|part| part["end_us"].as_f64().unwrap() - part["begin_us"].as_f64().unwrap())
        .sum();
    assert!((length - 33.96608).abs() < 1e-6, "{length}");
    let of = |list: &str, key: &str| -> u64 {
        let entries = simulation[list].as_array().unwrap().iter();
        entries.map(|entry| entry[key].as_u64().unwrap()).sum()
    };
    // Each of the four sends three chunks.
    assert_eq!(
        (of("links", "messages"), of("links", "bytes")),
        (12, 12 * 8192)
    );
    assert_eq!(of("ranks", "sent_bytes"), 12 * 8192);
}

#[test]
fn sweeps_and_comparisons_have_a_row_for_each() {
    let done = sim("--ranks 8 --sweep bytes=1K..64K*8 --compare ring,direct --csv -");
    assert!(done.status.success(), "{}", done.stderr);
    let rows = rows(&done);
    let cells: Vec<_> = rows
        .iter()
        .map(|row| (row["bytes"].as_str(), row["algorithm"].as_str()))
        .collect();
    let due = ["1024", "8192", "65536"].map(|bytes| [(bytes, "ring"), (bytes, "direct")]);
    assert_eq!(cells, due.concat());
    let table = sim("--sweep ranks=2..16 --compare ports=full,half");
    let lines: Vec<_> = table
        .stdout
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    assert_eq!(lines.len(), 8, "{}", table.stdout);
    assert!(lines[0].contains("1.0000"), "{}", lines[0]);
}

#[test]
fn a_delay_is_swept_and_the_same_seed_gives_the_same_times() {
    let line = format!(
        "{PAPER} --set server=parallel --slow rank=1,step=1,delay=1us --sweep delay=0us..30us+10us \
         --csv -"
    );
    let times: Vec<String> = rows(&sim(&line))
        .iter()
        .map(|row| row["time_us"].clone())
        .collect();
    assert_eq!(times, ["25.966080", "35.966080", "45.966080", "55.966080"]);
    let noisy = format!("{PAPER} --slow rank=*,delay=exp(20us),p=0.5 --sweep seed=1..5 --csv -");
    let (one, other) = (sim(&noisy), sim(&noisy));
    assert_eq!(one.stdout, other.stdout);
    let times: std::collections::HashSet<_> = rows(&one)
        .iter()
        .map(|row| row["time_us"].clone())
        .collect();
    assert_eq!(times.len(), 5);
}

#[test]
fn rings_go_around_slow_ranks_in_the_golden_times() {
    let slow = |us: u32| format!("--slow rank=1,step=1,delay={us}us");
    // Ranks, what is slow, which rank signals, where the late sum goes, and the time.
    for (ranks, what, signals, target, due) in [
        (4, slow(8), "late", "next2", 25.97),
        (4, slow(8), "skip", "next2", 30.97),
        (8, slow(20), "late", "next2", 71.93),
        (8, slow(20), "skip", "next2", 65.93),
        (8, slow(20), "both", "tail", 60.59),
        (16, slow(60), "late", "next2", 181.18),
        (16, slow(60), "skip", "tail", 129.90),
        (8, "--late rank=1,delay=60us".into(), "skip", "tail", 79.93),
    ] {
        let line = format!(
            "{PAPER} --set server=parallel --ranks {ranks} {what} --set signals={signals} --policy \
             {target} --csv -"
        );
        let done = sim(&line);
        let found: f64 = rows(&done)[0]["results_us"].parse().unwrap();
        assert!((found - due).abs() < 0.01, "{line}: {found} and not {due}");
    }
}

#[test]
fn without_a_slow_rank_none_is_bypassed() {
    // Slices share the ports, so each takes longer than it would alone.
    for collective in ["all_reduce", "reduce_scatter"] {
        let messages = ["off", "next2", "tail"].map(|policy| {
            let done = sim(&format!(
                "{collective} --ranks 8 --bytes 8M --algorithm ring --slice-bytes 256K --policy \
                 {policy} --csv -"
            ));
            rows(&done)[0]["messages"].clone()
        });
        assert!(
            messages.iter().all(|count| *count == messages[0]),
            "{messages:?}"
        );
    }
}

#[test]
fn policies_are_compared_by_their_names() {
    let done = sim(
        "reduce_scatter --set chunk_bytes=8K --set reduce_time=3us --ranks 16 --slow \
         rank=*,delay=exp(20us),p=0.1 --compare off,tail --sweep seed=0..9",
    );
    assert!(done.status.success(), "{}", done.stderr);
    let means: Vec<f64> = done
        .stdout
        .lines()
        .rev()
        .take(2)
        .map(|line| line.split_whitespace().nth(2).unwrap().parse().unwrap())
        .collect();
    assert!(means[0] < 0.9 * means[1], "{}", done.stdout);
    let table = sim(
        "--ranks 8 --policy tail --set alpha_threshold=2.5 --set chunk_bytes=8K --set \
            reduce_time=3us",
    );
    assert!(
        table.stdout.contains(
            "# around slow ranks: tail by LATE and SKIP, after 2.5 times 3us and 5.65536us"
        ),
        "{}",
        table.stdout
    );
}

#[test]
fn stragglar_knows_who_is_late_from_the_scenario() {
    let line = "--ranks 8 --bytes 16M --slice-bytes whole --late rank=7,delay=2ms --algorithm";
    let (ring, stragglar) = (
        time_us(&format!("{line} ring")),
        time_us(&format!("{line} stragglar")),
    );
    assert!(stragglar < 0.8 * ring, "{stragglar} and {ring}");
    assert_eq!(stragglar, time_us(&format!("{line} stragglar --root 7")));
}

#[test]
fn large_worlds_are_swept_in_the_engines_time() {
    let line = format!(
        "{PAPER} --set server=parallel --ranks 200 --set payload=hollow --slow \
            rank=7,step=3,delay=30us"
    );
    let swept = sim(&line);
    assert!(swept.status.success(), "{}", swept.stderr);
    assert!(
        swept.stdout.contains("By the longest path"),
        "{}",
        swept.stdout
    );
    let engine = sim(&format!("{line} --method engine"));
    assert!(
        engine.stdout.contains("# critical path"),
        "{}",
        engine.stdout
    );
    // 199 rounds and the delay.
    for done in [swept, engine] {
        assert!(done.stdout.contains("1752.417 us"), "{}", done.stdout);
    }
}

#[test]
fn a_barrier_has_no_size() {
    let done = sim("barrier --ranks 8 --algorithm recursive_doubling");
    assert!(
        done.stdout
            .contains("# barrier by recursive_doubling over messages, 8 ranks, seed 0"),
        "{}",
        done.stdout
    );
    assert!(done.stdout.contains("15.000 us"), "{}", done.stdout);
}

#[test]
fn pictures_and_timelines_are_written() {
    let folder = Folder::new("pictures");
    let (trace, gantt, plot) = (
        folder.file("t.json"),
        folder.file("g.svg"),
        folder.file("p.svg"),
    );
    let done = sim(&format!(
        "{PAPER} --slow rank=1,step=1,delay=8us --trace {trace} --gantt {gantt}"
    ));
    assert!(done.status.success(), "{}", done.stderr);
    let events: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    let events = events["traceEvents"].as_array().unwrap();
    for (rank, lane) in [(0, "transmit"), (1, "slow"), (3, "reduce")] {
        let is_it = |event: &&Value| event["pid"] == rank && event["cat"] == lane;
        assert!(
            events.iter().any(|event| is_it(&event)),
            "rank {rank}, {lane}"
        );
    }
    // An arrow for each of the twelve messages.
    for end in ["s", "f"] {
        assert_eq!(events.iter().filter(|event| event["ph"] == end).count(), 12);
    }
    let picture = std::fs::read_to_string(&gantt).unwrap();
    assert!(picture.contains("rank 3") && picture.contains("reduce"));
    let done = sim(&format!(
        "--sweep bytes=1K..1M --compare ring,direct --plot {plot}"
    ));
    assert!(done.status.success(), "{}", done.stderr);
    let picture = std::fs::read_to_string(&plot).unwrap();
    assert!(picture.contains("bus bandwidth") && picture.contains("direct"));
}

#[test]
fn schedules_are_written_as_goal() {
    let done = sim(&format!("{PAPER} --ranks 4 --goal -"));
    assert!(done.status.success(), "{}", done.stderr);
    assert!(done.stdout.starts_with("num_ranks 4\n"), "{}", done.stdout);
    assert_eq!(
        done.stdout.matches(": send 8192b to ").count(),
        12,
        "{}",
        done.stdout
    );
}

#[test]
fn scenario_files_are_read_and_flags_replace_what_they_say() {
    let file = examples().join("slow-rank.toml");
    let file = file.to_str().unwrap();
    assert_eq!(time_us(file), 33.96608);
    assert_eq!(
        time_us(&format!("{file} --ranks 8 --slow rank=1,step=1,delay=20us")),
        80.58752
    );
}

#[test]
fn every_example_runs() {
    let mut count = 0;
    for entry in std::fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.to_str().unwrap();
        let done = sim(name);
        let dies = name.contains("death");
        assert_eq!(
            done.status.code(),
            Some(i32::from(dies)),
            "{name}: {}",
            done.stderr
        );
        assert!(
            done.stdout.contains("all guarantees held"),
            "{name}: {}",
            done.stdout
        );
        count += 1;
    }
    assert!(count >= 5, "{count}");
}

#[test]
fn a_death_is_told_to_all_survivors() {
    let done = sim("--ranks 4 --bytes 64M --dead rank=2,at=100us --json -");
    assert_eq!(done.status.code(), Some(1), "{}", done.stderr);
    let json: Value = serde_json::from_str(&done.stdout).unwrap();
    let ranks = json["simulations"][0]["ranks"].as_array().unwrap();
    for rank in ranks {
        let error = rank["error"].as_str().unwrap_or_default();
        assert!(error.contains("rank 2 failed"), "{rank}");
    }
}

#[test]
fn what_is_mistyped_gets_its_right_word() {
    for (line, code, word) in [
        ("--rank 4", 2, "'--ranks'"),
        ("--alpha 5mus", 2, "`us`"),
        ("--bandwidth 100Gbits", 2, "`Gbit/s`"),
        ("--slow rnak=1,delay=1us", 2, "`rank`"),
        ("--late rank=1,dealy=1us", 2, "`delay`"),
        ("--slow rank=9,delay=1us", 2, "slow rank 9 of 4"),
        ("--set ports=hlaf", 2, "`half`"),
        ("--set prots=half", 2, "`ports`"),
        ("--set ports", 2, "KEY=VALUE"),
        ("--sweep byte=1K..1M", 2, "`bytes`"),
        ("--sweep bytes=1M..1K", 2, "above"),
        ("--sweep delay=0us..1us+1us", 2, "`--slow`"),
        (
            "--sweep delay=0us..60us --slow rank=1,delay=1us",
            2,
            "add a step",
        ),
        ("--compare rign,direct", 2, "`ring`"),
        ("--compare ports=full,hlaf", 2, "`half`"),
        ("--plot x.svg", 2, "--sweep"),
        ("all_redcue", 2, "all_reduce"),
        ("nothing.toml", 1, "nothing.toml"),
        ("--policy tial", 2, "`tail`"),
        ("--set alpha_threshold=0.5", 2, "above 1"),
        ("--compare off,tial", 2, "`tail`"),
        ("--compare off,ring", 2, "one of each"),
        ("--policy tail --algorithm direct", 2, "for the ring"),
        ("--csv - --json -", 2, "mix"),
        ("--csv - --goal -", 2, "mix"),
        ("--algorithm push", 2, "usable: flat (simple), ring"),
        ("--ranks 0", 2, "0 ranks"),
        ("--ranks 99999999", 2, "at most"),
        (
            "--ranks 100000 --algorithm ring --method engine",
            2,
            "--method sweep",
        ),
        ("--method sweep --set sending=rendezvous", 2, "rendezvous"),
        ("--set slots=2", 2, "--device 25GB/s"),
        ("--device 25GB/s --set slots=3", 2, "3 slots"),
        ("--device 25GB/s --set device_duplex=2", 2, "at most 1"),
        ("barrier --device 25GB/s", 2, "barrier"),
        ("--device 25GB/s --goal -", 2, "devices as GOAL"),
    ] {
        let done = sim(line);
        assert_eq!(done.status.code(), Some(code), "{line}: {}", done.stderr);
        assert!(done.stderr.contains(word), "{line}: {}", done.stderr);
    }
}

#[test]
fn a_broken_scenario_file_is_pointed_at() {
    let folder = Folder::new("broken");
    for (text, words) in [
        ("rnaks = 4", &["line 1", "did you mean `ranks`"][..]),
        (
            "[network]\nalpha = \"5mus\"",
            &["line 2", "did you mean `us`"],
        ),
        ("ranks = ", &["line 1"]),
        ("ranks = \"four\"", &["line 1"]),
        ("ranks = 4\n[netwrok]\n", &["did you mean `network`"]),
    ] {
        let file = folder.file("broken.toml");
        std::fs::write(&file, text).unwrap();
        let done = sim(&file);
        assert_eq!(done.status.code(), Some(1), "{text}");
        for word in words {
            assert!(done.stderr.contains(word), "{text}: {}", done.stderr);
        }
    }
}
