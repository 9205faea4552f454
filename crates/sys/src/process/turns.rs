//! Whose turn it is: a process that boots beside one that serves goes last.
//!
//! Used by `apps`' executor, on workers and templates of new code: loading it takes as much of the machine as
//! it can get, and requests should not feel that. What must stay true: no process is put last that could not
//! be brought back, which takes a limit that only root may set for itself ([`keep_turns`]), and its children
//! inherit.

use std::io;

use rustix::process::{
    Resource, Rlimit, getpriority_process, setpriority_pgrp, setpriority_process, setrlimit,
};

use super::Handle;
use crate::resource_limits::read_limit;

/// How much lower than ours: a tenth of our share where both want the processor, `nice`'s own step.
const LOWER: i32 = 10;

/// The lowest there is.
const LOWEST: i32 = 19;

/// Sees to it that processes started from now on may come back to the priority of this one, if it may be seen
/// to; says whether they may. Before another user is assumed.
pub fn keep_turns() -> bool {
    let (Ok(ours), Ok(known)) = (ours(), read_limit(Resource::Nice)) else {
        return false;
    };
    let needed = limit_for(ours);
    if known.current.is_none_or(|current| current >= needed) {
        return true;
    }
    let raised = Rlimit {
        current: Some(needed),
        maximum: known.maximum.map(|maximum| maximum.max(needed)),
    };
    setrlimit(Resource::Nice, raised).is_ok()
}

/// Whether a child of this process may come back to its priority (`setrlimit(2)`, `RLIMIT_NICE`).
fn may_come_back(ours: i32) -> bool {
    let known = read_limit(Resource::Nice);
    known.is_ok_and(|known| {
        known
            .current
            .is_none_or(|current| current >= limit_for(ours))
    })
}

/// The limit with which a process may have this priority: 20 is for 0, and one more for each step up.
fn limit_for(priority: i32) -> u64 {
    u64::try_from(20 - priority).unwrap_or(0)
}

fn ours() -> io::Result<i32> {
    Ok(getpriority_process(None)?)
}

impl Handle {
    /// Lets all others go first, until [`Handle::take_turns`]; for a process that has only just been
    /// started. `false`: it could not be brought back, and keeps its priority.
    ///
    /// # Errors
    /// When it is gone.
    pub fn give_way(&self) -> io::Result<bool> {
        let ours = ours()?;
        if ours >= LOWEST || !may_come_back(ours) {
            return Ok(false);
        }
        let lower = (ours + LOWER).min(LOWEST);
        self.unless_reaped(|pid| Ok(setpriority_process(Some(pid), lower)?))?;
        Ok(true)
    }

    /// Gives the process, and all that it has started in its group, our own priority.
    ///
    /// # Errors
    /// When it is gone, or may not have it.
    pub fn take_turns(&self) -> io::Result<()> {
        let ours = ours()?;
        self.unless_reaped(|pid| Ok(setpriority_pgrp(Some(pid), ours)?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{shell, wait};
    use super::super::{Exit, as_pid};
    use super::*;

    #[test]
    fn a_process_that_gave_way_comes_back_if_it_may() {
        let may = keep_turns();
        let mut started = shell("sleep 60", Vec::new());
        let (handle, ours) = (started.handle(), ours().unwrap());
        assert_eq!(handle.give_way().unwrap(), may);
        let lower = if may {
            (ours + LOWER).min(LOWEST)
        } else {
            ours
        };
        let process = as_pid(started.pid).unwrap();
        assert_eq!(getpriority_process(Some(process)).unwrap(), lower);
        handle.take_turns().unwrap();
        assert_eq!(getpriority_process(Some(process)).unwrap(), ours);
        handle.kill().unwrap();
        assert_eq!(wait(&mut started), Exit::Signal(9));
        assert!(handle.give_way().is_err() == may && handle.take_turns().is_err());
    }

    #[test]
    fn each_priority_has_its_limit() {
        assert_eq!((limit_for(0), limit_for(19), limit_for(-20)), (20, 1, 40));
    }
}
