//! Selection of a file's coding.

use super::*;
use crate::description::{EtagVersion, FileAttributes};
use crate::test_support::head;

fn attributes(coding: Option<ContentCoding>, len: usize) -> FileAttributes<'static> {
    FileAttributes {
        content_type: "text/plain",
        modified: (1, 0),
        len: len as u64,
        version: EtagVersion::ModificationTime,
        coding,
        varies_by_encoding: true,
        cache_control: None,
        now: Duration::from_secs(10),
    }
}

fn representation(coding: Option<ContentCoding>, content: Bytes) -> Representation {
    Representation {
        description: FileDescription::new(&attributes(coding, content.len())),
        source: ContentSource::Memory(content),
        stamp: FileStamp::default(),
        is_stamp_reliable: true,
    }
}

/// A file without codings.
pub(crate) fn file_entry(content: &'static str) -> FileEntry {
    FileEntry::new(representation(None, content.into()), Vec::new())
}

/// A file with every coding compressible.
pub(crate) fn compressible_entry(content: Bytes) -> FileEntry {
    let offers = [
        ContentCoding::Zstd,
        ContentCoding::Brotli,
        ContentCoding::Gzip,
    ]
    .map(|coding| CodingOffer {
        coding,
        state: CodingState::Compressible,
    });
    FileEntry::new(representation(None, content), offers.into())
}

impl FileStamp {
    /// Another file.
    pub(crate) fn with_candidate(self, place: usize) -> Self {
        Self {
            candidate: place,
            ..self
        }
    }
}

/// The selection: the content, or the coding to compress first.
fn selected(found: &FileEntry, line: &str, fields: &[(&str, &str)]) -> String {
    match found.select_coding(&head(line, fields)) {
        SelectedCoding::Compress(coding) => format!("make {}", coding.as_str()),
        SelectedCoding::Ready(file) => match &file.source {
            ContentSource::Memory(content) => String::from_utf8(content.to_vec()).unwrap(),
            ContentSource::Disk(_) => "open".to_owned(),
        },
    }
}

#[test]
fn a_client_gets_what_it_asked_for() {
    let beside = |coding, content: &'static str| CodingOffer {
        coding,
        state: CodingState::Precompressed(representation(Some(coding), content.into())),
    };
    let offers = vec![
        beside(ContentCoding::Gzip, "gzip beside"),
        CodingOffer {
            coding: ContentCoding::Zstd,
            state: CodingState::Compressible,
        },
    ];
    let found = FileEntry::new(representation(None, "as it is".into()), offers);
    let zstd = Bytes::from("zstd made");
    let after = found.with_compressed(ContentCoding::Zstd, Some(&zstd));
    let useless = found.with_compressed(ContentCoding::Zstd, None);
    for (what, accepted, range, before, then, given_up) in [
        ("nothing", "", false, "as it is", "as it is", "as it is"),
        (
            "gzip",
            "gzip",
            false,
            "gzip beside",
            "gzip beside",
            "gzip beside",
        ),
        ("zstd", "zstd", false, "make zstd", "zstd made", "as it is"),
        (
            "ready first",
            "zstd, gzip",
            false,
            "gzip beside",
            "gzip beside",
            "gzip beside",
        ),
        (
            "weights",
            "zstd, gzip;q=0.1",
            false,
            "make zstd",
            "zstd made",
            "gzip beside",
        ),
        ("another", "br", false, "as it is", "as it is", "as it is"),
        (
            "refused",
            "identity;q=0",
            false,
            "as it is",
            "as it is",
            "as it is",
        ),
        (
            "part of beside",
            "gzip",
            true,
            "gzip beside",
            "gzip beside",
            "gzip beside",
        ),
        (
            "part of made",
            "zstd",
            true,
            "as it is",
            "as it is",
            "as it is",
        ),
    ] {
        let mut fields = vec![("Accept-Encoding", accepted)];
        if range {
            fields.push(("Range", "bytes=0-1"));
        }
        assert_eq!(selected(&found, "GET /a", &fields), before, "{what}");
        assert_eq!(selected(&after, "GET /a", &fields), then, "{what}");
        assert_eq!(selected(&useless, "GET /a", &fields), given_up, "{what}");
    }
    let ranged = [("Accept-Encoding", "zstd"), ("Range", "bytes=0-1")];
    assert_eq!(selected(&after, "HEAD /a", &ranged), "zstd made");
}

#[test]
fn a_slice_is_never_beyond_the_content() {
    let content = Bytes::from("0123456789");
    for (start, len, expected) in [
        (0, 10, "0123456789"),
        (3, 2, "34"),
        (8, 5, "89"),
        (10, 1, ""),
        (11, 1, ""),
        (u64::MAX, u64::MAX, ""),
        (1, u64::MAX, "123456789"),
    ] {
        assert_eq!(slice(&content, start, len), expected, "{start}+{len}");
    }
}

#[test]
fn a_precompressed_file_with_an_unreliable_stamp_is_never_unchanged() {
    let original = || representation(None, "as it is".into());
    let beside = |is_stamp_reliable| {
        let file = Representation {
            is_stamp_reliable,
            ..representation(Some(ContentCoding::Gzip), "gzip".into())
        };
        vec![CodingOffer {
            coding: ContentCoding::Gzip,
            state: CodingState::Precompressed(file),
        }]
    };
    for (what, before, now, expected) in [
        ("settled", beside(true), beside(true), true),
        ("written now", beside(true), beside(false), false),
        ("written then", beside(false), beside(true), false),
        ("gone", beside(true), Vec::new(), false),
        ("half-written and gone", beside(false), Vec::new(), false),
        ("new", Vec::new(), beside(true), false),
        ("none", Vec::new(), Vec::new(), true),
    ] {
        let found = FileEntry::new(original(), before);
        assert_eq!(found.is_unchanged(&original(), &now), expected, "{what}");
    }
}
