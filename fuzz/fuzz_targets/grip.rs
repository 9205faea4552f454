//! Any bytes as a back end's answer: what it says to the hub keeps its bounds, and clients see no field of GRIP.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_hub::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_instruct(data));
