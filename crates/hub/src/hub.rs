//! The hub's interface: hold, wait, publish, count, drain.

mod arriving_stream;
mod bus;
mod history_replacement;
mod long_polls;
mod maintenance;
mod message_listener;
mod presence;
mod publish;
mod shared;

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{AddressPrefix, Body, Fault, FaultKind, Response, StreamRefusal};
use penstock_http::RequestHead;
use penstock_runtime::{LoopHandle, clock};

pub(crate) use arriving_stream::{ArrivingStream, PendingSubscription, StreamRequest};
pub use bus::{Bus, CatchUpFuture, PrepareChannelsFuture, SharedChannelState};
pub use history_replacement::SharedHistory;
pub(crate) use long_polls::LongPollWaiter;
pub(crate) use message_listener::MessageSink;
pub use message_listener::{ListenerEvent, ListenerPosition, MessageListener};
pub use presence::{ChannelFilter, ChannelPresence};
pub(crate) use publish::PublicationSource;
pub(crate) use shared::HubShared;

use crate::counters::StreamPermit;
use crate::hub_route::event_stream_response;
use crate::shard::{Shard, ShardCommand, TickClock};
use crate::{
    DrainPlan, HeldStream, LongPoll, LongPollOutcome, MESSAGE_ID_EXPECTED, Publication,
    RefusalPolicy, Settings, StreamForm, StreamKeepAlive, return_schedule,
};

/// All held streams of this process. Cheap to clone; clones are the same hub.
#[derive(Debug, Clone)]
pub struct Hub {
    pub(crate) shared: Arc<HubShared>,
}

/// Why a stream was not held or a message not published. The texts are for the log and for
/// responses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HubError {
    /// `hub.max_streams` are held.
    #[error("hub.max_streams ({0}) connections are held")]
    TooManyStreams(usize),
    /// One client has `hub.max_streams_per_client`.
    #[error("{0} holds hub.max_streams_per_client ({1}) connections")]
    TooManyClientStreams(AddressPrefix, usize),
    /// `hub.max_channels` are there.
    #[error("hub.max_channels ({0}) channels are in use")]
    TooManyChannels(usize),
    /// Three quarters of them exist: channels without subscribers leave the rest to streams.
    #[error("{0} channels are in use: the rest of hub.max_channels is for those who listen")]
    TooManyUnsubscribedChannels(usize),
    /// One namespace has its fair share of these.
    #[error(
        "{0} channels that nobody hears are in use by this namespace: the rest of hub.max_channels is for others"
    )]
    TooManyNamespaceUnsubscribedChannels(usize),
    /// More than `hub.max_channels_per_stream`.
    #[error("a stream may have hub.max_channels_per_stream ({0}) channels")]
    TooManyStreamChannels(usize),
    /// More than `hub.max_message_size`.
    #[error("a message may have hub.max_message_size ({0}) bytes")]
    MessageTooLarge(usize),
    /// Its id, or that of the message before it, cannot be returned by a browser.
    #[error("the `{0}` of a message is {MESSAGE_ID_EXPECTED}")]
    InvalidMessageId(&'static str),
    /// Published faster than it can be delivered: `hub.max_backlog_total` wait for their turn, or a
    /// quarter of that in this channel.
    #[error(
        "more than {0} bytes of messages wait to be delivered (hub.max_backlog_total, or a quarter of it in one channel)"
    )]
    DeliveryBacklogFull(usize),
    /// One namespace has its fair share of `hub.max_backlog_total`.
    #[error(
        "{0} bytes of messages of this namespace wait to be delivered: the rest of hub.max_backlog_total is for others"
    )]
    NamespaceDeliveryBacklogFull(usize),
    /// The server stops.
    #[error("the server stops")]
    Draining,
}

impl From<HubError> for Fault {
    fn from(refused: HubError) -> Self {
        let kind = match refused {
            HubError::MessageTooLarge(_) => FaultKind::BodyTooLarge,
            HubError::InvalidMessageId(_) => FaultKind::BadRequest,
            // The back end exceeds a bound that no request can change.
            HubError::TooManyStreamChannels(_) => FaultKind::BackendProtocolError,
            _ => FaultKind::Overloaded,
        };
        Self::new(kind, refused.to_string())
    }
}

/// The hub's counters, since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct HubCounters {
    /// Streams held.
    pub opened: u64,
    /// Streams that ended, for whatever reason.
    pub closed: u64,
    /// Of these, those that were ended for being slow.
    #[serde(rename = "closed_slow")]
    pub closed_as_slow: u64,
    /// Messages published.
    pub published: u64,
    /// Messages written to subscribers, one for each.
    pub delivered: u64,
    /// Messages that slow subscribers lost.
    pub dropped: u64,
    /// Heartbeats written.
    pub heartbeats: u64,
}

impl Hub {
    /// A hub with a shard on each of `loops`, of which there is at least one.
    ///
    /// # Errors
    /// When descriptors ran out.
    pub fn start(settings: Settings, loops: &[LoopHandle]) -> io::Result<Self> {
        Self::start_with_ticks(settings, loops, TickClock::real_time())
    }

    /// As [`Hub::start`], with ticks of another length.
    pub(crate) fn start_with_ticks(
        settings: Settings,
        loops: &[LoopHandle],
        pace: TickClock,
    ) -> io::Result<Self> {
        let sets: Vec<_> = loops
            .iter()
            .map(|_| penstock_sys::poll::create())
            .collect::<Result<_, _>>()?;
        let shared = Arc::new(HubShared::new(settings, sets.len()));
        for (number, (each, set)) in loops.iter().zip(sets).enumerate() {
            let number = u16::try_from(number).map_err(io::Error::other)?;
            each.spawn(Shard::run(shared.clone(), number, set, pace));
        }
        if let Some(first) = loops.first() {
            first.spawn(maintenance::run_maintenance(shared.clone()));
        }
        Ok(Self { shared })
    }

    /// Replaces the bounds. A stream that is held keeps its heartbeat.
    pub fn configure(&self, settings: Settings) {
        self.shared.settings.store(Arc::new(settings));
    }

    /// Divides shared bounds among so many namespaces.
    pub fn set_namespace_count(&self, namespaces: usize) {
        self.shared
            .registry
            .namespace_usages
            .set_namespace_count(namespaces);
    }

    /// The present bounds.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        self.shared.settings.load_full()
    }

    /// The heartbeat of a stream of events whose route has these settings.
    #[must_use]
    pub fn event_heartbeat(
        &self,
        event: Option<&str>,
        interval: Option<Duration>,
    ) -> StreamKeepAlive {
        let settings = self.shared.settings.load();
        StreamKeepAlive::for_events(
            event.or(settings.heartbeat_event.as_deref()),
            interval.unwrap_or(settings.heartbeat_interval),
        )
    }

    /// The body of a response that becomes a held stream on the loop that its client is on. The
    /// permit for `max_streams` is acquired now, and released if the body is dropped before its
    /// head was sent. It gets messages published to its channels from now on.
    /// [`HeldStream::on_end`] is called also when it is refused or never held.
    ///
    /// # Errors
    /// Which bound is met.
    pub fn stream_body(&self, stream: HeldStream) -> Result<Body, HubError> {
        let holding = ArrivingStream::new(&self.shared, stream)?;
        Ok(Body::Hold(Box::new(holding)))
    }

    /// Waits for a message of these channels. Dropping the future ends the wait.
    ///
    /// # Errors
    /// Which bound is met.
    pub fn long_poll(
        &self,
        poll: LongPoll,
    ) -> Result<Pin<Box<dyn Future<Output = LongPollOutcome> + Send>>, HubError> {
        Ok(Box::pin(long_polls::register_long_poll(
            &self.shared,
            poll,
        )?))
    }

    /// The body of a stream of events that was refused, in place of an error, by which
    /// `hub.refusal_policy` makes the client return later. `None` if the client is to get the
    /// error: one that is no browser's `EventSource` returns by itself. Logs a warning.
    ///
    /// While the server stops each client is taken for an `EventSource`: its stream would end now.
    #[must_use]
    pub fn refused_stream_body(
        &self,
        head: &RequestHead,
        client: Option<AddressPrefix>,
        refused: &HubError,
    ) -> Option<Body> {
        let is_told = match refused {
            HubError::Draining => true,
            // No later request fares better.
            HubError::TooManyStreamChannels(_) => false,
            _ => head.is_event_source(),
        };
        is_told.then(|| self.refuse(client, refused))?
    }

    fn refuse(&self, client: Option<AddressPrefix>, cause: &dyn Display) -> Option<Body> {
        let settings = self.settings();
        if settings.refusal_policy == RefusalPolicy::Error {
            return None;
        }
        if let Some(delay) = self.shared.next_drain_return_delay() {
            return Some(Body::Bytes(return_schedule::retry_event(delay)));
        }
        let fraction = self.shared.return_fractions.next_fraction();
        let delay = return_schedule::refusal_delay(settings.retry_interval, fraction);
        if let Some(count) = self.shared.metrics.refusal_log.count_event(clock::now()) {
            log::warn!(
                "hub: stream of events refused: {cause} (refused={count}, \
                 its client returns after {delay:.1?})"
            );
        }
        let held = (settings.refusal_policy == RefusalPolicy::Hold)
            .then(|| self.hold_refused(client, delay, fraction));
        match held {
            Some(Ok(body)) => Some(body),
            _ => Some(Body::Bytes(return_schedule::retry_event(delay))),
        }
    }

    /// A stream without channels that ends after `delay`.
    fn hold_refused(
        &self,
        client: Option<AddressPrefix>,
        delay: Duration,
        fraction: f64,
    ) -> Result<Body, HubError> {
        let permit = StreamPermit::acquire_for_refused(&self.shared, client)?;
        let stream = HeldStream {
            message_format: StreamForm::Events,
            keep_alive: Some(StreamKeepAlive::for_events(
                None,
                self.settings().heartbeat_interval,
            )),
            initial_bytes: return_schedule::retry_event(return_schedule::delay_after_hold(
                fraction,
            )),
            max_lifetime: Some(delay),
            ..HeldStream::default()
        };
        let holding = ArrivingStream::without_channels(&self.shared, permit, stream);
        Ok(Body::Hold(Box::new(holding)))
    }

    /// Lets a task receive messages. It counts towards `max_streams`, and has no channel yet.
    ///
    /// # Errors
    /// Which bound is met.
    pub fn create_message_listener(
        &self,
        client: Option<AddressPrefix>,
    ) -> Result<MessageListener, HubError> {
        MessageListener::new(&self.shared, client)
    }

    /// Publishes to the subscribers of this server, or of all servers if there is a bus. Never
    /// waits. Messages that one thread publishes to one channel arrive in that order.
    ///
    /// # Errors
    /// Which bound is met; no subscriber gets it.
    pub fn publish(&self, publication: Publication) -> Result<(), HubError> {
        let publication = self.shared.check_publication(publication)?;
        if let Some(bus) = self.shared.bus_notifier.bus()
            && bus.publish(&publication)?
        {
            return Ok(());
        }
        self.shared.deliver(publication)
    }

    /// Publishes a message from the bus to the subscribers of this server.
    ///
    /// # Errors
    /// As [`Hub::publish`].
    pub fn publish_locally(&self, publication: Publication) -> Result<(), HubError> {
        let publication = self.shared.check_publication(publication)?;
        self.shared.deliver(publication)
    }

    /// A future to await before subscribers of these channels are added ([`Hub::stream_body`],
    /// [`Hub::long_poll`]), so that they find the history that all servers share, and miss nothing
    /// of other servers. `None`, nearly always, when there is nothing to wait for.
    #[must_use]
    pub fn prepare_channels(&self, channels: &[Arc<str>]) -> Option<PrepareChannelsFuture> {
        self.shared.bus_notifier.bus()?.prepare_channels(channels)
    }

    /// Replaces the history of a channel: for clients that resume, not for present subscribers. A
    /// client that resumes after an id that is not in it has a gap.
    pub fn replace_history(&self, channel: &Arc<str>, history: impl Into<SharedHistory>) {
        self.shared.replace_history(channel, history.into());
    }

    /// Joins this hub to others by a bus, or separates it with `None`. The bus learns at once of
    /// all channels that have subscribers.
    pub fn set_bus(&self, bus: Option<Arc<dyn Bus>>) {
        self.shared.set_bus(bus);
    }

    /// How many streams and polls subscribe to a channel on this server.
    #[must_use]
    pub fn subscriber_count(&self, channel: &str) -> u64 {
        let channel = self.shared.registry.find(channel);
        channel.map_or(0, |channel| channel.lock().subscriber_count())
    }

    /// Whether a channel has a subscriber on this server, or one on its way.
    #[must_use]
    pub fn is_channel_in_use(&self, channel: &str) -> bool {
        let channel = self.shared.registry.find(channel);
        channel.is_some_and(|channel| {
            let state = channel.lock();
            state.has_subscribers() || state.arriving_streams > 0
        })
    }

    /// The id of a channel's last message, if that is known.
    #[must_use]
    pub fn last_message_id(&self, channel: &str) -> Option<Arc<str>> {
        let channel = self.shared.registry.find(channel)?;
        let state = channel.lock();
        state.last_id.clone()
    }

    /// What was published to a channel after the message with this id; none if some of that is not
    /// known any more.
    #[must_use]
    pub fn history_after(&self, channel: &str, id: &str) -> Option<Vec<Publication>> {
        let channel = self.shared.registry.find(channel)?;
        let state = channel.lock();
        let known = state.sequence_of(id);
        let from = known.or_else(|| self.shared.sequence_of_id(id))?;
        let after = state.history.messages_after(from);
        let after = after.map(|message| message.publication.clone());
        (!state.history.has_gap_after(from)).then(|| after.collect())
    }

    /// Ends all held streams as planned, each with a proper end and the time after which its client
    /// returns, and refuses new ones. Done when none is left. Cancel safety: what has begun goes on.
    pub async fn drain(&self, plan: DrainPlan) {
        if !self.shared.begin_drain(plan) {
            for shard in &self.shared.shard_inboxes {
                if let Some(waker) = shard.push(ShardCommand::Drain(plan.duration)) {
                    waker.wake();
                }
            }
        }
        loop {
            let emptied = self.shared.all_streams_ended.notified();
            if self.shared.metrics.held_connection_count() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

impl StreamRefusal for Hub {
    fn refuse_stream(&self, client: Option<AddressPrefix>, cause: &str) -> Option<Response> {
        self.refuse(client, &cause).map(event_stream_response)
    }
}

#[cfg(test)]
mod tests;
