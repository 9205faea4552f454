//! The defaults that differ in development (`serve --dev`).
//!
//! Used by `parse` and `resolve` before they read the keys, which always win.
//!
//! # Invariants
//! - Nothing here changes what a key means, only what leaving it out does.

use std::time::Duration;

use toml::de::DeTable;

use crate::model::{AccessLog, App, Hub, LogFormat, LogTarget, Processes, Server};

/// One process is what a debugger and a person who reads its output can follow; no request waits
/// for old code to finish.
pub(crate) fn apply_to_app(app: &mut App) {
    app.processes = Processes::exactly(1);
    app.stop_timeout = STOP_TIMEOUT;
    app.stream_timeout = STOP_TIMEOUT;
}

/// In development few clients reconnect.
pub(crate) fn apply_to_hub(hub: &mut Hub) {
    hub.drain_timeout = STOP_TIMEOUT;
}

/// Requests are shown where the server was started, and Ctrl-C ends it soon.
pub(crate) fn apply_to_server(server: &mut Server, root: Option<&DeTable<'_>>) {
    let table = root.and_then(|root| root.get("server")?.get_ref().as_table());
    let says = |key: &str| table.is_some_and(|table| table.contains_key(key));
    if !says("access_log") {
        server.access_log = Some(AccessLog {
            format: LogFormat::Dev,
            ..AccessLog::new(LogTarget::Stdout)
        });
    }
    if !says("shutdown_timeout") {
        server.shutdown_timeout = STOP_TIMEOUT;
    }
    if !says("upgrade_timeout") {
        server.upgrade_timeout = STOP_TIMEOUT;
    }
}

/// Long enough for a request that is nearly done.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
