//! Builds the response for an existing file: 200, 206, 304, 412 or 416.
//!
//! `handler` calls [`build_file_response`] for each request, with the coding that `file_entry`
//! selected.
//!
//! # Invariants
//!
//! - GET and HEAD get the same fields.
//! - A part is never sent as the whole.
//! - A request without conditions costs two clones of shared memory.

use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::multipart::{self, MultipartSource};
use penstock_exchange::{Body, FileBody, InlineBody, InlineResponse, Request, Response};
use penstock_http::{
    ByteRange, FieldBlock, Method, MultipartRanges, PreconditionResult, RangeOutcome, RequestHead,
    Status, encode_content_range, encode_unsatisfied_range, evaluate_preconditions, select_range,
};

use crate::description::{FileDescription, VARY_ACCEPT_ENCODING, push_field};
use crate::file_entry::{ContentSource, Representation};

/// Content up to this size is copied behind the head, which is cheaper than counting references.
const MAX_INLINE_BYTES: usize = 8 * 1024;

pub(crate) fn build_file_response(head: &RequestHead, file: &Representation) -> Response {
    let about = &file.description;
    match evaluate_preconditions(head, &about.etag, about.modified) {
        PreconditionResult::NotModified => build_response(
            Status::NOT_MODIFIED,
            about.not_modified_fields.clone(),
            Body::Empty,
        ),
        PreconditionResult::Failed => {
            let text = "The file has changed.\n";
            text_response(Status::PRECONDITION_FAILED, text, about)
        }
        // RFC 9110 §14.2: only GET has ranges.
        PreconditionResult::Proceed if head.method() == Method::Head => build_response(
            Status::OK,
            about.fields.clone(),
            Body::Omitted(Some(about.len)),
        ),
        PreconditionResult::Proceed => respond_with_range(head, file),
    }
}

pub(crate) const HANDLER_NAME: &str = "files";

/// Like [`build_file_response`] for a small file, if no range and no error text is needed. The
/// response borrows: nothing is copied or counted.
pub(crate) fn try_inline<'a>(
    head: &RequestHead,
    file: &'a FileDescription,
    content: &'a [u8],
) -> Option<InlineResponse<'a>> {
    let (status, fields, body) = match evaluate_preconditions(head, &file.etag, file.modified) {
        PreconditionResult::NotModified => (
            Status::NOT_MODIFIED,
            &file.not_modified_fields,
            [].as_slice(),
        ),
        PreconditionResult::Failed => return None,
        PreconditionResult::Proceed
            if head.method() == Method::Get && head.field("range").is_some() =>
        {
            return None;
        }
        PreconditionResult::Proceed if content.len() > MAX_INLINE_BYTES => return None,
        PreconditionResult::Proceed => (Status::OK, &file.fields, content),
    };
    Some(InlineResponse {
        status,
        fields,
        body: InlineBody::Bytes(body),
        handler: HANDLER_NAME,
    })
}

pub(crate) fn redirect_to_directory(request: &Request) -> Response {
    let mut fields = FieldBlock::new();
    let location = request
        .mount
        .directory_location(request.path(), request.query());
    push_field(&mut fields, "Location", location.as_bytes());
    build_response(Status::MOVED_PERMANENTLY, fields, Body::Empty)
}

pub(crate) fn respond_with_listing(head: &RequestHead, page: &Bytes) -> Response {
    let mut fields = FieldBlock::new();
    fields.push_static("Content-Type", "text/html; charset=utf-8");
    fields.push_static("Cache-Control", "no-cache");
    // Names are untrusted: an escaping error would still have no effect.
    fields.push_static("Content-Security-Policy", "default-src 'none'");
    let body = match head.method() {
        Method::Head => Body::Omitted(Some(page.len() as u64)),
        _ => Body::Bytes(page.clone()),
    };
    build_response(Status::OK, fields, body)
}

fn respond_with_range(head: &RequestHead, file: &Representation) -> Response {
    let about = &file.description;
    let if_range = head.field("if-range");
    let range = single_field(head, "range");
    match select_range(range, if_range, about.len, &about.etag, about.modified) {
        RangeOutcome::Whole => respond_with_whole(file),
        RangeOutcome::Part(ByteRange { start, len }) => {
            let mut value = Vec::with_capacity(48);
            encode_content_range(start, len, about.len, &mut value);
            let mut fields = about.fields.clone();
            push_field(&mut fields, "Content-Range", &value);
            build_response(Status::PARTIAL_CONTENT, fields, file.body(start, len))
        }
        // A content coding covers the whole body, and clients could not decode it with multipart
        // framing around it.
        RangeOutcome::Parts(_) if about.is_encoded() => respond_with_whole(file),
        RangeOutcome::Parts(spans) => respond_with_parts(file, &spans),
        RangeOutcome::Unsatisfiable => {
            let mut value = Vec::with_capacity(32);
            encode_unsatisfied_range(about.len, &mut value);
            let text = "The file is shorter.\n";
            let mut response = text_response(Status::RANGE_NOT_SATISFIABLE, text, about);
            push_field(&mut response.fields, "Content-Range", &value);
            response
        }
    }
}

fn respond_with_whole(file: &Representation) -> Response {
    let about = &file.description;
    build_response(Status::OK, about.fields.clone(), file.body(0, about.len))
}

/// Responds with several parts in one body (RFC 9110 §15.3.7.2).
fn respond_with_parts(file: &Representation, spans: &[ByteRange]) -> Response {
    let about = &file.description;
    let content_type = about.fields.get("content-type");
    let framed = MultipartRanges::new(multipart::random_boundary(), content_type, spans, about.len);
    let mut fields = about.fields.clone();
    fields.remove("Content-Type");
    push_field(&mut fields, "Content-Type", &framed.content_type());
    let whole = match &file.source {
        ContentSource::Memory(content) => MultipartSource::Memory(content.clone()),
        ContentSource::Disk(file) => MultipartSource::File(FileBody {
            file: Arc::clone(file),
            start: 0,
            len: about.len,
        }),
    };
    build_response(
        Status::PARTIAL_CONTENT,
        fields,
        multipart::multipart_body(whole, framed),
    )
}

/// The value of a field that may occur once. A repeated field counts as absent.
fn single_field<'a>(head: &'a RequestHead, name: &'a str) -> Option<&'a [u8]> {
    let mut values = head.field_values(name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn text_response(status: Status, text: &'static str, about: &FileDescription) -> Response {
    let mut response = Response::with_text(status, "text/plain; charset=utf-8", text);
    if about.varies_by_encoding() {
        push_field(&mut response.fields, "Vary", VARY_ACCEPT_ENCODING);
    }
    response
}

fn build_response(status: Status, fields: FieldBlock, body: Body) -> Response {
    let mut response = Response::new(status, body);
    response.fields = fields;
    response
}

#[cfg(test)]
mod tests;
