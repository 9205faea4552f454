//! Takes the traffic secrets of TLS 1.3 out of a handshake.
//!
//! `rustls` gives them to the `key_log` of its configuration, on the thread that processes the
//! handshake. [`TrafficKeyLog`] keeps them for the caller of [`capture`] there, and drops them
//! where nothing captures.

use std::cell::RefCell;
use std::fmt;

use rustls::KeyLog;

use super::key_schedule::{MAX_SECRET_BYTES, Secret};

/// The first traffic secrets of a session with TLS 1.3 (RFC 8446 §7.1). Erased when dropped.
#[derive(Clone)]
pub struct TrafficSecrets {
    /// `client_application_traffic_secret_0`, padded with zeros.
    pub(super) client: Secret,
    /// `server_application_traffic_secret_0`, padded with zeros.
    pub(super) server: Secret,
}

/// The `key_log` of a [`rustls::ServerConfig`] whose sessions may be held.
#[derive(Debug)]
pub struct TrafficKeyLog;

/// Calls `work`, and returns the traffic secrets of a handshake that reached them in it. The
/// handshake must have [`TrafficKeyLog`] in its configuration. One that does not reach them, or
/// uses TLS 1.2, gives `None`.
///
/// `work` processes records of one session. Secrets of a second one replace those of the first.
pub fn capture<T>(work: impl FnOnce() -> T) -> (T, Option<TrafficSecrets>) {
    let scope = CaptureScope::begin();
    let done = work();
    let Captured { client, server } = scope.end();
    let secrets = client.zip(server);
    (
        done,
        secrets.map(|(client, server)| TrafficSecrets { client, server }),
    )
}

/// What a capture has seen.
#[derive(Default)]
struct Captured {
    client: Option<Secret>,
    server: Option<Secret>,
}

/// A capture on this thread. Its end restores an outer one, also when `work` panics.
struct CaptureScope {
    outer: Option<Captured>,
}

impl CaptureScope {
    fn begin() -> Self {
        let outer = CAPTURED.with(|captured| captured.replace(Some(Captured::default())));
        Self { outer }
    }

    fn end(self) -> Captured {
        let captured = CAPTURED.with(|captured| captured.replace(None));
        captured.unwrap_or_default()
    }
}

impl Drop for CaptureScope {
    fn drop(&mut self) {
        CAPTURED.with(|captured| captured.replace(self.outer.take()));
    }
}

impl KeyLog for TrafficKeyLog {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        CAPTURED.with(|captured| {
            let mut captured = captured.borrow_mut();
            let Some(captured) = captured.as_mut() else {
                return;
            };
            match label {
                CLIENT_LABEL => captured.client = Secret::new(secret),
                SERVER_LABEL => captured.server = Secret::new(secret),
                _ => {}
            }
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT_LABEL | SERVER_LABEL)
    }
}

impl fmt::Debug for TrafficSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficSecrets").finish_non_exhaustive()
    }
}

const CLIENT_LABEL: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_LABEL: &str = "SERVER_TRAFFIC_SECRET_0";

const _: () = assert!(size_of::<TrafficSecrets>() == 2 * MAX_SECRET_BYTES);

thread_local! {
    /// The capture of this thread; never borrowed while other code runs.
    static CAPTURED: RefCell<Option<Captured>> = const { RefCell::new(None) };
}
