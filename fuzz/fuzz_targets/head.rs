//! Any bytes as a request head: no panic, and what is accepted keeps the promises that the rest of
//! the server builds on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::{
    BodyFraming, HeadLimits, Precondition, Progress, evaluate, normalise, parse_head,
};

fuzz_target!(|data: &[u8]| {
    let limits = HeadLimits {
        target_bytes: 256,
        header_bytes: 2048,
        headers: 40,
    };
    let Ok(Progress::Complete((head, consumed))) = parse_head(data, &limits) else {
        return;
    };
    assert!(consumed <= data.len() && consumed <= limits.header_bytes + 2);
    assert!(data[..consumed].ends_with(b"\r\n\r\n"));
    assert!(!head.method_str().is_empty() && head.target().len() <= limits.target_bytes);
    assert!(!head.target().is_empty());
    assert_eq!(head.fields().count(), head.field_count());
    assert!(head.field_count() <= limits.headers);
    for (name, value) in head.fields() {
        assert!(!name.is_empty() && name.is_ascii());
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
        assert!(!value.starts_with(b" ") && !value.ends_with(b" "));
    }
    let lengths = head.field_all("content-length").count();
    let codings = head.field_all("transfer-encoding").count();
    match head.framing() {
        BodyFraming::None => assert_eq!((lengths, codings), (0, 0)),
        BodyFraming::Length(_) => assert_eq!((lengths, codings), (1, 0)),
        BodyFraming::Chunked => assert_eq!((lengths, codings), (0, 1)),
    }
    assert!(head.field_all("host").count() <= 1);
    let _ = normalise(head.target_path_query());
    assert!(matches!(
        evaluate(&head, b"\"a\"", Some(1)),
        Precondition::Proceed | Precondition::NotModified | Precondition::Failed
    ));
});
