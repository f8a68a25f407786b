//! The `ringfold` command: see the library of this package.

use std::process::ExitCode;

use ringfold_cli::Invocation;

fn main() -> ExitCode {
    ExitCode::from(ringfold_cli::main(Invocation::of_this_process()))
}
