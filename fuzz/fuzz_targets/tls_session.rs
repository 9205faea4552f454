//! A client of a TLS listener: arbitrary bytes instead of a handshake, or records of any content
//! behind one, with writes, shutdowns and looks at the stream between. No panic, bounded memory, and
//! what the server reads is what the client sealed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_tls::fuzzing;

fuzz_target!(|data: &[u8]| {
    if let Some((kind, data)) = data.split_first() {
        match kind % 4 {
            0 => fuzzing::run_handshake(data),
            _ => fuzzing::run_session(data),
        }
    }
});
