//! Kernels, from text that the driver compiles.

use std::ffi::CStr;
use std::sync::Arc;

use super::gpu::Device;
use crate::error::Result;

/// A kernel of a device.
///
/// Drop it when the streams of its device are idle: it is kept until the process ends otherwise.
#[derive(Debug)]
pub struct Kernel {
    device: Arc<Device>,
    module: usize,
    function: usize,
    parameters: usize,
}

impl Kernel {
    /// The kernel `name` of `text` for `device`, whose context is current.
    pub(super) fn new(
        device: &Arc<Device>,
        text: &CStr,
        name: &CStr,
        parameters: usize,
    ) -> Result<Kernel> {
        // From here on a failure unloads it.
        let mut kernel = Kernel {
            module: device.driver().load_module(text)?,
            device: device.clone(),
            function: 0,
            parameters,
        };
        kernel.function = device.driver().function(kernel.module, name)?;
        Ok(kernel)
    }

    /// The driver's handle, for a launch with so many arguments.
    pub(super) fn function(&self, arguments: usize) -> usize {
        assert_eq!(arguments, self.parameters, "arguments of a kernel");
        self.function
    }

    fn unload(&self) -> Result<()> {
        let _pushed = self.device.push()?;
        if !self.device.is_idle() {
            log::warn!(
                target: "ringfold::device",
                "a kernel of device {} is kept, because it may run",
                self.device.ordinal()
            );
            self.device.keep();
            return Ok(());
        }
        self.device.driver().unload_module(self.module)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Err(error) = self.unload() {
            log::debug!(target: "ringfold::device", "{error}");
        }
    }
}
