//! The rows of held streams: `[hub]` with its history, and the `hub` and `mercure` of a route with their
//! tables.
//!
//! Data only, like `table`, whose rows these follow. The rows `sites.routes.hub` and
//! `sites.routes.mercure` themselves stand with the other keys of a route.

use super::OptionDefault::{Described, Required, Value};
use super::OptionKind::*;
use super::OptionRow;
use super::table::option_row;

/// Every option of held streams.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[OptionRow] = &[
    option_row("hub", "max_streams", Number(1, 10_000_000), Described("three quarters of `limits.connections`, or of what descriptors allow"), "50000",
        "Streams and long polls held at once; one more is answered 503. At most `limits.connections`, since each is a connection; by default pages find room beside them."),
    option_row("hub", "max_streams_per_client", Number(1, 10_000_000), Described("an eighth of `max_streams`, and 100 at least"), "1000",
        "Streams and long polls of one client, which is an IPv4 address or a /64 of IPv6; one more is answered 503. Behind a trusted proxy the client is the one that the proxy names; where it names none, nobody is counted."),
    option_row("hub", "max_channels", Number(1, 100_000_000), Value("1000000"), "1000000",
        "Channels that have subscribers or a history; what would need one more is refused, a stream with 503."),
    option_row("hub", "max_channels_per_stream", Number(1, 1000), Value("20"), "20",
        "Channels of one stream or long poll."),
    option_row("hub", "max_message_size", Size(1), Value(r#""1MiB""#), r#""1MiB""#,
        "Longest message, in all its forms together."),
    option_row("hub", "max_backlog", Size(1), Value(r#""256KiB""#), r#""256KiB""#,
        "Bytes that wait for one subscriber that takes them more slowly than they come; above it counts `slow_policy`."),
    option_row("hub", "max_backlog_total", Size(1), Value(r#""256MiB""#), r#""256MiB""#,
        "Bytes that wait for all such subscribers together."),
    option_row("hub", "slow_policy", Choice(&["drop_oldest", "disconnect"]), Value(r#""drop_oldest""#), r#""drop_oldest""#,
        "What becomes of a subscriber above its bound: it loses the messages that have waited longest, or its connection is closed, \
         so that it comes back with the id of its last event. No other subscriber waits for it."),
    option_row("hub", "send_timeout", Duration(1), Value(r#""60s""#), r#""60s""#,
        "A subscriber that takes nothing at all of what waits for it is gone after so long."),
    option_row("hub", "heartbeat_interval", Duration(1000), Value(r#""15s""#), r#""15s""#,
        "Time between two heart-beats of a stream to which nothing else is sent, where neither its route nor its application says another."),
    option_row("hub", "history", NumberOrTable(0, MAX_HISTORY_MESSAGES, "hub.history"), Described("every default"), r#"{ max_messages = 100, max_age = "5m" }"#,
        "What is kept of each channel; a number alone is `max_messages`."),
    option_row("hub", "drain_timeout", Duration(0), Described("\"30s\"; \"2s\" in development"), r#""30s""#,
        "Over how long held streams are ended when the server stops, so that their clients do not all come back at once; \
         beside `server.shutdown_timeout`, not within it."),
    option_row("hub", "grip_key", Text(crate::hub::GRIP_KEY_EXPECTED), Described("none: nothing is signed"), r#""base64:c2VjcmV0""#,
        "Key of the tokens in `Grip-Sig`, by which applications know that a request came through this server: a secret (HS256), or a \
         private key for RS256 or ES256."),
    option_row("hub", "grip_issuer", Text("a text without control characters"), Value(r#""penstock""#), r#""penstock""#,
        "Who signs them (`iss`).")
        .only_for("a hub with a `grip_key`"),

    option_row("apps.NAME.grip", "namespace", Text(crate::grants::NAMESPACE_EXPECTED), Described("the application's or upstream's name"), r#""chat""#,
        "Namespace of its channels: no other application, upstream or route has a channel in common with it unless it names the same one. \
         \"hub\" is that of the routes with `hub`."),
    option_row("apps.NAME.grip", "origins", Texts(ORIGIN_EXPECTED), Value("[]"), r#"["https://app.example"]"#,
        "Origins whose pages may open WebSockets that come as requests, beside the site's own; \"*\" is any."),

    option_row("hub.history", "max_messages", Number(0, MAX_HISTORY_MESSAGES), Value("100"), "100",
        "Messages of a channel; 0 keeps none."),
    option_row("hub.history", "max_age", Duration(1), Value(r#""5m""#), r#""5m""#,
        "How long a message is kept."),
    option_row("hub.history", "max_size", Size(1), Value(r#""1MiB""#), r#""1MiB""#,
        "Bytes of a channel's messages."),
    option_row("hub.history", "max_size_total", Size(1), Value(r#""256MiB""#), r#""256MiB""#,
        "Bytes of all channels' messages."),

    option_row("sites.routes.hub", "channel", Text(CHANNEL_EXPECTED), Described("`channels`, or an error"), r#""{path.1}""#,
        "Channel of its streams."),
    option_row("sites.routes.hub", "channels", Texts(CHANNEL_EXPECTED), Described("`channel` alone"), r#"["news", "users.{query.user}"]"#,
        "Channels of its streams, if they are several."),
    option_row("sites.routes.hub", "heartbeat_interval", Duration(1000), Described("`hub.heartbeat_interval`"), r#""30s""#,
        "Time between two heart-beats."),
    option_row("sites.routes.hub", "namespace", Text(crate::grants::NAMESPACE_EXPECTED), Value(r#""hub""#), r#""chat""#,
        "Namespace of its channels: with that of an application with `grip`, its channels are the application's."),
    option_row("sites.routes.hub", "publish", Bool, Value("false"), "true",
        "Whether a POST to the route publishes its body to the channels, from anybody who may reach it."),

    option_row("sites.routes.mercure", "publisher_key", TextOrTable(crate::hub::SECRET, "sites.routes.mercure.publisher_key"),
        Described("nobody may publish"), r#""!ChangeThisMercureHubJWTSecretKey!""#,
        "Key of publishers' tokens; a text alone is the secret of HS256."),
    option_row("sites.routes.mercure", "subscriber_key", TextOrTable(crate::hub::SECRET, "sites.routes.mercure.subscriber_key"),
        Described("`publisher_key`"), r#""!ChangeThisMercureHubJWTSecretKey!""#,
        "Key of subscribers' tokens; a text alone is the secret of HS256."),
    option_row("sites.routes.mercure", "anonymous", Bool, Value("false"), "true",
        "Whether who has no token may subscribe, to what is not private."),
    option_row("sites.routes.mercure", "origins", Texts(ORIGIN_EXPECTED), Value("[]"), r#"["https://app.example"]"#,
        "Origins whose pages may subscribe and publish from other sites (CORS), with the cookie of their token; \"*\" is any, without a cookie."),
    option_row("sites.routes.mercure", "subscriptions", Bool, Value("false"), "true",
        "Whether subscriptions are published as updates and can be asked for."),
    option_row("sites.routes.mercure", "heartbeat_interval", Duration(1000), Described("`hub.heartbeat_interval`"), r#""40s""#,
        "Time between two heart-beats."),

    option_row("sites.routes.mercure.publisher_key", "key", Text("a secret, or a public key in PEM"), Required,
        r#""!ChangeThisMercureHubJWTSecretKey!""#,
        "The secret, of at least as many bytes as the algorithm's hash has (RFC 7518 §3.2); for RS256 and ES256 the public key in PEM."),
    option_row("sites.routes.mercure.publisher_key", "algorithm", Choice(&["HS256", "HS384", "HS512", "RS256", "ES256"]),
        Value(r#""HS256""#), r#""RS256""#,
        "The only algorithm (RFC 7518 §3.1) of tokens that are taken."),
];

/// The most messages of a history.
const MAX_HISTORY_MESSAGES: u64 = 1_000_000;
pub(super) const CHANNEL_EXPECTED: &str =
    "a channel such as \"news\" or \"news.{path.1}\", of at most 255 bytes";
const ORIGIN_EXPECTED: &str = "an origin such as \"https://app.example\", without a path, or \"*\"";
