//! What is to be held: a stream or a long poll, with its channels and its heart-beat.
//!
//! Made by handlers (`grip`, `route`, `mercure`), taken by [`crate::Hub`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::AddressPrefix;

use crate::LongPollResponse;

/// A stream that is to be held once its head is sent.
#[derive(Debug, Default)]
pub struct HeldStream {
    /// Whose it is, for the bound on each client; none is not counted.
    pub client: Option<AddressPrefix>,
    /// At least one; at most `hub.max_channels_per_stream`.
    pub subscriptions: Vec<Subscription>,
    /// What its client takes.
    pub form: StreamForm,
    /// What keeps its connection alive; none is nothing.
    pub keep_alive: Option<StreamKeepAlive>,
    /// Sent right behind the head.
    pub initial: Bytes,
    /// What filters know of it (`Grip-Set-Meta`).
    pub meta: Vec<(Box<str>, Box<str>)>,
    /// Told when the stream has ended, whatever the reason.
    pub on_end: Option<EndCallback>,
    /// The history that a client that comes back asks for: what was published after this id, in the
    /// channels' order. What is not known any more is announced ([`HeldStream::gap_notice`]).
    pub resume_after: Option<Arc<str>>,
    /// Sent where messages are missing: some after [`HeldStream::resume_after`] or [`Subscription::prev_id`] that
    /// are kept no more, or some that its client was too slow for. None is nothing. Best one text for all
    /// streams, which costs none of them memory; a stream of events that begins behind a message which it
    /// named gets an event `gap` with that id as its data in its place.
    pub gap_notice: Option<Bytes>,
    /// It ends by itself after so long; none is never.
    pub max_lifetime: Option<Duration>,
}

/// Called once, on some loop, when a stream has ended. It must not wait.
pub struct EndCallback(pub Box<dyn FnOnce() + Send>);

/// What the client of a stream takes.
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
    /// The last message that whoever asked for this knew of.
    pub prev_id: Option<Arc<str>>,
    /// What each message must pass.
    pub filters: Vec<MessageFilter>,
}

/// A filter of GRIP that decides over a message, or changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// What is sent while nothing else is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamKeepAlive {
    /// The bytes; shared by all streams that have the same.
    pub bytes: Bytes,
    /// At least a second.
    pub interval: Duration,
    /// Also when something else was sent meanwhile.
    pub is_unconditional: bool,
}

/// A response that waits for its message.
#[derive(Debug, Default)]
pub struct LongPoll {
    /// Whose it is, for the bound on each client; none is not counted.
    pub client: Option<AddressPrefix>,
    /// At least one.
    pub subscriptions: Vec<Subscription>,
    /// How long.
    pub timeout: Duration,
    /// What filters know of it.
    pub meta: Vec<(Box<str>, Box<str>)>,
}

/// How a long poll ended.
#[derive(Debug)]
pub enum PollOutcome {
    /// A message came.
    Message(Arc<LongPollResponse>),
    /// None came in time: the back end's own response is sent.
    TimedOut,
    /// The back end is to be asked again: a hint came, or a channel's last id is another than `prev_id`
    /// said. With the channels' last ids that are known.
    RepeatRequest(Vec<(Arc<str>, Arc<str>)>),
    /// The connection is to be closed.
    Close,
}

impl fmt::Debug for EndCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ended")
    }
}
