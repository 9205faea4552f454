//! A stream with a session whose client sends records with any content, and what the fuzz target
//! `tls_session` does with it.
//!
//! Both ends of the handshake are rustls'. Behind it the client's end is a [`RecordSession`], which
//! seals what rustls as a client would not.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use penstock_runtime::{Stream, loops};
use penstock_sys::net;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::time_provider::DefaultTimeProvider;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::certificates::{
    CertificateStore, PolicyId, SiteCertificates, StoreContents, UnknownHosts,
};
use crate::handshake::{self, CompleteHandshake};
use crate::layer::{MAX_INCOMPLETE_BYTES, TlsLayer};
use crate::records::{RecordSession, TrafficKeyLog};
use crate::server_config::{ServerTls, ServerTlsOptions, server_config};
use crate::server_sessions::ServerSessions;
use crate::session::{MAX_SEALED_BYTES, Session};
use crate::stand_in;
use crate::{TicketKeys, TlsProfile};

/// The name of the only site.
const SITE_NAME: &str = "a.test";

/// The memory that the buffers of a session may have: a part of a message, plaintext of one read,
/// and records that the socket has not taken.
const MAX_BUFFER_BYTES: usize = MAX_INCOMPLETE_BYTES + (128 << 10) + 3 * MAX_SEALED_BYTES;

/// What makes sessions with each other.
struct Configurations {
    server: ServerSessions,
    tls13: Arc<ClientConfig>,
    tls12: Arc<ClientConfig>,
}

static CONFIGURATIONS: LazyLock<Configurations> = LazyLock::new(|| {
    let made = Configurations::new();
    made.expect("the configurations of tests fit together")
});

impl Configurations {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let certificate = stand_in(&[SITE_NAME.to_owned()], UnixTime::now())?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate.certified_key.cert[0].clone())?;
        let certificates = Arc::new(CertificateStore::new(None, None));
        let site = SiteCertificates {
            hosts: vec![SITE_NAME.to_owned()],
            certificates: vec![certificate],
            policy: PolicyId::NONE,
            last_error: None,
        };
        certificates.replace(StoreContents::new(
            vec![site],
            Some(0),
            UnknownHosts::Refuse,
        ));
        let ServerTls { config, policy } = server_config(ServerTlsOptions {
            profile: TlsProfile::Intermediate,
            certificates: Arc::clone(&certificates),
            tickets: Arc::new(TicketKeys::new(Arc::new(DefaultTimeProvider))),
            alpn: Vec::new(),
            client_certificates: None,
        })?;
        let mut config = (*config).clone();
        // The client's end reads no handshake messages behind the handshake.
        config.send_tls13_tickets = 0;
        let config = Arc::new(config);
        let server = ServerSessions::new(certificates, ServerTls { config, policy }, Vec::new());
        Ok(Self {
            server,
            tls13: client(&roots, &rustls::version::TLS13)?,
            tls12: client(&roots, &rustls::version::TLS12)?,
        })
    }
}

fn client(
    roots: &RootCertStore,
    version: &'static SupportedProtocolVersion,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(TlsProfile::Intermediate.provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version])?;
    let mut client = builder
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    client.enable_secret_extraction = true;
    client.key_log = Arc::new(TrafficKeyLog);
    client.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(client))
}

/// Both ends of a session.
#[derive(Debug)]
pub struct SessionEnds {
    /// The server's end, under test.
    pub stream: Stream,
    /// The client's records.
    pub client: RecordSession,
    /// The client's socket, which never waits.
    pub socket: OwnedFd,
}

impl SessionEnds {
    /// Makes a session. Runs on a loop.
    ///
    /// # Errors
    /// No sockets are left, or the two ends do not understand each other.
    pub async fn new(is_tls13: bool) -> Result<Self, Box<dyn std::error::Error>> {
        let configurations = &*CONFIGURATIONS;
        let config = match is_tls13 {
            true => &configurations.tls13,
            false => &configurations.tls12,
        };
        let (ours, theirs) = net::worker_socket_pair()?;
        let (stream, peer) = (Stream::new(ours)?, Stream::from_received(theirs)?);
        let name = ServerName::try_from(SITE_NAME)?;
        let session = Session::new(UnbufferedClientConnection::new(Arc::clone(config), name)?);
        let mut early = Vec::new();
        let (accepted, connected) = both(
            handshake::accept(&stream, &configurations.server, &mut early),
            handshake::run(&peer, session, Vec::new()),
        )
        .await;
        let accepted = accepted?;
        let CompleteHandshake {
            session, secrets, ..
        } = connected?;
        let suite = session.negotiated().negotiated_cipher_suite();
        let suite = suite.ok_or("a handshake without a cipher suite")?;
        let connection = session.into_connection();
        let (extracted, _) = connection.dangerous_into_kernel_connection()?;
        Ok(Self {
            client: RecordSession::new_client(suite, &extracted, secrets)?,
            stream: accepted.over(stream),
            socket: peer.into_socket(),
        })
    }

    /// Sends bytes as the client, as far as the socket takes them.
    pub fn send(&self, bytes: &[u8]) -> usize {
        net::send(self.socket.as_fd(), bytes).unwrap_or(0)
    }

    /// What the client's socket has, to the end or as far as there is more.
    pub fn receive(&self) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 16 << 10]);
        while let Ok(count @ 1..) = net::receive(self.socket.as_fd(), &mut buffer) {
            all.extend_from_slice(&buffer[..count]);
        }
        all
    }

    /// What the server reads now, and how that ended.
    pub async fn read_available(&self, piece: usize) -> (Vec<u8>, Option<io::Result<()>>) {
        let (mut all, mut buffer) = (Vec::new(), vec![0; piece.max(1)]);
        let mut waits = 0;
        // A task may have to wait for its next turn.
        while waits < 3 {
            loops::yield_now().await;
            let read = poll_fn(|cx| Poll::Ready(self.stream.poll_read(cx, &mut buffer))).await;
            match read {
                Poll::Pending => waits += 1,
                Poll::Ready(Ok(0)) => return (all, Some(Ok(()))),
                Poll::Ready(Ok(count)) => {
                    all.extend_from_slice(&buffer[..count]);
                    waits = 0;
                }
                Poll::Ready(Err(error)) => return (all, Some(Err(error))),
            }
        }
        (all, None)
    }

    /// Bytes that the buffers of the server's end have.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        let layer = self.stream.layer().map(|layer| layer.as_any());
        let layer = layer.and_then(|layer| layer.downcast_ref::<TlsLayer<RecordSession>>());
        layer.map_or(0, TlsLayer::buffer_bytes)
    }
}

/// The outputs of two futures that wait for each other.
pub(crate) async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut of_first, mut of_second) = (None, None);
    poll_fn(|cx| {
        poll_into(&mut of_first, first.as_mut(), cx);
        poll_into(&mut of_second, second.as_mut(), cx);
        match (of_first.take(), of_second.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            (one, other) => {
                (of_first, of_second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

fn poll_into<F: Future>(output: &mut Option<F::Output>, future: Pin<&mut F>, cx: &mut Context<'_>) {
    if output.is_none()
        && let Poll::Ready(done) = future.poll(cx)
    {
        *output = Some(done);
    }
}

/// Lets a client do what `data` says with an established session, and asserts what holds for every
/// input: nothing panics, memory is bounded, and what the server reads is what the client sealed.
pub fn run_session(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    let run = async {
        if let Ok(ends) = SessionEnds::new(kind % 2 == 0).await {
            run_operations(ends, data).await;
        }
    };
    // Fails without descriptors only.
    let _ = loops::block_on(run);
}

/// Lets a client begin with `data`, in pieces of its first byte's size: no session, no panic, and an
/// end in bounded time and memory.
pub fn run_handshake(data: &[u8]) {
    let Some((piece, data)) = data.split_first() else {
        return;
    };
    let run = async {
        let (ours, theirs) = net::worker_socket_pair()?;
        let (stream, mut early) = (Stream::new(ours)?, Vec::new());
        let mut handshake = pin!(handshake::accept(
            &stream,
            &CONFIGURATIONS.server,
            &mut early
        ));
        for piece in data.chunks(usize::from(*piece).max(1)) {
            if net::send(theirs.as_fd(), piece).is_err() {
                return Ok(());
            }
            let made = poll_fn(|cx| Poll::Ready(handshake.as_mut().poll(cx))).await;
            if let Poll::Ready(made) = made {
                assert!(made.is_err(), "a session without its secrets");
                return Ok(());
            }
            loops::yield_now().await;
        }
        drop(theirs);
        assert!(handshake.await.is_err(), "a session without its secrets");
        io::Result::Ok(())
    };
    let _ = loops::block_on(run);
}

/// What a client has done to a session.
#[derive(Debug, Default)]
struct Expected {
    /// Sealed by the client and not yet read.
    plaintext: Vec<u8>,
    /// Bytes that are no record of the session went in: what is behind them may not arrive.
    is_broken: bool,
    has_shut_down: bool,
}

async fn run_operations(mut ends: SessionEnds, data: &[u8]) {
    let mut expected = Expected::default();
    let mut rest = data;
    while let Some((&[operation, length, piece], behind)) = rest.split_first_chunk() {
        let (argument, behind) = behind.split_at(behind.len().min(usize::from(length)));
        rest = behind;
        match operation % 8 {
            0 => send_record(&mut ends, &mut expected, argument, 1),
            1 => send_record(&mut ends, &mut expected, argument, usize::from(piece)),
            2 if !expected.has_shut_down => {
                expected.is_broken = true;
                ends.send(argument);
            }
            3 => write(&mut ends, &mut expected, argument),
            // In debug builds rustls asserts that no alert follows a close_notify, as it does when
            // the client breaks the protocol then.
            4 if !expected.is_broken => {
                ends.stream.shutdown_write();
                expected.has_shut_down = true;
            }
            5 => {
                let _ = ends.stream.is_open();
                let _ = ends.stream.has_no_event();
                poll_fn(|cx| Poll::Ready(ends.stream.poll_peer_activity(cx).is_ready())).await;
            }
            6 => {
                let _ = net::shutdown(ends.socket.as_fd(), net::Shutdown::Write);
            }
            _ => read(&ends, &mut expected, usize::from(piece)).await,
        }
        assert!(ends.buffer_bytes() <= MAX_BUFFER_BYTES);
    }
    read(&ends, &mut expected, 1000).await;
}

/// Seals a record of any type, `times` over.
fn send_record(ends: &mut SessionEnds, expected: &mut Expected, argument: &[u8], times: usize) {
    let (content, message) = match argument {
        [] => (23, &[][..]),
        [content, message @ ..] => (*content, message),
    };
    // Many empty records are refused.
    let is_data = content == 23 && !message.is_empty();
    for _ in 0..times {
        if expected.has_shut_down && (expected.is_broken || !is_data) {
            return;
        }
        let Ok(record) = ends.client.seal_any(content, message) else {
            return;
        };
        if ends.send(&record) < record.len() || !is_data {
            expected.is_broken = true;
        }
        if !expected.is_broken {
            expected.plaintext.extend_from_slice(message);
        }
    }
}

/// The client gets what the server writes.
fn write(ends: &mut SessionEnds, expected: &mut Expected, bytes: &[u8]) {
    let written = ends.stream.try_write(&[IoSlice::new(bytes)]);
    if expected.has_shut_down {
        assert!(bytes.is_empty() || written.is_err());
        return;
    }
    match written {
        Ok(count) => assert_eq!(count, bytes.len()),
        Err(error) => {
            assert_ne!(error.kind(), ErrorKind::WouldBlock);
            return;
        }
    }
    let (mut records, mut answers) = (ends.receive(), Vec::new());
    if let Ok(done) = ends.client.open(&mut records, &mut answers)
        && !expected.is_broken
    {
        assert_eq!(done.data_bytes, bytes.len());
    }
}

async fn read(ends: &SessionEnds, expected: &mut Expected, piece: usize) {
    let (bytes, end) = ends.read_available(piece).await;
    match expected.is_broken {
        // More may have arrived before the violation.
        true => assert!(bytes.starts_with(&expected.plaintext) || end.is_some()),
        false => assert!(bytes == expected.plaintext || end.is_some()),
    }
    expected.plaintext.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `PENSTOCK_SEED=n` replays one seed, `PENSTOCK_SEEDS=n` runs n seeds.
    #[test]
    fn random_clients_break_nothing() {
        let number = |name| Some(std::env::var(name).ok()?.parse::<u64>().expect(name));
        let seeds = match number("PENSTOCK_SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..number("PENSTOCK_SEEDS").unwrap_or(150),
        };
        for seed in seeds {
            let ran = std::panic::catch_unwind(|| {
                let mut random = fastrand::Rng::with_seed(seed);
                run_session(&operations(&mut random));
                run_handshake(&changed_hello(&mut random));
            });
            assert!(ran.is_ok(), "replay with PENSTOCK_SEED={seed}");
        }
    }

    /// What a client does, usually with records of known types.
    fn operations(random: &mut fastrand::Rng) -> Vec<u8> {
        let mut all = vec![random.u8(..)];
        for _ in 0..random.usize(1..30) {
            let length = random.u8(..40);
            all.extend([random.u8(..), length, random.u8(..)]);
            let start = all.len();
            all.extend(std::iter::repeat_with(|| random.u8(..)).take(usize::from(length)));
            if let Some(content) = all.get_mut(start) {
                *content = random.choice([21, 22, 23, 23, 23, 23]).unwrap_or(0);
            }
        }
        all
    }

    /// The first message of a client, with a few bytes changed.
    fn changed_hello(random: &mut fastrand::Rng) -> Vec<u8> {
        let name = ServerName::try_from(SITE_NAME).unwrap();
        let config = Arc::clone(&CONFIGURATIONS.tls13);
        let client = UnbufferedClientConnection::new(config, name).unwrap();
        let mut hello = vec![random.u8(..)];
        let sent = Session::new(client).open(&mut [], &mut hello, &mut |_| {});
        assert_eq!(sent, Ok(0));
        for _ in 0..random.usize(..4) {
            let at = random.usize(1..hello.len());
            hello[at] = random.u8(..);
        }
        hello
    }
}
