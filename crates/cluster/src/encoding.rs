//! A publication as it travels between nodes: JSON, with its version in front.
//!
//! JSON, so that what is in Redis can be read with `redis-cli`, and a later version may add fields that
//! this one ignores; a change that this one must not ignore gets another version. Bytes that are not text
//! travel as base64. Used by `link`. What must stay true: every publication comes back as it was; bytes
//! of any kind from Redis give a publication or an error that says why, never a panic.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use penstock_exchange::field_policy::{FieldClass, classify_field, is_internal};
use penstock_http::websocket::code::is_sendable;
use penstock_http::{FieldBlock, FieldError, Status};
use penstock_hub::{
    Content, EventPart, LongPollResponse, Publication, ResponsePart, StreamPart, WebSocketPart,
};
use serde::{Deserialize, Serialize};

use crate::entry::{ChannelName, EntryContent};

/// The version that this program writes and reads.
const VERSION: u32 = 1;

/// Why what another node wrote is not understood.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    #[error("it is of version {0}, this server reads version 1")]
    Version(u32),
    #[error("it is not what a node writes: {0}")]
    Json(#[from] serde_json::Error),
    #[error("it holds bad base64: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("it holds status {0}")]
    Status(u16),
    #[error("it holds a field that cannot be sent: {0}")]
    Field(#[from] FieldError),
    #[error("it holds a WebSocket's text that is not text")]
    InvalidText,
    #[error("it holds a WebSocket's control frame that is too long")]
    ControlTooLong,
    #[error("it closes WebSockets with code {0}")]
    CloseCode(u16),
    #[error("it says nothing")]
    Empty,
}

/// What `what` is on its way.
pub(super) fn encode(what: &EntryContent) -> Vec<u8> {
    let wire = match what {
        EntryContent::Message(publication) => WireEntry {
            message: Some(WireMessage::from_publication(publication)),
            ..WireEntry::default()
        },
        EntryContent::Gap => WireEntry {
            gap: Some(WireGap::Channel),
            ..WireEntry::default()
        },
        EntryContent::HistoryCut => WireEntry {
            gap: Some(WireGap::Order),
            ..WireEntry::default()
        },
        EntryContent::GapInAllChannels => WireEntry {
            gap: Some(WireGap::Everywhere),
            ..WireEntry::default()
        },
        EntryContent::AllHistoriesCut => WireEntry {
            gap: Some(WireGap::Histories),
            ..WireEntry::default()
        },
    };
    // Strings, numbers and lists of them: there is nothing in it that could fail.
    serde_json::to_vec(&wire).unwrap_or_default()
}

/// What came for `channel`.
pub(super) fn decode(channel: &ChannelName, bytes: &[u8]) -> Result<EntryContent, DecodeError> {
    let version: WireVersion = serde_json::from_slice(bytes)?;
    if version.v != VERSION {
        return Err(DecodeError::Version(version.v));
    }
    let wire: WireEntry<'_> = serde_json::from_slice(bytes)?;
    match (wire.gap, wire.message) {
        (Some(WireGap::Channel), _) => Ok(EntryContent::Gap),
        (Some(WireGap::Order), _) => Ok(EntryContent::HistoryCut),
        (Some(WireGap::Everywhere), _) => Ok(EntryContent::GapInAllChannels),
        (Some(WireGap::Histories), _) => Ok(EntryContent::AllHistoriesCut),
        (None, Some(message)) => message
            .into_publication(channel)
            .map(|publication| EntryContent::Message(Box::new(publication))),
        (None, None) => Err(DecodeError::Empty),
    }
}

#[derive(Deserialize)]
struct WireVersion {
    v: u32,
}

#[derive(Serialize, Deserialize)]
struct WireEntry<'a> {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gap: Option<WireGap>,
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    message: Option<WireMessage<'a>>,
}

impl Default for WireEntry<'_> {
    fn default() -> Self {
        Self {
            v: VERSION,
            gap: None,
            message: None,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireGap {
    Channel,
    Order,
    Everywhere,
    Histories,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct WireMessage<'a> {
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    prev_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    in_any_order: bool,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    stream: Option<WireStream<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    response: Option<WireResponse<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    websocket: Option<WireSocket<'a>>,
    #[serde(skip_serializing_if = "Option::is_none", borrow)]
    event: Option<WireEvent<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty", borrow)]
    meta: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// Bytes: as text where they are text, else as base64.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireBytes<'a> {
    #[serde(borrow)]
    Text(Cow<'a, str>),
    #[serde(borrow)]
    Base64(Cow<'a, str>),
}

#[derive(Serialize, Deserialize)]
struct WireContent<'a> {
    #[serde(borrow)]
    bytes: WireBytes<'a>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", borrow)]
    filters: Vec<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireStream<'a> {
    #[serde(borrow)]
    Send(WireContent<'a>),
    Hint,
    Gap,
    Close,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireResponse<'a> {
    #[serde(borrow)]
    Send(WireHeldResponse<'a>),
    Hint,
    Close,
}

#[derive(Serialize, Deserialize)]
struct WireHeldResponse<'a> {
    status: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty", borrow)]
    fields: Vec<(Cow<'a, str>, WireBytes<'a>)>,
    #[serde(borrow)]
    body: WireContent<'a>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_patch: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireSocket<'a> {
    #[serde(borrow)]
    Text(WireContent<'a>),
    #[serde(borrow)]
    Binary(WireContent<'a>),
    #[serde(borrow)]
    Ping(WireBytes<'a>),
    #[serde(borrow)]
    Pong(WireBytes<'a>),
    Close {
        code: u16,
        #[serde(borrow)]
        reason: Cow<'a, str>,
    },
}

#[derive(Serialize, Deserialize)]
struct WireEvent<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    event: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<u64>,
}

impl<'a> WireMessage<'a> {
    fn from_publication(publication: &'a Publication) -> Self {
        // Taken apart, so that no field that is added later is forgotten here.
        let Publication {
            channel: _,
            id,
            prev_id,
            allows_any_order: in_any_order,
            stream,
            response,
            websocket,
            event,
            meta,
        } = publication;
        Self {
            id: id.as_deref().map(Cow::Borrowed),
            prev_id: prev_id.as_deref().map(Cow::Borrowed),
            in_any_order: *in_any_order,
            stream: stream.as_ref().map(WireStream::from_part),
            response: response.as_ref().map(WireResponse::from_part),
            websocket: websocket.as_ref().map(WireSocket::from_part),
            event: event.as_ref().map(WireEvent::from_part),
            meta: meta
                .iter()
                .map(|(name, value)| (Cow::Borrowed(&**name), Cow::Borrowed(&**value)))
                .collect(),
        }
    }

    fn into_publication(self, channel: &ChannelName) -> Result<Publication, DecodeError> {
        let text = |text: Option<Cow<'_, str>>| text.map(|text| Arc::from(&*text));
        Ok(Publication {
            channel: channel.clone(),
            id: text(self.id),
            prev_id: text(self.prev_id),
            allows_any_order: self.in_any_order,
            stream: self.stream.map(WireStream::into_part).transpose()?,
            response: self.response.map(WireResponse::into_part).transpose()?,
            websocket: self.websocket.map(WireSocket::into_part).transpose()?,
            event: self.event.map(WireEvent::into_part),
            meta: self
                .meta
                .into_iter()
                .map(|(name, value)| (Box::from(&*name), Box::from(&*value)))
                .collect(),
        })
    }
}

impl<'a> WireBytes<'a> {
    fn from_bytes(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(Cow::Borrowed(text)),
            Err(_) => Self::Base64(Cow::Owned(BASE64.encode(bytes))),
        }
    }

    fn into_bytes(self) -> Result<Bytes, DecodeError> {
        Ok(match self {
            Self::Text(text) => Bytes::from(text.into_owned()),
            Self::Base64(text) => Bytes::from(BASE64.decode(&*text)?),
        })
    }
}

impl<'a> WireContent<'a> {
    fn from_content(content: &'a Content) -> Self {
        Self {
            bytes: WireBytes::from_bytes(&content.bytes),
            filters: content
                .filters
                .iter()
                .map(|name| Cow::Borrowed(&**name))
                .collect(),
        }
    }

    fn into_content(self) -> Result<Content, DecodeError> {
        Ok(Content {
            bytes: self.bytes.into_bytes()?,
            filters: self.filters.iter().map(|name| Box::from(&**name)).collect(),
        })
    }
}

impl<'a> WireStream<'a> {
    fn from_part(part: &'a StreamPart) -> Self {
        match part {
            StreamPart::Send(content) => Self::Send(WireContent::from_content(content)),
            StreamPart::Hint => Self::Hint,
            StreamPart::Gap => Self::Gap,
            StreamPart::Close => Self::Close,
        }
    }

    fn into_part(self) -> Result<StreamPart, DecodeError> {
        Ok(match self {
            Self::Send(content) => StreamPart::Send(content.into_content()?),
            Self::Hint => StreamPart::Hint,
            Self::Gap => StreamPart::Gap,
            Self::Close => StreamPart::Close,
        })
    }
}

impl<'a> WireResponse<'a> {
    fn from_part(part: &'a ResponsePart) -> Self {
        match part {
            ResponsePart::Send(response) => Self::Send(WireHeldResponse {
                status: response.status.code(),
                fields: response
                    .fields
                    .iter()
                    .map(|(name, value)| (Cow::Borrowed(name), WireBytes::from_bytes(value)))
                    .collect(),
                body: WireContent::from_content(&response.body),
                is_patch: response.is_patch,
            }),
            ResponsePart::Hint => Self::Hint,
            ResponsePart::Close => Self::Close,
        }
    }

    fn into_part(self) -> Result<ResponsePart, DecodeError> {
        let response = match self {
            Self::Send(response) => response,
            Self::Hint => return Ok(ResponsePart::Hint),
            Self::Close => return Ok(ResponsePart::Close),
        };
        let status = Status::new(response.status).filter(|status| !status.is_informational());
        let status = status.ok_or(DecodeError::Status(response.status))?;
        let mut fields = FieldBlock::new();
        for (name, value) in response.fields {
            // No publisher may set these, and Redis is no more than one.
            if classify_field(&*name) != FieldClass::HopByHop && !is_internal(name.as_bytes()) {
                fields.push(&name, &value.into_bytes()?)?;
            }
        }
        Ok(ResponsePart::Send(Box::new(LongPollResponse {
            status,
            fields: fields.freeze(),
            body: response.body.into_content()?,
            is_patch: response.is_patch,
        })))
    }
}

impl<'a> WireSocket<'a> {
    fn from_part(part: &'a WebSocketPart) -> Self {
        match part {
            WebSocketPart::Text(content) => Self::Text(WireContent::from_content(content)),
            WebSocketPart::Binary(content) => Self::Binary(WireContent::from_content(content)),
            WebSocketPart::Ping(bytes) => Self::Ping(WireBytes::from_bytes(bytes)),
            WebSocketPart::Pong(bytes) => Self::Pong(WireBytes::from_bytes(bytes)),
            WebSocketPart::Close { code, reason } => Self::Close {
                code: *code,
                reason: Cow::Borrowed(reason),
            },
        }
    }

    fn into_part(self) -> Result<WebSocketPart, DecodeError> {
        Ok(match self {
            Self::Text(content) => {
                let content = content.into_content()?;
                std::str::from_utf8(&content.bytes).map_err(|_| DecodeError::InvalidText)?;
                WebSocketPart::Text(content)
            }
            Self::Binary(content) => WebSocketPart::Binary(content.into_content()?),
            Self::Ping(bytes) => WebSocketPart::Ping(check_control_payload(bytes.into_bytes()?)?),
            Self::Pong(bytes) => WebSocketPart::Pong(check_control_payload(bytes.into_bytes()?)?),
            // Its code takes two of the 125 bytes (RFC 6455 §5.5.1).
            Self::Close { reason, .. } if reason.len() > 123 => {
                return Err(DecodeError::ControlTooLong);
            }
            Self::Close { code, .. } if !is_sendable(code) => {
                return Err(DecodeError::CloseCode(code));
            }
            Self::Close { code, reason } => WebSocketPart::Close {
                code,
                reason: Box::from(&*reason),
            },
        })
    }
}

impl<'a> WireEvent<'a> {
    fn from_part(part: &'a EventPart) -> Self {
        Self {
            event: part.event.as_deref().map(Cow::Borrowed),
            data: Cow::Borrowed(&part.data),
            retry: part.retry,
        }
    }

    fn into_part(self) -> EventPart {
        EventPart {
            event: self.event.map(|event| Box::from(&*event)),
            data: Box::from(&*self.data),
            retry: self.retry,
        }
    }
}

/// RFC 6455 §5.5.
fn check_control_payload(bytes: Bytes) -> Result<Bytes, DecodeError> {
    if bytes.len() > 125 {
        return Err(DecodeError::ControlTooLong);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
