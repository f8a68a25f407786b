//! Uses of memory that end before the memory is freed.

use std::any::Any;
use std::fmt;

/// A use of memory by a transport or a device, such as a registration. Dropping the value ends the
/// use; its owner drops it before the memory is freed.
pub struct Hold(#[allow(dead_code, reason = "held, not read")] Box<dyn Any + Send + Sync>);

impl Hold {
    /// Makes a use that ends when `what` is dropped.
    pub fn new(what: impl Any + Send + Sync) -> Hold {
        Hold(Box::new(what))
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}
