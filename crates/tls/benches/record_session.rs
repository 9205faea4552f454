//! What a record costs, with keys that are kept and keys that are released: `cargo bench -p penstock-tls --bench record_session`.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::hint::black_box;
use std::io::IoSlice;
use std::time::Instant;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use penstock_tls::records::RecordSession;
use penstock_tls::records::fuzzing::{SUITE_COUNT, SessionPair};

/// A short event with its framing.
const EVENT: [u8; 120] = [b'e'; 120];

const ROUNDS: u32 = 200_000;

fn main() {
    println!("session: {} bytes", size_of::<RecordSession>());
    for (name, algorithm) in [
        ("AES-128-GCM", &AES_128_GCM),
        ("AES-256-GCM", &AES_256_GCM),
        ("ChaCha20-Poly1305", &CHACHA20_POLY1305),
    ] {
        let key = vec![1; algorithm.key_len()];
        measure(&format!("expand a key of {name}"), || {
            let expanded = UnboundKey::new(algorithm, &key).map(LessSafeKey::new);
            black_box(expanded.is_ok());
        });
    }
    for suite in 0..SUITE_COUNT {
        measure_suite(suite);
    }
}

fn measure_suite(suite: usize) {
    let Some(mut pair) = SessionPair::new(suite, 1) else {
        return;
    };
    let name = format!("{:?}", pair.server);
    let name = name.split([' ', ',']).nth(3).unwrap_or_default().to_owned();
    let mut out = Vec::with_capacity(1 << 10);
    for (keys, is_released) in [("kept", false), ("released", true)] {
        measure(&format!("{name}: seal 120 bytes, keys {keys}"), || {
            out.clear();
            let sealed = pair.server.seal(&[IoSlice::new(&EVENT)], &mut out);
            black_box(sealed.is_ok());
            if is_released {
                pair.server.release_keys();
            }
        });
    }
    let Some(mut pair) = SessionPair::new(suite, 1) else {
        return;
    };
    measure(&format!("{name}: seal and open 120 bytes"), || {
        out.clear();
        let sealed = pair.server.seal(&[IoSlice::new(&EVENT)], &mut out);
        let opened = pair.client.open(&mut out, &mut Vec::new());
        assert!(sealed.is_ok() && opened.is_ok());
    });
    measure(&format!("{name}: to bytes and back"), || {
        let copy = RecordSession::from_bytes(&pair.server.to_bytes());
        black_box(copy.is_ok());
    });
}

/// Prints the best of five runs, in nanoseconds each.
fn measure(what: &str, mut work: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            work();
        }
        let each = begun.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS);
        best = best.min(each);
    }
    println!("{what}: {best:.0} ns");
}
