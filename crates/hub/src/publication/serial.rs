//! How the parts of a [`Publication`](super::Publication) are read and written by serde.
//!
//! Bytes are written as text where they are UTF-8, else as base64, so that JSON of a publication
//! stays readable.
//!
//! # Invariants
//! - A part that is read can be sent: status, fields and WebSocket frames are checked here.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use penstock_http::websocket::close_code::is_sendable;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Content;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SerialBytes<'a> {
    #[serde(borrow)]
    Text(Cow<'a, str>),
    #[serde(borrow)]
    Base64(Cow<'a, str>),
}

impl<'a> SerialBytes<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(Cow::Borrowed(text)),
            Err(_) => Self::Base64(Cow::Owned(BASE64.encode(bytes))),
        }
    }

    fn decode<E: Error>(self) -> Result<Bytes, E> {
        match self {
            Self::Text(text) => Ok(text.into_owned().into()),
            Self::Base64(text) => match BASE64.decode(&*text) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err(E::custom(format_args!("bad base64: {error}"))),
            },
        }
    }
}

pub(crate) mod binary {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        SerialBytes::new(bytes).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        SerialBytes::deserialize(from)?.decode()
    }
}

pub(super) mod status {
    use penstock_http::Status;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(status: &Status, to: S) -> Result<S::Ok, S::Error> {
        status.code().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Status, D::Error> {
        let code = u16::deserialize(from)?;
        let status = Status::new(code).filter(|status| !status.is_informational());
        status.ok_or_else(|| Error::custom(format_args!("status {code} cannot be sent")))
    }
}

pub(super) mod fields {
    use penstock_exchange::field_policy::{FieldClass, classify_field, is_internal_field};
    use penstock_http::FieldBlock;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(fields: &FieldBlock, to: S) -> Result<S::Ok, S::Error> {
        let fields = fields.iter();
        to.collect_seq(fields.map(|(name, value)| (name, SerialBytes::new(value))))
    }

    /// Leaves out fields that no publisher may set: the sender counts as one.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<FieldBlock, D::Error> {
        let mut fields = FieldBlock::new();
        for (name, value) in Vec::<(Cow<'_, str>, SerialBytes<'_>)>::deserialize(from)? {
            if classify_field(&*name) != FieldClass::HopByHop && !is_internal_field(name.as_bytes())
            {
                let pushed = fields.push(&*name, &value.decode()?);
                pushed.map_err(|error| Error::custom(format_args!("bad field: {error}")))?;
            }
        }
        Ok(fields.freeze())
    }
}

/// Content of a WebSocket's text message.
pub(super) fn text_content<'de, D: Deserializer<'de>>(from: D) -> Result<Content, D::Error> {
    let content = Content::deserialize(from)?;
    match std::str::from_utf8(&content.bytes) {
        Ok(_) => Ok(content),
        Err(_) => Err(Error::custom("a WebSocket's text message is not text")),
    }
}

/// Payload of a ping or pong (RFC 6455 §5.5).
pub(super) fn control_payload<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    let payload = binary::deserialize(from)?;
    check_control_size(payload.len(), 125)?;
    Ok(payload)
}

pub(super) fn close_code<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let code = u16::deserialize(from)?;
    match is_sendable(code) {
        true => Ok(code),
        false => Err(Error::custom(format_args!(
            "a WebSocket cannot be closed with code {code}"
        ))),
    }
}

/// Reason of a close; its code takes two of the 125 bytes (RFC 6455 §5.5.1).
pub(super) fn close_reason<'de, D: Deserializer<'de>>(from: D) -> Result<Box<str>, D::Error> {
    let reason = Box::<str>::deserialize(from)?;
    check_control_size(reason.len(), 123)?;
    Ok(reason)
}

fn check_control_size<E: Error>(size: usize, max: usize) -> Result<(), E> {
    match size > max {
        true => Err(E::custom("a WebSocket's control frame is too long")),
        false => Ok(()),
    }
}
