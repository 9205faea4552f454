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
    /// Reopens the server's log and the access logs; returns their names.
    ///
    /// # Errors
    /// The files that could not be opened; the others were.
    pub(crate) async fn reopen_logs(self: &Arc<Self>) -> Result<String, String> {
        let (server_log, access_logs, pool) = {
            let live = self.live_state();
            let server = &live.config.server;
            let access = logs::access_logs(&live.config);
            let access: Vec<LogTarget> = access.map(|(_, log)| log.path.clone()).collect();
            (
                server.log.clone(),
                access,
                default_pool(&live.components.pools),
            )
        };
        let settings = self.edge.settings();
        let writers = settings.access_logs.iter().map(|log| log.writer.clone());
        let access_logs: Vec<(LogTarget, LogWriter)> =
            access_logs.into_iter().zip(writers).collect();
        let streams = self.options.daemonize;
        let log = self.options.log.clone();
        let opened = pool.run(move || {
            let own = reopen_log(&server_log, &log, streams);
            let access = access_logs.iter();
            let access = access.map(|(path, writer)| reopen_log(path, writer, false));
            std::iter::once(own).chain(access).collect::<Vec<_>>()
        });
        let opened = opened.await.map_err(|error| error.to_string())?;
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for one in opened {
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
