//! `ringfold tune plot`: the pictures.

use super::{Folder, sweep, tune};

/// Two ways and a default that takes the wrong one in the middle.
fn measured() -> String {
    sweep(&[
        (1024, "ring", &[20.0]),
        (1024, "tree", &[10.0]),
        (1024, "default:tree", &[10.0]),
        (4096, "ring", &[21.0]),
        (4096, "tree", &[40.0]),
        (4096, "default:tree", &[40.0]),
        (16384, "ring", &[30.0]),
        (16384, "tree", &[160.0]),
        (16384, "default:ring", &[30.0]),
    ])
}

#[test]
fn every_figure_names_what_it_shows() {
    let folder = Folder::new("tune-plot");
    let (sweep, picture) = (folder.write("sweep.csv", &measured()), folder.path("p.svg"));
    let after = folder.write("after.csv", &measured().replace(",40", ",21"));
    let figures: [(&[&str], &[&str]); 5] = [
        (&["curve", &sweep], &["sweep"]),
        (
            &["curve", &sweep, &after, "--labels", "bad,good"],
            &["bad", "good"],
        ),
        (
            &["ways", &sweep, "--time"],
            &["ring/simple", "tree/simple", "time (us)"],
        ),
        (
            &["picks", &sweep, "--linear"],
            &["tree/simple", "the default&apos;s picks"],
        ),
        (
            &["after", &sweep, &after],
            &["ring/simple", "before", "after"],
        ),
    ];
    for (line, names) in figures {
        let done = tune(&[&["plot"], line, &["-o", &picture]].concat());
        assert!(done.status.success(), "{line:?}: {}", done.stderr);
        let text = std::fs::read_to_string(&picture).unwrap();
        for name in [&["all_reduce, 4 ranks", "16 KiB"], names].concat() {
            assert!(
                text.contains(name),
                "`{name}` is not in the picture of {line:?}"
            );
        }
    }
}

#[test]
fn as_many_ways_as_there_are_hues_differ_in_colour() {
    const WAYS: usize = 9;
    let ways: Vec<&str> = ringfold::Method::ALL.iter().map(|way| way.name()).collect();
    let rows: Vec<(u64, &str, &[f64])> = [1024, 4096]
        .into_iter()
        .flat_map(|bytes| {
            ways[..WAYS]
                .iter()
                .map(move |way| (bytes, *way, &[10.0][..]))
        })
        .chain([1024, 4096].map(|bytes| (bytes, "default:ring", &[10.0][..])))
        .collect();
    let folder = Folder::new("tune-colours");
    let (csv, picture) = (
        folder.write("ways.csv", &sweep(&rows)),
        folder.path("p.svg"),
    );
    let done = tune(&["plot", "picks", &csv, "-o", &picture]);
    assert!(done.status.success(), "{}", done.stderr);
    let text = std::fs::read_to_string(&picture).unwrap();
    let strokes = text.split("<polyline").skip(1);
    let strokes = strokes.filter_map(|line| line.split_once("stroke=\"#")?.1.get(..6));
    // Without a hue are the axes and the picks.
    let hues: std::collections::BTreeSet<&str> = strokes
        .filter(|colour| colour[..2] != colour[2..4] || colour[2..4] != colour[4..])
        .collect();
    assert_eq!(hues.len(), WAYS, "{hues:?}");
}

#[test]
fn what_cannot_be_drawn_says_why() {
    let folder = Folder::new("tune-undrawn");
    let csv = folder.write("sweep.csv", &measured());
    let picture = folder.path("p.svg");
    let refused = |line: &[&str]| {
        let done = tune(&[&["plot"], line, &["-o", picture.as_str()]].concat());
        assert_eq!(done.status.code(), Some(1), "{line:?}");
        done.stderr
    };
    assert!(refused(&["curve", &csv, "--ranks", "8"]).contains("nothing"));
    let two = folder.write(
        "two.csv",
        &(measured() + "broadcast,8,ring,simple,1,1,4,1,0,way,0,5\n"),
    );
    assert!(refused(&["ways", &two]).contains("--collective"));
}
