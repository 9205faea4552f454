//! Arbitrary bytes as an order from a compromised server: nothing runs as an unlisted user or
//! without its sandbox.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_sys::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_order(data));
