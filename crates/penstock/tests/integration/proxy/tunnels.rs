//! What every tunnel promises: a TCP listener's, and that of an upgraded request.

use std::time::{Duration, Instant};

use super::tcp::{connect, front};
use super::upgrades::{AGREED, upgraded};
use super::{ProxySetup, SLACK, ask, expect_bytes, noise, pass_time};
use crate::support::{Origin, PATIENCE, RawClient, Script, Server, Step, eventually, page};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tunnel {
    Tcp,
    Upgrade,
}

/// Each test runs on both.
const KINDS: [Tunnel; 2] = [Tunnel::Tcp, Tunnel::Upgrade];

impl Tunnel {
    /// An origin that sends these bytes at once and goes on with `steps`.
    fn origin(self, first: impl AsRef<[u8]>, steps: &'static [Step]) -> Origin {
        let first = first.as_ref().to_vec();
        match self {
            Self::Tcp => Origin::raw([&[Step::Send(first)], steps].concat()),
            Self::Upgrade => Origin::start(move |seen| match seen.field("upgrade") {
                Some(_) => {
                    let begun = Script::early().send([AGREED.as_bytes(), &first].concat());
                    steps.iter().cloned().fold(begun, Script::then)
                }
                None => page(seen, "plain"),
            }),
        }
    }

    fn echo(self) -> Origin {
        self.origin("", &[Step::Echo])
    }

    fn setup(self, origin: &Origin) -> ProxySetup {
        match self {
            Self::Tcp => front([origin.address()], ""),
            Self::Upgrade => ProxySetup::new([origin]),
        }
    }

    fn serve(self, origin: &Origin) -> Server {
        self.setup(origin).serve()
    }

    fn open(self, server: &Server) -> RawClient {
        match self {
            Self::Tcp => connect(server),
            Self::Upgrade => upgraded(server),
        }
    }
}

/// Sends these bytes through an echo.
fn expect_echo(client: &mut RawClient, bytes: impl AsRef<[u8]>) {
    client.send(&bytes);
    expect_bytes(client, bytes.as_ref());
}

#[test]
fn bytes_go_both_ways_as_they_are() {
    for kind in KINDS {
        let origin = kind.echo();
        let server = kind.serve(&origin);
        let mut client = kind.open(&server);
        for size in [1, 1_000, 300_000] {
            expect_echo(&mut client, noise(size));
        }
        // Bytes like a request are not one.
        expect_echo(&mut client, "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        expect_echo(&mut client, "GET / HTTP/9.9\r\n\r\n\0");
        match kind {
            Tunnel::Tcp => assert_eq!(server.get("/").status, 502, "HTTP is still HTTP"),
            Tunnel::Upgrade => assert_eq!(origin.lines(), ["GET /chat"]),
        }
    }
}

#[test]
fn a_server_may_speak_first() {
    for kind in KINDS {
        let origin = kind.origin("220 ready\r\n", &[Step::Echo]);
        let server = kind.serve(&origin);
        expect_bytes(&mut kind.open(&server), b"220 ready\r\n");
    }
}

#[test]
fn the_end_of_either_side_is_the_others() {
    for kind in KINDS {
        let origin = kind.echo();
        let server = kind.serve(&origin);
        let mut client = kind.open(&server);
        client.send("last words").close_write();
        assert_eq!(client.read_to_end(), b"last words", "{kind:?}");
        origin.wait_closed(0);
        let mut gone = kind.open(&server);
        expect_echo(&mut gone, "hello");
        drop(gone);
        origin.wait_closed(1);
        let closing = kind.origin(noise(200_000), &[]);
        let server = kind.serve(&closing);
        assert!(kind.open(&server).read_to_end() == noise(200_000));
        eventually(PATIENCE, "no connection is left", || {
            server.admin_json()["connections"]["used"] == 0
        });
        // One direction may end before the other.
        let half = kind.origin("", &[Step::CloseWrite, Step::Hang]);
        let server = kind.serve(&half);
        let mut client = kind.open(&server);
        assert_eq!(client.read_to_end(), b"", "{kind:?}");
        client.send("still sent");
        eventually(PATIENCE, "the other direction goes on", || {
            half.received(0).ends_with(b"still sent")
        });
    }
}

#[test]
fn a_silent_tunnel_ends_and_a_talking_one_does_not() {
    for kind in KINDS {
        let origin = kind.echo();
        let setup = kind.setup(&origin).upstream("tunnel_timeout = \"1500ms\"");
        let server = setup.serve();
        let mut talking = kind.open(&server);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(3) {
            pass_time(Duration::from_millis(50));
            expect_echo(&mut talking, "x");
        }
        let quiet = Instant::now();
        talking.expect_closed();
        let took = quiet.elapsed();
        assert!(
            took >= Duration::from_millis(1_450) && took < SLACK,
            "{kind:?}: {took:?}"
        );
        origin.wait_closed(0);
    }
}

#[test]
fn many_tunnels_stay_apart_and_count_as_connections() {
    for kind in KINDS {
        let origin = kind.echo();
        let server = kind.serve(&origin);
        let mut clients: Vec<RawClient> = (0..200).map(|_| kind.open(&server)).collect();
        eventually(PATIENCE, "all count", || {
            server.admin_json()["connections"]["used"] == 200
        });
        for (number, client) in clients.iter_mut().enumerate() {
            client.send(format!("number {number}"));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            expect_bytes(client, format!("number {number}").as_bytes());
        }
        if kind == Tunnel::Upgrade {
            let mut plain = server.connect();
            ask(&mut plain, "/plain");
            assert_eq!(plain.expect_status(200).text(), "plain");
        }
    }
}

#[test]
fn a_tunnel_ends_with_the_shutdowns_deadline() {
    for kind in KINDS {
        let origin = kind.echo();
        let listen = match kind {
            Tunnel::Tcp => "listen = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"",
            Tunnel::Upgrade => "",
        };
        let lines = format!("threads = 1\nshutdown_timeout = \"300ms\"\n{listen}");
        let server = kind.setup(&origin).server(&lines).serve();
        let mut client = kind.open(&server);
        expect_echo(&mut client, "hello");
        let began = Instant::now();
        server.signal(rustix::process::Signal::TERM);
        client.expect_closed();
        assert!(
            began.elapsed() >= Duration::from_millis(300),
            "it had its time"
        );
        assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
    }
}
