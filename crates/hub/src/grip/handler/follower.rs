//! Streams whose back end has more to say at a link: `Grip-Link: <uri>; rel=next`.
//!
//! Such a stream listens at a channel of its own, and a task of its own speaks there: it forwards what is
//! published to the channels that the back end named, and asks the link when it is told to (a hint), when
//! something is missing (a message that follows another one than the last), and when nothing came for long.
//! What must stay true: the stream gets what the link brought and what was published in one order; what is
//! published while the link is asked waits, bounded, and is left out if the answer has it already; the task
//! ends with its stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_exchange::{Fault, FaultKind, HandlerProgress, Reply};
use penstock_runtime::{clock, loops};
use tokio::sync::oneshot;

use super::Shared;
use super::origin::Origin;
use super::whole::{self, Bound};
use crate::grip::instruct::{Instruct, InstructError, NextLink, is_spoken_in_body};
use crate::hub::{Heard, Listener};
use crate::{Content, Ended, Publication, Refused, StreamPart, Subscription};

/// A stream's other half.
pub(super) struct Follower {
    shared: Arc<Shared>,
    origin: Arc<Origin>,
    listener: Listener,
    /// The channel that only the stream listens at.
    own: Arc<str>,
    /// The channels, each with the last message that the stream knows.
    known: Vec<(Arc<str>, Option<Arc<str>>)>,
    next: Option<NextLink>,
    /// When the link is asked without a reason.
    due: Instant,
}

/// Times that a link is asked again when it fails, each after a longer pause.
const TRIES_MAX: u32 = 5;

/// The link itself says at once that there is more, over and over: a pause between two of these.
const PAUSE: Duration = Duration::from_secs(1);

/// What comes of a link.
enum Fetched {
    /// The stream goes on.
    More,
    /// The stream is complete.
    Last,
}

impl Follower {
    /// One for a stream that is to hear of `subscriptions`.
    ///
    /// # Errors
    /// Which bound of the hub is met.
    pub(super) fn new(
        shared: Arc<Shared>,
        origin: Arc<Origin>,
        subscriptions: Vec<Subscription>,
        meta: Vec<(Box<str>, Box<str>)>,
        next: NextLink,
    ) -> Result<Self, Refused> {
        let mut listener = shared.hub.listen(None)?;
        listener.set_meta(meta);
        let mut known = Vec::with_capacity(subscriptions.len());
        for subscription in subscriptions {
            let (subscription, prev_id) = without_prev_id(subscription);
            known.push((subscription.channel.clone(), prev_id));
            listener.subscribe(subscription)?;
        }
        Ok(Self {
            own: format!("\0next:{}", super::unguessable()).into(),
            due: clock::now() + next.timeout,
            next: Some(next),
            shared,
            origin,
            listener,
            known,
        })
    }

    /// What the stream subscribes to.
    pub(super) fn subscription(&self) -> Subscription {
        Subscription {
            channel: Arc::clone(&self.own),
            ..Subscription::default()
        }
    }

    /// Begins, on this loop; what is given back ends it.
    pub(super) fn begin(self) -> Ended {
        let (ended, has_ended) = oneshot::channel::<()>();
        loops::spawn_here(async move {
            let mut follower = self;
            tokio::select! {
                biased;
                // Told, or dropped unheard.
                _ = has_ended => {}
                () = follower.run() => {}
            }
        });
        Ended(Box::new(move || drop(ended)))
    }

    async fn run(&mut self) {
        let mut is_due = self.is_behind();
        loop {
            let mut heard = None;
            if is_due && self.next.is_some() {
                match self.fetch().await {
                    Ok(Fetched::More) => heard = self.skip_known().await,
                    Ok(Fetched::Last) => return self.end(),
                    Err(fault) => {
                        let target = self.origin.head.target();
                        log::warn!("grip: a stream of {target} ends: {}", fault.cause);
                        return self.end();
                    }
                }
            }
            if heard.is_none() {
                let wait = self.next.as_ref().map(|_| self.due);
                heard = clock_or(wait, self.listener.next()).await;
            }
            is_due = match heard {
                None | Some(Heard::Missed(_)) => true,
                Some(Heard::Draining) => return,
                Some(Heard::Message(message)) => match self.forward(&message.publication) {
                    Some(is_due) => is_due,
                    None => return self.end(),
                },
            };
        }
    }

    /// Whether a channel has gone on since the back end answered.
    fn is_behind(&self) -> bool {
        let mut known = self.known.iter();
        known.any(|(channel, id)| {
            let last = self.shared.hub.last_id(channel);
            id.is_some() && last.is_some() && *id != last
        })
    }

    /// Hands a message on; whether the link is to be asked, and none when the stream is over.
    fn forward(&mut self, publication: &Publication) -> Option<bool> {
        if self.follows_another(publication) {
            return Some(true);
        }
        let mut known = self.known.iter_mut();
        let known = known.find(|(channel, _)| *channel == publication.channel);
        if let Some((_, last)) = known
            && last.is_some()
        {
            last.clone_from(&publication.id);
        }
        if let Some(next) = &self.next {
            self.due = clock::now() + next.timeout;
        }
        let stream = match &publication.stream {
            Some(StreamPart::Hint | StreamPart::Gap) => return Some(true),
            Some(StreamPart::Close) => return None,
            Some(StreamPart::Send(content)) => {
                let Some(bytes) = self.listener.content(publication, content) else {
                    return Some(false);
                };
                Some(StreamPart::Send(Content {
                    bytes,
                    filters: Vec::new(),
                }))
            }
            None => None,
        };
        self.say(Publication {
            id: publication.id.clone(),
            stream,
            event: publication.event.clone(),
            ..Publication::default()
        });
        Some(false)
    }

    /// Whether a message says that it follows another one than the last that the stream knows.
    fn follows_another(&self, publication: &Publication) -> bool {
        let mut known = self.known.iter();
        let last = known.find(|(channel, _)| *channel == publication.channel);
        let last = last.and_then(|(_, last)| last.as_ref());
        let prev_id = publication.prev_id.as_ref();
        !publication.in_any_order && last.is_some() && prev_id.is_some() && last != prev_id
    }

    /// Leaves out what was published while the link was asked and is in its answer; the first other thing.
    async fn skip_known(&self) -> Option<Heard> {
        loop {
            let heard = tokio::select! {
                biased;
                heard = self.listener.next() => heard,
                () = std::future::ready(()) => return None,
            };
            match heard {
                Heard::Message(message) if self.follows_another(&message.publication) => {}
                other => return Some(other),
            }
        }
    }

    /// Asks the link, until it answers or has failed too often.
    async fn fetch(&mut self) -> Result<Fetched, Fault> {
        let mut tries = 0;
        loop {
            match self.fetch_once().await {
                Err(fault) if tries < TRIES_MAX => {
                    tries += 1;
                    log::debug!("grip: a next link failed: {}", fault.cause);
                    clock::sleep(PAUSE * 2_u32.pow(tries - 1)).await;
                }
                fetched => return fetched,
            }
        }
    }

    async fn fetch_once(&mut self) -> Result<Fetched, Fault> {
        let Some(next) = &self.next else {
            return Ok(Fetched::More);
        };
        let known = self.known.iter();
        let last = known.filter_map(|(channel, id)| Some((channel.clone(), id.clone()?)));
        let last: Vec<_> = last.collect();
        let request = self
            .origin
            .follow(&self.shared, "GET", &next.target, &last)?;
        let answered = match self.shared.inner.handle(request) {
            HandlerProgress::Ready(answered) => answered,
            HandlerProgress::Pending(work) => work.await,
        };
        let response = match answered? {
            Reply::Response(response) if response.status.is_success() => response,
            Reply::Response(response) => {
                return Err(broken(format!("a next link answers {}", response.status)));
            }
            Reply::Pass(_) | Reply::Redirect(_) => {
                return Err(broken("nobody answers at a next link".to_owned()));
            }
        };
        let not_understood =
            |error: InstructError| broken(format!("what a next link says: {error}"));
        let mut instruct =
            Instruct::of_fields(response.status, &response.fields).map_err(not_understood)?;
        let bound = Bound {
            what: "the body of a next link",
            bytes: self.shared.hub.settings().message_bytes,
            limit: "hub.message_bytes",
        };
        let mut body = whole::read(response.body, bound).await?;
        if instruct.hold.is_some() && is_spoken_in_body(&response.fields) {
            instruct = instruct
                .said_in(response.status, &body)
                .map_err(not_understood)?;
            body = instruct.body.take().unwrap_or_default();
        }
        if !body.is_empty() {
            let part = StreamPart::Send(Content {
                bytes: body,
                filters: Vec::new(),
            });
            self.say(Publication {
                stream: Some(part),
                ..Publication::default()
            });
        }
        self.go_on(instruct).await
    }

    /// Puts in place what a link's answer said.
    async fn go_on(&mut self, instruct: Instruct) -> Result<Fetched, Fault> {
        self.next = instruct.links.next;
        self.due = clock::now() + self.next.as_ref().map_or(PAUSE, |next| next.timeout);
        match (instruct.hold, &self.next) {
            (Some(hold), _) => {
                let subscriptions = self.shared.keyed(hold.subscriptions);
                self.shared.prepare(&subscriptions).await;
                let named = |name: &str| subscriptions.iter().any(|one| *one.channel == *name);
                let gone = self.known.extract_if(.., |(channel, _)| !named(channel));
                for (channel, _) in gone {
                    self.listener.unsubscribe(&channel);
                }
                for subscription in subscriptions {
                    let (subscription, id) = without_prev_id(subscription);
                    let channel = subscription.channel.clone();
                    let subscribed = self.listener.subscribe(subscription);
                    subscribed.map_err(|refused| broken(refused.to_string()))?;
                    match self.known.iter_mut().find(|(known, _)| *known == channel) {
                        Some((_, known)) => *known = id,
                        None => self.known.push((channel, id)),
                    }
                }
                Ok(Fetched::More)
            }
            // No hold and a link: there is more at once.
            (None, Some(_)) => {
                clock::sleep(PAUSE).await;
                self.due = clock::now();
                Ok(Fetched::More)
            }
            (None, None) => Ok(Fetched::Last),
        }
    }

    /// Speaks to the stream, and to nobody on other nodes.
    fn say(&self, publication: Publication) {
        let publication = Publication {
            channel: Arc::clone(&self.own),
            in_any_order: true,
            ..publication
        };
        if let Err(refused) = self.shared.hub.publish_from_bus(publication) {
            log::warn!("grip: a stream with a next link loses a message: {refused}");
        }
    }

    fn end(&self) {
        self.say(Publication {
            stream: Some(StreamPart::Close),
            ..Publication::default()
        });
    }
}

/// A subscription, and the last message that the stream knows: what came after that the link brings, so it is
/// not asked of the hub's history.
fn without_prev_id(mut subscription: Subscription) -> (Subscription, Option<Arc<str>>) {
    let prev_id = subscription.prev_id.take();
    (subscription, prev_id)
}

/// What comes first: something to hear, or that moment, which is none.
async fn clock_or(moment: Option<Instant>, heard: impl Future<Output = Heard>) -> Option<Heard> {
    match moment {
        Some(moment) => clock::timeout_at(moment, heard).await,
        None => Some(heard.await),
    }
}

fn broken(cause: String) -> Fault {
    Fault::new(FaultKind::BackendProtocolError, cause)
}
