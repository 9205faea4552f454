//! Arbitrary bytes as a cache file with correct checksums: nothing panics, and decoded content
//! survives a round trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_cache::fuzzing;

fuzz_target!(|data: &[u8]| {
    fuzzing::read_object(data);
    fuzzing::read_journal(data);
});
