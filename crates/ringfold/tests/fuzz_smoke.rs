//! Runs the fuzz targets for a moment on the stable compiler: random bytes, and honest ones damaged, from a seed.

#[path = "../../../fuzz/src/targets.rs"]
mod targets;

/// Inputs per target.
const INPUTS: usize = 20_000;

/// Marsaglia's xorshift64: enough for this, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// `seed` with a few bytes changed, cut or put in.
    fn damaged(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.next() as u8),
                2 if at < bytes.len() => bytes[at] = self.next() as u8,
                _ if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                _ => {}
            }
        }
        bytes
    }
}

#[test]
fn no_bytes_from_a_peer_make_a_panic() {
    let seed = 0x9e37_79b9_7f4a_7c15;
    println!("seed {seed:#x}");
    let honest = targets::seeds();
    for (name, target) in targets::TARGETS {
        let mut random = Random(seed);
        for input in 0..INPUTS {
            let mut bytes = match input % 3 {
                0 => {
                    let length = random.below(300);
                    random.bytes(length)
                }
                _ => {
                    let which = random.below(honest.len());
                    random.damaged(&honest[which])
                }
            };
            // The hub and the splitter take a byte of control first.
            if input % 3 == 2 {
                bytes.insert(0, random.next() as u8);
            }
            let outcome = std::panic::catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "{name}, input {input}: {bytes:02x?}");
        }
    }
}
