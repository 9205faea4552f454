//! Access logs: their forms, their places, and which requests they have.

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

use super::{json_lines, log_lines};
use crate::support::{PATIENCE, Server, Site};

fn status_of(server: &Server, host: &str, target: &str) -> u16 {
    let mut client = server.connect();
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: \"x\" \u{e9}\r\nX-Real-IP: 203.0.113.9\r\n\
         Connection: close\r\n\r\n"
    ));
    client.response().status
}

const ROUTES: &str = r#"
[[sites]]
hosts = ["shop.test", "www.shop.test"]
access_logs = ["shop"]
[[sites.routes]]
path = "/cart/*"
respond = { status = 201, body = "cart" }
[[sites.routes]]
respond = { body = "shop" }

[[sites]]
[[sites.routes]]
path = "/health"
respond = { body = "up" }
[[sites.routes]]
path = "/broken"
respond = { status = 503 }
[[sites.routes]]
path = "/missing"
respond = { status = 404 }
[[sites.routes]]
respond = { body = "other" }
"#;

#[test]
fn each_log_has_its_requests_in_its_form() {
    let logs = r#"
[server]
threads = 1
access_log = { path = "all.log", format = "{client} {method} {uri} {status} {bytes_sent} {site} {route} \"{header.user-agent}\" {reason}", match = ["!probe"] }

[conditions.probe]
path = ["/health"]

[access_logs.shop]
path = "shop.log"
format = "json"
fields = ["site", "route", "status", "total_time", "request_id", "header.x-none"]

[access_logs.errors]
path = "errors.log"
format = "common"
status = ["4xx", "503"]

[access_logs.sampled]
path = "sampled.log"
format = "{status} {line}"
sample = 0

[access_logs.slow]
path = "slow.log"
min_time = "1h"
"#;
    let server = Site::new().config(&format!("{logs}{ROUTES}")).serve(&[]);
    for (host, target, status) in [
        ("www.shop.test", "/cart/1", 201),
        ("other", "/health", 200),
        ("other", "/broken?token=s3cret", 503),
        ("other", "/missing", 404),
        ("shop.test", "/", 200),
        ("other", "/", 200),
    ] {
        assert_eq!(status_of(&server, host, target), status, "{host} {target}");
    }
    let mut client = server.connect();
    client.send("GET /\u{1b}\" HTTP/1.1\r\n\r\n");
    assert_eq!(client.response().status, 400);
    let all = log_lines(&server, "all.log", 4);
    let agent = "\"\\\"x\\\" \\xc3\\xa9\"";
    assert_eq!(
        all[..3],
        [
            format!("203.0.113.9 GET /broken?token=*** 503 0 * /broken {agent} -"),
            format!("203.0.113.9 GET /missing 404 0 * /missing {agent} -"),
            format!("203.0.113.9 GET / 200 5 * /* {agent} -"),
        ]
    );
    assert!(
        all[3].starts_with("127.0.0.1 - - 400 0 - - \"-\" "),
        "{}",
        all[3]
    );
    let shop = json_lines(&server, "shop.log", 2);
    assert_eq!(shop[0]["route"], "/cart/*");
    assert_eq!(
        (&shop[0]["site"], &shop[1]["site"]),
        (&shop[1]["site"], &"shop.test".into())
    );
    assert_eq!(
        (&shop[0]["status"], &shop[1]["status"]),
        (&201.into(), &200.into())
    );
    assert!(shop[0]["total_time"].is_f64() && shop[0]["header.x-none"].is_null());
    assert_eq!(shop[0]["request_id"].as_str().map(str::len), Some(36));
    let errors = log_lines(&server, "errors.log", 3);
    let ends: Vec<&str> = errors
        .iter()
        .map(|line| line.split_once("] ").unwrap().1)
        .collect();
    assert_eq!(
        ends,
        [
            "\"GET /broken?token=*** HTTP/1.1\" 503 0",
            "\"GET /missing HTTP/1.1\" 404 0",
            "\"GET /\\x1b\\\" HTTP/1.1\" 400 0",
        ]
    );
    let sampled = log_lines(&server, "sampled.log", 2);
    assert_eq!(
        sampled,
        [
            "503 GET /broken?token=*** HTTP/1.1",
            "400 GET /\\x1b\\\" HTTP/1.1"
        ],
        "errors are always there"
    );
    assert_eq!(server.site().read("slow.log"), "");
    // logrotate: every log moves.
    for log in ["all", "errors"] {
        let dir = server.site().dir();
        std::fs::rename(dir.join(format!("{log}.log")), dir.join(format!("{log}.1"))).unwrap();
    }
    server.signal(rustix::process::Signal::USR1);
    server.wait_log("logs: reopened");
    assert_eq!(status_of(&server, "other", "/missing"), 404);
    assert_eq!(log_lines(&server, "all.log", 1).len(), 1);
    assert_eq!(log_lines(&server, "errors.log", 1).len(), 1);
}

#[test]
fn syslog_daemons_get_a_message_for_each_request() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let site = Site::new();
    let path = site.dir().join("syslog.sock");
    let unix = UnixDatagram::bind(&path).unwrap();
    unix.set_read_timeout(Some(PATIENCE)).unwrap();
    let logs = format!(
        "[server]\nthreads = 1\naccess_log = \"syslog:{}\"\n[access_logs.local]\n\
         path = \"syslog:unix:{}\"\nformat = \"{{method}} {{status}}\"\n\
         [access_logs.away]\npath = \"syslog:unix:{}.none\"\n",
        udp.local_addr().unwrap(),
        path.display(),
        path.display()
    );
    let routes = ROUTES.replace("access_logs = [\"shop\"]", "");
    let server = site.config(&format!("{logs}{routes}")).serve(&[]);
    assert_eq!(status_of(&server, "other", "/"), 200);
    let mut room = [0; 9000];
    let length = udp.recv(&mut room).unwrap();
    let message = String::from_utf8_lossy(&room[..length]).into_owned();
    assert!(
        message.starts_with("<134>1 20") && message.contains(" penstock "),
        "{message}"
    );
    assert!(message.contains("\"GET / HTTP/1.1\" 200 5 "), "{message}");
    let length = unix.recv(&mut room).unwrap();
    let message = String::from_utf8_lossy(&room[..length]).into_owned();
    assert!(message.ends_with(" access - GET 200"), "{message}");
    let dropped = || server.admin_json()["log_lines_dropped"].as_u64();
    crate::support::eventually(
        PATIENCE,
        "a line for the daemon that is away is counted",
        || dropped() == Some(1),
    );
}
