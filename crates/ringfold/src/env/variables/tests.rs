//! The generated page of the variables.

use super::*;
use crate::setup::launch::launchers;

/// The widest line of `docs/reference/env.md`, tables excepted.
const COLUMNS: usize = 100;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/env.md");

/// The topics of the page, and the variable with which each begins in [`VARIABLES`].
const TOPICS: [(&str, &str); 10] = [
    ("Joining a job", "RINGFOLD_RANK"),
    ("Deadlines", "RINGFOLD_TIMEOUT_MS"),
    ("Transports and networks", "RINGFOLD_TRANSPORT"),
    ("Algorithms and tuning", "RINGFOLD_ALGO"),
    ("Slow ranks", "RINGFOLD_WEIGHTS"),
    ("Cores and threads", "RINGFOLD_BIND"),
    ("Devices", "RINGFOLD_CUDA_LIBRARY"),
    ("PyTorch", "RINGFOLD_TORCH_BUCKETS"),
    ("Watching", "RINGFOLD_BOARD"),
    ("Logging", "RINGFOLD_DEBUG"),
];

#[test]
fn the_page_says_what_the_table_says() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    assert_eq!(
        page,
        document(&launchers()),
        "docs/reference/env.md is outdated; `cargo test -p ringfold --lib env:: -- --ignored` \
         regenerates it"
    );
}

#[test]
#[ignore = "writes docs/reference/env.md"]
fn write_the_page() {
    std::fs::write(PAGE, document(&launchers())).unwrap();
}

/// Returns the text of `docs/reference/env.md`, which ends with the table `launchers`.
fn document(launchers: &str) -> String {
    let mut text = String::from("# Environment variables\n");
    paragraph(
        &mut text,
        "Arguments take precedence over `RINGFOLD_*`, and these over the launcher's variables: \
         torchrun, Open MPI, PMI (MPICH, Intel MPI), MVAPICH, Slurm, Kubernetes. An \
         empty value counts as not set. An unknown `RINGFOLD_*` name is reported in a warning.",
    );
    paragraph(
        &mut text,
        "This page is generated from `crates/ringfold/src/env/variables.rs`; a test compares \
         them.",
    );
    let mut topics = TOPICS.iter().peekable();
    for variable in VARIABLES {
        if let Some((topic, _)) = topics.next_if(|(_, first)| *first == variable.name) {
            text.push_str(&format!("\n## {topic}\n"));
        }
        text.push_str(&format!("\n### `{}`\n", variable.name));
        paragraph(
            &mut text,
            &format!("{}; default: {}.", variable.kind, variable.default),
        );
        paragraph(&mut text, variable.about);
    }
    assert_eq!(topics.next(), None, "a topic that begins with no variable");
    text.push_str("\n## Launchers\n");
    paragraph(
        &mut text,
        "The source of a process' rank and world size. Launchers start each other: a process may \
         have the variables of several, of which those of the launcher that started it count, \
         usually the first one here. It is an error if two launchers contradict each other in \
         another way than a launcher's daemons and ranks do, or if a launcher sets only some of \
         the variables; variables of a job without a rank are reported in a warning. Without an \
         address, rank 0 is at `MASTER_ADDR` and `MASTER_PORT` + 1, in a Slurm step, and in an \
         MPI's job within a Slurm job, at the first host and a port above 61439 derived from the \
         job's number, and on one host at a UNIX socket named after the launcher's job.",
    );
    text.push('\n');
    text.push_str(launchers);
    text
}

/// Appends an empty line and `content`, broken between words.
fn paragraph(text: &mut String, content: &str) {
    text.push('\n');
    let mut column = 0;
    for word in content.split(' ') {
        let length = word.chars().count();
        if column + 1 + length > COLUMNS {
            text.push('\n');
            column = 0;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}
