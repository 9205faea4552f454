//! Held streams: the `[hub]` table and what a route says of them.

use std::time::Duration;

use crate::masked::Secret;

/// The `[hub]` table: bounds on what is held and published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hub {
    /// Streams and long polls held at once; one more is refused with 503. None is three quarters of
    /// `limits.connections`.
    pub streams_max: Option<usize>,
    /// Those of one client; none is an eighth of all, and 100 at least.
    pub max_streams_per_client: Option<usize>,
    /// Channels that have subscribers or a history.
    pub channels_max: usize,
    /// Channels of one stream.
    pub channels_per_stream: usize,
    /// Bytes of one message, in all its forms.
    pub message_bytes: usize,
    /// Bytes that wait for one subscriber that takes them too slowly.
    pub backlog_bytes: usize,
    /// Bytes that wait for all of them together.
    pub backlogs_bytes: usize,
    /// What becomes of a subscriber above its bound.
    pub slow: SlowPolicy,
    /// A subscriber that takes nothing of what waits for it is gone after so long.
    pub stall_timeout: Duration,
    /// Between two heart-beats, where nobody says otherwise.
    pub keep_alive: Duration,
    /// What is kept of each channel.
    pub history: HubHistory,
    /// Over how long held streams are ended when the server stops.
    pub drain: Duration,
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
    pub count: usize,
    /// How long.
    pub age: Duration,
    /// Bytes of a channel's messages.
    pub bytes: usize,
    /// Bytes of all channels' messages.
    pub bytes_all: usize,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            streams_max: None,
            max_streams_per_client: None,
            channels_max: 1_000_000,
            channels_per_stream: 20,
            message_bytes: 1 << 20,
            backlog_bytes: 256 << 10,
            backlogs_bytes: 256 << 20,
            slow: SlowPolicy::DropOldest,
            stall_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
            history: HubHistory::default(),
            drain: Duration::from_secs(30),
            grip_key: None,
            grip_issuer: "penstock".to_owned(),
        }
    }
}

impl Default for HubHistory {
    fn default() -> Self {
        Self {
            count: 100,
            age: Duration::from_secs(300),
            bytes: 1 << 20,
            bytes_all: 256 << 20,
        }
    }
}

/// A route that holds streams itself: `hub = { channel = "{path.1}" }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteHub {
    /// The channels, with `{path}`, `{path.N}` (the path's segments from 1) and `{query.NAME}` in them: each
    /// reads as a [`crate::ChannelPattern`].
    pub channels: Vec<String>,
    /// Between two heart-beats; none is `hub.keep_alive`.
    pub keep_alive: Option<Duration>,
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
    pub fn of(name: &str) -> Self {
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
    pub is_followed: bool,
    /// Absolute folders.
    pub folders: Vec<std::path::PathBuf>,
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
    /// Between two heart-beats; none is `hub.keep_alive`.
    pub keep_alive: Option<Duration>,
}

/// A key of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MercureKey {
    /// The secret, or the public key as PEM.
    pub key: Secret,
    /// `HS256`, `HS384`, `HS512`, `RS256`, `ES256`.
    pub algorithm: String,
}
