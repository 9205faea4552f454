//! Any `Range`, `If-Range` and validators: a selected part lies within the representation and is
//! never empty. Eight bytes of length first, then the parts separated by NUL.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::{RangeOutcome, accepts, content_range, parse_http_date, select_range};

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
        RangeOutcome::Part { start, len: part } => {
            assert!(part > 0);
            assert!(start.checked_add(part).is_some_and(|end| end <= len));
            let mut text = Vec::new();
            content_range(start, part, len, &mut text);
            assert!(text.starts_with(b"bytes "));
        }
        RangeOutcome::Whole | RangeOutcome::Unsatisfiable => {}
    }
    let _ = accepts(range, "text/html");
});
