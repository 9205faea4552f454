//! Arbitrary bytes as WebSocket-over-HTTP events: decoded events survive a round trip, and control
//! messages to the hub stay within their limits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_grip::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::read_events(data));
