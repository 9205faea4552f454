//! What to answer about a file that exists: 200, 206, 304, 412 or 416.
//!
//! `handler` asks [`answer`] for each request, with the coding that `known` chose. What must stay true: GET
//! and HEAD get the same fields; a part is never sent as the whole; a request without conditions costs two
//! clones of shared memory.

use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::parts::{self, Whole};
use penstock_exchange::{AtHand, Body, FileBody, Lent, Mount, Response};
use penstock_http::{
    ByteRange, FieldBlock, Method, MultipartRanges, PreconditionResult, RangeOutcome, RequestHead,
    Status, encode_content_range, encode_unsatisfied_range, evaluate_preconditions, select_range,
};

use crate::description::{Description, VARY, push};
use crate::known::{Representation, Source};
use crate::resolve;

/// Content up to this size is copied behind its head, which is cheaper than counting references.
const AT_HAND_BYTES: usize = 8 * 1024;

/// Answers a GET or HEAD.
pub(crate) fn answer(head: &RequestHead, file: &Representation) -> Response {
    let about = &file.description;
    match evaluate_preconditions(head, &about.etag, about.modified) {
        PreconditionResult::NotModified => {
            respond(Status::NOT_MODIFIED, about.validators.clone(), Body::Empty)
        }
        PreconditionResult::Failed => {
            let text = "The file has changed.\n";
            plain(Status::PRECONDITION_FAILED, text, about)
        }
        // RFC 9110 §14.2: a Range is for GET alone.
        PreconditionResult::Proceed if head.method() == Method::Head => respond(
            Status::OK,
            about.fields.clone(),
            Body::Omitted(Some(about.len)),
        ),
        PreconditionResult::Proceed => answer_range(head, file),
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
    let (status, fields, body) = match evaluate_preconditions(head, &file.etag, file.modified) {
        PreconditionResult::NotModified => (Status::NOT_MODIFIED, &file.validators, [].as_slice()),
        PreconditionResult::Failed => return None,
        PreconditionResult::Proceed
            if head.method() == Method::Get && head.field("range").is_some() =>
        {
            return None;
        }
        PreconditionResult::Proceed if content.len() > AT_HAND_BYTES => return None,
        PreconditionResult::Proceed => (Status::OK, &file.fields, content),
    };
    Some(AtHand {
        status,
        fields,
        body: Lent::Bytes(body),
        handler: HANDLER,
    })
}

/// Sends a client to the same path with a final slash.
pub(crate) fn redirect(mount: &Mount, path: &[u8], query: Option<&str>) -> Response {
    let mut fields = FieldBlock::new();
    let location = resolve::directory_location(mount, path, query);
    push(&mut fields, "Location", &location);
    respond(Status::MOVED_PERMANENTLY, fields, Body::Empty)
}

/// The page that lists a directory.
pub(crate) fn listing(head: &RequestHead, page: &Bytes) -> Response {
    let mut fields = FieldBlock::new();
    fields.push_static("Content-Type", "text/html; charset=utf-8");
    fields.push_static("Cache-Control", "no-cache");
    // The names in it come from strangers: were one not escaped as it should be, it still could do nothing.
    fields.push_static("Content-Security-Policy", "default-src 'none'");
    let body = match head.method() {
        Method::Head => Body::Omitted(Some(page.len() as u64)),
        _ => Body::Bytes(page.clone()),
    };
    respond(Status::OK, fields, body)
}

fn answer_range(head: &RequestHead, file: &Representation) -> Response {
    let about = &file.description;
    let if_range = head.field("if-range");
    let range = only(head, "range");
    match select_range(range, if_range, about.len, &about.etag, about.modified) {
        RangeOutcome::Whole => whole(file),
        RangeOutcome::Part { start, len } => {
            let mut value = Vec::with_capacity(48);
            encode_content_range(start, len, about.len, &mut value);
            let mut fields = about.fields.clone();
            push(&mut fields, "Content-Range", &value);
            respond(Status::PARTIAL_CONTENT, fields, file.body(start, len))
        }
        // A coding would be that of the whole body, frame and all: nobody could read it.
        RangeOutcome::Parts(_) if about.is_encoded() => whole(file),
        RangeOutcome::Parts(spans) => answer_parts(file, &spans),
        RangeOutcome::Unsatisfiable => {
            let mut value = Vec::with_capacity(32);
            encode_unsatisfied_range(about.len, &mut value);
            let text = "The file is shorter.\n";
            let mut response = plain(Status::RANGE_NOT_SATISFIABLE, text, about);
            push(&mut response.fields, "Content-Range", &value);
            response
        }
    }
}

fn whole(file: &Representation) -> Response {
    let about = &file.description;
    respond(Status::OK, about.fields.clone(), file.body(0, about.len))
}

/// Several parts in one body (RFC 9110 §15.3.7.2).
fn answer_parts(file: &Representation, spans: &[ByteRange]) -> Response {
    let about = &file.description;
    let content_type = about.fields.get("content-type");
    let framed = MultipartRanges::new(parts::random(), content_type, spans, about.len);
    let mut fields = about.fields.clone();
    fields.remove("Content-Type");
    push(&mut fields, "Content-Type", &framed.content_type());
    let whole = match &file.source {
        Source::Memory(content) => Whole::Memory(content.clone()),
        Source::Disk(file) => Whole::File(FileBody {
            file: Arc::clone(file),
            start: 0,
            len: about.len,
        }),
    };
    respond(Status::PARTIAL_CONTENT, fields, parts::body(whole, framed))
}

/// The value of a field that may be sent once; more than one is as good as none.
fn only<'a>(head: &'a RequestHead, name: &'a str) -> Option<&'a [u8]> {
    let mut values = head.field_all(name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn plain(status: Status, text: &'static str, about: &Description) -> Response {
    let mut response = Response::text(status, "text/plain; charset=utf-8", text);
    if about.varies() {
        push(&mut response.fields, "Vary", VARY);
    }
    response
}

fn respond(status: Status, fields: FieldBlock, body: Body) -> Response {
    let mut response = Response::new(status, body);
    response.fields = fields;
    response
}

#[cfg(test)]
mod tests;
