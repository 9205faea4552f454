//! Handshakes over a stream: `accept` for clients of ours, `connect` for servers.
//!
//! # Invariants
//! - The caller bounds the time.
//! - A loop does a few steps with public-key cryptography a turn, so that a flood of handshakes
//!   leaves it to its other connections in between.
//! - Bytes before the handshake are never plaintext.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Poll, ready};

use penstock_exchange::{ClientVerification, TlsInfo};
use penstock_runtime::{Stream, StreamLayer, loops};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::{Acceptor, UnbufferedServerConnection};
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion};

use crate::certificates::ConnectionIdentity;
use crate::client_facts::read_client_certificate;
use crate::layer::{LayerSession, MAX_INCOMPLETE_BYTES, SessionFacts, TlsLayer, with_buffers};
use crate::records::{self, ExtractError, RecordSession, TrafficSecrets};
use crate::resolver::correct_refusal_alert;
use crate::server_config::ServerTls;
use crate::server_sessions::ServerSessions;
use crate::session::{Connection, Session};

/// Steps with public-key cryptography a turn of a loop: some hundred microseconds each.
const MAX_STEPS_PER_TURN: u32 = 4;

/// The first byte of every handshake: a record's content type (RFC 8446 §5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The first bytes are those of an HTTP request without TLS.
    #[error("a plain HTTP request on a TLS port")]
    PlainHttp,
    /// The first bytes are of another protocol.
    #[error("not TLS: its first byte is {0:#04x}")]
    NotTls(u8),
    /// The peer broke the protocol, or there is nothing that both sides support.
    #[error("{0}")]
    Protocol(#[from] rustls::Error),
    /// The session cannot be continued behind its handshake.
    #[error("{0}")]
    Extract(#[from] ExtractError),
    /// A message has no end.
    #[error("a message of more than {MAX_INCOMPLETE_BYTES} bytes")]
    TooLarge,
    /// The peer closed before the handshake was complete.
    #[error("closed by the peer during the handshake")]
    Closed,
    /// The peer closed before its first byte: a health check of a load balancer does that.
    #[error("closed by the peer before the handshake")]
    Unused,
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Makes a session with the client behind `stream`; `received` was read from it already. If the
/// client speaks another protocol, `received` has its first bytes.
///
/// # Errors
/// As [`HandshakeError`]; an alert that tells the client has been sent if the socket had room.
/// Cancel safety: none.
pub async fn accept(
    stream: &Stream,
    sessions: &ServerSessions,
    received: &mut Vec<u8>,
) -> Result<EstablishedSession, HandshakeError> {
    let server_name = read_server_name(stream, received).await?;
    let ServerTls { config, policy } = sessions.select(server_name.as_deref());
    take_turn().await;
    let session = Session::new(UnbufferedServerConnection::new(Arc::clone(config))?);
    let complete = run(stream, session, std::mem::take(received)).await?;
    let identity = sessions.identify(server_name.as_deref(), *policy);
    let mut info = describe(&complete.session, server_name);
    if identity.requests_certificate() {
        info.client = verification(&info);
    }
    let records = complete.session.into_records(complete.secrets.as_ref())?;
    let facts = SessionFacts {
        info: Arc::new(info),
        identity: Some(identity),
        channel_binding: complete.channel_binding,
    };
    Ok(EstablishedSession::new(records, complete.received, facts))
}

/// Makes a session with the server behind `stream`, which must prove to be `server_name`.
///
/// # Errors
/// As [`HandshakeError`]. Cancel safety: none.
pub async fn connect(
    stream: &Stream,
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
) -> Result<EstablishedSession, HandshakeError> {
    let name = Some(server_name.to_str().into_owned().into_boxed_str());
    take_turn().await;
    let session = Session::new(UnbufferedClientConnection::new(config, server_name)?);
    let complete = run(stream, session, Vec::new()).await?;
    let facts = SessionFacts {
        info: Arc::new(describe(&complete.session, name)),
        identity: None,
        channel_binding: complete.channel_binding,
    };
    Ok(EstablishedSession::new(
        complete.session,
        complete.received,
        facts,
    ))
}

/// A session that is ready for the stream that it was made on.
#[derive(Debug)]
pub struct EstablishedSession {
    layer: Box<dyn StreamLayer>,
    info: Arc<TlsInfo>,
}

impl EstablishedSession {
    fn new<S: LayerSession>(session: S, received: Vec<u8>, facts: SessionFacts) -> Self {
        let info = Arc::clone(&facts.info);
        let layer = Box::new(TlsLayer::new(session, received, facts));
        Self { layer, info }
    }

    /// What was settled.
    #[must_use]
    pub fn info(&self) -> &Arc<TlsInfo> {
        &self.info
    }

    /// Puts the session between `stream`, on which it was made, and its users.
    #[must_use]
    pub fn over(self, stream: Stream) -> Stream {
        stream.with_layer(self.layer)
    }
}

/// The session of `stream`, if it has one.
#[must_use]
pub fn session_info(stream: &Stream) -> Option<&Arc<TlsInfo>> {
    session_facts(stream).map(|facts| &facts.info)
}

/// The `tls-exporter` of the session of `stream` (RFC 9266 §2): equal on both sides, and another for
/// each session. `None` without a session, and for one that was not made by [`bound_sessions`] or
/// [`bound_client_config`].
///
/// [`bound_sessions`]: crate::bound_sessions
/// [`bound_client_config`]: crate::bound_client_config
#[must_use]
pub fn channel_binding(stream: &Stream) -> Option<[u8; 32]> {
    session_facts(stream)?.channel_binding.as_deref().copied()
}

/// What the handshake of a client's connection has proved; `None` without TLS.
#[must_use]
pub fn connection_identity(stream: &Stream) -> Option<&ConnectionIdentity> {
    session_facts(stream)?.identity.as_ref()
}

fn session_facts(stream: &Stream) -> Option<&SessionFacts> {
    let layer = stream.layer()?.as_any();
    match layer.downcast_ref::<TlsLayer<RecordSession>>() {
        Some(layer) => Some(&layer.facts),
        None => {
            let layer = layer.downcast_ref::<TlsLayer<Session<UnbufferedClientConnection>>>()?;
            Some(&layer.facts)
        }
    }
}

/// Reads a client's first message and returns the name that it asks for, in lower case, if any.
/// `received` keeps all bytes, for the session, or to be passed on to the server that makes it.
///
/// # Errors
/// As [`HandshakeError`]. Cancel safety: none.
pub async fn read_server_name(
    stream: &Stream,
    received: &mut Vec<u8>,
) -> Result<Option<Box<str>>, HandshakeError> {
    let mut acceptor = Acceptor::default();
    let mut scanned = 0;
    loop {
        if let Some(error) = received.first().and_then(|first| other_protocol(*first)) {
            return Err(error);
        }
        let mut rest = &received[scanned..];
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest)?;
            let accepted = match acceptor.accept() {
                Ok(accepted) => accepted,
                Err((error, mut alert)) => {
                    let mut bytes = Vec::new();
                    // Writing to memory does not fail.
                    let _ = alert.write(&mut bytes);
                    send_alert(stream, &bytes);
                    return Err(error.into());
                }
            };
            if let Some(accepted) = accepted {
                let name = accepted
                    .client_hello()
                    .server_name()
                    .map(str::to_ascii_lowercase);
                return Ok(name.map(Into::into));
            }
        }
        scanned = received.len();
        if scanned > MAX_INCOMPLETE_BYTES {
            return Err(HandshakeError::TooLarge);
        }
        let count = poll_fn(|cx| {
            with_buffers(|buffers| {
                let count = ready!(stream.poll_read(cx, &mut buffers.received))?;
                received.extend_from_slice(&buffers.received[..count]);
                Poll::Ready(io::Result::Ok(count))
            })
        })
        .await;
        match count {
            Ok(0) | Err(_) if received.is_empty() => return Err(HandshakeError::Unused),
            Ok(0) => return Err(HandshakeError::Closed),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a first byte says that no handshake has. A method begins with a letter (RFC 9112 §3).
fn other_protocol(first: u8) -> Option<HandshakeError> {
    match first {
        HANDSHAKE_RECORD => None,
        b'A'..=b'Z' | b'a'..=b'z' => Some(HandshakeError::PlainHttp),
        other => Some(HandshakeError::NotTls(other)),
    }
}

/// Runs a session to the end of its handshake, and opens no record behind it.
pub(crate) async fn run<C: Connection>(
    stream: &Stream,
    session: Session<C>,
    received: Vec<u8>,
) -> Result<CompleteHandshake<C>, HandshakeError> {
    let mut handshake = PendingHandshake {
        session,
        secrets: None,
        channel_binding: None,
        received,
        opened_bytes: 0,
    };
    loop {
        let mut out = Vec::new();
        if let Err(error) = handshake.open_received(&mut out) {
            correct_refusal_alert(&error, &mut out);
            send_alert(stream, &out);
            return Err(error.into());
        }
        stream.write_all(&out).await?;
        if handshake.session.is_established() {
            break;
        }
        let received = &mut handshake.received;
        if received.len() > MAX_INCOMPLETE_BYTES {
            return Err(HandshakeError::TooLarge);
        }
        if handshake.session.has_peer_closed() {
            return Err(HandshakeError::Closed);
        }
        let count = poll_fn(|cx| {
            with_buffers(|buffers| {
                let count = ready!(stream.poll_read(cx, &mut buffers.received))?;
                received.extend_from_slice(&buffers.received[..count]);
                Poll::Ready(io::Result::Ok(count))
            })
        })
        .await?;
        if count == 0 {
            return Err(HandshakeError::Closed);
        }
        take_turn().await;
    }
    Ok(CompleteHandshake {
        session: handshake.session,
        secrets: handshake.secrets,
        channel_binding: handshake.channel_binding,
        received: handshake.received,
    })
}

/// A session in its handshake, and what was received for it.
struct PendingHandshake<C> {
    session: Session<C>,
    secrets: Option<TrafficSecrets>,
    channel_binding: Option<Box<[u8; 32]>>,
    received: Vec<u8>,
    /// Bytes at the start of `received` whose records are opened: the start of a message.
    opened_bytes: usize,
}

impl<C: Connection> PendingHandshake<C> {
    /// Opens what was received up to the end of the handshake, a record at a time: those behind it
    /// are not for rustls. Messages to the peer are appended to `out`.
    fn open_received(&mut self, out: &mut Vec<u8>) -> Result<(), rustls::Error> {
        loop {
            let (opened, rest) = (self.opened_bytes, &self.received[self.opened_bytes..]);
            let record = record_length(rest).filter(|length| *length <= rest.len());
            // rustls refuses what cannot be the start of a record.
            let shown = opened + record.unwrap_or(rest.len());
            let records = &mut self.received[..shown];
            let (used, mut captured) =
                records::capture(|| self.session.open(records, out, &mut |_| {}));
            if let Some(secrets) = captured.traffic() {
                self.secrets = Some(secrets);
            }
            if let Some(binding) = captured.channel_binding {
                self.channel_binding = Some(binding);
            }
            let used = used?;
            self.received.drain(..used);
            self.opened_bytes = (opened + record.unwrap_or(0)).saturating_sub(used);
            if record.is_none() || self.session.is_established() {
                return Ok(());
            }
        }
    }
}

/// The length of a record, by its header (RFC 8446 §5.1).
fn record_length(bytes: &[u8]) -> Option<usize> {
    let [_, _, _, high, low] = bytes.first_chunk()?;
    Some(5 + usize::from(u16::from_be_bytes([*high, *low])))
}

/// A session behind its handshake.
pub(crate) struct CompleteHandshake<C> {
    pub(crate) session: Session<C>,
    /// Of TLS 1.3, where the configuration has a [`records::TrafficKeyLog`].
    pub(crate) secrets: Option<TrafficSecrets>,
    /// As [`channel_binding`].
    pub(crate) channel_binding: Option<Box<[u8; 32]>>,
    /// What came behind the handshake.
    pub(crate) received: Vec<u8>,
}

/// What the handshake of `session` has settled.
fn describe<C: Connection>(session: &Session<C>, server_name: Option<Box<str>>) -> TlsInfo {
    let negotiated = session.negotiated();
    let suite = negotiated.negotiated_cipher_suite();
    let cipher = suite.and_then(|suite| suite.suite().as_str());
    let cipher = cipher.unwrap_or("unknown");
    let cipher = cipher.strip_prefix("TLS13_").unwrap_or(cipher);
    let certificates = negotiated.peer_certificates().unwrap_or_default();
    TlsInfo {
        version: match negotiated.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "unknown",
        },
        cipher: cipher.strip_prefix("TLS_").unwrap_or(cipher).into(),
        server_name,
        version_number: negotiated.protocol_version().map_or(0, u16::from),
        cipher_number: suite.map_or(0, |suite| u16::from(suite.suite())),
        alpn: negotiated.alpn_protocol().map(Into::into),
        is_resumed: negotiated.handshake_kind() == Some(HandshakeKind::Resumed),
        peer_certificates: certificates.iter().map(|it| it.as_ref().into()).collect(),
        client: ClientVerification::NotRequested,
    }
}

/// What a client has proved that was asked for a certificate.
fn verification(info: &TlsInfo) -> ClientVerification {
    // rustls has verified it, or the handshake would have failed.
    let Some(own) = info.peer_certificates.first() else {
        return ClientVerification::NotSent;
    };
    match read_client_certificate(own) {
        Ok(certificate) => ClientVerification::Verified(Box::new(certificate)),
        // It proves nothing to an application that cannot be told whose it is.
        Err(error) => {
            log::warn!("a client's certificate is not passed on: {error}");
            ClientVerification::NotSent
        }
    }
}

/// Sends an alert if the socket has room: the connection ends in any case.
fn send_alert(stream: &Stream, alert: &[u8]) {
    let _ = stream.try_write(&[io::IoSlice::new(alert)]);
}

thread_local! {
    /// The loop's turn, and the steps in it.
    static STEPS: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// Waits for a turn of the loop that has room for one more step.
async fn take_turn() {
    loop {
        let now = loops::current_turn();
        let (turn, steps) = STEPS.get();
        if turn != now {
            STEPS.set((now, 1));
            return;
        }
        if steps < MAX_STEPS_PER_TURN {
            STEPS.set((now, steps + 1));
            return;
        }
        loops::yield_now().await;
    }
}
