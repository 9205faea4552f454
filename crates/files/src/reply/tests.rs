//! Tables of conditions and ranges for a file of ten bytes.

use std::time::{Duration, Instant};

use penstock_config::ContentCoding;

use super::*;
use crate::description::{EtagVersion, FileAttributes};
use crate::file_entry::{ContentSource, FileStamp};
use crate::test_support::{FILE_MODIFIED_TIME, head, request};

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const ETAG: &str = "\"ae1b981bc490a07-a\"";

fn attributes() -> FileAttributes<'static> {
    FileAttributes {
        content_type: "text/plain",
        modified: (FILE_MODIFIED_TIME.as_secs().cast_signed(), 7),
        len: 10,
        version: EtagVersion::ModificationTime,
        coding: None,
        varies_by_encoding: false,
        cache_control: None,
        now: Duration::from_secs(2_000_000_000),
    }
}

fn file() -> Representation {
    described(&attributes())
}

fn described(attributes: &FileAttributes<'_>) -> Representation {
    Representation {
        description: FileDescription::new(attributes),
        source: ContentSource::Memory("0123456789".into()),
        stamp: FileStamp::default(),
        is_stamp_reliable: true,
    }
}

fn fields_of(block: &FieldBlock) -> &str {
    std::str::from_utf8(block.as_bytes()).unwrap()
}

/// Status, `Content-Range` and the part sent.
fn check(method: &str, fields: &[(&str, &str)]) -> (u16, String, Option<(u64, u64)>) {
    let response = build_file_response(&head(&format!("{method} /a"), fields), &file());
    let range = response.fields.get("content-range").unwrap_or_default();
    // Each byte of the file is its own position.
    let part = match &response.body {
        Body::Bytes(bytes) if bytes[0].is_ascii_digit() => {
            Some((u64::from(bytes[0] - b'0'), bytes.len() as u64))
        }
        _ => None,
    };
    (
        response.status.code(),
        String::from_utf8(range.to_vec()).unwrap(),
        part,
    )
}

#[test]
fn describes_a_file() {
    let file = file().description;
    assert_eq!(
        fields_of(&file.fields),
        format!(
            "Content-Type: text/plain\r\nLast-Modified: {DATE}\r\nETag: {ETAG}\r\n\
             Accept-Ranges: bytes\r\n"
        )
    );
    assert_eq!(
        fields_of(&file.not_modified_fields),
        format!("Last-Modified: {DATE}\r\nETag: {ETAG}\r\n")
    );
}

#[test]
fn describes_each_coding_with_a_tag_of_its_own() {
    let attributes = FileAttributes {
        varies_by_encoding: true,
        cache_control: Some("max-age=60"),
        ..attributes()
    };
    let original = FileDescription::new(&attributes);
    let beside = FileDescription::new(&FileAttributes {
        coding: Some(ContentCoding::Brotli),
        ..attributes
    });
    let made = original.with_compression(ContentCoding::Zstd, 5);
    let rest = "Vary: Accept-Encoding\r\nCache-Control: max-age=60\r\n";
    for (what, file, coding, etag, ranges) in [
        ("as it is", &original, "", ETAG.to_owned(), true),
        ("beside", &beside, "br", ETAG.replace("-a", "-a-br"), true),
        ("made", &made, "zstd", ETAG.replace("-a", "-a-zstd"), false),
    ] {
        let encoding = file.fields.get("content-encoding").unwrap_or_default();
        assert_eq!(encoding, coding.as_bytes(), "{what}");
        assert_eq!(file.fields.contains("accept-ranges"), ranges, "{what}");
        assert_eq!(file.etag, etag, "{what}");
        assert_eq!(file.is_encoded(), !coding.is_empty(), "{what}");
        for block in [&file.fields, &file.not_modified_fields] {
            assert_eq!(block.get("etag"), Some(etag.as_bytes()), "{what}");
            assert_eq!(block.get("vary"), Some(VARY_ACCEPT_ENCODING), "{what}");
            assert_eq!(block.get("cache-control"), Some(b"max-age=60".as_slice()));
        }
        assert!(
            !file.not_modified_fields.contains("content-encoding"),
            "{what}"
        );
    }
    assert!(fields_of(&original.not_modified_fields).ends_with(rest));
    assert_eq!(made.len, 5);
}

#[test]
fn a_time_that_says_nothing_is_not_told() {
    let now = Duration::from_secs(2_000_000_000);
    for (seconds, is_told) in [
        (-1, false),
        (0, false),
        (1, false),
        (315_532_800, false),
        (315_532_801, false),
        (315_705_601, true),
        (1_700_000_000, true),
        (2_000_000_000, true),
        (2_000_000_001, false),
    ] {
        let attributes = FileAttributes {
            modified: (seconds, 0),
            version: EtagVersion::ContentHash(0xabc),
            now,
            ..attributes()
        };
        let file = FileDescription::new(&attributes);
        assert_eq!(file.etag.as_ref(), b"\"abc-a\"");
        assert_eq!(file.modified.is_some(), is_told, "{seconds}");
        for block in [&file.fields, &file.not_modified_fields] {
            assert_eq!(block.contains("last-modified"), is_told, "{seconds}");
        }
    }
}

#[test]
fn what_depends_on_the_codings_always_says_so() {
    let file = described(&FileAttributes {
        varies_by_encoding: true,
        ..attributes()
    });
    for (status, fields) in [
        (200, vec![]),
        (206, vec![("Range", "bytes=0-0")]),
        (206, vec![("Range", "bytes=0-0,2-2")]),
        (304, vec![("If-None-Match", ETAG)]),
        (412, vec![("If-Match", "\"x\"")]),
        (416, vec![("Range", "bytes=10-")]),
    ] {
        let response = build_file_response(&head("GET /a", &fields), &file);
        assert_eq!(response.status.code(), status);
        assert_eq!(
            response.fields.get("vary"),
            Some(VARY_ACCEPT_ENCODING),
            "{status}"
        );
    }
}

#[test]
fn several_parts_are_framed() {
    let response = build_file_response(&head("GET /a", &[("Range", "bytes=0-1,-1")]), &file());
    assert_eq!(response.status, Status::PARTIAL_CONTENT);
    assert!(!response.fields.contains("content-range"));
    assert_eq!(response.fields.get("etag"), Some(ETAG.as_bytes()));
    let kind = response.fields.get("content-type").unwrap();
    let boundary = kind
        .strip_prefix(b"multipart/byteranges; boundary=")
        .unwrap();
    let boundary = std::str::from_utf8(boundary).unwrap();
    let Body::Bytes(body) = response.body else {
        panic!("in memory")
    };
    assert_eq!(
        std::str::from_utf8(&body).unwrap(),
        format!(
            "--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-1/10\r\n\r\n01\r\n\
             --{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 9-9/10\r\n\r\n9\r\n\
             --{boundary}--\r\n"
        )
    );
    // A coding is sent in one part or whole.
    let encoded = described(&FileAttributes {
        coding: Some(ContentCoding::Gzip),
        ..attributes()
    });
    for (range, status) in [("bytes=0-1,-1", 200), ("bytes=0-1", 206)] {
        let response = build_file_response(&head("GET /a", &[("Range", range)]), &encoded);
        assert_eq!(response.status.code(), status, "{range}");
    }
}

#[test]
fn a_date_before_1970_or_in_the_future_is_left_out() {
    for (what, modified, now, is_sent) in [
        ("before", (-1, 0), 100, false),
        ("long before", (i64::MIN, 999_999_999), 100, false),
        ("future", (101, 0), 100, false),
        ("far future", (i64::MAX, 999_999_999), 100, false),
        ("now", (400_000_000, 1), 400_000_000, true),
        ("start", (0, 0), 100, false),
    ] {
        let file = FileDescription::new(&FileAttributes {
            modified,
            len: 1,
            now: Duration::from_secs(now),
            ..attributes()
        });
        assert_eq!(file.fields.contains("last-modified"), is_sent, "{what}");
        assert!(
            file.etag.starts_with(b"\"") && file.etag.ends_with(b"-1\""),
            "{what}"
        );
    }
}

#[test]
fn answers_conditions() {
    for (what, method, fields, status) in [
        ("none", "GET", vec![], 200),
        ("has it", "GET", vec![("If-None-Match", ETAG)], 304),
        ("has it, HEAD", "HEAD", vec![("If-None-Match", ETAG)], 304),
        (
            "has it among others",
            "GET",
            vec![
                ("If-None-Match", "\"x\", W/\"y\", "),
                ("If-None-Match", ETAG),
            ],
            304,
        ),
        ("has another", "GET", vec![("If-None-Match", "\"x\"")], 200),
        (
            "not modified since",
            "GET",
            vec![("If-Modified-Since", DATE)],
            304,
        ),
        (
            "modified since",
            "GET",
            vec![("If-Modified-Since", EARLIER)],
            200,
        ),
        (
            "the tag wins",
            "GET",
            vec![("If-None-Match", "\"x\""), ("If-Modified-Since", DATE)],
            200,
        ),
        ("matches", "GET", vec![("If-Match", ETAG)], 200),
        ("does not match", "GET", vec![("If-Match", "\"x\"")], 412),
        (
            "unmodified",
            "GET",
            vec![("If-Unmodified-Since", DATE)],
            200,
        ),
        (
            "modified",
            "HEAD",
            vec![("If-Unmodified-Since", EARLIER)],
            412,
        ),
    ] {
        assert_eq!(check(method, &fields).0, status, "{what}");
    }
}

#[test]
fn a_304_has_only_the_validators() {
    let head = head("GET /a", &[("If-None-Match", ETAG)]);
    let response = build_file_response(&head, &file());
    assert_eq!(response.fields, file().description.not_modified_fields);
    assert_eq!(response.body.length(), Some(0));
}

#[test]
fn answers_ranges() {
    let many = format!("bytes={}", "0-0,".repeat(1000));
    let (bad, whole) = ("bytes */10", Some((0, 10)));
    for (what, fields, status, content_range, part) in [
        ("none", vec![], 200, "", whole),
        (
            "first byte",
            vec![("Range", "bytes=0-0")],
            206,
            "bytes 0-0/10",
            Some((0, 1)),
        ),
        (
            "middle",
            vec![("Range", "bytes=3-5")],
            206,
            "bytes 3-5/10",
            Some((3, 3)),
        ),
        (
            "open end",
            vec![("Range", "bytes=4-")],
            206,
            "bytes 4-9/10",
            Some((4, 6)),
        ),
        (
            "suffix",
            vec![("Range", "bytes=-2")],
            206,
            "bytes 8-9/10",
            Some((8, 2)),
        ),
        (
            "beyond the end",
            vec![("Range", "bytes=8-99")],
            206,
            "bytes 8-9/10",
            Some((8, 2)),
        ),
        (
            "after the end",
            vec![("Range", "bytes=10-")],
            416,
            bad,
            None,
        ),
        ("empty suffix", vec![("Range", "bytes=-0")], 416, bad, None),
        (
            "2^64-1",
            vec![("Range", "bytes=18446744073709551615-")],
            416,
            bad,
            None,
        ),
        ("a thousand", vec![("Range", many.as_str())], 200, "", whole),
        ("malformed", vec![("Range", "bytes=5-3")], 200, "", whole),
        (
            "sent twice",
            vec![("Range", "bytes=0-0"), ("Range", "bytes=2-2")],
            200,
            "",
            whole,
        ),
        (
            "same tag",
            vec![("Range", "bytes=0-0"), ("If-Range", ETAG)],
            206,
            "bytes 0-0/10",
            Some((0, 1)),
        ),
        (
            "other tag",
            vec![("Range", "bytes=0-0"), ("If-Range", "\"x\"")],
            200,
            "",
            whole,
        ),
        (
            "same date",
            vec![("Range", "bytes=0-0"), ("If-Range", DATE)],
            206,
            "bytes 0-0/10",
            Some((0, 1)),
        ),
        (
            "other date",
            vec![("Range", "bytes=0-0"), ("If-Range", EARLIER)],
            200,
            "",
            whole,
        ),
        (
            "has it anyway",
            vec![("Range", "bytes=0-0"), ("If-None-Match", ETAG)],
            304,
            "",
            None,
        ),
    ] {
        assert_eq!(
            check("GET", &fields),
            (status, content_range.to_owned(), part),
            "{what}"
        );
    }
    let head = check("HEAD", &[("Range", "bytes=0-0")]);
    assert_eq!(head, (200, String::new(), None), "HEAD");
}

#[test]
fn head_has_the_fields_and_the_length_of_get() {
    let got = build_file_response(&head("GET /a", &[]), &file());
    let headed = build_file_response(&head("HEAD /a", &[]), &file());
    assert_eq!(got.fields, headed.fields);
    assert_eq!(got.body.length(), headed.body.length());
}

#[test]
fn a_directory_is_redirected_to_its_slash() {
    let response = redirect_to_directory(&request("GET /a%20b?c=d", &[], Instant::now()));
    assert_eq!(response.status, Status::MOVED_PERMANENTLY);
    assert_eq!(
        response.fields.get("location"),
        Some(b"/a%20b/?c=d".as_slice())
    );
}
