//! Any bytes as a file of a cache's disk, with checksums that are right: nothing panics, and what is
//! decoded is the same when it is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_cache::fuzzing;

fuzz_target!(|data: &[u8]| {
    fuzzing::read_object(data);
    fuzzing::read_journal(data);
});
