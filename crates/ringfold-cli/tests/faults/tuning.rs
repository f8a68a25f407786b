//! The tuner's tools in jobs of several hosts.

use std::path::PathBuf;
use std::process::Command;

use ringfold::internals::tune::calibration::Calibration;

use crate::command::run;
use crate::job::software_devices;
use crate::lab::Lab;

/// Host of each rank: two hosts of two ranks each.
const TWO_BY_TWO: [usize; 4] = [0, 0, 1, 1];

/// A file of the test, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("ringfold-{name}-{}.csv", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a plain name")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.0).expect("the file that was written")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs `ringfold tune` on this machine. Returns its exit status and its output.
fn tune(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringfold"));
    let done = command.arg("tune").args(arguments).output();
    let done = done.expect("the command starts");
    let said = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (done.status.code(), said.concat())
}

/// Returns a rank's last choice for an all-reduce of `bytes` bytes, from its log. Before ranks have
/// rules, they may measure their links with an all-reduce.
fn choice(log: &str, bytes: usize) -> &str {
    let head = format!("choice: all_reduce of {bytes} bytes, ");
    let (_, rest) = log.rsplit_once(&head).expect("a choice in the log");
    let line = rest.lines().next().unwrap_or_default();
    line.split_once(" ranks: ").expect("the choice").1
}

/// Counts the rows that have all of these fields.
fn rows(sweep: &str, fields: &[&str]) -> usize {
    let has_all = |line: &&str| {
        let has = |field: &&str| line.split(',').any(|other| other == *field);
        fields.iter().all(has)
    };
    sweep.lines().filter(has_all).count()
}

#[test]
fn a_sweep_of_two_hosts_has_their_ways_and_knows_where_ranks_are() {
    let Some(lab) = Lab::new(2) else { return };
    let sweep = Scratch::new("sweep");
    let ways = ["leader", "multi_leader", "hierarchical", "ring"];
    let list = ways.join(",");
    let mut arguments = vec![
        "tune", "sweep", "-b", "1K", "-e", "64K", "-f", "64", "-n", "1",
    ];
    arguments.extend(["--rounds", "2", "--give-up", "1e9", "--algorithms", &list]);
    arguments.extend(["-c", "1", "-o", sweep.path()]);
    for (hosts, placement) in [
        (&TWO_BY_TWO, "even"),
        (&[0, 0, 0, 1], "3+1"),
        (&[0, 1, 0, 1], "dealt out"),
    ] {
        let (said, _) = run(&lab, hosts, &[], &arguments);
        // Measurements with another placement do not count for this one.
        for way in ways {
            let found = rows(&sweep.text(), &[way, placement, "way", "0"]);
            assert_eq!(found, 4, "{way}, {placement}: {}", sweep.text());
        }
        let title = match placement {
            "even" => "4 ranks on 2 hosts,".to_owned(),
            placement => format!("4 ranks on 2 hosts ({placement}),"),
        };
        assert!(said.contains(&title), "{said}");
    }
    lab.assert_empty();
    let (status, said) = tune(&["optimize", sweep.path(), "--every-size", "--dry-run"]);
    assert_eq!(status, Some(0), "{said}");
    let due = "placed in several ways (3+1, dealt out, even)";
    assert!(said.contains(due), "{said}");
    assert!(said.contains(",-1,2,4,-1,0"), "{said}");
}

/// Returns a sweep of two hosts of two ranks, in which `hierarchical` is best at 1 KiB and `ring`
/// at 64 KiB, whatever the model would choose there.
fn sweep_with_wrong_choices() -> String {
    let mut text = String::from(
        "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,pipeOps,regBuff,asked,round,\
         placement,median_us\n",
    );
    for round in 0..6 {
        for (bytes, best) in [(1024, "hierarchical"), (65536, "ring")] {
            for (way, asked, time_us) in [
                ("recursive_doubling", "default", 30),
                ("recursive_doubling", "way", 30),
                (best, "way", 20),
            ] {
                text += &format!(
                    "all_reduce,{bytes},{way},simple,-1,2,4,-1,0,{asked},{round},even,{time_us}\n"
                );
            }
        }
    }
    text
}

#[test]
fn a_table_learnt_on_two_hosts_decides_there_and_nowhere_else() {
    let Some(lab) = Lab::new(4) else { return };
    let [sweep, table] = ["learnt", "table"].map(Scratch::new);
    std::fs::write(sweep.path(), sweep_with_wrong_choices()).expect("a file for the test");
    let (status, said) = tune(&["check", sweep.path()]);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said.contains("2 wrong choices") && said.contains("hierarchical/simple"),
        "{said}"
    );
    let (status, said) = tune(&["optimize", sweep.path(), "-o", table.path()]);
    assert_eq!(status, Some(0), "{said}");
    // An operator's bad rule would be worse than none; a rule for other hosts does not apply here.
    let variables = [
        ("RINGFOLD_TUNER_CONFIG", table.path()),
        ("RINGFOLD_DEBUG", "INFO"),
        ("RINGFOLD_DEBUG_SUBSYS", "TUNING"),
    ];
    let arguments = [
        "perf", "-b", "1K", "-e", "64K", "-f", "64", "-n", "1", "-c", "1",
    ];
    let log = |hosts: &[usize]| run(&lab, hosts, &variables, &arguments).1.swap_remove(0);
    let here = log(&TWO_BY_TWO);
    for (bytes, method) in [(1024, "hierarchical"), (65536, "ring")] {
        let choice = choice(&here, bytes);
        assert!(choice.starts_with(method), "{choice}");
        assert!(choice.contains("of the rules"), "{choice}");
    }
    for elsewhere in [&[0, 1, 2, 3][..], &[0, 0, 0, 0], &[0, 0, 1]] {
        let there = log(elsewhere);
        for bytes in [1024, 65536] {
            let choice = choice(&there, bytes);
            assert!(!choice.contains("of the rules"), "{elsewhere:?}: {choice}");
        }
    }
    lab.assert_empty();
}

/// Software devices over which ranks on the hosts of a lab reach each other, although the hosts'
/// network namespaces differ.
struct Devices {
    library: String,
    folder: PathBuf,
}

impl Devices {
    fn new() -> Devices {
        let name = format!("ringfold-softverbs-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        Devices {
            library: software_devices().display().to_string(),
            folder,
        }
    }

    fn variables(&self) -> [(&str, &str); 3] {
        [
            ("RINGFOLD_TRANSPORT", "rdma"),
            ("RINGFOLD_VERBS_LIBRARY", &self.library),
            (
                "SOFTVERBS_FOLDER",
                self.folder.to_str().expect("a plain name"),
            ),
        ]
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn what_was_measured_over_rdma_holds_for_jobs_over_rdma_alone() {
    let Some(lab) = Lab::new(2) else { return };
    let (devices, file) = (Devices::new(), Scratch::new("rdma"));
    let (rdma, tcp) = (devices.variables(), [("RINGFOLD_TRANSPORT", "tcp")]);
    let calibrate = ["tune", "calibrate", "--file", file.path()];
    let kept = || Calibration::read_any(file.0.as_path()).expect("a calibration");
    let (said, _) = run(&lab, &[0, 1], &rdma, &calibrate);
    assert!(
        said.contains("measured between hosts that RDMA joins"),
        "{said}"
    );
    let first = kept();
    let measured = first.rdma.clone().expect("costs of RDMA");
    assert!(measured.rdma_alpha_us + measured.rdma_overhead_us > 0.0);
    assert_eq!(first.links, None, "{said}");
    // A calibration over sockets does not change the costs of RDMA.
    run(&lab, &[0, 1], &tcp, &calibrate);
    let both = kept();
    assert_eq!(both.rdma, first.rdma);
    assert!(both.links.is_some());
    let log = |network: &[(&str, &str)]| {
        let known = [
            ("RINGFOLD_CALIBRATION", file.path()),
            ("RINGFOLD_DEBUG", "TRACE"),
            ("RINGFOLD_DEBUG_SUBSYS", "TUNING"),
        ];
        let variables = [network, &known].concat();
        let arguments = ["perf", "-b", "1K", "-e", "1K", "-n", "1", "-c", "1"];
        run(&lab, &[0, 1], &variables, &arguments).1.concat()
    };
    // A copy takes some time on every machine, so the measured cost is not 0.
    let staging = |us_per_byte: f64| format!("staging_us_per_byte={us_per_byte},");
    let over_rdma = log(&rdma);
    assert!(
        over_rdma.contains(&staging(measured.staging_us_per_byte)),
        "{over_rdma}"
    );
    let over_tcp = log(&tcp);
    assert!(over_tcp.contains(&staging(0.0)), "{over_tcp}");
    lab.assert_empty();
}
