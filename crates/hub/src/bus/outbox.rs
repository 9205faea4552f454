//! What this node publishes, from its publication until it is safe with the others. Pure.
//!
//! Each publication gets the next number; batches go to Redis in the order of the numbers, one at a time,
//! and Redis takes none of them twice (`script`). What Redis has taken is kept for [`KEPT_FOR`] and
//! published again to a Redis that has lost its data; what had to be dropped unpublished becomes a gap that
//! the others are told of. What must stay true: the numbers of what is kept follow one another; nothing is
//! dropped that was neither published nor is known to be lost; what is kept is bounded.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::{Channel, What};
use crate::{Content, Publication, ResponsePart, SocketPart, StreamPart};

/// Messages that are kept, those that wait for Redis and those that it has taken.
const MESSAGES_MAX: usize = 20_000;

/// Bytes of these.
const BYTES_MAX: usize = 64 << 20;

/// How long a message is kept that Redis has taken: longer than a Redis that is restarted is usually away.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(30);

/// Messages and bytes of one batch: one answer of Redis is waited for at a time.
const BATCH_MESSAGES: usize = 256;
const BATCH_BYTES: usize = 1 << 20;

/// Channels whose losses are told one by one; with more, all channels have a gap.
const LOST_MAX: usize = 1000;

/// What waits for Redis, and what it has.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Contiguous numbers from `first` on: first those that Redis has taken, then those on their way, then
    /// those that wait.
    kept: VecDeque<Kept>,
    first: u64,
    /// All numbers below it are with Redis, or lost.
    taken_to: u64,
    /// Whether a batch is on its way.
    is_sending: bool,
    bytes: usize,
    /// Those of what waits.
    bytes_waiting: usize,
    /// How many messages of a channel wait whose subscribers here were none, so that nobody looks for them in vain.
    unheard: HashMap<Channel, usize>,
    /// The last number that each channel lost, until the others know.
    lost: HashMap<Channel, u64>,
    lost_everywhere: Option<u64>,
    /// When something was dropped, or told as lost, that Redis might lose again: the latest.
    unkept_at: Option<Instant>,
    messages_max: usize,
    dropped: u64,
}

/// One message, or the word that there was one.
#[derive(Debug)]
struct Kept {
    channel: Channel,
    what: What,
    bytes: usize,
    taken_at: Option<Instant>,
    way: Way,
    /// A Redis that has lost its data may have had it, in another place.
    is_moved: bool,
}

/// How a message comes to this node's subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// They had it before Redis.
    Ahead,
    /// They wait for it to come from Redis.
    Awaited,
    /// There was none, or they have it.
    Done,
}

/// One entry on its way to Redis.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    pub(super) number: u64,
    pub(super) channel: Channel,
    /// Whether subscribers somewhere may have it already.
    pub(super) is_ahead: bool,
    pub(super) what: What,
}

/// A publication of this node that its own subscribers do not have yet.
#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) number: u64,
    pub(super) publication: Publication,
    /// When Redis took it.
    pub(super) taken_at: Option<Instant>,
    /// Whether Redis may have it without the word that it was delivered here.
    pub(super) is_out: bool,
}

impl Kept {
    /// Whether it waits for Redis, and no subscriber here for it.
    fn is_unheard(&self) -> bool {
        self.way == Way::Done && self.taken_at.is_none() && matches!(self.what, What::Message(_))
    }
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self::bounded(MESSAGES_MAX)
    }

    pub(super) fn bounded(messages_max: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            // Not 1, so that there is a number in front of the first for what is lost.
            first: 2,
            taken_to: 2,
            is_sending: false,
            bytes: 0,
            bytes_waiting: 0,
            unheard: HashMap::new(),
            lost: HashMap::new(),
            lost_everywhere: None,
            unkept_at: None,
            messages_max,
            dropped: 0,
        }
    }

    /// The number that the next publication gets.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    /// Messages that Redis has not taken yet.
    pub(super) fn waiting(&self) -> usize {
        usize::try_from(self.next_number() - self.taken_to).unwrap_or(usize::MAX)
    }

    /// Whether Redis has all up to this number, or it is lost.
    pub(super) fn has_taken(&self, number: u64) -> bool {
        number < self.taken_to
    }

    /// Messages that were dropped before Redis had them, since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether `publication` would push one out that waits for Redis, or that subscribers here wait for.
    pub(super) fn is_full_for(&self, publication: &Publication) -> bool {
        let bytes = size(publication);
        if self.waiting() >= self.messages_max || self.bytes_waiting + bytes > BYTES_MAX {
            return true;
        }
        let is_awaited = |kept: &Kept| kept.way == Way::Awaited;
        let pushes = self.kept.len() >= self.messages_max || self.bytes + bytes > BYTES_MAX;
        pushes && self.kept.front().is_some_and(is_awaited)
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting() == 0 && self.lost.is_empty() && self.lost_everywhere.is_none()
    }

    /// Keeps a publication for Redis; the oldest that are kept make room.
    pub(super) fn submit(&mut self, now: Instant, publication: Publication, way: Way) {
        let bytes = size(&publication);
        let channel = publication.channel.clone();
        let what = What::Message(Box::new(publication));
        self.keep(now, channel, what, bytes, way);
    }

    /// Keeps a word about a channel for Redis.
    pub(super) fn submit_word(&mut self, now: Instant, channel: Channel, what: What) {
        self.keep(now, channel, what, size_of::<Kept>(), Way::Done);
    }

    fn keep(&mut self, now: Instant, channel: Channel, what: What, bytes: usize, way: Way) {
        self.bytes += bytes;
        self.bytes_waiting += bytes;
        let kept = Kept {
            channel,
            what,
            bytes,
            taken_at: None,
            way,
            is_moved: false,
        };
        if kept.is_unheard() {
            *self.unheard.entry(kept.channel.clone()).or_default() += 1;
        }
        self.kept.push_back(kept);
        while self.kept.len() > 1 && (self.kept.len() > self.messages_max || self.bytes > BYTES_MAX)
        {
            self.drop_oldest(now);
        }
    }

    /// The next batch; none while one is on its way, or nothing waits.
    pub(super) fn next_batch(&mut self) -> Option<Vec<Outgoing>> {
        if self.is_sending {
            return None;
        }
        let mut batch = self.losses();
        let mut bytes = 0;
        let from = usize::try_from(self.taken_to - self.first).unwrap_or(usize::MAX);
        for (number, kept) in (self.taken_to..).zip(self.kept.iter().skip(from)) {
            if batch.len() >= BATCH_MESSAGES || (bytes > 0 && bytes + kept.bytes > BATCH_BYTES) {
                break;
            }
            bytes += kept.bytes;
            batch.push(Outgoing {
                number,
                channel: kept.channel.clone(),
                is_ahead: kept.way == Way::Ahead || kept.is_moved,
                what: kept.what.clone(),
            });
        }
        self.is_sending = !batch.is_empty();
        self.is_sending.then_some(batch)
    }

    /// Redis has the batch, or had it before.
    pub(super) fn taken(&mut self, now: Instant, batch: &[Outgoing]) {
        self.is_sending = false;
        for entry in batch {
            if entry.number >= self.first {
                self.kept_taken(now, entry.number);
                continue;
            }
            // A loss is not kept: a Redis that forgets it makes a gap of everything.
            self.unkept_at = Some(now);
            if self.lost.get(&entry.channel) == Some(&entry.number) {
                self.lost.remove(&entry.channel);
            }
            if matches!(entry.what, What::GapEverywhere)
                && self
                    .lost_everywhere
                    .is_some_and(|number| number <= entry.number)
            {
                self.lost_everywhere = None;
            }
        }
    }

    fn kept_taken(&mut self, now: Instant, number: u64) {
        if number >= self.taken_to
            && let Some(kept) = self.get(number)
        {
            let unheard = kept.is_unheard().then(|| kept.channel.clone());
            kept.taken_at = Some(now);
            let bytes = kept.bytes;
            self.bytes_waiting -= bytes;
            self.is_heard(unheard.as_ref());
            self.taken_to = number + 1;
        }
    }

    /// A connection is there again, to the same data or to other: what was on its way is sent again, to other
    /// data also what the earlier had taken lately.
    pub(super) fn connected(&mut self, now: Instant, is_same_data: bool) {
        self.is_sending = false;
        if is_same_data {
            return;
        }
        self.taken_to = self.first;
        self.bytes_waiting = self.bytes;
        self.unheard.clear();
        for kept in &mut self.kept {
            kept.taken_at = None;
            kept.is_moved = true;
            if kept.is_unheard() {
                *self.unheard.entry(kept.channel.clone()).or_default() += 1;
            }
        }
        let unkept = self.unkept_at.take();
        if unkept.is_some_and(|at| now.saturating_duration_since(at) < KEPT_FOR * 2) {
            self.lost_everywhere = Some(self.first - 1);
        }
    }

    /// Lets go of what is old enough. Only while there is a connection: what Redis took before it went is what it
    /// may have lost. `is_awaited` tells of a channel whose subscribers here wait for what Redis took then.
    pub(super) fn prune(&mut self, now: Instant, is_awaited: impl Fn(&str, Instant) -> bool) {
        while let Some(oldest) = self.kept.front()
            && let Some(at) = oldest.taken_at
            && now.saturating_duration_since(at) >= KEPT_FOR
            && (oldest.way != Way::Awaited || !is_awaited(&oldest.channel, at))
        {
            self.bytes -= oldest.bytes;
            self.kept.pop_front();
            self.first += 1;
        }
    }

    /// The message of that number has come from Redis.
    pub(super) fn delivered(&mut self, number: u64) {
        if let Some(kept) = self.get(number)
            && kept.way == Way::Awaited
        {
            kept.way = Way::Done;
            let unheard = kept.is_unheard().then(|| kept.channel.clone());
            if let Some(channel) = unheard {
                *self.unheard.entry(channel).or_default() += 1;
            }
        }
    }

    /// From now on the channel's subscribers wait for what Redis does not have yet.
    pub(super) fn is_awaited(&mut self, channel: &str) {
        let Some(mut left) = self.unheard.remove(channel) else {
            return;
        };
        let taken = usize::try_from(self.taken_to - self.first).unwrap_or(usize::MAX);
        for kept in self.kept.iter_mut().skip(taken) {
            if *kept.channel == *channel && kept.is_unheard() {
                kept.way = Way::Awaited;
                left -= 1;
                if left == 0 {
                    return;
                }
            }
        }
    }

    /// All that this node's subscribers wait for, in order; from now on they have it ahead.
    pub(super) fn take_awaited(&mut self) -> Vec<Awaited> {
        let (first, taken_to, is_sending) = (self.first, self.taken_to, self.is_sending);
        let out_to = taken_to + u64::from(is_sending) * BATCH_MESSAGES as u64;
        (first..)
            .zip(&mut self.kept)
            .filter_map(|(number, kept)| {
                let What::Message(publication) = &kept.what else {
                    return None;
                };
                if kept.way != Way::Awaited {
                    return None;
                }
                kept.way = Way::Ahead;
                Some(Awaited {
                    number,
                    publication: Publication::clone(publication),
                    taken_at: kept.taken_at,
                    is_out: number < out_to,
                })
            })
            .collect()
    }

    /// One message of the channel waits no more.
    fn is_heard(&mut self, channel: Option<&Channel>) {
        if let Some(channel) = channel
            && let Some(count) = self.unheard.get_mut(channel)
        {
            *count -= 1;
            if *count == 0 {
                self.unheard.remove(channel);
            }
        }
    }

    fn get(&mut self, number: u64) -> Option<&mut Kept> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.kept.get_mut(index)
    }

    fn drop_oldest(&mut self, now: Instant) {
        let Some(oldest) = self.kept.pop_front() else {
            return;
        };
        self.bytes -= oldest.bytes;
        let unheard = oldest.is_unheard().then_some(&oldest.channel);
        self.is_heard(unheard);
        let number = self.first;
        self.first += 1;
        if oldest.taken_at.is_some() {
            self.unkept_at = Some(now);
            return;
        }
        self.taken_to = self.first;
        self.bytes_waiting -= oldest.bytes;
        self.dropped += 1;
        let channel = oldest.channel;
        if self.lost.len() < LOST_MAX || self.lost.contains_key(&channel) {
            self.lost.insert(channel, number);
        } else {
            self.lost_everywhere = Some(number);
        }
    }

    /// The gaps that the others are to be told of, in the order of their numbers.
    fn losses(&self) -> Vec<Outgoing> {
        let mut losses: BTreeMap<u64, Outgoing> = BTreeMap::new();
        for (channel, &number) in &self.lost {
            losses.insert(
                number,
                Outgoing {
                    number,
                    channel: channel.clone(),
                    is_ahead: false,
                    what: What::Gap,
                },
            );
        }
        if let Some(number) = self.lost_everywhere {
            losses.insert(
                number,
                Outgoing {
                    number,
                    channel: everywhere(),
                    is_ahead: false,
                    what: What::GapEverywhere,
                },
            );
        }
        losses.into_values().take(BATCH_MESSAGES).collect()
    }
}

/// The channel that all nodes follow, whatever they hold: no subscriber's, since theirs have names.
pub(super) fn everywhere() -> Channel {
    Arc::from("")
}

/// About what a publication takes in memory.
pub(super) fn size(publication: &Publication) -> usize {
    let content = |content: &Content| content.bytes.len();
    let stream = match &publication.stream {
        Some(StreamPart::Send(sent)) => content(sent),
        _ => 0,
    };
    let response = match &publication.response {
        Some(ResponsePart::Send(response)) => {
            response.fields.as_bytes().len() + content(&response.body)
        }
        _ => 0,
    };
    let websocket = match &publication.websocket {
        Some(SocketPart::Text(sent) | SocketPart::Binary(sent)) => content(sent),
        _ => 0,
    };
    let event = publication
        .event
        .as_ref()
        .map_or(0, |event| event.data.len());
    let meta: usize = publication
        .meta
        .iter()
        .map(|(name, value)| name.len() + value.len() + 32)
        .sum();
    size_of::<Kept>() + publication.channel.len() + stream + response + websocket + event + meta
}

#[cfg(test)]
mod tests;
