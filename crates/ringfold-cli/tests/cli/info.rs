//! `ringfold info`: the output that every machine has.

use crate::process::{Running, finish, ringfold};

#[test]
fn info_speaks_of_everything_that_matters() {
    let done = finish(&["info"]);
    assert!(done.status.success(), "{}", done.stderr);
    for word in [
        "ringfold",
        "cores",
        "kernels",
        "launcher   none",
        "interfaces",
        "memfd",
        "cuda",
        "hip",
        "shm",
        "tcp",
    ] {
        assert!(
            done.stdout.contains(word),
            "`{word}` is not in {}",
            done.stdout
        );
    }
}

#[test]
fn the_json_says_the_same() {
    let done = finish(&["info", "--json"]);
    assert!(done.status.success(), "{}", done.stderr);
    let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert!(json["cores_usable"].as_u64().unwrap() >= 1);
    let names: Vec<_> = json["transports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| &t["name"])
        .collect();
    assert_eq!(names, ["shm", "tcp", "rdma"]);
}

#[test]
fn a_launcher_is_seen() {
    let mut command = ringfold(&["info"]);
    command.envs([("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]);
    command.env("RINGFOLD_ADDR", "127.0.0.1:5000");
    let done = Running::start(command).finish();
    assert!(
        done.stdout.contains("launcher   Open MPI: rank 1 of 2"),
        "{}",
        done.stdout
    );
}

#[test]
fn half_a_launcher_is_no_failure_here() {
    let mut command = ringfold(&["info"]);
    command.env("RANK", "1");
    let done = Running::start(command).finish();
    assert!(done.status.success());
    assert!(done.stdout.contains("WORLD_SIZE"), "{}", done.stdout);
}
