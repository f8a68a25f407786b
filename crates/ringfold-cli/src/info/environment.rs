//! The settings of the environment variables.

use ringfold::Platform;
use ringfold::env::Environment;

/// Returns the driver library that the user has named.
pub fn driver_library(platform: Platform) -> Option<String> {
    match platform {
        Platform::Cuda => environment().cuda_library,
        Platform::Hip => environment().hip_library,
    }
}

/// Returns the settings of the environment variables; the defaults if one of them is invalid.
pub fn environment() -> Environment {
    Environment::from_lookup(&ringfold::env::process).unwrap_or_default()
}
