//! Messages on their way to a shard's subscribers.
//!
//! Each channel with something to deliver has its turn, a few writes long; messages that came meanwhile go
//! out together, in one write for each subscriber. A delivery goes through the list of subscribers from
//! its end. What must stay true: whoever leaves in between gives its place to the last of the list, which
//! either had its turn or comes to a place whose turn is still to come, so nobody is passed over; each
//! subscriber knows the number of its next message, so nobody gets one twice, nor one that came before it;
//! a stream of several channels gets what waits for it in the others first, where that is older.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::backlog::Piece;
use super::inbox::Delivery;
use super::streams::StreamReader;
use super::{Shard, WRITE_BYTES};
use crate::channel::{Channel, Concern, FORMS, Message, Shape};
use crate::filters;
use crate::{Content, StreamForm, StreamPart};

/// A channel with subscribers in this shard.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) channel: Arc<Channel>,
    /// Their slots.
    pub(super) subscribers: Vec<u32>,
    work: Option<Box<Work>>,
    /// It stands in the line of those that have something to deliver.
    is_ready: bool,
    /// The last subscriber has left; the channel does not know of it any more.
    is_left: bool,
}

#[derive(Debug, Default)]
struct Work {
    pending: VecDeque<Arc<Message>>,
    batch: Option<Batch>,
}

/// Messages of several channels, each with where the shard keeps its channel.
type Older = Vec<(u32, Arc<Message>)>;

/// Messages that go out together.
#[derive(Debug)]
struct Batch {
    messages: Vec<Arc<Message>>,
    concern: Concern,
    /// What each shape's subscribers get of all of them, with the number of messages.
    joined: [Option<(Bytes, u32)>; FORMS],
    /// How many subscribers are left, from the end of the list.
    left: usize,
}

/// Messages that were joined are at most this long together, unless there is only one: what a socket that
/// keeps up takes at once.
const BATCH_BYTES: usize = 32 << 10;

/// Subscribers that a channel serves in its turn.
const SHARE: usize = 32;

impl Local {
    pub(super) fn new(channel: Arc<Channel>) -> Self {
        Self {
            channel,
            subscribers: Vec::new(),
            work: None,
            is_ready: false,
            is_left: false,
        }
    }
}

impl Batch {
    /// The next messages that can go out together.
    fn form(pending: &mut VecDeque<Arc<Message>>, subscribers: usize) -> Option<Self> {
        let first = pending.pop_front()?;
        let concern = first.concern();
        let mut bytes = first.cost;
        let mut messages = vec![first];
        while concern == Concern::Same
            && let Some(next) = pending.front()
            && next.concern() == concern
            && bytes + next.cost <= BATCH_BYTES
        {
            bytes += next.cost;
            messages.extend(pending.pop_front());
        }
        Some(Self {
            messages,
            concern,
            joined: Default::default(),
            left: subscribers,
        })
    }

    fn last(&self) -> u64 {
        self.messages.last().map_or(0, |message| message.order)
    }

    fn cost(&self) -> usize {
        self.messages.iter().map(|message| message.cost).sum()
    }

    /// What a subscriber of this shape gets whose next message is `next`, and how many messages that is.
    fn bytes_for(&mut self, shape: Shape, next: u64) -> (Bytes, u32) {
        let first = self.messages.first().map_or(0, |message| message.order);
        if next > first {
            let rest = self.messages.iter().filter(|message| message.order >= next);
            return join(rest, shape);
        }
        let joined = &mut self.joined[shape.index()];
        let (bytes, count) = joined.get_or_insert_with(|| join(self.messages.iter(), shape));
        (bytes.clone(), *count)
    }
}

fn join<'a>(
    messages: impl Iterator<Item = &'a Arc<Message>> + Clone,
    shape: Shape,
) -> (Bytes, u32) {
    let framed = messages.map(|message| message.framed(shape));
    let framed = framed.filter(|bytes| !bytes.is_empty());
    let count = framed.clone().count();
    if count == 1
        && let Some(only) = framed.clone().next()
    {
        return (only.clone(), 1);
    }
    let joined: Vec<u8> = framed.flatten().copied().collect();
    (joined.into(), u32::try_from(count).unwrap_or(u32::MAX))
}

impl Shard {
    /// Puts a message in its channel's line.
    pub(super) fn enqueue(&mut self, delivery: Delivery) {
        let Delivery {
            slot,
            channel,
            message,
        } = delivery;
        match self.locals.get_mut(slot) {
            // A slot may have another channel by now.
            Some(local) if !local.is_left && Arc::ptr_eq(&local.channel, &channel) => {
                let work = local.work.get_or_insert_default();
                work.pending.push_back(message);
                if !std::mem::replace(&mut local.is_ready, true) {
                    self.ready.push_back(slot);
                }
            }
            _ => self.shared.tally.take_pending(&channel, message.cost),
        }
    }

    /// Delivers, in turns, to about `budget` subscribers.
    pub(super) fn deliver(&mut self, budget: usize) {
        let mut used = 0;
        while used < budget
            && let Some(slot) = self.ready.pop_front()
        {
            used += self.deliver_channel(slot).max(1);
        }
    }

    /// One turn of a channel; how many subscribers had theirs.
    fn deliver_channel(&mut self, slot: u32) -> usize {
        let work = self
            .locals
            .get_mut(slot)
            .and_then(|local| local.work.take());
        let Some(mut work) = work else {
            self.end_turn(slot, None);
            return 0;
        };
        let mut used = 0;
        while used < SHARE {
            let subscribers = self.locals.get(slot).map_or(0, |l| l.subscribers.len());
            let formed = work.batch.take();
            let formed = formed.or_else(|| Batch::form(&mut work.pending, subscribers));
            let Some(mut batch) = formed else {
                break;
            };
            batch.left = batch.left.min(subscribers);
            if batch.left == 0 {
                if let Some(local) = self.locals.get(slot) {
                    let tally = &self.shared.tally;
                    tally.take_pending(&local.channel, batch.cost());
                }
                continue;
            }
            batch.left -= 1;
            let stream = self.locals.get(slot).map(|l| l.subscribers[batch.left]);
            if let Some(stream) = stream {
                let sent = self.sent_bytes;
                self.deliver_to(stream, slot, &mut batch);
                used += (self.sent_bytes - sent) / WRITE_BYTES;
            }
            work.batch = Some(batch);
            used += 1;
        }
        self.end_turn(slot, Some(work));
        used
    }

    /// Puts a channel in line again, if something is left, or takes it out.
    fn end_turn(&mut self, slot: u32, work: Option<Box<Work>>) {
        let Some(local) = self.locals.get_mut(slot) else {
            return;
        };
        if local.is_left {
            let gone = work.or_else(|| local.work.take());
            let channel = local.channel.clone();
            self.locals.remove(slot);
            self.discard(&channel, gone);
            return;
        }
        let has_more = work
            .as_ref()
            .is_some_and(|work| work.batch.is_some() || !work.pending.is_empty());
        local.is_ready = has_more;
        if has_more {
            local.work = work;
            self.ready.push_back(slot);
        }
    }

    /// The last subscriber of a channel has left, and its home is given back.
    pub(super) fn leave_channel(&mut self, slot: u32) {
        let Some(local) = self.locals.get_mut(slot) else {
            return;
        };
        local.is_left = true;
        self.list_bytes -= local.subscribers.capacity() * size_of::<u32>();
        local.subscribers = Vec::new();
        // One in line goes when its turn comes: until then nobody else may have the slot.
        if !local.is_ready
            && let Some(local) = self.locals.remove(slot)
        {
            self.discard(&local.channel, local.work);
        }
    }

    fn discard(&self, channel: &Channel, work: Option<Box<Work>>) {
        if let Some(work) = work {
            let pending: usize = work.pending.iter().map(|message| message.cost).sum();
            let batch = work.batch.as_ref().map_or(0, Batch::cost);
            let tally = &self.shared.tally;
            tally.take_pending(channel, pending + batch);
        }
    }

    fn deliver_to(&mut self, stream: u32, channel: u32, batch: &mut Batch) {
        let Some(held) = self.streams.get_mut(stream) else {
            return;
        };
        let shape = held.shape;
        let Some((link, filters)) = held.link_mut(channel) else {
            return;
        };
        let is_each = batch.concern == Concern::Each || !filters.is_empty();
        let next = link.next;
        if next > batch.last() {
            return;
        }
        link.next = batch.last() + 1;
        let older = self.take_older(stream, channel, batch.last());
        if !older.is_empty() {
            let own = batch.messages.iter().filter(|each| each.order >= next);
            self.deliver_merged(stream, older, own.map(|each| (channel, each.clone())));
            return;
        }
        match batch.concern {
            Concern::None => {}
            Concern::End => self.end(stream),
            Concern::Gap if shape.form() == StreamForm::Bytes => self.end(stream),
            Concern::Gap => {
                let (bytes, messages) = batch.bytes_for(shape, next);
                self.write(stream, Piece::live(bytes, messages));
            }
            Concern::Same | Concern::Each if is_each => {
                for message in batch.messages.iter().filter(|each| each.order >= next) {
                    if let Some(bytes) = self.made_for(stream, channel, message) {
                        self.write(stream, Piece::live(bytes, 1));
                    }
                }
            }
            Concern::Same | Concern::Each => {
                let (bytes, messages) = batch.bytes_for(shape, next);
                if !bytes.is_empty() {
                    self.write(stream, Piece::live(bytes, messages));
                }
            }
        }
    }

    /// What waits for this stream in its other channels and was published before the message of this order:
    /// a client that comes back names one message, which stands for all before it.
    fn take_older(&mut self, stream: u32, channel: u32, before: u64) -> Older {
        let mut older = Older::new();
        // Nothing waits in any other channel.
        if self.ready.is_empty() {
            return older;
        }
        let Some(held) = self.streams.get_mut(stream) else {
            return older;
        };
        let Some(extra) = &mut held.extra else {
            return older;
        };
        for link in [&mut held.first].into_iter().chain(&mut extra.others) {
            if link.channel == channel {
                continue;
            }
            let local = self.locals.get(link.channel);
            let Some(work) = local.and_then(|local| local.work.as_ref()) else {
                continue;
            };
            let next = link.next;
            let begun = work.batch.iter().flat_map(|batch| &batch.messages);
            let from = work.pending.partition_point(|each| each.order < next);
            let waiting = begun.chain(work.pending.range(from..));
            let waiting = waiting.skip_while(|message| message.order < next);
            for message in waiting.take_while(|message| message.order < before) {
                link.next = message.order + 1;
                older.push((link.channel, message.clone()));
            }
        }
        older
    }

    /// Delivers messages of several channels in the order in which they were published.
    fn deliver_merged(
        &mut self,
        stream: u32,
        mut messages: Older,
        own: impl Iterator<Item = (u32, Arc<Message>)>,
    ) {
        messages.extend(own);
        messages.sort_by_key(|(_, message)| message.order);
        let (mut joined, mut count) = (Vec::new(), 0);
        for (channel, message) in messages {
            let Some(held) = self.streams.get_mut(stream) else {
                return;
            };
            let shape = held.shape;
            let has_filters = held
                .link_mut(channel)
                .is_some_and(|(_, filters)| !filters.is_empty());
            let concern = message.concern();
            if concern == Concern::Same && !has_filters {
                let bytes = message.framed(shape);
                if !joined.is_empty() && joined.len() + bytes.len() > BATCH_BYTES {
                    let bytes = std::mem::take(&mut joined).into();
                    self.write(stream, Piece::live(bytes, std::mem::take(&mut count)));
                }
                joined.extend_from_slice(bytes);
                count += u32::from(!bytes.is_empty());
                continue;
            }
            if concern == Concern::None {
                continue;
            }
            if !joined.is_empty() {
                let bytes = std::mem::take(&mut joined).into();
                self.write(stream, Piece::live(bytes, std::mem::take(&mut count)));
            }
            if concern == Concern::End {
                return self.end(stream);
            }
            if let Some(bytes) = self.made_for(stream, channel, &message) {
                self.write(stream, Piece::live(bytes, 1));
            }
        }
        if !joined.is_empty() {
            self.write(stream, Piece::live(joined.into(), count));
        }
    }

    /// What this stream gets of a message, if anything: its filters decide, and change it.
    pub(super) fn made_for(
        &mut self,
        stream: u32,
        channel: u32,
        message: &Message,
    ) -> Option<Bytes> {
        let filters = {
            let (_, filters) = self.streams.get_mut(stream)?.link_mut(channel)?;
            filters.to_vec()
        };
        let held = self.streams.get(stream)?;
        let reader = StreamReader {
            held,
            locals: &self.locals,
        };
        if !filters::passes(&filters, &message.publication.meta, &reader) {
            return None;
        }
        let encoded;
        let content = match &message.publication.stream {
            Some(StreamPart::Send(content)) => content,
            _ => {
                encoded = Content {
                    bytes: message.payload(held.shape.form()),
                    filters: Vec::new(),
                };
                &encoded
            }
        };
        match filters::render(content, &filters, &reader) {
            Ok(bytes) if bytes.is_empty() => None,
            Ok(bytes) => Some(held.shape.frame(bytes)),
            Err(e) => {
                let name = &message.publication.channel;
                log::debug!("hub: channel {name:?}: a message is not sent to one stream: {e}");
                self.done.dropped += 1;
                None
            }
        }
    }
}
