//! Entry points for the fuzzer (`fuzz/fuzz_targets/cache_file.rs`): what a disk may return instead
//! of what was written. Corrects checksums first, which would keep arbitrary bytes from the
//! decoders.
//!
//! # Invariants
//!
//! - No input panics or allocates much memory.
//! - Decoded content, encoded again, decodes to the same.

use crate::store::fuzzing;

/// Decodes `bytes` as an object's file: the preamble and slots as they are, then the content of a
/// slot with a correct checksum.
pub fn read_object(bytes: &[u8]) {
    fuzzing::read_object(bytes);
}

/// Decodes `bytes` as a purge journal, as they are and with a correct checksum.
pub fn read_journal(bytes: &[u8]) {
    fuzzing::read_journal(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_the_right_checksums_do_not_panic_either() {
        // A small generator for runs without the fuzzer.
        let mut state = 7_u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize
        };
        let seed = fuzzing::sample_meta_bytes();
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
