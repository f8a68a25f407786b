//! Publications made again, and constants fitted to what was measured.

use super::*;

/// `--paper bupt2024`: figures 7 and 8 at α = 1.8 as (ΔT, ring, path, whole, serial), in microseconds.
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
    let done = sim("--paper bupt2024 --csv -");
    assert!(done.status.success(), "{}", done.stderr);
    let rows = rows(&done);
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
fn the_slow_node_paper_is_told_with_both_metrics_and_drawn() {
    let folder = Folder::new("bupt2024");
    let done = sim(&format!("--paper bupt2024 --plot {}", folder.file("")));
    assert!(done.status.success(), "{}", done.stderr);
    for text in [
        "25.319 %",
        "saves 23.553 % (16.650 % with serial",
        "15.707 %",
        "two triggers",
        "are swapped",
    ] {
        assert!(
            done.stdout.contains(text),
            "`{text}` is not in {}",
            done.stdout
        );
    }
    for number in 7..=10 {
        let picture =
            std::fs::read_to_string(folder.file(&format!("bupt2024-figure-{number}.svg"))).unwrap();
        assert!(picture.contains(&format!("Figure {number}:")));
    }
}

#[test]
fn the_laboratory_report_is_refuted_by_its_own_table_and_simulated() {
    let folder = Folder::new("mpi2021");
    let done = sim(&format!("--paper mpi2021 --plot {}", folder.file("")));
    assert!(done.status.success(), "{}", done.stderr);
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
    assert!(
        std::fs::read_to_string(folder.file("mpi2021-flat.svg"))
            .unwrap()
            .contains("16 ranks, printed")
    );
    let cells = rows(&sim("--paper mpi2021 --csv -"));
    assert_eq!(cells.len(), 30);
    let errors = cells.iter().map(|cell| {
        let seconds = |column: &str| cell[column].parse::<f64>().unwrap();
        (seconds("simulated_s") / seconds("printed_s") - 1.0).abs()
    });
    // All but the one that took longer than twice its size.
    assert_eq!(errors.filter(|&error| error < 0.3).count(), 29);
}

/// What `ringfold perf --csv` would write on a machine of exactly these constants.
fn measured(rows: &[(&str, u32, u64, f64)]) -> String {
    let mut text = "collective,algorithm,transport,ranks,bytes,count,dtype,op,in_place,iterations,first_us,min_us,median_us,p99_us,max_us,algbw_gbps,busbw_gbps,wrong\n".to_owned();
    for (algorithm, ranks, bytes, us) in rows {
        text += &format!(
            "all_reduce,{algorithm},tcp,{ranks},{bytes},1,float32,sum,false,20,1,1,{us},1,1,1,1,0\n"
        );
    }
    text
}

#[test]
fn calibration_gives_back_the_constants_of_its_rows() {
    let (alpha, beta, gamma) = (7.0, 1e-4, 4e-5);
    let mut table = Vec::new();
    for power in (10..=24).step_by(2) {
        let bytes = 1u64 << power;
        let size = bytes as f64;
        table.push((
            "ring",
            4,
            bytes,
            6.0 * alpha + 1.5 * size * beta + 0.75 * size * gamma,
        ));
        table.push((
            "recursive_doubling",
            8,
            bytes,
            3.0 * (alpha + size * (beta + gamma)),
        ));
    }
    let folder = Folder::new("calibrate");
    let file = folder.file("rows.csv");
    std::fs::write(&file, measured(&table)).unwrap();
    let done = sim(&format!("--calibrate {file}"));
    assert!(done.status.success(), "{}", done.stderr);
    let flags = "--alpha 7us --bandwidth 10GB/s --reduce-rate 25GB/s";
    assert!(
        done.stdout.ends_with(&format!("{flags}\n")),
        "{}",
        done.stdout
    );
    assert!(done.stdout.contains("R² 1.000000"), "{}", done.stdout);
    // The flags can be pasted, and give the time again.
    let again = time_us(&format!(
        "--algorithm ring --slice-bytes whole --bytes 1M {flags}"
    ));
    assert!((again / table[10].3 - 1.0).abs() < 1e-3, "{again}");
}

#[test]
fn calibration_says_what_it_cannot_tell_apart() {
    let ring = |bytes: u64| ("ring", 4, bytes, 30.0 + 1.5e-4 * bytes as f64);
    let folder = Folder::new("inseparable");
    let file = folder.file("rows.csv");
    std::fs::write(&file, measured(&[ring(1024), ring(65536), ring(1 << 20)])).unwrap();
    let done = sim(&format!("--calibrate {file}"));
    assert!(
        done.stdout.contains("cannot be told from β"),
        "{}",
        done.stdout
    );
    let given = sim(&format!("--calibrate {file} --reduce-rate 20GB/s"));
    assert!(
        given
            .stdout
            .ends_with("--alpha 5us --bandwidth 13.3333GB/s --reduce-rate 20GB/s\n"),
        "{}",
        given.stdout
    );
    std::fs::write(&file, "a,b\n1,2\n").unwrap();
    let done = sim(&format!("--calibrate {file}"));
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("perf --csv"), "{}", done.stderr);
}
