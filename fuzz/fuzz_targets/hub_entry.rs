//! Arbitrary bytes as another node's entry in Redis: decoded entries survive a round trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_cluster::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_entry(data));
