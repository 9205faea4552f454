//! The logs' files, opened anew: after a program such as logrotate has renamed them.
//!
//! A part of `server`; asked by SIGUSR1 and by the admin interface. What must stay true: a file that cannot
//! be opened leaves the old one in use, and no line is lost between the two.

use std::os::fd::AsFd;
use std::sync::Arc;

use penstock_config::LogTarget;
use penstock_runtime::logger::{LineWriter, LogOutput};
use penstock_sys::daemon;

use super::Server;
use crate::components::default_pool;
use crate::logs;

impl Server {
    /// Opens the files of the server's log and of the access log anew; gives their names.
    ///
    /// # Errors
    /// Which could not be opened, and why; the others were.
    pub(crate) async fn reopen_logs(self: &Arc<Self>) -> Result<String, String> {
        let (server_log, access_log, pool) = {
            let live = self.live();
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

/// Opens a log anew if it is a file, and gives its name. May block.
fn reopen_log(
    to: &LogTarget,
    writer: &LineWriter,
    streams: bool,
) -> Result<Option<String>, String> {
    let LogTarget::File(path) = to else {
        return Ok(None);
    };
    let name = path.display().to_string();
    let file = logs::open_log_file(path)?;
    if streams {
        // What is not a line of the log, such as the last words of a crash, goes there too.
        daemon::redirect_output(file.as_fd()).map_err(|error| format!("{name}: {error}"))?;
    }
    let turned = writer.set_output(LogOutput::File(file));
    turned.map_err(|error| format!("{name}: {error}"))?;
    Ok(Some(name))
}
