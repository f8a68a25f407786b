//! `ringfold tune optimize`: rules from measurements.

use super::{Folder, sweep, tune};

/// Measurements of NCCL, with the columns of the script beside NVIDIA's example plugin.
const THEIRS: &str = "\
collective,size_bytes,algorithm,protocol,channels,nodes,ranks,pipeOps,regBuff,cost_metric,\
bandwidth_gbps,latency_us
allreduce,1024,ring,ll,4,2,16,-1,-1,0.1,0.05,20.5
allreduce,1024,tree,ll,2,2,16,-1,-1,0.1,0.09,11.25
allreduce,4096,ring,ll,4,2,16,-1,-1,0.1,0.19,21.5
allreduce,4096,tree,ll,2,2,16,-1,-1,0.1,0.33,12.25
allreduce,1048576,ring,simple,8,2,16,-1,-1,0.1,10.4,100
allreduce,1048576,tree,ll,2,2,16,-1,-1,0.1,5.2,200
broadcast,1024,ring,ll,4,1,8,-1,-1,0.1,0.10,10
";

/// The script's output for `THEIRS`, except its last range, which ends with the last size.
const PRINTED: &str = "\
Auto-ranging enabled: will create one bucket per unique size in data
Loaded 7 performance data points
Dimension 2 nodes, 16 ranks: 3 size ranges from 3 unique sizes:
  Range 1: 0 - 2,560 bytes (2 data points, sizes: 1,024)
  Range 2: 2,561 - 526,336 bytes (2 data points, sizes: 4,096)
  Range 3: 526,337 - 18,446,744,073,709,551,615 bytes (2 data points, sizes: 1,048,576)
Dimension 1 nodes, 8 ranks: 1 size ranges from 1 unique sizes:
  Range 1: 0 - 18,446,744,073,709,551,615 bytes (1 data points, sizes: 1,024)
Combined 4 ranges into 3 ranges (reduced by 1)
Optimal for allreduce [0-526336] nodes=2 ranks=16: tree/ll channels=2 (latency_us=11.250)
Optimal for allreduce [526337-18446744073709551615] nodes=2 ranks=16: ring/simple channels=8 \
(latency_us=100.000)
Optimal for broadcast [0-18446744073709551615] nodes=1 ranks=8: ring/ll channels=4 \
(latency_us=10.000)
";

const RULES: &str = "\
allreduce,0,526336,tree,ll,2,2,16,-1,-1
allreduce,526337,18446744073709551615,ring,simple,8,2,16,-1,-1
broadcast,0,18446744073709551615,ring,ll,4,1,8,-1,-1
";

#[test]
fn what_nccls_users_measured_becomes_rules_as_nvidias_script_prints_them() {
    let folder = Folder::new("tune-theirs");
    let (csv, rules) = (
        folder.write("raw.csv", THEIRS),
        folder.path("new/tuned.csv"),
    );
    let done = tune(&["optimize", &csv, "-o", &rules]);
    assert!(done.status.success(), "{}", done.stderr);
    let tail = format!(
        "Created directory: {}\nCreating new file: {rules}\n\
         Created {rules} with 3 optimized configurations\n",
        folder.path("new"),
    );
    assert_eq!(done.stdout, format!("{PRINTED}{tail}"));
    let written = std::fs::read_to_string(&rules).unwrap();
    let (comments, lines): (Vec<&str>, Vec<&str>) =
        written.lines().partition(|line| line.starts_with('#'));
    assert_eq!(comments[1], "# Optimization metric: latency_us");
    assert_eq!(lines.join("\n") + "\n", RULES);
    let dry = tune(&["optimize", &csv, "--dry-run"]);
    assert_eq!(
        dry.stdout,
        format!("{PRINTED}\nGenerated configurations:\n{RULES}")
    );
}

#[test]
fn rules_of_an_earlier_run_do_not_stay_in_force() {
    let folder = Folder::new("tune-replace");
    let csv = folder.write("raw.csv", THEIRS);
    let rules = folder.write("tuned.csv", "allreduce,0,-1,ring,ll,-1,-1,-1\n");
    let done = tune(&["optimize", &csv, "-o", &rules, "--no-header"]);
    assert!(done.stdout.contains(&format!("Replacing file: {rules}\n")));
    assert_eq!(std::fs::read_to_string(&rules).unwrap(), RULES);
}

#[test]
fn a_metric_that_was_not_measured_is_an_error() {
    let folder = Folder::new("tune-metric");
    let csv = folder.write("raw.csv", THEIRS);
    let done = tune(&["optimize", &csv, "--metric", "p99_us"]);
    assert_eq!(done.status.code(), Some(1));
    let way_out = "has no column p99_us; choose --metric latency_us or bandwidth_gbps";
    assert!(done.stderr.contains(way_out), "{}", done.stderr);
    let done = tune(&["optimize", &folder.write("empty.csv", "a,b\n1,2\n")]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        done.stderr.contains("lacks collective, size_bytes"),
        "{}",
        done.stderr
    );
}

#[test]
fn rows_that_make_no_sense_are_left_out_and_named() {
    let folder = Folder::new("tune-rows");
    let bad = "allreduce,1024,tree,ll,2,2,16,-1,-1,0.1,0.09,nan\nallreduce,10";
    let csv = folder.write("raw.csv", &format!("{THEIRS}{bad}"));
    let done = tune(&["optimize", &csv, "--dry-run"]);
    assert!(done.status.success());
    assert!(done.stdout.starts_with(PRINTED), "{}", done.stdout);
    for line in ["line 9: latency_us is NaN", "line 10: no nodes"] {
        assert!(
            done.stderr.contains(line),
            "`{line}` is not in {}",
            done.stderr
        );
    }
}

#[test]
fn repeats_count_by_their_median_and_the_defaults_rows_not_at_all() {
    let folder = Folder::new("tune-repeats");
    let text = sweep(&[
        (64, "ring", &[9.0, 9.0, 1.0]),
        (64, "tree", &[5.0, 5.0, 6.0]),
        (64, "default:direct", &[2.0, 2.0, 2.0]),
    ]);
    let csv = folder.write("s.csv", &text);
    let done = tune(&["optimize", &csv, "--dry-run", "--every-size"]);
    let rule = "all_reduce,0,18446744073709551615,tree,simple,-1,1,4,1,0\n";
    assert!(done.stdout.ends_with(rule), "{}", done.stdout);
    assert!(done.stdout.contains("(median_us=5.000)"), "{}", done.stdout);
}

#[test]
fn a_range_of_several_sizes_is_won_by_ratios() {
    let folder = Folder::new("tune-ratios");
    // By its best time `tree` would win, although it loses by far at the larger size.
    let text = sweep(&[
        (64, "tree", &[5.0]),
        (64, "ring", &[6.0]),
        (1024, "tree", &[80.0]),
        (1024, "ring", &[20.0]),
    ]);
    let csv = folder.write("s.csv", &text);
    let done = tune(&["optimize", &csv, "--dry-run", "--size-ranges", "0-4096"]);
    assert!(
        done.stdout
            .ends_with("all_reduce,0,4096,ring,simple,-1,1,4,1,0\n")
    );
    let done = tune(&["optimize", &csv, "--size-ranges", "9-4"]);
    assert_eq!(done.status.code(), Some(2));
}

#[test]
fn fewer_rules_are_made_where_little_is_lost() {
    let folder = Folder::new("tune-few");
    let text = sweep(&[
        (64, "ring", &[5.0]),
        (64, "tree", &[5.1]),
        (128, "ring", &[6.2]),
        (128, "tree", &[6.0]),
        (256, "ring", &[7.0]),
        (256, "tree", &[9.0]),
        (64, "default:ring", &[5.0]),
        (128, "default:ring", &[6.2]),
        (256, "default:tree", &[9.0]),
    ]);
    let csv = folder.write("s.csv", &text);
    let rules = |more: &[&str]| {
        let done = tune(&[&["optimize", csv.as_str(), "--dry-run"], more].concat());
        let (_, rules) = done.stdout.split_once("configurations:\n").expect("rules");
        rules.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(rules(&["--every-size"]).len(), 3);
    let one = "all_reduce,0,18446744073709551615,ring,simple,-1,1,4,1,0";
    assert_eq!(rules(&["--every-size", "--tolerance", "5"]), [one]);
    // A single size is no evidence for all larger ones.
    let one = "all_reduce,193,256,ring,simple,-1,1,4,1,0";
    assert_eq!(rules(&[]), [one]);
    assert_eq!(rules(&["--margin", "50"]), [] as [&str; 0]);
}

#[test]
fn rules_are_made_exactly_where_check_finds_a_wrong_choice() {
    let folder = Folder::new("tune-agrees");
    // At 64 bytes the difference is noise; at 128 it is within the margin; at 256 the pick is as
    // good when requested by name; from 512 on the pick is wrong.
    let text = sweep(&[
        (64, "default:ring", &[5.0, 9.0, 5.0, 9.0, 5.0, 9.0]),
        (64, "ring", &[9.0, 9.0, 9.0, 9.0, 9.0, 9.0]),
        (64, "tree", &[6.0, 6.0, 6.0, 6.0, 6.0, 6.0]),
        (128, "default:ring", &[6.2; 6]),
        (128, "ring", &[6.2; 6]),
        (128, "tree", &[6.0; 6]),
        (256, "default:ring", &[9.0; 6]),
        (256, "ring", &[7.0; 6]),
        (256, "tree", &[7.5; 6]),
        (512, "default:ring", &[20.0; 6]),
        (512, "ring", &[20.0; 6]),
        (512, "tree", &[10.0; 6]),
        (1024, "default:ring", &[40.0; 6]),
        (1024, "ring", &[40.0; 6]),
        (1024, "tree", &[20.0; 6]),
    ]);
    let csv = folder.write("s.csv", &text);
    let checked = tune(&["check", &csv]);
    let choices: Vec<&str> = checked
        .stdout
        .lines()
        .filter(|line| line.contains("wrong choice "))
        .collect();
    assert_eq!(choices.len(), 1, "{}", checked.stdout);
    assert!(
        choices[0].contains("512 B to 1 KiB: ring/simple"),
        "{}",
        choices[0]
    );
    let done = tune(&["optimize", &csv, "--dry-run"]);
    let (_, rules) = done.stdout.split_once("configurations:\n").expect("rules");
    assert_eq!(
        rules,
        "all_reduce,385,18446744073709551615,tree,simple,-1,1,4,1,0\n"
    );
    // If the default is right, no rule is written.
    let right = folder.write(
        "right.csv",
        &sweep(&[(64, "default:ring", &[5.0; 6]), (64, "tree", &[5.1; 6])]),
    );
    let done = tune(&["optimize", &right, "-o", &folder.path("right-rules.csv")]);
    assert!(done.stdout.contains("No rule is needed"), "{}", done.stdout);
    assert_eq!(tune(&["check", &right]).status.code(), Some(0));
}
