//! The rows of held streams: `[hub]` with its history, and the `hub` and `mercure` of a route with their
//! tables.
//!
//! Data only, like `table`, whose rows these follow. The rows `sites.routes.hub` and
//! `sites.routes.mercure` themselves stand with the other keys of a route.

use super::Kind::*;
use super::Opt;
use super::Unset::{Is, Means, Required};
use super::table::row;

/// Every option of held streams.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[Opt] = &[
    row("hub", "streams_max", Count(1, 10_000_000), Means("three quarters of `limits.connections`, or of what descriptors allow"), "50000",
        "Streams and long polls held at once; one more is answered 503. At most `limits.connections`, since each is a connection; by default pages find room beside them."),
    row("hub", "max_streams_per_client", Count(1, 10_000_000), Means("an eighth of `streams_max`, and 100 at least"), "1000",
        "Streams and long polls of one client, which is an IPv4 address or a /64 of IPv6; one more is answered 503. Behind a trusted proxy the client is the one that the proxy names; where it names none, nobody is counted."),
    row("hub", "channels_max", Count(1, 100_000_000), Is("1000000"), "1000000",
        "Channels that have subscribers or a history; what would need one more is refused, a stream with 503."),
    row("hub", "channels_per_stream", Count(1, 1000), Is("20"), "20",
        "Channels of one stream or long poll."),
    row("hub", "message_bytes", Size(1), Is(r#""1MiB""#), r#""1MiB""#,
        "Longest message, in all its forms together."),
    row("hub", "backlog_bytes", Size(1), Is(r#""256KiB""#), r#""256KiB""#,
        "Bytes that wait for one subscriber that takes them more slowly than they come; above it counts `slow`."),
    row("hub", "backlogs_bytes", Size(1), Is(r#""256MiB""#), r#""256MiB""#,
        "Bytes that wait for all such subscribers together."),
    row("hub", "slow", OneOf(&["drop_oldest", "disconnect"]), Is(r#""drop_oldest""#), r#""drop_oldest""#,
        "What becomes of a subscriber above its bound: it loses the messages that have waited longest, or its connection is closed, \
         so that it comes back with the id of its last event. No other subscriber waits for it."),
    row("hub", "stall_timeout", Time(1), Is(r#""60s""#), r#""60s""#,
        "A subscriber that takes nothing at all of what waits for it is gone after so long."),
    row("hub", "keep_alive", Time(1000), Is(r#""15s""#), r#""15s""#,
        "Time between two heart-beats of a stream to which nothing else is sent, where neither its route nor its application says another."),
    row("hub", "history", CountOrTable(0, MESSAGES, "hub.history"), Means("every default"), r#"{ count = 100, age = "5m" }"#,
        "What is kept of each channel; a number alone is `count`."),
    row("hub", "drain", Time(0), Means("\"30s\"; \"2s\" in development"), r#""30s""#,
        "Over how long held streams are ended when the server stops, so that their clients do not all come back at once; \
         beside `server.shutdown_timeout`, not within it."),
    row("hub", "grip_key", Text(crate::hub::KEY_EXPECTED), Means("none: nothing is signed"), r#""base64:c2VjcmV0""#,
        "Key of the tokens in `Grip-Sig`, by which applications know that a request came through this server: a secret (HS256), or a \
         private key for RS256 or ES256."),
    row("hub", "grip_issuer", Text("a text without control characters"), Is(r#""penstock""#), r#""penstock""#,
        "Who signs them (`iss`).")
        .only("a hub with a `grip_key`"),

    row("apps.NAME.grip", "namespace", Text(crate::grants::NAMESPACE), Means("the application's or upstream's name"), r#""chat""#,
        "Namespace of its channels: no other application, upstream or route has a channel in common with it unless it names the same one. \
         \"hub\" is that of the routes with `hub`."),
    row("apps.NAME.grip", "origins", Texts(ORIGIN), Is("[]"), r#"["https://app.example"]"#,
        "Origins whose pages may open WebSockets that come as requests, beside the site's own; \"*\" is any."),

    row("hub.history", "count", Count(0, MESSAGES), Is("100"), "100",
        "Messages of a channel; 0 keeps none."),
    row("hub.history", "age", Time(1), Is(r#""5m""#), r#""5m""#,
        "How long a message is kept."),
    row("hub.history", "bytes", Size(1), Is(r#""1MiB""#), r#""1MiB""#,
        "Bytes of a channel's messages."),
    row("hub.history", "bytes_all", Size(1), Is(r#""256MiB""#), r#""256MiB""#,
        "Bytes of all channels' messages."),

    row("sites.routes.hub", "channel", Text(CHANNEL), Means("`channels`, or an error"), r#""{path.1}""#,
        "Channel of its streams."),
    row("sites.routes.hub", "channels", Texts(CHANNEL), Means("`channel` alone"), r#"["news", "users.{query.user}"]"#,
        "Channels of its streams, if they are several."),
    row("sites.routes.hub", "keep_alive", Time(1000), Means("`hub.keep_alive`"), r#""30s""#,
        "Time between two heart-beats."),
    row("sites.routes.hub", "namespace", Text(crate::grants::NAMESPACE), Is(r#""hub""#), r#""chat""#,
        "Namespace of its channels: with that of an application with `grip`, its channels are the application's."),
    row("sites.routes.hub", "publish", Bool, Is("false"), "true",
        "Whether a POST to the route publishes its body to the channels, from anybody who may reach it."),

    row("sites.routes.mercure", "publisher_key", TextOrTable(crate::hub::SECRET, "sites.routes.mercure.publisher_key"),
        Means("nobody may publish"), r#""!ChangeThisMercureHubJWTSecretKey!""#,
        "Key of publishers' tokens; a text alone is the secret of HS256."),
    row("sites.routes.mercure", "subscriber_key", TextOrTable(crate::hub::SECRET, "sites.routes.mercure.subscriber_key"),
        Means("`publisher_key`"), r#""!ChangeThisMercureHubJWTSecretKey!""#,
        "Key of subscribers' tokens; a text alone is the secret of HS256."),
    row("sites.routes.mercure", "anonymous", Bool, Is("false"), "true",
        "Whether who has no token may subscribe, to what is not private."),
    row("sites.routes.mercure", "origins", Texts(ORIGIN), Is("[]"), r#"["https://app.example"]"#,
        "Origins whose pages may subscribe and publish from other sites (CORS), with the cookie of their token; \"*\" is any, without a cookie."),
    row("sites.routes.mercure", "subscriptions", Bool, Is("false"), "true",
        "Whether subscriptions are published as updates and can be asked for."),
    row("sites.routes.mercure", "keep_alive", Time(1000), Means("`hub.keep_alive`"), r#""40s""#,
        "Time between two heart-beats."),

    row("sites.routes.mercure.publisher_key", "key", Text("a secret, or a public key in PEM"), Required,
        r#""!ChangeThisMercureHubJWTSecretKey!""#,
        "The secret, of at least as many bytes as the algorithm's hash has (RFC 7518 §3.2); for RS256 and ES256 the public key in PEM."),
    row("sites.routes.mercure.publisher_key", "algorithm", OneOf(&["HS256", "HS384", "HS512", "RS256", "ES256"]),
        Is(r#""HS256""#), r#""RS256""#,
        "The only algorithm (RFC 7518 §3.1) of tokens that are taken."),
];

/// The most messages of a history.
const MESSAGES: u64 = 1_000_000;
pub(super) const CHANNEL: &str =
    "a channel such as \"news\" or \"news.{path.1}\", of at most 255 bytes";
const ORIGIN: &str = "an origin such as \"https://app.example\", without a path, or \"*\"";
