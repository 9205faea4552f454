//! The bench's end of a keeper: starts it, receives its messages, and asks it to stop.
//!
//! `supervised` has one per deployment, `testbed` one per set-up command.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::keeper_protocol::{CommandExit, KeeperMessage, KeeperOrder, STOP_REQUEST};
use super::{DeployError, resource_usage, send_signal};
use crate::child_link::ChildLink;

/// More than a keeper needs for its own timeouts.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct KeeperLink {
    keeper: ChildLink,
    messages: Receiver<KeeperMessage>,
}

impl KeeperLink {
    /// Starts a keeper and sends it an order.
    pub(super) fn start(program: &Path, order: &KeeperOrder) -> Result<Self, DeployError> {
        let (sender, messages) = sync_channel(64);
        let forward = move |message: Option<_>| message.is_some_and(|it| sender.send(it).is_ok());
        let keeper = ChildLink::start(program, "keeper", order, forward);
        Ok(Self {
            keeper: keeper.map_err(|error| DeployError::Keeper(error.to_string()))?,
            messages,
        })
    }

    /// The keeper's process.
    pub(super) fn pid(&self) -> u32 {
        self.keeper.pid()
    }

    /// The next end of a command, if one ends within a time.
    ///
    /// # Errors
    /// The keeper failed or ended.
    pub(super) fn next_exit(&self, within: Duration) -> Result<Option<CommandExit>, DeployError> {
        match self.messages.recv_timeout(within) {
            Ok(KeeperMessage::Exited(exit)) => Ok(Some(exit)),
            Ok(KeeperMessage::Failed(why)) => Err(DeployError::Keeper(why)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(DeployError::Keeper("it ended".to_owned())),
        }
    }

    /// Whether it was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.keeper.is_closed()
    }

    /// Ends everything below the keeper and the keeper; returns whether it could do its work.
    /// Further calls do nothing.
    pub(super) fn stop(&mut self) -> bool {
        if self.is_stopped() {
            return true;
        }
        // Left open, so that the keeper can distinguish this from the end of the bench.
        let _ = self.keeper.send(&STOP_REQUEST);
        let deadline = Instant::now() + STOP_TIMEOUT;
        let is_gone = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left) {
                Ok(_) => {}
                Err(error) => break error == RecvTimeoutError::Disconnected,
            }
        };
        if !is_gone {
            // Its descendants first.
            for pid in resource_usage::descendants(self.pid()) {
                send_signal(pid, Signal::KILL);
            }
            self.keeper.kill();
        }
        let ended = self.keeper.wait();
        ended.is_some_and(|status| status.signal().is_none())
    }
}

impl Drop for KeeperLink {
    fn drop(&mut self) {
        self.stop();
    }
}
