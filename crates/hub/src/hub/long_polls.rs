//! Long polls: requests that wait for one message of their channels.
//!
//! [`crate::Hub::long_poll`] makes one, [`super::publish`] answers it. A long poll has its
//! request's task, so it waits at its channels itself and needs no shard.
//!
//! # Invariants
//! - It is answered at most once.
//! - Dropping its future removes it from all its channels.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_runtime::clock;
use tokio::sync::oneshot;

use super::HubShared;
use super::arriving_stream::{PendingSubscription, deduplicate_subscriptions};
use crate::channel::{Channel, Message};
use crate::counters::StreamPermit;
use crate::filters::{self, FilterSubscriber, MetaPairs};
use crate::namespace::channel_name;
use crate::{HubError, LongPoll, LongPollAction, LongPollOutcome, LongPollResponse, MessageFilter};

/// One long poll, as its channels know it.
#[derive(Debug)]
pub(crate) struct LongPollWaiter {
    /// Taken by the thread that answers.
    sender: Mutex<Option<oneshot::Sender<PollAnswer>>>,
    /// Its channels, with what each message must pass.
    channels: Vec<(Arc<Channel>, Box<[MessageFilter]>)>,
    meta: Vec<(Box<str>, Box<str>)>,
}

#[derive(Debug)]
enum PollAnswer {
    Message(Arc<LongPollResponse>),
    RepeatRequest,
    Close,
}

/// The registrations of a long poll at its channels.
#[derive(Debug)]
struct RegisteredPoll {
    shared: Arc<HubShared>,
    waiter: Arc<LongPollWaiter>,
    poll_id: u64,
    _permit: StreamPermit,
}

/// Registers a long poll; the future waits for its end.
pub(super) fn register_long_poll(
    shared: &Arc<HubShared>,
    poll: LongPoll,
) -> Result<impl Future<Output = LongPollOutcome> + Send + use<>, HubError> {
    let permit = StreamPermit::acquire(shared, poll.client)?;
    let settings = shared.settings.load();
    let subscriptions =
        deduplicate_subscriptions(poll.subscriptions, settings.max_channels_per_stream)?;
    let (answer, answered) = oneshot::channel();
    // Keeps the channels alive until it waits at them.
    let expected = subscriptions
        .into_iter()
        .map(|subscription| PendingSubscription::new(shared, subscription, settings.max_channels));
    let expected = expected.collect::<Result<Vec<_>, _>>()?;
    let channels = expected.iter();
    let channels = channels.map(|each| (each.channel.clone(), each.filters.clone()));
    let answerer = Arc::new(LongPollWaiter {
        sender: Mutex::new(Some(answer)),
        channels: channels.collect(),
        meta: poll.subscriber_meta,
    });
    let waiting = RegisteredPoll {
        shared: shared.clone(),
        waiter: answerer,
        poll_id: shared.next_sequence(),
        _permit: permit,
    };
    shared.metrics.long_polls.fetch_add(1, Ordering::Relaxed);
    waiting.register(&expected);
    drop(expected);
    let timeout = poll.timeout;
    Ok(async move { waiting.wait_outcome(answered, timeout).await })
}

impl RegisteredPoll {
    /// Waits at each channel. One that has gone on since the request was answered ends it at once.
    fn register(&self, expected: &[PendingSubscription]) {
        for PendingSubscription {
            channel, prev_id, ..
        } in expected
        {
            let mut state = channel.lock();
            let was_there = state.has_subscribers();
            state.long_polls.insert(self.poll_id, self.waiter.clone());
            self.shared
                .report_subscription_change(channel, was_there, &mut state);
            let is_behind =
                prev_id.is_some() && state.last_id.is_some() && *prev_id != state.last_id;
            drop(state);
            if is_behind {
                self.waiter.resolve(PollAnswer::RepeatRequest);
            }
        }
        self.shared.bus_notifier.notify();
    }

    async fn wait_outcome(
        self,
        answered: oneshot::Receiver<PollAnswer>,
        timeout: Duration,
    ) -> LongPollOutcome {
        let drained = async {
            clock::sleep(self.shared.wait_for_drain_start().await).await;
        };
        let answer = tokio::select! {
            biased;
            answer = answered => answer.ok(),
            () = clock::sleep(timeout) => None,
            () = drained => None,
        };
        match answer {
            None => LongPollOutcome::TimedOut,
            Some(PollAnswer::Message(response)) => LongPollOutcome::Message(response),
            Some(PollAnswer::RepeatRequest) => LongPollOutcome::RepeatRequest(self.last_ids()),
            Some(PollAnswer::Close) => LongPollOutcome::Close,
        }
    }

    fn last_ids(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let channels = self.waiter.channels.iter();
        channels
            .filter_map(|(channel, _)| {
                let last = channel.lock().last_id.clone()?;
                Some((channel.name().clone(), last))
            })
            .collect()
    }
}

impl Drop for RegisteredPoll {
    fn drop(&mut self) {
        for (channel, _) in &self.waiter.channels {
            self.shared.remove_subscriber(channel, |state| {
                state.long_polls.remove(&self.poll_id);
            });
        }
        self.shared.bus_notifier.notify();
        let polls = &self.shared.metrics.long_polls;
        polls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LongPollWaiter {
    /// Answers with a message of this channel, if it passes and none was faster. Not under the
    /// channel's lock.
    pub(crate) fn try_answer(&self, channel: &Channel, message: &Message) -> bool {
        let Some(part) = &message.publication.response else {
            return false;
        };
        let own = self
            .channels
            .iter()
            .find(|(each, _)| std::ptr::eq(&**each, channel));
        let filters = own.map_or(&[][..], |(_, filters)| filters);
        let answer = match part {
            LongPollAction::Hint => PollAnswer::RepeatRequest,
            LongPollAction::Close => PollAnswer::Close,
            LongPollAction::Send(response) => {
                if !filters::passes_filters(filters, &message.publication.meta, self) {
                    return false;
                }
                if filters.is_empty() && response.body.filters.is_empty() {
                    PollAnswer::Message(message.shared_long_poll_response(response))
                } else {
                    match filters::render_content(&response.body, filters, self) {
                        Ok(bytes) => PollAnswer::Message(Arc::new(LongPollResponse {
                            body: bytes.into(),
                            ..LongPollResponse::clone(response)
                        })),
                        Err(e) => {
                            log::warn!(
                                "hub: channel {:?}: a response is not sent: {e}",
                                channel.name()
                            );
                            return false;
                        }
                    }
                }
            }
        };
        self.resolve(answer)
    }

    /// Whether it was the first, and the poll still waits.
    fn resolve(&self, answer: PollAnswer) -> bool {
        let sender = self
            .sender
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        sender.is_some_and(|sender| sender.send(answer).is_ok())
    }
}

impl FilterSubscriber for LongPollWaiter {
    fn subscriber_meta(&self) -> &MetaPairs {
        &self.meta
    }

    fn last_id(&self, channel: &str) -> Option<Arc<str>> {
        let mut channels = self.channels.iter().map(|(each, _)| each);
        let found = channels.find(|each| channel_name(each.name()) == channel)?;
        Some(found.lock().last_id.clone().unwrap_or_default())
    }
}
