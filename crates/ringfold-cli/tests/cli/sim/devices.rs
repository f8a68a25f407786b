//! `--device`: data on devices, through the host's memory.

use serde_json::Value;

use super::{Folder, examples, sim};

/// The copies of 64 MiB over modelled links of 25 GB/s each way and 10 us, with chains of 5 us.
#[test]
fn data_on_devices_comes_within_12_percent_of_the_copies_alone() {
    let folder = Folder::new("devices");
    let gantt = folder.file("g.svg");
    let file = examples().join("devices.toml");
    let file = file.to_str().unwrap();
    for (ranks, bytes, more) in [
        (2, "64M", ""),
        (4, "64M", ""),
        (8, "16M", "--set ranks_per_device=4"),
    ] {
        let line = format!("{file} --ranks {ranks} -b {bytes} {more} --gantt {gantt} --json -");
        let done = sim(&line);
        assert!(done.status.success(), "{line}: {}", done.stderr);
        let json: Value = serde_json::from_str(&done.stdout).unwrap();
        let of_limit = json["simulations"][0]["of_limit"].as_f64().unwrap();
        assert!((0.88..=1.0).contains(&of_limit), "{line}: {of_limit}");
        let picture = std::fs::read_to_string(&gantt).unwrap();
        assert!(picture.contains("bring") && picture.contains("take"));
    }
    let done = sim(&format!("{file} -b 4M --set timeout=100ns"));
    assert!(!done.stdout.contains("of limit"), "{}", done.stdout);
    let done = sim(&format!("{file} -b 4M"));
    assert!(done.stdout.contains("of limit"), "{}", done.stdout);
    let swept = sim(&format!("{file} -b 4M --sweep slot_bytes=1M,4M --csv -"));
    assert!(swept.status.success(), "{}", swept.stderr);
}

#[test]
fn what_devices_do_not_have_is_refused_with_what_to_leave_out() {
    for (flags, words) in [
        ("--policy tail", "straggler policy"),
        ("--dead rank=1,at=100us", "ranks that die"),
        ("--set barriers=true", "leave out the barriers"),
        ("--method sweep", "run the simulation instead"),
        ("barrier", "no data on devices"),
    ] {
        let done = sim(&format!("--device 25GB/s -b 1M {flags}"));
        assert!(!done.status.success(), "{flags}: {}", done.stdout);
        assert!(done.stderr.contains(words), "{flags}: {}", done.stderr);
    }
}
