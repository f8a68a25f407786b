//! How the texts of the kernels that combine begin, in PTX: for `sm_70` and later, with parameters
//! of 64 bits, each in a register of its name.

#![forbid(unsafe_code)]

use std::fmt::{Result, Write};

/// The entry `name` with these parameters, up to their registers and those of [`numbers`]. Other
/// registers follow, and then [`load`].
pub fn entry<N: AsRef<str>>(out: &mut String, name: &str, parameters: &[N]) -> Result {
    let names: Vec<&str> = parameters.iter().map(AsRef::as_ref).collect();
    writeln!(
        out,
        ".version 6.3\n\
         .target sm_70\n\
         .address_size 64\n\
         .visible .entry {name}(.param .u64 {})\n\
         {{\n\
         .reg .b64 %{};\n\
         .reg .b64 %step, %thread64;\n\
         .reg .b32 %block, %threads, %blocks, %thread;",
        names.join(", .param .u64 "),
        names.join(", %")
    )
}

/// Loads the parameters; those of which `is_address` says so are addresses.
pub fn load<N: AsRef<str>>(
    out: &mut String,
    parameters: &[N],
    is_address: impl Fn(&str) -> bool,
) -> Result {
    let names = || parameters.iter().map(AsRef::as_ref);
    names().try_for_each(|name| writeln!(out, "ld.param.u64 %{name}, [{name}];"))?;
    let mut addresses = names().filter(|name| is_address(name));
    addresses.try_for_each(|name| writeln!(out, "cvta.to.global.u64 %{name}, %{name};"))
}

/// The numbers of block and thread; `%first` becomes this thread's among all of the grid, and
/// `%step` how many there are.
pub fn numbers(out: &mut String, first: &str) -> Result {
    writeln!(
        out,
        "mov.u32 %block, %ctaid.x;\n\
         mov.u32 %threads, %ntid.x;\n\
         mov.u32 %blocks, %nctaid.x;\n\
         mov.u32 %thread, %tid.x;\n\
         mul.wide.u32 %{first}, %block, %threads;\n\
         cvt.u64.u32 %thread64, %thread;\n\
         add.u64 %{first}, %{first}, %thread64;\n\
         mul.wide.u32 %step, %threads, %blocks;"
    )
}
