//! The hub: connections that are held open, and the messages that are published to them.
//!
//! A stream: a handler responds with [`Hub::stream_body`]; edge sends the head and hands the socket
//! over ([`penstock_exchange::Hold`]); the shard of that event loop keeps it as a descriptor and a
//! few words, writes heartbeats and messages to it, and closes it. A message: a publisher (an
//! application through `grip`, a client of `mercure`, `penstock publish`, another server through a
//! [`Bus`]) makes a [`Publication`]; [`Hub::publish`] gives it its place in the order and history
//! of its channel and hands it to the shards that have subscribers.
//!
//! # Invariants
//! - An idle held stream uses no task, timer or buffer.
//! - A subscriber gets the messages of a channel in order, each at most once, or is notified of a
//!   gap.
//! - A slow subscriber delays no other; its backlog is bounded, and so are all backlogs together.
//! - Nothing here waits for a client, a publisher or another server.

mod allowed_origins;
mod channel;
mod counters;
mod filters;
pub mod fuzzing;
mod held_stream;
mod history;
mod hub;
mod hub_route;
mod message_id;
mod message_ordering;
mod namespace;
mod namespace_usages;
mod publication;
mod registry;
mod return_schedule;
mod shard;
mod snapshot;
mod stream_fields;
mod transfer;

pub use allowed_origins::{AllowedOrigins, is_same_host};
pub use channel::Message;
pub use held_stream::{
    EndCallback, HeldStream, LongPoll, LongPollOutcome, MessageFilter, StreamForm, StreamKeepAlive,
    StreamOwner, Subscription,
};
pub use hub::{
    Bus, CatchUpFuture, ChannelFilter, ChannelPresence, Hub, HubCounters, HubError, ListenerEvent,
    ListenerPosition, MessageListener, PrepareChannelsFuture, SharedChannelState, SharedHistory,
};
pub use hub_route::{GAP_EVENT, HubRouteHandler};
pub use message_id::{
    MAX_MESSAGE_ID_BYTES, MESSAGE_ID_EXPECTED, is_valid_message_id, last_event_id,
};
pub use namespace::{Namespace, NamespaceError, Namespaces, channel_name};
pub(crate) use penstock_config::HUB_NAMESPACE;
pub use penstock_config::{Hub as Settings, HubHistory as History, RefusalPolicy, SlowPolicy};
pub use publication::{
    Content, LongPollAction, LongPollResponse, Publication, PublishedEvent, StreamAction,
    WebSocketAction,
};
pub use return_schedule::{DrainPlan, NextServer};
pub use snapshot::{HUB_METRICS, HubSnapshot};
pub use stream_fields::forbid_buffering;
pub use transfer::{
    AdoptedStream, ForwardFn, HubReceiver, HubTransfer, OwnerRecord, OwnerTransfer, StreamPlaces,
    TransferError, TransferParticipant,
};
