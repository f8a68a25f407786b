use super::*;

const MACHINE: &str = "a machine";

fn calibration() -> Calibration {
    let constants = Constants {
        hop_us: 0.123,
        ..Constants::default()
    };
    let mut factors = Corrections::default();
    factors.set("all_reduce.ring.simple".parse().expect("a way"), 20, 1.25);
    let context = |is_shared, ranks| CalibrationContext { is_shared, ranks };
    Calibration {
        constants,
        corrections: vec![
            (context(true, 2), factors),
            (context(false, 4), Corrections::default()),
        ],
        links: Some(LinkCosts::default()),
        rdma: Some(RdmaCosts::default()),
        devices: Some(DeviceConstants::default()),
    }
}

#[test]
fn a_calibration_survives_its_file() {
    let folder = std::env::temp_dir().join(format!("ringfold-calibration-{}", std::process::id()));
    let path = folder.join("deep").join("file.toml");
    calibration().write(&path, MACHINE).expect("written");
    assert_eq!(
        Calibration::read(&path, MACHINE).expect("read"),
        calibration()
    );
    let beside: Vec<_> = fs::read_dir(path.parent().expect("a folder"))
        .expect("a folder")
        .collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
    fs::remove_dir_all(&folder).expect("removed");
    assert!(Calibration::read(&path, MACHINE).is_err());
}

#[test]
fn what_was_measured_elsewhere_or_means_nothing_is_refused() {
    let text = calibration().text(MACHINE);
    let refused = |text: &str| Calibration::parse(text, Some(MACHINE)).expect_err(text);
    let elsewhere = Calibration::parse(&text, Some("another machine")).unwrap_err();
    assert!(elsewhere.contains("measured on `a machine`"), "{elsewhere}");
    for (from, to) in [
        ("machine =", "machin ="),
        ("hop_us=0.123", "hop_us=-1"),
        ("ranks = 2", "ranks = 0"),
        ("ranks = 2", "ranks = two"),
        ("wake_us=20", "wake_us=-20"),
        ("device_out_gbps=25", "device_out_gbps=0"),
        ("device_in_gbps=25,", ""),
        ("\"shm\"", "\"ib\""),
        ("simple@20", "simple@99"),
        ("all_reduce.ring.simple@20=1.25", "hop_us=1"),
        ("[[corrections]]", "[[correction]]"),
        ("transport = \"shm\"\n", ""),
    ] {
        let spoiled = text.replacen(from, to, 1);
        assert_ne!(spoiled, text, "{from}");
        refused(&spoiled);
    }
    refused("");
    refused(&"[[corrections]]\n".repeat(TABLES_MAX + 1));
    let error = refused(&text.replacen("constants = ", "constants ", 1));
    assert!(error.contains("line 3"), "{error}");
}

#[test]
fn corrections_hold_among_those_who_were_measured() {
    let machine = Machine {
        cores: 2,
        ..Machine::here()
    };
    let of = |is_shared, ranks| {
        calibration().constants(CalibrationContext { is_shared, ranks }, &machine, ranks)
    };
    assert_eq!(of(true, 2).corrections.points().len(), 1);
    assert_eq!(of(true, 3).corrections.points().len(), 0);
    assert_eq!(of(false, 2).corrections.points().len(), 0);
    assert_eq!((of(true, 4).load, of(true, 4).hop_us), (2.0, 0.123));
}

#[test]
fn a_job_of_several_hosts_has_the_costs_of_its_links() {
    let links = LinkCosts {
        socket_overhead_us: 7.5,
        ..LinkCosts::default()
    };
    let measured = Calibration {
        links: Some(links),
        ..calibration()
    };
    let several = measured.of_several_hosts();
    assert_eq!(several.constants.socket_message_us, 7.5);
    assert_eq!(several.constants.hop_us, 0.123);
    assert!(several.corrections.is_empty());
    assert_eq!(several.devices, Some(DeviceConstants::default()));
    let unmeasured = Calibration {
        links: None,
        ..calibration()
    };
    assert_eq!(unmeasured.clone().of_several_hosts(), unmeasured);
    let folder = std::env::temp_dir().join(format!("ringfold-any-{}", std::process::id()));
    let path = folder.join("file.toml");
    calibration().write(&path, "another").expect("written");
    assert_eq!(Calibration::read_any(&path).expect("read"), calibration());
    fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn a_job_over_rdma_has_its_costs_and_no_other_job_has_them() {
    let costs = RdmaCosts {
        rdma_overhead_us: 0.75,
        rdma_us_per_byte: 2e-4,
        ..RdmaCosts::default()
    };
    let measured = Calibration {
        rdma: Some(costs.clone()),
        ..calibration()
    };
    let without = Calibration {
        rdma: None,
        ..measured.clone()
    };
    let over_sockets = measured.clone().of_several_hosts().constants;
    assert_eq!(over_sockets, without.clone().of_several_hosts().constants);
    assert_eq!(over_sockets.grant_us, 0.0);
    let over_rdma = measured.clone().of_several_hosts().over_rdma();
    assert_eq!(over_rdma.constants, costs.over(over_sockets));
    assert!(over_rdma.corrections.is_empty());
    assert!(measured.knows_rate(true) && without.knows_rate(false));
    // The default costs do not include the rate.
    let assumed = without.clone().over_rdma().constants;
    assert_eq!(assumed.socket_hop_us, 2.0);
    assert!(!without.knows_rate(true));
}

#[test]
fn a_file_of_other_constants_says_which_is_missing() {
    let text = calibration().text(MACHINE);
    for (name, of) in [
        ("grant_us", "constants"),
        ("rdma_grant_us", "costs of RDMA"),
    ] {
        let entry = text.split([',', '"']).find(|entry| entry.starts_with(name));
        let spoiled = text.replacen(&format!(",{}", entry.expect("an entry")), "", 1);
        let error = Calibration::parse(&spoiled, Some(MACHINE)).unwrap_err();
        let due = format!("{of}: `{name}` is missing");
        assert!(error.contains(&due), "{error}");
    }
}

#[test]
fn the_file_has_its_machines_place() {
    let lookup = |pairs: &'static [(&str, &str)]| {
        move |name: &str| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        }
    };
    let of = |pairs| path(&lookup(pairs), MACHINE).map(|path| path.display().to_string());
    let home = of(&[("HOME", "/home/me")]).expect("a path");
    assert!(
        home.starts_with("/home/me/.cache/ringfold/") && home.ends_with(".toml"),
        "{home}"
    );
    let cache = of(&[("HOME", "/home/me"), ("XDG_CACHE_HOME", "/cache")]).expect("a path");
    assert!(cache.starts_with("/cache/ringfold/"), "{cache}");
    // A relative folder is ignored, as the XDG specification requires.
    assert_eq!(
        of(&[("HOME", "/home/me"), ("XDG_CACHE_HOME", "cache")]),
        Some(home)
    );
    assert_eq!(of(&[]), None);
    assert_ne!(
        path(&lookup(&[("HOME", "/")]), "one"),
        path(&lookup(&[("HOME", "/")]), "other")
    );
}

#[test]
fn this_machine_can_be_told() {
    let machine = describe(Path::new("/"));
    assert_eq!(machine, describe(Path::new("/")));
    assert!(
        machine.contains(env!("CARGO_PKG_VERSION")) && !machine.contains('"'),
        "{machine}"
    );
    assert!(describe(Path::new("/no/such/root")).contains("unknown"));
}
