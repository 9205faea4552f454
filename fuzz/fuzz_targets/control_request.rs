//! Arbitrary bytes as a request to the control socket or the admin listener: no change without the
//! token.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_status::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_request(data));
