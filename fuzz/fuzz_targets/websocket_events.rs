//! Any bytes as events of WebSocket-over-HTTP: what is read is written again the same, and words to the hub keep their bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_hub::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_events(data));
