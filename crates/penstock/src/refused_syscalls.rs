//! Logs and counts system calls that applications are refused, as the launcher reports them.
//!
//! `server` runs it as a task. The launcher bounds how often it repeats a report
//! (`sys/src/process/launcher/refusals.rs`).
//!
//! # Invariants
//!
//! - Nothing waits for this task: the launcher drops reports that it does not read.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use penstock_runtime::{Stream, loops};
use penstock_sys::process::{LauncherReport, RefusedCall};

use crate::server::Server;

/// Longer than any report.
const REPORT_BYTES: usize = 1024;

/// Logs and counts reports from the launcher's socket until it closes.
pub(crate) fn log_refused_syscalls(reports: OwnedFd, server: &Arc<Server>) {
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
        // A short packet does not mean an empty socket, as a stream's reader would assume.
        loop {
            let Some(server) = server.upgrade().filter(|_| length > 0) else {
                return Ok(());
            };
            match buffer.get(..length).and_then(LauncherReport::decode) {
                Some(LauncherReport::RefusedCall(refused)) => tell(&refused, &server),
                Some(LauncherReport::Note(text)) => log::warn!("launcher: {text}"),
                None => {}
            }
            match reports.try_read_with_descriptors(&mut buffer, &mut Vec::new()) {
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
    // An application that a reload has removed may still be ending.
    if let Some(app) = server.live_state().components.apps.get(app) {
        app.metrics().refused_calls.add(u64::from(refused.count));
    }
}
