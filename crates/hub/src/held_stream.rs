//! The description of a stream or long poll to hold, with its channels and its heartbeat.
//!
//! Made by handlers (`hub_route`, `grip`, `mercure`), taken by [`crate::Hub`].

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::AddressPrefix;

use crate::LongPollResponse;
use crate::transfer::OwnerTransfer;

/// A stream to hold once its head is sent.
#[derive(Debug, Default)]
pub struct HeldStream {
    /// Its client, for the bound on each client; `None` is not counted.
    pub client: Option<AddressPrefix>,
    /// At least one; at most `hub.max_channels_per_stream`.
    pub subscriptions: Vec<Subscription>,
    /// The format of its messages.
    pub message_format: StreamForm,
    /// Its heartbeat; `None` sends none.
    pub keep_alive: Option<StreamKeepAlive>,
    /// Sent right after the head.
    pub initial_bytes: Bytes,
    /// Metadata for filters (`Grip-Set-Meta`).
    pub subscriber_meta: Vec<(Box<str>, Box<str>)>,
    /// Called when the stream has ended, for whatever reason.
    pub on_end: Option<EndCallback>,
    /// The history that a client that comes back asks for: what was published after this id, in the
    /// channels' order. Messages that are no longer known are announced
    /// ([`HeldStream::gap_notice`]).
    pub resume_after: Option<Arc<str>>,
    /// Sent where messages are missing: some after [`HeldStream::resume_after`] or
    /// [`Subscription::prev_id`] that are kept no more, or some that its client was too slow for.
    /// None is nothing. Best one text for all streams, which costs none of them memory; a stream of
    /// events that begins behind a message which it named gets an event `gap` with that id as its
    /// data in its place.
    pub gap_notice: Option<Bytes>,
    /// It ends by itself after so long; `None` never.
    pub max_lifetime: Option<Duration>,
}

/// The owner of a stream, told when it is dropped, on some loop: the stream has ended.
pub struct EndCallback(Option<Box<dyn StreamOwner>>);

/// What has to be done with a stream beyond the hub. It must not wait.
pub trait StreamOwner: Send + Sync {
    /// The stream has ended.
    fn on_end(self: Box<Self>);

    /// Whether, and how, another process can continue the stream.
    fn transfer(&self) -> OwnerTransfer {
        OwnerTransfer::Never
    }

    /// Another process continues it.
    fn on_moved(self: Box<Self>) {}

    /// It stays in this process after all, whether or not it was asked before.
    fn on_transfer_cancelled(&self) {}
}

impl<F: FnOnce() + Send + Sync> StreamOwner for F {
    fn on_end(self: Box<Self>) {
        self();
    }
}

/// The message format that the client of a stream expects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StreamForm {
    /// Server-sent events.
    #[default]
    Events,
    /// Bytes as they are published.
    Bytes,
}

/// One channel of a stream or long poll.
#[derive(Debug, Clone, Default)]
pub struct Subscription {
    /// The channel's name.
    pub channel: Arc<str>,
    /// The last message that the subscriber knew of.
    pub prev_id: Option<Arc<str>>,
    /// The filters that each message must pass.
    pub filters: Vec<MessageFilter>,
}

/// A filter of GRIP that decides over a message, or changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageFilter {
    /// Not what its own user sent: `user` of the stream's meta is `sender` of the message's.
    SkipSelf,
    /// Not for the users that the message names (`skip_users`).
    SkipUsers,
    /// Only if the channel that the message names is subscribed to as well (`require_sub`).
    RequireSubscription,
    /// The id is made anew from the stream's `id_format`.
    BuildId,
    /// `%(name)s` stands for the stream's meta.
    VarSubst,
}

/// The heartbeat: bytes that are sent while nothing else is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamKeepAlive {
    /// The bytes; shared by all streams that have the same.
    pub bytes: Bytes,
    /// At least a second.
    pub interval: Duration,
    /// Also when something else was sent meanwhile.
    pub is_unconditional: bool,
}

impl StreamKeepAlive {
    /// The heartbeat of a stream of events: an event of the type `event`, else a comment.
    #[must_use]
    pub fn for_events(event: Option<&str>, interval: Duration) -> Self {
        let bytes = match event {
            None => Bytes::from_static(b":\n\n"),
            // Not empty, since some clients leave out events without data.
            Some(event) => format!("event: {event}\ndata: {{}}\n\n").into(),
        };
        Self {
            bytes,
            interval,
            is_unconditional: false,
        }
    }
}

/// A response that waits for its message.
#[derive(Debug, Default)]
pub struct LongPoll {
    /// Its client, for the bound on each client; `None` is not counted.
    pub client: Option<AddressPrefix>,
    /// At least one.
    pub subscriptions: Vec<Subscription>,
    /// How long.
    pub timeout: Duration,
    /// Metadata for filters.
    pub subscriber_meta: Vec<(Box<str>, Box<str>)>,
}

/// How a long poll ended.
#[derive(Debug)]
pub enum LongPollOutcome {
    /// A message came.
    Message(Arc<LongPollResponse>),
    /// No message came in time: the back end's own response is sent.
    TimedOut,
    /// The back end is to be asked again: a hint came, or a channel's last id is another than
    /// `prev_id` said. With the channels' last ids that are known.
    RepeatRequest(Vec<(Arc<str>, Arc<str>)>),
    /// The connection is to be closed.
    Close,
}

impl EndCallback {
    /// One that calls this.
    #[must_use]
    pub fn new(callback: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self::for_owner(callback)
    }

    /// One that tells this owner.
    #[must_use]
    pub fn for_owner(owner: impl StreamOwner + 'static) -> Self {
        Self(Some(Box::new(owner)))
    }

    /// See [`StreamOwner::transfer`].
    pub(crate) fn transfer(&self) -> OwnerTransfer {
        let owner = self.0.as_ref();
        owner.map_or(OwnerTransfer::Never, |owner| owner.transfer())
    }

    /// Tells the owner that another process continues the stream.
    pub(crate) fn mark_moved(mut self) {
        if let Some(owner) = self.0.take() {
            owner.on_moved();
        }
    }

    /// Tells the owner that the stream stays here.
    pub(crate) fn cancel_transfer(&self) {
        if let Some(owner) = &self.0 {
            owner.on_transfer_cancelled();
        }
    }

    /// Drops it without a call.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for EndCallback {
    fn drop(&mut self) {
        if let Some(callback) = self.0.take()
            && catch_unwind(AssertUnwindSafe(|| callback.on_end())).is_err()
        {
            // What one stream's owner does wrong must not end the others.
            log::error!("hub: a callback at the end of a stream panicked");
        }
    }
}

impl fmt::Debug for EndCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndCallback")
    }
}
