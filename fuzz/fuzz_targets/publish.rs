//! Arbitrary bytes as a publish request: each item can be sent as it is, and has no field reserved
//! for front ends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_grip::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_publications(data));
