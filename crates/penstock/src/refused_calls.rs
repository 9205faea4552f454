//! System calls that applications are refused, from the launcher to the log and the metrics.
//!
//! `server` runs it beside everything else. How often the same is told, the launcher bounds
//! (`sys/src/process/launcher/refusals.rs`).
//!
//! # Invariants
//! - Nothing waits for it: what it does not read, the launcher does not report.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use penstock_runtime::{Stream, loops};
use penstock_sys::process::{LauncherReport, RefusedCall};

use crate::server::Server;

/// Longer than any report.
const REPORT_BYTES: usize = 1024;

/// Logs and counts what comes by the launcher's socket, until that ends.
pub(crate) fn follow(reports: OwnedFd, server: &Arc<Server>) {
    let server = Arc::downgrade(server);
    loops::spawn_here(async move {
        if let Err(error) = read(reports, &server).await {
            log::warn!("server: refused system calls are no longer logged: {error}");
        }
    });
}

async fn read(reports: OwnedFd, server: &Weak<Server>) -> std::io::Result<()> {
    let reports = Stream::new(reports)?;
    let mut buffer = [0; REPORT_BYTES];
    loop {
        let mut length = poll_fn(|cx| reports.poll_read(cx, &mut buffer)).await?;
        // A packet may be short although others are behind it, which a stream's reader does not expect.
        loop {
            let Some(server) = server.upgrade().filter(|_| length > 0) else {
                return Ok(());
            };
            match buffer.get(..length).and_then(LauncherReport::decode) {
                Some(LauncherReport::RefusedCall(refused)) => tell(&refused, &server),
                Some(LauncherReport::Note(text)) => log::warn!("launcher: {text}"),
                None => {}
            }
            match reports.try_read_descriptors(&mut buffer, &mut Vec::new()) {
                Ok(next) => length = next,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
}

fn tell(refused: &RefusedCall, server: &Server) {
    let (app, pid) = (&*refused.app, refused.pid);
    log::warn!(app, pid; "refused {refused}");
    // One that a reload has taken away may be ending.
    if let Some(app) = server.live().components.apps.get(app) {
        app.metrics().refused_calls.add(u64::from(refused.count));
    }
}
