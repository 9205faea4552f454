//! Daemonizing, and changes of the environment.
//!
//! Used by `penstock` at the very start: both require that no other thread exists, and fail
//! otherwise.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::PipeFlags;

/// The two sides of a fork.
#[derive(Debug)]
pub enum ForkSide {
    /// The original process.
    Parent(ReadinessReceiver),
    /// The new process: it leads a session without a terminal.
    Child(ReadinessSender),
}

/// The parent's side: receives the child's result.
#[derive(Debug)]
pub struct ReadinessReceiver {
    pipe: OwnedFd,
    child: rustix::process::Pid,
}

impl ReadinessReceiver {
    /// Blocks until the child reports that it is ready, or has ended: a failing child writes why to
    /// its standard error, which our caller reads until we end.
    ///
    /// # Errors
    /// The child's message; empty when it ended without one.
    pub fn wait(self) -> Result<(), String> {
        let mut text = String::new();
        // An end without a message means as much as an error.
        let _ = std::fs::File::from(self.pipe).read_to_string(&mut text);
        if text.starts_with("ready") {
            return Ok(());
        }
        // It has closed the pipe and finishes. An error: it has exited.
        let _ = rustix::process::waitpid(Some(self.child), rustix::process::WaitOptions::empty());
        Err(text)
    }
}

/// The child's side; dropping it unused reports a failure.
#[derive(Debug)]
pub struct ReadinessSender(OwnedFd);

impl ReadinessSender {
    /// Reports success to the parent, which exits with 0.
    pub fn report_ready(self) {
        self.send("ready");
    }

    /// Reports a failure to the parent.
    pub fn report_failure(self, why: &str) {
        self.send(why);
    }

    fn send(self, text: &str) {
        // The parent may have exited; a pipe accepts up to a page at once.
        let _ = std::fs::File::from(self.0).write_all(text.as_bytes());
    }
}

/// Forks the process.
///
/// # Errors
/// When other threads exist, or those of `pipe`, `fork` and `setsid`.
pub fn fork() -> io::Result<ForkSide> {
    check_single_threaded()?;
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    #[expect(unsafe_code, reason = "there is no safe fork")]
    // SAFETY: this is the only thread, so that no lock is held and no state half written in the
    // child.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            rustix::process::setsid()?;
            Ok(ForkSide::Child(ReadinessSender(write)))
        }
        pid => {
            let child = rustix::process::Pid::from_raw(pid);
            let child = child.ok_or_else(|| io::Error::other("no process id received"))?;
            // The child alone has the other end.
            drop(write);
            Ok(ForkSide::Parent(ReadinessReceiver { pipe: read, child }))
        }
    }
}

/// Removes variables from the environment, so that no started program gets them; returns their
/// values.
pub fn take_env_vars(names: &[&str]) -> io::Result<Vec<Option<std::ffi::OsString>>> {
    check_single_threaded()?;
    let take = |name: &&str| {
        let value = std::env::var_os(name);
        #[expect(unsafe_code, reason = "the environment belongs to all threads")]
        // SAFETY: this is the only thread.
        unsafe {
            std::env::remove_var(name);
        }
        value
    };
    Ok(names.iter().map(take).collect())
}

/// Sets environment variables for programs that are started.
pub fn set_env_vars(variables: &[(&str, String)]) -> io::Result<()> {
    check_single_threaded()?;
    for (name, value) in variables {
        #[expect(
            unsafe_code,
            clippy::disallowed_methods,
            reason = "the environment belongs to all threads"
        )]
        // SAFETY: this is the only thread.
        unsafe {
            std::env::set_var(name, value);
        }
    }
    Ok(())
}

pub(crate) fn check_single_threaded() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task") {
        Ok(threads) => match threads.count() {
            1 => Ok(()),
            _ => Err(io::Error::other("other threads are already running")),
        },
        // Without /proc: the caller is the start of the program, before its first thread.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Replaces the standard streams: no input, and output to `out` or nowhere.
pub fn detach_from_terminal(out: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    redirect_output(out.unwrap_or_else(|| null.as_fd()))
}

/// Redirects standard output and standard error to `out`.
pub fn redirect_output(out: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stdout(out)?;
    redirect_stderr(out)
}

/// Redirects standard error to `out`.
pub fn redirect_stderr(out: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forking_is_refused_beside_other_threads() {
        // The test runner is another thread.
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv());
        assert!(fork().is_err());
        assert!(take_env_vars(&["PATH"]).is_err());
        drop(stop);
        assert!(thread.join().unwrap().is_err());
        assert!(std::env::var_os("PATH").is_some());
    }
}
