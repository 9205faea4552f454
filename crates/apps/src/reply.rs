//! From the frame that begins a worker's response to the client's response.
//!
//! Both drivers pass a [`HeadFrame`]. Framing and connection fields are the front end's: an application's
//! `Content-Length` becomes a number that is enforced, `Transfer-Encoding` and the like are dropped
//! (PEP 3333: applications must not send hop-by-hop fields; old ones do). Fields for the front end
//! (`X-Accel-*`, `X-Sendfile`) are obeyed if the route grants that, and no client sees them.

use std::borrow::Cow;

use penstock_exchange::field_policy::is_internal_field;
use penstock_exchange::{
    AccelFields, Body, Fault, FaultKind, FrontEndInstructions, InternalRedirect, Reply,
    RequestTiming, Response, SendfileGrant, is_accel_field,
};
use penstock_http::{FieldBlock, parse_content_length};
use penstock_wire::{ResponseHeadView, WireError};

/// A response whose body is not decided yet.
#[derive(Debug)]
pub(crate) struct ReplyHead {
    pub(crate) response: Response,
    /// The application's `Content-Length`.
    pub(crate) declared: Option<u64>,
    /// Not to be buffered: an event stream, or `X-Accel-Buffering: no`.
    pub(crate) is_unbuffered: bool,
    /// Whether the client gets a body at all.
    pub(crate) wants_body: bool,
    /// The internal redirect that replaces the response.
    pub(crate) redirect: Option<Box<InternalRedirect>>,
}

/// The frame that begins a response, of either driver.
#[derive(Debug)]
pub(crate) struct HeadFrame<'b> {
    pub(crate) head: Result<ResponseHeadView<'b>, WireError>,
    pub(crate) body: &'b [u8],
    /// Length of the whole body, when this frame has it.
    pub(crate) body_len: Option<u32>,
    /// The whole frame is here, and no other follows.
    pub(crate) end: bool,
}

/// What the head of a response leads to.
#[derive(Debug)]
pub(crate) enum ResponseStart {
    /// A reply without further bytes; what still comes of the response is dropped.
    Complete(Result<Reply, Fault>),
    /// A body that still comes, with its length if the frames say it.
    Streamed(ReplyHead, Option<u64>),
}

impl HeadFrame<'_> {
    /// Begins the response to a request, `is_head` or not, that may name another body if it has
    /// the `grant`.
    pub(crate) fn start_response(
        &self,
        is_head: bool,
        timing: RequestTiming,
        grant: Option<&SendfileGrant>,
    ) -> ResponseStart {
        self.try_start(is_head, timing, grant)
            .unwrap_or_else(|fault| ResponseStart::Complete(Err(fault)))
    }

    fn try_start(
        &self,
        is_head: bool,
        timing: RequestTiming,
        grant: Option<&SendfileGrant>,
    ) -> Result<ResponseStart, Fault> {
        let parts = match &self.head {
            Ok(parts) => parts,
            Err(error) => {
                let fault = app_protocol_error(format!("response head: {error}"));
                return Err(fault.with_timing(timing));
            }
        };
        let mut head = build_reply_head(parts, is_head, timing, grant)?;
        let length = self.body_len.map(u64::from);
        if let Some(redirect) = head.redirect.take() {
            return Ok(ResponseStart::Complete(Ok(Reply::Redirect(redirect))));
        }
        if !head.wants_body {
            let length = head.declared.or_else(|| length.filter(|len| *len > 0));
            head.response.body = Body::Omitted(length);
            return Ok(ResponseStart::Complete(Ok(head.response.into())));
        }
        if self.end && length == Some(self.body.len() as u64) {
            let response = build_whole_response(head, self.body)?;
            return Ok(ResponseStart::Complete(Ok(response.into())));
        }
        check_declared_length(&head, length)?;
        Ok(ResponseStart::Streamed(head, length))
    }
}

/// Builds the client's head.
///
/// # Errors
/// A `Content-Length` that is not one number, or a redirect that may not be followed.
pub(crate) fn build_reply_head(
    parts: &ResponseHeadView<'_>,
    is_head: bool,
    timing: RequestTiming,
    grant: Option<&SendfileGrant>,
) -> Result<ReplyHead, Fault> {
    let mut fields = FieldBlock::with_capacity(256);
    let mut declared = None;
    let mut is_unbuffered = false;
    let mut instructions = FrontEndInstructions::None;
    let mut accel = None;
    for (name, value) in parts.fields {
        let disables_buffering =
            name.eq_ignore_ascii_case(b"x-accel-buffering") && value.eq_ignore_ascii_case(b"no");
        if disables_buffering || is_sent_to_client(name) {
            is_unbuffered |= disables_buffering
                || name.eq_ignore_ascii_case(b"content-type")
                    && value
                        .get(..17)
                        .is_some_and(|t| t.eq_ignore_ascii_case(b"text/event-stream"));
            if is_internal_field(name) {
                instructions = FrontEndInstructions::ForThisServer;
            }
            if let Err(error) = fields.push(name, value) {
                let name = String::from_utf8_lossy(name);
                let cause = format!("response field `{name}`: {error}");
                return Err(app_protocol_error(cause).with_timing(timing));
            }
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = parse_content_length(value);
            if length.is_none() || declared.is_some_and(|earlier| Some(earlier) != length) {
                let text = String::from_utf8_lossy(value).into_owned();
                return Err(
                    app_protocol_error(format!("response Content-Length `{text}`"))
                        .with_timing(timing),
                );
            }
            declared = length;
        } else {
            AccelFields::read_field(&mut accel, name, value);
        }
    }
    let mut response = Response::new(parts.status, Body::Empty);
    response.fields = fields;
    response.timing = timing;
    response.instructions = instructions;
    let mut redirect = None;
    if let Some(accel) = accel
        && grant.is_some()
    {
        response.max_rate = accel.body_rate();
        let found = accel.internal_redirect(grant, &response.fields, &response.timing);
        let found =
            found.map_err(|cause| app_protocol_error(cause).with_timing(response.timing.clone()));
        redirect = found?.map(Box::new);
    }
    let wants_body = !is_head && !parts.status.forbids_body();
    Ok(ReplyHead {
        response,
        declared,
        is_unbuffered,
        wants_body,
        redirect,
    })
}

/// Whether a field of that name is sent to the client unchanged.
pub(crate) fn is_sent_to_client(name: &[u8]) -> bool {
    if is_accel_field(name) {
        // For a cache in front of this; edge takes it out.
        return name.eq_ignore_ascii_case(b"x-accel-expires");
    }
    !is_dropped(name)
}

/// Whether a field of the application is not passed on. By its length first: nearly all are passed.
fn is_dropped(name: &[u8]) -> bool {
    let is_one = |known: &[&[u8]]| known.iter().any(|known| known.eq_ignore_ascii_case(name));
    match name.len() {
        2 => is_one(&[b"te"]),
        7 => is_one(&[b"trailer", b"upgrade"]),
        10 => is_one(&[b"connection", b"keep-alive"]),
        14 => is_one(&[b"content-length"]),
        16 => is_one(&[b"proxy-connection"]),
        17 => is_one(&[b"transfer-encoding"]),
        _ => false,
    }
}

/// Builds a response whose whole body came with its head.
///
/// # Errors
/// When the application declared another length.
fn build_whole_response(head: ReplyHead, body: &[u8]) -> Result<Response, Fault> {
    check_declared_length(&head, Some(body.len() as u64))?;
    let mut response = head.response;
    if !body.is_empty() {
        response.body = Body::Bytes(bytes::Bytes::copy_from_slice(body));
    }
    Ok(response)
}

/// Compares the declared length with the body's.
///
/// # Errors
/// When they differ: the client gets a 502 rather than a cut or an overlong body.
pub(crate) fn check_declared_length(head: &ReplyHead, actual: Option<u64>) -> Result<(), Fault> {
    match (head.declared, actual) {
        (Some(declared), Some(actual)) if declared != actual => {
            let cause = format!("response body of {actual} bytes, Content-Length {declared}");
            Err(app_protocol_error(cause).with_timing(head.response.timing.clone()))
        }
        _ => Ok(()),
    }
}

/// The fault of an application that breaks its interface's rules, or HTTP's.
pub(crate) fn app_protocol_error(cause: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(FaultKind::AppProtocolError, cause)
}

#[cfg(test)]
mod tests;
