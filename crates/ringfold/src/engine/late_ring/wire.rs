//! The label of a late-merge message, in the `index` of its header.
//!
//! ```text
//! bits 0-9: chunk   10-19: first position   20-29: last position   30-31: kind
//! ```

use super::station::Interval;

/// Bits of a position, and of a chunk's number.
pub const POSITION_BITS: u32 = 10;

const MASK: u32 = (1 << POSITION_BITS) - 1;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// The sum of the named positions.
    Piece,
    /// The sum of the named positions bypasses the receiver.
    Late,
    /// The sender has split.
    Skip,
    /// The chunk's result.
    Result,
}

const KINDS: [MessageKind; 4] = [
    MessageKind::Piece,
    MessageKind::Late,
    MessageKind::Skip,
    MessageKind::Result,
];

/// A message's kind, chunk and positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The kind of the message.
    pub kind: MessageKind,
    /// The number of the chunk.
    pub chunk: u32,
    /// The named positions; zeros if the message names none.
    pub interval: Interval,
}

impl Label {
    /// Encodes the label for a header.
    pub fn encode(self) -> u32 {
        let Interval { first, last } = self.interval;
        self.chunk
            | first << POSITION_BITS
            | last << (2 * POSITION_BITS)
            | (self.kind as u32) << (3 * POSITION_BITS)
    }

    /// Decodes the label that a header claims.
    pub fn decode(index: u32) -> Label {
        let field = |number: u32| index >> (number * POSITION_BITS) & MASK;
        Label {
            kind: KINDS[(index >> (3 * POSITION_BITS)) as usize],
            chunk: field(0),
            interval: Interval {
                first: field(1),
                last: field(2),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_survive_the_wire() {
        for kind in KINDS {
            for (chunk, first, last) in [(0, 0, 0), (1023, 1022, 1023), (5, 0, 700)] {
                let interval = Interval { first, last };
                let label = Label {
                    kind,
                    chunk,
                    interval,
                };
                assert_eq!(Label::decode(label.encode()), label);
            }
        }
    }
}
