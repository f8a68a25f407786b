//! How the control plane and the records of joining write values as bytes.
//!
//! Integers are little endian. A list is a `u32` count and its elements; a count is compared with
//! the bytes that follow before anything is allocated for it. What is read comes from a peer: every
//! length has a limit, and `None` means that the bytes are not what they should be.

/// Writes values one after the other.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// Begins after `count` zeros.
    pub fn after(count: usize) -> Writer {
        Writer(vec![0; count])
    }

    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Bytes whose number the reader knows.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Bytes, preceded by their number.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.raw(bytes);
    }

    /// At most `limit` bytes of a text.
    pub fn text(&mut self, text: &str, limit: usize) {
        let mut end = text.len().min(limit);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end]);
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Reads values one after the other.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Whether all has been read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub fn bytes(&mut self, limit: usize) -> Option<&'a [u8]> {
        let count = self.u32()? as usize;
        (count <= limit).then(|| self.take(count))?
    }

    pub fn text(&mut self, limit: usize) -> Option<String> {
        String::from_utf8(self.bytes(limit)?.to_vec()).ok()
    }

    /// A list whose elements take at least `least` bytes each, so that its count cannot exceed what
    /// the bytes hold.
    pub fn list<T>(
        &mut self,
        least: usize,
        mut element: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.0.len() / least {
            return None;
        }
        (0..count).map(|_| element(self)).collect()
    }
}
