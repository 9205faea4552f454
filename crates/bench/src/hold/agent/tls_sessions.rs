//! The TLS sessions of an agent's streams, in a table beside that of the streams.
//!
//! `agent` passes the bytes of a socket through here where the stream's target has TLS. Records are
//! opened in the agent's buffer, and plaintext goes to one buffer of all streams.
//!
//! # Invariants
//!
//! - Streams without TLS cost nothing here.
//! - A session keeps no more than its keys and a partly received record.
//! - What the server must hear is sent at once or the stream is lost: few hundred bytes, for which
//!   a socket always has room unless its server never reads.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_tls::{ClientSession, HandshakeError};
use rustix::io::Errno;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::socket;
use crate::hold::agent_protocol::AgentOrder;
use crate::hold::numbered_message::monotonic_micros;
use crate::tls::describe_failure;

pub(super) struct TlsSessions {
    /// Of each target.
    server_names: Vec<Option<ServerName<'static>>>,
    /// `None` if no target has TLS.
    config: Option<Arc<ClientConfig>>,
    /// By the stream's row; empty if no target has TLS.
    sessions: Vec<Option<Box<HeldSession>>>,
    /// To the server, and from it; empty between two calls.
    out: Vec<u8>,
    plaintext: Vec<u8>,
}

struct HeldSession {
    session: ClientSession,
    /// Microseconds of the clock of messages.
    begun_at: u64,
}

/// Why there is no session, or not any more.
#[derive(Debug)]
pub(super) enum SessionError {
    Socket(Errno),
    Tls(String),
}

/// The result of received bytes.
#[derive(Debug)]
pub(super) struct ReceivedRecords<'a> {
    pub(super) plaintext: &'a [u8],
    /// The handshake, if these bytes have completed it.
    pub(super) handshake: Option<CompletedHandshake>,
    /// Whether the server has announced the end.
    pub(super) is_closed: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CompletedHandshake {
    /// Microseconds.
    pub(super) took: u64,
    pub(super) is_resumed: bool,
}

impl TlsSessions {
    /// # Errors
    /// The order's settings cannot be used.
    pub(super) fn new(order: &AgentOrder) -> Result<Self, String> {
        let name = |text: &String| penstock_tls::server_name(text).map_err(|e| e.to_string());
        let targets = order.targets.iter();
        let names = targets.map(|target| target.server_name.as_ref().map(name).transpose());
        let server_names = names.collect::<Result<Vec<_>, _>>()?;
        let has_tls = server_names.iter().any(Option::is_some);
        let mut sessions = Vec::new();
        if has_tls {
            let count = order.streams as usize;
            let reserved = sessions.try_reserve_exact(count);
            reserved.map_err(|error| error.to_string())?;
            sessions.resize_with(count, || None);
        }
        Ok(Self {
            server_names,
            config: has_tls.then(|| order.tls.client_config()).transpose()?,
            sessions,
            out: Vec::new(),
            plaintext: Vec::new(),
        })
    }

    /// Whether the stream's target has TLS.
    pub(super) fn is_needed(&self, slot: usize) -> bool {
        self.config.is_some() && self.server_names[slot % self.server_names.len()].is_some()
    }

    /// Sends the first message of a session over a connection that is open.
    ///
    /// # Errors
    /// `Socket(AGAIN)` or `Socket(NOTCONN)` if it is not open yet, or why there is no session.
    pub(super) fn begin(&mut self, slot: usize, socket: &OwnedFd) -> Result<(), SessionError> {
        let name = &self.server_names[slot % self.server_names.len()];
        let (Some(config), Some(name)) = (&self.config, name) else {
            return Ok(());
        };
        self.out.clear();
        let session = ClientSession::begin(Arc::clone(config), name.clone(), &mut self.out);
        let session = session.map_err(|error| SessionError::Tls(describe_failure(&error)))?;
        socket::send_request(socket, &self.out).map_err(SessionError::Socket)?;
        self.sessions[slot] = Some(Box::new(HeldSession {
            session,
            begun_at: monotonic_micros(),
        }));
        Ok(())
    }

    /// Opens received bytes, and sends `request` when the handshake is complete. `None` if the
    /// stream has no session: the bytes are plaintext.
    ///
    /// # Errors
    /// Why the session is over.
    pub(super) fn receive(
        &mut self,
        slot: usize,
        socket: &OwnedFd,
        received: &mut [u8],
        request: &str,
    ) -> Result<Option<ReceivedRecords<'_>>, SessionError> {
        let Some(Some(held)) = self.sessions.get_mut(slot) else {
            return Ok(None);
        };
        self.out.clear();
        self.plaintext.clear();
        let was_established = held.session.is_established();
        let plaintext = &mut self.plaintext;
        let opened = held.session.receive(received, &mut self.out, &mut |bytes| {
            plaintext.extend_from_slice(bytes);
        });
        if let Err(error) = opened {
            // The alert says why; the connection ends in any case.
            let _ = socket::send_request(socket, &self.out);
            return Err(SessionError::Tls(describe_failure(&error)));
        }
        let mut handshake = None;
        if held.session.is_established() && !was_established {
            handshake = Some(CompletedHandshake {
                took: monotonic_micros().saturating_sub(held.begun_at).max(1),
                is_resumed: held.session.is_resumed(),
            });
            let sealed = held.session.seal(request.as_bytes(), &mut self.out);
            sealed.map_err(|error| SessionError::Tls(describe_failure(&error)))?;
        }
        if !self.out.is_empty() {
            socket::send_request(socket, &self.out).map_err(SessionError::Socket)?;
        }
        Ok(Some(ReceivedRecords {
            plaintext: &self.plaintext,
            handshake,
            is_closed: held.session.has_peer_closed(),
        }))
    }

    /// Why the connection's end is an error, `None` if it is none: without a session, or behind the
    /// server's announcement.
    pub(super) fn cut_reason(&self, slot: usize) -> Option<SessionCut> {
        let held = self.sessions.get(slot)?.as_ref()?;
        match (
            held.session.is_established(),
            held.session.has_peer_closed(),
        ) {
            (_, true) => None,
            (true, false) => Some(SessionCut::Truncated),
            (false, false) => Some(SessionCut::Handshake(describe_failure(
                &HandshakeError::Closed,
            ))),
        }
    }

    /// Announces the end of a stream that this side closes.
    pub(super) fn close(&mut self, slot: usize, socket: Option<&OwnedFd>) {
        let held = self.sessions.get_mut(slot).and_then(Option::take);
        if let (Some(mut held), Some(socket)) = (held, socket) {
            self.out.clear();
            if held.session.seal_close(&mut self.out).is_ok() {
                // A server that is gone does not miss it.
                let _ = socket::send_request(socket, &self.out);
            }
        }
    }

    /// Forgets the session of a stream that is lost.
    pub(super) fn remove(&mut self, slot: usize) {
        if let Some(held) = self.sessions.get_mut(slot) {
            *held = None;
        }
    }
}

/// How a connection ended that its server has not announced to end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionCut {
    /// In the handshake; the reason.
    Handshake(String),
    /// Behind it, without a close_notify (RFC 8446 §6.1).
    Truncated,
}
