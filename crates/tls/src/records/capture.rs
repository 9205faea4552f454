//! Takes the secrets of TLS 1.3 out of a handshake.
//!
//! `rustls` gives them to the `key_log` of its configuration, on the thread that processes the
//! handshake. [`TrafficKeyLog`] keeps the traffic secrets for the caller of [`capture`] there, and
//! [`ChannelBindingLog`] also what it derives from the exporter secret. Both drop them where
//! nothing captures.

use std::cell::RefCell;
use std::fmt;

use rustls::KeyLog;

use super::key_schedule::{MAX_SECRET_BYTES, Secret, tls_exporter};

/// The first traffic secrets of a session with TLS 1.3 (RFC 8446 §7.1). Erased when dropped.
#[derive(Clone)]
pub struct TrafficSecrets {
    /// `client_application_traffic_secret_0`, padded with zeros.
    pub(super) client: Secret,
    /// `server_application_traffic_secret_0`, padded with zeros.
    pub(super) server: Secret,
}

/// The `key_log` of a configuration whose sessions go on as a [`super::RecordSession`].
#[derive(Debug)]
pub struct TrafficKeyLog;

/// As [`TrafficKeyLog`], for sessions whose [`channel_binding`](crate::channel_binding) is needed.
#[derive(Debug)]
pub(crate) struct ChannelBindingLog;

/// Calls `work`, and returns the secrets of a handshake that reached them in it. The handshake must
/// have [`TrafficKeyLog`] or `ChannelBindingLog` in its configuration. One that does not reach
/// them, or uses TLS 1.2, has none.
///
/// `work` processes records of one session. Secrets of a second one replace those of the first.
pub fn capture<T>(work: impl FnOnce() -> T) -> (T, CapturedSecrets) {
    let scope = CaptureScope::begin();
    let done = work();
    (done, scope.end())
}

/// What a capture has seen.
#[derive(Default)]
pub struct CapturedSecrets {
    client: Option<Secret>,
    server: Option<Secret>,
    /// The `tls-exporter` of the session (RFC 9266).
    pub(crate) channel_binding: Option<Box<[u8; 32]>>,
}

impl CapturedSecrets {
    /// The traffic secrets, if the handshake has reached both.
    pub fn traffic(&mut self) -> Option<TrafficSecrets> {
        let secrets = self.client.take().zip(self.server.take());
        secrets.map(|(client, server)| TrafficSecrets { client, server })
    }
}

/// A capture on this thread. Its end restores an outer one, also when `work` panics.
struct CaptureScope {
    outer: Option<CapturedSecrets>,
}

impl CaptureScope {
    fn begin() -> Self {
        let outer = CAPTURED.with(|captured| captured.replace(Some(CapturedSecrets::default())));
        Self { outer }
    }

    fn end(self) -> CapturedSecrets {
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
        with_capture(|captured| match label {
            CLIENT_LABEL => captured.client = Secret::new(secret),
            SERVER_LABEL => captured.server = Secret::new(secret),
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT_LABEL | SERVER_LABEL)
    }
}

impl KeyLog for ChannelBindingLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        match label {
            EXPORTER_LABEL => with_capture(|captured| {
                captured.channel_binding = tls_exporter(secret).map(Box::new);
            }),
            _ => TrafficKeyLog.log(label, client_random, secret),
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == EXPORTER_LABEL || TrafficKeyLog.will_log(label)
    }
}

/// Calls `keep` with what is captured on this thread, if anything is.
fn with_capture(keep: impl FnOnce(&mut CapturedSecrets)) {
    CAPTURED.with(|captured| {
        if let Some(captured) = captured.borrow_mut().as_mut() {
            keep(captured);
        }
    });
}

impl fmt::Debug for CapturedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedSecrets").finish_non_exhaustive()
    }
}

impl fmt::Debug for TrafficSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficSecrets").finish_non_exhaustive()
    }
}

const CLIENT_LABEL: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_LABEL: &str = "SERVER_TRAFFIC_SECRET_0";
const EXPORTER_LABEL: &str = "EXPORTER_SECRET";

const _: () = assert!(size_of::<TrafficSecrets>() == 2 * MAX_SECRET_BYTES);

thread_local! {
    /// The capture of this thread; never borrowed while other code runs.
    static CAPTURED: RefCell<Option<CapturedSecrets>> = const { RefCell::new(None) };
}
