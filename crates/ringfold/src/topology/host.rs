//! The identity of the host on which a rank runs.
//!
//! "Same host" means that two processes can share memory and watch each other's death. That
//! requires the same running kernel (the boot id also distinguishes clones of one machine image),
//! the same network namespace (abstract UNIX sockets belong to it), the same process namespace
//! (process ids have the same meaning), and the same user (who may open the memory). Two containers
//! of one machine are therefore two hosts unless they share all of these.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Size of a [`HostId`] on the wire, in bytes.
pub const HOST_ID_BYTES: usize = 36;

/// A host, as reported by its own ranks. Equal ids: same host.
///
/// ```text
/// 0 boot id: 16   16 network namespace: u64   24 process namespace: u64   32 user: u32
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId([u8; HOST_ID_BYTES]);

impl HostId {
    /// Returns the id of this process' host.
    pub fn here() -> Result<HostId> {
        let mut bytes = [0; HOST_ID_BYTES];
        bytes[..16].copy_from_slice(&kernel(Path::new("/")));
        bytes[16..24].copy_from_slice(&namespace("net")?.to_le_bytes());
        bytes[24..32].copy_from_slice(&namespace("pid")?.to_le_bytes());
        bytes[32..].copy_from_slice(&rustix::process::getuid().as_raw().to_le_bytes());
        Ok(HostId(bytes))
    }

    /// Whether two hosts run on the same kernel, and may share its cores: containers of one
    /// machine.
    pub fn is_same_machine(&self, other: &HostId) -> bool {
        self.0[..16] == other.0[..16]
    }

    /// Whether two hosts share a network namespace, and thus its loopback: they may differ in the
    /// process namespace and the user.
    pub fn is_same_network(&self, other: &HostId) -> bool {
        self.0[..24] == other.0[..24]
    }

    /// Returns the wire form.
    pub fn as_bytes(&self) -> &[u8; HOST_ID_BYTES] {
        &self.0
    }

    /// Returns the id with this wire form; any bytes are valid.
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

/// Returns an id of this machine's running kernel: its boot id, or a hash of the machine's name and
/// id if a sandbox hides it. `root` is the parent of `proc` and `etc`.
fn kernel(root: &Path) -> [u8; 16] {
    let text = fs::read_to_string(root.join("proc/sys/kernel/random/boot_id"));
    let digits = |text: String| {
        text.chars()
            .filter(char::is_ascii_hexdigit)
            .collect::<String>()
    };
    let boot = text.map(|text| u128::from_str_radix(&digits(text), 16));
    if let Ok(Ok(boot)) = boot {
        return boot.to_be_bytes();
    }
    log::warn!(
        target: "ringfold::init",
        "no boot id in /proc/sys/kernel/random: hosts are distinguished by name and machine id; \
         mount /proc/sys if two hosts have the same name and id"
    );
    let machine = fs::read(root.join("etc/machine-id")).unwrap_or_default();
    let name = rustix::system::uname().nodename().to_bytes().to_owned();
    let digest = Sha256::new()
        .chain_update(name)
        .chain_update([0])
        .chain_update(machine);
    let digest = digest.finalize();
    std::array::from_fn(|index| digest[index])
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
    fn a_machine_without_a_boot_id_is_told_by_its_name_and_id() {
        let root = std::env::temp_dir().join(format!("ringfold-host-{}", std::process::id()));
        fs::create_dir_all(root.join("etc")).unwrap();
        let nameless = kernel(&root);
        fs::write(root.join("etc/machine-id"), "0123\n").unwrap();
        let named = kernel(&root);
        assert_eq!(named, kernel(&root));
        assert_ne!(named, nameless);
        assert_ne!(named, kernel(Path::new("/")));
        fs::remove_dir_all(&root).unwrap();
    }

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
        assert!(!here.is_same_network(&container) && here.is_same_network(&with(24)));
    }

    #[test]
    fn this_host_is_itself_and_survives_the_wire() {
        let here = HostId::here().unwrap();
        assert_eq!(here, HostId::here().unwrap());
        assert_eq!(here, HostId::from_bytes(*here.as_bytes()));
    }
}
