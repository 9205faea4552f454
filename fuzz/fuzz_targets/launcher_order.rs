//! Any bytes as an order of a server in wrong hands: nothing runs as a user who is not listed, or without its sandbox.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_sys::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_order(data));
