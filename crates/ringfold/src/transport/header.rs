//! The header of every message, and the comparison of a received header with the expected one.

use std::fmt;

use crate::call::{CALL_BYTES, Call, EARLIER};
use crate::error::{Error, Result};

/// Header in front of a message's payload. 40 bytes on the wire, little endian:
///
/// ```text
/// 0 call: 24 bytes   24 slice: u32   28 index: u32   32 bytes: u32   36 checksum: u32
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's call.
    pub call: Call,
    /// Number of the slice within the call.
    pub slice: u32,
    /// Sequence number of the message among those of the slice on this stream.
    pub index: u32,
    /// Bytes of payload.
    pub bytes: u32,
}

/// Bytes of a header on the wire.
pub const HEADER_BYTES: usize = 40;

impl Header {
    /// Encodes the header for the wire. The transport defines what `checksum` covers (0 if it
    /// checks nothing).
    pub fn encode(&self, checksum: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..CALL_BYTES].copy_from_slice(&self.call.encode());
        bytes[24..28].copy_from_slice(&self.slice.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.index.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[36..40].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes the header that rank `from` claims in `received`, and ignores the checksum.
    /// `Corrupt` if a number in the header is invalid.
    pub fn claimed(received: &[u8; HEADER_BYTES], from: usize) -> Result<Header> {
        let word =
            |at: usize| u32::from_le_bytes(received[at..at + 4].try_into().expect("four bytes"));
        let call = Call::decode(received[..CALL_BYTES].try_into().expect("a call's length"));
        Ok(Header {
            call: call.ok_or_else(|| Error::corrupt(from, "invalid message header"))?,
            slice: word(24),
            index: word(28),
            bytes: word(32),
        })
    }

    /// Compares the bytes that rank `to` received from rank `from` with this header, which is the
    /// expected one. Returns the checksum field.
    ///
    /// A different call is a `Mismatch`; the same call at another position, or an invalid header,
    /// is `Corrupt`.
    pub fn expect(&self, received: &[u8; HEADER_BYTES], from: usize, to: usize) -> Result<u32> {
        let checksum = u32::from_le_bytes(received[36..40].try_into().expect("four bytes"));
        if received[..36] == self.encode(0)[..36] {
            return Ok(checksum);
        }
        Err(self.complain(received, from, to))
    }

    #[cold]
    fn complain(&self, received: &[u8; HEADER_BYTES], from: usize, to: usize) -> Error {
        let theirs = match Header::claimed(received, from) {
            Ok(theirs) => theirs,
            Err(meaningless) => return meaningless,
        };
        if theirs.call != self.call {
            return mismatch([to, from], [&self.call, &theirs.call]);
        }
        let what = format!("received {theirs}, expected {self}");
        Error::corrupt(from, what)
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header {
            slice,
            index,
            bytes,
            ..
        } = self;
        write!(f, "slice {slice} message {index} of {bytes} bytes")
    }
}

/// Returns the error of two ranks in different calls; the first of `ranks` noticed the difference.
/// For calls of one collective, the text names the difference; if only the choices differ, also the
/// settings to check.
#[cold]
pub fn mismatch(ranks: [usize; 2], calls: [&Call; 2]) -> Error {
    differing(ranks, calls, calls[0].difference(calls[1]))
}

/// Returns the error of ranks whose collectives with a root differed before the later of `calls`.
#[cold]
pub fn earlier_mismatch(ranks: [usize; 2], calls: [&Call; 2]) -> Error {
    differing(ranks, calls, Some(EARLIER))
}

#[cold]
fn differing(ranks: [usize; 2], calls: [&Call; 2], difference: Option<&str>) -> Error {
    let mut texts = calls.map(Call::to_string);
    if calls[0].is_chosen_differently(calls[1]) {
        if texts[0] == texts[1] {
            texts.iter_mut().zip(calls).for_each(|(text, call)| {
                let what = "with another slice size or demand for reproducibility";
                text.push_str(&format!(" {what} ({:03x})", call.cut));
            });
        }
        texts[1].push_str(WHERE_TO_LOOK);
    }
    if let Some(difference) = difference {
        texts[1].push_str("; ");
        texts[1].push_str(difference);
    }
    Error::Mismatch {
        ranks,
        calls: Box::new(texts),
        site: None,
    }
}

/// Settings that may have made ranks choose differently.
const WHERE_TO_LOOK: &str = "; the tuner chose differently: give all ranks the same \
     `reproducible`, RINGFOLD_ALGO, RINGFOLD_PROTO, RINGFOLD_*_CHANNELS, RINGFOLD_*_BYTES, \
     RINGFOLD_TUNER_* and `Config`; RINGFOLD_DEBUG=INFO RINGFOLD_DEBUG_SUBSYS=TUNING logs what \
     each rank chose";
