//! Checks that the numbers in the header are those of the library, one more than on the wire.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int};

use ringfold::{Collective, DType, Op};

const HEADER: &str = include_str!("../include/ringfold.h");

/// Returns the numbers that the header defines by name, by `#define` or in an enumeration.
fn numbers() -> BTreeMap<&'static str, c_int> {
    let defined = HEADER.lines().filter_map(|line| {
        let line = line
            .trim()
            .trim_end_matches(',')
            .trim_start_matches("#define ");
        let (name, number) = line.split_once(" = ").or_else(|| line.split_once(' '))?;
        Some((name, number.parse().ok()?))
    });
    defined
        .filter(|(name, _)| name.starts_with("RINGFOLD_"))
        .collect()
}

#[test]
fn every_type_operation_and_collective_has_its_number() {
    let numbers = numbers();
    let types = DType::ALL
        .iter()
        .map(|dtype| (dtype.name(), *dtype as c_int));
    let collectives = Collective::ALL.iter().map(|it| (it.name(), *it as c_int));
    let operations = (0..).zip(Op::NAMES).map(|(wire, name)| (name, wire));
    for (name, wire) in types.chain(collectives).chain(operations) {
        let name = format!("RINGFOLD_{}", name.to_uppercase());
        assert_eq!(numbers.get(&name[..]), Some(&(wire + 1)), "{name}");
    }
}

#[test]
fn every_status_has_its_name() {
    let statuses = [
        "OK",
        "PEER_FAILED",
        "MISMATCH",
        "INVALID_ARGUMENT",
        "INTERNAL",
    ];
    let numbers = numbers();
    let named: Vec<&str> = (0..=numbers["RINGFOLD_INTERNAL"])
        .map(|status| {
            // SAFETY: a constant text.
            let name = unsafe { CStr::from_ptr(ringfold_c::ringfold_status_name(status)) };
            let name = name.to_str().expect("a text");
            assert_eq!(numbers.get(name), Some(&status), "{name}");
            name
        })
        .collect();
    for status in statuses {
        assert!(
            named.contains(&&format!("RINGFOLD_{status}")[..]),
            "{status}"
        );
    }
}
