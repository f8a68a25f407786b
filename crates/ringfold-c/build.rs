//! Gives the library the name under which programs find it: the major version of its interface is
//! part of that, so that a program never runs with another. Once loaded, it stays: `dlclose` would
//! take its threads' code.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libringfold.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
