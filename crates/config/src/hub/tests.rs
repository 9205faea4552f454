//! What `[hub]` and the `hub` of a route give, and their errors, row by row; the rows of `mercure`
//! are in `mercure/tests.rs`.

use std::time::Duration;

use super::*;
use crate::model::{RefusalPolicy, Route, RouteHub, SlowPolicy};
use crate::redacted::Secret;
use crate::testing::{TestDir, check_error_table, parse_valid};

/// The `[hub]` table of these lines.
fn hub(lines: &str) -> Hub {
    parse_valid(
        &TestDir::with_sample_site(),
        &format!("[apps.a]\n[hub]\n{lines}\n"),
    )
    .hub
}

/// The route of these lines.
pub(super) fn route(lines: &str) -> Route {
    let text = format!("[[sites]]\n[[sites.routes]]\n{lines}\n");
    let config = parse_valid(&TestDir::with_sample_site(), &text);
    config.sites[0].routes[0].clone()
}

/// Rows of: name, lines of the route from line 3 on, lines of the errors.
pub(super) fn check_routes(rows: &[(&str, &str, &[&str])]) {
    for (name, lines, expected) in rows {
        let text = format!("[[sites]]\n[[sites.routes]]\n{lines}\n");
        check_error_table(&[(name, &text, expected)]);
    }
}

/// Texts that are owned.
pub(super) fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

#[test]
fn reads_every_key_of_the_hub() {
    let lines = r#"
max_streams = 1000
max_streams_per_client = 50
max_channels = 2000
max_channels_per_stream = 5
max_message_size = "64KiB"
max_backlog = "1MiB"
max_backlog_total = "1GiB"
slow_policy = "disconnect"
send_timeout = "5s"
heartbeat_interval = "40s"
heartbeat_event = "heartbeat"
history = { max_messages = 10, max_age = "1h", max_size = "10KiB", max_size_total = "1MiB" }
history_file = "/var/lib/histories"
refusal_policy = "hold"
retry_interval = "1m"
drain_timeout = "0s"
grip_key = "base64:c2VjcmV0IQ=="
grip_issuer = "front"
"#;
    let expected = Hub {
        max_streams: Some(1000),
        max_streams_per_client: Some(50),
        max_channels: 2000,
        max_channels_per_stream: 5,
        max_message_size: 64 << 10,
        max_backlog: 1 << 20,
        max_backlog_total: 1 << 30,
        slow_policy: SlowPolicy::Disconnect,
        send_timeout: Duration::from_secs(5),
        heartbeat_interval: Duration::from_secs(40),
        heartbeat_event: Some("heartbeat".to_owned()),
        history: HubHistory {
            max_messages: 10,
            max_age: Duration::from_secs(3600),
            max_size: 10 << 10,
            max_size_total: 1 << 20,
        },
        history_file: Some("/var/lib/histories".into()),
        refusal_policy: RefusalPolicy::Hold,
        retry_interval: Duration::from_secs(60),
        drain_timeout: Duration::ZERO,
        grip_key: Some("base64:c2VjcmV0IQ==".into()),
        grip_issuer: "front".to_owned(),
    };
    assert_eq!(hub(lines), expected);
}

#[test]
fn what_is_not_said_of_the_hub_is_the_default_or_gives_way() {
    assert_eq!(hub(""), Hub::default());
    assert_eq!(
        parse_valid(&TestDir::with_sample_site(), "[apps.a]\n").hub,
        Hub::default()
    );
    let said = "history = { max_messages = 100, max_age = \"5m\", max_size = \"1MiB\", max_size_total = \"256MiB\" }";
    assert_eq!(hub(said), Hub::default());
    assert_eq!(
        hub("slow_policy = \"drop_oldest\"\nhistory = {}"),
        Hub::default()
    );
    let history = |said: &str| hub(&format!("history = {said}")).history;
    let none = HubHistory {
        max_messages: 0,
        ..HubHistory::default()
    };
    assert_eq!(history("0"), none);
    let small = history("{ max_size_total = \"1KiB\" }");
    assert_eq!((small.max_size, small.max_size_total), (1 << 10, 1 << 10));
    let small = hub("max_backlog_total = \"1KiB\"");
    assert_eq!(
        (small.max_backlog, small.max_backlog_total),
        (1 << 10, 1 << 10)
    );
    assert_eq!(hub("grip_key = \"changeme\"").grip_issuer, "penstock");
    let pem = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let signing = hub(&format!("grip_key = \"\"\"\n{pem}\"\"\"")).grip_key;
    assert_eq!(signing.as_ref().map(Secret::expose), Some(pem));
}

#[test]
fn streams_end_sooner_in_development() {
    let folder = TestDir::with_files(&[("config.ru", "")]);
    let invocation = crate::Invocation {
        development: true,
        cwd: folder.path().to_owned(),
        ..crate::Invocation::default()
    };
    let drain = || {
        crate::resolve_config(&invocation)
            .unwrap()
            .hub
            .drain_timeout
    };
    assert_eq!(drain(), Duration::from_secs(2));
    folder.add(
        "penstock.toml",
        "[apps.a]\n[hub]\nheartbeat_interval = \"20s\"\n",
    );
    assert_eq!(drain(), Duration::from_secs(2));
    folder.add("penstock.toml", "[apps.a]\n[hub]\ndrain_timeout = \"7s\"\n");
    assert_eq!(drain(), Duration::from_secs(7));
}

#[test]
fn reports_what_is_wrong_with_the_hub() {
    const KEY: &str = "penstock.toml:3:12: `grip_key` (not shown) cannot be used: expected a secret, `base64:` and a secret in base64 with its padding, or a private key in PEM, from `-----BEGIN PRIVATE KEY-----` on";
    let rows: &[(&str, &str, &[&str])] = &[
        (
            "unknown",
            "publishers = 1\nmax_channel = 1\nhistory = { max_mesages = 1 }",
            &[
                "penstock.toml:3:1: unknown key `publishers` in [hub]",
                "penstock.toml:4:1: unknown key `max_channel` in [hub]; did you mean `max_channels`?",
                "penstock.toml:5:13: unknown key `max_mesages` in [hub.history]; did you mean `max_messages`?",
            ],
        ),
        (
            "ranges",
            "max_streams = 0\nmax_channels_per_stream = 1001\nmax_message_size = 0\nheartbeat_interval = \"999ms\"\nsend_timeout = \"0s\"\nhistory = { max_messages = -1, max_age = \"0s\" }",
            &[
                "penstock.toml:3:15: `max_streams` cannot be 0: expected a number from 1 to 10000000",
                "penstock.toml:4:27: `max_channels_per_stream` cannot be 1001: expected a number from 1 to 1000",
                "penstock.toml:5:20: `max_message_size` cannot be 0: expected at least 1B",
                "penstock.toml:6:22: `heartbeat_interval` cannot be \"999ms\": expected at least 1s",
                "penstock.toml:7:16: `send_timeout` cannot be \"0s\": expected at least 1ms",
                "penstock.toml:8:28: `max_messages` cannot be -1: expected a number from 0 to 1000000",
                "penstock.toml:8:42: `max_age` cannot be \"0s\": expected at least 1ms",
            ],
        ),
        (
            "more streams than connections",
            "max_streams = 100001",
            &["penstock.toml:3:15: `max_streams` (100001) is above `limits.connections` (100000)"],
        ),
        (
            "as many as connections",
            "max_streams = 200000\n[limits]\nconnections = 200000",
            &[],
        ),
        (
            "one above all",
            "max_backlog = \"2MiB\"\nmax_backlog_total = \"1MiB\"\nhistory = { max_size = \"1GiB\" }",
            &[
                "penstock.toml:3:15: `max_backlog` (2097152) is above `max_backlog_total` (1048576)",
                "penstock.toml:5:24: `max_size` (1073741824) is above `max_size_total` (268435456)",
            ],
        ),
        (
            "policy",
            "slow_policy = \"drop-oldest\"",
            &[
                "penstock.toml:3:15: `slow_policy` cannot be \"drop-oldest\": expected \"drop_oldest\" or \"disconnect\"; did you mean `drop_oldest`?",
            ],
        ),
        (
            "history",
            "history = \"100\"",
            &[
                "penstock.toml:3:11: `history` must be a number from 0 to 1000000, or a table, not a string",
            ],
        ),
        (
            "issuer of nothing",
            "grip_issuer = \"x\"",
            &["penstock.toml:3:15: `grip_issuer` is only for a hub with a `grip_key`"],
        ),
        (
            "issuer",
            "grip_key = \"x\"\ngrip_issuer = \"\"",
            &[
                "penstock.toml:4:15: `grip_issuer` cannot be \"\": expected a text without control characters",
            ],
        ),
        ("no key", "grip_key = \"\"", &[KEY]),
        ("no coded key", "grip_key = \"base64:\"", &[KEY]),
        ("padding", "grip_key = \"base64:c2VjcmV0IQ\"", &[KEY]),
        ("alphabet", "grip_key = \"base64:c2VjcmV_\"", &[KEY]),
        (
            "a public key",
            "grip_key = \"-----BEGIN PUBLIC KEY-----\\nAAAA\\n-----END PUBLIC KEY-----\"",
            &[KEY],
        ),
        ("only padding", "grip_key = \"base64:====\"", &[KEY]),
    ];
    for (name, lines, expected) in rows {
        check_error_table(&[(name, &format!("[apps.a]\n[hub]\n{lines}\n"), expected)]);
    }
    let top = "hub = 1\n[apps.a]\n";
    check_error_table(&[(
        "type",
        top,
        &["penstock.toml:1:7: `hub` must be a table, not an integer"],
    )]);
}

#[test]
fn reads_the_hub_of_a_route() {
    let plain = |channels: &[&str]| RouteHub {
        channels: texts(channels),
        heartbeat_interval: None,
        heartbeat_event: None,
        namespace: "hub".to_owned(),
        origins: Vec::new(),
        presence: false,
        publish: false,
    };
    let hub = |value: &str| route(&format!("hub = {value}")).hub;
    assert_eq!(hub("\"news.{path.1}\""), Some(plain(&["news.{path.1}"])));
    assert_eq!(hub("{ channel = \"{path}\" }"), Some(plain(&["{path}"])));
    let several = "{ channels = [\"a\", \"{query.user}\"], heartbeat_interval = \"30s\", heartbeat_event = \"beat\", origins = [\"https://App.example:443\"], presence = true, publish = true }";
    let expected = RouteHub {
        heartbeat_interval: Some(Duration::from_secs(30)),
        heartbeat_event: Some("beat".to_owned()),
        origins: texts(&["https://app.example"]),
        presence: true,
        publish: true,
        ..plain(&["a", "{query.user}"])
    };
    assert_eq!(hub(several), Some(expected));
    let more = route(
        "path = \"/live/*\"\nhub = \"a\"\nresponse_headers.set.X-A = \"b\"\nrewrite.strip_prefix = \"/live\"",
    );
    assert_eq!(more.hub, Some(plain(&["a"])));
    assert!(more.app.is_none() && more.mercure.is_none());
}

#[test]
fn reports_hubs_of_routes_that_cannot_be() {
    const CHANNEL: &str = "a channel such as \"news\" or \"news.{path.1}\", of at most 255 bytes";
    const PLACE: &str = "expected {path}, {path.N} with N from 1 to 99, or {query.NAME} in braces";
    let long = "x".repeat(256);
    let long_lines = format!("hub = \"{long}\"");
    check_routes(&[
        (
            "places",
            "hub = \"news.{pth.1}\"",
            &[&format!(
                "penstock.toml:3:13: `hub` cannot be \"{{pth.1}}\": {PLACE}"
            )],
        ),
        (
            "in a table",
            "hub = { channels = [\"a\", 'ä{path.0}', \"\\u0061{}\"] }",
            &[
                &format!("penstock.toml:3:28: `channels` cannot be \"{{path.0}}\": {PLACE}"),
                &format!("penstock.toml:3:39: `channels` cannot be \"{{}}\": {PLACE}"),
            ],
        ),
        (
            "control characters and nothing",
            "hub = { channels = [\"a\\tb\", \"\"] }",
            &[
                "penstock.toml:3:21: `channels` cannot be \"\\t\": expected no control character",
                "penstock.toml:3:29: `channels` cannot be \"\": expected the name of a channel, of at most 255 bytes",
            ],
        ),
        (
            "too long",
            &long_lines,
            &[&format!(
                "penstock.toml:3:7: `hub` cannot be \"{long}\": expected the name of a channel, of at most 255 bytes"
            )],
        ),
        (
            "no channel",
            "hub = { publish = true }",
            &[&format!(
                "penstock.toml:3:7: `channel` is missing in [sites.routes.hub]: expected {CHANNEL}"
            )],
        ),
        (
            "an empty list",
            "hub = { channels = [] }",
            &[&format!(
                "penstock.toml:3:20: `channels` needs at least one item: expected {CHANNEL}"
            )],
        ),
        (
            "both, and one twice",
            "hub = { channel = \"a\", channels = [\"b\", \"b\"] }",
            &[
                "penstock.toml:3:35: `channel` and `channels` say the same: keep one",
                "penstock.toml:3:41: `channels` has `b` twice",
            ],
        ),
        (
            "more than a stream may have",
            "hub = { channels = [\"a\", \"b\", \"c\"] }\n[hub]\nmax_channels_per_stream = 2",
            &["penstock.toml:3:20: `channels` (3) is above `hub.max_channels_per_stream` (2)"],
        ),
        (
            "types",
            "hub = 1",
            &[&format!(
                "penstock.toml:3:7: `hub` must be {CHANNEL}, or a table, not an integer"
            )],
        ),
        (
            "keys",
            "hub = { chanel = \"a\", channel = \"a\", heartbeat_interval = \"1ms\", publish = 1 }",
            &[
                "penstock.toml:3:9: unknown key `chanel` in [sites.routes.hub]; did you mean `channel`?",
                "penstock.toml:3:59: `heartbeat_interval` cannot be \"1ms\": expected at least 1s",
                "penstock.toml:3:76: `publish` must be true or false, not an integer",
            ],
        ),
    ]);
}

#[test]
fn only_one_answers_a_route() {
    const HUB: &str = "`hub` is only for a route without `app`, `upstream` and `files`";
    const MERCURE: &str =
        "`mercure` is only for a route without `app`, `upstream`, `files` and `hub`";
    check_routes(&[
        (
            "an application",
            "app = \"a\"\nhub = \"x\"\n[apps.a]",
            &[&format!("penstock.toml:4:7: {HUB}")],
        ),
        (
            "an upstream",
            "upstream = \"b\"\nmercure = { anonymous = true }\n[upstreams.b]\nservers = [\"127.0.0.1:80\"]",
            &[&format!("penstock.toml:4:11: {MERCURE}")],
        ),
        (
            "files",
            "files = { root = \"public\" }\nhub = \"x\"\nmercure = { anonymous = true }",
            &[
                &format!("penstock.toml:4:7: {HUB}"),
                &format!("penstock.toml:5:11: {MERCURE}"),
            ],
        ),
        (
            "both hubs",
            "hub = \"x\"\nmercure = { anonymous = true }",
            &[&format!("penstock.toml:4:11: {MERCURE}")],
        ),
        (
            "what only a back end has",
            "hub = \"x\"\ncache = [\"c\"]\nrequest_buffering = false\n[caches.c]",
            &[
                "penstock.toml:4:9: `cache` is only for a route with an `app`, `upstream` or `split`",
                "penstock.toml:5:21: `request_buffering` is only for a route with an `upstream`, or an `app` of kind \"command\" or \"fastcgi\"",
            ],
        ),
    ]);
}
