//! The exported functions, by what they are about. Arguments and answers are those of `cuda.h`.

// The names and arguments are the C interface's.
#![allow(non_snake_case, clippy::too_many_arguments)]

/// Exported functions: each is counted and may be ordered to fail, then its body answers.
macro_rules! calls {
    ($($name:ident($driver:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            crate::call::call(stringify!($name), |$driver| $body)
        }
    )*};
}

mod copies;
mod devices;
mod events;
mod hip;
mod kernels;
mod memory;
mod streams;
mod tests;
mod words;
