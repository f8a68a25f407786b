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
fn what_cannot_be_drawn_says_why() {
    let folder = Folder::new("tune-undrawn");
    let csv = folder.write("sweep.csv", &measured());
    let picture = folder.path("p.svg");
    let refused = |line: &[&str]| {
        let done = tune(&[&["plot"], line, &["-o", picture.as_str()]].concat());
        assert_eq!(done.status.code(), Some(1), "{line:?}");
        done.stderr
    };
    assert!(refused(&["after", &csv]).contains("2 files"));
    assert!(refused(&["curve", &csv, "--ranks", "8"]).contains("nothing"));
    let two = folder.write(
        "two.csv",
        &(measured() + "broadcast,8,ring,simple,1,1,4,1,0,way,0,5\n"),
    );
    assert!(refused(&["ways", &two]).contains("--collective"));
}
