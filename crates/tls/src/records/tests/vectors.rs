//! The key schedule and records of RFC 8448 §3.

use aws_lc_rs::hkdf::{HKDF_SHA256, HKDF_SHA384};

use crate::records::key_schedule::Secret;
use crate::records::record_keys::RecordKeys;
use crate::records::suite::RecordSuite;
use crate::records::{OpenedBytes, RecordSession};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

const SUITE: RecordSuite = RecordSuite::Tls13Aes128Gcm;

const SERVER_SECRET: &str = "a1 1a f9 f0 55 31 f8 56 ad 47 11 6b 45 a9 50 32
    82 04 b4 f4 4b fb 6b 3a 4b 4f 1f 3f cb 63 16 43";
const CLIENT_SECRET: &str = "9e 40 64 6c e7 9a 7f 9d c0 5a f8 88 9b ce 65 52
    87 5a fa 0b 06 df 00 87 f7 92 eb b7 c1 75 04 a5";

/// Fifty bytes, 0 to 49.
const SERVER_DATA: &str = "17 03 03 00 43 2e 93 7e 11 ef 4a c7 40 e5 38 ad 36 00 5f c4 a4 69 32 fc
    32 25 d0 5f 82 aa 1b 36 e3 0e fa f9 7d 90 e6 df fc 60 2d cb 50 1a 59 a8 fc c4 9c 4b f2 e5 f0 a2
    1c 00 47 c2 ab f3 32 54 0d d0 32 e1 67 c2 95 5d";
const CLIENT_DATA: &str = "17 03 03 00 43 a2 3f 70 54 b6 2c 94 d0 af fa fe 82 28 ba 55 cb ef ac ea
    42 f9 14 aa 66 bc ab 3f 2b 98 19 a8 a5 b4 6b 39 5b d5 4a 9a 20 44 1e 2b 62 97 4e 1f 5a 62 92 a2
    97 70 14 bd 1e 3d ea e6 3a ee bb 21 69 49 15 e4";
const SERVER_ALERT: &str = "17 03 03 00 13 b5 8f d6 71 66 eb f5 99 d2 47 20 cf be 7e fa 7a 88 64
    a9";
const CLIENT_ALERT: &str = "17 03 03 00 13 c9 87 27 60 65 56 66 b7 4d 7f f1 15 3e fd 6d b6 d0 b0
    e3";

fn keys(secret: &str) -> RecordKeys {
    let secret = Secret::new(&bytes(secret)).unwrap();
    RecordKeys::from_secret(SUITE, secret).unwrap()
}

#[test]
fn keys_come_from_their_secrets() {
    let rows = [
        (
            SERVER_SECRET,
            "9f 02 28 3b 6c 9c 07 ef c2 6b b9 f2 ac 92 e3 56",
            "cf 78 2b 88 dd 83 54 9a ad f1 e9 84",
        ),
        (
            CLIENT_SECRET,
            "17 42 2d da 59 6e d5 d9 ac d8 90 e3 c6 3f 50 51",
            "5b 78 92 3d ee 08 57 90 33 e5 23 d9",
        ),
    ];
    for (secret, key, iv) in rows {
        let keys = keys(secret);
        assert_eq!(keys.key[..16], bytes(key));
        assert_eq!(keys.iv[..], bytes(iv));
    }
}

#[test]
fn records_are_those_of_the_trace() {
    let mut session = RecordSession::from_keys(SUITE, keys(SERVER_SECRET), keys(CLIENT_SECRET));
    // A session ticket came before.
    session.send_keys.sequence = 1;
    let content: Vec<u8> = (0..50).collect();
    assert_eq!(super::seal(&mut session, &content), bytes(SERVER_DATA));
    let mut out = Vec::new();
    let opened = session.open(&mut bytes(CLIENT_DATA), &mut out);
    assert_eq!(opened, Ok(super::data(50)));
    let ended = OpenedBytes {
        data_bytes: 0,
        is_ended: true,
    };
    assert_eq!(session.open(&mut bytes(CLIENT_ALERT), &mut out), Ok(ended));
    assert!(out.is_empty());
    session.close_notify(&mut out);
    assert_eq!(out, bytes(SERVER_ALERT));
}

/// RFC 8448 has no key update: these were computed apart, with the HMAC of Python.
#[test]
fn the_next_secret_comes_from_the_one_before() {
    let secret = Secret::new(&bytes(SERVER_SECRET)).unwrap();
    let next = secret.next(HKDF_SHA256).unwrap();
    assert_eq!(next.0[..32], bytes(NEXT_SHA256));
    assert_eq!(next.0[32..], [0; 16]);
    let secret = Secret([0x5a; 48]);
    let next = secret.next(HKDF_SHA384).unwrap();
    assert_eq!(next.0[..], bytes(NEXT_SHA384));
}

const NEXT_SHA256: &str = "51921b8aa3001976eb401d0a4319a8516416a6c56001a357e5d162031e84f916";
const NEXT_SHA384: &str = "1f1e0ea8272abbbc59dc6946287266f86f64239d885afed19dc5655b9267cdf8
    788d37f966a273f3149a90aca7d1dfe6";
