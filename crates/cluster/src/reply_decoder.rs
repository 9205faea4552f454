//! Decodes replies of Redis: pushed entries, and pages that are read of streams. Used by
//! `redis_link`.
//!
//! Every client of this Redis can write anything there. An entry that no server of ours wrote is
//! left out; one of another version of ours is a gap for its subscribers. Each kind is logged
//! once.
//!
//! # Invariants
//! - No bytes panic, or keep this server from the entries that follow them.

use std::str;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::entry::{ChannelName, EntryContent, EntryOrigin, RedisStreamEntry, StreamPosition};
use crate::entry_encoding;
use crate::followed_channel::{StreamPage, StreamReadRequest};
use crate::push_queue::PushMessage;
use crate::redis_scripts::RedisKeys;

/// Entries that are read of a stream at a time.
pub(super) const PAGE_ENTRIES: usize = 100;

/// The way of a message to its own server's subscribers: before Redis had it, or with all others.
pub(super) const DELIVERED_EARLY: &str = "ahead";
pub(super) const DELIVERED_IN_ORDER: &str = "shared";

/// An entry of a stream as Redis has it: its position, then names and values in turn.
pub(super) type RawEntry = (String, Vec<Vec<u8>>);

/// Decodes the replies of one connection.
#[derive(Debug, Clone)]
pub(super) struct ReplyDecoder {
    keys: RedisKeys,
    dataset_id: Arc<str>,
    /// Whether it was logged that something is not understood.
    has_logged_unknown: Arc<AtomicBool>,
}

/// It is of other data than this connection began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its data is not what it was a moment ago")]
pub(super) struct DatasetChangedError;

impl ReplyDecoder {
    pub(super) fn new(names: RedisKeys, dataset_id: Arc<str>) -> Self {
        Self {
            keys: names,
            dataset_id,
            has_logged_unknown: Arc::default(),
        }
    }

    /// A published entry; `None` for one that is not ours.
    ///
    /// # Errors
    /// Redis has other data now.
    pub(super) fn decode_push(
        &self,
        pushed: &PushMessage,
    ) -> Result<Option<RedisStreamEntry>, DatasetChangedError> {
        let Some((channel, parts, message)) = self.split_push(pushed) else {
            self.log_foreign_entry("published");
            return Ok(None);
        };
        let [parts @ .., dataset_id] = parts;
        if dataset_id != &*self.dataset_id {
            return Err(DatasetChangedError);
        }
        let entry = self.decode_entry(&ChannelName::from(channel), parts, message);
        if entry.is_none() {
            self.log_foreign_entry("published");
        }
        Ok(entry)
    }

    fn split_push<'a>(&self, pushed: &'a PushMessage) -> Option<(&'a str, [&'a str; 5], &'a [u8])> {
        let channel = self
            .keys
            .channel_of_topic(str::from_utf8(&pushed.topic).ok()?)?;
        let end = pushed.payload.iter().position(|&byte| byte == b'\n')?;
        let (head, message) = pushed.payload.split_at(end);
        let mut parts = str::from_utf8(head).ok()?.split(' ');
        let mut next_part = || parts.next();
        let parts = [
            next_part()?,
            next_part()?,
            next_part()?,
            next_part()?,
            next_part()?,
        ];
        Some((channel, parts, &message[1..]))
    }

    pub(super) fn decode_page(
        &self,
        read: StreamReadRequest,
        mut raw: Vec<RawEntry>,
    ) -> StreamPage {
        let is_newest = read.from.is_none();
        let is_page = !is_newest && raw.len() >= PAGE_ENTRIES;
        if is_newest {
            raw.reverse();
        }
        let mut entries = Vec::with_capacity(raw.len());
        for (position, fields) in &raw {
            match self.decode_stream_entry(&read.channel, position, fields) {
                Some(entry) => entries.push(entry),
                None => self.log_foreign_entry("kept"),
            }
        }
        StreamPage {
            channel: read.channel,
            read_id: read.read_id,
            // A page with nothing of ours would be read again and again.
            is_last: !is_page || entries.len() < 2,
            entries,
        }
    }

    fn decode_stream_entry(
        &self,
        channel: &ChannelName,
        position: &str,
        fields: &[Vec<u8>],
    ) -> Option<RedisStreamEntry> {
        let field = |name: &str| {
            let mut pairs = fields.chunks_exact(2);
            let found = pairs.find(|pair| pair[0] == name.as_bytes())?;
            Some(&*found[1])
        };
        let text = |name| str::from_utf8(field(name)?).ok();
        let parts = [position, text("before")?, text("origin")?, text("way")?];
        self.decode_entry(channel, parts, field("message")?)
    }

    fn decode_entry(
        &self,
        channel: &ChannelName,
        parts: [&str; 4],
        message: &[u8],
    ) -> Option<RedisStreamEntry> {
        let [position, before, origin, way] = parts;
        let position = StreamPosition::parse(position)?;
        let previous = StreamPosition::parse(before)?;
        let origin = EntryOrigin::parse(origin)?;
        // A message that is not understood is one that subscribers miss.
        let what = entry_encoding::decode(channel, message).unwrap_or_else(|error| {
            self.log_once(&format!(
                "another server publishes what this one does not understand, which is a gap to subscribers: \
                 {error}"
            ));
            EntryContent::Gap
        });
        Some(RedisStreamEntry {
            channel: channel.clone(),
            position,
            previous,
            origin,
            was_delivered_early: way == DELIVERED_EARLY,
            content: what,
        })
    }

    fn log_foreign_entry(&self, how: &str) {
        self.log_once(&format!(
            "something is {how} in Redis under this server's names that no server wrote, and left out"
        ));
    }

    fn log_once(&self, what: &str) {
        if !self.has_logged_unknown.swap(true, Ordering::Relaxed) {
            log::error!("hub: {what}");
        }
    }
}

#[cfg(test)]
mod tests;
