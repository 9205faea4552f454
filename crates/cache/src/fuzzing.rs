//! What a disk may give back instead of what was written, for the fuzzer: `fuzz/fuzz_targets/cache_file.rs`.
//!
//! Checksums keep arbitrary bytes from the decoders, so they are put right here first.
//!
//! # Invariants
//! - No bytes panic or ask for much memory. What is decoded is encoded and decoded again to the same.

use crate::store::fuzzing;

/// Reads `bytes` as an object's file: its preamble and slots as they are, then as the content of a slot
/// whose checksum is right.
pub fn read_object(bytes: &[u8]) {
    fuzzing::read_object(bytes);
}

/// Reads `bytes` as a journal of purges, as they are and with the right checksum.
pub fn read_journal(bytes: &[u8]) {
    fuzzing::read_journal(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_the_right_checksums_do_not_panic_either() {
        // A small generator: the fuzzer finds more, and is not always there.
        let mut state = 7_u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize
        };
        let seed = fuzzing::object_content();
        for _ in 0..2000 {
            let mut bytes = seed.clone();
            for _ in 0..1 + next() % 8 {
                let at = next() % bytes.len();
                match next() % 4 {
                    0 => bytes.truncate(at.max(1)),
                    1 => bytes[at] = 0xff,
                    2 => bytes[at] = 0,
                    _ => bytes[at] ^= 1 << (next() % 8),
                }
            }
            read_object(&bytes);
            read_journal(&bytes);
        }
    }
}
