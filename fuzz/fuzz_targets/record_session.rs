//! A TLS session with a client that seals any content, changes bytes of its records or sends
//! none, and with hand-overs between: the same answers for every split, bounded memory, and no use
//! after an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_tls::records::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::run_operations(data));
