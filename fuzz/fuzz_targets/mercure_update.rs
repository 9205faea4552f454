//! Arbitrary bytes as an update of a Mercure hub: topics, id and type are lines within their
//! limits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_mercure::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_update(data));
