//! Listeners with TLS, and rustls' buffered client as the peer.

mod held_streams;
mod hostile;
mod splits;

use std::io::{BufReader, ErrorKind};

use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_exchange::{Body, BodyStream, Fault, FaultKind, FileBody};
use penstock_runtime::DiskFile;
use penstock_runtime::blocking::Pool;
use penstock_tls::{
    CertificateStore, PolicyId, ServerSessions, ServerTlsOptions, SiteCertificates, StoreContents,
    TicketKeys, TlsProfile, UnknownHosts, server_config, stand_in,
};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::*;

type TlsClient = StreamOwned<ClientConnection, TcpStream>;

/// A front end with TLS, and the configuration of clients that trust it.
struct TlsEdge {
    house: TestEdge,
    clients: Arc<ClientConfig>,
    roots: RootCertStore,
}

impl TlsEdge {
    fn new(routes: Vec<Route>, adjust: impl FnOnce(&mut Settings)) -> Self {
        let (sites, roots) = certificates(&["h.test", "other.test"]);
        let store = Arc::new(CertificateStore::new(None, None));
        let contents = StoreContents::new(sites, Some(0), UnknownHosts::ServeDefault);
        store.replace(contents);
        let config = server_config(ServerTlsOptions {
            profile: TlsProfile::Intermediate,
            certificates: Arc::clone(&store),
            tickets: Arc::new(TicketKeys::new(Arc::new(DefaultTimeProvider))),
            alpn: Vec::new(),
            client_certificates: None,
        });
        let sessions = ServerSessions::new(store, config.unwrap(), Vec::new());
        let clients = ClientConfig::builder()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let (house, socket) = TestEdge::without_acceptor(routes, |settings| {
            settings.tls = Some(Arc::new(sessions));
            adjust(settings);
        });
        let info = Arc::new(ListenerInfo {
            scheme: "https",
            has_tls: true,
            ..(*house.info(false)).clone()
        });
        let edge = Arc::clone(&house.edge);
        house.spawn(accept_connections(edge, socket, info, Drain::new(), None));
        Self {
            house,
            clients: Arc::new(clients),
            roots,
        }
    }

    fn connect(&self) -> TlsClient {
        let name = ServerName::try_from("h.test").unwrap();
        let session = ClientConnection::new(Arc::clone(&self.clients), name).unwrap();
        StreamOwned::new(session, self.house.connect().0)
    }
}

/// A certificate of its own for each host, and what trusts them.
fn certificates(hosts: &[&str]) -> (Vec<SiteCertificates>, RootCertStore) {
    let mut roots = RootCertStore::empty();
    let sites = hosts.iter().map(|host| {
        let hosts = vec![(*host).to_owned()];
        let certificate = stand_in(&hosts, UnixTime::now()).unwrap();
        roots
            .add(certificate.certified_key.cert[0].clone())
            .unwrap();
        SiteCertificates {
            hosts,
            certificates: vec![certificate],
            policy: PolicyId::NONE,
            last_error: None,
        }
    });
    (sites.collect(), roots)
}

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h.test\r\n\r\n")
}

/// Reads a head, and the body that its `Content-Length` names.
fn read_response(client: &mut impl Read) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    client.read_exact(&mut body).unwrap();
    (head, body)
}

/// Answers with as many bytes as the path says, from memory (`/bytes/N`) or a file (`/file/N`), and
/// to a request with a body with that body.
fn sizes() -> Vec<Route> {
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let file = penstock_sys::file::memfd_with_content("tls", &content).unwrap();
    let file = Arc::new(DiskFile::new(file.into(), Pool::new("tls", 1, 1)));
    let handler = handler_fn(move |request| {
        let path = String::from_utf8(request.path().to_vec()).unwrap();
        let mut parts = path[1..].split('/');
        let kind = parts.next().unwrap().to_owned();
        let len: usize = parts.next().map_or(0, |len| len.parse().unwrap());
        match &*kind {
            "file" => {
                let body = FileBody {
                    file: Arc::clone(&file),
                    start: 0,
                    len: len as u64,
                };
                ready(Response::new(Status::OK, Body::File(body)))
            }
            "bytes" => {
                let bytes = content[..len].to_vec();
                ready(Response::new(Status::OK, Body::Bytes(bytes.into())))
            }
            "scheme" => {
                let tls = request.client_state.tls().unwrap();
                let text = format!("{} {} {:?}", request.scheme(), tls.version, tls.server_name);
                ready(Response::with_text(Status::OK, "text/plain", text))
            }
            _ => pending(async move {
                let all = request.body.read_limited(10_000_000).await?.unwrap();
                let response = Response::new(Status::OK, Body::Bytes(all.into()));
                Ok(Reply::from(response))
            }),
        }
    });
    vec![route("/", handler)]
}

fn expected(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[test]
fn requests_are_answered_with_the_scheme_https() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut client = edge.connect();
    for _ in 0..3 {
        client.write_all(get("/scheme").as_bytes()).unwrap();
        let (head, body) = read_response(&mut client);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(
            String::from_utf8(body).unwrap(),
            "https TLSv1.3 Some(\"h.test\")"
        );
    }
    assert_eq!(edge.house.edge.total_metrics().tls_handshakes.value(), 1);
}

#[test]
fn bodies_of_every_size_arrive_whole() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut client = edge.connect();
    for kind in ["bytes", "file"] {
        for len in [
            0, 1, 100, 8191, 8192, 16_384, 16_385, 65_535, 65_536, 65_537, 2_999_999,
        ] {
            client
                .write_all(get(&format!("/{kind}/{len}")).as_bytes())
                .unwrap();
            let (_, body) = read_response(&mut client);
            assert!(body == expected(len), "{kind} {len}");
        }
    }
}

#[test]
fn a_slow_reader_gets_everything() {
    let edge = TlsEdge::new(sizes(), |_| {});
    for kind in ["bytes", "file"] {
        let mut client = edge.connect();
        // Both requests are there before the first response is read.
        let requests = [
            get(&format!("/{kind}/2000000")),
            get(&format!("/{kind}/777")),
        ];
        client.write_all(requests.concat().as_bytes()).unwrap();
        client.flush().unwrap();
        let mut client = BufReader::with_capacity(777, client);
        for len in [2_000_000, 777] {
            let (_, body) = read_response(&mut client);
            assert!(body == expected(len), "{kind} {len}");
        }
    }
}

#[test]
fn an_upload_arrives_whole() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut client = edge.connect();
    let body = expected(1_500_000);
    let head = format!(
        "POST /upload HTTP/1.1\r\nHost: h.test\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).unwrap();
    client.write_all(&body).unwrap();
    let (_, echoed) = read_response(&mut client);
    assert!(echoed == body);
}

#[test]
fn a_handshake_may_arrive_byte_by_byte() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut client = edge.connect();
    let mut bytes = Vec::new();
    client.conn.write_tls(&mut bytes).unwrap();
    for byte in bytes {
        client.sock.write_all(&[byte]).unwrap();
    }
    client.write_all(get("/bytes/5").as_bytes()).unwrap();
    assert_eq!(read_response(&mut client).1, expected(5));
}

#[test]
fn plain_http_gets_an_error_that_names_https() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut client = edge.house.connect();
    client.get("/");
    let (head, body) = client.response();
    assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
    assert!(body.contains("https://"), "{body}");
    client.expect_end();
    let failures = || {
        let metrics = edge.house.edge.total_metrics();
        metrics.tls_handshake_failures.value()
    };
    wait_until("the failure is counted", || failures() == 1);
}

#[test]
fn other_protocols_are_closed() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let ssl3 = b"\x16\x03\x00\x00\x05\x01\x00\x00\x01\x00";
    for bytes in [
        &b"\x80\x2e\x01\x00\x02"[..],
        b"\x00\x00\x00\x00",
        &ssl3[..],
        b"\x16\x03\x01\xff\xff",
    ] {
        let mut client = edge.house.connect();
        client.send(bytes);
        // An alert may come first, or a reset.
        let mut rest = Vec::new();
        let _ = client.0.read_to_end(&mut rest);
        assert!(rest.len() < 16, "{rest:?}");
    }
    edge.house.wait_for_connections(0);
}

#[test]
fn a_handshake_has_a_deadline() {
    let edge = TlsEdge::new(sizes(), |settings| {
        settings.limits.tls_handshake_timeout = Duration::from_millis(50);
    });
    let mut client = edge.house.connect();
    client.send(b"\x16\x03\x01").expect_end();
    edge.house.wait_for_connections(0);
}

#[test]
fn one_handshake_too_many_ends_the_oldest() {
    let edge = TlsEdge::new(sizes(), |settings| settings.limits.max_tls_handshakes = 2);
    let mut silent = [edge.house.connect(), edge.house.connect()];
    edge.house.wait_for_connections(2);
    // One that began in this tick is left alone.
    wait_until("the oldest is ended", || {
        let mut client = edge.connect();
        client.write_all(get("/bytes/3").as_bytes()).unwrap();
        assert_eq!(read_response(&mut client).1, expected(3));
        edge.house.edge.total_metrics().evicted_connections.value() >= 1
    });
    silent[0].expect_end();
}

/// Fails behind its first piece.
struct CutBody {
    has_begun: bool,
}

impl BodyStream for CutBody {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        Poll::Ready(Some(match std::mem::replace(&mut self.has_begun, true) {
            false => Ok(Bytes::from_static(b"part")),
            true => Err(Fault::new(FaultKind::WorkerDied, "in a test")),
        }))
    }

    fn length(&self) -> Option<u64> {
        None
    }
}

#[test]
fn the_end_is_announced_and_a_cut_is_not() {
    let cut = handler_fn(|_| {
        let body = Body::Stream(Box::new(CutBody { has_begun: false }));
        ready(Response::new(Status::OK, body))
    });
    let mut routes = sizes();
    routes.insert(0, route("/cut", cut));
    let edge = TlsEdge::new(routes, |_| {});
    let request = "GET /bytes/9 HTTP/1.1\r\nHost: h.test\r\nConnection: close\r\n\r\n";
    let mut client = edge.connect();
    client.write_all(request.as_bytes()).unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(rest.ends_with(&expected(9)));

    let mut client = edge.connect();
    client.write_all(get("/cut").as_bytes()).unwrap();
    let mut rest = Vec::new();
    let error = client.read_to_end(&mut rest).unwrap_err();
    let kinds = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
    assert!(kinds.contains(&error.kind()), "{error}");
}

#[test]
fn a_client_that_closes_with_or_without_a_notice_is_gone() {
    let edge = TlsEdge::new(sizes(), |_| {});
    for is_announced in [true, false] {
        let mut client = edge.connect();
        client.write_all(get("/bytes/3").as_bytes()).unwrap();
        assert_eq!(read_response(&mut client).1, expected(3));
        if is_announced {
            client.conn.send_close_notify();
            client.flush().unwrap();
        }
        drop(client);
        edge.house.wait_for_connections(0);
    }
}

#[test]
fn keys_may_be_updated_by_the_client() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut client = edge.connect();
    for _ in 0..5 {
        client.write_all(get("/bytes/20000").as_bytes()).unwrap();
        assert_eq!(read_response(&mut client).1, expected(20_000));
        client.conn.refresh_traffic_keys().unwrap();
    }
}

#[test]
fn a_session_for_one_host_is_refused_to_another() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut client = edge.connect();
    for (host, status) in [
        ("h.test", "200 OK"),
        ("H.TEST:443", "200 OK"),
        ("other.test", "421 Misdirected Request"),
        ("unknown.test", "200 OK"),
    ] {
        let request = format!("GET /bytes/1 HTTP/1.1\r\nHost: {host}\r\n\r\n");
        client.write_all(request.as_bytes()).unwrap();
        let (head, _) = read_response(&mut client);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{host}: {head}"
        );
    }
}

#[test]
fn a_handshake_that_a_drain_meets_is_finished_and_a_silent_one_ends() {
    let edge = TlsEdge::new(sizes(), |_| {});
    let mut begun = edge.connect();
    let mut hello = Vec::new();
    begun.conn.write_tls(&mut hello).unwrap();
    begun.sock.write_all(&hello[..10]).unwrap();
    let mut silent = edge.house.connect();
    edge.house.wait_for_connections(2);
    edge.house.wait_for_turn();
    let idle = Duration::from_secs(1);
    edge.house.edge.drain.begin_with_idle_timeout(idle, None);
    // Several times, each of which polls it.
    for byte in &hello[10..] {
        begun.sock.write_all(&[*byte]).unwrap();
        edge.house.wait_for_turn();
    }
    begun.write_all(get("/bytes/5").as_bytes()).unwrap();
    let (head, body) = read_response(&mut begun);
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert_eq!(body, expected(5));
    // Long before limits.tls_handshake_timeout.
    silent.expect_end();
    edge.house.wait_for_connections(0);
}
