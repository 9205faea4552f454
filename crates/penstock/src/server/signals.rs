//! Signal handling, a part of `server`: SIGTERM and SIGINT stop the server, SIGHUP reloads, SIGUSR1
//! reopens the logs, SIGUSR2 upgrades.
//!
//! # Invariants
//!
//! - A signal that arrives while another is handled is not lost.
//! - A signal from an application or its descendants is ignored, and the log names the sender.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_runtime::{clock, loops};
use penstock_sys::signals::{self, DescendantSender, SignalWatch};
use tokio::signal::unix::{self, SignalKind};

use super::Server;

/// Minimum time between two log lines about ignored signals.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The signals that stop a server, and the control signals until they have handlers.
pub(super) struct Signals {
    terminate: WatchedSignal,
    interrupt: WatchedSignal,
    control_signals: Option<(WatchedSignal, WatchedSignal, WatchedSignal)>,
}

/// A signal with the record of its senders.
struct WatchedSignal {
    name: &'static str,
    stream: unix::Signal,
    watch: SignalWatch,
    last_logged: Option<Instant>,
}

impl WatchedSignal {
    fn new(
        name: &'static str,
        kind: SignalKind,
        predecessor: Option<u32>,
    ) -> std::io::Result<Self> {
        // Before the stream: a woken task finds the senders recorded.
        let watch = signals::watch_signal(kind.as_raw_value(), predecessor)?;
        let stream = unix::signal(kind)?;
        Ok(Self {
            name,
            stream,
            watch,
            last_logged: None,
        })
    }

    /// Waits for a signal from an authorised sender; returns whether only the successor has sent
    /// it. Cancel safe.
    async fn accepted(&mut self, server: &Server) -> bool {
        while self.stream.recv().await.is_some() {
            let arrived = self.watch.take_received();
            let successor_pid = server.successor_pid();
            // Descendants of the successor are applications too.
            let is_successor =
                |sender: DescendantSender| successor_pid != 0 && sender.pid == successor_pid;
            let inside = arrived.descendant.filter(|sender| !is_successor(*sender));
            if let Some(sender) = inside {
                self.refuse(server, sender);
            }
            if arrived.is_from_outside || arrived.descendant.is_some_and(is_successor) {
                return !arrived.is_from_outside;
            }
        }
        // The signal cannot arrive any more.
        std::future::pending().await
    }

    fn refuse(&mut self, server: &Server, sender: DescendantSender) {
        let now = clock::now();
        if self
            .last_logged
            .is_none_or(|last| now >= last + LOG_INTERVAL)
        {
            self.last_logged = Some(now);
            let (name, who) = (self.name, server.describe_sender(sender));
            log::error!(
                "server: {name} from {who} ignored: application processes cannot control the server"
            );
        }
    }
}

impl Signals {
    /// `predecessor` is the server that this one replaces.
    pub(super) fn new(predecessor: Option<u32>) -> std::io::Result<Self> {
        let signal = |name, kind| WatchedSignal::new(name, kind, predecessor);
        Ok(Self {
            terminate: signal("SIGTERM", SignalKind::terminate())?,
            interrupt: signal("SIGINT", SignalKind::interrupt())?,
            control_signals: Some((
                signal("SIGHUP", SignalKind::hangup())?,
                signal("SIGUSR1", SignalKind::user_defined1())?,
                signal("SIGUSR2", SignalKind::user_defined2())?,
            )),
        })
    }

    /// Handles the signals that do not stop `server`.
    pub(super) fn handle_control_signals(&mut self, server: &Arc<Server>) {
        let Some((hangup, user1, user2)) = self.control_signals.take() else {
            return;
        };
        // All signals during a reload cause one more reload afterwards: in the end the newest
        // configuration is active.
        change_on_signal(hangup, server, |server| async move {
            server.reload_after_current().await
        });
        change_on_signal(
            user1,
            server,
            |server| async move { server.reopen_logs().await },
        );
        change_on_signal(
            user2,
            server,
            |server| async move { server.upgrade(None).await },
        );
    }

    pub(super) async fn wait_for_stop(&mut self, server: &Server) {
        tokio::select! {
            _ = self.terminate.accepted(server) => {}
            _ = self.interrupt.accepted(server) => {}
            () = server.stop_requested.notified() => {}
        }
    }

    /// Waits for SIGINT or SIGTERM while the successor serves: the remaining time gets shorter.
    /// Returns whether only the successor has sent it.
    pub(super) async fn wait_for_hurry_signal(&mut self, server: &Server) -> bool {
        tokio::select! {
            is_successor = self.terminate.accepted(server) => is_successor,
            is_successor = self.interrupt.accepted(server) => is_successor,
        }
    }

    /// Waits for a second SIGINT or SIGTERM: the server stops at once. The successor never requests
    /// that.
    pub(super) async fn wait_for_second_stop(&mut self, server: &Server) {
        while self.wait_for_hurry_signal(server).await {}
    }
}

impl Server {
    /// Describes a sender: the application's process that it is or descends from, named as in the
    /// log.
    pub(crate) fn describe_sender(&self, sender: DescendantSender) -> String {
        let DescendantSender { pid, child, .. } = sender;
        let name = |pid: u32| signals::process_name(pid).unwrap_or_else(|| "gone".to_owned());
        if sender.is_of_predecessor {
            return format!(
                "process {pid} ({}), which the previous server started",
                name(pid)
            );
        }
        if self.successor_pid() == child {
            return format!(
                "process {pid} ({}), which process {child}, the new server, has started",
                name(pid)
            );
        }
        let apps = self.live_state().components.apps.clone();
        let owner = apps.values().find(|app| {
            let app = app.snapshot();
            let mut all = app.workers.iter().chain(&app.templates);
            all.any(|worker| worker.pid == Some(child))
        });
        match owner {
            Some(app) if pid == child => format!("{}[{child}]", app.name()),
            Some(app) => format!("{}[{child}], by process {pid} ({})", app.name(), name(pid)),
            None if pid == child => {
                format!("process {pid} ({}), which a worker left behind", name(pid))
            }
            None => format!(
                "process {pid} ({}), a descendant of process {child} ({}), which a worker left behind",
                name(pid),
                name(child)
            ),
        }
    }
}

/// Makes a change on each signal; its result is in the log.
fn change_on_signal<F>(
    mut signal: WatchedSignal,
    server: &Arc<Server>,
    change: impl Fn(Arc<Server>) -> F + Send + 'static,
) where
    F: Future<Output = Result<String, String>> + Send + 'static,
{
    let server = Arc::clone(server);
    loops::spawn_here(async move {
        loop {
            signal.accepted(&server).await;
            let _ = change(Arc::clone(&server)).await;
        }
    });
}
