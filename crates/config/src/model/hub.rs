//! Held streams: the `[hub]` table and a route's settings for them.

use std::path::PathBuf;
use std::time::Duration;

use crate::options::OptionDefault::{Described, Toml};
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::redacted::Secret;

section! {
    /// Bounds on streams and long polls that are held open, and on published messages. An
    /// application or upstream with `grip` holds a connection by answering with GRIP fields.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Hub
    in "hub", "[hub]", "[hub]" {
        /// Streams and long polls held at once; one more is refused (`refusal_policy`). At most
        /// `limits.connections`, since each is a connection; by default pages find room beside
        /// them.
        max_streams: Option<usize> = None, Number(1, 10_000_000),
            default "three quarters of `limits.connections`, or of what descriptors allow",
            example "50000";
        /// Streams and long polls of one client, which is an IPv4 address or a /64 of IPv6; one
        /// more is refused. Behind a trusted proxy the client is the one that the proxy
        /// names; where it names none, the stream is not counted.
        max_streams_per_client: Option<usize> = None, Number(1, 10_000_000),
            default "an eighth of `max_streams`, and 100 at least", example "1000";
        /// Channels that have subscribers or a history; what would need one more is refused.
        max_channels: usize = 1_000_000, Number(1, 100_000_000);
        /// Channels of one stream or long poll.
        max_channels_per_stream: usize = 20, Number(1, 1000);
        /// Longest message, in all its forms together.
        max_message_size: usize = 1 << 20, Size(1);
        /// Bytes that wait for one subscriber that takes them more slowly than they come; above
        /// it counts `slow_policy`.
        max_backlog: usize = 256 << 10, Size(1), by hand;
        /// Bytes that wait for all such subscribers together.
        max_backlog_total: usize = 256 << 20, Size(1);
        /// What becomes of a subscriber above its bound: it loses the messages that have waited
        /// longest, or its connection is closed, so that it comes back with the id of its last
        /// event. No other subscriber waits for it.
        slow_policy: SlowPolicy = SlowPolicy::DropOldest, Choice(SlowPolicy::WORDS);
        /// A subscriber that takes nothing at all of what waits for it is gone after so long.
        send_timeout: Duration = Duration::from_secs(60), Time(1);
        /// Longest time between two heart-beats of a stream to which nothing else is sent, where
        /// neither its route nor its application says another. A reload changes it for streams
        /// that begin after it.
        heartbeat_interval: Duration = Duration::from_secs(15), Time(1000);
        /// Type of the event that is the heart-beat of a stream of events, with `{}` as its data,
        /// for clients that do not see comments; where the route says none, and for applications
        /// that send no `Grip-Keep-Alive`.
        heartbeat_event: Option<String> = None, Text(EVENT_TYPE_EXPECTED),
            default "none: the heart-beat is a comment", example r#""heartbeat""#,
            by check(crate::hub::is_event_type);
        /// The messages kept of each channel; a number alone is `max_messages`.
        history: HubHistory = HubHistory::default(),
            OrTable(&Number(0, MAX_HISTORY_MESSAGES), "hub.history"), default "every default",
            example r#"{ max_messages = 100, max_age = "5m" }"#, by hand;
        /// A file that keeps the histories over a stop and a start: written when the server stops,
        /// read and removed when it starts, so that a client that returns gets what it missed.
        /// After a crash there is none, and the client gets a `gap`. Servers with `server.redis`
        /// have their histories there.
        history_file: Option<PathBuf> = None, Path,
            default "none: histories end with the process",
            example r#""/var/lib/penstock/history""#;
        /// What a browser's `EventSource` gets when its stream cannot begin, since a bound is
        /// reached or an application or upstream cannot answer. After an error it would never
        /// reconnect. `retry` answers with an empty stream and the time after which the client
        /// reconnects; `hold` keeps the stream open for that time first, if a quarter of
        /// `max_streams` leaves room for it; `error` answers with the error, such as 503, as
        /// other clients get it.
        refusal_policy: RefusalPolicy = RefusalPolicy::Retry, Choice(RefusalPolicy::WORDS);
        /// Time after which a refused `EventSource` reconnects, on average; each gets another,
        /// between half and one and a half of it.
        retry_interval: Duration = Duration::from_secs(15), Time(1000);
        /// Over how long held streams are ended when the server stops, so that their clients do
        /// not all come back at once; beside `server.shutdown_timeout`, not within it.
        drain_timeout: Duration = Duration::from_secs(30), Time(0),
            default r#""30s"; "2s" in development"#, example r#""30s""#;
        /// Key of the tokens in `Grip-Sig`, by which applications know that a request came
        /// through this server: a secret (HS256), or a private key for RS256 or ES256.
        grip_key: Option<Secret> = None,
            OrTable(&Text(crate::hub::GRIP_KEY_EXPECTED), "secret_file"),
            default "none: nothing is signed", example r#""base64:c2VjcmV0""#, by hand;
        /// The issuer of these tokens (`iss`).
        grip_issuer: String = "penstock".to_owned(), Text("a text without control characters"),
            only "a hub with a `grip_key`", by check(crate::hub::is_valid_issuer);
    }
}

choice! {
    /// The policy for a subscriber with too large a backlog.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum SlowPolicy {
        /// It loses the messages that have waited longest.
        #[default]
        DropOldest = "drop_oldest",
        /// Its connection is closed; a client comes back with its last id.
        Disconnect = "disconnect",
    }
}

choice! {
    /// The response to a stream of events that cannot begin.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum RefusalPolicy {
        /// An empty stream, with the time after which the client reconnects.
        #[default]
        Retry = "retry",
        /// A stream that only waits; then as `retry`.
        Hold = "hold",
        /// The error.
        Error = "error",
    }
}

section! {
    /// How much of each channel is kept for clients that come back with the id of the last
    /// event they got; the nearest bound counts.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HubHistory
    in "hub.history", "history = { ... } in [hub]", "" {
        /// Messages of a channel; 0 keeps none.
        max_messages: usize = 100, Number(0, MAX_HISTORY_MESSAGES);
        /// How long a message is kept.
        max_age: Duration = Duration::from_secs(300), Time(1);
        /// Bytes of a channel's messages.
        max_size: usize = 1 << 20, Size(1), by hand;
        /// Bytes of all channels' messages.
        max_size_total: usize = 256 << 20, Size(1);
    }
}

section! {
    /// A route that holds streams of Server-Sent Events itself, each with one channel or
    /// several. In their names `{path}` stands for the request's path, `{path.1}` for its first
    /// segment and so on, `{query.NAME}` for a parameter of its query; the path is the one
    /// after `rewrite`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RouteHub
    in "sites.routes.hub", "hub = { ... } in [[sites.routes]]", "" {
        /// Channels of its streams, if they are several.
        channels: Vec<String> = Vec::new(), Texts(CHANNEL_EXPECTED), default "`channel` alone",
            example r#"["news", "users.{query.user}"]"#, by hand;
        /// Time between two heart-beats.
        heartbeat_interval: Option<Duration> = None, Time(1000),
            default "`hub.heartbeat_interval`", example r#""30s""#;
        /// Type of the event that is the heart-beat, in place of a comment.
        heartbeat_event: Option<String> = None, Text(EVENT_TYPE_EXPECTED),
            default "`hub.heartbeat_event`", example r#""heartbeat""#,
            by check(crate::hub::is_event_type);
        /// Namespace of its channels: with that of an application with `grip`, its channels are
        /// the application's.
        namespace: String = HUB_NAMESPACE.to_owned(), Text(crate::grants::NAMESPACE_EXPECTED),
            example r#""chat""#, by check(crate::section::is_valid_name);
        /// Origins with pages that may use the route from other sites (CORS), with cookies; "*" is
        /// any, without cookies.
        origins: Vec<String> = Vec::new(), Texts(ORIGIN_EXPECTED),
            example r#"["https://app.example"]"#, by hand;
        /// Whether the streams of a channel get an event `presence` with the number of its
        /// subscribers on this server when that has changed, at most one a second; in all of the
        /// namespace.
        presence: bool = false, Bool;
        /// Whether a POST to the route publishes its body, from every client that reaches it: to
        /// the first channel that has a part of the request in its name, else to the first.
        publish: bool = false, Bool;
    }
    also {
        /// Channel of its streams.
        "channel": Text(CHANNEL_EXPECTED), Described("`channels`, or an error"),
            example r#""{path.1}""#;
    }
}

/// The namespace of the channels of routes with `hub`, unless they say another.
pub const HUB_NAMESPACE: &str = "hub";

section! {
    /// What the application may say by GRIP (streams.md).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Grip(name: &str)
    in "apps.NAME.grip", "grip = { ... } in [apps.NAME]", "" {
        /// Namespace of its channels: no other application, upstream or route has a channel in
        /// common with it unless it names the same one. "hub" is that of the routes with `hub`.
        namespace: String = name.to_owned(), Text(crate::grants::NAMESPACE_EXPECTED),
            default "the application's or upstream's name", example r#""chat""#, by hand;
        /// Whether the streams of events of a channel get an event `presence` with the number of
        /// its subscribers on this server when that has changed, at most one a second; in all of
        /// the namespace.
        presence: bool = false, Bool, by hand;
        /// Origins with pages that may open WebSockets that come as requests, beside the site's
        /// own; "*" is any.
        origins: Vec<String> = Vec::new(), Texts(ORIGIN_EXPECTED),
            example r#"["https://app.example"]"#, by hand;
    }
}

/// Whether responses may name another body, and the directories of files that may be one:
/// `sendfile`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sendfile {
    /// Whether `X-Accel-Redirect` and `X-Accel-Limit-Rate` are followed, and `X-Sendfile` below the
    /// directories.
    pub is_enabled: bool,
    /// Absolute directories.
    pub dirs: Vec<PathBuf>,
}

section! {
    /// A Mercure hub: clients publish and subscribe as their JSON Web Token (RFC 7519) allows.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RouteMercure
    in "sites.routes.mercure", "mercure = { ... } in [[sites.routes]]", "" {
        /// Key of publishers' tokens; a text alone is the secret of HS256.
        publisher_key: Option<MercureKeys> = None,
            OrTable(&Text(crate::hub::SECRET), "sites.routes.mercure.publisher_key"),
            default "nobody may publish", example r#""!ChangeThisMercureHubJWTSecretKey!""#,
            by hand;
        /// Key of subscribers' tokens; a text alone is the secret of HS256.
        subscriber_key: Option<MercureKeys> = None,
            OrTable(&Text(crate::hub::SECRET), "sites.routes.mercure.subscriber_key"),
            default "`publisher_key`", example r#""!ChangeThisMercureHubJWTSecretKey!""#, by hand;
        /// What the issuer of tokens (`iss`) must be.
        issuer: Option<String> = None, Text("a text without control characters"),
            default "any", example r#""https://id.example""#, by check(crate::hub::is_valid_issuer);
        /// What the audience of tokens (`aud`) must be or have.
        audience: Option<String> = None, Text("a text without control characters"),
            default "any", example r#""https://hub.example/.well-known/mercure""#,
            by check(crate::hub::is_valid_issuer);
        /// Whether clients without a token may subscribe to public updates.
        anonymous: bool = false, Bool;
        /// Origins with pages that may subscribe and publish from other sites (CORS), with the
        /// cookie of their token; "*" is any, without a cookie.
        origins: Vec<String> = Vec::new(), Texts(ORIGIN_EXPECTED),
            example r#"["https://app.example"]"#, by hand;
        /// Whether subscriptions are published as updates and can be asked for.
        subscriptions: bool = false, Bool;
        /// Time between two heart-beats.
        heartbeat_interval: Option<Duration> = None, Time(1000),
            default "`hub.heartbeat_interval`", example r#""40s""#;
        /// Type of the event that is the heart-beat, in place of a comment.
        heartbeat_event: Option<String> = None, Text(EVENT_TYPE_EXPECTED),
            default "`hub.heartbeat_event`", example r#""heartbeat""#,
            by check(crate::hub::is_event_type);
    }
}

/// A key of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MercureKey {
    /// The secret, or the public key as PEM.
    pub key: Secret,
    /// Its name in tokens, such as `HS256`.
    pub algorithm: String,
}

/// The keys of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MercureKeys {
    /// One.
    Single(MercureKey),
    /// Those of a set (JWKS), which may change.
    Set(KeySetSource),
}

/// Where a set of keys (JWKS) is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeySetSource {
    /// In this file.
    File(PathBuf),
    /// At `SCHEME://AUTHORITY`, with this path and query.
    Http {
        /// With or without TLS.
        scheme: HttpScheme,
        /// The host, with its port if that is not the scheme's.
        authority: String,
        /// The path, with its query if there is one.
        target: String,
    },
}

/// A scheme of URLs that are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HttpScheme {
    /// Without TLS.
    Http,
    /// With TLS, verified with the authorities that the system trusts.
    Https,
}

impl HttpScheme {
    /// As it stands in a URL.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port of URLs without one.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl std::fmt::Display for KeySetSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Http {
                scheme,
                authority,
                target,
            } => {
                // A query may have a secret.
                let path = target.split('?').next().unwrap_or_default();
                write!(f, "{}://{authority}{path}", scheme.as_str())
            }
        }
    }
}

keys! {
    /// A key of tokens with its algorithm.
    MERCURE_KEY in "sites.routes.mercure.publisher_key", "publisher_key = { ... } in mercure of [[sites.routes]]", "" {
        /// The secret, of at least as many bytes as the algorithm's hash has (RFC 7518 §3.2);
        /// for RS, PS, ES and EdDSA (Ed25519) the public key in PEM.
        "key": OrTable(&Text("a secret, or a public key in PEM"), "secret_file"), Described("required, unless there is `jwks`"),
            example r#""!ChangeThisMercureHubJWTSecretKey!""#;
        /// File with the key, in place of `key`.
        "file": Path, Described("none"), example r#""/run/secrets/mercure""#;
        /// Credential of systemd with the key, in place of `key`.
        "credential": Text(crate::secret::CREDENTIAL_EXPECTED), Described("none"),
            example r#""mercure""#;
        /// The only algorithm (RFC 7518 §3.1) of tokens that are taken.
        "algorithm": Choice(TokenAlgorithm::WORDS), Toml(r#""HS256""#),
            example r#""RS256""#, only "a single `key`";
        /// Set of public keys (JWKS, RFC 7517), in place of `key`: a file,
        /// or an address that begins with `https://` (the server's certificate must be from an authority
        /// that the system or `SSL_CERT_FILE` trusts) or `http://`. A token names its key there (`kid`). The set is
        /// read again every 5 minutes, and when a token names an unknown key.
        "jwks": Text(crate::hub::KEY_SET_EXPECTED), Described("none"),
            example r#""http://127.0.0.1:8180/realms/shop/protocol/openid-connect/certs""#;
    }
}

choice! {
    /// The algorithms of tokens (RFC 7518 §3.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum TokenAlgorithm {
        /// HMAC with SHA-256.
        Hs256 = "HS256",
        /// HMAC with SHA-384.
        Hs384 = "HS384",
        /// HMAC with SHA-512.
        Hs512 = "HS512",
        /// RSASSA-PKCS1-v1_5 with SHA-256.
        Rs256 = "RS256",
        /// RSASSA-PKCS1-v1_5 with SHA-384.
        Rs384 = "RS384",
        /// RSASSA-PKCS1-v1_5 with SHA-512.
        Rs512 = "RS512",
        /// RSASSA-PSS with SHA-256.
        Ps256 = "PS256",
        /// RSASSA-PSS with SHA-384.
        Ps384 = "PS384",
        /// RSASSA-PSS with SHA-512.
        Ps512 = "PS512",
        /// ECDSA with P-256 and SHA-256.
        Es256 = "ES256",
        /// ECDSA with P-384 and SHA-384.
        Es384 = "ES384",
        /// Ed25519 (RFC 8037).
        EdDsa = "EdDSA",
    }
}
