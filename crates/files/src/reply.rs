//! What to answer about a file that exists: 200, 206, 304, 412 or 416. Pure.
//!
//! `tree` makes a [`Description`] once per file, with its fields ready to send; `handler` asks
//! [`answer`] for each request. What must stay true: GET and HEAD get the same fields; a part is
//! never sent as the whole; a request without conditions costs two clones of shared memory.

use std::time::Duration;

use penstock_exchange::{AtHand, Body, Response};
use penstock_http::{
    FieldBlock, Method, Precondition, RangeOutcome, RequestHead, Status, content_range,
    content_range_unsatisfied, evaluate, imf_fixdate, select_range,
};

use crate::resolve;

/// A file as clients see it: validators, length and fields.
#[derive(Debug)]
pub(crate) struct Description {
    /// Strong: `"<modified, nanoseconds>-<size>"`, both hexadecimal (RFC 9110 §8.8.3). Every write
    /// moves the time of modification, by at least the kernel's tick of some milliseconds, and a
    /// file is only kept in memory as long as its inode and its time of change are the same too.
    /// Neither of those is part of the tag: they differ between machines that serve the same files,
    /// and a client that is balanced between them would never have a match.
    etag: Vec<u8>,
    modified: Option<u64>,
    len: u64,
    /// For 200 and 206.
    fields: FieldBlock,
    /// For 304 (RFC 9110 §15.4.5).
    validators: FieldBlock,
}

impl Description {
    /// Describes a file by its type, its modification time since the epoch (seconds, nanoseconds)
    /// and its length, as of `now` on the wall clock.
    pub(crate) fn new(content_type: &str, modified: (i64, i64), len: u64, now: Duration) -> Self {
        let (seconds, nanos) = modified;
        let nanos = seconds
            .wrapping_mul(1_000_000_000)
            .wrapping_add(nanos)
            .cast_unsigned();
        let etag = format!("\"{nanos:x}-{len:x}\"").into_bytes();
        // RFC 9110 §8.8.2.1: no date later than that of the response.
        let modified = u64::try_from(seconds)
            .ok()
            .filter(|&seconds| seconds <= now.as_secs());
        let mut fields = FieldBlock::with_capacity(160);
        let mut validators = FieldBlock::with_capacity(96);
        push(&mut fields, "Content-Type", content_type.as_bytes());
        for block in [&mut fields, &mut validators] {
            if let Some(seconds) = modified {
                push(block, "Last-Modified", &imf_fixdate(seconds));
            }
            push(block, "ETag", &etag);
        }
        push(&mut fields, "Accept-Ranges", b"bytes");
        Self {
            etag,
            modified,
            len,
            fields: fields.freeze(),
            validators: validators.freeze(),
        }
    }

    /// Bytes of memory beside the content.
    pub(crate) fn bytes(&self) -> usize {
        self.etag.len() + self.fields.as_bytes().len() + self.validators.as_bytes().len()
    }
}

/// Content up to this size is copied behind its head, which is cheaper than counting references.
const AT_HAND_BYTES: usize = 8 * 1024;

/// Answers a GET or HEAD; `part(start, len)` makes the body.
pub(crate) fn answer(
    head: &RequestHead,
    file: &Description,
    part: impl FnOnce(u64, u64) -> Body,
) -> Response {
    match evaluate(head, &file.etag, file.modified) {
        Precondition::NotModified => {
            respond(Status::NOT_MODIFIED, file.validators.clone(), Body::Empty)
        }
        Precondition::Failed => plain(Status::PRECONDITION_FAILED, "The file has changed.\n"),
        // RFC 9110 §14.2: a Range is for GET alone.
        Precondition::Proceed if head.method() == Method::Head => respond(
            Status::OK,
            file.fields.clone(),
            Body::Omitted(Some(file.len)),
        ),
        Precondition::Proceed => answer_range(head, file, part),
    }
}

/// What the access log calls who answers with files.
pub(crate) const HANDLER: &str = "files";

/// Answers a GET or HEAD of a small file the way [`answer`] does, where no part of it and no page
/// about it is needed. The answer is lent: nothing is copied or counted.
pub(crate) fn at_hand<'a>(
    head: &RequestHead,
    file: &'a Description,
    content: &'a [u8],
) -> Option<AtHand<'a>> {
    let (status, fields, body) = match evaluate(head, &file.etag, file.modified) {
        Precondition::NotModified => (Status::NOT_MODIFIED, &file.validators, [].as_slice()),
        Precondition::Failed => return None,
        Precondition::Proceed if head.method() == Method::Get && head.field("range").is_some() => {
            return None;
        }
        Precondition::Proceed if content.len() > AT_HAND_BYTES => return None,
        Precondition::Proceed => (Status::OK, &file.fields, content),
    };
    Some(AtHand {
        status,
        fields,
        body,
        handler: HANDLER,
    })
}

/// Sends a client to the same path with a final slash.
pub(crate) fn redirect(path: &[u8], query: Option<&str>) -> Response {
    let mut fields = FieldBlock::new();
    push(
        &mut fields,
        "Location",
        &resolve::directory_location(path, query),
    );
    respond(Status::MOVED_PERMANENTLY, fields, Body::Empty)
}

fn answer_range(
    head: &RequestHead,
    file: &Description,
    part: impl FnOnce(u64, u64) -> Body,
) -> Response {
    let if_range = head.field("if-range");
    match select_range(
        only(head, "range"),
        if_range,
        file.len,
        &file.etag,
        file.modified,
    ) {
        RangeOutcome::Whole => respond(Status::OK, file.fields.clone(), part(0, file.len)),
        RangeOutcome::Part { start, len } => {
            let mut value = Vec::with_capacity(48);
            content_range(start, len, file.len, &mut value);
            let mut fields = file.fields.clone();
            push(&mut fields, "Content-Range", &value);
            respond(Status::PARTIAL_CONTENT, fields, part(start, len))
        }
        RangeOutcome::Unsatisfiable => {
            let mut value = Vec::with_capacity(32);
            content_range_unsatisfied(file.len, &mut value);
            let mut response = plain(Status::RANGE_NOT_SATISFIABLE, "The file is shorter.\n");
            push(&mut response.fields, "Content-Range", &value);
            response
        }
    }
}

/// The value of a field that may be sent once; more than one is as good as none.
fn only<'a>(head: &'a RequestHead, name: &'a str) -> Option<&'a [u8]> {
    let mut values = head.field_all(name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn plain(status: Status, text: &'static str) -> Response {
    Response::text(status, "text/plain; charset=utf-8", text)
}

fn respond(status: Status, fields: FieldBlock, body: Body) -> Response {
    let mut response = Response::new(status, body);
    response.fields = fields;
    response
}

fn push(fields: &mut FieldBlock, name: &'static str, value: &[u8]) {
    let pushed = fields.push(name, value);
    // Media types, dates, tags and encoded paths have no control bytes.
    debug_assert!(pushed.is_ok(), "malformed {name}");
}

#[cfg(test)]
mod tests;
