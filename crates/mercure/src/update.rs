//! An update: a publisher's form, and the event that subscribers get of it.
//!
//! `publish` reads a form into an [`UpdateDraft`]; `broker` gives it an id and its place in the
//! order of all.
//!
//! # Invariants
//! - The event is encoded once, for all present and later subscribers.
//! - Neither an id nor a type can end its line and begin another.
//! - An update that exceeds a bound is refused whole, with the reason.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::multipart;
use penstock_http::sse;
use thiserror::Error;

use crate::selector::{SelectorError, check_topic_length};

pub(super) const MAX_TOPICS: usize = 100;

/// Bytes of an id or a type: they go into a header field and into every event.
pub(super) const MAX_ID_BYTES: usize = 255;

/// The word that stands for the beginning of history.
pub(super) const EARLIEST_ID: &str = "earliest";

#[derive(Debug)]
pub(super) struct Update {
    /// The publisher's id, or a generated one.
    pub id: Arc<str>,
    /// The first is the canonical one.
    pub topics: Box<[Box<str>]>,
    /// Only for subscribers that may see one of its topics.
    pub is_private: bool,
    /// The encoded event, with its blank line.
    pub encoded_event: Bytes,
}

/// What a publisher sent.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct UpdateDraft {
    pub topics: Vec<Box<str>>,
    pub data: String,
    pub is_private: bool,
    pub id: Option<String>,
    pub event: Option<String>,
    pub retry: Option<u64>,
}

/// Why a form is no update. The texts are for the publisher.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum UpdateDraftError {
    #[error("Missing \"topic\" parameter")]
    NoTopic,
    #[error("More than {MAX_TOPICS} \"topic\" parameters")]
    TooManyTopics,
    #[error("Invalid \"topic\" parameter: {0}")]
    InvalidTopic(SelectorError),
    #[error(
        "Invalid \"{0}\" parameter: a line of at most {MAX_ID_BYTES} bytes without blanks around \
         it is expected"
    )]
    InvalidLine(&'static str),
    #[error("Invalid \"id\" parameter: `{EARLIEST_ID}` and what begins with `#` are reserved")]
    ReservedId,
    #[error("Invalid \"retry\" parameter: a number of milliseconds is expected")]
    InvalidRetry,
    #[error("\"{0}\" is there more than once")]
    RepeatedField(&'static str),
    #[error("An update may have hub.max_message_size ({0}) bytes as an event")]
    TooLarge(usize),
}

/// Bytes of topics and all else besides the data, in a form.
const FORM_OVERHEAD_BYTES: usize = 64 << 10;

/// The size of a form with data of so many bytes: percent-encoding makes three of one.
pub(super) fn max_form_bytes(message_bytes: usize) -> usize {
    let data = message_bytes.saturating_mul(3);
    data.saturating_add(FORM_OVERHEAD_BYTES)
}

impl UpdateDraft {
    /// Reads a form (WHATWG URL, "application/x-www-form-urlencoded parsing"). Fields that are not
    /// known mean nothing.
    pub(super) fn parse(form: &[u8]) -> Result<Self, UpdateDraftError> {
        let mut draft = Self::default();
        let mut data = None;
        for (name, value) in form_urlencoded::parse(form) {
            match &*name {
                "topic" => {
                    if draft.topics.len() == MAX_TOPICS {
                        return Err(UpdateDraftError::TooManyTopics);
                    }
                    check_topic_length(&value).map_err(UpdateDraftError::InvalidTopic)?;
                    draft.topics.push((&*value).into());
                }
                "data" => set_once(&mut data, "data", value.into_owned())?,
                // That it is there says it, whatever it says.
                "private" => draft.is_private = true,
                // An empty one is none.
                "id" if !value.is_empty() => {
                    set_once(&mut draft.id, "id", check_line("id", &value)?)?;
                }
                "type" if !value.is_empty() => {
                    set_once(&mut draft.event, "type", check_line("type", &value)?)?;
                }
                "retry" if !value.is_empty() => {
                    set_once(&mut draft.retry, "retry", parse_retry(&value)?)?;
                }
                _ => {}
            }
        }
        draft.data = data.unwrap_or_default();
        draft.check()?;
        Ok(draft)
    }

    fn check(&self) -> Result<(), UpdateDraftError> {
        if self.topics.is_empty() {
            return Err(UpdateDraftError::NoTopic);
        }
        let id = self.id.as_deref().unwrap_or_default();
        if id == EARLIEST_ID || id.starts_with('#') {
            return Err(UpdateDraftError::ReservedId);
        }
        Ok(())
    }
}

impl Update {
    /// The update that is meant by `draft`.
    ///
    /// # Errors
    /// When its event is longer than `message_bytes`: many short lines make many bytes.
    pub(super) fn new(draft: UpdateDraft, message_bytes: usize) -> Result<Self, UpdateDraftError> {
        let id = draft.id.unwrap_or_else(generate_urn);
        let mut event = Vec::new();
        if let Some(retry) = draft.retry {
            event.extend_from_slice(format!("retry: {retry}\n").as_bytes());
        }
        sse::encode_event(&mut event, draft.event.as_deref(), Some(&id), &draft.data);
        if event.len() > message_bytes {
            return Err(UpdateDraftError::TooLarge(message_bytes));
        }
        Ok(Self {
            id: id.into(),
            topics: draft.topics.into(),
            is_private: draft.is_private,
            encoded_event: event.into(),
        })
    }

    /// Memory of the update while it is kept.
    pub(super) fn memory_bytes(&self) -> usize {
        let topics: usize = self.topics.iter().map(|topic| topic.len()).sum();
        size_of::<Self>() + self.id.len() + topics + self.encoded_event.len()
    }
}

/// A name that nothing else has: a random UUID as a URN (RFC 9562 §5.4).
pub(super) fn generate_urn() -> String {
    let mut bytes = multipart::random_boundary().to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut id = String::from("urn:uuid:");
    for (at, byte) in bytes.into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            id.push('-');
        }
        // A String always takes it.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

fn set_once<T>(
    place: &mut Option<T>,
    name: &'static str,
    value: T,
) -> Result<(), UpdateDraftError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(UpdateDraftError::RepeatedField(name)),
    }
}

fn check_line(name: &'static str, value: &str) -> Result<String, UpdateDraftError> {
    let is_line = value.len() <= MAX_ID_BYTES
        && value.trim_ascii().len() == value.len()
        && !value.chars().any(char::is_control);
    is_line
        .then(|| value.to_owned())
        .ok_or(UpdateDraftError::InvalidLine(name))
}

fn parse_retry(value: &str) -> Result<u64, UpdateDraftError> {
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| value.parse().ok()).flatten();
    number.ok_or(UpdateDraftError::InvalidRetry)
}

#[cfg(test)]
mod tests;
