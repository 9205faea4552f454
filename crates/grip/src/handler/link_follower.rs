//! Streams that continue at a link of the back end: `Grip-Link: <uri>; rel=next`.
//!
//! Such a stream has a channel of its own, and a task that publishes there: it forwards messages
//! of the channels that the back end named, and requests the link after a hint, after a gap (a
//! message that does not follow the last one), and after a long silence.
//!
//! # Invariants
//! - The stream gets the content of the link and published messages in one order.
//! - Messages that are published while the link is requested wait, bounded, and are left out if
//!   the response has them already.
//! - The task ends with its stream.
//! - A parked task publishes nothing, so that its stream can move to another process.

mod control;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use control::{FollowerControl, FollowerState};
pub(super) use control::{FollowerHandle, FollowerRecord, FollowerTransfer};
use penstock_exchange::{Fault, Reply};
use penstock_hub::{
    HubError, ListenerEvent, MessageListener, Publication, StreamAction, Subscription,
};
use penstock_runtime::{LoopHandle, clock, loops};

use super::body_reader::{self, BodyLimit};
use super::original_request::OriginalRequest;
use super::{GripShared, backend_fault};
use crate::instructions::{
    GripInstructions, HoldInstruction, InstructionError, NextLink, has_instruction_body,
};

/// A stream's other half.
pub(super) struct LinkFollower {
    shared: Arc<GripShared>,
    original_request: Arc<OriginalRequest>,
    listener: MessageListener,
    /// The channel of this stream alone.
    stream_channel: Arc<str>,
    /// The channels, each with the last message that the stream knows.
    channel_ids: BTreeMap<Arc<str>, Option<Arc<str>>>,
    next_link: Option<NextLink>,
    /// When the link is requested without an event.
    next_fetch_at: Instant,
    /// The stream lacks messages from the start.
    starts_behind: bool,
    control: Arc<FollowerControl>,
}

/// Times that a link is asked again when it fails, each after a longer pause.
const MAX_FETCH_RETRIES: u32 = 5;

/// The link itself says at once that there is more, over and over: a pause between two of these.
const RETRY_DELAY: Duration = Duration::from_secs(1);

enum LinkOutcome {
    Continues,
    Complete,
}

impl LinkFollower {
    /// A follower for a stream with such a hold, and what a client that resumes after
    /// `resume_after` has missed.
    pub(super) fn new(
        shared: Arc<GripShared>,
        origin: Arc<OriginalRequest>,
        hold: HoldInstruction,
        next: NextLink,
        resume_after: Option<&str>,
    ) -> Result<(Self, Bytes), HubError> {
        let mut listener = shared.hub.create_message_listener(None)?;
        listener.set_subscriber_meta(hold.subscriber_meta);
        let mut subscriptions = hold.subscriptions;
        // What came after these ids the link brings: it is not asked of the hub's history.
        let known = subscriptions
            .iter_mut()
            .map(|each| (each.channel.clone(), each.prev_id.take()))
            .collect();
        let mut missed = Bytes::new();
        match resume_after {
            Some(after) => missed = listener.resume(subscriptions, after)?,
            None => {
                for subscription in subscriptions {
                    listener.subscribe(subscription)?;
                }
            }
        }
        let mut follower = Self {
            stream_channel: new_stream_channel(),
            next_fetch_at: clock::now() + next.timeout,
            next_link: Some(next),
            shared,
            original_request: origin,
            listener,
            channel_ids: known,
            starts_behind: false,
            control: Arc::default(),
        };
        follower.starts_behind = follower.has_missed_messages();
        Ok((follower, missed))
    }

    /// The follower of a stream that another process held: it continues after the last message that
    /// was forwarded there.
    pub(super) fn from_record(
        shared: Arc<GripShared>,
        origin: Arc<OriginalRequest>,
        record: FollowerRecord,
    ) -> Result<Self, HubError> {
        let mut listener = shared.hub.create_message_listener(None)?;
        listener.set_subscriber_meta(record.subscriber_meta);
        for position in record.positions {
            listener.continue_from(position)?;
        }
        Ok(Self {
            stream_channel: new_stream_channel(),
            next_fetch_at: clock::now() + Duration::from_millis(record.next_fetch_ms),
            next_link: record.next_link.map(|(target, timeout_ms)| NextLink {
                target,
                timeout: Duration::from_millis(timeout_ms),
            }),
            shared,
            original_request: origin,
            listener,
            channel_ids: record.channel_ids.into_iter().collect(),
            starts_behind: record.is_behind,
            control: Arc::default(),
        })
    }

    /// What a follower in another process needs to continue.
    fn record(&self) -> FollowerRecord {
        let next_fetch = self.next_fetch_at.saturating_duration_since(clock::now());
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let next_link = self.next_link.as_ref();
        FollowerRecord {
            positions: self.listener.positions(),
            is_behind: self.listener.has_missed_messages(),
            subscriber_meta: self.listener.subscriber_meta().to_vec(),
            channel_ids: self.channel_ids.clone().into_iter().collect(),
            next_link: next_link.map(|next| (next.target.clone(), milliseconds(next.timeout))),
            next_fetch_ms: milliseconds(next_fetch),
        }
    }

    pub(super) fn stream_subscription(&self) -> Subscription {
        Subscription {
            channel: Arc::clone(&self.stream_channel),
            ..Subscription::default()
        }
    }

    /// Starts the task on this event loop; dropping the returned value ends it.
    pub(super) fn spawn(self) -> FollowerHandle {
        let handle = self.handle();
        loops::spawn_here(self.run_until_ended());
        handle
    }

    /// The same on another event loop.
    pub(super) fn spawn_on(self, event_loop: &LoopHandle) -> FollowerHandle {
        let handle = self.handle();
        event_loop.spawn(self.run_until_ended());
        handle
    }

    fn handle(&self) -> FollowerHandle {
        FollowerHandle(Arc::clone(&self.control))
    }

    async fn run_until_ended(mut self) {
        let control = Arc::clone(&self.control);
        tokio::select! {
            biased;
            () = control.wait_until(|state| matches!(state, FollowerState::Ended)) => {}
            () = self.run() => control.set(FollowerState::Ended),
        }
    }

    async fn run(&mut self) {
        let mut is_due = self.starts_behind;
        loop {
            let mut event = None;
            if is_due && self.next_link.is_some() {
                match self.fetch_with_retries().await {
                    Ok(LinkOutcome::Continues) => event = self.skip_fetched().await,
                    Ok(LinkOutcome::Complete) => return self.end_stream(),
                    Err(fault) => {
                        let target = self.original_request.head.target();
                        log::warn!("grip: a stream of {target} ends: {}", fault.cause);
                        return self.end_stream();
                    }
                }
            }
            if event.is_none() {
                event = self.next_event().await;
            }
            is_due = match event {
                None | Some(ListenerEvent::Missed(_)) => true,
                Some(ListenerEvent::Draining) => return,
                Some(ListenerEvent::Message(message)) => match self.forward(&message.publication) {
                    Some(is_due) => is_due,
                    None => return self.end_stream(),
                },
            };
        }
    }

    /// Waits for an event, or until the link is due. Parks meanwhile if asked.
    async fn next_event(&self) -> Option<ListenerEvent> {
        loop {
            let next = self.listener.next_event();
            let next = async {
                match self.next_link {
                    Some(_) => clock::timeout_at(self.next_fetch_at, next).await,
                    None => Some(next.await),
                }
            };
            tokio::select! {
                biased;
                () = self.control.wait_until_asked() => {
                    self.control.park(self.record()).await;
                }
                event = next => return event,
            }
        }
    }

    /// Whether a channel has new messages since the back end's response.
    fn has_missed_messages(&self) -> bool {
        let mut known = self.channel_ids.iter();
        known.any(|(channel, id)| {
            let last = self.shared.hub.last_message_id(channel);
            id.is_some() && last.is_some() && *id != last
        })
    }

    /// Passes a message on. Returns whether to request the link; `None` at the end of the stream.
    fn forward(&mut self, publication: &Publication) -> Option<bool> {
        if self.has_gap_before(publication) {
            return Some(true);
        }
        if let Some(last @ Some(_)) = self.channel_ids.get_mut(&publication.channel) {
            last.clone_from(&publication.id);
        }
        if let Some(next) = &self.next_link {
            self.next_fetch_at = clock::now() + next.timeout;
        }
        let stream = match &publication.stream {
            Some(StreamAction::Hint | StreamAction::Gap) => return Some(true),
            Some(StreamAction::Close) => return None,
            Some(StreamAction::Send(content)) => {
                let Some(bytes) = self.listener.render(publication, content) else {
                    return Some(false);
                };
                Some(StreamAction::Send(bytes.into()))
            }
            Some(StreamAction::Notice(_)) | None => None,
        };
        self.publish_to_stream(Publication {
            id: publication.id.clone(),
            stream,
            event: publication.event.clone(),
            ..Publication::default()
        });
        Some(false)
    }

    /// Whether a message says that it follows another one than the last that the stream knows.
    fn has_gap_before(&self, publication: &Publication) -> bool {
        let last = self.channel_ids.get(&publication.channel);
        let last = last.and_then(Option::as_ref);
        let prev_id = publication.prev_id.as_ref();
        !publication.allows_any_order && last.is_some() && prev_id.is_some() && last != prev_id
    }

    /// Skips messages that the response of the link contains; returns the first other event.
    async fn skip_fetched(&self) -> Option<ListenerEvent> {
        loop {
            let event = tokio::select! {
                biased;
                event = self.listener.next_event() => event,
                () = std::future::ready(()) => return None,
            };
            match event {
                ListenerEvent::Message(message) if self.has_gap_before(&message.publication) => {}
                other => return Some(other),
            }
        }
    }

    /// Requests the link until it responds or has failed too often.
    async fn fetch_with_retries(&mut self) -> Result<LinkOutcome, Fault> {
        let mut tries = 0;
        loop {
            match self.fetch_once().await {
                Err(fault) if tries < MAX_FETCH_RETRIES => {
                    tries += 1;
                    log::debug!("grip: a next link failed: {}", fault.cause);
                    clock::sleep(RETRY_DELAY * 2_u32.pow(tries - 1)).await;
                }
                fetched => return fetched,
            }
        }
    }

    async fn fetch_once(&mut self) -> Result<LinkOutcome, Fault> {
        let Some(next) = &self.next_link else {
            return Ok(LinkOutcome::Continues);
        };
        let known = self.channel_ids.iter();
        let last = known.filter_map(|(channel, id)| Some((channel.clone(), id.clone()?)));
        let last: Vec<_> = last.collect();
        let request =
            self.original_request
                .build_link_request(&self.shared, "GET", &next.target, &last)?;
        let response = match self.shared.backend.handle(request).wait_for_reply().await? {
            Reply::Response(response) if response.status.is_success() => response,
            Reply::Response(response) => {
                return Err(backend_fault(format!(
                    "a next link answers {}",
                    response.status
                )));
            }
            Reply::Pass(_) | Reply::Redirect(_) => {
                return Err(backend_fault("nobody answers at a next link".to_owned()));
            }
        };
        let not_understood =
            |error: InstructionError| backend_fault(format!("what a next link says: {error}"));
        let mut instructions = GripInstructions::from_fields(response.status, &response.fields)
            .map_err(not_understood)?;
        let bound = BodyLimit {
            body_name: "the body of a next link",
            max_bytes: self.shared.hub.settings().max_message_size,
            limit_name: "hub.max_message_size",
        };
        let mut body = body_reader::read_whole_body(response.body, bound).await?;
        if instructions.hold.is_some() && has_instruction_body(&response.fields) {
            instructions = instructions
                .apply_instruction_body(response.status, &body)
                .map_err(not_understood)?;
            body = instructions.body.take().unwrap_or_default();
        }
        if !body.is_empty() {
            self.publish_to_stream(Publication {
                stream: Some(StreamAction::Send(body.into())),
                ..Publication::default()
            });
        }
        self.apply_link_response(instructions).await
    }

    /// Applies the instructions of a link's response.
    async fn apply_link_response(
        &mut self,
        instructions: GripInstructions,
    ) -> Result<LinkOutcome, Fault> {
        self.next_link = instructions.links.next;
        self.next_fetch_at = clock::now()
            + self
                .next_link
                .as_ref()
                .map_or(RETRY_DELAY, |next| next.timeout);
        match (instructions.hold, &self.next_link) {
            (Some(hold), _) => {
                let subscriptions = self.shared.with_channel_keys(hold.subscriptions);
                self.shared.prepare_channels(&subscriptions).await;
                let named = |name: &str| subscriptions.iter().any(|one| *one.channel == *name);
                self.channel_ids.retain(|channel, _| {
                    let is_named = named(channel);
                    if !is_named {
                        self.listener.unsubscribe(channel);
                    }
                    is_named
                });
                for mut subscription in subscriptions {
                    let id = subscription.prev_id.take();
                    let channel = subscription.channel.clone();
                    let subscribed = self.listener.subscribe(subscription);
                    subscribed.map_err(|refused| backend_fault(refused.to_string()))?;
                    self.channel_ids.insert(channel, id);
                }
                Ok(LinkOutcome::Continues)
            }
            // No hold and a link: there is more at once.
            (None, Some(_)) => {
                clock::sleep(RETRY_DELAY).await;
                self.next_fetch_at = clock::now();
                Ok(LinkOutcome::Continues)
            }
            (None, None) => Ok(LinkOutcome::Complete),
        }
    }

    /// Publishes to the stream, on this server only.
    fn publish_to_stream(&self, publication: Publication) {
        let publication = Publication {
            channel: Arc::clone(&self.stream_channel),
            allows_any_order: true,
            ..publication
        };
        if let Err(refused) = self.shared.hub.publish_locally(publication) {
            log::warn!("grip: a stream with a next link loses a message: {refused}");
        }
    }

    fn end_stream(&self) {
        self.publish_to_stream(Publication {
            stream: Some(StreamAction::Close),
            ..Publication::default()
        });
    }
}

fn new_stream_channel() -> Arc<str> {
    format!("\0next:{}", super::random_name()).into()
}
