//! libibverbs' functions that are called by name. Those of the data path are in an opened device's
//! [`ContextOps`](super::layout::ContextOps).
//!
//! Each function is looked up with its version: the library exports two versions of `ibv_reg_mr`
//! and others, and a lookup without a version would find the oldest. A library that the user names
//! may have no versions.

use std::ffi::{CStr, c_int, c_uint, c_void};

use super::layout::{
    AsyncEvent, CompChannel, Cq, Gid, IbvContext, IbvDevice, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr, Text,
};
use crate::sys::library::Library;

/// A table of function pointers: the symbol, its version, the arguments, the result.
macro_rules! functions {
    ($($name:ident @ $version:literal = fn($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The functions, by their names in `infiniband/verbs.h`.
        #[derive(Debug)]
        pub struct VerbsFunctions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl VerbsFunctions {
            /// Looks up all functions; an error is the name of a missing one.
            pub fn load(
                library: &Library,
                has_versions: bool,
            ) -> Result<VerbsFunctions, &'static str> {
                let find = |symbol: &CStr, version: &CStr| {
                    let versioned = library.versioned_symbol(symbol, version);
                    let other = || library.symbol(symbol).filter(|_| !has_versions);
                    versioned.or_else(other)
                };
                Ok(VerbsFunctions {
                    $($name: {
                        const NAME: &str = concat!("ibv_", stringify!($name));
                        const SYMBOL: &CStr = terminated(concat!("ibv_", stringify!($name), "\0"));
                        let symbol = find(SYMBOL, $version).ok_or(NAME)?;
                        // SAFETY: the library exports under this name and version the function
                        // that `infiniband/verbs.h` declares with these arguments.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(symbol)
                        }
                    },)+
                })
            }
        }
    };
}

/// Converts `text`, which ends with its only zero, to a C string.
const fn terminated(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name with one zero, at its end"),
    }
}

functions! {
    get_device_list @ c"IBVERBS_1.1" = fn(*mut c_int) -> *mut *mut IbvDevice;
    free_device_list @ c"IBVERBS_1.1" = fn(*mut *mut IbvDevice);
    get_device_name @ c"IBVERBS_1.1" = fn(*mut IbvDevice) -> Text;
    open_device @ c"IBVERBS_1.1" = fn(*mut IbvDevice) -> *mut IbvContext;
    close_device @ c"IBVERBS_1.1" = fn(*mut IbvContext) -> c_int;
    get_async_event @ c"IBVERBS_1.1" = fn(*mut IbvContext, *mut AsyncEvent) -> c_int;
    ack_async_event @ c"IBVERBS_1.1" = fn(*mut AsyncEvent);
    event_type_str @ c"IBVERBS_1.1" = fn(c_uint) -> Text;
    wc_status_str @ c"IBVERBS_1.1" = fn(c_uint) -> Text;
    query_port @ c"IBVERBS_1.1" = fn(*mut IbvContext, u8, *mut PortAttr) -> c_int;
    query_gid @ c"IBVERBS_1.1" = fn(*mut IbvContext, u8, c_int, *mut Gid) -> c_int;
    alloc_pd @ c"IBVERBS_1.1" = fn(*mut IbvContext) -> *mut Pd;
    dealloc_pd @ c"IBVERBS_1.1" = fn(*mut Pd) -> c_int;
    reg_mr @ c"IBVERBS_1.1" = fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    dereg_mr @ c"IBVERBS_1.1" = fn(*mut Mr) -> c_int;
    create_comp_channel @ c"IBVERBS_1.0" = fn(*mut IbvContext) -> *mut CompChannel;
    destroy_comp_channel @ c"IBVERBS_1.0" = fn(*mut CompChannel) -> c_int;
    create_cq @ c"IBVERBS_1.1" =
        fn(*mut IbvContext, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq @ c"IBVERBS_1.1" = fn(*mut Cq) -> c_int;
    get_cq_event @ c"IBVERBS_1.1" =
        fn(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events @ c"IBVERBS_1.1" = fn(*mut Cq, c_uint);
    create_qp @ c"IBVERBS_1.1" = fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp @ c"IBVERBS_1.1" = fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp @ c"IBVERBS_1.1" = fn(*mut Qp) -> c_int;
}
