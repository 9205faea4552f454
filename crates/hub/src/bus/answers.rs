//! What Redis says, understood: entries that are published, and those that are read of streams.
//!
//! Used by `link`. Anybody who may write to this Redis can put anything there: what no server of ours wrote
//! is left out, what another version of ours wrote is a gap to its subscribers; either is logged once.
//! What must stay true: no bytes of any kind panic, or keep a node from what comes after them.

use std::str;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::encoding;
use super::entry::{Channel, Entry, What};
use super::follow::{Part, Read};
use super::pushes::Pushed;
use super::script::Names;

/// Entries that are read of a stream at a time.
pub(super) const PAGE: usize = 100;

/// The way of a message to its own node's subscribers: before Redis had it, or with all others.
pub(super) const AHEAD: &str = "ahead";
pub(super) const SHARED: &str = "shared";

/// An entry of a stream as Redis has it: its position, then names and values in turn.
pub(super) type RawEntry = (String, Vec<Vec<u8>>);

/// Understands what comes over one connection.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    names: Names,
    mark: Arc<str>,
    /// Whether it was logged that something is not understood.
    is_logged: Arc<AtomicBool>,
}

/// It is of other data than this connection began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its data is not what it was a moment ago")]
pub(super) struct OtherData;

impl Answers {
    pub(super) fn new(names: Names, mark: Arc<str>) -> Self {
        Self {
            names,
            mark,
            is_logged: Arc::default(),
        }
    }

    /// What was published; none of what is not ours.
    ///
    /// # Errors
    /// Redis has other data now.
    pub(super) fn entry(&self, pushed: &Pushed) -> Result<Option<Entry>, OtherData> {
        let Some((channel, words, message)) = self.taken_apart(pushed) else {
            self.is_not_ours("published");
            return Ok(None);
        };
        let [words @ .., mark] = words;
        if mark != &*self.mark {
            return Err(OtherData);
        }
        let entry = self.understand(&Channel::from(channel), words, message);
        if entry.is_none() {
            self.is_not_ours("published");
        }
        Ok(entry)
    }

    fn taken_apart<'a>(&self, pushed: &'a Pushed) -> Option<(&'a str, [&'a str; 5], &'a [u8])> {
        let channel = self.names.channel(str::from_utf8(&pushed.topic).ok()?)?;
        let end = pushed.payload.iter().position(|&byte| byte == b'\n')?;
        let (head, message) = pushed.payload.split_at(end);
        let mut words = str::from_utf8(head).ok()?.split(' ');
        let mut word = || words.next();
        let words = [word()?, word()?, word()?, word()?, word()?];
        Some((channel, words, &message[1..]))
    }

    /// What was read.
    pub(super) fn part(&self, read: Read, mut raw: Vec<RawEntry>) -> Part {
        let is_newest = read.from.is_none();
        let is_page = !is_newest && raw.len() >= PAGE;
        if is_newest {
            raw.reverse();
        }
        let mut entries = Vec::with_capacity(raw.len());
        for (position, fields) in &raw {
            match self.of_stream(&read.channel, position, fields) {
                Some(entry) => entries.push(entry),
                None => self.is_not_ours("kept"),
            }
        }
        Part {
            channel: read.channel,
            number: read.number,
            // A page with nothing of ours would be read again and again.
            is_end: !is_page || entries.len() < 2,
            entries,
        }
    }

    fn of_stream(&self, channel: &Channel, position: &str, fields: &[Vec<u8>]) -> Option<Entry> {
        let field = |name: &str| {
            let mut pairs = fields.chunks_exact(2);
            let found = pairs.find(|pair| pair[0] == name.as_bytes())?;
            Some(&*found[1])
        };
        let text = |name| str::from_utf8(field(name)?).ok();
        let words = [position, text("before")?, text("origin")?, text("way")?];
        self.understand(channel, words, field("message")?)
    }

    fn understand(&self, channel: &Channel, words: [&str; 4], message: &[u8]) -> Option<Entry> {
        let [position, before, origin, way] = words;
        let (position, before) = (position.parse().ok()?, before.parse().ok()?);
        let origin = origin.parse().ok()?;
        // A message that is not understood is one that subscribers miss.
        let what = encoding::decode(channel, message).unwrap_or_else(|error| {
            self.log_once(&format!(
                "another server publishes what this one does not understand, which is a gap to subscribers: \
                 {error}"
            ));
            What::Gap
        });
        Some(Entry {
            channel: channel.clone(),
            position,
            before,
            origin,
            is_ahead: way == AHEAD,
            what,
        })
    }

    fn is_not_ours(&self, how: &str) {
        self.log_once(&format!(
            "something is {how} in Redis under this server's names that no server wrote, and left out"
        ));
    }

    fn log_once(&self, what: &str) {
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            log::error!("hub: {what}");
        }
    }
}

#[cfg(test)]
mod tests;
