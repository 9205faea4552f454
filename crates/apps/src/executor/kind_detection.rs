//! Whether an application is WSGI or ASGI, if its configuration does not say.
//!
//! The first process that has loaded the code tells with READY: a template before it has forked a
//! worker, a worker of its own while it has sockets for both. The executor uses that from then on,
//! and requests that wait for it (`shared::worker_model`) are encoded accordingly.
//!
//! # Invariants
//! - The kind changes once at most, before any worker has been admitted.
//! - Code that is of the other kind later does not boot: requests in the queue have the form of the
//!   first.

use penstock_config::{AppKind, Concurrency};

use super::Executor;

impl Executor {
    /// Whether the next process has to find out what it serves.
    pub(super) fn is_kind_unknown(&self) -> bool {
        self.config.kind_is_guess && self.shared.model.get().is_none()
    }

    /// Records the kind that a process has found its application to be.
    ///
    /// # Errors
    /// Others serve as the other kind already.
    pub(super) fn record_detected_kind(
        &mut self,
        pid: u32,
        found: Option<AppKind>,
    ) -> Result<(), String> {
        let guess = self.config.kind;
        let found = found.filter(|_| self.config.kind_is_guess).unwrap_or(guess);
        if !self.is_kind_unknown() {
            return match found == guess {
                true => Ok(()),
                false => Err(format!(
                    "the application is {found} now and was {guess}: start the server anew, or say \
                     `kind = \"{found}\"` (--kind {found})"
                )),
            };
        }
        let (name, entry) = (&self.shared.name, &self.config.entry);
        if found != guess {
            self.config.kind = found;
            self.config.concurrency = Concurrency::default_for(found);
            log::info!(
                "{name}[{pid}]: {entry} is {found}, not {guess} as its source looks: it is served as \
                 {found}"
            );
        }
        if found == AppKind::Asgi {
            if self.config.threads > 1 {
                let threads = self.config.threads;
                log::warn!("{name}: threads = {threads} has no effect: ASGI runs in one thread");
            }
            (self.config.min_threads, self.config.threads) = (1, 1);
            self.config.io_threads = 0;
        }
        self.shared.model.set_from_config(&self.config);
        Ok(())
    }
}
