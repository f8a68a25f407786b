//! Memory as the driver sees it: device memory, mapped twice; pinned host memory; and what running
//! operations use.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::call::{Answer, Refusal};
use crate::driver::lock;
use crate::pinned::{Pinned, device_view, host_view};
use crate::report::end;

/// What device memory is a multiple of.
const PAGE_BYTES: usize = 4096;

/// All memory that the driver knows.
#[derive(Debug, Default)]
pub struct Memory(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Device memory by its address for the program. What is freed stays, without its contents.
    blocks: BTreeMap<usize, Block>,
    pinned: Pinned,
    /// What running copies use: addresses for the program, and bytes.
    used: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: usize,
    /// Where the driver accesses it; nothing once it is freed.
    alias: Option<usize>,
    device: usize,
}

/// What is known of an address.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub is_device_memory: bool,
    /// Whose it is, or in whose context it is pinned.
    pub device: usize,
    /// The address for the device, if it has one.
    pub device_address: Option<usize>,
    /// The address for the host, if it has one.
    pub host_address: Option<usize>,
    /// The start of its allocation or registration.
    pub start: usize,
    /// And the bytes of that.
    pub bytes: usize,
}

impl Memory {
    /// `bytes` bytes of `device`; the address for the program.
    pub fn allocate(&self, device: usize, bytes: usize) -> Answer<usize> {
        if bytes == 0 {
            return Err(Refusal::INVALID_VALUE);
        }
        let size = bytes.next_multiple_of(PAGE_BYTES);
        let (seen, alias) = map_twice(size).map_err(|_| Refusal::OUT_OF_MEMORY)?;
        let block = Block {
            bytes,
            alias: Some(alias),
            device,
        };
        lock(&self.0).blocks.insert(seen, block);
        Ok(seen)
    }

    /// Frees the block that begins at `address`. Its address stays reserved, so that it is
    /// never given out again.
    pub fn free(&self, address: usize) -> Answer {
        let mut state = lock(&self.0);
        let block = state.blocks.get(&address).copied();
        let Some(block) = block else {
            return Err(Refusal::INVALID_VALUE);
        };
        let Some(alias) = block.alias else {
            end(format!("device memory {address:#x} is freed twice"));
        };
        state.check_unused(address, block.bytes, "device memory", "freed");
        let size = block.bytes.next_multiple_of(PAGE_BYTES);
        // SAFETY: `map_twice` made this mapping, and only operations access it: none runs on it.
        let unmapped = unsafe { munmap(alias as *mut _, size) };
        unmapped.map_err(|_| Refusal::OUT_OF_MEMORY)?;
        let (access, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::FIXED);
        // In place of the program's mapping, so that the memory itself goes.
        // SAFETY: `map_twice` made this mapping, too, and nothing could ever access it.
        let reserved = unsafe { mmap_anonymous(address as *mut _, size, access, flags) };
        reserved.map_err(|_| Refusal::OUT_OF_MEMORY)?;
        if let Some(block) = state.blocks.get_mut(&address) {
            block.alias = None;
        }
        Ok(())
    }

    /// Blocks that are not freed.
    pub fn live(&self) -> usize {
        let state = lock(&self.0);
        let live = state.blocks.values().filter(|block| block.alias.is_some());
        live.count()
    }

    /// Pins host memory, in the context of `device`.
    pub fn register(&self, device: usize, start: usize, bytes: usize, flags: u32) -> Answer {
        lock(&self.0).pinned.register(device, start, bytes, flags)
    }

    /// Unpins the range that begins at `start`.
    pub fn unregister(&self, start: usize) -> Answer {
        let mut state = lock(&self.0);
        let range = state.pinned.at(start)?;
        state.check_unused(start, range.bytes, "host memory", "unregistered");
        state.pinned.unregister(start);
        Ok(())
    }

    /// Ranges that are registered.
    pub fn pinned(&self) -> usize {
        lock(&self.0).pinned.count()
    }

    /// The device's address for pinned memory.
    pub fn device_pointer(&self, host: usize) -> Answer<usize> {
        let found = lock(&self.0).pinned.with(host, 1);
        let mapped = found.filter(|(_, range)| range.is_mapped);
        mapped
            .map(|_| device_view(host))
            .ok_or(Refusal::INVALID_VALUE)
    }

    /// What is known of `address`.
    pub fn known(&self, address: usize) -> Option<Known> {
        let state = lock(&self.0);
        if let Some((start, block)) = state.block(address, 1) {
            return block.alias.map(|_| Known {
                is_device_memory: true,
                device: block.device,
                device_address: Some(address),
                host_address: None,
                start,
                bytes: block.bytes,
            });
        }
        let host = host_view(address).unwrap_or(address);
        let (start, range) = state.pinned.with(host, 1)?;
        Some(Known {
            is_device_memory: false,
            device: range.device,
            device_address: range.is_mapped.then(|| device_view(host)),
            host_address: Some(host),
            start,
            bytes: range.bytes,
        })
    }

    /// Where the driver finds `bytes` bytes of device memory; or what is wrong with them.
    pub fn device(&self, address: usize, bytes: usize) -> Result<usize, String> {
        lock(&self.0).device(address, bytes)
    }

    /// Where `bytes` bytes of pinned host memory are; or what is wrong with them.
    pub fn host(&self, address: usize, bytes: usize) -> Result<usize, String> {
        lock(&self.0).host(address, bytes)
    }

    /// Where the driver finds what the device addresses: its own memory, or pinned memory.
    pub fn addressed(&self, address: usize, bytes: usize) -> Result<usize, String> {
        lock(&self.0).addressed(address, bytes)
    }

    /// Uses the word at a device's address, which is not freed or unregistered meanwhile.
    pub fn with_word<T>(
        &self,
        address: usize,
        with: impl FnOnce(&AtomicU32) -> T,
    ) -> Result<T, String> {
        let state = lock(&self.0);
        let place = state.addressed(address, size_of::<u32>())?;
        // SAFETY: memory that lives as long as the lock is held; its alignment was checked when the
        // operation was enqueued, and both sides access it as an atomic.
        Ok(with(unsafe { AtomicU32::from_ptr(place as *mut u32) }))
    }

    /// Fills what the device addresses.
    pub fn fill(&self, address: usize, byte: u8, bytes: usize) -> Result<(), String> {
        let state = lock(&self.0);
        fill(state.addressed(address, bytes)?, byte, bytes);
        Ok(())
    }

    /// The same with a word of 64 bits.
    fn with_long_word<T>(
        &self,
        address: usize,
        with: impl FnOnce(&AtomicU64) -> T,
    ) -> Result<T, String> {
        let state = lock(&self.0);
        let place = state.addressed(address, size_of::<u64>())?;
        // SAFETY: as in `with_word`; a kernel's accesses are aligned.
        Ok(with(unsafe { AtomicU64::from_ptr(place as *mut u64) }))
    }

    /// Loads `into` from what the device addresses; as one word if it `is_atomic`.
    pub fn load(&self, address: usize, into: &mut [u8], is_atomic: bool) -> Result<(), String> {
        if is_atomic {
            // Acquire: pairs with the Release store of who writes the word.
            let short = |word: &AtomicU32| word.load(Ordering::Acquire);
            // Acquire: as above.
            let long = |word: &AtomicU64| word.load(Ordering::Acquire);
            match into.len() {
                8 => into.copy_from_slice(&self.with_long_word(address, long)?.to_ne_bytes()),
                4 => into.copy_from_slice(&self.with_word(address, short)?.to_ne_bytes()),
                _ => return Err("it loads a word of another length".into()),
            }
            return Ok(());
        }
        let state = lock(&self.0);
        let place = state.addressed(address, into.len())?;
        copy(place, into.as_mut_ptr() as usize, into.len());
        Ok(())
    }

    /// Stores `from` in what the device addresses; as one word if it `is_atomic`.
    pub fn store(&self, address: usize, from: &[u8], is_atomic: bool) -> Result<(), String> {
        if is_atomic {
            if let Ok(bytes) = from.try_into() {
                let value = u64::from_ne_bytes(bytes);
                // Release: pairs with the Acquire load of who waits for the word.
                let store = |word: &AtomicU64| word.store(value, Ordering::Release);
                return self.with_long_word(address, store);
            }
            let bytes = from.try_into();
            let value =
                u32::from_ne_bytes(bytes.map_err(|_| "it stores a word of another length")?);
            // Release: as above.
            let store = |word: &AtomicU32| word.store(value, Ordering::Release);
            return self.with_word(address, store);
        }
        let state = lock(&self.0);
        let place = state.addressed(address, from.len())?;
        copy(from.as_ptr() as usize, place, from.len());
        Ok(())
    }

    /// Notes that a running copy uses `bytes` bytes at `address`.
    pub fn begin_use(&self, address: usize, bytes: usize) {
        lock(&self.0).used.push((address, bytes));
    }

    /// Undoes [`begin_use`](Memory::begin_use).
    pub fn end_use(&self, address: usize, bytes: usize) {
        let used = &mut lock(&self.0).used;
        let found = used.iter().position(|each| *each == (address, bytes));
        if let Some(index) = found {
            used.swap_remove(index);
        }
    }
}

impl State {
    /// The block, with its start, that has `bytes` bytes at `address`.
    fn block(&self, address: usize, bytes: usize) -> Option<(usize, Block)> {
        let (start, block) = self.blocks.range(..=address).next_back()?;
        (address + bytes <= start + block.bytes).then_some((*start, *block))
    }

    fn device(&self, address: usize, bytes: usize) -> Result<usize, String> {
        let block = self.block(address, bytes);
        let (start, block) = block.ok_or_else(|| format!("{address:#x} is no device memory"))?;
        let alias = block.alias;
        let alias = alias.ok_or_else(|| format!("device memory {address:#x} is freed"))?;
        Ok(alias + (address - start))
    }

    fn host(&self, address: usize, bytes: usize) -> Result<usize, String> {
        let found = self.pinned.with(address, bytes);
        let unpinned = || format!("host memory {address:#x} is not registered");
        found.map(|_| address).ok_or_else(unpinned)
    }

    fn addressed(&self, address: usize, bytes: usize) -> Result<usize, String> {
        match host_view(address) {
            Some(host) => self.host(host, bytes),
            None => self.device(address, bytes),
        }
    }

    fn check_unused(&self, start: usize, bytes: usize, what: &str, how: &str) {
        let is_used = |&&(at, length): &&(usize, usize)| at < start + bytes && start < at + length;
        if let Some((at, _)) = self.used.iter().find(is_used) {
            end(format!(
                "{what} {start:#x} is {how} under a copy that uses {at:#x}"
            ));
        }
    }
}

/// `bytes` bytes mapped for the program, without access, and for the driver.
fn map_twice(bytes: usize) -> Result<(usize, usize), Errno> {
    let memory = memfd_create("softcuda", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, bytes as u64)?;
    let map = |access| {
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let mapped = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &memory, 0) };
        mapped.map(|address| address as usize)
    };
    Ok((
        map(ProtFlags::empty())?,
        map(ProtFlags::READ | ProtFlags::WRITE)?,
    ))
}

/// Fills `bytes` bytes at `place`, one that [`Memory`] has given.
pub fn fill(place: usize, byte: u8, bytes: usize) {
    // SAFETY: `place` is the driver's mapping of device memory, or pinned memory, which the program
    // keeps until it unregisters it; both are ended by a check under running operations.
    unsafe { ptr::write_bytes(place as *mut u8, byte, bytes) }
}

/// Copies `bytes` bytes between such places.
pub fn copy(from: usize, to: usize, bytes: usize) {
    // SAFETY: as in `fill`.
    unsafe { ptr::copy(from as *const u8, to as *mut u8, bytes) }
}
