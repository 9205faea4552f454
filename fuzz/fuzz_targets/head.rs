//! Arbitrary bytes as a request head: no panic, and accepted heads have the guarantees that the
//! server relies on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::{
    BodyFraming, HeadLimits, ParseProgress, PreconditionResult, evaluate_preconditions,
    normalise_path, parse_head,
};

fuzz_target!(|data: &[u8]| {
    let limits = HeadLimits {
        max_target_bytes: 256,
        max_head_bytes: 2048,
        max_fields: 40,
    };
    let Ok(ParseProgress::Complete((head, consumed))) = parse_head(data, &limits) else {
        return;
    };
    assert!(consumed <= data.len() && consumed <= limits.max_head_bytes + 2);
    assert!(data[..consumed].ends_with(b"\r\n\r\n"));
    assert!(!head.method_str().is_empty());
    // Three bytes encode one outside the URI grammar, and a missing path adds a slash.
    assert!(head.target().len() <= 3 * limits.max_target_bytes + 1);
    assert!(!head.target().is_empty() && head.target().is_ascii());
    for byte in *b" \"#<>\x7f" {
        assert!(!head.target().as_bytes().contains(&byte));
    }
    assert!(head.sent_path_query_bytes().len() <= head.target_path_query().len());
    assert_eq!(head.fields().count(), head.field_count());
    assert!(head.field_count() <= limits.max_fields);
    for (name, value) in head.fields() {
        assert!(!name.is_empty() && name.is_ascii());
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
        assert!(!value.starts_with(b" ") && !value.ends_with(b" "));
    }
    let lengths = head.field_values("content-length").count();
    let codings = head.field_values("transfer-encoding").count();
    match head.framing() {
        BodyFraming::None => assert_eq!((lengths, codings), (0, 0)),
        BodyFraming::Length(_) => assert_eq!((lengths, codings), (1, 0)),
        BodyFraming::Chunked => assert_eq!((lengths, codings), (0, 1)),
    }
    let mut hosts = head.field_values("host");
    assert!(hosts.next().is_none_or(|host| host == head.host_bytes()));
    assert!(hosts.next().is_none() && !head.host().ends_with(':'));
    let _ = normalise_path(head.target_path_query());
    assert!(matches!(
        evaluate_preconditions(&head, b"\"a\"", Some(1)),
        PreconditionResult::Proceed | PreconditionResult::NotModified | PreconditionResult::Failed
    ));
});
