//! A file as clients see it: its validators and its fields, ready to send. Pure.
//!
//! `tree` makes a [`Description`] once for each version of a file, `reply` sends it. What must stay true:
//! every coding of a file has a strong tag of its own; what depends on `Accept-Encoding` says so.

use std::time::Duration;

use bytes::Bytes;
use penstock_config::Coding;
use penstock_http::{FieldBlock, imf_fixdate};

/// Validators, length and fields of one coding of a file.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    /// Strong: `"<modified, nanoseconds>-<size>"`, both hexadecimal, and `-<coding>` behind it if it has
    /// one (RFC 9110 §8.8.3). Every write moves the time of modification, by at least the kernel's tick
    /// of some milliseconds, and a file is only kept in memory as long as its inode and its time of
    /// change are the same too. Neither of those is part of the tag: they differ between machines that
    /// serve the same files, and a client that is balanced between them would never have a match.
    pub(crate) etag: Bytes,
    pub(crate) modified: Option<u64>,
    pub(crate) len: u64,
    /// For 200 and 206.
    pub(crate) fields: FieldBlock,
    /// For 304 (RFC 9110 §15.4.5).
    pub(crate) validators: FieldBlock,
    varies: bool,
    is_encoded: bool,
}

/// What a description is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) content_type: &'a str,
    /// Time of modification since the epoch: seconds, nanoseconds.
    pub(crate) modified: (i64, i64),
    /// Length in bytes.
    pub(crate) len: u64,
    /// The coding that the file holds.
    pub(crate) coding: Option<Coding>,
    /// Whether the file has, or may be given, another coding.
    pub(crate) varies: bool,
    pub(crate) cache_control: Option<&'a str>,
    /// The wall clock's time since the epoch.
    pub(crate) now: Duration,
}

impl Description {
    pub(crate) fn new(facts: &Facts<'_>) -> Self {
        let (seconds, nanos) = facts.modified;
        let nanos = seconds
            .wrapping_mul(1_000_000_000)
            .wrapping_add(nanos)
            .cast_unsigned();
        let suffix = facts.coding.map_or(String::new(), suffix);
        let etag = format!("\"{nanos:x}-{:x}{suffix}\"", facts.len).into_bytes();
        // RFC 9110 §8.8.2.1: no date later than that of the response.
        let modified = u64::try_from(seconds)
            .ok()
            .filter(|&seconds| seconds <= facts.now.as_secs());
        let mut fields = FieldBlock::with_capacity(256);
        let mut validators = FieldBlock::with_capacity(192);
        push(&mut fields, "Content-Type", facts.content_type.as_bytes());
        if let Some(coding) = facts.coding {
            push(&mut fields, "Content-Encoding", coding.as_str().as_bytes());
        }
        for block in [&mut fields, &mut validators] {
            if let Some(seconds) = modified {
                push(block, "Last-Modified", &imf_fixdate(seconds));
            }
            push(block, "ETag", &etag);
            if facts.varies {
                push(block, "Vary", VARY);
            }
            if let Some(value) = facts.cache_control {
                push(block, "Cache-Control", value.as_bytes());
            }
        }
        push(&mut fields, "Accept-Ranges", b"bytes");
        Self {
            etag: etag.into(),
            modified,
            len: facts.len,
            fields: fields.freeze(),
            validators: validators.freeze(),
            varies: facts.varies,
            is_encoded: facts.coding.is_some(),
        }
    }

    /// The same file compressed here to `len` bytes. There are no ranges of that: another server, or
    /// this one after an update, may compress it to other bytes.
    pub(crate) fn made(&self, coding: Coding, len: usize) -> Self {
        let mut etag = self.etag.to_vec();
        etag.pop();
        etag.extend_from_slice(suffix(coding).as_bytes());
        etag.push(b'"');
        let (mut fields, mut validators) = (self.fields.clone(), self.validators.clone());
        fields.remove("Accept-Ranges");
        push(&mut fields, "Content-Encoding", coding.as_str().as_bytes());
        for block in [&mut fields, &mut validators] {
            block.remove("ETag");
            push(block, "ETag", &etag);
        }
        Self {
            etag: etag.into(),
            modified: self.modified,
            len: len as u64,
            fields: fields.freeze(),
            validators: validators.freeze(),
            varies: true,
            is_encoded: true,
        }
    }

    /// Whether an answer depends on `Accept-Encoding`.
    pub(crate) fn varies(&self) -> bool {
        self.varies
    }

    /// Whether it has a content coding.
    pub(crate) fn is_encoded(&self) -> bool {
        self.is_encoded
    }

    /// Bytes of memory beside the content.
    pub(crate) fn bytes(&self) -> usize {
        self.etag.len() + self.fields.as_bytes().len() + self.validators.as_bytes().len()
    }
}

/// The value of `Vary` where the coding is negotiated.
pub(crate) const VARY: &[u8] = b"Accept-Encoding";

fn suffix(coding: Coding) -> String {
    format!("-{}", coding.as_str())
}

/// Adds a field whose value was checked or made here.
pub(crate) fn push(fields: &mut FieldBlock, name: &'static str, value: &[u8]) {
    let pushed = fields.push(name, value);
    // Media types, dates, tags and encoded paths have no control bytes; what the configuration says was
    // checked at the start.
    debug_assert!(pushed.is_ok(), "malformed {name}");
}
