//! A stream between its handler's response and its shard.
//!
//! [`crate::Hub::stream_body`] makes an [`ArrivingStream`], edge hands the socket to it, and it
//! goes to the shard of that event loop.
//!
//! # Invariants
//! - From the response on no message of its channels is missed: the positions of the channels are
//!   recorded, and messages that arrive before the shard has the stream are kept for it. A client
//!   that publishes as soon as it has the head gets its own message.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::{HeldConnection, HeldConnectionGuard, HeldFraming, Hold};
use penstock_runtime::{clock, loops};

use super::HubShared;
use crate::channel::{Channel, StreamFormat};
use crate::counters::StreamPermit;
use crate::shard::{ArrivedStream, ShardCommand};
use crate::{
    EndCallback, HeldStream, HubError, MessageFilter, StreamForm, StreamKeepAlive, Subscription,
};

/// A stream that waits for its socket.
pub(crate) struct ArrivingStream {
    shared: Arc<HubShared>,
    request: Box<StreamRequest>,
}

/// The stream to hold; see [`HeldStream`].
pub(crate) struct StreamRequest {
    pub(crate) subscriptions: Vec<PendingSubscription>,
    pub(crate) form: StreamForm,
    pub(crate) keep_alive: Option<StreamKeepAlive>,
    pub(crate) initial: Bytes,
    pub(crate) meta: Vec<(Box<str>, Box<str>)>,
    pub(crate) on_end: EndNotifier,
    pub(crate) resume_after: Option<Arc<str>>,
    pub(crate) gap_notice: Option<Bytes>,
    pub(crate) max_lifetime: Option<Duration>,
    pub(crate) permit: StreamPermit,
}

/// A channel that a stream on its way will subscribe to.
pub(crate) struct PendingSubscription {
    shared: Arc<HubShared>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) prev_id: Option<Arc<str>>,
    pub(crate) filters: Box<[MessageFilter]>,
    /// The number of the channel's last message when this was made.
    pub(crate) last_sequence: u64,
}

/// Calls [`HeldStream::on_end`] when it is dropped.
pub(crate) struct EndNotifier(Option<EndCallback>);

impl ArrivingStream {
    pub(crate) fn new(shared: &Arc<HubShared>, stream: HeldStream) -> Result<Self, HubError> {
        let ended = EndNotifier(stream.on_end);
        let seat = StreamPermit::acquire(shared, stream.client)?;
        let settings = shared.settings.load();
        let subscriptions = deduplicate(stream.subscriptions, settings.max_channels_per_stream)?;
        let expected = subscriptions.into_iter().map(|subscription| {
            PendingSubscription::new(shared, subscription, settings.max_channels)
        });
        let wanted = Box::new(StreamRequest {
            subscriptions: expected.collect::<Result<_, _>>()?,
            form: stream.form,
            keep_alive: stream.keep_alive,
            initial: stream.initial,
            meta: stream.meta,
            on_end: ended,
            resume_after: stream.resume_after,
            gap_notice: stream.gap_notice,
            max_lifetime: stream.max_lifetime,
            permit: seat,
        });
        Ok(Self {
            shared: shared.clone(),
            request: wanted,
        })
    }

    /// The stream to hold, for a shard without a loop.
    #[cfg(test)]
    pub(crate) fn into_request(self) -> Box<StreamRequest> {
        self.request
    }
}

impl Hold for ArrivingStream {
    fn hold(
        self: Box<Self>,
        client: HeldConnection,
        early_bytes: usize,
        framing: HeldFraming,
        guard: HeldConnectionGuard,
    ) {
        let Self { shared, request } = *self;
        let arrival = ArrivedStream {
            client,
            early_bytes,
            format: StreamFormat::new(request.form, framing),
            connection_guard: guard,
            request,
        };
        let shard = &shared.shards[loops::current_index() % shared.shards.len()];
        if let Some(waker) = shard.push(ShardCommand::AddStream(Box::new(arrival))) {
            waker.wake();
        }
    }
}

impl PendingSubscription {
    /// The channel, which stays as long as this.
    pub(super) fn new(
        shared: &Arc<HubShared>,
        subscription: Subscription,
        channels_max: usize,
    ) -> Result<Self, HubError> {
        loop {
            let channel = shared
                .registry
                .find_or_create(&subscription.channel, channels_max)?;
            let start = {
                let Some(mut state) = channel.lock_alive() else {
                    continue;
                };
                state.arriving_streams += 1;
                state.update_places(&channel);
                state.last_sequence
            };
            return Ok(Self {
                shared: shared.clone(),
                channel,
                prev_id: subscription.prev_id,
                filters: subscription.filters.into(),
                last_sequence: start,
            });
        }
    }
}

impl Drop for PendingSubscription {
    fn drop(&mut self) {
        let is_idle = {
            let mut state = self.channel.lock();
            state.arriving_streams -= 1;
            if state.arriving_streams == 0 {
                self.shared.drop_arrival_history(&mut state);
                if !state.history.is_empty() {
                    self.shared.trim_history(&mut state, clock::now());
                }
                state.update_places(&self.channel);
            }
            state.is_idle()
        };
        if is_idle {
            self.shared.registry.remove_if_idle(&self.channel);
        }
    }
}

impl EndNotifier {
    /// Whether there is nothing to call.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for EndNotifier {
    fn drop(&mut self) {
        if let Some(EndCallback(tell)) = self.0.take()
            && catch_unwind(AssertUnwindSafe(tell)).is_err()
        {
            // What one stream's owner does wrong must not end the others.
            log::error!("hub: who was told that a stream has ended panicked");
        }
    }
}

impl fmt::Debug for ArrivingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding").finish_non_exhaustive()
    }
}

impl fmt::Debug for EndNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AtEnd").field(&self.0.is_some()).finish()
    }
}

/// The subscriptions, each channel once. Each is compared with at most `channels_max` others,
/// however many are asked for.
pub(crate) fn deduplicate(
    subscriptions: Vec<Subscription>,
    channels_max: usize,
) -> Result<Vec<Subscription>, HubError> {
    let mut distinct: Vec<Subscription> = Vec::new();
    for subscription in subscriptions {
        if distinct
            .iter()
            .any(|each| each.channel == subscription.channel)
        {
            continue;
        }
        if distinct.len() == channels_max {
            return Err(HubError::TooManyStreamChannels(channels_max));
        }
        distinct.push(subscription);
    }
    Ok(distinct)
}
