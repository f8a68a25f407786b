//! `--calibrate`: constants fitted to what was measured.

use super::*;

/// What `ringfold perf --csv` would write on a machine of exactly these constants.
fn measured(rows: &[(&str, u32, u64, f64)]) -> String {
    let mut text = "collective,algorithm,transport,ranks,bytes,count,dtype,op,in_place,iterations,\
        first_us,min_us,median_us,p99_us,max_us,algbw_gbps,busbw_gbps,wrong\n"
        .to_owned();
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

#[test]
fn calibration_leaves_out_data_on_devices() {
    let folder = Folder::new("devices-left-out");
    let file = folder.file("rows.csv");
    let rows = measured(&[("ring", 4, 1 << 20, 300.0)]);
    let rows = rows.replace("wrong\n", "wrong,limit_us\n");
    std::fs::write(&file, rows.replace(",0\n", ",0,100.0\n")).unwrap();
    let done = sim(&format!("--calibrate {file}"));
    assert!(!done.status.success(), "{}", done.stdout);
    assert!(done.stderr.contains("data on devices"), "{}", done.stderr);
}
