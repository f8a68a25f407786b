//! Sets the name under which programs find the library. The name includes the major version of the
//! interface, so that a program never runs with another version. The library stays loaded:
//! `dlclose` would unmap the code of its threads.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libringfold.so.0");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
