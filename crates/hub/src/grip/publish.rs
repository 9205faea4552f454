//! What is published over HTTP: `{"items": [...]}` made into publications.
//!
//! Pure: the admin listener and `penstock publish` bring the body, bounded before. Each item has a channel
//! and at least one format: `http-stream`, `http-response`, `ws-message`, or the house's own `event`, in
//! `formats` or beside the channel. What must stay true: one item that does not fit publishes none of them,
//! and the text of the error says which item and which key.

use bytes::Bytes;
use json_patch::{Patch, PatchOperation};
use penstock_exchange::field_policy::{FieldClass, classify_field, is_internal};
use penstock_http::websocket::code;
use penstock_http::{FieldBlock, Status};
use serde_json::Value;
use thiserror::Error;

use super::json::{self, Misfit, Object};
use crate::{
    Content, EventPart, HeldResponse, Namespace, NamespaceError, Publication, ResponsePart,
    SocketPart, StreamPart,
};

/// Why nothing was published.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PublishError {
    /// It cannot be read.
    #[error("the body is no JSON: {0}")]
    Json(String),
    /// More than a request may have.
    #[error("`items` may have {ITEMS_MAX} items at once, not {0}")]
    TooMany(usize),
    /// Something else than expected.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// It is not clear whose channel is meant.
    #[error("items[{index}]: {error}")]
    Namespace {
        /// Which item.
        index: usize,
        /// Why not.
        error: NamespaceError,
    },
}

/// Items of one request.
const ITEMS_MAX: usize = 10_000;

/// Content filters of one message: more than there are kinds of them.
const FILTERS_MAX: usize = 10;

/// Each copy of a patch may double the document that it is for, and that for each who waits.
const COPIES_MAX: usize = 4;

/// What a control frame of a WebSocket carries at most (RFC 6455 §5.5).
const CONTROL_BYTES_MAX: usize = 125;

/// The publications in the body of a request to publish, in its order. `resolve` finds the namespace of
/// each from the name that the item says, if it says one.
///
/// # Errors
/// What does not fit, with its place; nothing is to be published then.
pub fn publications(
    body: &[u8],
    resolve: impl Fn(Option<&str>) -> Result<Namespace, NamespaceError>,
) -> Result<Vec<Publication>, PublishError> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| PublishError::Json(error.to_string()))?;
    let all = json::as_object(&value)?;
    if json::get(all, "items").is_none() {
        return Err(Misfit::new("items", "a list").into());
    }
    let items = json::list(all, "items")?;
    if items.len() > ITEMS_MAX {
        return Err(PublishError::TooMany(items.len()));
    }
    let read = |(index, value): (usize, &Value)| {
        let misfit = |misfit: Misfit| PublishError::Misfit(misfit.at(index).within("items"));
        let object = json::as_object(value).map_err(misfit)?;
        let mut publication = item(object).map_err(misfit)?;
        let namespace = json::text(object, "namespace").map_err(misfit)?;
        let namespace =
            resolve(namespace).map_err(|error| PublishError::Namespace { index, error })?;
        publication.channel = namespace.key(&publication.channel);
        Ok(publication)
    };
    items.iter().enumerate().map(read).collect()
}

fn item(object: &Object) -> Result<Publication, Misfit> {
    let channel = json::text(object, "channel")?.filter(|name| !name.is_empty());
    let channel = channel.ok_or_else(|| Misfit::new("channel", "a channel's name"))?;
    // Counted elsewhere; it only has to be a number.
    json::number(object, "size")?;
    let mut publication = Publication {
        channel: channel.into(),
        id: json::text(object, "id")?.map(Into::into),
        prev_id: json::text(object, "prev-id")?.map(Into::into),
        in_any_order: json::flag(object, "no-seq")?,
        meta: json::pairs(object, "meta")?,
        ..Publication::default()
    };
    let read = match json::object(object, "formats")? {
        Some(inner) => {
            formats(inner, &mut publication).map_err(|misfit| misfit.within("formats"))?
        }
        None => formats(object, &mut publication)?,
    };
    match read {
        0 => Err(Misfit::new(
            "formats",
            "at least one of http-stream, http-response, ws-message and event",
        )),
        _ => Ok(publication),
    }
}

/// Reads the formats and counts them.
fn formats(from: &Object, publication: &mut Publication) -> Result<usize, Misfit> {
    let mut count = 0;
    let mut format = |key: &str| {
        let found = json::object(from, key)?;
        count += usize::from(found.is_some());
        Ok(found)
    };
    if let Some(object) = format(HTTP_STREAM)? {
        let part = stream(object).map_err(|misfit| misfit.within(HTTP_STREAM))?;
        publication.stream = Some(part);
    }
    if let Some(object) = format(HTTP_RESPONSE)? {
        let part = response(object).map_err(|misfit| misfit.within(HTTP_RESPONSE))?;
        publication.response = Some(part);
    }
    if let Some(object) = format(WS_MESSAGE)? {
        publication.websocket = socket(object).map_err(|misfit| misfit.within(WS_MESSAGE))?;
    }
    if let Some(object) = format(EVENT)? {
        let part = event(object).map_err(|misfit| misfit.within(EVENT))?;
        publication.event = Some(part);
    }
    Ok(count)
}

const HTTP_STREAM: &str = "http-stream";
const HTTP_RESPONSE: &str = "http-response";
const WS_MESSAGE: &str = "ws-message";
const EVENT: &str = "event";

/// What is to be done with those who listen.
enum Action {
    Send,
    /// There is something new to be fetched.
    Hint,
    Close,
}

fn action(object: &Object) -> Result<Action, Misfit> {
    match json::text(object, "action")? {
        None | Some("send") => Ok(Action::Send),
        Some("hint" | "refresh") => Ok(Action::Hint),
        Some("close") => Ok(Action::Close),
        Some(_) => Err(Misfit::new(
            "action",
            "`send`, `hint`, `refresh` or `close`",
        )),
    }
}

fn stream(object: &Object) -> Result<StreamPart, Misfit> {
    match action(object)? {
        Action::Hint => Ok(StreamPart::Hint),
        Action::Close => Ok(StreamPart::Close),
        Action::Send => {
            let bytes = json::bytes(object, "content")?;
            let bytes = bytes.ok_or_else(|| Misfit::new("content", "a text (or content-bin)"))?;
            Ok(StreamPart::Send(content(object, bytes)?))
        }
    }
}

fn response(object: &Object) -> Result<ResponsePart, Misfit> {
    match action(object)? {
        Action::Hint => Ok(ResponsePart::Hint),
        Action::Close => Ok(ResponsePart::Close),
        Action::Send => {
            let status = status(object)?.unwrap_or(Status::OK);
            // The house has its own; it only has to be a text.
            json::text(object, "reason")?;
            let (bytes, is_patch) = match json::bytes(object, "body")? {
                Some(bytes) => (bytes, false),
                None => (patch(object)?, true),
            };
            Ok(ResponsePart::Send(Box::new(HeldResponse {
                status,
                fields: fields(object)?.freeze(),
                body: content(object, bytes)?,
                is_patch,
            })))
        }
    }
}

/// A JSON Patch (RFC 6902), checked and as text.
fn patch(object: &Object) -> Result<Bytes, Misfit> {
    const KEY: &str = "body-patch";
    let Some(value) = json::get(object, KEY) else {
        return Err(Misfit::new("body", "a text (or body-bin, or body-patch)"));
    };
    let checked = serde_json::from_value::<Patch>(value.clone());
    let patch = checked.map_err(|_| Misfit::new(KEY, "a JSON Patch"))?;
    let is_copy = |operation: &&PatchOperation| matches!(operation, PatchOperation::Copy(_));
    if patch.iter().filter(is_copy).count() > COPIES_MAX {
        return Err(Misfit::new(KEY, "a JSON Patch of at most 4 copies"));
    }
    Ok(value.to_string().into())
}

fn socket(object: &Object) -> Result<Option<SocketPart>, Misfit> {
    match action(object)? {
        // A WebSocket has nothing that it could fetch.
        Action::Hint => Ok(None),
        Action::Close => close(object).map(Some),
        Action::Send => {
            let kind = json::text(object, "type")?;
            let is_coded = json::get(object, "content-bin").is_some();
            let bytes = json::bytes(object, "content")?;
            let part = match kind.unwrap_or(if is_coded { "binary" } else { "text" }) {
                "ping" => SocketPart::Ping(control(bytes)?),
                "pong" => SocketPart::Pong(control(bytes)?),
                kind @ ("text" | "binary") => {
                    let missing = || Misfit::new("content", "a text (or content-bin)");
                    let bytes = bytes.ok_or_else(missing)?;
                    if kind == "text" && std::str::from_utf8(&bytes).is_err() {
                        return Err(Misfit::new("content-bin", "UTF-8 in a message of text"));
                    }
                    let content = content(object, bytes)?;
                    match kind {
                        "text" => SocketPart::Text(content),
                        _ => SocketPart::Binary(content),
                    }
                }
                _ => {
                    let expected = "`text`, `binary`, `ping` or `pong`";
                    return Err(Misfit::new("type", expected));
                }
            };
            Ok(Some(part))
        }
    }
}

fn control(bytes: Option<Bytes>) -> Result<Bytes, Misfit> {
    let bytes = bytes.unwrap_or_default();
    match bytes.len() > CONTROL_BYTES_MAX {
        true => Err(Misfit::new("content", "at most 125 bytes")),
        false => Ok(bytes),
    }
}

/// RFC 6455 §5.5.1: the code takes two bytes of a frame of control.
fn close(object: &Object) -> Result<SocketPart, Misfit> {
    let code = match json::number(object, "code")? {
        None => code::NORMAL_CLOSURE,
        Some(number) => u16::try_from(number)
            .ok()
            .filter(|code| code::is_sendable(*code))
            .ok_or_else(|| Misfit::new("code", "a code that may be sent"))?,
    };
    let reason = json::text(object, "reason")?.unwrap_or_default();
    if reason.len() > CONTROL_BYTES_MAX - 2 {
        return Err(Misfit::new("reason", "at most 123 bytes"));
    }
    Ok(SocketPart::Close {
        code,
        reason: reason.into(),
    })
}

fn event(object: &Object) -> Result<EventPart, Misfit> {
    let data = json::text(object, "data")?;
    Ok(EventPart {
        event: json::text(object, "event")?.map(Into::into),
        data: data.ok_or_else(|| Misfit::new("data", "a text"))?.into(),
        retry: json::number(object, "retry")?,
    })
}

/// Bytes with the filters that change them.
fn content(object: &Object, bytes: Bytes) -> Result<Content, Misfit> {
    const KEY: &str = "content-filters";
    let filters = json::texts(object, KEY)?;
    match filters.len() > FILTERS_MAX {
        true => Err(Misfit::new(KEY, "at most 10 filters")),
        false => Ok(Content { bytes, filters }),
    }
}

/// The status of a response to be sent.
pub(super) fn status(object: &Object) -> Result<Option<Status>, Misfit> {
    let Some(code) = json::number(object, "code")? else {
        return Ok(None);
    };
    let status = u16::try_from(code).ok().and_then(Status::new);
    let status = status.filter(|status| !status.is_informational());
    let status = status.ok_or_else(|| Misfit::new("code", "a code from 200 to 599"))?;
    Ok(Some(status))
}

/// The fields of a response to be sent, as a list of pairs or as an object. Fields of
/// the hop, of GRIP and for the front end (`X-Accel-*`, `X-Sendfile`) are left out: a publisher may not
/// set them.
pub(super) fn fields(object: &Object) -> Result<FieldBlock, Misfit> {
    const KEY: &str = "headers";
    let mut fields = FieldBlock::new();
    let mut push = |name: &str, value: &Value| {
        let value = value.as_str().ok_or_else(|| Misfit::new("", "a text"))?;
        if classify_field(name) == FieldClass::HopByHop || is_internal(name.as_bytes()) {
            return Ok(());
        }
        let pushed = fields.push(name, value.as_bytes());
        pushed.map_err(|_| Misfit::new("", "a valid field"))
    };
    match json::get(object, KEY) {
        None => {}
        Some(Value::Array(list)) => {
            for (index, element) in list.iter().enumerate() {
                let pushed = match element.as_array().map(Vec::as_slice) {
                    Some([Value::String(name), value]) => push(name, value),
                    _ => Err(Misfit::new("", "a pair of texts")),
                };
                pushed.map_err(|misfit| misfit.at(index).within(KEY))?;
            }
        }
        Some(Value::Object(all)) => {
            for (name, value) in all {
                push(name, value).map_err(|misfit| misfit.within(name).within(KEY))?;
            }
        }
        Some(_) => return Err(Misfit::new(KEY, "a list of pairs, or an object")),
    }
    Ok(fields)
}

#[cfg(test)]
mod tests;
