//! One channel that this node follows: what came of it, and whether it is whole. Pure.
//!
//! A channel is subscribed to in Redis, then read once (its history), and from then on is live: each entry
//! that comes names the one before it. After a lost connection, or where an entry does not fit, what is
//! missing is read from the channel's stream. Driven by [`super::follows`]. What must stay true: an entry is
//! delivered once, in the order of the stream; where the stream does not reach back to what came last, that
//! is announced before anything else is delivered.

use std::time::{Duration, Instant};

use super::entry::{Channel, Entry, NodeId, Position, What};
use super::follows::{Effect, Terms};
use super::seen::Seen;
use crate::Publication;

/// Entries that come while a channel is being read; with more, it is read on.
const HELD_MAX: usize = 256;

/// How long a subscriber waits for a channel to be live, before it comes all the same.
pub(super) const PREPARED_WITHIN: Duration = Duration::from_millis(500);

/// How far Redis' clock of a stream's end may be from ours.
const SLACK: Duration = Duration::from_secs(1);

/// One channel.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) state: State,
    /// The last entry that came; none before the history was read.
    last: Option<Position>,
    /// When it came.
    last_at: Instant,
    seen: Seen,
    held: Vec<Entry>,
    /// Something had to be let go of while it was read: read on.
    again: bool,
    /// Something is lost, and not announced yet.
    is_torn: bool,
    /// What the next reading has to show.
    check: Check,
    /// When the first subscriber came, if the history had not: it may have missed something.
    early_since: Option<Instant>,
    /// The last reading that was asked for, and when.
    asked: Option<(u64, Instant)>,
    /// When the history was asked for that was read.
    loaded_at: Option<Instant>,
    /// How many messages were delivered here that Redis had not taken; and how many at the last reading.
    ahead: u64,
    ahead_when_asked: u64,
    /// Without a subscriber since; none is with one.
    pub(super) idle_since: Option<Instant>,
    /// Whether it is in the line of those that are idle.
    pub(super) is_listed: bool,
}

/// How far it has come on this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// To be subscribed to, or there is no connection.
    Away,
    /// Redis was asked.
    Subscribing,
    /// Its stream is being read, or about to be.
    Reading,
    /// What is published comes.
    Live,
}

/// What a reading has to show, so that nothing is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// That it continues what came last.
    Continues,
    /// That what came last is there; else it is read from its start.
    IsThere,
    /// From its start: that it reaches back to what had come.
    ReachesBack,
    /// Nothing: that something is missing was announced.
    Nothing,
}

/// What is known of the streams behind a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// They are those of the last one.
    Same,
    /// They are those of the last one or an older state of them, into which the nodes put again what may be lost.
    Older,
    /// They are others, into which the nodes put again what the last ones may have lost.
    Other,
    /// They are others, and what was in the last ones is gone.
    Lost,
}

/// What is to be read of a channel's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) channel: Channel,
    /// From this entry on, itself included; none is the newest of its history.
    pub(super) from: Option<Position>,
    /// By which its answer is known.
    pub(super) number: u64,
}

/// What Redis had of it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) channel: Channel,
    /// The reading's.
    pub(super) number: u64,
    pub(super) entries: Vec<Entry>,
    /// Whether there was no more.
    pub(super) is_end: bool,
}

impl Follow {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Away,
            last: None,
            last_at: now,
            seen: Seen::default(),
            held: Vec::new(),
            again: false,
            is_torn: false,
            check: Check::Continues,
            early_since: None,
            asked: None,
            loaded_at: None,
            ahead: 0,
            ahead_when_asked: 0,
            idle_since: None,
            is_listed: false,
        }
    }

    /// Whether its history was read.
    pub(super) fn is_loaded(&self) -> bool {
        self.last.is_some()
    }

    /// Entries that wait for a reading to end.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// A subscriber is there.
    pub(super) fn subscribed(&mut self, now: Instant) {
        self.idle_since = None;
        if !self.is_loaded() {
            self.early_since.get_or_insert(now);
        }
    }

    /// The connection is gone.
    pub(super) fn disconnected(&mut self) {
        self.state = State::Away;
        self.held.clear();
        self.again = false;
    }

    /// Another connection is there.
    pub(super) fn connected(&mut self, trust: Trust) {
        self.state = State::Away;
        match trust {
            Trust::Same => {}
            Trust::Older if self.last == Some(Position::START) => self.check = Check::ReachesBack,
            Trust::Older if self.is_loaded() => self.check = Check::IsThere,
            Trust::Older => {}
            Trust::Other | Trust::Lost => {
                self.last = self.last.map(|_| Position::START);
                self.check = Check::Continues;
            }
        }
        let is_early = self.early_since.is_some() && trust != Trust::Same;
        self.is_torn |= trust == Trust::Lost || is_early;
    }

    /// What to read next.
    pub(super) fn next_read(&mut self, now: Instant, channel: &Channel, number: u64) -> Read {
        self.asked = Some((number, now));
        self.ahead_when_asked = self.ahead;
        Read {
            channel: channel.clone(),
            from: self.last,
            number,
        }
    }

    /// A message of this node, delivered here before Redis has it. False when it was there already.
    pub(super) fn deliver_ahead(&mut self, me: NodeId, number: u64) -> bool {
        let origin = super::entry::Origin { node: me, number };
        let is_new = self.seen.is_new(origin);
        self.ahead += u64::from(is_new);
        is_new
    }

    /// Whether a message that Redis took at `taken_at` came before this channel's history was read: then it is in
    /// there, or older than it.
    pub(super) fn covers(&self, taken_at: Option<Instant>) -> bool {
        let both = taken_at.zip(self.loaded_at);
        both.is_some_and(|(taken, loaded)| taken < loaded)
    }

    /// What was read of the stream. True when there is more to read.
    pub(super) fn read(&mut self, terms: &Terms, part: Part, effects: &mut Vec<Effect>) -> bool {
        let Part {
            channel,
            number,
            entries,
            is_end,
        } = part;
        let channel = &channel;
        let is_asked = self.asked.is_some_and(|(asked, _)| asked == number);
        if self.state != State::Reading || !is_asked {
            return false;
        }
        let mut more = !is_end;
        match self.last {
            // Its history would miss what was delivered here meanwhile.
            None if self.ahead != self.ahead_when_asked => return true,
            None => {
                self.load(terms, channel, entries, effects);
                more = false;
            }
            Some(last) => more |= self.continue_from(terms, channel, last, entries, effects),
        }
        if more {
            return true;
        }
        for entry in std::mem::take(&mut self.held) {
            if self.last.is_some_and(|last| entry.position <= last) {
                // It was read, or is of what was announced to be missing.
                self.pass(terms, &entry, effects);
                continue;
            }
            if !self.fits(terms, &entry) {
                torn(channel, effects);
            }
            self.take(terms, entry, effects);
        }
        if std::mem::take(&mut self.again) {
            return true;
        }
        self.state = State::Live;
        effects.push(Effect::Ready(channel.clone()));
        false
    }

    /// The history: for clients that come back, not for those that are here.
    fn load(
        &mut self,
        terms: &Terms,
        channel: &Channel,
        entries: Vec<Entry>,
        effects: &mut Vec<Effect>,
    ) {
        let mut history: Vec<(Publication, Duration)> = Vec::new();
        // Whether the stream had nothing before, as far as it reaches back.
        let is_whole = entries
            .first()
            .is_none_or(|first| first.before == Position::START);
        let mut any_new = false;
        self.last = Some(Position::START);
        for entry in entries {
            self.last = Some(entry.position);
            let is_new = self.seen.is_new(entry.origin);
            any_new |= is_new;
            if entry.origin.node == terms.me {
                effects.push(Effect::Delivered(entry.origin.number));
            }
            match entry.what {
                // Everything up to here was torn when some node lost messages.
                What::Message(_) if entry.position <= terms.torn_to => history.clear(),
                What::Message(_) if entry.is_ahead => history.clear(),
                What::Message(publication) if is_new => {
                    let age = terms.clock.age(terms.now, entry.position);
                    history.push((*publication, age));
                }
                What::Message(_) => {}
                What::Gap | What::Cut => history.clear(),
                What::GapEverywhere | What::CutEverywhere => {
                    effects.push(Effect::Torn(entry.position));
                }
            }
        }
        self.last_at = terms.now;
        self.loaded_at = self.asked.map(|(_, at)| at);
        let is_torn = std::mem::take(&mut self.is_torn);
        effects.push(Effect::Restore(channel.clone(), history));
        if let Some(since) = self.early_since.take()
            && (any_new || is_torn || !is_whole || terms.since(since) >= terms.kept)
        {
            effects.push(Effect::Announce(channel.clone()));
        }
    }

    /// True when it is to be read again.
    fn continue_from(
        &mut self,
        terms: &Terms,
        channel: &Channel,
        last: Position,
        entries: Vec<Entry>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let check = std::mem::replace(&mut self.check, Check::Continues);
        let is_torn = std::mem::take(&mut self.is_torn);
        let first = entries.first();
        let is_whole = match check {
            Check::Continues => self.continues(terms, last, first),
            Check::IsThere => first.is_some_and(|first| first.position == last && self.had(first)),
            Check::ReachesBack => self.reaches_back(terms, first),
            Check::Nothing => true,
        };
        if check == Check::IsThere && !is_whole {
            self.is_torn = is_torn;
            self.last = Some(Position::START);
            self.check = Check::ReachesBack;
            return true;
        }
        if is_torn || !is_whole {
            torn(channel, effects);
            if entries.is_empty() && last != Position::START {
                // It ends before what came last: all of it is another one.
                self.last = Some(Position::START);
                self.check = Check::Nothing;
                return true;
            }
        }
        for entry in entries {
            if entry.position != last {
                self.take(terms, entry, effects);
            }
        }
        false
    }

    /// Whether an older state of the stream, of which `first` is the first entry, misses nothing that had not come
    /// and is not published again.
    fn reaches_back(&self, terms: &Terms, first: Option<&Entry>) -> bool {
        match first {
            Some(first) if first.before != Position::START => {
                // Of its own and of what went ahead it may have had those that come later.
                self.had(first) && first.origin.node != terms.me && !first.is_ahead
            }
            // It may have come and gone meanwhile, if that was long.
            _ => terms.since(terms.whole_at) < terms.kept,
        }
    }

    /// Whether an entry came before.
    fn had(&self, entry: &Entry) -> bool {
        self.seen.last_of(entry.origin.node) >= Some(entry.origin.number)
    }

    /// Whether a stream that begins with `first`, of those from `last` on, misses nothing behind `last`.
    fn continues(&self, terms: &Terms, last: Position, first: Option<&Entry>) -> bool {
        match first {
            Some(first) if first.position == last => true,
            Some(first) if first.before != Position::START => first.before == last,
            // The stream is gone, or was and is a new one. It goes with its age, counted from its last entry;
            // one that came meanwhile would have kept it.
            _ => self.may_be_over(terms) && terms.since(terms.whole_at) < terms.kept,
        }
    }

    /// Whether the stream may have gone since its last entry that came.
    fn may_be_over(&self, terms: &Terms) -> bool {
        self.last == Some(Position::START) || terms.since(self.last_at) + SLACK >= terms.kept
    }

    /// An entry was published. True when the stream is to be read.
    pub(super) fn heard(&mut self, terms: &Terms, entry: Entry, effects: &mut Vec<Effect>) -> bool {
        match self.state {
            State::Live => {}
            State::Reading => {
                self.hold(terms, entry);
                return false;
            }
            // It will be read.
            State::Away | State::Subscribing => return false,
        }
        if self.fits(terms, &entry) {
            self.take(terms, entry, effects);
            return false;
        }
        self.state = State::Reading;
        self.hold(terms, entry);
        true
    }

    /// Whether nothing is missing before it; or it was there before.
    fn fits(&self, terms: &Terms, entry: &Entry) -> bool {
        let last = self.last.unwrap_or_default();
        entry.before == last
            || self.had(entry)
            || (entry.before == Position::START && self.may_be_over(terms))
    }

    fn hold(&mut self, terms: &Terms, entry: Entry) {
        // Behind one that was let go of nothing fits.
        self.again |= self.held.len() >= HELD_MAX || terms.held_all >= terms.held_max;
        if !self.again {
            self.held.push(entry);
        }
    }

    /// An entry that is not delivered any more.
    fn pass(&self, terms: &Terms, entry: &Entry, effects: &mut Vec<Effect>) {
        if entry.origin.node == terms.me {
            effects.push(Effect::Delivered(entry.origin.number));
        }
    }

    /// An entry in its place.
    fn take(&mut self, terms: &Terms, entry: Entry, effects: &mut Vec<Effect>) {
        let is_new = self.seen.is_new(entry.origin);
        let is_mine = entry.origin.node == terms.me;
        if is_mine {
            effects.push(Effect::Delivered(entry.origin.number));
        }
        let advances = self.last.is_none_or(|last| entry.position > last);
        if is_new || advances {
            self.last = Some(entry.position);
            self.last_at = terms.now;
        }
        match entry.what {
            What::Message(publication) => {
                if is_new {
                    effects.push(Effect::Deliver(publication));
                }
                // It came here in another order than it has in the stream.
                if entry.is_ahead || (!is_new && advances) {
                    effects.push(Effect::Restore(entry.channel, Vec::new()));
                }
            }
            What::Gap if is_new && !is_mine => torn(&entry.channel, effects),
            What::Gap | What::Cut => effects.push(Effect::Restore(entry.channel, Vec::new())),
            What::GapEverywhere | What::CutEverywhere => {
                let is_gap = matches!(entry.what, What::GapEverywhere);
                let announced = is_new && !is_mine && is_gap;
                effects.push(Effect::Torn(entry.position));
                effects.push(Effect::CutEverywhere { announced });
            }
        }
    }
}

/// What follows does not continue what came before, and all are told.
fn torn(channel: &Channel, effects: &mut Vec<Effect>) {
    effects.push(Effect::Restore(channel.clone(), Vec::new()));
    effects.push(Effect::Announce(channel.clone()));
}

#[cfg(test)]
mod tests;
