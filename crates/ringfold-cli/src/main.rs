//! The `ringfold` command.
fn main() {}
