//! The counters of an agent's streams: totals, losses by cause, and changes since the last tick.
//!
//! `stream` and `agent` count here; `agent` takes an [`AgentTick`] at intervals.
//!
//! # Invariants
//!
//! - Nothing here grows with the number of streams or messages; histograms have a fixed size.

use std::collections::{BTreeMap, BTreeSet};

use hdrhistogram::{CreationError, Histogram};

use super::tls_sessions::CompletedHandshake;
use crate::hold::agent_protocol::{AgentTick, MessageReceipt};
use crate::hold::numbered_message::{MessageFinder, NumberedMessage};
use crate::load::new_histogram;
use crate::report::StreamCounts;

/// Why a stream is not held, described without a more specific reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum LossCause {
    #[error("the connection was refused")]
    Refused,
    #[error("the server is unreachable")]
    Unreachable,
    #[error("TLS handshake failed")]
    Tls,
    #[error("no connection and response in time")]
    Timeout,
    #[error("response status {0}")]
    Status(u16),
    #[error("not an HTTP/1 response")]
    Malformed,
    #[error("the server ended the response")]
    Ended,
    #[error("the server closed the connection")]
    Closed,
    #[error("the connection was reset")]
    Reset,
    #[error("nothing was received in time")]
    Silent,
    #[error("out of ports")]
    NoPort,
    #[error("out of descriptors")]
    NoDescriptor,
}

#[derive(Debug)]
pub(super) struct StreamCounters {
    pub(super) counts: StreamCounts,
    pub(super) reader: MessageFinder,
    statuses: BTreeMap<u16, u64>,
    /// Causes with a reported reason, and the reasons that were not sent yet.
    reported_causes: BTreeSet<&'static str>,
    first_reasons: BTreeMap<String, String>,
    opening: Histogram<u64>,
    full_handshakes: Histogram<u64>,
    resumed_handshakes: Histogram<u64>,
    latency: Histogram<u64>,
    messages: Vec<MessageReceipt>,
}

impl StreamCounters {
    pub(super) fn new(run: u32) -> Result<Self, CreationError> {
        Ok(Self {
            counts: StreamCounts::default(),
            reader: MessageFinder::new(run),
            statuses: BTreeMap::new(),
            reported_causes: BTreeSet::new(),
            first_reasons: BTreeMap::new(),
            opening: new_histogram()?,
            full_handshakes: new_histogram()?,
            resumed_handshakes: new_histogram()?,
            latency: new_histogram()?,
            messages: Vec::new(),
        })
    }

    /// Counts a stream that opened, and the microseconds it took.
    pub(super) fn record_open(&mut self, took: u64) {
        self.counts.opened += 1;
        self.counts.open += 1;
        self.counts.max_open = self.counts.max_open.max(self.counts.open);
        self.opening.saturating_record(took);
    }

    /// Counts a TLS handshake.
    pub(super) fn record_handshake(&mut self, done: CompletedHandshake) {
        let times = match done.is_resumed {
            true => &mut self.resumed_handshakes,
            false => &mut self.full_handshakes,
        };
        times.saturating_record(done.took);
    }

    /// Counts a lost stream.
    pub(super) fn record_loss(&mut self, loss: LossCause, why: impl FnOnce() -> String) {
        self.counts.lost.record(loss.name());
        if let LossCause::Status(status) = loss {
            *self.statuses.entry(status).or_default() += 1;
        }
        if self.reported_causes.insert(loss.name()) {
            self.first_reasons.insert(loss.name().to_owned(), why());
        }
    }

    /// Counts a message that arrived at a stream.
    pub(super) fn record_message(&mut self, message: NumberedMessage, now: u64) {
        let took = now.saturating_sub(message.sent_at).max(1);
        self.counts.received += 1;
        self.latency.saturating_record(took);
        // The latest messages are the last ones in the list.
        let from = self.messages.len().saturating_sub(RECENT_MESSAGES);
        let mut known = self.messages[from..].iter_mut().rev();
        if let Some(known) = known.find(|known| known.number == message.number) {
            known.streams += 1;
            known.slowest = known.slowest.max(took);
        } else if self.messages.len() < MAX_MESSAGES {
            // Beyond this only the times of last receipts are lost.
            self.messages.push(MessageReceipt {
                number: message.number,
                streams: 1,
                slowest: took,
            });
        }
    }

    /// Drains the changes into a tick and begins a new interval.
    pub(super) fn drain_into_tick(&mut self) -> AgentTick {
        AgentTick {
            counts: self.counts,
            statuses: self.statuses.clone(),
            first_reasons: std::mem::take(&mut self.first_reasons),
            opening: drain_histogram(&mut self.opening),
            full_handshakes: drain_histogram(&mut self.full_handshakes),
            resumed_handshakes: drain_histogram(&mut self.resumed_handshakes),
            latency: drain_histogram(&mut self.latency),
            messages: std::mem::take(&mut self.messages),
            ..AgentTick::default()
        }
    }
}

impl LossCause {
    /// The name in `LostStreams`.
    fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Status(_) => "status",
            Self::Malformed => "malformed",
            Self::Ended => "ended",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Silent => "silent",
            Self::NoPort => "no_port",
            Self::NoDescriptor => "no_descriptor",
        }
    }
}

/// Returns the recorded values with their counts, and clears the histogram.
fn drain_histogram(histogram: &mut Histogram<u64>) -> Vec<(u64, u64)> {
    let recorded = histogram.iter_recorded();
    let values = recorded.map(|at| (at.value_iterated_to(), at.count_since_last_iteration()));
    let values = values.collect();
    histogram.reset();
    values
}

/// Maximum messages per tick; later ones have no time of last receipt.
const MAX_MESSAGES: usize = 8192;

/// Streams get a message at nearly the same time: an arriving one is among the latest.
const RECENT_MESSAGES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_has_what_is_new() {
        let mut tally = StreamCounters::new(1).unwrap();
        tally.record_open(250);
        tally.record_loss(LossCause::Status(503), || "first".to_owned());
        tally.record_loss(LossCause::Status(500), || "second".to_owned());
        for (number, now) in [(1, 30), (2, 40), (1, 60)] {
            tally.record_message(
                NumberedMessage {
                    number,
                    sent_at: 10,
                },
                now,
            );
        }
        let tick = tally.drain_into_tick();
        assert_eq!((tick.counts.open, tick.counts.lost.status), (1, 2));
        assert_eq!(tick.statuses, BTreeMap::from([(500, 1), (503, 1)]));
        assert_eq!(tick.first_reasons["status"], "first");
        assert_eq!(tick.opening, [(250, 1)]);
        assert_eq!(tick.latency, [(20, 1), (30, 1), (50, 1)]);
        let arrived = |number, streams, last| MessageReceipt {
            number,
            streams,
            slowest: last,
        };
        assert_eq!(tick.messages, [arrived(1, 2, 50), arrived(2, 1, 30)]);
        let tick = tally.drain_into_tick();
        assert_eq!(tick.counts.received, 3, "counters go on");
        assert!(
            tick.first_reasons.is_empty() && tick.latency.is_empty() && tick.messages.is_empty()
        );
    }

    #[test]
    fn every_loss_is_counted_by_its_name() {
        let mut tally = StreamCounters::new(1).unwrap();
        let all = [
            LossCause::Refused,
            LossCause::Unreachable,
            LossCause::Tls,
            LossCause::Timeout,
            LossCause::Status(404),
            LossCause::Malformed,
            LossCause::Ended,
            LossCause::Closed,
            LossCause::Reset,
            LossCause::Silent,
            LossCause::NoPort,
            LossCause::NoDescriptor,
        ];
        for loss in all {
            tally.record_loss(loss, || loss.to_string());
        }
        let lost = tally.counts.lost;
        for loss in all {
            let causes = lost.causes();
            let found = causes.iter().find(|(name, _)| *name == loss.name());
            assert_eq!(found.unwrap().1, 1, "{loss:?}");
        }
        assert_eq!(lost.total(), 12);
    }

    #[test]
    fn messages_without_end_take_no_memory_without_end() {
        let mut tally = StreamCounters::new(1).unwrap();
        for number in 0..20_000 {
            tally.record_message(NumberedMessage { number, sent_at: 1 }, 5);
        }
        let tick = tally.drain_into_tick();
        assert_eq!((tick.messages.len(), tick.counts.received), (8192, 20_000));
    }
}
