//! What `[upstreams.NAME]` gives, and its errors, row by row.

use std::time::Duration;

use super::*;
use crate::Balance;
use crate::model::{
    EjectPolicy, ForwardedHeaders, ProxyProtocol, RetryPolicy, ServerAddr, UpstreamServer,
    UpstreamTls,
};
use crate::testing::{TestDir, check_error_table, parse_valid};

fn read_upstream(folder: &TestDir, lines: &str) -> Upstream {
    let text = format!("[upstreams.b]\nservers = [\"127.0.0.1:80\"]\n{lines}\n");
    parse_valid(folder, &text).upstreams["b"].clone()
}

#[test]
fn reads_every_key() {
    let folder = TestDir::with_sample_site();
    let config = parse_valid(
        &folder,
        r#"
[upstreams.legacy]
protocol = "fastcgi"
servers = [
  "127.0.0.1:30000", "[::1]:80", "unix:/tmp/a.sock", "unix:a.sock", "Name.example:80", "localhost:80", "srv:_fcgi._tcp.example.com",
  { address = "unix:/tmp/b.sock", weight = 2, max_active = 1, backup = true },
]
balance = "hash"
key = "header:X-Tenant"
sticky = "server"
max_active = 1
queue = { max = 5, timeout = "1s" }
connections = { min = 1, soft = 8, max = 64, ttl = "5s" }
connect_timeout = "2s"
response_timeout = "3s"
body_idle_timeout = "4s"
total_timeout = "5s"
tunnel_timeout = "6s"
retry = { attempts = 3, budget = 0.5 }
health = { path = "/up?x=1", status = "200", interval = "1s", timeout = "3s", rise = 4, fall = 5 }
eject = { max_failures = 0, duration = "7s" }
slow_start = "8s"
host = "app.example:81"
forwarded = "both"
request_buffering = false
response_buffering = false
proxy_protocol = "v2"
sendfile_root = "public"
root = "/srv/www"
index = "front/index.php"
params = { A = "b" }
resolve_interval = "9s"
tls = { server_name = "app.internal" }
"#,
    );
    let secs = Duration::from_secs;
    let name = |host: &str| ServerAddr::Name {
        host: host.to_owned(),
        port: 80,
    };
    let plain = [
        ServerAddr::Tcp("127.0.0.1:30000".parse().unwrap()),
        ServerAddr::Tcp("[::1]:80".parse().unwrap()),
        ServerAddr::Unix("/tmp/a.sock".into()),
        ServerAddr::Unix(folder.join("a.sock")),
        name("name.example"),
        name("localhost"),
        ServerAddr::Srv("_fcgi._tcp.example.com".to_owned()),
    ];
    let mut servers: Vec<_> = plain.into_iter().map(UpstreamServer::new).collect();
    servers.push(UpstreamServer {
        address: ServerAddr::Unix("/tmp/b.sock".into()),
        weight: 2,
        max_active: Some(1),
        backup: true,
    });
    let expected = Upstream {
        strict: false,
        joinable: false,
        join_key: None,
        name: "legacy".to_owned(),
        protocol: Protocol::FastCgi,
        servers,
        balance: Balance::Hash,
        hash_key: Some(HashKey::Header("X-Tenant".to_owned())),
        sticky: Some("server".to_owned()),
        tls: Some(UpstreamTls {
            server_name: Some("app.internal".to_owned()),
            ..UpstreamTls::default()
        }),
        max_active: Some(1),
        max_queued: 5,
        queue_timeout: secs(1),
        connections: ConnectionLimits {
            min: 1,
            max_idle: 8,
            max: 64,
            idle_timeout: secs(5),
        },
        connect_timeout: secs(2),
        response_timeout: secs(3),
        body_idle_timeout: secs(4),
        total_timeout: Some(secs(5)),
        tunnel_timeout: secs(6),
        retry: RetryPolicy {
            max_attempts: 3,
            budget: 0.5,
        },
        health: Some(HealthCheck {
            path: Some("/up?x=1".to_owned()),
            status: (200, 200),
            interval: secs(1),
            timeout: secs(3),
            rise: 4,
            fall: 5,
        }),
        eject: EjectPolicy {
            max_failures: 0,
            duration: secs(7),
        },
        slow_start: secs(8),
        host: HostHeader::Custom("app.example:81".to_owned()),
        forwarded: ForwardedHeaders::Both,
        request_buffering: false,
        response_buffering: false,
        proxy_protocol: Some(ProxyProtocol::V2),
        grip: None,
        sendfile: crate::model::Sendfile {
            is_enabled: true,
            dirs: vec![folder.join("public")],
        },
        root: Some("/srv/www".into()),
        index: Some("front/index.php".to_owned()),
        params: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        secret: None,
        resolve_interval: secs(9),
    };
    assert_eq!(config.upstreams["legacy"], expected);
}

#[test]
fn reads_the_words() {
    let folder = TestDir::with_sample_site();
    let read = |lines: &str| read_upstream(&folder, lines);
    let address = ServerAddr::Tcp("127.0.0.1:80".parse().unwrap());
    let plain = Upstream::new("b", Protocol::Http, vec![UpstreamServer::new(address)]);
    assert_eq!(read(""), plain);
    let protocols = [
        ("http", Protocol::Http),
        ("fastcgi", Protocol::FastCgi),
        ("scgi", Protocol::Scgi),
        ("uwsgi", Protocol::Uwsgi),
        ("ajp", Protocol::Ajp),
    ];
    for (word, expected) in protocols {
        assert_eq!(expected.as_str(), word);
        let found = read(&format!("protocol = \"{word}\"")).protocol;
        assert_eq!(found, expected, "{word}");
    }
    let balances = [
        ("idle_first", Balance::IdleFirst),
        ("round_robin", Balance::RoundRobin),
        ("least_active", Balance::LeastActive),
        ("random_two", Balance::RandomTwo),
    ];
    for (word, expected) in balances {
        let found = read(&format!("balance = \"{word}\"")).balance;
        assert_eq!(found, expected, "{word}");
    }
    let keys = [
        ("path", HashKey::Path),
        ("uri", HashKey::Uri),
        ("client_ip", HashKey::ClientIp),
        ("header:X-A", HashKey::Header("X-A".to_owned())),
        ("cookie:id", HashKey::Cookie("id".to_owned())),
    ];
    for (word, expected) in keys {
        let found = read(&format!("balance = \"hash\"\nkey = \"{word}\""));
        let expected = (Balance::Hash, Some(expected));
        assert_eq!((found.balance, found.hash_key), expected, "{word}");
    }
    let forwarded = [
        ("x-forwarded", ForwardedHeaders::XForwarded),
        ("rfc7239", ForwardedHeaders::Rfc7239),
        ("both", ForwardedHeaders::Both),
        ("off", ForwardedHeaders::Off),
    ];
    for (word, expected) in forwarded {
        let found = read(&format!("forwarded = \"{word}\"")).forwarded;
        assert_eq!(found, expected, "{word}");
    }
    assert_eq!(read("host = \"client\"").host, HostHeader::Client);
    assert_eq!(read("host = \"server\"").host, HostHeader::Server);
    let v1 = read("proxy_protocol = \"v1\"").proxy_protocol;
    assert_eq!(v1, Some(ProxyProtocol::V1));
    assert_eq!(read("health = {}").health, Some(HealthCheck::default()));
    let secret = read("protocol = \"ajp\"\nsecret = \"x\"").secret;
    assert_eq!(secret, Some("x".into()));
    for (text, expected) in [("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("-0.0", 0.0)] {
        let budget = read(&format!("retry = {{ budget = {text} }}")).retry.budget;
        assert_eq!((budget, budget.is_sign_negative()), (expected, false));
    }
}

#[test]
fn bounds_that_are_not_said_give_way_to_those_that_are() {
    let folder = TestDir::with_sample_site();
    let rows = [
        ("", (0, 64, 1024)),
        ("connections = { max = 10 }", (0, 10, 10)),
        ("connections = { min = 100 }", (100, 100, 1024)),
        ("connections = { min = 2000 }", (2000, 2000, 2000)),
        ("connections = { soft = 2000 }", (0, 2000, 2000)),
        ("max_active = 5000", (0, 64, 5000)),
        ("connections = { soft = 0, max = 1 }", (0, 0, 1)),
        ("max_active = 4\nconnections = { max = 4 }", (0, 4, 4)),
    ];
    for (lines, expected) in rows {
        let found = read_upstream(&folder, lines).connections;
        assert_eq!((found.min, found.max_idle, found.max), expected, "{lines}");
    }
    let fastcgi = [
        ("", 0),
        ("max_active = 4", 64),
        ("connections = { soft = 3 }", 3),
        ("connections = { min = 2 }", 2),
    ];
    for (lines, soft) in fastcgi {
        let found = read_upstream(&folder, &format!("protocol = \"fastcgi\"\n{lines}"));
        assert_eq!(found.connections.max_idle, soft, "{lines}");
    }
    for (servers, soft) in [
        (r#""a:80", { address = "b:80", max_active = 2 }"#, 0),
        (r#"{ address = "b:80", max_active = 2 }"#, 64),
    ] {
        let text = format!("[upstreams.b]\nprotocol = \"fastcgi\"\nservers = [{servers}]\n");
        let found = parse_valid(&folder, &text).upstreams["b"].connections;
        assert_eq!(found.max_idle, soft, "{servers}");
    }
    let text = "[upstreams.b]\nservers = [{ address = \"a:80\", max_active = 3000 }]\n";
    let found = parse_valid(&folder, text).upstreams["b"].connections;
    assert_eq!(found.max, 3000);
}

/// Rows of: name, lines of the table after its servers, lines of the errors from line 3 on.
fn check_rows(rows: &[(&str, &str, &[&str])]) {
    for (name, lines, expected) in rows {
        let text = format!("[upstreams.b]\nservers = [\"127.0.0.1:80\"]\n{lines}\n");
        check_error_table(&[(name, &text, expected)]);
    }
}

#[test]
fn reports_servers_that_cannot_work() {
    let expected = ServerAddr::EXPECTED;
    let bad = |column: usize, value: &str| {
        format!("penstock.toml:2:{column}: `servers` cannot be \"{value}\": expected {expected}")
    };
    let missing = format!(
        "penstock.toml:2:12: `address` is missing in [upstreams.b.servers]: expected {expected}"
    );
    let none =
        format!("penstock.toml:2:11: `servers` needs at least one item: expected {expected}");
    let absent = format!(
        "penstock.toml:1:12: `servers` is missing in [upstreams.b]: expected {expected}, or a table, or a list of these"
    );
    let typed = format!(
        "penstock.toml:2:12: `servers` must be {expected}, or a table, or a list of these, not an integer"
    );
    let url = bad(19, "http://a:80") + "; did you mean `a:80`?";
    let port = bad(12, "a:0");
    let rows: &[(&str, &str, &[&str])] = &[
        ("absent", "", &[&absent]),
        ("none", "servers = []", &[&none]),
        ("type", "servers = [80]", &[&typed]),
        (
            "address",
            "servers = [\"a:0\", \"http://a:80\"]",
            &[&port, &url],
        ),
        ("no address", "servers = [{ weight = 1 }]", &[&missing]),
        (
            "weight",
            "servers = [{ address = \"a:80\", weight = 0, max_active = 0, backup = 1 }]",
            &[
                "penstock.toml:2:41: `weight` cannot be 0: expected a number from 1 to 65535",
                "penstock.toml:2:57: `max_active` cannot be 0: expected a number from 1 to 1000000",
                "penstock.toml:2:69: `backup` must be true or false, not an integer",
            ],
        ),
        (
            "unknown key",
            "servers = [{ address = \"a:80\", wieght = 1 }]",
            &[
                "penstock.toml:2:32: unknown key `wieght` in [upstreams.b.servers]; did you mean `weight`?",
            ],
        ),
        (
            "twice",
            "servers = [\"a:80\",\n  { address = \"A:80\" }]",
            &["penstock.toml:3:15: server a:80 is already listed on line 2"],
        ),
        (
            "only backups",
            "servers = [{ address = \"a:80\", backup = true }]",
            &["penstock.toml:2:11: every server is `backup`: at least one must not be"],
        ),
    ];
    for (name, servers, expected) in rows {
        check_error_table(&[(name, &format!("[upstreams.b]\n{servers}\n"), expected)]);
    }
}

#[test]
fn reports_values_that_make_no_sense() {
    check_rows(&[
        (
            "protocol",
            "protocol = \"fcgi\"\nroot = \"x\"",
            &[
                "penstock.toml:3:12: `protocol` cannot be \"fcgi\": expected \"http\" or \"fastcgi\" or \"scgi\" or \"uwsgi\" or \"ajp\"; did you mean `scgi`?",
            ],
        ),
        (
            "balance",
            "balance = \"hsah\"\nkey = \"path\"",
            &[
                "penstock.toml:3:11: `balance` cannot be \"hsah\": expected \"idle_first\" or \"round_robin\" or \"least_active\" or \"random_two\" or \"hash\"; did you mean `hash`?",
            ],
        ),
        (
            "key",
            "balance = \"hash\"\nkey = \"header:\"",
            &[
                "penstock.toml:4:7: `key` cannot be \"header:\": expected \"path\", \"uri\", \"client_ip\", \"header:NAME\" or \"cookie:NAME\"",
            ],
        ),
        (
            "cookie",
            "balance = \"hash\"\nkey = \"cookie:a b\"\nsticky = \"a;b\"",
            &[
                "penstock.toml:4:7: `key` cannot be \"cookie:a b\": expected \"path\", \"uri\", \"client_ip\", \"header:NAME\" or \"cookie:NAME\"",
                "penstock.toml:5:10: `sticky` cannot be \"a;b\": expected the name of a cookie",
            ],
        ),
        (
            "retry",
            "retry = { attempts = 0, budget = 1.5 }",
            &[
                "penstock.toml:3:22: `attempts` cannot be 0: expected a number from 1 to 100",
                "penstock.toml:3:34: `budget` cannot be 1.5: expected a number from 0 to 1",
            ],
        ),
        (
            "not a number",
            "retry = { budget = nan }",
            &["penstock.toml:3:20: `budget` cannot be nan: expected a number from 0 to 1"],
        ),
        (
            "two",
            "retry = { budget = 2 }",
            &["penstock.toml:3:20: `budget` cannot be 2: expected a number from 0 to 1"],
        ),
        (
            "flag",
            "request_buffering = \"yes\"",
            &["penstock.toml:3:21: `request_buffering` must be true or false, not a string"],
        ),
        (
            "health",
            "health = { path = \"up\", status = \"399-200\", rise = 0 }",
            &[
                "penstock.toml:3:19: `path` cannot be \"up\": expected a path such as \"/up\", without spaces",
                "penstock.toml:3:34: `status` cannot be \"399-200\": expected a status or a range such as \"200-399\", from 100 to 599",
                "penstock.toml:3:52: `rise` cannot be 0: expected a number from 1 to 1000",
            ],
        ),
        (
            "health is a table",
            "health = true",
            &["penstock.toml:3:10: `health` must be a table, not a boolean"],
        ),
        (
            "probe that splits the request",
            "health = { path = \"/up HTTP/1.1\\r\\nX: y\" }",
            &[
                "penstock.toml:3:19: `path` cannot be \"/up HTTP/1.1\\r\\nX: y\": expected a path such as \"/up\", without spaces",
            ],
        ),
        (
            "host",
            "host = \"http://a\"",
            &[
                "penstock.toml:3:8: `host` cannot be \"http://a\": expected \"client\", \"server\", or a host such as \"app.example\", with or without a port",
            ],
        ),
        (
            "folder",
            "sendfile_root = \"nowhere\"",
            &["penstock.toml:3:17: `sendfile_root`: nowhere does not exist"],
        ),
        (
            "scripts",
            "protocol = \"fastcgi\"\nroot = \"/www\"\nindex = \"../index.php\"\nparams = { \"A=B\" = \"c\" }",
            &[
                "penstock.toml:5:9: `index` cannot be \"../index.php\": expected a path inside `root` such as \"index.php\"",
                "penstock.toml:6:12: `params` cannot be \"A=B\": expected a variable without `=` in its name and without zero bytes",
            ],
        ),
        (
            "secret",
            "protocol = \"ajp\"\nsecret = \"\"",
            &["penstock.toml:4:10: `secret` (not shown) cannot be used: expected a text"],
        ),
    ]);
}

#[test]
fn reports_bounds_the_wrong_way_round() {
    check_rows(&[
        (
            "min above soft",
            "connections = { min = 9, soft = 8 }",
            &["penstock.toml:3:23: `min` (9) is above `soft` (8)"],
        ),
        (
            "soft above max",
            "connections = { soft = 65, max = 64 }",
            &["penstock.toml:3:24: `soft` (65) is above `max` (64)"],
        ),
        (
            "min above max",
            "connections = { min = 65, max = 64 }",
            &["penstock.toml:3:23: `min` (65) is above `max` (64)"],
        ),
        (
            "more requests than connections",
            "max_active = 65\nconnections = { max = 64 }",
            &["penstock.toml:4:23: `max_active` (65) is above `max` (64)"],
        ),
    ]);
}

#[test]
fn reports_keys_that_would_be_ignored() {
    check_rows(&[
        (
            "key",
            "key = \"path\"",
            &["penstock.toml:3:7: `key` is only for the balance \"hash\""],
        ),
        (
            "key of another balance",
            "key = \"path\"\nbalance = \"round_robin\"",
            &["penstock.toml:3:7: `key` is only for the balance \"hash\""],
        ),
        (
            "no key",
            "balance = \"hash\"",
            &[
                "penstock.toml:1:12: `key` is missing in [upstreams.b]: expected \"path\", \"uri\", \"client_ip\", \"header:NAME\" or \"cookie:NAME\"",
            ],
        ),
        (
            "gateway keys",
            "root = \"/www\"\nindex = \"index.php\"\nparams = {}",
            &[
                "penstock.toml:3:8: `root` is only for other protocols than \"http\"",
                "penstock.toml:4:9: `index` is only for other protocols than \"http\"",
                "penstock.toml:5:10: `params` is only for other protocols than \"http\"",
            ],
        ),
        (
            "index without root",
            "protocol = \"fastcgi\"\nindex = \"index.php\"",
            &["penstock.toml:1:12: `root` is missing in [upstreams.b]: expected a path"],
        ),
        (
            "secret",
            "protocol = \"uwsgi\"\nsecret = \"x\"",
            &["penstock.toml:4:10: `secret` is only for the protocol \"ajp\""],
        ),
        (
            "secret of the default protocol",
            "secret = \"x\"",
            &["penstock.toml:3:10: `secret` is only for the protocol \"ajp\""],
        ),
        (
            "status",
            "health = { status = \"200\" }",
            &["penstock.toml:3:21: `status` is only for probes with a `path`"],
        ),
    ]);
}

#[test]
fn reads_ranges_of_statuses() {
    let rows = [
        ("200", Some((200, 200))),
        ("200-399", Some((200, 399))),
        ("100-599", Some((100, 599))),
        ("99", None),
        ("600", None),
        ("200-", None),
        ("+20", None),
        ("200-300-400", None),
        ("", None),
    ];
    for (text, expected) in rows {
        assert_eq!(parse_status_range(text), expected, "{text}");
    }
}
