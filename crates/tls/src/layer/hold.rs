//! The end of a session of `rustls` whose stream is held: its secrets go on in a [`RecordSession`].

use std::os::fd::OwnedFd;

use penstock_exchange::HeldConnection;
use penstock_runtime::StreamLayer;
use rustls::server::UnbufferedServerConnection;

use super::{LayerState, SessionEnd, TlsLayer};
use crate::records::{HoldError, RecordSession};

/// Holds the connection of `socket` and its layer, a session with a client behind a write of
/// application data. Returns how many bytes the client had sent that were not read, too: they are
/// dropped.
///
/// # Errors
/// The session has ended, or cannot be continued: the connection is closed.
pub fn hold(
    socket: OwnedFd,
    layer: Box<dyn StreamLayer>,
) -> Result<(HeldConnection, usize), HoldError> {
    let layer = layer.into_any().downcast();
    let layer: Box<TlsLayer<UnbufferedServerConnection>> =
        layer.map_err(|_| HoldError::NotOfClient)?;
    layer.state.into_inner().hold(socket)
}

impl LayerState<UnbufferedServerConnection> {
    fn hold(self, socket: OwnedFd) -> Result<(HeldConnection, usize), HoldError> {
        let Self {
            session,
            secrets,
            mut incomplete,
            plaintext,
            output,
            end,
            ..
        } = self;
        let is_cut = output.unreported > 0 || output.failure.is_some();
        if end != SessionEnd::Open || is_cut || output.ends_behind {
            return Err(HoldError::Ended);
        }
        let negotiated = session.negotiated();
        let suite = negotiated.negotiated_cipher_suite();
        let suite = suite.ok_or(HoldError::UnsupportedSuite)?;
        let extracted = session.into_connection().dangerous_into_kernel_connection();
        let (extracted, _) = extracted.map_err(|_| HoldError::NoSecrets)?;
        let mut held = RecordSession::new(suite, &extracted, secrets.as_ref())?;
        let mut unsent = output.pending;
        let opened = held.open(&mut incomplete, &mut unsent);
        let opened = opened.map_err(|_| HoldError::Ended)?;
        if opened.is_ended {
            return Err(HoldError::Ended);
        }
        let connection = HeldConnection::sealed(socket, Box::new(held), unsent);
        Ok((connection, plaintext.len() + opened.data_bytes))
    }
}
