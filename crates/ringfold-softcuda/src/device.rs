//! Devices, their primary contexts, and which context is current on a thread.

use std::cell::{Cell, RefCell};
use std::sync::Mutex;

use crate::call::{Answer, Refusal};
use crate::driver::{Driver, lock};
use crate::link::Link;
use crate::settings::Settings;

/// The handle of the first device's context.
const FIRST_CONTEXT: usize = 0xC0_0000;

thread_local! {
    /// The contexts that this thread has pushed, as ordinals; the last is current.
    static PUSHED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The device that this thread has set, by HIP's interface.
    static SET: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A GPU.
#[derive(Debug)]
pub struct Device {
    /// The same for all processes that have this GPU.
    pub uuid: [u8; 16],
    /// Where it is on the bus.
    pub bus_id: String,
    pub link: Link,
    /// How often the primary context is retained.
    retained: Mutex<u64>,
}

impl Device {
    /// The devices of the settings.
    pub fn all(settings: &Settings) -> Vec<Device> {
        let device = |(ordinal, name): (usize, &String)| {
            let identity = hash(name);
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(b"softcuda");
            uuid[8..].copy_from_slice(&identity.to_be_bytes());
            Device {
                uuid,
                // A domain that no machine has.
                bus_id: format!("FFFF:{:02X}:00.0", ordinal & 0xff),
                link: Link::new(settings, name),
                retained: Mutex::new(0),
            }
        };
        settings.devices.iter().enumerate().map(device).collect()
    }

    /// How often the primary context is retained.
    pub fn retained(&self) -> u64 {
        *lock(&self.retained)
    }

    /// Retains the primary context.
    pub fn retain(&self) {
        *lock(&self.retained) += 1;
    }

    /// Gives the primary context back.
    pub fn release(&self) -> Answer {
        let mut retained = lock(&self.retained);
        *retained = retained.checked_sub(1).ok_or(Refusal::INVALID_CONTEXT)?;
        Ok(())
    }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The handle of a device's primary context.
pub fn context_of(ordinal: usize) -> usize {
    FIRST_CONTEXT + ordinal
}

impl Driver {
    /// The device `ordinal`.
    pub fn device(&self, ordinal: i32) -> Answer<&Device> {
        let device = usize::try_from(ordinal).ok();
        let device = device.and_then(|ordinal| self.devices.get(ordinal));
        device.ok_or(Refusal::INVALID_DEVICE)
    }

    /// The device whose context is current on this thread.
    pub fn current(&self) -> Answer<usize> {
        let current = PUSHED.with_borrow(|pushed| pushed.last().copied());
        let Some(ordinal) = current else {
            // With HIP, nothing needs to be retained.
            return SET.get().ok_or(Refusal::INVALID_CONTEXT);
        };
        match self.devices[ordinal].retained() {
            0 => Err(Refusal::CONTEXT_IS_DESTROYED),
            _ => Ok(ordinal),
        }
    }

    /// Makes the context `handle` current.
    pub fn push(&self, handle: usize) -> Answer {
        let ordinal = handle.checked_sub(FIRST_CONTEXT);
        let ordinal = ordinal.filter(|ordinal| *ordinal < self.devices.len());
        let ordinal = ordinal.ok_or(Refusal::INVALID_CONTEXT)?;
        if self.devices[ordinal].retained() == 0 {
            return Err(Refusal::CONTEXT_IS_DESTROYED);
        }
        PUSHED.with_borrow_mut(|pushed| pushed.push(ordinal));
        Ok(())
    }

    /// Undoes the last push of this thread; the handle that was pushed.
    pub fn pop(&self) -> Answer<usize> {
        let popped = PUSHED.with_borrow_mut(Vec::pop);
        popped.map(context_of).ok_or(Refusal::INVALID_CONTEXT)
    }

    /// The device that this thread has set; 0 at first.
    pub fn set_device(&self) -> usize {
        SET.get().unwrap_or(0)
    }

    /// Has this thread's calls be about `device`.
    pub fn change_set_device(&self, device: usize) {
        SET.set(Some(device));
    }

    /// The handle of the current context, 0 without one.
    pub fn top(&self) -> usize {
        PUSHED.with_borrow(|pushed| pushed.last().map_or(0, |ordinal| context_of(*ordinal)))
    }
}
