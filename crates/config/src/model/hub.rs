//! Held streams: the `[hub]` table and what a route says of them.

use std::time::Duration;

use crate::redacted::Secret;

/// The `[hub]` table: bounds on what is held and published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hub {
    /// Streams and long polls held at once; one more is refused with 503. None is three quarters of
    /// `limits.connections`.
    pub max_streams: Option<usize>,
    /// Those of one client; none is an eighth of all, and 100 at least.
    pub max_streams_per_client: Option<usize>,
    /// Channels that have subscribers or a history.
    pub max_channels: usize,
    /// Channels of one stream.
    pub max_channels_per_stream: usize,
    /// Bytes of one message, in all its forms.
    pub max_message_size: usize,
    /// Bytes that wait for one subscriber that takes them too slowly.
    pub max_backlog: usize,
    /// Bytes that wait for all of them together.
    pub max_backlog_total: usize,
    /// What becomes of a subscriber above its bound.
    pub slow_policy: SlowPolicy,
    /// A subscriber that takes nothing of what waits for it is gone after so long.
    pub send_timeout: Duration,
    /// Between two heart-beats, where nobody says otherwise.
    pub heartbeat_interval: Duration,
    /// What is kept of each channel.
    pub history: HubHistory,
    /// Over how long held streams are ended when the server stops.
    pub drain_timeout: Duration,
    /// The key by which back ends know that a request came through this server (`Grip-Sig`): a secret, with
    /// `base64:` in front of one that is not text, or a private key as PEM; none signs nothing.
    pub grip_key: Option<Secret>,
    /// Who signs (`iss`).
    pub grip_issuer: String,
}

/// What becomes of a subscriber for which too much waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlowPolicy {
    /// It loses the messages that have waited longest.
    #[default]
    DropOldest,
    /// Its connection is closed; a client comes back with its last id.
    Disconnect,
}

/// How much of a channel is kept for clients that come back: the nearest of three bounds counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubHistory {
    /// Messages of a channel; 0 keeps nothing.
    pub max_messages: usize,
    /// How long.
    pub max_age: Duration,
    /// Bytes of a channel's messages.
    pub max_size: usize,
    /// Bytes of all channels' messages.
    pub max_size_total: usize,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            max_streams: None,
            max_streams_per_client: None,
            max_channels: 1_000_000,
            max_channels_per_stream: 20,
            max_message_size: 1 << 20,
            max_backlog: 256 << 10,
            max_backlog_total: 256 << 20,
            slow_policy: SlowPolicy::DropOldest,
            send_timeout: Duration::from_secs(60),
            heartbeat_interval: Duration::from_secs(15),
            history: HubHistory::default(),
            drain_timeout: Duration::from_secs(30),
            grip_key: None,
            grip_issuer: "penstock".to_owned(),
        }
    }
}

impl Default for HubHistory {
    fn default() -> Self {
        Self {
            max_messages: 100,
            max_age: Duration::from_secs(300),
            max_size: 1 << 20,
            max_size_total: 256 << 20,
        }
    }
}

/// A route that holds streams itself: `hub = { channel = "{path.1}" }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteHub {
    /// The channels, with `{path}`, `{path.N}` (the path's segments from 1) and `{query.NAME}` in them: each
    /// reads as a [`crate::ChannelPattern`].
    pub channels: Vec<String>,
    /// Between two heart-beats; none is `hub.heartbeat_interval`.
    pub heartbeat_interval: Option<Duration>,
    /// Whether a POST to the route publishes its body.
    pub publish: bool,
    /// The namespace of its channels.
    pub namespace: String,
}

/// The namespace of the channels of routes with `hub`, unless they say another.
pub const HUB_NAMESPACE: &str = "hub";

/// What a back end may say by GRIP: `grip = true`, or a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grip {
    /// The namespace of its channels.
    pub namespace: String,
    /// Origins whose pages may open WebSockets beside the site's own; `*` is any.
    pub origins: Vec<String>,
}

impl Grip {
    /// That of a back end of this name which says no more.
    pub fn for_backend(name: &str) -> Self {
        Self {
            namespace: name.to_owned(),
            origins: Vec::new(),
        }
    }
}

/// Whether responses may name another body, and where files are that may be one: `sendfile`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sendfile {
    /// Whether `X-Accel-Redirect` and `X-Accel-Limit-Rate` are obeyed, and `X-Sendfile` below the folders.
    pub is_enabled: bool,
    /// Absolute folders.
    pub dirs: Vec<std::path::PathBuf>,
}

/// A route that is a Mercure hub: `mercure = { publisher_key = "...", subscriber_key = "..." }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteMercure {
    /// The key of publishers' tokens.
    pub publisher_key: Option<MercureKey>,
    /// The key of subscribers' tokens; none is the publishers'.
    pub subscriber_key: Option<MercureKey>,
    /// Whether who has no token may subscribe to what is not private.
    pub anonymous: bool,
    /// Origins whose pages may publish and subscribe with a cookie; `*` is any, without one.
    pub origins: Vec<String>,
    /// Whether subscriptions are announced and can be asked for.
    pub subscriptions: bool,
    /// Between two heart-beats; none is `hub.heartbeat_interval`.
    pub heartbeat_interval: Option<Duration>,
}

/// A key of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MercureKey {
    /// The secret, or the public key as PEM.
    pub key: Secret,
    /// `HS256`, `HS384`, `HS512`, `RS256`, `ES256`.
    pub algorithm: String,
}
