//! Checks that the committed header is the one that cbindgen generates from the sources. To write
//! the header anew: `cargo test -p ringfold-c --test header -- --ignored`.

use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> PathBuf {
    folder().join("include/ringfold.h")
}

/// Returns the header that cbindgen generates from the sources.
fn written() -> String {
    let config = cbindgen::Config::from_root_or_default(folder());
    // cbindgen reads the crate's other files, too.
    let root = folder().join("src/lib.rs");
    let builder = cbindgen::Builder::new().with_config(config).with_src(root);
    let mut text = Vec::new();
    builder.generate().expect("a header").write(&mut text);
    let text = String::from_utf8(text).expect("a text");
    // C programmers do not know Rust's sections.
    text.replace(" * # Safety\n", " * Safety:\n")
}

#[test]
fn the_header_is_that_of_the_sources() {
    let committed = fs::read_to_string(header()).expect("the header");
    assert!(
        committed == written(),
        "include/ringfold.h is not what the sources say; write it anew with `cargo test -p \
         ringfold-c --test header -- --ignored`"
    );
}

#[test]
#[ignore = "writes include/ringfold.h"]
fn write() {
    fs::write(header(), written()).expect("the header is written");
}
