//! One update: what a publisher sends, and the event that subscribers get of it.
//!
//! `publish` reads a form into a [`Draft`]; `board` gives it an id and its place in the order of all. What
//! must stay true: the event is encoded once, for whoever gets it now or later; neither an id nor a type
//! can end its line and begin another; what breaks a bound is refused whole, with what is wrong.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::multipart;
use penstock_http::sse;
use thiserror::Error;

use super::selector::{SelectorError, check_length};

/// Topics of one update.
pub(super) const TOPICS_MAX: usize = 100;

/// Bytes of an id or a type: they go into a header field and into every event.
pub(super) const LINE_BYTES_MAX: usize = 255;

/// The word that stands for the beginning of history.
pub(super) const EARLIEST: &str = "earliest";

/// One update.
#[derive(Debug)]
pub(super) struct Update {
    /// What its publisher calls it, or a name of our own.
    pub id: Arc<str>,
    /// The first is the canonical one.
    pub topics: Box<[Box<str>]>,
    /// Only for who is allowed to see one of its topics.
    pub is_private: bool,
    /// It as an event, with its blank line.
    pub event: Bytes,
}

/// What a publisher sent.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Draft {
    pub topics: Vec<Box<str>>,
    pub data: String,
    pub is_private: bool,
    pub id: Option<String>,
    pub event: Option<String>,
    pub retry: Option<u64>,
}

/// Why a form is no update. The texts are for the publisher.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum DraftError {
    #[error("Missing \"topic\" parameter")]
    NoTopic,
    #[error("More than {TOPICS_MAX} \"topic\" parameters")]
    TooManyTopics,
    #[error("Invalid \"topic\" parameter: {0}")]
    Topic(SelectorError),
    #[error("Invalid \"{0}\" parameter: a line of at most {LINE_BYTES_MAX} bytes is expected")]
    Line(&'static str),
    #[error("Invalid \"id\" parameter: `{EARLIEST}` and what begins with `#` are reserved")]
    ReservedId,
    #[error("Invalid \"retry\" parameter: a number of milliseconds is expected")]
    Retry,
    #[error("\"{0}\" is there more than once")]
    Twice(&'static str),
    #[error("An update may have hub.message_bytes ({0}) bytes as an event")]
    TooLarge(usize),
}

/// Bytes of topics and all else besides the data, in a form.
const FORM_BYTES_BESIDES: usize = 64 << 10;

/// Bytes of a form whose data may have so many: percent-encoding makes three of one.
pub(super) fn form_bytes_max(message_bytes: usize) -> usize {
    let data = message_bytes.saturating_mul(3);
    data.saturating_add(FORM_BYTES_BESIDES)
}

impl Draft {
    /// Reads a form (WHATWG URL, "application/x-www-form-urlencoded parsing"). Fields that are not known
    /// mean nothing.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn parse(form: &[u8]) -> Result<Self, DraftError> {
        let mut draft = Self::default();
        let mut data = None;
        for (name, value) in form_urlencoded::parse(form) {
            match &*name {
                "topic" => {
                    if draft.topics.len() == TOPICS_MAX {
                        return Err(DraftError::TooManyTopics);
                    }
                    check_length(&value).map_err(DraftError::Topic)?;
                    draft.topics.push((&*value).into());
                }
                "data" => once(&mut data, "data", value.into_owned())?,
                // That it is there says it, whatever it says.
                "private" => draft.is_private = true,
                // An empty one is none.
                "id" if !value.is_empty() => once(&mut draft.id, "id", line("id", &value)?)?,
                "type" if !value.is_empty() => {
                    once(&mut draft.event, "type", line("type", &value)?)?;
                }
                "retry" if !value.is_empty() => {
                    once(&mut draft.retry, "retry", parse_retry(&value)?)?;
                }
                _ => {}
            }
        }
        draft.data = data.unwrap_or_default();
        draft.check()?;
        Ok(draft)
    }

    fn check(&self) -> Result<(), DraftError> {
        if self.topics.is_empty() {
            return Err(DraftError::NoTopic);
        }
        let id = self.id.as_deref().unwrap_or_default();
        if id == EARLIEST || id.starts_with('#') {
            return Err(DraftError::ReservedId);
        }
        Ok(())
    }
}

impl Update {
    /// The update that is meant by `draft`.
    ///
    /// # Errors
    /// When its event is longer than `message_bytes`: many short lines make many bytes.
    pub(super) fn new(draft: Draft, message_bytes: usize) -> Result<Self, DraftError> {
        let id = draft.id.unwrap_or_else(new_id);
        let mut event = Vec::new();
        if let Some(retry) = draft.retry {
            event.extend_from_slice(format!("retry: {retry}\n").as_bytes());
        }
        sse::encode_event(&mut event, draft.event.as_deref(), Some(&id), &draft.data);
        if event.len() > message_bytes {
            return Err(DraftError::TooLarge(message_bytes));
        }
        Ok(Self {
            id: id.into(),
            topics: draft.topics.into(),
            is_private: draft.is_private,
            event: event.into(),
        })
    }

    /// Bytes that it costs while it is kept.
    pub(super) fn bytes(&self) -> usize {
        let topics: usize = self.topics.iter().map(|topic| topic.len()).sum();
        size_of::<Self>() + self.id.len() + topics + self.event.len()
    }
}

/// A name that nothing else has: a random UUID as a URN (RFC 9562 §5.4).
pub(super) fn new_id() -> String {
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

fn once<T>(place: &mut Option<T>, name: &'static str, value: T) -> Result<(), DraftError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(DraftError::Twice(name)),
    }
}

fn line(name: &'static str, value: &str) -> Result<String, DraftError> {
    let is_line = value.len() <= LINE_BYTES_MAX && !value.chars().any(char::is_control);
    is_line
        .then(|| value.to_owned())
        .ok_or(DraftError::Line(name))
}

fn parse_retry(value: &str) -> Result<u64, DraftError> {
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| value.parse().ok()).flatten();
    number.ok_or(DraftError::Retry)
}

#[cfg(test)]
mod tests;
