//! Process priorities: a process that boots yields the processor to those that serve.
//!
//! Used by `apps`' executor, on workers and templates of new code: loading it uses as much of the
//! machine as it can get, and requests should not be delayed by that.
//!
//! # Invariants
//! - A priority is lowered only if it can be restored, which requires a limit that only root may
//!   set ([`allow_priority_restore`]) and that children inherit.

use std::io;

use rustix::process::{
    Resource, Rlimit, getpriority_process, setpriority_pgrp, setpriority_process, setrlimit,
};

use super::ProcessHandle;
use crate::resource_limits::read_limit;

/// How much lower than ours: a tenth of our share where both want the processor, `nice`'s own step.
const PRIORITY_STEP: i32 = 10;

const LOWEST_PRIORITY: i32 = 19;

/// Allows processes that are started later to return to the priority of this one; returns whether
/// they may. Call it before switching users.
pub fn allow_priority_restore() -> bool {
    let (Ok(ours), Ok(known)) = (own_priority(), read_limit(Resource::Nice)) else {
        return false;
    };
    let needed = nice_limit_for(ours);
    if known.current.is_none_or(|current| current >= needed) {
        return true;
    }
    let raised = Rlimit {
        current: Some(needed),
        maximum: known.maximum.map(|maximum| maximum.max(needed)),
    };
    setrlimit(Resource::Nice, raised).is_ok()
}

/// Whether a child of this process may return to its priority (`setrlimit(2)`, `RLIMIT_NICE`).
fn can_restore_priority(ours: i32) -> bool {
    let known = read_limit(Resource::Nice);
    known.is_ok_and(|known| {
        known
            .current
            .is_none_or(|current| current >= nice_limit_for(ours))
    })
}

/// The limit with which a process may have this priority: 20 is for 0, and one more for each step
/// up.
fn nice_limit_for(priority: i32) -> u64 {
    u64::try_from(20 - priority).unwrap_or(0)
}

fn own_priority() -> io::Result<i32> {
    Ok(getpriority_process(None)?)
}

impl ProcessHandle {
    /// Lowers its priority until [`ProcessHandle::restore_priority`]; for a process that was just
    /// started. Returns `false` and changes nothing if it could not be restored.
    pub fn lower_priority(&self) -> io::Result<bool> {
        let ours = own_priority()?;
        if ours >= LOWEST_PRIORITY || !can_restore_priority(ours) {
            return Ok(false);
        }
        let lower = (ours + PRIORITY_STEP).min(LOWEST_PRIORITY);
        self.run_unless_reaped(|pid| Ok(setpriority_process(Some(pid), lower)?))?;
        Ok(true)
    }

    /// Gives the process, and all processes in its group, our own priority.
    ///
    /// # Errors
    /// When it is gone, or may not have it.
    pub fn restore_priority(&self) -> io::Result<()> {
        let ours = own_priority()?;
        self.run_unless_reaped(|pid| Ok(setpriority_pgrp(Some(pid), ours)?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{shell, wait};
    use super::super::{ProcessExit, to_pid};
    use super::*;

    #[test]
    fn a_lowered_priority_is_restored_if_allowed() {
        let may = allow_priority_restore();
        let mut started = shell("sleep 60", Vec::new());
        let (handle, ours) = (started.handle(), own_priority().unwrap());
        assert_eq!(handle.lower_priority().unwrap(), may);
        let lower = if may {
            (ours + PRIORITY_STEP).min(LOWEST_PRIORITY)
        } else {
            ours
        };
        let process = to_pid(started.pid).unwrap();
        assert_eq!(getpriority_process(Some(process)).unwrap(), lower);
        handle.restore_priority().unwrap();
        assert_eq!(getpriority_process(Some(process)).unwrap(), ours);
        handle.kill().unwrap();
        assert_eq!(wait(&mut started), ProcessExit::Signal(9));
        assert!(handle.lower_priority().is_err() == may && handle.restore_priority().is_err());
    }

    #[test]
    fn each_priority_has_its_nice_limit() {
        assert_eq!(
            (nice_limit_for(0), nice_limit_for(19), nice_limit_for(-20)),
            (20, 1, 40)
        );
    }
}
