//! Any bytes as what another node wrote to Redis: what is read is written again the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_hub::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_entry(data));
