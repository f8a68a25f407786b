//! The keys of `ringfold top`, from the bytes that terminals send for them.

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Leave,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Stop,
    Pause,
    Sort,
    NextJob,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

const ESCAPE: u8 = 0x1b;

/// The keys in `bytes`; those that mean nothing here are left out.
pub fn decode(bytes: &[u8]) -> Vec<Key> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        let (key, length) = match (*first, after) {
            (ESCAPE, [b'[' | b'O', ..]) => sequence(rest),
            // Esc alone; with a letter, it is Alt and that letter.
            (ESCAPE, [] | [ESCAPE, ..]) => (Some(Key::Leave), 1),
            (ESCAPE, _) => (None, 2),
            (letter, _) => (single(letter), 1),
        };
        found.extend(key);
        rest = &rest[length..];
    }
    found
}

/// Whether `bytes` may end in the middle of a key.
pub fn is_cut(bytes: &[u8]) -> bool {
    let Some(start) = bytes.iter().rposition(|byte| *byte == ESCAPE) else {
        return false;
    };
    match &bytes[start + 1..] {
        [] | [b'[' | b'O'] => true,
        [b'[', parameters @ ..] => !parameters.iter().any(|byte| is_final(*byte)),
        _ => false,
    }
}

fn single(letter: u8) -> Option<Key> {
    Some(match letter {
        b'q' | b'Q' => Key::Leave,
        0x03 => Key::Interrupt,
        0x1a => Key::Stop,
        b'p' | b'P' | b' ' => Key::Pause,
        b's' | b'S' => Key::Sort,
        b'\t' => Key::NextJob,
        b'k' => Key::Up,
        b'j' => Key::Down,
        _ => return None,
    })
}

/// A key that is several bytes, and how many. Both of a terminal's modes are understood.
fn sequence(bytes: &[u8]) -> (Option<Key>, usize) {
    let is_short = bytes[1] == b'O';
    let end = bytes[2..]
        .iter()
        .position(|byte| is_short || is_final(*byte));
    let Some(end) = end.map(|end| end + 2) else {
        return (None, bytes.len());
    };
    let key = match &bytes[2..=end] {
        b"A" => Some(Key::Up),
        b"B" => Some(Key::Down),
        b"H" | b"1~" | b"7~" => Some(Key::First),
        b"F" | b"4~" | b"8~" => Some(Key::Last),
        b"5~" => Some(Key::PageUp),
        b"6~" => Some(Key::PageDown),
        _ => None,
    };
    (key, end + 1)
}

fn is_final(byte: u8) -> bool {
    (0x40..=0x7e).contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_several_bytes_are_not_taken_for_escape() {
        assert_eq!(decode(b"\x1b[A\x1bOB"), [Key::Up, Key::Down]);
        assert_eq!(
            decode(b"\x1b[5~\x1b[6~p"),
            [Key::PageUp, Key::PageDown, Key::Pause]
        );
        assert_eq!(decode(b"\x1b[1;5C\x1bx\x1b[<0;1;1M"), []);
        assert_eq!(decode(b"\x1b"), [Key::Leave]);
        assert_eq!(decode(b"\x1b\x1b"), [Key::Leave, Key::Leave]);
    }

    #[test]
    fn a_key_that_has_not_come_whole_is_seen_to_be_cut() {
        for cut in [&b"\x1b"[..], b"p\x1b[", b"\x1bO", b"\x1b[1;"] {
            assert!(is_cut(cut), "{cut:?}");
        }
        for whole in [
            &b""[..],
            b"q",
            b"\x1b[A",
            b"\x1bOB",
            b"\x1b[1;5C",
            b"\x1b[Aq",
        ] {
            assert!(!is_cut(whole), "{whole:?}");
        }
    }

    #[test]
    fn any_bytes_are_decoded() {
        for one in 0..=255 {
            for other in 0..=255 {
                decode(&[ESCAPE, one, other]);
                decode(&[one, ESCAPE, other]);
            }
        }
    }
}
