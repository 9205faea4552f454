//! Builds the client's response from a stored one: conditions, ranges, `Age`, `Cache-Status`.
//! Called by `handler` for hits and for responses just fetched.
//!
//! # Invariants
//!
//! - GET and HEAD get the same fields.
//! - A part is never sent as the whole.
//! - A body that cannot be opened is a miss, never an error.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::multipart::{self, MultipartSource};
use penstock_exchange::{Body, CacheOutcome, FileBody, HandlerName, Response};
use penstock_http::caching::{CacheStatus, evaluate_stored_preconditions, push_cache_status};
use penstock_http::{
    ByteRange, FieldBlock, Method, MultipartRanges, PreconditionResult, RangeOutcome, RequestHead,
    Status, encode_content_range, encode_unsatisfied_range, parse_http_date, select_range,
};

use crate::slices::{OpenedPart, SliceReader, SlicedContent};
use crate::store::{Hit, HitBody, MemoryBody, ObjectGone, ObjectMeta, PartialObject};

/// The handler name in the access log.
pub(crate) const HANDLER_NAME: &str = "cache";

/// The name of this cache in `Cache-Status`.
pub(crate) const CACHE_STATUS_NAME: &str = "Penstock";

/// A range that begins at or beyond this position of a partial body does not wait for it.
pub(crate) const FAR_PART_START: u64 = 8 << 20;

/// Fields added to a stored response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheHeaders<'a> {
    /// The response's current age. `None` if the back end sent or validated it for this very
    /// request (RFC 9111 §5.1).
    pub(crate) age: Option<Duration>,
    /// The `Cache-Status`; `None` if the route does not send it.
    pub(crate) status: Option<CacheStatus<'a>>,
}

/// The body of a stored response, ready to be sent.
pub(crate) enum StoredBody {
    Memory(Bytes),
    File(FileBody),
    Partial(Arc<PartialObject>),
    /// With the opened start of the requested part.
    Sliced(Arc<SlicedContent>, Option<(ByteRange, OpenedPart)>),
}

impl From<&MemoryBody> for StoredBody {
    fn from(held: &MemoryBody) -> Self {
        match held {
            MemoryBody::Bytes(bytes) => Self::Memory(bytes.clone()),
            MemoryBody::Arena(body) => Self::File(body.clone()),
        }
    }
}

impl StoredBody {
    /// Opens the body of a found object.
    ///
    /// # Errors
    /// Fails if the body is gone: a miss.
    pub(crate) async fn open(body: &HitBody) -> Result<Self, ObjectGone> {
        Ok(match body {
            HitBody::Memory(held) => held.into(),
            HitBody::Partial(partial) => Self::Partial(Arc::clone(partial)),
            HitBody::Disk(object) => Self::File(object.open().await?),
        })
    }

    fn length(&self, meta: &ObjectMeta) -> Option<u64> {
        match self {
            Self::Memory(bytes) => Some(bytes.len() as u64),
            Self::File(file) => Some(file.len.min(meta.length)),
            Self::Partial(partial) => partial.declared_length,
            Self::Sliced(content, _) => Some(content.slice_set.total_length),
        }
    }

    /// `len` bytes from `start` on, or to the end if `len` is `None`.
    pub(crate) fn into_part(self, start: u64, len: Option<u64>) -> Option<Body> {
        Some(match self {
            Self::Memory(bytes) => {
                let start = usize::try_from(start).ok()?.min(bytes.len());
                let len = len.map_or(Ok(bytes.len()), usize::try_from).ok()?;
                match bytes.slice(start..start.saturating_add(len).min(bytes.len())) {
                    part if part.is_empty() => Body::Empty,
                    part => Body::Bytes(part),
                }
            }
            Self::File(file) => Body::File(FileBody {
                start: file.start + start,
                len: len.unwrap_or_else(|| file.len.saturating_sub(start)),
                file: file.file,
            }),
            Self::Partial(partial) => Body::Stream(Box::new(partial.reader_from(start, len)?)),
            Self::Sliced(content, opened) => {
                let (span, opened) = opened.filter(|(span, _)| span.start == start)?;
                Body::Stream(Box::new(SliceReader::new(content, span, opened)))
            }
        })
    }

    /// Builds a multipart body. `None` for partial and sliced bodies.
    fn into_multipart(self, framed: MultipartRanges) -> Option<Body> {
        let whole = match self {
            Self::Memory(bytes) => MultipartSource::Memory(bytes),
            Self::File(file) => MultipartSource::File(file),
            Self::Partial(_) | Self::Sliced(..) => return None,
        };
        Some(multipart::multipart_body(whole, framed))
    }
}

/// Answers from a stored response in memory. `None` if its body is elsewhere.
pub(crate) fn respond_from_memory(
    head: &RequestHead,
    hit: &Hit,
    headers: &CacheHeaders<'_>,
) -> Option<Response> {
    let HitBody::Memory(held) = &hit.body else {
        return None;
    };
    respond_from_body(head, &hit.meta, held.into(), headers).ok()
}

/// Answers from a stored response.
///
/// # Errors
/// Fails if the body is gone: a miss.
pub(crate) async fn respond_to_hit(
    head: &RequestHead,
    hit: &Hit,
    headers: &CacheHeaders<'_>,
) -> Result<Response, ObjectGone> {
    // Its length is known without the file.
    if matches!(hit.body, HitBody::Disk(_))
        && let Some(response) =
            respond_without_body(head, &hit.meta, Some(hit.meta.length), headers)
    {
        return Ok(response);
    }
    respond_from_body(head, &hit.meta, StoredBody::open(&hit.body).await?, headers)
}

/// Whether the request wants a part that is too far ahead to wait for in a partial body.
pub(crate) fn wants_far_part(head: &RequestHead) -> bool {
    match select_range(single_field_value(head, "range"), None, u64::MAX, b"", None) {
        RangeOutcome::Part(part) => part.start >= FAR_PART_START,
        RangeOutcome::Parts(parts) => parts.iter().any(|part| part.start >= FAR_PART_START),
        RangeOutcome::Unsatisfiable => true,
        RangeOutcome::Whole => false,
    }
}

/// Answers with this body.
///
/// # Errors
/// Fails if the body is gone: a miss.
pub(crate) fn respond_from_body(
    head: &RequestHead,
    meta: &ObjectMeta,
    source: StoredBody,
    headers: &CacheHeaders<'_>,
) -> Result<Response, ObjectGone> {
    let length = source.length(meta);
    if let Some(response) = respond_without_body(head, meta, length, headers) {
        return Ok(response);
    }
    let mut fields = response_fields(meta, headers);
    match applicable_range(head, meta, &source, length) {
        RangeOutcome::Unsatisfiable => {
            let mut response = Response::with_text(
                Status::RANGE_NOT_SATISFIABLE,
                "text/plain; charset=utf-8",
                "Range not satisfiable.\n",
            );
            let mut value = Vec::with_capacity(32);
            encode_unsatisfied_range(length.unwrap_or_default(), &mut value);
            push_field(&mut response.fields, "Content-Range", &value);
            Ok(set_handler(response))
        }
        RangeOutcome::Part(ByteRange { start, len }) => {
            let mut value = Vec::with_capacity(48);
            encode_content_range(start, len, length.unwrap_or_default(), &mut value);
            push_field(&mut fields, "Content-Range", &value);
            let body = source.into_part(start, Some(len)).ok_or(ObjectGone)?;
            Ok(build_response(Status::PARTIAL_CONTENT, fields, body))
        }
        RangeOutcome::Parts(spans) => {
            let (boundary, total) = (multipart::random_boundary(), length.unwrap_or_default());
            let content_type = meta.fields.get("content-type");
            let framed = MultipartRanges::new(boundary, content_type, &spans, total);
            let framed_type = framed.content_type();
            let body = source.into_multipart(framed).ok_or(ObjectGone)?;
            fields.remove("Content-Type");
            push_field(&mut fields, "Content-Type", &framed_type);
            Ok(build_response(Status::PARTIAL_CONTENT, fields, body))
        }
        RangeOutcome::Whole => {
            let body = source.into_part(0, length).ok_or(ObjectGone)?;
            Ok(build_response(meta.status, fields, body))
        }
    }
}

/// The part of a content of `total` bytes that a request's range and conditions select:
/// `Some(None)` if the response has no content, `None` if it is the whole.
pub(crate) fn requested_part(
    head: &RequestHead,
    meta: &ObjectMeta,
    total: u64,
) -> Option<Option<ByteRange>> {
    if is_not_modified(head, meta) {
        return Some(None);
    }
    match requested_range(head, meta, total) {
        RangeOutcome::Part(part) => Some(Some(part)),
        RangeOutcome::Unsatisfiable => Some(None),
        RangeOutcome::Whole | RangeOutcome::Parts(_) => None,
    }
}

/// Builds a 304 or the response to HEAD; `None` for a response with content.
fn respond_without_body(
    head: &RequestHead,
    meta: &ObjectMeta,
    length: Option<u64>,
    headers: &CacheHeaders<'_>,
) -> Option<Response> {
    let is_not_modified = is_not_modified(head, meta);
    if !is_not_modified && head.method() != Method::Head {
        return None;
    }
    let fields = response_fields(meta, headers);
    let response = build_response(meta.status, fields, Body::Omitted(length));
    Some(match is_not_modified {
        true => into_not_modified(response),
        false => response,
    })
}

/// Whether the client's conditions say that it has the content.
fn is_not_modified(head: &RequestHead, meta: &ObjectMeta) -> bool {
    evaluate_stored_preconditions(head, meta.status, &meta.fields, meta.response_time)
        == PreconditionResult::NotModified
}

pub(crate) fn into_not_modified(mut response: Response) -> Response {
    for name in CONTENT_FIELDS {
        response.fields.remove(name);
    }
    response.status = Status::NOT_MODIFIED;
    response.body = Body::Empty;
    response
}

/// Fields omitted from a 304: they describe the content, which the client has (RFC 9110 §15.4.5).
const CONTENT_FIELDS: [&str; 5] = [
    "content-type",
    "content-encoding",
    "content-language",
    "content-disposition",
    "accept-ranges",
];

/// The requested part of a stored 200, as far as it is known without the length.
fn applicable_range(
    head: &RequestHead,
    meta: &ObjectMeta,
    source: &StoredBody,
    length: Option<u64>,
) -> RangeOutcome {
    let Some(length) = length else {
        return RangeOutcome::Whole;
    };
    let outcome = requested_range(head, meta, length);
    // Parts of a partial body would wait for each other. A content coding covers the whole body,
    // and clients could not decode it with multipart framing around it.
    let is_whole = |source: &StoredBody| {
        matches!(source, StoredBody::Partial(_)) || meta.fields.contains("content-encoding")
    };
    match outcome {
        RangeOutcome::Parts(_) if is_whole(source) => RangeOutcome::Whole,
        outcome => outcome,
    }
}

/// The requested part of a stored 200 of that length.
fn requested_range(head: &RequestHead, meta: &ObjectMeta, length: u64) -> RangeOutcome {
    if meta.status != Status::OK {
        return RangeOutcome::Whole;
    }
    let Some(asked) = single_field_value(head, "range") else {
        return RangeOutcome::Whole;
    };
    // The origin's refusal of ranges may have a reason that a cache does not know.
    let told = meta.fields.get("accept-ranges");
    if told.is_some_and(|told| told.eq_ignore_ascii_case(b"none")) {
        return RangeOutcome::Whole;
    }
    let etag = meta.fields.get("etag").unwrap_or_default();
    let modified = meta.fields.get("last-modified").and_then(parse_http_date);
    let if_range = head.field("if-range");
    select_range(Some(asked), if_range, length, etag, modified)
}

/// The fields of a stored response as sent now.
fn response_fields(meta: &ObjectMeta, headers: &CacheHeaders<'_>) -> FieldBlock {
    let mut fields = FieldBlock::with_capacity(meta.fields.as_bytes().len() + 96);
    if let Some(age) = headers.age {
        fields.push_u64("Age", age.as_secs());
    }
    fields.append(&meta.fields);
    if let Some(status) = &headers.status {
        push_cache_status(&mut fields, CACHE_STATUS_NAME, status);
    }
    fields
}

/// The value of a field that may occur once. A repeated field counts as absent.
pub(crate) fn single_field_value<'a>(head: &'a RequestHead, name: &'a str) -> Option<&'a [u8]> {
    let mut values = head.field_values(name);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn build_response(status: Status, fields: FieldBlock, body: Body) -> Response {
    let mut response = Response::new(status, body);
    response.fields = fields;
    set_handler(response)
}

fn set_handler(mut response: Response) -> Response {
    response.timing.handler = Some(HandlerName::Component(HANDLER_NAME));
    response.timing.cache = Some(CacheOutcome::Hit);
    response
}

fn push_field(fields: &mut FieldBlock, name: &'static str, value: &[u8]) {
    let pushed = fields.push(name, value);
    debug_assert!(pushed.is_ok(), "numbers are a valid value");
}
