//! Selected parts for each field.

use super::*;

const PART: fn(u64, u64) -> RangeOutcome =
    |start, len| RangeOutcome::Part(ByteRange { start, len });

#[test]
fn selects_from_one_range() {
    let many = format!("bytes={}", "0-0,".repeat(1300));
    for (range, len, expected) in [
        ("bytes=0-0", 10, PART(0, 1)),
        ("bytes=0-", 10, PART(0, 10)),
        ("bytes=3-5", 10, PART(3, 3)),
        ("bytes=9-9", 10, PART(9, 1)),
        ("bytes=5-100", 10, PART(5, 5)),
        ("bytes=-3", 10, PART(7, 3)),
        ("bytes=-100", 10, PART(0, 10)),
        ("BYTES= 1-2 ", 10, PART(1, 2)),
        ("bytes=0-18446744073709551615", 10, PART(0, 10)),
        ("bytes=0-99999999999999999999999", 10, PART(0, 10)),
        ("bytes=0-", u64::MAX, PART(0, u64::MAX)),
        ("bytes=10-", 10, RangeOutcome::Unsatisfiable),
        (
            "bytes=18446744073709551615-",
            10,
            RangeOutcome::Unsatisfiable,
        ),
        (
            "bytes=99999999999999999999999-",
            10,
            RangeOutcome::Unsatisfiable,
        ),
        ("bytes=-0", 10, RangeOutcome::Unsatisfiable),
        ("bytes=0-", 0, RangeOutcome::Unsatisfiable),
        ("bytes=-5", 0, RangeOutcome::Whole),
        ("bytes=5-3", 10, RangeOutcome::Whole),
        (&many, 10, RangeOutcome::Whole),
        ("bytes=", 10, RangeOutcome::Whole),
        ("bytes=-", 10, RangeOutcome::Whole),
        ("bytes=a-b", 10, RangeOutcome::Whole),
        ("bytes=+1-2", 10, RangeOutcome::Whole),
        ("bytes=1 - 2", 10, RangeOutcome::Whole),
        ("bytes", 10, RangeOutcome::Whole),
        ("rows=0-1", 10, RangeOutcome::Whole),
        ("", 10, RangeOutcome::Whole),
    ] {
        assert_eq!(
            select_range(Some(range.as_bytes()), None, len, b"", None),
            expected,
            "{range}"
        );
    }
    assert_eq!(
        select_range(None, Some(b"\"x\""), 10, b"", None),
        RangeOutcome::Whole
    );
}

#[test]
fn if_range_compares_strongly() {
    let date = b"Sun, 06 Nov 1994 08:49:37 GMT".as_slice();
    for (validator, etag, modified, is_part) in [
        (b"\"a\"".as_slice(), b"\"a\"".as_slice(), None, true),
        (b"\"a\"", b"\"b\"", None, false),
        (b"W/\"a\"", b"W/\"a\"", None, false),
        (b"\"a\"", b"W/\"a\"", None, false),
        (b"\"a\"", b"", None, false),
        (date, b"", Some(784_111_777), true),
        (date, b"", Some(784_111_778), false),
        (date, b"", Some(784_111_776), false),
        (date, b"", None, false),
        (b"nonsense", b"", None, false),
    ] {
        let outcome = select_range(Some(b"bytes=0-1"), Some(validator), 10, etag, modified);
        assert_eq!(outcome == PART(0, 2), is_part, "{validator:?}");
    }
}

#[test]
fn writes_content_range() {
    let mut out = Vec::new();
    encode_content_range(3, 4, 10, &mut out);
    assert_eq!(out, b"bytes 3-6/10");
    out.clear();
    encode_unsatisfied_range(10, &mut out);
    assert_eq!(out, b"bytes */10");
}

fn parts(spans: &[(u64, u64)]) -> RangeOutcome {
    let spans = spans.iter().map(|&(start, len)| ByteRange { start, len });
    RangeOutcome::Parts(spans.collect())
}

#[test]
fn selects_from_several_ranges() {
    use RangeOutcome::{Unsatisfiable, Whole};
    let apart = |count: u64| {
        let specs = (0..count).map(|n| format!("{}-{}", n * 3, n * 3));
        format!("bytes={}", specs.collect::<Vec<_>>().join(","))
    };
    let (sixteen, seventeen, many) = (apart(16), apart(17), apart(101));
    let sixteen_parts: Vec<_> = (0..16).map(|n| (n * 3, 1)).collect();
    let touching: Vec<_> = (0..100).map(|n| format!("{n}-{n}")).collect();
    let touching = format!("bytes={}", touching.join(","));
    for (range, len, expected) in [
        ("bytes=0-0,2-2", 10, parts(&[(0, 1), (2, 1)])),
        ("bytes=0-0, 2-2,", 10, parts(&[(0, 1), (2, 1)])),
        ("bytes=,0-0,,2-2", 10, parts(&[(0, 1), (2, 1)])),
        ("bytes=8-,0-1", 10, parts(&[(0, 2), (8, 2)])),
        ("bytes=0-1,-2", 10, parts(&[(0, 2), (8, 2)])),
        // Adjacent ranges are merged.
        ("bytes=0-1,2-3", 10, PART(0, 4)),
        ("bytes=4-6,0-4", 10, PART(0, 7)),
        ("bytes=0-1,1-2,2-3", 10, PART(0, 4)),
        (&touching, 1000, PART(0, 100)),
        // Ranges beyond the end are ignored, unless there is no other.
        ("bytes=0-0,10-", 10, PART(0, 1)),
        ("bytes=20-,0-0,-0,5-5", 10, parts(&[(0, 1), (5, 1)])),
        ("bytes=10-,11-12,-0", 10, Unsatisfiable),
        ("bytes=18446744073709551615-,0-0", 10, PART(0, 1)),
        // One malformed range invalidates the field.
        ("bytes=0-0,x", 10, Whole),
        ("bytes=0-0,3-2", 10, Whole),
        ("bytes=0-0,2", 10, Whole),
        ("bytes=,", 10, Whole),
        ("bytes=0-0,-5", 0, Whole),
        // Too many overlaps, parts, bytes or ranges.
        ("bytes=0-1,1-2,2-3,3-4", 100, Whole),
        ("bytes=0-,0-", 10, Whole),
        ("bytes=0-,0-", u64::MAX, Whole),
        ("bytes=0-6,4-9", 10, Whole),
        (&sixteen, 1000, parts(&sixteen_parts)),
        (&seventeen, 1000, Whole),
        (&many, 1000, Whole),
    ] {
        assert_eq!(
            select_range(Some(range.as_bytes()), None, len, b"", None),
            expected,
            "{range}"
        );
    }
}

#[test]
fn any_field_is_answered_within_the_whole() {
    // A small generator with a fixed seed, for nearly valid fields.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % bound as u64).unwrap()
    };
    let words = [
        "0",
        "1",
        "5",
        "9",
        "10",
        "18446744073709551615",
        "-",
        "-",
        ",",
        ",",
        " ",
        "x",
    ];
    for _ in 0..20_000 {
        let mut field = "bytes=".to_owned();
        for _ in 0..next(30) {
            field.push_str(words[next(words.len())]);
        }
        let len = [0, 1, 10, 11, 1000][next(5)];
        let spans = match select_range(Some(field.as_bytes()), None, len, b"", None) {
            RangeOutcome::Whole | RangeOutcome::Unsatisfiable => continue,
            RangeOutcome::Part(part) => vec![part],
            RangeOutcome::Parts(spans) => {
                assert!((2..=MAX_PARTS).contains(&spans.len()), "{field}");
                spans
            }
        };
        let mut end = None;
        for span in spans {
            assert!(span.len > 0 && span.end() <= len, "{field} of {len}");
            assert!(end.is_none_or(|end| end < span.start), "{field} of {len}");
            end = Some(span.end());
        }
    }
}

#[test]
fn content_ranges_are_read_when_they_say_all() {
    let part = |start, len, total| Some((ByteRange { start, len }, total));
    for (value, expected) in [
        ("bytes 0-0/1", part(0, 1, 1)),
        ("BYTES 5-9/10", part(5, 5, 10)),
        (
            "bytes 0-18446744073709551614/18446744073709551615",
            part(0, u64::MAX, u64::MAX),
        ),
        ("bytes 0-18446744073709551615/18446744073709551615", None),
        ("bytes 5-10/10", None),
        ("bytes 5-4/10", None),
        ("bytes 5-9/*", None),
        ("bytes */10", None),
        ("bytes 5/9-10", None),
        ("bytes 5-9", None),
        ("bytes -9/10", None),
        ("bytes 5-/10", None),
        ("bytes 5-9/", None),
        ("bytes", None),
        ("lines 5-9/10", None),
        ("", None),
    ] {
        assert_eq!(parse_content_range(value.as_bytes()), expected, "{value:?}");
    }
}
