//! What a device is, and where.

use std::ffi::c_int;
use std::fs;
use std::path::Path;

use super::cuda::Driver;
use crate::error::Result;

/// What is known of a device without a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number among those that this process sees.
    pub ordinal: usize,
    /// Its model.
    pub name: String,
    /// The same in every process that sees this device, also of a part of a GPU.
    pub uuid: [u8; 16],
    /// Where it is on the bus: `domain:bus:device.function`.
    pub bus_id: String,
    /// The memory node that it is attached to, if the system says.
    pub numa_node: Option<usize>,
    /// How many copies can run beside kernels.
    pub copy_engines: usize,
    /// Whether host memory can be pinned for it.
    pub pins_memory: bool,
    /// Whether its streams can wait for words and write them, as far as the driver says.
    pub has_memory_operations: bool,
}

impl Attributes {
    /// Of the device `ordinal`. `root` is the parent of `sys`.
    pub fn read(driver: &Driver, ordinal: usize, root: &Path) -> Result<Attributes> {
        let device = driver.device_at(ordinal as c_int)?;
        let bus_id = driver.bus_id(device)?;
        let platform = driver.platform();
        let is_set = |attribute| driver.attribute(attribute, device).map(|value| value != 0);
        let pins_memory = platform.pins_memory_attribute().map(is_set).transpose()?;
        let copy_engines = driver.attribute(platform.copy_engines_attribute(), device)?;
        Ok(Attributes {
            ordinal,
            name: driver.name(device)?,
            uuid: driver.uuid(device)?,
            numa_node: numa_node(root, &bus_id),
            bus_id,
            copy_engines: copy_engines.max(0) as usize,
            pins_memory: pins_memory.unwrap_or(true),
            has_memory_operations: driver.has_memory_operations(),
        })
    }
}

/// The memory node of a device on the bus; nothing where the system has one node, or does not say.
fn numa_node(root: &Path, bus_id: &str) -> Option<usize> {
    // The driver writes the number in capitals, the kernel does not.
    let device = root.join("sys/bus/pci/devices").join(bus_id.to_lowercase());
    let node = fs::read_to_string(device.join("numa_node")).ok()?;
    // -1 stands for none.
    node.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_node_is_the_kernel_s_answer() {
        let root = std::env::temp_dir().join(format!("ringfold-gpu-{}", std::process::id()));
        let device = root.join("sys/bus/pci/devices/0000:1a:00.0");
        fs::create_dir_all(&device).unwrap();
        let node = |text: &str| {
            fs::write(device.join("numa_node"), text).unwrap();
            numa_node(&root, "0000:1A:00.0")
        };
        let (first, none) = (node("1\n"), node("-1\n"));
        let missing = numa_node(&root, "0000:1B:00.0");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((first, none, missing), (Some(1), None, None));
    }
}
