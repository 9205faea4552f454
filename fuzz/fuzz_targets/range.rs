//! Arbitrary `Range`, `If-Range` and validators: selected parts are within the representation,
//! disjoint and not empty. Arbitrary `Accept-Encoding`: one of the existing codings is chosen.
//! Eight bytes of length first, then the parts separated by NUL.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::{
    CodingChoice, MultipartRanges, RangeOutcome, accepts_media_type, encode_content_range,
    negotiate_coding, parse_http_date, select_range,
};

fuzz_target!(|data: &[u8]| {
    let Some((len, rest)) = data.split_first_chunk::<8>() else {
        return;
    };
    let len = u64::from_le_bytes(*len);
    let mut parts = rest.split(|&byte| byte == 0);
    let (range, if_range) = (parts.next(), parts.next());
    let etag = parts.next().unwrap_or_default();
    let last_modified = parts.next().and_then(parse_http_date);
    match select_range(range, if_range, len, etag, last_modified) {
        RangeOutcome::Part(part) => {
            assert!(part.len > 0);
            assert!(
                part.start
                    .checked_add(part.len)
                    .is_some_and(|end| end <= len)
            );
            let mut text = Vec::new();
            encode_content_range(part.start, part.len, len, &mut text);
            assert!(text.starts_with(b"bytes "));
        }
        RangeOutcome::Parts(parts) => {
            assert!((2..=16).contains(&parts.len()));
            let mut end = None;
            for part in &parts {
                assert!(part.len > 0 && end.is_none_or(|end| end < part.start));
                end = part.start.checked_add(part.len);
                assert!(end.is_some_and(|end| end <= len));
            }
            let sum: u64 = parts.iter().map(|part| part.len).sum();
            assert!(MultipartRanges::new(0, None, &parts, len).length() >= sum);
        }
        RangeOutcome::Whole | RangeOutcome::Unsatisfiable => {}
    }
    if let CodingChoice::Coding(number) =
        negotiate_coding(|| range.into_iter(), ["zstd", "br", "gzip"])
    {
        assert!(number < 3);
    }
    let _ = accepts_media_type(range, "text/html");
});
