//! Long polls: requests that wait for one message of their channels.
//!
//! [`crate::Hub::wait`] makes one, [`super::publish`] answers it. A long poll is a task of its own anyway
//! (its request's), so it waits at its channels itself and needs no shard. What must stay true: it is
//! answered at most once; its future's drop takes it out of all its channels.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_runtime::clock;
use tokio::sync::oneshot;

use super::Shared;
use super::holding::{Expected, distinct};
use crate::channel::{Channel, Message};
use crate::counts::Seat;
use crate::filters::{self, Meta, Reader};
use crate::namespace::channel_name;
use crate::{Filter, HeldResponse, LongPoll, PollOutcome, Refused, ResponsePart};

/// One long poll, as its channels know it.
#[derive(Debug)]
pub(crate) struct Answerer {
    /// Taken by whoever answers.
    answer: Mutex<Option<oneshot::Sender<Answer>>>,
    /// Its channels, with what each message must pass.
    channels: Vec<(Arc<Channel>, Box<[Filter]>)>,
    meta: Vec<(Box<str>, Box<str>)>,
}

/// What a long poll is told.
#[derive(Debug)]
enum Answer {
    Message(Arc<HeldResponse>),
    AskAgain,
    Close,
}

/// A long poll's places at its channels.
#[derive(Debug)]
struct Waiting {
    shared: Arc<Shared>,
    answerer: Arc<Answerer>,
    number: u64,
    _seat: Seat,
}

/// Registers a long poll; the future waits for its end.
pub(super) fn wait(
    shared: &Arc<Shared>,
    poll: LongPoll,
) -> Result<impl Future<Output = PollOutcome> + Send + use<>, Refused> {
    let seat = Seat::take(shared, poll.client)?;
    let settings = shared.settings.load();
    let subscriptions = distinct(poll.subscriptions, settings.channels_per_stream)?;
    let (answer, answered) = oneshot::channel();
    // Keeps the channels alive until it waits at them.
    let expected = subscriptions
        .into_iter()
        .map(|subscription| Expected::new(shared, subscription, settings.channels_max));
    let expected = expected.collect::<Result<Vec<_>, _>>()?;
    let channels = expected.iter();
    let channels = channels.map(|each| (each.channel.clone(), each.filters.clone()));
    let answerer = Arc::new(Answerer {
        answer: Mutex::new(Some(answer)),
        channels: channels.collect(),
        meta: poll.meta,
    });
    let waiting = Waiting {
        shared: shared.clone(),
        answerer,
        number: shared.next_order(),
        _seat: seat,
    };
    shared.tally.polls.fetch_add(1, Ordering::Relaxed);
    waiting.register(&expected);
    drop(expected);
    let timeout = poll.timeout;
    Ok(async move { waiting.outcome(answered, timeout).await })
}

impl Waiting {
    /// Waits at each channel. One that has gone on since the request was answered ends it at once.
    fn register(&self, expected: &[Expected]) {
        for Expected {
            channel, prev_id, ..
        } in expected
        {
            let mut state = channel.lock();
            let was_there = state.has_subscribers();
            state.polls.insert(self.number, self.answerer.clone());
            self.shared.note_presence(channel, was_there, &mut state);
            let is_behind =
                prev_id.is_some() && state.last_id.is_some() && *prev_id != state.last_id;
            drop(state);
            if is_behind {
                self.answerer.tell(Answer::AskAgain);
            }
        }
        self.shared.notes.tell();
    }

    async fn outcome(self, answered: oneshot::Receiver<Answer>, timeout: Duration) -> PollOutcome {
        let drained = async {
            let over = self.shared.begun().await;
            // Spread, so that clients do not come back all at once.
            let part = RandomState::new().hash_one(self.number) % 1000;
            clock::sleep(over.mul_f64(part as f64 / 1000.0)).await;
        };
        let answer = tokio::select! {
            biased;
            answer = answered => answer.ok(),
            () = clock::sleep(timeout) => None,
            () = drained => None,
        };
        match answer {
            None => PollOutcome::TimedOut,
            Some(Answer::Message(response)) => PollOutcome::Message(response),
            Some(Answer::AskAgain) => PollOutcome::AskAgain(self.last_ids()),
            Some(Answer::Close) => PollOutcome::Close,
        }
    }

    fn last_ids(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let channels = self.answerer.channels.iter();
        channels
            .filter_map(|(channel, _)| {
                let last = channel.lock().last_id.clone()?;
                Some((channel.name().clone(), last))
            })
            .collect()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for (channel, _) in &self.answerer.channels {
            let is_idle = {
                let mut state = channel.lock();
                let was_there = state.has_subscribers();
                state.remove_poll(self.number);
                self.shared.note_presence(channel, was_there, &mut state);
                state.is_idle()
            };
            if is_idle {
                self.shared.registry.release(channel);
            }
        }
        self.shared.notes.tell();
        let polls = &self.shared.tally.polls;
        polls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Answerer {
    /// Answers with a message of this channel, if that is for it and nobody was faster. Not under the
    /// channel's lock.
    pub(crate) fn answer(&self, channel: &Channel, message: &Message) -> bool {
        let Some(part) = &message.publication.response else {
            return false;
        };
        let own = self
            .channels
            .iter()
            .find(|(each, _)| std::ptr::eq(&**each, channel));
        let filters = own.map_or(&[][..], |(_, filters)| filters);
        let answer = match part {
            ResponsePart::Hint => Answer::AskAgain,
            ResponsePart::Close => Answer::Close,
            ResponsePart::Send(response) => {
                if !filters::passes(filters, &message.publication.meta, self) {
                    return false;
                }
                if filters.is_empty() && response.body.filters.is_empty() {
                    Answer::Message(message.response(response))
                } else {
                    match filters::render(&response.body, filters, self) {
                        Ok(bytes) => Answer::Message(Arc::new(with_body(response, bytes))),
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
        self.tell(answer)
    }

    /// Whether it was the first and somebody still waits.
    fn tell(&self, answer: Answer) -> bool {
        let sender = self
            .answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        sender.is_some_and(|sender| sender.send(answer).is_ok())
    }
}

impl Reader for Answerer {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn last_id(&self, channel: &str) -> Option<Arc<str>> {
        let mut channels = self.channels.iter().map(|(each, _)| each);
        let found = channels.find(|each| channel_name(each.name()) == channel)?;
        Some(found.lock().last_id.clone().unwrap_or_default())
    }
}

fn with_body(response: &HeldResponse, bytes: bytes::Bytes) -> HeldResponse {
    let mut response = response.clone();
    response.body = crate::Content {
        bytes,
        filters: Vec::new(),
    };
    response
}
