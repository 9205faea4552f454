//! Upgrade: starts a new process of the program, hands it the listeners, and lets it serve when it
//! is ready. The old server's side of `upgrade_protocol`; a part of `server`, triggered by SIGUSR2
//! and the admin interface.
//!
//! # Invariants
//!
//! - This server serves unchanged until the new one reports that it serves.
//! - A new server that ends, hangs or violates the protocol is killed, and the upgrade fails with
//!   its output.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_apps::{App, AppSize};
use penstock_config::ListenAddr;
use penstock_hub::HubTransfer;
use penstock_rules::BackEndName;
use penstock_runtime::{clock, loops, process};
use penstock_sys::fd_packets;
use penstock_sys::process::CommandLine;
use penstock_sys::process::successor::{SignalTarget, Successor, SuccessorSpec};
use tokio::sync::oneshot;

use super::{STOPPING_ERROR, Server, reload};
use crate::components::default_pool;
use crate::inherited_listeners::ListenerRole;
use crate::listeners::Listener;
use crate::service_manager::ServiceNotifier;
use crate::upgrade_protocol::{
    AddressText, PublishSecret, REPLY_TIMEOUT, SecretBytes, UPGRADE_FD_VAR, UpgradeChannel,
    UpgradeMessage, UpgradeOutcome,
};

/// How long the new server may take beyond its applications: it reports itself which does not boot.
const BOOT_TIMEOUT_SLACK: Duration = Duration::from_secs(2);

/// How long the previous server may take to exit beyond its requests.
const PREDECESSOR_TIMEOUT_SLACK: Duration = Duration::from_secs(30);

/// How often to check for its exit.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long the last output of a process that has exited may take to arrive.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// What a version says that does not know [`UpgradeMessage::Hub`].
const UNKNOWN_HUB_ERROR: &str = "unknown variant `hub`";

const OLDER_VERSION_HINT: &str = "it is an older version, which cannot take held streams over: to \
                                  go back to it, stop this server and start that one";

/// Maximum number of output lines of the new server in an error.
const MAX_TAIL_LINES: usize = 40;

/// The command of the next server: that of this one.
pub(crate) fn successor_command(
    program: &Path,
    start_dir: &Path,
    manager: &ServiceNotifier,
) -> CommandLine {
    CommandLine {
        program: program.to_owned(),
        args: std::env::args_os().skip(1).collect(),
        dir: start_dir.to_owned(),
        env: manager.successor_env_vars(),
    }
}

impl Server {
    /// Starts `binary`, or the running program, and lets it take over; returns a sentence with its
    /// process id.
    pub(crate) async fn upgrade(
        self: &Arc<Self>,
        binary: Option<PathBuf>,
    ) -> Result<String, String> {
        let Ok(_only) = self.reload_lock.try_lock() else {
            return Err(self.describe_running_change());
        };
        if self.is_draining() || self.successor_pid() != 0 {
            return Err(STOPPING_ERROR.to_owned());
        }
        self.is_upgrading.store(true, Ordering::Relaxed);
        let result = match self.wait_for_predecessor_exit().await {
            Ok(()) => self.try_upgrade(binary).await,
            Err(error) => Err(error),
        };
        self.is_upgrading.store(false, Ordering::Relaxed);
        match &result {
            Ok(follows) => {
                log::info!("upgrade: {follows}");
                self.stop();
            }
            Err(error) if self.is_draining() => log::warn!("upgrade: aborted: {error}"),
            Err(error) => log::error!("upgrade: failed, this server continues to serve\n{error}"),
        }
        result.map(|follows| follows.to_string())
    }

    /// The change that keeps a reload or an upgrade from beginning.
    pub(super) fn describe_running_change(&self) -> String {
        match self.is_upgrading.load(Ordering::Relaxed) {
            true => "an upgrade is in progress".to_owned(),
            false => "a reload is in progress".to_owned(),
        }
    }

    /// The process that serves in place of this one, or 0.
    pub(super) fn successor_pid(&self) -> u32 {
        self.successor_pid.load(Ordering::Relaxed)
    }

    /// Waits until the previous server has exited. It adopts orphans and kills them when it exits;
    /// if this server exited before it, the next server would be one of them.
    async fn wait_for_predecessor_exit(&self) -> Result<(), String> {
        let Some(old) = self.predecessor else {
            return Ok(());
        };
        let is_there = || std::os::unix::process::parent_id() == old;
        if is_there() {
            log::info!("upgrade: waiting for the previous server to exit (pid={old})");
            self.hurry_predecessor();
        }
        let deadline = clock::now()
            + self.live_state().config.server.shutdown_timeout
            + PREDECESSOR_TIMEOUT_SLACK;
        while is_there() {
            if self.is_draining() {
                return Err(STOPPING_ERROR.to_owned());
            }
            if clock::now() > deadline {
                return Err(format!(
                    "process {old}, the previous server, still finishes its requests"
                ));
            }
            clock::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until the previous server has exited, if it was asked to hurry.
    pub(super) async fn wait_for_hurried_predecessor(&self) {
        let is_there = || Some(std::os::unix::process::parent_id()) == self.predecessor;
        while self.predecessor_hurried.load(Ordering::Relaxed) && is_there() {
            clock::sleep(POLL_INTERVAL).await;
        }
    }

    /// Asks the previous server, if it still finishes requests, to take no longer than for a stop.
    /// Only once: a second request would stop it at once.
    pub(super) fn hurry_predecessor(&self) {
        // Before that the previous server is the one that serves.
        let Some(old) = self
            .predecessor
            .filter(|_| self.is_serving.load(Ordering::Relaxed))
        else {
            return;
        };
        if self.predecessor_hurried.swap(true, Ordering::Relaxed) {
            return;
        }
        match SignalTarget::to_predecessor(old).map(|way| way.map(|way| way.request_stop())) {
            Ok(Some(Ok(()))) => log::info!("upgrade: previous server asked to stop (pid={old})"),
            Ok(None) => {}
            Ok(Some(Err(error))) | Err(error) => {
                log::warn!("upgrade: cannot signal the previous server: {error} (pid={old})");
            }
        }
    }

    async fn try_upgrade(
        self: &Arc<Self>,
        binary: Option<PathBuf>,
    ) -> Result<UpgradeOutcome, String> {
        if std::process::id() == 1 {
            return Err(
                "this is process 1: its exit would end the container. Replace the container in \
                 place of the program"
                    .to_owned(),
            );
        }
        let (patience, pool) = {
            let live = self.live_state();
            let patience = reload::max_boot_time(&live.config) + BOOT_TIMEOUT_SLACK;
            (patience, default_pool(&live.components.pools))
        };
        let deadline = clock::now() + patience;
        let (ours, theirs) = fd_packets::packet_pair().map_err(|error| error.to_string())?;
        let line = UpgradeChannel::new(ours).map_err(|error| error.to_string())?;
        let options = &self.options;
        let (program, dir) = (&options.program_path, &options.start_dir);
        let command = successor_command(program, dir, &options.manager);
        let mut launch = SuccessorSpec {
            command,
            inherited_fd: (UPGRADE_FD_VAR.into(), theirs),
        };
        let launcher = Arc::clone(&self.options.launcher);
        let started = pool.run(move || {
            if let Some(binary) = binary {
                // The launcher checks which users can have put the file there.
                launch.command.program = binary;
            }
            let what = {
                let CommandLine { program, dir, .. } = &launch.command;
                format!("{} in {}", program.display(), dir.display())
            };
            let started = launcher.launch_successor(launch);
            started.map_err(|error| format!("cannot start {what}: {error}"))
        });
        let mut new = started.await.map_err(|error| error.to_string())??;
        let pid = new.pid;
        log::info!("upgrade: new server starting (pid={pid})");
        let (tail, silent) = self.copy_successor_output(&new);
        let taking_over = async {
            let (transfer, hub) = self.prepare_hub_transfer()?;
            let taken = tokio::select! {
                taken = self.hand_over_and_wait_ready(&line, hub, deadline) => taken?,
                () = self.edge.drain.wait_until_begun() => return Err(STOPPING_ERROR.to_owned()),
            };
            // The last moment to stop alone: from `go` on both serve.
            if self.is_draining() {
                return Err(STOPPING_ERROR.to_owned());
            }
            let transfer = move_channels(transfer).await;
            let admin = self.let_successor_serve(&line).await?;
            Ok((taken, admin, transfer))
        };
        let led = tokio::select! {
            led = taking_over => led,
            () = process::wait_for_exit(&new.exit_fd) => Err("it ended".to_owned()),
        };
        let error = match led {
            Ok((taken, admin, transfer)) => {
                if let Some(transfer) = transfer {
                    transfer.hand_over_streams();
                    *self.hub_transfer() = Some(Arc::new(transfer));
                }
                // Only now, when nothing can fail any more, and before the new server notifies by
                // itself: the manager accepts messages of the main process only.
                self.options.manager.notify_main_pid(pid);
                // Older versions do not wait for this message.
                let _ = line.send(&UpgradeMessage::ManagerNotified, None).await;
                return Ok(self.become_predecessor(new, &taken, admin));
            }
            Err(error) => error,
        };
        // An exit of its own explains more than the error that it caused here.
        let last = clock::now() + OUTPUT_TIMEOUT;
        let exit = clock::timeout_at(last, process::wait_for_exit(&new.exit_fd)).await;
        let exit = exit.and_then(|()| new.try_exit().ok().flatten());
        let why = match exit {
            Some(exit) => format!("the new server ended with {exit}"),
            None => format!("the new server was killed: {error}"),
        };
        // Kills the processes that it has left behind, too.
        let _ = pool.run(move || new.kill()).await;
        // Closed last: the new server must not take a closed channel for the end of this process.
        drop(line);
        let _ = clock::timeout(OUTPUT_TIMEOUT, silent).await;
        let why = tail.append_to(&why);
        Err(match tail.contains(UNKNOWN_HUB_ERROR) {
            true => format!("{why}\n{OLDER_VERSION_HINT}"),
            false => why,
        })
    }

    /// Copies the new server's output to the log and keeps its end; the receiver completes when the
    /// output ends.
    fn copy_successor_output(&self, new: &Successor) -> (OutputTail, oneshot::Receiver<()>) {
        let (tail, log) = (OutputTail::default(), self.options.log.clone());
        let (done, silent) = oneshot::channel();
        let kept = tail.clone();
        if let Ok(stderr) = new.stderr.try_clone() {
            loops::spawn_here(async move {
                let write = |line: &str| {
                    log.write(format!("{line}\n").into_bytes());
                    kept.push(line);
                };
                process::read_output(stderr, write, |_| {}).await;
                // The receiver may be gone.
                let _ = done.send(());
            });
        }
        (tail, silent)
    }

    /// Hands everything over and waits until the new server is ready; returns the addresses that it
    /// uses.
    async fn hand_over_and_wait_ready(
        &self,
        line: &UpgradeChannel,
        hub: OwnedFd,
        deadline: std::time::Instant,
    ) -> Result<Vec<ListenAddr>, String> {
        self.send_listeners(line).await?;
        line.send(&UpgradeMessage::Hub, Some(hub.as_fd())).await?;
        line.send(&UpgradeMessage::End, None).await?;
        match clock::timeout_at(deadline, line.receive()).await {
            Some(Ok(UpgradeMessage::Ready(taken))) => Ok(taken
                .into_iter()
                .map(|AddressText(address)| address)
                .collect()),
            Some(Ok(other)) => Err(format!("it sent {other:?} instead of Ready")),
            Some(Err(error)) => Err(error),
            None => Err("it did not become ready in time".to_owned()),
        }
    }

    /// Lets the new server accept; returns its admin address.
    async fn let_successor_serve(
        &self,
        line: &UpgradeChannel,
    ) -> Result<Option<ListenAddr>, String> {
        line.send(&UpgradeMessage::Go, None).await?;
        match clock::timeout(REPLY_TIMEOUT, line.receive()).await {
            Some(Ok(UpgradeMessage::Serving(admin))) => {
                Ok(admin.map(|AddressText(address)| address))
            }
            _ => Err("it was ready but did not begin to serve".to_owned()),
        }
    }

    /// Sends the sockets of every listener, and standard error.
    async fn send_listeners(&self, line: &UpgradeChannel) -> Result<(), String> {
        let listeners = {
            let live = self.live_state();
            let messages = live.listeners.iter().enumerate().map(|(number, listener)| {
                let message = UpgradeMessage::Socket {
                    listener: number,
                    role: listener.role,
                    is_lent: listener.is_borrowed,
                    wanted: AddressText(listener.configured_address.clone()),
                };
                Ok((message, listener.sockets_for_successor()?))
            });
            messages.collect::<std::io::Result<Vec<_>>>()
        };
        let listeners = listeners.map_err(|error| error.to_string())?;
        line.send(&UpgradeMessage::HELLO, None).await?;
        for (message, sockets) in &listeners {
            for socket in sockets {
                line.send(message, Some(socket.as_fd())).await?;
            }
        }
        let sizes: Vec<_> = {
            let live = self.live_state();
            let apps = live.components.apps.iter();
            let size = |(name, app): (&String, &Arc<App>)| {
                let AppSize { processes, threads } = app.current_size();
                UpgradeMessage::AppSize {
                    name: name.clone(),
                    processes,
                    threads,
                }
            };
            apps.map(size).collect()
        };
        for size in &sizes {
            line.send(size, None).await?;
        }
        if let Some(digest) = self.token_digest {
            line.send(&UpgradeMessage::AdminTokenDigest(digest), None)
                .await?;
        }
        let secret = PublishSecret(*self.hub_service.publish_keys.secret());
        line.send(&UpgradeMessage::PublishSecret(secret), None)
            .await?;
        let keys = SecretBytes(self.tls.tickets().export().to_vec());
        line.send(&UpgradeMessage::TicketKeys(keys), None).await?;
        for message in self.traffic_messages() {
            line.send(&message, None).await?;
        }
        if let Some(file) = &self.options.pid_file {
            let message = UpgradeMessage::PidFile(file.path().to_owned());
            line.send(&message, Some(file.as_fd())).await?;
        }
        line.send(&UpgradeMessage::Stderr, Some(std::io::stderr().as_fd()))
            .await
    }

    /// The pauses and the maintenance, which the new server keeps.
    fn traffic_messages(&self) -> Vec<UpgradeMessage> {
        let components = self.live_state().components.clone();
        let pauses = components.pauses.pauses().into_iter();
        let pauses = pauses.map(|(name, remaining)| UpgradeMessage::Pause {
            is_app: matches!(name, BackEndName::App(_)),
            name: name.name().to_owned(),
            remaining_millis: u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
        });
        let rules = components.maintenance.snapshot().rules.into_iter();
        pauses
            .chain(rules.map(UpgradeMessage::Maintenance))
            .collect()
    }

    /// The transfer of the hub, and the new server's end of its socket.
    fn prepare_hub_transfer(&self) -> Result<(HubTransfer, OwnedFd), String> {
        let started = fd_packets::packet_pair().and_then(|(ours, theirs)| {
            let transfer = self.hub_service.hub.transfer_to(ours)?;
            Ok((transfer, theirs))
        });
        started.map_err(|error| format!("the hub's socket: {error}"))
    }

    pub(super) fn hub_transfer(&self) -> MutexGuard<'_, Option<Arc<HubTransfer>>> {
        self.hub_transfer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `new` the server. Resources that it needs exclusively are released at once; the rest
    /// ends as at any stop.
    fn become_predecessor(
        &self,
        new: Successor,
        taken: &[ListenAddr],
        admin: Option<ListenAddr>,
    ) -> UpgradeOutcome {
        let pid = new.pid;
        self.live_state().components.pauses.leave_to_successor();
        match new.signal_target() {
            Ok(reach) => drop(self.successor_channel.set(reach)),
            Err(error) => log::warn!("upgrade: cannot notify the new server: {error} (pid={pid})"),
        }
        self.successor_pid.store(pid, Ordering::Relaxed);
        if self.is_draining() {
            // The stop was requested while both servers ran.
            self.forward_signal("SIGTERM", SignalTarget::request_stop);
        }
        loops::spawn_here(log_successor_exit(new));
        let mut live = self.live_state();
        let before = live.listener(ListenerRole::Admin).map(Listener::address);
        for listener in &mut live.listeners {
            // The file of a Unix socket stays for the new server.
            listener.is_borrowed |= taken.contains(&listener.configured_address);
        }
        // Only one store uses a directory: the new server's waits for this one.
        for cache in live.components.caches.values() {
            cache.stop();
        }
        UpgradeOutcome {
            pid,
            new_admin: (admin != before).then_some(admin),
        }
    }

    pub(super) fn forward_signal(
        &self,
        what: &str,
        send: impl Fn(&SignalTarget) -> std::io::Result<()>,
    ) {
        let successor_pid = self.successor_pid();
        match self.successor_channel.get().map(send) {
            Some(Ok(())) => {
                log::info!("upgrade: {what} forwarded to the new server (pid={successor_pid})");
            }
            Some(Err(error)) => log::error!(
                "upgrade: cannot forward {what} to the new server: {error} (pid={successor_pid})"
            ),
            None => {}
        }
    }
}

/// Moves the hub's channels before both servers accept; without that, streams end as at any stop.
async fn move_channels(mut transfer: HubTransfer) -> Option<HubTransfer> {
    match transfer.hand_over_channels().await {
        Ok(()) => Some(transfer),
        Err(error) => {
            log::warn!("upgrade: held streams will end, since the hub does not move: {error}");
            None
        }
    }
}

/// Logs the exit of the successor, if it happens before this process ends.
async fn log_successor_exit(mut new: Successor) {
    process::wait_for_exit(&new.exit_fd).await;
    if let Ok(Some(exit)) = new.try_exit() {
        log::error!(
            "upgrade: the new server (process {}) exited: {exit}",
            new.pid
        );
    }
}

#[derive(Debug, Clone, Default)]
struct OutputTail(Arc<Mutex<VecDeque<String>>>);

impl OutputTail {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == MAX_TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    fn contains(&self, words: &str) -> bool {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().any(|line| line.contains(words))
    }

    /// Appends these lines to a sentence.
    fn append_to(&self, sentence: &str) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines.iter().map(|line| format!("\n{line}"));
        format!("{sentence}{}", lines.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_repeats_the_last_lines_only() {
        let tail = OutputTail::default();
        for number in 0..MAX_TAIL_LINES + 2 {
            tail.push(&number.to_string());
        }
        let text = tail.append_to("it ended");
        assert!(text.starts_with("it ended\n2\n3\n"), "{text}");
        assert_eq!(text.lines().count(), MAX_TAIL_LINES + 1);
    }
}
