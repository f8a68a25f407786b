//! Publications reproduced by the scripts in `examples/papers`.

use std::process::{Command, Stdio};

use super::*;
use crate::process::Running;
use crate::skipped::skipped;

/// What the script of a paper leaves; nothing where there is no Python.
fn paper(name: &str, arguments: &[&str]) -> Option<Finished> {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/papers");
    let python = Command::new("python3")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !python.is_ok_and(|status| status.success()) {
        skipped("python3 is not installed");
        return None;
    }
    let mut command = Command::new("python3");
    command.arg(format!("{examples}/{name}.py"));
    command.args(["--command", env!("CARGO_BIN_EXE_ringfold")]);
    command.args(arguments);
    let done = Running::start(command).finish();
    assert!(done.status.success(), "{}", done.stderr);
    Some(done)
}

/// bupt2024: figures 7 and 8 at α = 1.8 as (ΔT, ring, path, whole, serial), in microseconds.
const GOLDEN: [(u32, f64, f64, f64, f64); 11] = [
    (2, 27.96608, 27.96608, 27.96608, 27.96608),
    (3, 28.96608, 25.36608, 25.96608, 25.96608),
    (5, 30.96608, 25.36608, 25.96608, 25.96608),
    (6, 31.96608, 25.36608, 25.96608, 26.31072),
    (7, 32.96608, 25.36608, 25.96608, 27.31072),
    (8, 33.96608, 25.36608, 25.96608, 28.31072),
    (9, 34.96608, 26.31072, 26.31072, 29.31072),
    (10, 35.96608, 27.31072, 27.31072, 30.31072),
    (15, 40.96608, 32.31072, 32.31072, 35.31072),
    (20, 45.96608, 37.31072, 37.31072, 40.31072),
    (30, 55.96608, 47.31072, 47.31072, 50.31072),
];

/// The same paper: (ΔT, α, effect on the path in percent).
const GOLDEN_EFFECTS: [(u32, &str, &str); 13] = [
    (8, "1.2", "25.482"),
    (8, "1.5", "25.482"),
    (8, "1.8", "25.319"),
    (8, "2.0", "23.553"),
    (8, "2.5", "19.137"),
    (8, "3.0", "14.721"),
    (10, "2.5", "23.633"),
    (10, "3.0", "19.463"),
    (5, "1.2", "23.897"),
    (5, "1.5", "20.991"),
    (5, "1.8", "18.084"),
    (5, "2.5", "11.303"),
    (5, "3.0", "0.000"),
];

#[test]
fn the_slow_node_paper_comes_out_in_every_golden_row() {
    let Some(done) = paper("bupt2024", &["--csv", "-"]) else {
        return;
    };
    let rows = rows(&done);
    for (figure, points) in [("7, 8", 153), ("9", 125), ("10", 78)] {
        let of = |row: &&std::collections::HashMap<_, _>| row["figure"] == figure;
        assert_eq!(rows.iter().filter(of).count(), points, "figure {figure}");
    }
    let find = |us: u32, alpha: &str| {
        let delay = format!("{us}.000000");
        let is_it = |row: &&std::collections::HashMap<_, _>| {
            row["delay_us"] == delay && row["alpha"] == alpha
        };
        rows.iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("no row for {us} us and {alpha}"))
    };
    for (us, ring, path, whole, serial) in GOLDEN {
        let row = find(us, "1.8");
        for (column, due) in [
            ("ring_us", ring),
            ("path_us", path),
            ("whole_us", whole),
            ("serial_us", serial),
        ] {
            let found: f64 = row[column].parse().unwrap();
            assert!(
                (found - due).abs() < 5e-6,
                "{column} at {us} us: {found} and not {due}"
            );
        }
    }
    for (us, alpha, effect) in GOLDEN_EFFECTS {
        assert_eq!(
            find(us, alpha)["path_effect_percent"],
            effect,
            "{us} us, {alpha}"
        );
    }
}

#[test]
fn the_slow_node_paper_is_shown_with_both_metrics_and_agrees_with_its_closed_forms() {
    let Some(done) = paper("bupt2024", &[]) else {
        return;
    };
    for text in [
        "25.319 %",
        "saves 23.553 % (16.650 % with serial",
        "15.707 %",
        "two triggers",
        "are swapped",
        "1424 times were simulated; from the closed forms they are at most 0 ps away",
    ] {
        assert!(
            done.stdout.contains(text),
            "`{text}` is not in {}",
            done.stdout
        );
    }
}

#[test]
fn the_slow_node_papers_scenario_is_drawn() {
    let folder = Folder::new("bupt2024");
    let picture = folder.file("figure.svg");
    let scenario = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/papers/bupt2024.toml"
    );
    let done = sim(&format!(
        "{scenario} --sweep delay=0us..12us+1us --compare off,next2 --plot {picture}"
    ));
    assert!(done.status.success(), "{}", done.stderr);
    assert!(std::fs::read_to_string(picture).unwrap().contains("next2"));
}

#[test]
fn the_laboratory_report_is_refuted_by_its_own_table_and_simulated() {
    let Some(done) = paper("mpi2021", &[]) else {
        return;
    };
    for text in [
        "-0.005453",
        "-0.183533",
        "0.316883",
        "Fitted: 8 cores",
        "the formula is wrong",
    ] {
        assert!(
            done.stdout.contains(text),
            "`{text}` is not in {}",
            done.stdout
        );
    }
    let Some(done) = paper("mpi2021", &["--csv", "-"]) else {
        return;
    };
    let cells = rows(&done);
    assert_eq!(cells.len(), 30);
    let errors = cells.iter().map(|cell| {
        let seconds = |column: &str| cell[column].parse::<f64>().unwrap();
        (seconds("simulated_s") / seconds("printed_s") - 1.0).abs()
    });
    // All but the one that took longer than twice its size.
    assert_eq!(errors.filter(|&error| error < 0.3).count(), 29);
}
