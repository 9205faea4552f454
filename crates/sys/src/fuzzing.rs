//! Messages that a compromised server may send to its launcher, for the fuzzer:
//! `fuzz/fuzz_targets/launcher_order.rs`.
//!
//! # Invariants
//! - No bytes panic, and an order is no larger than a few times its bytes.
//! - An order that is carried out runs as a user of the list or as the server, in a sandbox unless
//!   that user may do without; or it is the one for the next server.

use crate::process::launcher::fuzzing;

/// Decodes `bytes` as an order and checks whether it may be carried out; then decodes them as a
/// reply.
pub fn read_order(bytes: &[u8]) {
    fuzzing::read_order(bytes);
    fuzzing::read_answer(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_of_any_bytes_get_no_rights_but_those_of_the_list() {
        // A small generator: the fuzzer finds more, but does not always run.
        let mut state = 5_u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize
        };
        for seed in fuzzing::sample_orders() {
            read_order(&seed);
            for _ in 0..3000 {
                let mut bytes = seed.clone();
                for _ in 0..1 + next() % 4 {
                    let at = next() % bytes.len();
                    match next() % 4 {
                        0 => bytes.truncate(at.max(1)),
                        1 => bytes[at] = next().to_le_bytes()[0],
                        2 => bytes[at] ^= 1 << (next() % 8),
                        _ => drop(bytes.splice(at..at, *b"\x01\0\0\0")),
                    }
                }
                read_order(&bytes);
            }
        }
    }
}
