//! An entry as it travels between servers: JSON with its version in front.
//!
//! JSON, so that Redis can be read with `redis-cli`, and a later version may add fields that this
//! one ignores; a change that this one must not ignore gets another version. Used by `redis_link`.
//!
//! # Invariants
//! - Every publication comes back as it was sent.
//! - Any bytes from Redis give an entry or an error with the reason, never a panic.

use penstock_hub::Publication;
use serde::{Deserialize, Serialize};

use crate::entry::{ChannelName, EntryContent};

/// The version that this program writes and reads.
const VERSION: u32 = 1;

/// Why an entry of another server cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum EntryDecodeError {
    #[error("it is of version {0}, this server reads version 1")]
    UnsupportedVersion(u32),
    #[error("it is not what a node writes: {0}")]
    InvalidJson(#[from] serde_json::Error),
    #[error("it says nothing")]
    EmptyEntry,
}

#[derive(Deserialize)]
struct WireVersion {
    v: u32,
}

#[derive(Serialize, Deserialize)]
struct WireEntry<M> {
    v: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    gap: Option<WireGap>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<M>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireGap {
    Channel,
    Order,
    Everywhere,
    Histories,
}

pub(super) fn encode(content: &EntryContent) -> Vec<u8> {
    let (gap, message) = match content {
        EntryContent::Message(publication) => (None, Some(&**publication)),
        EntryContent::Gap => (Some(WireGap::Channel), None),
        EntryContent::HistoryInvalidated => (Some(WireGap::Order), None),
        EntryContent::GapInAllChannels => (Some(WireGap::Everywhere), None),
        EntryContent::AllHistoriesInvalidated => (Some(WireGap::Histories), None),
    };
    let v = VERSION;
    // Strings, numbers and lists of them: nothing in it can fail.
    serde_json::to_vec(&WireEntry { v, gap, message }).unwrap_or_default()
}

pub(super) fn decode(
    channel: &ChannelName,
    bytes: &[u8],
) -> Result<EntryContent, EntryDecodeError> {
    let version: WireVersion = serde_json::from_slice(bytes)?;
    if version.v != VERSION {
        return Err(EntryDecodeError::UnsupportedVersion(version.v));
    }
    let wire: WireEntry<Box<Publication>> = serde_json::from_slice(bytes)?;
    match (wire.gap, wire.message) {
        (Some(WireGap::Channel), _) => Ok(EntryContent::Gap),
        (Some(WireGap::Order), _) => Ok(EntryContent::HistoryInvalidated),
        (Some(WireGap::Everywhere), _) => Ok(EntryContent::GapInAllChannels),
        (Some(WireGap::Histories), _) => Ok(EntryContent::AllHistoriesInvalidated),
        (None, Some(mut publication)) => {
            publication.channel = channel.clone();
            Ok(EntryContent::Message(publication))
        }
        (None, None) => Err(EntryDecodeError::EmptyEntry),
    }
}

#[cfg(test)]
mod tests;
