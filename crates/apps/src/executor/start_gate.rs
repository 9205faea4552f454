//! What must have happened before the first process of an application starts: its `release_command`
//! has succeeded; of a job, its application serves.
//!
//! # Invariants
//! - A failed attempt is shown as code that does not boot, and repeated with growing delays.
//! - An application that ends in the meantime waits for nothing but the end of a run in progress.

use std::sync::Arc;
use std::time::Duration;

use penstock_runtime::clock;
use tokio::sync::{Notify, mpsc, watch};

use super::setup::BootStatus;
use super::{AppCommand, Executor};
use crate::release::ReleaseCommand;

/// The delay after the first failure; each later one is twice as long, up to the last.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LAST_DELAY: Duration = Duration::from_secs(60);

/// What is waited for.
#[derive(Debug, Default)]
pub(crate) struct StartGate {
    pub(crate) release: Option<Arc<ReleaseCommand>>,
    /// The first start of the application that it belongs to.
    pub(crate) owner: Option<watch::Receiver<BootStatus>>,
}

/// How an attempt has ended.
enum Attempt {
    Passed,
    Failed(String),
    /// It was ended before.
    Stopped,
}

impl StartGate {
    async fn attempt(&mut self, delay: Duration, stop: impl Future<Output = ()>) -> Attempt {
        let mut stop = std::pin::pin!(stop);
        if let Some(owner) = &mut self.owner {
            let serves = owner.wait_for(|boot| matches!(boot, BootStatus::Ready { .. }));
            tokio::select! {
                serves = serves => if serves.is_err() {
                    return Attempt::Stopped;
                },
                () = &mut stop => return Attempt::Stopped,
            }
        }
        let Some(release) = &self.release else {
            return Attempt::Passed;
        };
        tokio::select! {
            () = clock::sleep(delay) => {}
            () = &mut stop => return Attempt::Stopped,
        }
        match release.run(stop).await {
            Ok(()) => Attempt::Passed,
            Err(report) => Attempt::Failed(report),
        }
    }
}

impl Executor {
    /// Waits until the first process may start. False if the application is to end before.
    pub(super) async fn pass_start_gate(
        &mut self,
        mut gate: StartGate,
        commands: &mut mpsc::Receiver<AppCommand>,
    ) -> bool {
        let mut delay = Duration::ZERO;
        loop {
            let stop = Notify::new();
            let mut ends = false;
            let attempt = {
                let mut attempt = std::pin::pin!(gate.attempt(delay, stop.notified()));
                loop {
                    tokio::select! {
                        ended = &mut attempt => break ended,
                        command = commands.recv(), if !ends => match command {
                            Some(AppCommand::Restart(done)) => {
                                // Its release command has succeeded.
                                self.queued_restarts.push(done);
                                stop.notify_one();
                            }
                            // The next attempt says the same.
                            Some(AppCommand::ReportFailedRelease(_)) => {}
                            Some(AppCommand::Drain { done, .. }) => {
                                self.drain_requesters.push(done);
                                ends = true;
                                stop.notify_one();
                            }
                            None => {
                                ends = true;
                                stop.notify_one();
                            }
                        },
                    }
                }
            };
            if ends {
                return false;
            }
            match attempt {
                Attempt::Passed => return true,
                Attempt::Failed(report) if self.queued_restarts.is_empty() => {
                    delay = (delay * 2).clamp(FIRST_DELAY, LAST_DELAY);
                    self.show_failed_release(&report, delay);
                }
                Attempt::Failed(_) | Attempt::Stopped => return !self.queued_restarts.is_empty(),
            }
        }
    }
}
