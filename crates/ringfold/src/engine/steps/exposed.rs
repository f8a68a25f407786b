//! The locations of registered buffers, as ranks exchange them.

use crate::memory::BufferHandle;
use crate::schedule::Buffer;
use crate::transport::ATTACHED_WORDS;

/// The locations of a rank's buffers, for peers that have mapped them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    pub input: BufferHandle,
    pub output: BufferHandle,
}

/// Handle of an absent buffer.
pub(super) const NOWHERE: BufferHandle = BufferHandle {
    registration: 0,
    offset: 0,
};

impl Exposed {
    /// Encodes the locations for the slot; all zeros mean that buffers are not registered.
    pub fn encode(self) -> [u64; ATTACHED_WORDS] {
        let registrations =
            self.input.registration as u64 | (self.output.registration as u64) << 32;
        [registrations, self.input.offset, self.output.offset, 1]
    }

    pub fn decode(words: [u64; ATTACHED_WORDS]) -> Option<Exposed> {
        let [registrations, input, output, is_registered] = words;
        let handle = |registration: u64, offset| BufferHandle {
            registration: registration as u32,
            offset,
        };
        (is_registered != 0).then_some(Exposed {
            input: handle(registrations, input),
            output: handle(registrations >> 32, output),
        })
    }

    pub fn handle(&self, buffer: Buffer) -> BufferHandle {
        match buffer {
            Buffer::Output => self.output,
            Buffer::Input | Buffer::Scratch | Buffer::Leaves => self.input,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_attached_is_read_as_it_was_meant() {
        let handle = |registration, offset| BufferHandle {
            registration,
            offset,
        };
        let exposed = Exposed {
            input: handle(7, u64::MAX - 1),
            output: handle(u32::MAX, 64),
        };
        assert_eq!(Exposed::decode(exposed.encode()), Some(exposed));
        assert_eq!(Exposed::decode([0; ATTACHED_WORDS]), None);
    }
}
