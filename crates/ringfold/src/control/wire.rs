//! Encoding of values as bytes, for the control plane and for the records of joining.
//!
//! Integers are little endian. A list is a `u32` count, followed by the elements. Readers compare
//! the count with the number of remaining bytes before they allocate memory. All input comes from
//! peers and is not trusted: every length has a limit, and `None` means malformed bytes.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::spelling::harmless;

/// Version of all wire formats between ranks.
pub(crate) const VERSION: u16 = 11;

/// Maximum bytes of a text for which no other limit is given. A longer text is truncated when it is
/// written, and malformed when it is read.
const TEXT_BYTES_MAX: usize = 1024;
/// Minimum bytes of a list's element.
const ELEMENT_BYTES_MIN: usize = 4;

/// A value that has one form on the wire.
pub trait Wire: Sized {
    /// Appends the value.
    fn write(&self, to: &mut WireWriter);

    /// Reads a value; `None` if the bytes are malformed.
    fn read(from: &mut WireReader<'_>) -> Option<Self>;
}

/// Returns the wire form of a record.
pub fn encode(record: &impl Wire) -> Vec<u8> {
    let mut writer = WireWriter::after(0);
    record.write(&mut writer);
    writer.into_bytes()
}

/// Decodes a record, which must use all bytes.
pub fn decode<T: Wire>(bytes: &[u8]) -> Option<T> {
    let mut reader = WireReader::new(bytes);
    let record = T::read(&mut reader)?;
    reader.is_empty().then_some(record)
}

/// Decodes the records of all ranks, in rank order. The error for a malformed record names `what`
/// and the rank.
pub(crate) fn decode_all<T: Wire>(
    what: &str,
    records: impl IntoIterator<Item: AsRef<[u8]>>,
) -> Result<Vec<T>> {
    let read = |(rank, record): (usize, _)| {
        let text = || format!("malformed {what}; use the same version of ringfold on all ranks");
        decode(AsRef::as_ref(&record)).ok_or_else(|| Error::corrupt(rank, text()))
    };
    records.into_iter().enumerate().map(read).collect()
}

/// Implements `Wire` for a structure, field by field, in the given order. If `if` adds a check, a
/// structure that fails the check is malformed.
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        $crate::control::wire::wire_struct!($name { $($field),* } if |_: &$name| true);
    };
    ($name:ident { $($field:ident),* $(,)? } if $is_sound:expr) => {
        impl $crate::control::wire::Wire for $name {
            fn write(&self, to: &mut $crate::control::wire::WireWriter) {
                $($crate::control::wire::Wire::write(&self.$field, to);)*
            }

            fn read(from: &mut $crate::control::wire::WireReader<'_>) -> Option<$name> {
                let read = $name { $($field: $crate::control::wire::Wire::read(from)?,)* };
                Some(read).filter($is_sound)
            }
        }
    };
}
pub(crate) use wire_struct;

/// Implements `Wire` for integers, as little endian.
macro_rules! wire_integers {
    ($($integer:ty),*) => {$(
        impl Wire for $integer {
            fn write(&self, to: &mut WireWriter) {
                to.raw(&self.to_le_bytes());
            }

            fn read(from: &mut WireReader<'_>) -> Option<$integer> {
                Wire::read(from).map(<$integer>::from_le_bytes)
            }
        }
    )*};
}
wire_integers!(u16, u32, u64, i64);

/// A size, in eight bytes.
impl Wire for usize {
    fn write(&self, to: &mut WireWriter) {
        (*self as u64).write(to);
    }

    fn read(from: &mut WireReader<'_>) -> Option<usize> {
        u64::read(from)?.try_into().ok()
    }
}

/// A fixed number of bytes, without a count.
impl<const N: usize> Wire for [u8; N] {
    fn write(&self, to: &mut WireWriter) {
        to.raw(self);
    }

    fn read(from: &mut WireReader<'_>) -> Option<[u8; N]> {
        from.take(N)?.try_into().ok()
    }
}

/// A box, in the wire form of its content.
impl<T: Wire> Wire for Box<T> {
    fn write(&self, to: &mut WireWriter) {
        T::write(self, to);
    }

    fn read(from: &mut WireReader<'_>) -> Option<Box<T>> {
        T::read(from).map(Box::new)
    }
}

impl Wire for bool {
    fn write(&self, to: &mut WireWriter) {
        u32::from(*self).write(to);
    }

    fn read(from: &mut WireReader<'_>) -> Option<bool> {
        match u32::read(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Wire for String {
    fn write(&self, to: &mut WireWriter) {
        to.text(self, TEXT_BYTES_MAX);
    }

    fn read(from: &mut WireReader<'_>) -> Option<String> {
        from.text(TEXT_BYTES_MAX)
    }
}

/// An address of a socket, as a text.
impl Wire for SocketAddr {
    fn write(&self, to: &mut WireWriter) {
        self.to_string().write(to);
    }

    fn read(from: &mut WireReader<'_>) -> Option<SocketAddr> {
        String::read(from)?.parse().ok()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn write(&self, to: &mut WireWriter) {
        self.is_some().write(to);
        self.iter().for_each(|value| value.write(to));
    }

    fn read(from: &mut WireReader<'_>) -> Option<Option<T>> {
        match bool::read(from)? {
            false => Some(None),
            true => T::read(from).map(Some),
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn write(&self, to: &mut WireWriter) {
        to.u32(self.len() as u32);
        self.iter().for_each(|element| element.write(to));
    }

    fn read(from: &mut WireReader<'_>) -> Option<Vec<T>> {
        from.list(T::read)
    }
}

impl<T: Wire> Wire for Arc<T> {
    fn write(&self, to: &mut WireWriter) {
        T::write(self, to);
    }

    fn read(from: &mut WireReader<'_>) -> Option<Arc<T>> {
        T::read(from).map(Arc::new)
    }
}

/// A writer that appends values to a buffer.
pub struct WireWriter(Vec<u8>);

impl WireWriter {
    /// Creates a writer whose buffer begins with `count` zero bytes.
    pub fn after(count: usize) -> WireWriter {
        WireWriter(vec![0; count])
    }

    /// Writes a number.
    pub fn u32(&mut self, value: u32) {
        value.write(self);
    }

    /// Writes bytes whose number the reader knows.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes bytes, preceded by their number.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.raw(bytes);
    }

    /// Writes a text, truncated to `limit` bytes, preceded by the number of bytes.
    pub fn text(&mut self, text: &str, limit: usize) {
        let mut end = text.len().min(limit);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end]);
    }

    /// Returns the bytes written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// A reader that takes values from the front of a buffer.
pub struct WireReader<'a>(&'a [u8]);

impl<'a> WireReader<'a> {
    /// Creates a reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> WireReader<'a> {
        WireReader(bytes)
    }

    /// Whether all bytes have been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads `count` bytes.
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    /// Reads a number.
    pub fn u32(&mut self) -> Option<u32> {
        u32::read(self)
    }

    /// Reads a number, at most `limit`, and as many bytes.
    pub fn bytes(&mut self, limit: usize) -> Option<&'a [u8]> {
        let count = self.u32()? as usize;
        (count <= limit).then(|| self.take(count))?
    }

    /// Reads a text, and makes it safe to show on a terminal: replaces invisible characters, and
    /// control characters other than newlines and tabs.
    pub fn text(&mut self, limit: usize) -> Option<String> {
        let text = str::from_utf8(self.bytes(limit)?).ok()?;
        let cleaned = text.chars().map(|letter| match letter {
            '\n' | '\t' => letter,
            _ => harmless(letter),
        });
        Some(cleaned.collect())
    }

    /// Reads a list, whose count cannot exceed what the remaining bytes can hold.
    pub fn list<T>(&mut self, element: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.0.len() / ELEMENT_BYTES_MIN {
            return None;
        }
        (0..count).map(|_| element(self)).collect()
    }
}
