//! The instructions of a response: its `Grip-*` fields, or its body of
//! `application/grip-instruct`.
//!
//! Pure. [`GripInstructions::from_fields`] reads the fields and keeps those for the client. If
//! they have a hold and [`has_instruction_body`], then
//! [`GripInstructions::apply_instruction_body`] reads the body, which overrides them. Without the
//! field `Grip-Hold` the media type means nothing: a client that can store a file can choose its
//! type.
//!
//! # Invariants
//! - No `Grip-*` field is left.
//! - An unknown filter is an error, since a message that it would have kept back must not get
//!   through.

mod body;
mod fields;

use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::grip::is_grip_instruct_type;
use penstock_http::{FieldBlock, Status};
use penstock_hub::{MessageFilter, StreamKeepAlive, Subscription};
use thiserror::Error;

use super::json::JsonShapeError;

#[derive(Debug)]
pub(super) struct GripInstructions {
    /// How the client is held; `None` is answered at once.
    pub(super) hold: Option<HoldInstruction>,
    /// The part of the response that the client gets.
    pub(super) status: Status,
    /// Without those of GRIP, and only those that are exposed.
    pub(super) fields: FieldBlock,
    /// The body, if the instructions have one; else that of the response is used.
    pub(super) body: Option<Bytes>,
    pub(super) links: GripLinks,
}

#[derive(Debug)]
pub(super) struct HoldInstruction {
    pub(super) mode: HoldMode,
    pub(super) subscriptions: Vec<Subscription>,
    /// Of a long poll.
    pub(super) timeout: Duration,
    /// Of a stream.
    pub(super) keep_alive: Option<StreamKeepAlive>,
    pub(super) subscriber_meta: Vec<(Box<str>, Box<str>)>,
}

/// What becomes of a held client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HoldMode {
    /// It waits for one response.
    LongPoll,
    /// It gets a body without an end.
    Stream,
}

/// Where else the back end is to be asked about a held client.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GripLinks {
    /// What follows what was sent.
    pub(super) next: Option<NextLink>,
    /// Notified when the client is gone.
    pub(super) gone: Option<Box<str>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct NextLink {
    pub(super) target: Box<str>,
    /// Requested again after so long without a message.
    pub(super) timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum InstructionError {
    #[error("{0}: {1} is expected")]
    InvalidField(&'static str, &'static str),
    #[error("channel `{channel}`: no filter is called `{filter}`")]
    UnknownFilter { channel: String, filter: String },
    #[error("a hold needs a channel (Grip-Channel)")]
    NoChannel,
    #[error("instructions come with status 200, not {0}")]
    UnexpectedStatus(u16),
    #[error("the instructions are no JSON: {0}")]
    InvalidJson(String),
    #[error("the instructions do not fit: {0}")]
    InvalidShape(#[from] JsonShapeError),
}

/// A long poll waits for so long by default.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(55);
/// And at least for so long.
const MIN_LONG_POLL_TIMEOUT: Duration = Duration::from_secs(5);
/// A stream's heart beats that often, if its back end gives it one and does not say.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(55);
/// And at most that often.
const MIN_KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The next link is requested after so long by default.
const NEXT_LINK_TIMEOUT: Duration = Duration::from_secs(120);
/// Nothing takes longer.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Whether an answer's body is an instruction, and not for the client.
pub(super) fn has_instruction_body(fields: &FieldBlock) -> bool {
    fields
        .get("content-type")
        .is_some_and(is_grip_instruct_type)
}

impl HoldInstruction {
    /// A hold of that mode, with default times.
    fn new(mode: HoldMode) -> Self {
        Self {
            mode,
            subscriptions: Vec::new(),
            timeout: LONG_POLL_TIMEOUT,
            keep_alive: None,
            subscriber_meta: Vec::new(),
        }
    }

    fn set_timeout(&mut self, seconds: u64) {
        let timeout = Duration::from_secs(seconds);
        self.timeout = timeout.clamp(MIN_LONG_POLL_TIMEOUT, MAX_TIMEOUT);
    }
}

/// A heartbeat; nothing to say is none.
fn build_keep_alive(
    bytes: Bytes,
    seconds: Option<u64>,
    regardless: bool,
) -> Option<StreamKeepAlive> {
    let every = seconds.map_or(KEEP_ALIVE_INTERVAL, Duration::from_secs);
    (!bytes.is_empty()).then(|| StreamKeepAlive {
        bytes,
        interval: every.clamp(MIN_KEEP_ALIVE_INTERVAL, MAX_TIMEOUT),
        is_unconditional: regardless,
    })
}

pub(super) fn parse_filter(channel: &str, name: &str) -> Result<MessageFilter, InstructionError> {
    match name {
        "skip-self" => Ok(MessageFilter::SkipSelf),
        "skip-users" => Ok(MessageFilter::SkipUsers),
        "require-sub" => Ok(MessageFilter::RequireSubscription),
        "build-id" => Ok(MessageFilter::BuildId),
        "var-subst" => Ok(MessageFilter::VarSubst),
        _ => Err(InstructionError::UnknownFilter {
            channel: channel.to_owned(),
            filter: name.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests;
