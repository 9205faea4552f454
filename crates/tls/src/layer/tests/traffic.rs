//! Random traffic between a layer and `rustls` as the client, from the handshake to an end: each
//! side reads what the other wrote.
//!
//! `PENSTOCK_SEED=n` replays one seed, `PENSTOCK_SEEDS=n` runs n seeds.

use std::io::{Read, Write};

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::*;
use crate::handshake::accept;
use crate::profile::TlsProfile;
use crate::server_config::ServerTls;
use crate::server_sessions::ServerSessions;
use crate::testing::server::{Server, tls12_client};
use crate::testing::sessions::at_now;

const STEPS: usize = 200;

/// Data that a client may send in one piece behind its last handshake message.
const MAX_EARLY_BYTES: usize = 50_000;

/// What one side has written and the other has not read.
#[derive(Default)]
struct Direction {
    /// Sealed, and not with the kernel.
    records: Vec<u8>,
    /// The plaintext of these, and of those that are on the way.
    expected: Vec<u8>,
}

impl Direction {
    fn check(&mut self, read: &[u8]) {
        assert!(self.expected.starts_with(read));
        self.expected.drain(..read.len());
    }
}

struct Traffic {
    random: fastrand::Rng,
    client: ClientConnection,
    socket: OwnedFd,
    to_server: Direction,
    to_client: Direction,
    is_tls13: bool,
}

impl Traffic {
    /// Makes both ends and the handshake between them, cut anywhere; data follows in the same piece.
    async fn begin(server: &Server, seed: u64) -> (Self, Stream) {
        let mut random = fastrand::Rng::with_seed(seed);
        let is_tls13 = random.u8(..4) > 0;
        let config = match is_tls13 {
            true => server.client(TlsProfile::Modern),
            false => tls12_client(server),
        };
        let name = ServerName::try_from("a.test").unwrap();
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        let stream = Stream::new(ours).unwrap();
        let mut traffic = Self {
            random,
            client: ClientConnection::new(config, name).unwrap(),
            socket: Stream::from_received(theirs).unwrap().into_socket(),
            to_server: Direction::default(),
            to_client: Direction::default(),
            is_tls13,
        };
        traffic.client.set_buffer_limit(None);
        // Sent as soon as the handshake allows it.
        let first = vec![b'e'; traffic.random.usize(..MAX_EARLY_BYTES)];
        traffic.send(&first);
        let ServerTls { config, policy } = server.tls();
        let config = at_now(&config);
        let tls = ServerTls { config, policy };
        let sessions = ServerSessions::new(Arc::clone(&server.store), tls, Vec::new());
        let mut received = Vec::new();
        let accepted = {
            let mut accepting = std::pin::pin!(accept(&stream, &sessions, &mut received));
            loop {
                let step = poll_fn(|cx| Poll::Ready(accepting.as_mut().poll(cx))).await;
                if let Poll::Ready(accepted) = step {
                    break accepted.unwrap();
                }
                traffic.deliver();
                traffic.receive();
                loops::yield_now().await;
            }
        };
        (traffic, accepted.over(stream))
    }

    fn content(&mut self, most: usize) -> Vec<u8> {
        let most = match self.random.u8(..20) {
            0 => most,
            1..6 => most.min(5_000),
            _ => most.min(300),
        };
        let length = self.random.usize(..=most);
        let first = self.random.u8(..);
        (first..=u8::MAX).cycle().take(length).collect()
    }

    fn send(&mut self, content: &[u8]) {
        self.client.writer().write_all(content).unwrap();
        self.to_server.expected.extend_from_slice(content);
        self.drain();
    }

    fn drain(&mut self) {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.to_server.records).unwrap();
        }
    }

    /// Gives the server's socket a piece of what the client has sealed.
    fn deliver(&mut self) {
        self.drain();
        let records = &mut self.to_server.records;
        let most = self
            .random
            .choice([1, 6, 300, 20_000, 200_000])
            .unwrap_or(1);
        let count = records.len().min(self.random.usize(1..=most));
        if let Ok(sent @ 1..) = net::send(self.socket.as_fd(), &records[..count]) {
            records.drain(..sent);
        }
    }

    /// Lets the client read what its socket has.
    fn receive(&mut self) {
        let mut buffer = vec![0; self.random.usize(1..40_000)];
        let Ok(count @ 1..) = net::receive(self.socket.as_fd(), &mut buffer) else {
            return;
        };
        let (mut bytes, mut content) = (&buffer[..count], Vec::new());
        while !bytes.is_empty() {
            assert!(self.client.read_tls(&mut bytes).unwrap() > 0);
            self.client.process_new_packets().unwrap();
            let _ = self.client.reader().read_to_end(&mut content);
        }
        self.to_client.check(&content);
    }

    /// Lets the server read what there is, and returns how that ended.
    async fn read(&mut self, stream: &Stream) -> Option<io::Result<()>> {
        let mut buffer = vec![0; self.random.usize(1..30_000)];
        loop {
            let read = poll_fn(|cx| Poll::Ready(stream.poll_read(cx, &mut buffer))).await;
            match read {
                Poll::Pending => return None,
                Poll::Ready(Ok(0)) => return Some(Ok(())),
                Poll::Ready(Ok(count)) => self.to_server.check(&buffer[..count]),
                Poll::Ready(Err(error)) => return Some(Err(error)),
            }
        }
    }

    /// Writes all of some content. The client makes room meanwhile, and may read a byte before it is
    /// reported as written.
    fn write(&mut self, stream: &Stream) {
        let content = self.content(70_000);
        self.to_client.expected.extend_from_slice(&content);
        let mut rest = &content[..];
        while !rest.is_empty() {
            let (first, second) = rest.split_at(self.random.usize(..=rest.len()));
            match stream.try_write(&[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(count) => rest = &rest[count..],
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    self.receive();
                }
            }
        }
    }

    async fn step(&mut self, stream: &Stream) {
        match self.random.u8(..16) {
            0..3 => {
                let content = self.content(70_000);
                self.send(&content);
            }
            3..7 => self.deliver(),
            7 | 8 => self.receive(),
            9 | 10 => assert!(self.read(stream).await.is_none()),
            11 | 12 => self.write(stream),
            13 if self.is_tls13 => self.client.refresh_traffic_keys().unwrap(),
            14 => {
                let _ = stream.is_open();
                poll_fn(|cx| Poll::Ready(stream.poll_peer_activity(cx).is_ready())).await;
            }
            _ => release_keys(stream),
        }
    }

    /// Exchanges everything that is on the way.
    async fn settle(&mut self, stream: &Stream) -> Option<io::Result<()>> {
        loop {
            self.deliver();
            self.receive();
            loops::yield_now().await;
            if let Some(end) = self.read(stream).await {
                assert!(self.to_server.expected.is_empty());
                return Some(end);
            }
            let is_settled = |direction: &Direction| {
                direction.records.is_empty() && direction.expected.is_empty()
            };
            if is_settled(&self.to_server) && is_settled(&self.to_client) {
                return None;
            }
        }
    }

    async fn finish(mut self, stream: Stream) {
        match self.random.u8(..4) {
            // The client says that it ends, and still reads.
            0 => {
                self.client.send_close_notify();
                while self.to_server.expected.len() + self.to_server.records.len() > 0 {
                    self.deliver();
                    loops::yield_now().await;
                    if let Some(end) = self.read(&stream).await {
                        end.unwrap();
                    }
                }
                self.drain();
                self.settle(&stream).await.expect("an end").unwrap();
                self.write(&stream);
                while !self.to_client.expected.is_empty() {
                    self.receive();
                }
            }
            // It goes without a word.
            1 => {
                assert!(self.settle(&stream).await.is_none());
                net::shutdown(self.socket.as_fd(), net::Shutdown::Write).unwrap();
                let end = self.settle_end(&stream).await;
                assert_eq!(end.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            }
            is_aborted => {
                assert!(self.settle(&stream).await.is_none());
                if is_aborted == 2 {
                    stream.abort();
                }
                drop(stream);
                self.receive();
                let state = self.client.process_new_packets().unwrap();
                assert_eq!(state.peer_has_closed(), is_aborted != 2);
            }
        }
    }

    async fn settle_end(&mut self, stream: &Stream) -> io::Result<()> {
        loop {
            if let Some(end) = self.read(stream).await {
                return end;
            }
            loops::yield_now().await;
        }
    }
}

fn release_keys(stream: &Stream) {
    let layer = stream.layer().expect("a layer").as_any();
    let layer: &TlsLayer<RecordSession> = layer.downcast_ref().expect("a client's");
    layer.state.lock().session.release_keys();
}

#[test]
fn both_sides_read_what_the_other_wrote() {
    let number = |name| Some(std::env::var(name).ok()?.parse::<u64>().expect(name));
    let seeds = match number("PENSTOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PENSTOCK_SEEDS").unwrap_or(60),
    };
    let server = Server::new();
    for seed in seeds {
        let run = async {
            let test = async {
                let (mut traffic, stream) = Traffic::begin(&server, seed).await;
                for _ in 0..STEPS {
                    traffic.step(&stream).await;
                }
                traffic.finish(stream).await;
            };
            let done = clock::timeout(Duration::from_secs(60), test).await;
            done.expect("the test ends in time");
        };
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            loops::block_on(run).unwrap();
        }));
        assert!(ran.is_ok(), "replay with PENSTOCK_SEED={seed}");
    }
}
