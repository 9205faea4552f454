//! Probes of scripted servers on loopback.

use penstock_runtime::clock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use config::{HealthCheck, HostHeader, Protocol, ProxyProtocol};
use penstock_client::ClientError;
use penstock_config as config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::check::{ProbeError, check_server};
use crate::connection::ConnectionSetup;
use crate::maintenance::tests::{
    claim, first_server_id, first_server_snapshot, release, run_on_loop, start, upstream_config,
    wait_until,
};

/// What a server does with each connection.
#[derive(Debug, Clone)]
enum ServerScript {
    /// Reads a request, sends this and closes.
    Answer(Vec<u8>),
    /// The same in two pieces.
    Pieces(Vec<u8>, Vec<u8>),
    /// Sends nothing.
    Silence,
}

/// A scripted server.
#[derive(Debug, Clone)]
struct Origin {
    address: String,
    script: Arc<Mutex<ServerScript>>,
    received: Arc<Mutex<Vec<u8>>>,
    /// Current connections, and the maximum at once.
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    all: Arc<AtomicUsize>,
}

impl Origin {
    async fn start(script: ServerScript) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = Self {
            address: listener.local_addr().unwrap().to_string(),
            script: Arc::new(Mutex::new(script)),
            received: Arc::default(),
            now: Arc::default(),
            most: Arc::default(),
            all: Arc::default(),
        };
        let ours = origin.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(ours.clone().serve(stream));
            }
        });
        origin
    }

    async fn serve(self, mut stream: tokio::net::TcpStream) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
        let mut buffer = [0; 1024];
        let mut count = stream.read(&mut buffer).await.unwrap_or(0);
        // The header comes first, and alone.
        if buffer.starts_with(b"PROXY ") && !buffer[..count].ends_with(b"\r\n\r\n") {
            count += stream.read(&mut buffer[count..]).await.unwrap_or(0);
        }
        *self.received.lock().unwrap() = buffer[..count].to_vec();
        let script = self.script.lock().unwrap().clone();
        match script {
            ServerScript::Answer(bytes) => drop(stream.write_all(&bytes).await),
            ServerScript::Pieces(first, rest) => {
                drop(stream.write_all(&first).await);
                tokio::task::yield_now().await;
                drop(stream.write_all(&rest).await);
            }
            // Until the peer closes.
            ServerScript::Silence => drop(stream.read(&mut buffer).await),
        }
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    fn play(&self, script: ServerScript) {
        *self.script.lock().unwrap() = script;
    }
}

fn answer(text: &str) -> ServerScript {
    ServerScript::Answer(text.as_bytes().to_vec())
}

fn health(path: Option<&str>) -> HealthCheck {
    HealthCheck {
        path: path.map(str::to_owned),
        interval: Duration::from_millis(20),
        timeout: Duration::from_millis(300),
        ..HealthCheck::default()
    }
}

/// Probes a server that plays `script`; returns the result and what the server received.
async fn probe_once(
    config: &config::Upstream,
    script: ServerScript,
) -> (Result<(), String>, Vec<u8>) {
    let origin = Origin::start(script).await;
    let mut config = config.clone();
    config.servers = vec![crate::maintenance::tests::server(&origin.address)];
    let health = config.health.take();
    let upstream = start(config.clone());
    config.health = health;
    let server = Arc::clone(&upstream.shared.server_pool.lock().servers[0].server);
    let result = check_server((&server, &config), ConnectionSetup::default(), || false)
        .await
        .map_err(|error| error.to_string());
    (result, origin.received.lock().unwrap().clone())
}

#[test]
fn the_final_status_decides_an_http_probe() {
    let pieces = |first: &str, rest: &str| ServerScript::Pieces(first.into(), rest.into());
    let rows = [
        ("well", answer("HTTP/1.1 200 OK\r\n\r\n"), Ok(())),
        (
            "the last that is well",
            answer("HTTP/1.0 399 So\r\n\r\n"),
            Ok(()),
        ),
        (
            "in pieces",
            pieces("HTTP/1.1 20", "4 No Content\r\n\r\n"),
            Ok(()),
        ),
        (
            "behind an interim one",
            answer("HTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
            Ok(()),
        ),
        (
            "an error",
            answer("HTTP/1.1 503 Busy\r\n\r\n"),
            Err("status 503"),
        ),
        (
            "no http",
            answer("220 mail\r\n"),
            Err("malformed response: not an http/1 response"),
        ),
        ("nothing", answer(""), Err("closed without a response")),
        (
            "half a head",
            answer("HTTP/1.1 200 OK\r\nA: b"),
            Err("closed without a response"),
        ),
        (
            "silence",
            ServerScript::Silence,
            Err("no response within health.timeout (300ms)"),
        ),
        (
            "interim responses for ever",
            answer(&"HTTP/1.1 100 Continue\r\n\r\n".repeat(20)),
            Err("more interim responses than 16"),
        ),
    ];
    run_on_loop(async {
        let mut config = upstream_config(Protocol::Http, &[]);
        config.health = Some(health(Some("/up?deep=1")));
        for (name, script, want) in rows {
            let (result, received) = probe_once(&config, script).await;
            assert_eq!(result, want.map_err(str::to_owned), "{name}");
            let received = String::from_utf8(received).unwrap();
            assert!(
                received.starts_with("GET /up?deep=1 HTTP/1.1\r\nHost: 127.0.0.1:"),
                "{name}: {received}"
            );
            let rest = "\r\nUser-Agent: penstock-probe\r\nConnection: close\r\n\r\n";
            assert!(received.ends_with(rest), "{name}: {received}");
        }
    });
}

/// The expected result and the expected request bytes.
type Wanted = (Result<(), &'static str>, &'static [u8]);

#[test]
fn each_protocol_has_its_own_probe() {
    let get_values = b"\x01\x09\0\0\0\x11\x07\0\x0f\0FCGI_MPXS_CONNS\0\0\0\0\0\0\0";
    let values = b"\x01\x0a\0\0\0\x12\0\0\x0f\x01FCGI_MPXS_CONNS0";
    let silence = "no response within health.timeout (300ms)";
    let closed = "closed without a response";
    let script = |bytes: &[u8]| ServerScript::Answer(bytes.to_vec());
    let rows: [(&str, Protocol, ServerScript, Wanted); 7] = [
        (
            "fastcgi",
            Protocol::FastCgi,
            script(values),
            (Ok(()), get_values),
        ),
        (
            "fastcgi is silent",
            Protocol::FastCgi,
            ServerScript::Silence,
            (Err(silence), get_values),
        ),
        (
            "ajp",
            Protocol::Ajp,
            script(b"AB\0\x01\x09"),
            (Ok(()), b"\x12\x34\0\x01\x0a"),
        ),
        (
            "ajp closes",
            Protocol::Ajp,
            script(b"AB\0"),
            (Err(closed), b"\x12\x34\0\x01\x0a"),
        ),
        (
            "http without a path",
            Protocol::Http,
            ServerScript::Silence,
            (Ok(()), b""),
        ),
        ("scgi", Protocol::Scgi, ServerScript::Silence, (Ok(()), b"")),
        (
            "uwsgi",
            Protocol::Uwsgi,
            ServerScript::Silence,
            (Ok(()), b""),
        ),
    ];
    run_on_loop(async {
        for (name, protocol, script, (want, question)) in rows {
            let mut config = upstream_config(protocol, &[]);
            config.health = Some(health(None));
            let (result, received) = probe_once(&config, script).await;
            assert_eq!(result, want.map_err(str::to_owned), "{name}");
            assert_eq!(received, question, "{name}");
        }
    });
}

#[test]
fn a_probe_sends_the_host_and_a_proxy_header() {
    run_on_loop(async {
        let mut config = upstream_config(Protocol::Http, &[]);
        config.health = Some(health(Some("/")));
        config.host = HostHeader::Custom("shop.example".to_owned());
        config.proxy_protocol = Some(ProxyProtocol::V1);
        let (result, received) = probe_once(&config, answer("HTTP/1.1 200 OK\r\n\r\n")).await;
        assert_eq!(result, Ok(()));
        let want = "PROXY UNKNOWN\r\nGET / HTTP/1.1\r\nHost: shop.example\r\n";
        assert!(received.starts_with(want.as_bytes()), "{received:?}");
    });
}

#[test]
fn a_refused_connection_fails_the_probe() {
    run_on_loop(async {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        for (name, address) in [
            ("tcp", address.as_str()),
            ("unix", "unix:/nonexistent/a.sock"),
        ] {
            let mut config = upstream_config(Protocol::Uwsgi, &[address]);
            let upstream = start(config.clone());
            config.health = Some(health(None));
            let server = Arc::clone(&upstream.shared.server_pool.lock().servers[0].server);
            let error = check_server((&server, &config), ConnectionSetup::default(), || false)
                .await
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("cannot connect: "), "{name}: {error}");
        }
    });
}

#[test]
fn a_server_goes_down_with_its_probes_and_comes_up_with_them() {
    run_on_loop(async {
        let origin = Origin::start(answer("HTTP/1.1 200 OK\r\n\r\n")).await;
        let mut config = upstream_config(Protocol::Http, &[&origin.address]);
        config.health = Some(health(Some("/up")));
        let upstream = start(config);
        // It accepts requests before the first probe.
        assert_eq!(first_server_snapshot(&upstream).state, "up");
        wait_until("some probes", || origin.all.load(Ordering::Relaxed) >= 3).await;
        let seen = first_server_snapshot(&upstream);
        assert_eq!((seen.state, seen.last_error), ("up", None));
        origin.play(answer("HTTP/1.1 500 Oh\r\n\r\n"));
        wait_until("down", || first_server_snapshot(&upstream).state == "down").await;
        assert_eq!(
            first_server_snapshot(&upstream).last_error.as_deref(),
            Some("status 500")
        );
        origin.play(answer("HTTP/1.1 200 OK\r\n\r\n"));
        wait_until("up", || first_server_snapshot(&upstream).state == "up").await;
        // Probes take no slot and no connection of a request.
        let seen = first_server_snapshot(&upstream);
        assert_eq!(
            (
                seen.counters.requests,
                seen.counters.connects,
                seen.connections_open
            ),
            (0, 0, 0)
        );
    });
}

#[test]
fn a_server_has_one_probe_at_a_time() {
    run_on_loop(async {
        let origin = Origin::start(ServerScript::Silence).await;
        let mut config = upstream_config(Protocol::Http, &[&origin.address]);
        config.health = Some(HealthCheck {
            interval: Duration::from_millis(1),
            timeout: Duration::from_millis(30),
            ..health(Some("/up"))
        });
        let upstream = start(config);
        wait_until("down", || first_server_snapshot(&upstream).state == "down").await;
        assert!(
            origin.most.load(Ordering::Relaxed) <= 2,
            "the last may not be seen as closed yet"
        );
        let all = origin.all.load(Ordering::Relaxed);
        assert!(all >= 3, "{all}");
    });
}

#[test]
fn a_probe_timeout_of_a_full_server_does_not_count() {
    run_on_loop(async {
        let origin = Origin::start(ServerScript::Silence).await;
        let mut config = upstream_config(Protocol::Http, &[&origin.address]);
        config.max_active = Some(1);
        config.health = Some(HealthCheck {
            timeout: Duration::from_millis(20),
            ..health(Some("/up"))
        });
        let upstream = start(config);
        let slot = claim(&upstream);
        wait_until("many probes", || origin.all.load(Ordering::Relaxed) >= 8).await;
        let seen = first_server_snapshot(&upstream);
        assert_eq!((seen.state, seen.last_error), ("up", None));
        release(&upstream, &slot);
        wait_until("down", || first_server_snapshot(&upstream).state == "down").await;
    });
}

/// A server whose one thread stays with a connection until it closes; returns its address and the
/// number of responses.
async fn single_threaded() -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answered);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 1024];
            while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                count.fetch_add(1, Ordering::Relaxed);
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                drop(stream.write_all(answer).await);
            }
        }
    });
    (address, answered)
}

#[test]
fn a_server_blocked_by_our_idle_connection_stays_up() {
    run_on_loop(async {
        let (address, answered) = single_threaded().await;
        let mut config = upstream_config(Protocol::Http, &[&address]);
        config.health = Some(HealthCheck {
            timeout: Duration::from_millis(50),
            ..health(Some("/up"))
        });
        // Opened in advance once a second: it occupies the thread first.
        config.connections.min = 1;
        let upstream = start(config);
        wait_until("a connection", || {
            first_server_snapshot(&upstream).connections_idle == 1
        })
        .await;
        let before = answered.load(Ordering::Relaxed);
        wait_until("answers to probes", || {
            assert_eq!(first_server_snapshot(&upstream).state, "up");
            answered.load(Ordering::Relaxed) >= before + 4
        })
        .await;
        assert_eq!(first_server_snapshot(&upstream).last_error, None);
    });
}

#[test]
fn a_frozen_server_goes_down_though_it_has_idle_connections() {
    run_on_loop(async {
        let origin = Origin::start(ServerScript::Silence).await;
        let mut config = upstream_config(Protocol::Http, &[&origin.address]);
        config.health = Some(HealthCheck {
            timeout: Duration::from_millis(20),
            ..health(Some("/up"))
        });
        config.connections.min = 1;
        let upstream = start(config);
        wait_until("down", || first_server_snapshot(&upstream).state == "down").await;
    });
}

#[test]
fn a_local_shortage_does_not_fail_a_server() {
    run_on_loop(async {
        let mut config = upstream_config(Protocol::Http, &["127.0.0.1:9"]);
        // Only the settings listed here.
        config.health = Some(HealthCheck {
            interval: Duration::from_secs(3600),
            ..health(None)
        });
        let upstream = start(config);
        let key = first_server_id(&upstream);
        let server = Arc::clone(&upstream.shared.server_pool.lock().servers[0].server);
        let tell = |result| super::record_result(&upstream.shared, key, &server, result, false);
        for _ in 0..5 {
            assert!(!tell(Err(ProbeError::LocalShortage("descriptors"))));
        }
        let seen = first_server_snapshot(&upstream);
        assert_eq!((seen.state, seen.last_error), ("up", None));
        assert!(tell(Err(ClientError::Closed.into())), "any other counts");
    });
}

#[test]
fn disabled_and_removed_servers_are_not_probed() {
    run_on_loop(async {
        let origin = Origin::start(answer("HTTP/1.1 200 OK\r\n\r\n")).await;
        let other = Origin::start(answer("HTTP/1.1 200 OK\r\n\r\n")).await;
        let mut config = upstream_config(Protocol::Http, &[&origin.address, &other.address]);
        config.health = Some(health(Some("/up")));
        let upstream = start(config);
        let count = |of: &Origin| of.all.load(Ordering::Relaxed);
        wait_until("a probe", || count(&origin) > 0).await;
        let name = first_server_snapshot(&upstream).name;
        upstream
            .apply_change(crate::ServerChange::Disable(name.clone()))
            .unwrap();
        // One may be under way.
        let (before, others) = (count(&origin) + 1, count(&other));
        wait_until("probes of the other", || count(&other) >= others + 6).await;
        assert!(count(&origin) <= before);
        upstream
            .apply_change(crate::ServerChange::Enable(name))
            .unwrap();
        wait_until("probes again", || count(&origin) > before).await;
        let key = first_server_id(&upstream);
        let tasks = || {
            tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks()
        };
        (upstream.shared).update_pool(|pool| pool.remove(clock::now(), key));
        let (removed_at, others) = (count(&origin), count(&other));
        wait_until("probes of the other", || count(&other) >= others + 6).await;
        assert!(count(&origin) <= removed_at + 1);
        drop(upstream);
        wait_until("the end of all that probes", || tasks() <= LISTENERS).await;
    });
}

/// Tasks of two scripted servers.
const LISTENERS: usize = 2;

#[test]
fn first_probes_are_spread() {
    let drawn: Vec<f64> = (0..64).map(|_| super::random_fraction()).collect();
    assert!(drawn.iter().all(|it| (0.0..=1.0).contains(it)));
    let (low, high) = (
        drawn.iter().any(|&it| it < 0.4),
        drawn.iter().any(|&it| it > 0.6),
    );
    assert!(low && high, "{drawn:?}");
}
