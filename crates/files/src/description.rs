//! Validators and response fields of a file. Pure.
//!
//! `file_tree` creates a [`FileDescription`] once for each version of a file, and `reply` sends it.
//!
//! # Invariants
//!
//! - Every coding of a file has its own strong entity tag.
//! - A response that depends on `Accept-Encoding` has a matching `Vary`.

use std::time::Duration;

use bytes::Bytes;
use penstock_config::ContentCoding;
use penstock_http::{FieldBlock, imf_fixdate};

/// Validators, length and fields of one coding of a file.
#[derive(Debug, Clone)]
pub(crate) struct FileDescription {
    /// Strong, with the suffix `-<coding>` if there is one (RFC 9110 §8.8.3); see [`EtagVersion`].
    pub(crate) etag: Bytes,
    pub(crate) modified: Option<u64>,
    pub(crate) len: u64,
    /// For 200 and 206.
    pub(crate) fields: FieldBlock,
    /// For 304 (RFC 9110 §15.4.5).
    pub(crate) not_modified_fields: FieldBlock,
    varies_by_encoding: bool,
    is_encoded: bool,
}

/// Distinguishes versions of a file in the tag: `"<number>-<size>"`, both hexadecimal.
///
/// Inode and change time are used only as a last resort: they differ between machines that serve
/// the same files, so that a load-balanced client would never have a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EtagVersion {
    /// The modification time in nanoseconds. Every write changes it, by at least the kernel's tick
    /// of some milliseconds, and a file is cached only while its inode and change time are the same
    /// too.
    ModificationTime,
    /// A hash of the content: for files that are in memory anyway, and where many files have the
    /// same time (the Nix store, reproducible images, archives).
    ContentHash(u64),
    /// A hash of the file's metadata, which differs between machines.
    MetadataHash(u64),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct FileAttributes<'a> {
    pub(crate) content_type: &'a str,
    /// Modification time since the epoch: seconds, nanoseconds.
    pub(crate) modified: (i64, i64),
    pub(crate) len: u64,
    pub(crate) version: EtagVersion,
    pub(crate) coding: Option<ContentCoding>,
    /// Whether the file has, or may get, another coding.
    pub(crate) varies_by_encoding: bool,
    pub(crate) cache_control: Option<&'a str>,
    /// Wall-clock time since the epoch.
    pub(crate) now: Duration,
}

impl FileDescription {
    pub(crate) fn new(attributes: &FileAttributes<'_>) -> Self {
        let (seconds, nanos) = attributes.modified;
        let number = match attributes.version {
            EtagVersion::ModificationTime => seconds
                .wrapping_mul(1_000_000_000)
                .wrapping_add(nanos)
                .cast_unsigned(),
            EtagVersion::ContentHash(hash) | EtagVersion::MetadataHash(hash) => hash,
        };
        let suffix = attributes.coding.map_or(String::new(), etag_suffix);
        let etag = format!("\"{number:x}-{:x}{suffix}\"", attributes.len).into_bytes();
        // RFC 9110 §8.8.2.1: no date later than the response's. A meaningless date would let a
        // client keep an outdated file.
        let modified = u64::try_from(seconds)
            .ok()
            .filter(|_| is_plausible_mtime(seconds, attributes.now));
        let mut fields = FieldBlock::with_capacity(256);
        let mut validators = FieldBlock::with_capacity(192);
        push_field(
            &mut fields,
            "Content-Type",
            attributes.content_type.as_bytes(),
        );
        if let Some(coding) = attributes.coding {
            push_field(&mut fields, "Content-Encoding", coding.as_str().as_bytes());
        }
        for block in [&mut fields, &mut validators] {
            if let Some(seconds) = modified {
                push_field(block, "Last-Modified", &imf_fixdate(seconds));
            }
            push_field(block, "ETag", &etag);
            if attributes.varies_by_encoding {
                push_field(block, "Vary", VARY_ACCEPT_ENCODING);
            }
            if let Some(value) = attributes.cache_control {
                push_field(block, "Cache-Control", value.as_bytes());
            }
        }
        push_field(&mut fields, "Accept-Ranges", b"bytes");
        Self {
            etag: etag.into(),
            modified,
            len: attributes.len,
            fields: fields.freeze(),
            not_modified_fields: validators.freeze(),
            varies_by_encoding: attributes.varies_by_encoding,
            is_encoded: attributes.coding.is_some(),
        }
    }

    /// Describes the same file compressed here to `len` bytes. It has no ranges: another server, or
    /// this one after an update, may compress to different bytes.
    pub(crate) fn with_compression(&self, coding: ContentCoding, len: usize) -> Self {
        let mut etag = self.etag.to_vec();
        etag.pop();
        etag.extend_from_slice(etag_suffix(coding).as_bytes());
        etag.push(b'"');
        let (mut fields, mut validators) = (self.fields.clone(), self.not_modified_fields.clone());
        fields.remove("Accept-Ranges");
        push_field(&mut fields, "Content-Encoding", coding.as_str().as_bytes());
        for block in [&mut fields, &mut validators] {
            block.remove("ETag");
            push_field(block, "ETag", &etag);
        }
        Self {
            etag: etag.into(),
            modified: self.modified,
            len: len as u64,
            fields: fields.freeze(),
            not_modified_fields: validators.freeze(),
            varies_by_encoding: true,
            is_encoded: true,
        }
    }

    pub(crate) fn varies_by_encoding(&self) -> bool {
        self.varies_by_encoding
    }

    pub(crate) fn is_encoded(&self) -> bool {
        self.is_encoded
    }

    /// Memory use in bytes, without the content.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.etag.len() + self.fields.as_bytes().len() + self.not_modified_fields.as_bytes().len()
    }
}

/// Whether a modification time, in seconds, may be that of a real change. Tools for reproducible
/// archives set the epoch, one second after it, or the first day of the ZIP format (1980).
pub(crate) fn is_plausible_mtime(seconds: i64, now: Duration) -> bool {
    let is_past = u64::try_from(seconds).is_ok_and(|seconds| seconds <= now.as_secs());
    is_past && seconds > END_OF_1980_01_02
}

/// The end of the first of January in every time zone.
const END_OF_1980_01_02: i64 = 315_705_600;

/// The value of `Vary` where the coding is negotiated.
pub(crate) const VARY_ACCEPT_ENCODING: &[u8] = b"Accept-Encoding";

fn etag_suffix(coding: ContentCoding) -> String {
    format!("-{}", coding.as_str())
}

/// Appends a field with a checked or generated value.
pub(crate) fn push_field(fields: &mut FieldBlock, name: &'static str, value: &[u8]) {
    let pushed = fields.push(name, value);
    // Media types, dates, tags and encoded paths have no control bytes; values of the configuration
    // were checked at the start.
    debug_assert!(pushed.is_ok(), "malformed {name}");
}
