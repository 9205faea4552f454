//! The sessions that a load's connections can resume.
//!
//! rustls' own store keeps eight tickets of TLS 1.3 for a server, as browsers need. A load opens
//! hundreds of connections at once, each uses a ticket up (RFC 8446 §C.4), and the ninth would have
//! to make a full handshake.
//!
//! # Invariants
//!
//! - At most [`MAX_TICKETS`] are kept for a server; the oldest is dropped. Servers are those of the
//!   command line.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// As many as connections are opened at once; about a kilobyte each.
const MAX_TICKETS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct TicketStore {
    /// Held for one look-up. A load has few servers.
    servers: Mutex<Vec<(ServerName<'static>, ServerSessions)>>,
}

#[derive(Debug, Default)]
struct ServerSessions {
    group: Option<NamedGroup>,
    /// Of TLS 1.2: used any number of times.
    session: Option<Tls12ClientSessionValue>,
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl TicketStore {
    fn with<T>(&self, name: &ServerName<'_>, work: impl FnOnce(&mut ServerSessions) -> T) -> T {
        // A look-up is never left half done.
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = servers.iter().position(|(known, _)| known == name);
        let index = known.unwrap_or_else(|| {
            servers.push((name.to_owned(), ServerSessions::default()));
            servers.len() - 1
        });
        work(&mut servers[index].1)
    }
}

impl ClientSessionStore for TicketStore {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.with(&name, |sessions| sessions.group = Some(group));
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.with(name, |sessions| sessions.group)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.with(&name, |sessions| sessions.session = Some(session));
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.with(name, |sessions| sessions.session.clone())
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.with(name, |sessions| sessions.session = None);
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.with(&name, |sessions| {
            if sessions.tickets.len() == MAX_TICKETS {
                sessions.tickets.pop_front();
            }
            sessions.tickets.push_back(ticket);
        });
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.with(name, |sessions| sessions.tickets.pop_back())
    }
}
