//! The publish API: `{"items": [...]}` becomes publications.
//!
//! Pure: the admin listener and `penstock publish` bring the body, bounded before. Each item has a
//! channel and at least one format: `http-stream`, `http-response`, `ws-message`, or Penstock's
//! own `event`, in `formats` or beside the channel.
//!
//! # Invariants
//! - If one item is invalid, none is published, and the error names the item and the key.

use bytes::Bytes;
use json_patch::{Patch, PatchOperation};
use penstock_exchange::field_policy::{FieldClass, classify_field, is_internal};
use penstock_http::websocket::code;
use penstock_http::{FieldBlock, Status};
use penstock_hub::{
    Content, EventPart, LongPollResponse, Namespace, NamespaceError, Publication, ResponsePart,
    StreamPart, WebSocketPart,
};
use serde_json::Value;
use thiserror::Error;

use super::json::{self, JsonShapeError, Object};

/// Why nothing was published.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PublishError {
    /// It cannot be read.
    #[error("the body is no JSON: {0}")]
    InvalidJson(String),
    /// More than a request may have.
    #[error("`items` may have {MAX_ITEMS} items at once, not {0}")]
    TooManyItems(usize),
    /// Something else than expected.
    #[error(transparent)]
    InvalidShape(#[from] JsonShapeError),
    /// The namespace of the channel is ambiguous.
    #[error("items[{index}]: {error}")]
    Namespace {
        /// Which item.
        index: usize,
        /// Why not.
        error: NamespaceError,
    },
}

/// Items of one request.
const MAX_ITEMS: usize = 10_000;

/// Content filters of one message: more than there are kinds of them.
const MAX_CONTENT_FILTERS: usize = 10;

/// Each copy of a patch may double the document that it changes, for each waiting client.
const MAX_PATCH_COPIES: usize = 4;

/// What a control frame of a WebSocket carries at most (RFC 6455 §5.5).
const MAX_CONTROL_BYTES: usize = 125;

/// The publications in the body of a request to publish, in its order. `resolve` finds the
/// namespace of each from the name that the item says, if it says one.
///
/// # Errors
/// What does not fit, with its place; nothing is to be published then.
pub fn parse_publications(
    body: &[u8],
    resolve: impl Fn(Option<&str>) -> Result<Namespace, NamespaceError>,
) -> Result<Vec<Publication>, PublishError> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| PublishError::InvalidJson(error.to_string()))?;
    let all = json::as_object(&value)?;
    if json::get(all, "items").is_none() {
        return Err(JsonShapeError::new("items", "a list").into());
    }
    let items = json::list(all, "items")?;
    if items.len() > MAX_ITEMS {
        return Err(PublishError::TooManyItems(items.len()));
    }
    let read = |(index, value): (usize, &Value)| {
        let misfit = |misfit: JsonShapeError| {
            PublishError::InvalidShape(misfit.at_index(index).within_key("items"))
        };
        let object = json::as_object(value).map_err(misfit)?;
        let mut publication = parse_item(object).map_err(misfit)?;
        let namespace = json::text(object, "namespace").map_err(misfit)?;
        let namespace =
            resolve(namespace).map_err(|error| PublishError::Namespace { index, error })?;
        publication.channel = namespace.channel_key(&publication.channel);
        Ok(publication)
    };
    items.iter().enumerate().map(read).collect()
}

fn parse_item(object: &Object) -> Result<Publication, JsonShapeError> {
    let channel = json::text(object, "channel")?.filter(|name| !name.is_empty());
    let channel = channel.ok_or_else(|| JsonShapeError::new("channel", "a channel's name"))?;
    // Counted elsewhere; it only has to be a number.
    json::number(object, "size")?;
    let mut publication = Publication {
        channel: channel.into(),
        id: json::text(object, "id")?.map(Into::into),
        prev_id: json::text(object, "prev-id")?.map(Into::into),
        allows_any_order: json::flag(object, "no-seq")?,
        meta: json::pairs(object, "meta")?,
        ..Publication::default()
    };
    let read = match json::object(object, "formats")? {
        Some(inner) => {
            parse_formats(inner, &mut publication).map_err(|misfit| misfit.within_key("formats"))?
        }
        None => parse_formats(object, &mut publication)?,
    };
    match read {
        0 => Err(JsonShapeError::new(
            "formats",
            "at least one of http-stream, http-response, ws-message and event",
        )),
        _ => Ok(publication),
    }
}

/// Reads the formats and counts them.
fn parse_formats(from: &Object, publication: &mut Publication) -> Result<usize, JsonShapeError> {
    let mut count = 0;
    let mut format = |key: &str| {
        let found = json::object(from, key)?;
        count += usize::from(found.is_some());
        Ok(found)
    };
    if let Some(object) = format(HTTP_STREAM)? {
        let part = parse_stream(object).map_err(|misfit| misfit.within_key(HTTP_STREAM))?;
        publication.stream = Some(part);
    }
    if let Some(object) = format(HTTP_RESPONSE)? {
        let part = parse_response(object).map_err(|misfit| misfit.within_key(HTTP_RESPONSE))?;
        publication.response = Some(part);
    }
    if let Some(object) = format(WS_MESSAGE)? {
        publication.websocket =
            parse_websocket(object).map_err(|misfit| misfit.within_key(WS_MESSAGE))?;
    }
    if let Some(object) = format(SSE_EVENT)? {
        let part = parse_event(object).map_err(|misfit| misfit.within_key(SSE_EVENT))?;
        publication.event = Some(part);
    }
    Ok(count)
}

const HTTP_STREAM: &str = "http-stream";
const HTTP_RESPONSE: &str = "http-response";
const WS_MESSAGE: &str = "ws-message";
const SSE_EVENT: &str = "event";

/// The action of an item on its subscribers.
enum PublishAction {
    Send,
    /// There is something new to be fetched.
    Hint,
    Close,
}

fn parse_action(object: &Object) -> Result<PublishAction, JsonShapeError> {
    match json::text(object, "action")? {
        None | Some("send") => Ok(PublishAction::Send),
        Some("hint" | "refresh") => Ok(PublishAction::Hint),
        Some("close") => Ok(PublishAction::Close),
        Some(_) => Err(JsonShapeError::new(
            "action",
            "`send`, `hint`, `refresh` or `close`",
        )),
    }
}

fn parse_stream(object: &Object) -> Result<StreamPart, JsonShapeError> {
    match parse_action(object)? {
        PublishAction::Hint => Ok(StreamPart::Hint),
        PublishAction::Close => Ok(StreamPart::Close),
        PublishAction::Send => {
            let bytes = json::bytes(object, "content")?;
            let bytes =
                bytes.ok_or_else(|| JsonShapeError::new("content", "a text (or content-bin)"))?;
            Ok(StreamPart::Send(parse_content(object, bytes)?))
        }
    }
}

fn parse_response(object: &Object) -> Result<ResponsePart, JsonShapeError> {
    match parse_action(object)? {
        PublishAction::Hint => Ok(ResponsePart::Hint),
        PublishAction::Close => Ok(ResponsePart::Close),
        PublishAction::Send => {
            let status = parse_status(object)?.unwrap_or(Status::OK);
            // Penstock has its own; this only has to be a text.
            json::text(object, "reason")?;
            let (bytes, is_patch) = match json::bytes(object, "body")? {
                Some(bytes) => (bytes, false),
                None => (parse_patch(object)?, true),
            };
            Ok(ResponsePart::Send(Box::new(LongPollResponse {
                status,
                fields: parse_headers(object)?.freeze(),
                body: parse_content(object, bytes)?,
                is_patch,
            })))
        }
    }
}

/// A JSON Patch (RFC 6902), checked and as text.
fn parse_patch(object: &Object) -> Result<Bytes, JsonShapeError> {
    const KEY: &str = "body-patch";
    let Some(value) = json::get(object, KEY) else {
        return Err(JsonShapeError::new(
            "body",
            "a text (or body-bin, or body-patch)",
        ));
    };
    let checked = serde_json::from_value::<Patch>(value.clone());
    let patch = checked.map_err(|_| JsonShapeError::new(KEY, "a JSON Patch"))?;
    let is_copy = |operation: &&PatchOperation| matches!(operation, PatchOperation::Copy(_));
    if patch.iter().filter(is_copy).count() > MAX_PATCH_COPIES {
        return Err(JsonShapeError::new(KEY, "a JSON Patch of at most 4 copies"));
    }
    Ok(value.to_string().into())
}

fn parse_websocket(object: &Object) -> Result<Option<WebSocketPart>, JsonShapeError> {
    match parse_action(object)? {
        // A WebSocket has nothing that it could fetch.
        PublishAction::Hint => Ok(None),
        PublishAction::Close => parse_close(object).map(Some),
        PublishAction::Send => {
            let kind = json::text(object, "type")?;
            let is_coded = json::get(object, "content-bin").is_some();
            let bytes = json::bytes(object, "content")?;
            let part = match kind.unwrap_or(if is_coded { "binary" } else { "text" }) {
                "ping" => WebSocketPart::Ping(check_control_payload(bytes)?),
                "pong" => WebSocketPart::Pong(check_control_payload(bytes)?),
                kind @ ("text" | "binary") => {
                    let missing = || JsonShapeError::new("content", "a text (or content-bin)");
                    let bytes = bytes.ok_or_else(missing)?;
                    if kind == "text" && std::str::from_utf8(&bytes).is_err() {
                        return Err(JsonShapeError::new(
                            "content-bin",
                            "UTF-8 in a message of text",
                        ));
                    }
                    let content = parse_content(object, bytes)?;
                    match kind {
                        "text" => WebSocketPart::Text(content),
                        _ => WebSocketPart::Binary(content),
                    }
                }
                _ => {
                    let expected = "`text`, `binary`, `ping` or `pong`";
                    return Err(JsonShapeError::new("type", expected));
                }
            };
            Ok(Some(part))
        }
    }
}

fn check_control_payload(bytes: Option<Bytes>) -> Result<Bytes, JsonShapeError> {
    let bytes = bytes.unwrap_or_default();
    match bytes.len() > MAX_CONTROL_BYTES {
        true => Err(JsonShapeError::new("content", "at most 125 bytes")),
        false => Ok(bytes),
    }
}

/// RFC 6455 §5.5.1: the code takes two bytes of a frame of control.
fn parse_close(object: &Object) -> Result<WebSocketPart, JsonShapeError> {
    let code = match json::number(object, "code")? {
        None => code::NORMAL_CLOSURE,
        Some(number) => u16::try_from(number)
            .ok()
            .filter(|code| code::is_sendable(*code))
            .ok_or_else(|| JsonShapeError::new("code", "a code that may be sent"))?,
    };
    let reason = json::text(object, "reason")?.unwrap_or_default();
    if reason.len() > MAX_CONTROL_BYTES - 2 {
        return Err(JsonShapeError::new("reason", "at most 123 bytes"));
    }
    Ok(WebSocketPart::Close {
        code,
        reason: reason.into(),
    })
}

fn parse_event(object: &Object) -> Result<EventPart, JsonShapeError> {
    let data = json::text(object, "data")?;
    Ok(EventPart {
        event: json::text(object, "event")?.map(Into::into),
        data: data
            .ok_or_else(|| JsonShapeError::new("data", "a text"))?
            .into(),
        retry: json::number(object, "retry")?,
    })
}

/// Bytes with the filters that change them.
fn parse_content(object: &Object, bytes: Bytes) -> Result<Content, JsonShapeError> {
    const KEY: &str = "content-filters";
    let filters = json::texts(object, KEY)?;
    match filters.len() > MAX_CONTENT_FILTERS {
        true => Err(JsonShapeError::new(KEY, "at most 10 filters")),
        false => Ok(Content { bytes, filters }),
    }
}

/// The status of a response to be sent.
pub(super) fn parse_status(object: &Object) -> Result<Option<Status>, JsonShapeError> {
    let Some(code) = json::number(object, "code")? else {
        return Ok(None);
    };
    let status = u16::try_from(code).ok().and_then(Status::new);
    let status = status.filter(|status| !status.is_informational());
    let status = status.ok_or_else(|| JsonShapeError::new("code", "a code from 200 to 599"))?;
    Ok(Some(status))
}

/// The fields of a response to be sent, as a list of pairs or as an object. Fields of the hop, of
/// GRIP and for the front end (`X-Accel-*`, `X-Sendfile`) are left out: a publisher may not set
/// them.
pub(super) fn parse_headers(object: &Object) -> Result<FieldBlock, JsonShapeError> {
    const KEY: &str = "headers";
    let mut fields = FieldBlock::new();
    let mut push = |name: &str, value: &Value| {
        let value = value
            .as_str()
            .ok_or_else(|| JsonShapeError::new("", "a text"))?;
        if classify_field(name) == FieldClass::HopByHop || is_internal(name.as_bytes()) {
            return Ok(());
        }
        let pushed = fields.push(name, value.as_bytes());
        pushed.map_err(|_| JsonShapeError::new("", "a valid field"))
    };
    match json::get(object, KEY) {
        None => {}
        Some(Value::Array(list)) => {
            for (index, element) in list.iter().enumerate() {
                let pushed = match element.as_array().map(Vec::as_slice) {
                    Some([Value::String(name), value]) => push(name, value),
                    _ => Err(JsonShapeError::new("", "a pair of texts")),
                };
                pushed.map_err(|misfit| misfit.at_index(index).within_key(KEY))?;
            }
        }
        Some(Value::Object(all)) => {
            for (name, value) in all {
                push(name, value).map_err(|misfit| misfit.within_key(name).within_key(KEY))?;
            }
        }
        Some(_) => return Err(JsonShapeError::new(KEY, "a list of pairs, or an object")),
    }
    Ok(fields)
}

#[cfg(test)]
mod tests;
