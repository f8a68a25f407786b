//! Compiles the one function that has to be C: the logger of tuner plugins, which takes variable
//! arguments like `printf`.

fn main() {
    let source = "src/logger.c";
    println!("cargo::rerun-if-changed={source}");
    cc::Build::new()
        .file(source)
        .warnings(true)
        .extra_warnings(true)
        .compile("ringfold_plugin_logger");
}
