//! Tests with HIP in place of CUDA.

use ringfold::internals::device::Device;
use ringfold::{Driver, Platform, Result};

use super::software::{self, alone, fail};
use super::{OUT_OF_MEMORY, STEPPED};

/// Opens the same library for its HIP functions.
fn hip() -> Result<&'static Driver> {
    Driver::of(Platform::Hip, software::library().to_str())
}

#[test]
fn hip_has_the_same_devices_and_no_memory_operations() {
    alone(&[("SOFTCUDA_DEVICES", "2"), STEPPED], || {
        let driver = hip().unwrap();
        assert_eq!((driver.version(), driver.devices().unwrap()), ((6, 3), 2));
        let devices = [0, 1].map(|ordinal| Device::open(driver, ordinal).unwrap());
        let attributes = devices[1].attributes();
        assert_eq!((attributes.ordinal, attributes.copy_engines), (1, 2));
        assert!(attributes.pins_memory && !attributes.has_memory_operations);
        // Between the inner `enter` and its drop, calls use the inner device; then the outer one
        // again.
        let outer = devices[1].enter().unwrap();
        drop(devices[0].enter().unwrap());
        let memory = outer.allocate(64).unwrap();
        // SAFETY: nothing is enqueued with it.
        let address = unsafe { memory.region() }.address();
        assert_eq!(driver.device_of(address).unwrap(), Some(1));
        fail(c"cuEventCreate", 1, OUT_OF_MEMORY);
        let error = outer.event().unwrap_err().to_string();
        assert!(error.starts_with("hipEventCreateWithFlags: "), "{error}");
    });
}

#[test]
fn an_old_hip_is_refused_with_what_is_needed() {
    alone(&[("SOFTCUDA_HIP_VERSION", "50731921")], || {
        let text = hip().unwrap_err().to_string();
        assert!(
            text.contains("is HIP 5.7") && text.contains("ROCm 6.0"),
            "{text}"
        );
    });
}

#[test]
fn the_driver_of_the_machine_is_cudas_or_the_one_that_is_named() {
    alone(&[], || {
        let library = software::library();
        let named = library.to_str();
        let cuda = Driver::find(named, None).unwrap();
        let hip = Driver::find(None, named).unwrap();
        let both = Driver::find(named, named).unwrap();
        let platforms = [cuda, hip, both].map(Driver::platform);
        assert_eq!(platforms, [Platform::Cuda, Platform::Hip, Platform::Cuda]);
        let missing = Some("libringfold-no-such-driver.so");
        let text = Driver::find(None, missing).unwrap_err().to_string();
        assert!(text.contains("RINGFOLD_HIP_LIBRARY"), "{text}");
    });
}
