//! A stream between its handler's answer and its shard.
//!
//! [`crate::Hub::body`] makes a [`Holding`], edge hands the socket to it, and it goes to the shard of that
//! loop as an [`Arrival`]. What must stay true: from the moment of the answer on no message of its channels
//! is missed: where the channels stood then is remembered, and what comes until the shard has the stream
//! is kept for it (`expected`). A client that publishes as soon as it has the head hears of it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::{HeldConnectionGuard, HeldFraming, Hold};
use penstock_runtime::{Stream, clock, loops};

use super::Shared;
use crate::channel::{Channel, Shape};
use crate::counts::Seat;
use crate::shard::{Arrival, Command};
use crate::{Ended, Filter, HeldStream, KeepAlive, Refused, StreamForm, Subscription};

/// A stream that waits for its socket.
pub(crate) struct Holding {
    shared: Arc<Shared>,
    wanted: Box<Wanted>,
}

/// What is to be held; see [`HeldStream`].
pub(crate) struct Wanted {
    pub(crate) expected: Vec<Expected>,
    pub(crate) form: StreamForm,
    pub(crate) keep_alive: Option<KeepAlive>,
    pub(crate) initial: Bytes,
    pub(crate) meta: Vec<(Box<str>, Box<str>)>,
    pub(crate) ended: AtEnd,
    pub(crate) after: Option<Arc<str>>,
    pub(crate) gap: Option<Bytes>,
    pub(crate) lifetime: Option<Duration>,
    pub(crate) seat: Seat,
}

/// A channel that a stream on its way will subscribe to.
pub(crate) struct Expected {
    shared: Arc<Shared>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) prev_id: Option<Arc<str>>,
    pub(crate) filters: Box<[Filter]>,
    /// The number of the channel's last message when this was made.
    pub(crate) start: u64,
}

/// Calls whom a stream's end is told to, when it is dropped.
pub(crate) struct AtEnd(Option<Ended>);

impl Holding {
    pub(crate) fn new(shared: &Arc<Shared>, stream: HeldStream) -> Result<Self, Refused> {
        let ended = AtEnd(stream.ended);
        let seat = Seat::take(shared, stream.client)?;
        let settings = shared.settings.load();
        let subscriptions = distinct(stream.subscriptions, settings.channels_per_stream)?;
        let expected = subscriptions
            .into_iter()
            .map(|subscription| Expected::new(shared, subscription, settings.channels_max));
        let wanted = Box::new(Wanted {
            expected: expected.collect::<Result<_, _>>()?,
            form: stream.form,
            keep_alive: stream.keep_alive,
            initial: stream.initial,
            meta: stream.meta,
            ended,
            after: stream.after,
            gap: stream.gap,
            lifetime: stream.lifetime,
            seat,
        });
        Ok(Self {
            shared: shared.clone(),
            wanted,
        })
    }

    /// What is to be held, for a shard without a loop.
    #[cfg(test)]
    pub(crate) fn into_wanted(self) -> Box<Wanted> {
        self.wanted
    }
}

impl Hold for Holding {
    fn hold(
        self: Box<Self>,
        client: Arc<Stream>,
        early: Vec<u8>,
        framing: HeldFraming,
        place: HeldConnectionGuard,
    ) {
        let Self { shared, wanted } = *self;
        let shape = Shape::new(wanted.form, framing);
        let arrival = Arrival::new(client, early.len(), shape, place, wanted);
        let shard = &shared.shards[loops::current_index() % shared.shards.len()];
        if let Some(waker) = shard.push(Command::Arrive(Box::new(arrival))) {
            waker.wake();
        }
    }
}

impl Expected {
    /// The channel, which stays as long as this.
    pub(super) fn new(
        shared: &Arc<Shared>,
        subscription: Subscription,
        channels_max: usize,
    ) -> Result<Self, Refused> {
        loop {
            let channel = shared.registry.open(&subscription.channel, channels_max)?;
            let start = {
                let Some(mut state) = channel.lock_alive() else {
                    continue;
                };
                state.expected += 1;
                state.update_places(&channel);
                state.last
            };
            return Ok(Self {
                shared: shared.clone(),
                channel,
                prev_id: subscription.prev_id,
                filters: subscription.filters.into(),
                start,
            });
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let is_idle = {
            let mut state = self.channel.lock();
            state.expected -= 1;
            if state.expected == 0 {
                self.shared.forget_before(&mut state);
                if !state.history.is_empty() {
                    self.shared.trim(&mut state, clock::now());
                }
                state.update_places(&self.channel);
            }
            state.is_idle()
        };
        if is_idle {
            self.shared.registry.release(&self.channel);
        }
    }
}

impl AtEnd {
    /// Nobody is told.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(Ended(tell)) = self.0.take()
            && catch_unwind(AssertUnwindSafe(tell)).is_err()
        {
            // What one stream's owner does wrong must not end the others.
            log::error!("hub: who was told that a stream has ended panicked");
        }
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding").finish_non_exhaustive()
    }
}

impl fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AtEnd").field(&self.0.is_some()).finish()
    }
}

/// The subscriptions, each channel once. Each is compared with at most `channels_max` others, however many
/// are asked for.
pub(crate) fn distinct(
    subscriptions: Vec<Subscription>,
    channels_max: usize,
) -> Result<Vec<Subscription>, Refused> {
    let mut distinct: Vec<Subscription> = Vec::new();
    for subscription in subscriptions {
        if distinct
            .iter()
            .any(|each| each.channel == subscription.channel)
        {
            continue;
        }
        if distinct.len() == channels_max {
            return Err(Refused::ChannelsOfStream(channels_max));
        }
        distinct.push(subscription);
    }
    Ok(distinct)
}
