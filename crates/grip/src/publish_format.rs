//! The publish API: `{"items": [...]}` becomes publications.
//!
//! Pure: the admin API brings the body, bounded before; `penstock publish` is one of its clients.
//! Each item has a channel and at least one format: `http-stream`, `http-response`, `ws-message`,
//! or Penstock's own `event`, in `formats` or beside the channel.
//!
//! # Invariants
//! - If one item is invalid, none is published, and the error names the item and the key.

use std::sync::Arc;

use bytes::Bytes;
use json_patch::{Patch, PatchOperation};
use penstock_exchange::field_policy::{FieldClass, classify_field, is_internal_field};
use penstock_http::websocket::close_code;
use penstock_http::{FieldBlock, Status};
use penstock_hub::{
    Content, LongPollAction, LongPollResponse, MESSAGE_ID_EXPECTED, Namespace, NamespaceError,
    Publication, PublishedEvent, StreamAction, WebSocketAction, is_valid_message_id,
};
use serde_json::Value;
use thiserror::Error;

use super::json::{JsonNode, JsonObject, JsonShapeError};

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
    let all = JsonNode::new(&value).as_object()?;
    let items = all
        .get("items")
        .ok_or_else(|| all.shape_error_at("items", "a list"))?;
    let count = items.value().as_array().map_or(0, Vec::len);
    if count > MAX_ITEMS {
        return Err(PublishError::TooManyItems(count));
    }
    items.read_items(|index, item| {
        let object = item.as_object()?;
        let mut publication = parse_item(&object)?;
        let namespace = resolve(object.get_text("namespace")?);
        let namespace = namespace.map_err(|error| PublishError::Namespace { index, error })?;
        publication.channel = namespace.channel_key(&publication.channel);
        Ok(publication)
    })
}

fn parse_item(object: &JsonObject<'_>) -> Result<Publication, JsonShapeError> {
    let channel = object.get_text("channel")?.filter(|name| !name.is_empty());
    let channel = channel.ok_or_else(|| object.shape_error_at("channel", "a channel's name"))?;
    // Counted elsewhere; it only has to be a number.
    object.get_number("size")?;
    let mut publication = Publication {
        channel: channel.into(),
        id: parse_message_id(object, "id")?,
        prev_id: parse_message_id(object, "prev-id")?,
        allows_any_order: object.get_bool("no-seq")?,
        meta: object.get_pairs("meta")?,
        ..Publication::default()
    };
    let formats = object.get_object("formats")?;
    match parse_formats(&formats.unwrap_or(*object), &mut publication)? {
        false => Err(object.shape_error_at(
            "formats",
            "at least one of http-stream, http-response, ws-message and event",
        )),
        true => Ok(publication),
    }
}

/// The id of a message; an empty one counts as none.
fn parse_message_id(
    object: &JsonObject<'_>,
    key: &str,
) -> Result<Option<Arc<str>>, JsonShapeError> {
    let id = object.get_text(key)?.filter(|id| !id.is_empty());
    match id.is_none_or(is_valid_message_id) {
        true => Ok(id.map(Into::into)),
        false => Err(object.shape_error_at(key, MESSAGE_ID_EXPECTED)),
    }
}

/// Reads the formats; whether there is any.
fn parse_formats(
    formats: &JsonObject<'_>,
    publication: &mut Publication,
) -> Result<bool, JsonShapeError> {
    let stream = formats.get_object("http-stream")?;
    let response = formats.get_object("http-response")?;
    let websocket = formats.get_object("ws-message")?;
    let event = formats.get_object("event")?;
    publication.stream = stream.as_ref().map(parse_stream).transpose()?;
    publication.response = response.as_ref().map(parse_response).transpose()?;
    publication.websocket = match &websocket {
        Some(object) => parse_websocket(object)?,
        None => None,
    };
    publication.event = event.as_ref().map(parse_event).transpose()?;
    Ok(stream.is_some() || response.is_some() || websocket.is_some() || event.is_some())
}

enum PublishAction {
    Send,
    /// There is something new to be fetched.
    Hint,
    Close,
}

fn parse_action(object: &JsonObject<'_>) -> Result<PublishAction, JsonShapeError> {
    match object.get_text("action")? {
        None | Some("send") => Ok(PublishAction::Send),
        Some("hint" | "refresh") => Ok(PublishAction::Hint),
        Some("close") => Ok(PublishAction::Close),
        Some(_) => Err(object.shape_error_at("action", "`send`, `hint`, `refresh` or `close`")),
    }
}

fn parse_stream(object: &JsonObject<'_>) -> Result<StreamAction, JsonShapeError> {
    Ok(match parse_action(object)? {
        PublishAction::Hint => StreamAction::Hint,
        PublishAction::Close => StreamAction::Close,
        PublishAction::Send => {
            StreamAction::Send(parse_content(object, object.get_bytes("content")?)?)
        }
    })
}

fn parse_response(object: &JsonObject<'_>) -> Result<LongPollAction, JsonShapeError> {
    match parse_action(object)? {
        PublishAction::Hint => Ok(LongPollAction::Hint),
        PublishAction::Close => Ok(LongPollAction::Close),
        PublishAction::Send => {
            let status = parse_status(object)?.unwrap_or(Status::OK);
            // Penstock has its own; this only has to be a text.
            object.get_text("reason")?;
            let (bytes, is_patch) = match object.get_bytes("body")? {
                Some(bytes) => (bytes, false),
                None => (parse_patch(object)?, true),
            };
            Ok(LongPollAction::Send(Box::new(LongPollResponse {
                status,
                fields: parse_headers(object)?.freeze(),
                body: parse_content(object, Some(bytes))?,
                is_patch,
            })))
        }
    }
}

/// A JSON Patch (RFC 6902), checked and as text.
fn parse_patch(object: &JsonObject<'_>) -> Result<Bytes, JsonShapeError> {
    let node = object.get("body-patch");
    let node =
        node.ok_or_else(|| object.shape_error_at("body", "a text (or body-bin, or body-patch)"))?;
    let checked = serde_json::from_value::<Patch>(node.value().clone());
    let patch = checked.map_err(|_| node.shape_error("a JSON Patch"))?;
    let is_copy = |operation: &&PatchOperation| matches!(operation, PatchOperation::Copy(_));
    if patch.iter().filter(is_copy).count() > MAX_PATCH_COPIES {
        return Err(node.shape_error("a JSON Patch of at most 4 copies"));
    }
    Ok(node.value().to_string().into())
}

fn parse_websocket(object: &JsonObject<'_>) -> Result<Option<WebSocketAction>, JsonShapeError> {
    match parse_action(object)? {
        // A WebSocket has nothing that it could fetch.
        PublishAction::Hint => return Ok(None),
        PublishAction::Close => return parse_close(object).map(Some),
        PublishAction::Send => {}
    }
    let is_coded = object.get("content-bin").is_some();
    let default = if is_coded { "binary" } else { "text" };
    let bytes = object.get_bytes("content")?;
    Ok(Some(match object.get_text("type")?.unwrap_or(default) {
        "ping" => WebSocketAction::Ping(check_control_payload(object, bytes)?),
        "pong" => WebSocketAction::Pong(check_control_payload(object, bytes)?),
        "binary" => WebSocketAction::Binary(parse_content(object, bytes)?),
        "text" => {
            let content = parse_content(object, bytes)?;
            if std::str::from_utf8(&content.bytes).is_err() {
                return Err(object.shape_error_at("content-bin", "UTF-8 in a message of text"));
            }
            WebSocketAction::Text(content)
        }
        _ => return Err(object.shape_error_at("type", "`text`, `binary`, `ping` or `pong`")),
    }))
}

/// The payload of a ping or pong.
pub(super) fn check_control_payload(
    object: &JsonObject<'_>,
    bytes: Option<Bytes>,
) -> Result<Bytes, JsonShapeError> {
    let bytes = bytes.unwrap_or_default();
    match bytes.len() > MAX_CONTROL_BYTES {
        true => Err(object.shape_error_at("content", "at most 125 bytes")),
        false => Ok(bytes),
    }
}

/// RFC 6455 §5.5.1: the code takes two bytes of a frame of control.
fn parse_close(object: &JsonObject<'_>) -> Result<WebSocketAction, JsonShapeError> {
    let code = match object.get_number("code")? {
        None => close_code::NORMAL_CLOSURE,
        Some(number) => u16::try_from(number)
            .ok()
            .filter(|code| close_code::is_sendable(*code))
            .ok_or_else(|| object.shape_error_at("code", "a code that may be sent"))?,
    };
    let reason = object.get_text("reason")?.unwrap_or_default();
    if reason.len() > MAX_CONTROL_BYTES - 2 {
        return Err(object.shape_error_at("reason", "at most 123 bytes"));
    }
    Ok(WebSocketAction::Close {
        code,
        reason: reason.into(),
    })
}

fn parse_event(object: &JsonObject<'_>) -> Result<PublishedEvent, JsonShapeError> {
    let data = object.get_text("data")?;
    Ok(PublishedEvent {
        event: object.get_text("event")?.map(Into::into),
        data: data
            .ok_or_else(|| object.shape_error_at("data", "a text"))?
            .into(),
        retry: object.get_number("retry")?,
    })
}

fn parse_content(object: &JsonObject<'_>, bytes: Option<Bytes>) -> Result<Content, JsonShapeError> {
    const KEY: &str = "content-filters";
    let bytes = bytes.ok_or_else(|| object.shape_error_at("content", "a text (or content-bin)"))?;
    let filters = object.get_text_list(KEY)?;
    match filters.len() > MAX_CONTENT_FILTERS {
        true => Err(object.shape_error_at(KEY, "at most 10 filters")),
        false => Ok(Content { bytes, filters }),
    }
}

pub(super) fn parse_status(object: &JsonObject<'_>) -> Result<Option<Status>, JsonShapeError> {
    let Some(code) = object.get_number("code")? else {
        return Ok(None);
    };
    let status = u16::try_from(code).ok().and_then(Status::new);
    let status = status.filter(|status| !status.is_informational());
    status
        .map(Some)
        .ok_or_else(|| object.shape_error_at("code", "a code from 200 to 599"))
}

/// The fields of a response to be sent, as a list of pairs or as an object. Fields of the hop, of
/// GRIP and for the front end (`X-Accel-*`, `X-Sendfile`) are left out: a publisher may not set
/// them.
pub(super) fn parse_headers(object: &JsonObject<'_>) -> Result<FieldBlock, JsonShapeError> {
    let mut fields = FieldBlock::new();
    let mut push = |name: &str, value: &Value, node: JsonNode<'_>| {
        let value = value.as_str().ok_or_else(|| node.shape_error("a text"))?;
        if classify_field(name) == FieldClass::HopByHop || is_internal_field(name.as_bytes()) {
            return Ok(());
        }
        let pushed = fields.push(name, value.as_bytes());
        pushed.map_err(|_| node.shape_error("a valid field"))
    };
    if let Some(node) = object.get("headers") {
        match node.value() {
            Value::Array(_) => {
                node.read_items(|_, item| match item.value().as_array().map(Vec::as_slice) {
                    Some([Value::String(name), value]) => push(name, value, item),
                    _ => Err(item.shape_error("a pair of texts")),
                })?
            }
            Value::Object(_) => node.read_pairs(|name, item| push(name, item.value(), item))?,
            _ => return Err(node.shape_error("a list of pairs, or an object")),
        };
    }
    Ok(fields)
}

#[cfg(test)]
mod tests;
