//! Sequence numbers: their limits, and `rustls`' own protection of records at any of them.

use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::{
    ConnectionTrafficSecrets, ContentType, ExtractedSecrets, ProtocolVersion, SupportedCipherSuite,
};

use super::{Handshake, TLS13_COUNT, data, seal};
use crate::records::fuzzing::{SUITE_COUNT, SessionPair};
use crate::records::{MAX_PLAINTEXT_BYTES, OpenError, RecordSession, SealError, Violation};

#[test]
fn the_key_is_updated_before_its_limit() {
    for suite in 0..TLS13_COUNT {
        let mut pair = SessionPair::new(suite, 1).unwrap();
        let limit = pair.server.suite.max_records();
        pair.server.send_keys.sequence = limit - 1;
        pair.client.receive_keys.sequence = limit - 1;
        let content = vec![3; 3 * MAX_PLAINTEXT_BYTES];
        let mut out = seal(&mut pair.server, &content);
        assert_eq!(pair.server.send_keys.sequence, 2);
        let opened = pair.client.open(&mut out, &mut Vec::new());
        assert_eq!(opened, Ok(data(content.len())));
        assert_eq!(pair.client.receive_keys.sequence, 2);
    }
}

#[test]
fn a_key_beyond_its_limit_is_updated_first() {
    let mut pair = SessionPair::new(0, 1).unwrap();
    pair.server.send_keys.sequence = (1 << 24) - 5;
    pair.client.receive_keys.sequence = (1 << 24) - 5;
    let mut out = seal(&mut pair.server, b"event");
    assert_eq!(pair.client.open(&mut out, &mut Vec::new()), Ok(data(5)));
    assert_eq!(pair.server.send_keys.sequence, 1);
}

#[test]
fn tls_1_2_closes_at_its_limit() {
    for suite in TLS13_COUNT..SUITE_COUNT {
        let mut pair = SessionPair::new(suite, 1).unwrap();
        let limit = pair.server.suite.max_records();
        pair.server.send_keys.sequence = limit - 1;
        pair.client.receive_keys.sequence = limit - 1;
        let content = vec![3; MAX_PLAINTEXT_BYTES + 1];
        let slices = [std::io::IoSlice::new(&content)];
        let mut out = Vec::new();
        // All or nothing.
        let sealed = pair.server.seal(&slices, &mut out);
        assert_eq!((sealed, out.len()), (Err(SealError::KeyExhausted), 0));
        out.extend(seal(&mut pair.server, b"last"));
        let sealed = pair.server.seal(&slices, &mut out);
        assert_eq!(sealed, Err(SealError::KeyExhausted));
        pair.server.close_notify(&mut out);
        let opened = pair.client.open(&mut out, &mut Vec::new()).unwrap();
        assert_eq!((opened.data_bytes, opened.is_ended), (4, true));
    }
}

#[test]
fn no_sequence_number_comes_twice() {
    for suite in 0..SUITE_COUNT {
        let mut pair = SessionPair::new(suite, 1).unwrap();
        pair.client.send_keys.sequence = u64::MAX - 1;
        pair.server.receive_keys.sequence = u64::MAX - 1;
        let mut record = pair.seal_as_client(23, b"data").unwrap();
        assert_eq!(pair.server.open(&mut record, &mut Vec::new()), Ok(data(4)));
        // The next one has no successor: it is neither sealed nor opened.
        assert!(pair.seal_as_client(23, b"data").is_err());
        pair.client.send_keys.sequence = u64::MAX - 1;
        pair.server.receive_keys.sequence = u64::MAX;
        let mut record = pair.seal_as_client(23, b"data").unwrap();
        let opened = pair.server.open(&mut record, &mut Vec::new());
        assert_eq!(opened, Err(OpenError::Violation(Violation::BadRecordMac)));
    }
}

/// First sequence numbers of a few records. The library seals in ascending order only, from 0.
const SEQUENCES: [u64; 8] = [
    0,
    250,
    (1 << 23) - 3,
    u32::MAX as u64 - 3,
    (1 << 48) - 3,
    0x0102_0304_0506_0708,
    u64::MAX - (1 << 17),
    u64::MAX - 8,
];

/// `rustls`' protection of records, with the client's keys.
struct RustlsRecords {
    encrypter: Box<dyn MessageEncrypter>,
    decrypter: Box<dyn MessageDecrypter>,
}

impl RustlsRecords {
    fn new(suite: SupportedCipherSuite, client: ExtractedSecrets) -> Self {
        use ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
        let parts = |secrets| match secrets {
            Aes128Gcm { key, iv } | Aes256Gcm { key, iv } | Chacha20Poly1305 { key, iv } => {
                (key, iv)
            }
            _ => panic!("another suite"),
        };
        let (send_key, send_iv) = parts(client.tx.1);
        let (receive_key, receive_iv) = parts(client.rx.1);
        match suite {
            SupportedCipherSuite::Tls13(suite) => Self {
                encrypter: suite.aead_alg.encrypter(send_key, send_iv),
                decrypter: suite.aead_alg.decrypter(receive_key, receive_iv),
            },
            SupportedCipherSuite::Tls12(suite) => {
                let fixed = suite.aead_alg.key_block_shape().fixed_iv_len;
                let (fixed_iv, explicit) = send_iv.as_ref().split_at(fixed);
                Self {
                    encrypter: suite.aead_alg.encrypter(send_key, fixed_iv, explicit),
                    decrypter: suite
                        .aead_alg
                        .decrypter(receive_key, &receive_iv.as_ref()[..fixed]),
                }
            }
        }
    }

    fn seal(&mut self, content: &[u8], sequence: u64) -> Vec<u8> {
        let plain = OutboundPlainMessage {
            typ: ContentType::ApplicationData,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(content),
        };
        self.encrypter.encrypt(plain, sequence).unwrap().encode()
    }

    fn open(&mut self, record: &[u8], sequence: u64) -> Vec<u8> {
        let mut body = record[5..].to_vec();
        let kind = ContentType::from(record[0]);
        let opaque = InboundOpaqueMessage::new(kind, ProtocolVersion::TLSv1_2, &mut body);
        self.decrypter
            .decrypt(opaque, sequence)
            .unwrap()
            .payload
            .to_vec()
    }
}

#[test]
fn records_are_those_of_rustls_at_every_sequence_number() {
    for suite in 0..SUITE_COUNT {
        let handshake = Handshake::new(suite);
        let traffic = handshake.traffic.clone();
        let (suite, server, client) = handshake.extract();
        let mut held = RecordSession::new(suite, &server, traffic.as_ref()).unwrap();
        let mut peer = RustlsRecords::new(suite, client);
        for first in SEQUENCES {
            held.send_keys.sequence = first;
            held.receive_keys.sequence = first;
            let lengths = [0, 1, 15, 16, 17, 120, MAX_PLAINTEXT_BYTES];
            for (sequence, length) in (first..).zip(lengths) {
                let content = vec![0x61; length];
                let mut out = Vec::new();
                held.seal_small(23, &content, &mut out).unwrap();
                assert!(peer.open(&out, sequence) == content, "{suite:?} {sequence}");
                let mut record = peer.seal(&content, sequence);
                let opened = held.open(&mut record, &mut Vec::new());
                assert_eq!(opened, Ok(data(length)), "{suite:?} {sequence}");
            }
        }
    }
}
