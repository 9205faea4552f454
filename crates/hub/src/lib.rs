//! The hub: connections that are held open, and what is published to them.
//!
//! The way of a stream: a handler answers with [`Hub::stream_body`]; edge sends the head and hands the socket
//! over ([`penstock_exchange::Hold`]); the shard of that loop keeps it as a descriptor and a few words,
//! writes heart-beats and messages to it, and closes it. The way of a message: whoever publishes (an
//! application through `grip`, a client of `mercure`, `penstock publish`, another node through `bus`)
//! makes a [`Publication`]; [`Hub::publish`] gives it its place in its channel's order and history and
//! hands it to the shards that have subscribers.
//!
//! What must stay true: a held stream costs no task and no buffer while it takes what it is sent; a
//! subscriber gets the messages of a channel in their order, each at most once, or is told that some are
//! missing; one that takes nothing delays nobody, and what waits for it is bounded, for each and for all;
//! nothing here waits for a client, a publisher or another node.

mod allowed_origins;
mod channel;
mod cluster;
mod counters;
mod filters;
pub mod fuzzing;
mod grip;
mod held_stream;
mod history;
mod hub;
mod hub_route;
mod mercure;
mod namespace;
mod ordering;
mod publication;
mod publish_keys;
mod registry;
mod settings;
mod shard;
mod shares;
pub mod token;

pub use cluster::{BusStatus, ClusterTotals, CounterSource, RedisBus, RedisUrlError};
pub use grip::{GripHandler, GripOptions, PublishError, WebSocketSupport, parse_publications};
pub use held_stream::{
    EndCallback, HeldStream, LongPoll, MessageFilter, PollOutcome, StreamForm, StreamKeepAlive,
    Subscription,
};
pub use hub::{Bus, ChannelsPrepared, Hub, HubCounters, HubError};
pub use hub_route::HubRouteHandler;
pub use mercure::{MercureHandler, MercureHubs};
pub use namespace::{Namespace, NamespaceError, Namespaces};
pub use publication::{
    Content, EventPart, LongPollResponse, Publication, ResponsePart, StreamPart, WebSocketPart,
};
pub use publish_keys::{PublishKeys, REQUEST_ISSUER};
pub use settings::{History, Settings, SlowPolicy};
