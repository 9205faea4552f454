//! Reopens the log files, after a program such as logrotate has renamed them; a part of `server`,
//! triggered by SIGUSR1 and the admin interface.
//!
//! # Invariants
//!
//! - If a file cannot be opened, the old one stays in use.
//! - No line is lost during the switch.

use std::os::fd::AsFd;
use std::sync::Arc;

use penstock_config::LogTarget;
use penstock_runtime::logger::{LogOutput, LogWriter};
use penstock_sys::daemon;

use super::Server;
use crate::components::default_pool;
use crate::logs;

impl Server {
    /// Reopens the server's log and the access log; returns their names.
    ///
    /// # Errors
    /// The files that could not be opened; the others were.
    pub(crate) async fn reopen_logs(self: &Arc<Self>) -> Result<String, String> {
        let (server_log, access_log, pool) = {
            let live = self.live_state();
            let server = &live.config.server;
            let access = server.access_log.as_ref().map(|log| log.path.clone());
            (
                server.log.clone(),
                access,
                default_pool(&live.components.pools),
            )
        };
        let settings = self.edge.settings();
        let access_writer = settings.access_log.as_ref().map(|log| log.writer.clone());
        let streams = self.options.daemonize;
        let log = self.options.log.clone();
        let opened = pool.run(move || {
            let own = reopen_log(&server_log, &log, streams);
            let access = access_log.zip(access_writer);
            let access = access.map(|(path, writer)| reopen_log(&path, &writer, false));
            [Some(own), access]
        });
        let opened = opened.await.map_err(|error| error.to_string())?;
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for one in opened.into_iter().flatten() {
            match one {
                Ok(Some(name)) => done.push(name),
                Ok(None) => {}
                Err(error) => failed.push(error),
            }
        }
        if !failed.is_empty() {
            let failed = failed.join("; ");
            log::error!("logs: reopen failed: {failed}. The open files stay in use");
            return Err(failed);
        }
        let done = match done.is_empty() {
            true => "nothing to reopen".to_owned(),
            false => format!("reopened {}", done.join(" and ")),
        };
        log::info!("logs: {done}");
        Ok(done)
    }
}

/// Reopens a log if it is a file, and returns its name. May block.
fn reopen_log(to: &LogTarget, writer: &LogWriter, streams: bool) -> Result<Option<String>, String> {
    let LogTarget::File(path) = to else {
        return Ok(None);
    };
    let name = path.display().to_string();
    let file = logs::open_log_file(path)?;
    if streams {
        // Output that is no log line, such as that of a crash, goes there too.
        daemon::redirect_output(file.as_fd()).map_err(|error| format!("{name}: {error}"))?;
    }
    let turned = writer.set_output(LogOutput::File(file));
    turned.map_err(|error| format!("{name}: {error}"))?;
    Ok(Some(name))
}
