//! Checks that the fuzz targets and the tests of `grip`, `mercure` and `cluster` share.

use penstock_exchange::field_policy::{FieldClass, classify_field, is_internal_field};
use penstock_http::FieldBlock;

use crate::{LongPollAction, Publication, StreamAction, WebSocketAction};

/// Asserts that a publication can be sent, and that it has at most `sent` bytes.
pub fn check_publication(publication: &Publication, sent: usize) {
    let Publication {
        stream,
        response,
        websocket,
        event,
        ..
    } = publication;
    let mut kept = 0;
    if let Some(StreamAction::Send(content)) = stream {
        kept += content.bytes.len();
    }
    if let Some(LongPollAction::Send(response)) = response {
        assert!(!response.status.is_informational());
        check_fields(&response.fields);
        kept += response.body.bytes.len();
    }
    match websocket {
        Some(WebSocketAction::Text(content)) => {
            assert!(std::str::from_utf8(&content.bytes).is_ok());
            kept += content.bytes.len();
        }
        Some(WebSocketAction::Binary(content)) => kept += content.bytes.len(),
        Some(WebSocketAction::Ping(bytes) | WebSocketAction::Pong(bytes)) => {
            assert!(bytes.len() <= 125);
        }
        Some(WebSocketAction::Close { code, reason }) => {
            assert!(
                penstock_http::websocket::close_code::is_sendable(*code),
                "{code}"
            );
            assert!(reason.len() <= 123);
        }
        None => {}
    }
    kept += event.as_ref().map_or(0, |event| event.data.len());
    assert!(kept <= sent, "{kept} bytes of {sent}");
}

/// Asserts that fields of a publisher or back end have none that only a front end may send.
pub fn check_fields(fields: &FieldBlock) {
    for (name, value) in fields.iter() {
        assert!(classify_field(name) != FieldClass::HopByHop, "{name}");
        assert!(!is_internal_field(name.as_bytes()), "{name}");
        assert!(!value.iter().any(|byte| b"\r\n\0".contains(byte)), "{name}");
    }
}

/// Calls `read` with each of `seeds`, and with a thousand variants of it: bytes changed, cut and
/// repeated. A fixed sample of what the fuzzer tries, for every run of the tests.
pub fn read_mutated_inputs(seeds: &[&str], read: impl Fn(&[u8])) {
    let mut state = 11_u64;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize
    };
    for seed in seeds {
        read(seed.as_bytes());
        for _ in 0..1000 {
            let mut bytes = seed.as_bytes().to_vec();
            for _ in 0..1 + next() % 4 {
                let at = next() % bytes.len();
                match next() % 5 {
                    0 => bytes.truncate(at.max(1)),
                    1 => bytes[at] = b"\"\\{},;:=\r\n\0"[next() % 11],
                    2 => bytes[at] ^= 1 << (next() % 8),
                    3 => drop(bytes.splice(at..at, *b"9")),
                    _ => drop(bytes.splice(at..at, seed.bytes().take(next() % 40))),
                }
            }
            read(&bytes);
        }
    }
}
