//! Which ranks are on one host.
//!
//! "Same host" means that two processes can share memory and watch each other's death. That
//! requires the same running kernel (the boot id also distinguishes clones of one machine image),
//! the same network namespace (abstract UNIX sockets belong to it), the same process namespace
//! (process ids have the same meaning), and the same user (who may open the memory). Two containers
//! of one machine are therefore two hosts unless they share all of these.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::error::{Error, Result};

/// Bytes of a [`HostId`] on the wire.
pub const HOST_ID_BYTES: usize = 36;

/// A host, as reported by its own ranks. Equal ids: same host.
///
/// ```text
/// 0 boot id: 16   16 network namespace: u64   24 process namespace: u64   32 user: u32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId([u8; HOST_ID_BYTES]);

impl HostId {
    /// This process' host.
    pub fn here() -> Result<HostId> {
        let path = "/proc/sys/kernel/random/boot_id";
        let text = fs::read_to_string(path)
            .map_err(|error| Error::system(format!("cannot read {path}"), error))?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).map_err(|_| Error::System {
            what: format!("{path} holds no boot id"),
            kind: std::io::ErrorKind::InvalidData,
        })?;
        let mut bytes = [0; HOST_ID_BYTES];
        bytes[..16].copy_from_slice(&boot.to_be_bytes());
        bytes[16..24].copy_from_slice(&namespace("net")?.to_le_bytes());
        bytes[24..32].copy_from_slice(&namespace("pid")?.to_le_bytes());
        bytes[32..].copy_from_slice(&rustix::process::getuid().as_raw().to_le_bytes());
        Ok(HostId(bytes))
    }

    /// Whether two hosts are the same running kernel, and may share its cores: containers of one
    /// machine.
    pub fn is_same_machine(&self, other: &HostId) -> bool {
        self.0[..16] == other.0[..16]
    }

    /// The wire form.
    pub fn as_bytes(&self) -> &[u8; HOST_ID_BYTES] {
        &self.0
    }

    /// The id with this wire form; any bytes are one.
    pub fn from_bytes(bytes: [u8; HOST_ID_BYTES]) -> HostId {
        HostId(bytes)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({self})")
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0[..4] {
            write!(f, "{byte:02x}")?;
        }
        let network: [u8; 8] = std::array::from_fn(|i| self.0[16 + i]);
        write!(f, "-{}", u64::from_le_bytes(network))
    }
}

fn namespace(kind: &str) -> Result<u64> {
    let path = format!("/proc/self/ns/{kind}");
    fs::metadata(&path)
        .map(|metadata| metadata.ino())
        .map_err(|error| Error::system(format!("cannot read {path}"), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_one_machine_are_told_from_other_machines() {
        let here = HostId::here().unwrap();
        let with = |at: usize| {
            let mut bytes = *here.as_bytes();
            bytes[at] ^= 1;
            HostId::from_bytes(bytes)
        };
        let (container, machine) = (with(16), with(0));
        assert!(here != container && here.is_same_machine(&container));
        assert!(!here.is_same_machine(&machine));
    }

    #[test]
    fn this_host_is_itself_and_survives_the_wire() {
        let here = HostId::here().unwrap();
        assert_eq!(here, HostId::here().unwrap());
        assert_eq!(here, HostId::from_bytes(*here.as_bytes()));
    }
}
