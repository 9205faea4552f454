//! Arbitrary bytes as a back end's response: GRIP instructions stay within their limits, and
//! clients get no GRIP field.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_grip::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_instructions(data));
