//! Any bytes as what is published: each item can be sent as it is, and says nothing that only a front end may.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_hub::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_publications(data));
