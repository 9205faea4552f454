//! The end of a layer whose stream is held: its session goes on without it.

use std::os::fd::OwnedFd;

use penstock_exchange::HeldConnection;
use penstock_runtime::StreamLayer;

use super::{LayerState, SessionEnd, TlsLayer};
use crate::records::{HoldError, RecordSession};

/// Holds the connection of `socket` and its layer, a session with a client. Returns how many bytes
/// the client had sent that were not read, too: they are dropped.
///
/// # Errors
/// The session has ended: the connection is closed.
pub fn hold(
    socket: OwnedFd,
    layer: Box<dyn StreamLayer>,
) -> Result<(HeldConnection, usize), HoldError> {
    let layer = layer.into_any().downcast();
    let layer: Box<TlsLayer<RecordSession>> = layer.map_err(|_| HoldError::NotOfClient)?;
    layer.state.into_inner().hold(socket)
}

impl LayerState<RecordSession> {
    fn hold(self, socket: OwnedFd) -> Result<(HeldConnection, usize), HoldError> {
        let Self {
            mut session,
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
        session.release_keys();
        let mut unsent = output.pending;
        // From now on the session keeps the start of a record itself.
        let opened = session.open(&mut incomplete, &mut unsent);
        if opened.map_err(|_| HoldError::Ended)?.is_ended {
            return Err(HoldError::Ended);
        }
        let connection = HeldConnection::sealed(socket, Box::new(session), unsent);
        Ok((connection, plaintext.len()))
    }
}
