//! A stream between its handler's response and its shard.
//!
//! [`crate::Hub::stream_body`] makes an [`ArrivingStream`], edge hands the socket to it, and it
//! goes to the shard of that event loop.
//!
//! # Invariants
//! - From the response on no message of its channels is missed: the positions of the channels are
//!   recorded, and messages that arrive before the shard has the stream are kept for it. A client
//!   that publishes as soon as it has the head gets its own message.

use std::sync::Arc;

use penstock_exchange::{HeldConnection, HeldConnectionGuard, HeldFraming, Hold};
use penstock_runtime::{clock, loops};

use super::HubShared;
use crate::channel::{Channel, StreamFormat};
use crate::counters::StreamPermit;
use crate::shard::{ArrivedStream, ArrivingConnection, ShardCommand};
use crate::transfer::SharedPlace;
use crate::{HeldStream, HubError, MessageFilter, Subscription};

/// A stream that waits for its socket.
#[derive(Debug)]
pub(crate) struct ArrivingStream {
    shared: Arc<HubShared>,
    pub(crate) request: Box<StreamRequest>,
}

/// The stream to hold, with its channels and permit in their places.
#[derive(Debug)]
pub(crate) struct StreamRequest {
    pub(crate) subscriptions: Vec<PendingSubscription>,
    pub(crate) permit: StreamPermit,
    /// The rest.
    pub(crate) stream: HeldStream,
}

/// A channel that a stream on its way will subscribe to.
#[derive(Debug)]
pub(crate) struct PendingSubscription {
    shared: Arc<HubShared>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) prev_id: Option<Arc<str>>,
    pub(crate) filters: Box<[MessageFilter]>,
    /// The number of the channel's last message when this was made.
    pub(crate) last_sequence: u64,
    /// Where it was in another process, and continues.
    pub(crate) shared_place: Option<SharedPlace>,
}

impl ArrivingStream {
    pub(crate) fn new(shared: &Arc<HubShared>, mut stream: HeldStream) -> Result<Self, HubError> {
        let permit = StreamPermit::acquire(shared, stream.client)?;
        let settings = shared.settings.load();
        let subscriptions = std::mem::take(&mut stream.subscriptions);
        let subscriptions =
            deduplicate_subscriptions(subscriptions, settings.max_channels_per_stream)?;
        let pending = subscriptions.into_iter().map(|subscription| {
            PendingSubscription::new(shared, subscription, settings.max_channels)
        });
        let request = StreamRequest {
            subscriptions: pending.collect::<Result<_, _>>()?,
            permit,
            stream,
        };
        Ok(Self {
            shared: shared.clone(),
            request: Box::new(request),
        })
    }

    /// A stream that only waits for its end.
    pub(super) fn without_channels(
        shared: &Arc<HubShared>,
        permit: StreamPermit,
        stream: HeldStream,
    ) -> Self {
        let request = StreamRequest {
            subscriptions: Vec::new(),
            permit,
            stream,
        };
        Self {
            shared: shared.clone(),
            request: Box::new(request),
        }
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
            pipelined_bytes: early_bytes,
            is_probed: false,
            is_pinned: false,
            format: StreamFormat::new(request.stream.message_format, framing),
            connection: ArrivingConnection::Counted(guard),
            unsent: Vec::new(),
            request,
        };
        let shard = &shared.shard_inboxes[loops::current_loop_index() % shared.shard_inboxes.len()];
        if let Some(waker) = shard.push(ShardCommand::AddStream(Box::new(arrival))) {
            waker.wake();
        }
    }
}

impl PendingSubscription {
    /// The channel of this name, for one that needs no more than that it stays.
    pub(crate) fn for_channel(shared: &Arc<HubShared>, name: &Arc<str>) -> Result<Self, HubError> {
        let subscription = Subscription {
            channel: name.clone(),
            ..Subscription::default()
        };
        Self::new(shared, subscription, shared.settings.load().max_channels)
    }

    /// The channel, which stays as long as this.
    pub(crate) fn new(
        shared: &Arc<HubShared>,
        subscription: Subscription,
        channels_max: usize,
    ) -> Result<Self, HubError> {
        loop {
            let channel = shared
                .registry
                .find_or_create(&subscription.channel, channels_max)?;
            let start = {
                let Some(mut state) = channel.lock_unless_removed() else {
                    continue;
                };
                state.arriving_streams += 1;
                state.update_queue_positions(&channel);
                state.last_sequence
            };
            return Ok(Self {
                shared: shared.clone(),
                channel,
                prev_id: subscription.prev_id,
                filters: subscription.filters.into(),
                last_sequence: start,
                shared_place: None,
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
                self.shared.drop_arriving_stream_history(&mut state);
                if !state.history.is_empty() {
                    self.shared.trim_history(&mut state, clock::now());
                }
                state.update_queue_positions(&self.channel);
            }
            state.is_idle()
        };
        if is_idle {
            self.shared.registry.remove_if_idle(&self.channel);
        }
    }
}

/// The subscriptions, each channel once. Each is compared with at most `channels_max` others,
/// however many are asked for.
pub(crate) fn deduplicate_subscriptions(
    subscriptions: Vec<Subscription>,
    channels_max: usize,
) -> Result<Vec<Subscription>, HubError> {
    let mut distinct: Vec<Subscription> = Vec::new();
    for subscription in subscriptions {
        let is_same = |each: &Subscription| each.channel == subscription.channel;
        if !distinct.iter().any(is_same) {
            if distinct.len() == channels_max {
                return Err(HubError::TooManyStreamChannels(channels_max));
            }
            distinct.push(subscription);
        }
    }
    Ok(distinct)
}
