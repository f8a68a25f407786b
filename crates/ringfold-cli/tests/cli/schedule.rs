//! `ringfold schedule`: listings, comparisons and proofs.

use crate::process::{Finished, finish};

fn schedule(line: &str) -> Finished {
    let arguments: Vec<_> = ["schedule"]
        .into_iter()
        .chain(line.split_whitespace())
        .collect();
    finish(&arguments)
}

#[test]
fn a_listing_has_steps_bytes_and_cost() {
    let done = schedule("all_reduce --algorithm ring --ranks 4 --bytes 4000");
    assert!(done.status.success(), "{}", done.stderr);
    assert!(
        done.stdout
            .starts_with("all_reduce by ring over messages, 4 ranks")
    );
    assert!(done.stdout.contains("send in[0] to 2"), "{}", done.stdout);
    // Each rank moves 2(N-1)/N of the buffer.
    assert!(done.stdout.contains(" 6000 "), "{}", done.stdout);
    assert!(
        done.stdout.contains("cost: 6 α + 1.5000 S β + 0.7500 S γ"),
        "{}",
        done.stdout
    );
}

#[test]
fn one_rank_can_be_listed_alone() {
    let all = schedule("broadcast --algorithm tree --ranks 4");
    let one = schedule("broadcast --algorithm tree --ranks 4 --rank 3");
    assert!(one.status.success(), "{}", one.stderr);
    assert!(one.stdout.lines().count() < all.stdout.lines().count());
}

#[test]
fn without_an_algorithm_all_are_compared() {
    let done = schedule("all-reduce --ranks 8");
    assert!(done.status.success(), "{}", done.stderr);
    for name in [
        "flat",
        "ring",
        "tree",
        "recursive_doubling",
        "rabenseifner",
        "direct",
        "shared",
    ] {
        assert!(
            done.stdout.contains(name),
            "`{name}` is not in {}",
            done.stdout
        );
    }
}

#[test]
fn check_proves_every_algorithm_for_an_odd_number_of_ranks() {
    for collective in [
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "scatter",
        "barrier",
    ] {
        let done = schedule(&format!("{collective} --ranks 5 --root 0 --check"));
        assert!(done.status.success(), "{collective}: {}", done.stderr);
        assert!(done.stdout.contains("proved"), "{}", done.stdout);
    }
}

#[test]
fn an_algorithm_that_does_not_serve_names_those_that_do() {
    let done = schedule("all_gather --algorithm rabenseifner");
    assert_eq!(done.status.code(), Some(2));
    assert!(
        done.stderr.contains("ring over messages"),
        "{}",
        done.stderr
    );
}

#[test]
fn the_json_counts_what_the_listing_shows() {
    let done = schedule("all_reduce --algorithm ring --ranks 4 --json");
    assert!(done.status.success(), "{}", done.stderr);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let ring = &json["schedules"][0];
    assert_eq!(ring["rounds"], 6);
    assert_eq!(ring["ranks"][3]["chunks_sent"], 6);
    assert_eq!(ring["cost"]["bytes"], 1.5);
}

#[test]
fn a_rank_that_does_not_exist_is_refused() {
    let done = schedule("all_reduce --algorithm ring --ranks 4 --rank 4");
    assert_eq!(done.status.code(), Some(2));
    assert!(done.stderr.contains("0 to 3"), "{}", done.stderr);
}
