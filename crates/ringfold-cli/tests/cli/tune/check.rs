//! `ringfold tune check`: the findings about a curve.

use super::{Folder, sweep, tune};

/// Returns the times of six rounds, which differ a little.
fn rounds(time_us: f64) -> [f64; 6] {
    [1.0, 1.01, 0.99, 1.02, 0.98, 1.0].map(|weather| time_us * weather)
}

/// Returns a sweep with these times of the default and of each way, at the sizes from 1 KiB on.
fn measured(default: (&[&str], &[f64]), ways: &[(&str, &[f64])]) -> String {
    let (picks, times_us) = default;
    let mut rows = Vec::new();
    for (index, &time_us) in times_us.iter().enumerate() {
        let bytes = 1024 << index;
        let pick = format!("default:{}", picks[index.min(picks.len() - 1)]);
        rows.push((bytes, pick, rounds(time_us)));
        for (way, times_us) in ways {
            rows.push((bytes, way.to_string(), rounds(times_us[index])));
        }
    }
    let rows: Vec<(u64, &str, &[f64])> = rows
        .iter()
        .map(|(bytes, way, times)| (*bytes, way.as_str(), times.as_slice()))
        .collect();
    sweep(&rows)
}

/// Times of a good curve: latency, then bandwidth.
const GOOD: [f64; 8] = [10.0, 11.0, 13.0, 17.0, 25.0, 42.0, 80.0, 158.0];

fn checked(text: &str, more: &[&str]) -> (Option<i32>, String) {
    let folder = Folder::new(&format!("check-{:?}", std::thread::current().id()));
    let csv = folder.write("rows.csv", text);
    let done = tune(&[&["check", csv.as_str()], more].concat());
    (done.status.code(), done.stdout + &done.stderr)
}

#[test]
fn a_good_curve_passes() {
    let (status, text) = checked(&measured((&["ring"], &GOOD), &[]), &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("nothing beyond 5 %"), "{text}");
}

#[test]
fn a_dip_is_found_and_its_sizes_are_named() {
    let mut times = GOOD;
    times[5] = 90.0;
    let (status, text) = checked(&measured((&["ring"], &times), &[]), &[]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("dip           32 KiB: "), "{text}");
    assert!(text.contains("less bandwidth than at 16 KiB"), "{text}");
    assert!(text.contains("1 inversion\n"), "{text}");
    let next = "next: no other way was measured, so this may be a property of the machine; to find \
            out, run `ringfold tune sweep";
    assert!(
        text.lines()
            .last()
            .is_some_and(|line| line.starts_with(next)),
        "{text}"
    );
}

#[test]
fn a_plateau_below_the_top_is_found() {
    let times = [10.0, 11.0, 13.0, 26.0, 52.0, 60.0, 80.0, 158.0];
    let (status, text) = checked(&measured((&["ring"], &times), &[]), &[]);
    assert_eq!(status, Some(1), "{text}");
    let line = "plateau       4 KiB to 16 KiB: no more than at 4 KiB";
    assert!(text.contains(line), "{text}");
    // The flat end of the curve is its top.
    assert!(text.contains("\n1 plateau\n"), "{text}");
}

#[test]
fn a_call_that_takes_longer_than_a_larger_one_is_found() {
    let times = [10.0, 30.0, 13.0, 17.0, 25.0, 42.0, 80.0, 158.0];
    let (status, text) = checked(&measured((&["ring"], &times), &[]), &["--json"]);
    assert_eq!(status, Some(1), "{text}");
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let findings = found["series"][0]["findings"].as_array().unwrap();
    let inversion = findings.iter().find(|f| f["kind"] == "inversion").unwrap();
    assert_eq!(inversion["from_bytes"], 2048);
    assert_eq!(inversion["against_bytes"], 4096);
}

#[test]
fn what_chance_explains_is_no_finding() {
    // The default takes twice as long in half of the rounds; which half is right is unknown.
    let mut text = measured((&["ring"], &GOOD), &[("tree", &GOOD)]);
    let row = |asked: &str, algorithm: &str, round: usize, time_us: f64| {
        format!("all_reduce,2097152,{algorithm},simple,-1,1,4,1,0,{asked},{round},{time_us}\n")
    };
    for (round, time_us) in [1200.0, 2600.0, 1210.0, 2610.0, 1190.0, 2590.0]
        .into_iter()
        .enumerate()
    {
        text += &row("default", "ring", round, time_us);
        text += &row("way", "tree", round, 1200.0);
    }
    let (status, text) = checked(&text, &[]);
    assert_eq!(status, Some(0), "{text}");
}

#[test]
fn wrong_choices_and_the_better_way_are_named() {
    let slow = GOOD.map(|time| 2.0 * time);
    let picked = |index: usize| {
        if (3..6).contains(&index) {
            slow[index]
        } else {
            GOOD[index]
        }
    };
    let times: [f64; 8] = std::array::from_fn(picked);
    let picks = [
        "ring", "ring", "ring", "tree", "tree", "tree", "ring", "ring",
    ];
    let text = measured((&picks, &times), &[("ring", &GOOD), ("tree", &slow)]);
    let (status, text) = checked(&text, &[]);
    assert_eq!(status, Some(1), "{text}");
    let line =
        "wrong choice  8 KiB to 32 KiB: tree/simple takes up to 2.00 times as long as ring/simple";
    let spread = text.replace("2.00 (2.00 to 2.00)", "2.00");
    assert!(spread.contains(line), "{text}");
    assert!(
        text.contains("16 KiB:     50.00 us, 25.00 us by ring/simple"),
        "{text}"
    );
    assert!(text.contains("; better: ring/simple"), "{text}");
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("next: `ringfold tune optimize "), "{text}");
}

#[test]
fn a_dip_that_no_way_fixes_is_the_machines() {
    let times = [10.0, 11.0, 13.0, 17.0, 25.0, 80.0, 160.0, 320.0];
    let text = measured((&["ring"], &times), &[("ring", &times), ("tree", &times)]);
    let (status, text) = checked(&text, &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("dip           32 KiB to 128 KiB"), "{text}");
    assert!(text.contains("this is a property of the machine"), "{text}");
    assert!(text.ends_with("nothing that another way fixes\n"), "{text}");
}

/// Returns a file of `perf --csv` with these times, out of place and in place.
fn perf(algorithm: &str, times_us: &[f64]) -> String {
    let mut text = String::from(
        "collective,algorithm,transport,ranks,bytes,count,dtype,op,in_place,iterations,first_us,\
         min_us,median_us,p99_us,max_us,algbw_gbps,busbw_gbps,wrong,low_us,high_us\n",
    );
    for (index, time_us) in times_us.iter().enumerate() {
        for in_place in [false, true] {
            let bytes = 1024 << index;
            let (low, high) = (0.98 * time_us, 1.02 * time_us);
            text += &format!(
                "all_reduce,{algorithm},shm,4,{bytes},{},float32,sum,{in_place},20,9,9,{time_us},9,\
                 9,1,1,0,{low},{high}\n",
                bytes / 4
            );
        }
    }
    text
}

#[test]
fn what_perf_writes_can_be_checked_against_other_runs_of_it() {
    let mut times = GOOD;
    times[6] = 120.0;
    let folder = Folder::new("check-perf");
    let csv = folder.write("perf.csv", &perf("direct", &times));
    let done = tune(&["check", &csv]);
    assert_eq!(done.status.code(), Some(1));
    for heading in [
        "all_reduce, 4 ranks, float32, sum: 8 sizes",
        "sum, in place: 8 sizes",
    ] {
        assert!(done.stdout.contains(heading), "{}", done.stdout);
    }
    assert!(done.stdout.contains("\n2 dips\n"), "{}", done.stdout);
    let ring = folder.write("ring.csv", &perf("ring", &GOOD));
    let done = tune(&["check", &csv, "--ways", &ring]);
    assert!(done.stdout.contains("better: ring\n"), "{}", done.stdout);
    assert!(
        done.stdout.contains("\n2 dips, 2 wrong choices\n"),
        "{}",
        done.stdout
    );
    // The file does not specify which of the two ways is the curve.
    let both = folder.write("both.csv", &(perf("direct", &times) + &perf("ring", &GOOD)));
    let done = tune(&["check", &both]);
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("--ways"), "{}", done.stderr);
}
