//! A process that leaves its terminal, and the variables it was started with.
//!
//! Used by `penstock` at the very start: both need that no other thread exists, and refuse otherwise.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::PipeFlags;

/// Which of the two a fork made of the caller.
#[derive(Debug)]
pub enum Forked {
    /// The process that was there before.
    Parent(ReadinessReceiver),
    /// The new one: it leads a session without a terminal.
    Child(ReadinessSender),
}

/// The parent's side: what became of the child.
#[derive(Debug)]
pub struct ReadinessReceiver {
    pipe: OwnedFd,
    child: rustix::process::Pid,
}

impl ReadinessReceiver {
    /// Blocks until the child says that it is ready, or has ended: a child that fails says why on its
    /// standard error, which whoever started us reads until we end.
    ///
    /// # Errors
    /// What the child said of its failure; empty when it ended without a word.
    pub fn wait(self) -> Result<(), String> {
        let mut text = String::new();
        // An end without a word says as much as an error.
        let _ = std::fs::File::from(self.pipe).read_to_string(&mut text);
        if text.starts_with("ready") {
            return Ok(());
        }
        // It gave up its word first, and finishes what it began. An error: it is gone.
        let _ = rustix::process::waitpid(Some(self.child), rustix::process::WaitOptions::empty());
        Err(text)
    }
}

/// The child's side; dropped unsaid it is a failure.
#[derive(Debug)]
pub struct ReadinessSender(OwnedFd);

impl ReadinessSender {
    /// Tells the parent that all is well: it exits with 0.
    pub fn ready(self) {
        self.send("ready");
    }

    /// Tells the parent why not.
    pub fn failed(self, why: &str) {
        self.send(why);
    }

    fn send(self, text: &str) {
        // The parent may be gone; a pipe takes what fits in one page at once.
        let _ = std::fs::File::from(self.0).write_all(text.as_bytes());
    }
}

/// Splits the process in two.
///
/// # Errors
/// When other threads exist, or what `pipe`, `fork` and `setsid` say.
pub fn fork() -> io::Result<Forked> {
    check_single_threaded()?;
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    #[expect(unsafe_code, reason = "there is no safe fork")]
    // SAFETY: this is the only thread, so that no lock is held and no state half written in the child.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            rustix::process::setsid()?;
            Ok(Forked::Child(ReadinessSender(write)))
        }
        pid => {
            let child = rustix::process::Pid::from_raw(pid);
            let child = child.ok_or_else(|| io::Error::other("a child without a number"))?;
            // The child alone has the other end.
            drop(write);
            Ok(Forked::Parent(ReadinessReceiver { pipe: read, child }))
        }
    }
}

/// Takes variables out of the environment, so that no program that is started gets them; gives their
/// values.
///
/// # Errors
/// When other threads exist.
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

/// Puts variables into the environment, for programs that are started.
///
/// # Errors
/// When other threads exist.
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

/// That this is the only thread.
pub(crate) fn check_single_threaded() -> io::Result<()> {
    match std::fs::read_dir("/proc/self/task") {
        Ok(threads) => match threads.count() {
            1 => Ok(()),
            _ => Err(io::Error::other("other threads run already")),
        },
        // No /proc to ask: who calls this is the start of the program, before its first thread.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Gives the process other standard streams: no input, and output to `out` or nowhere.
///
/// # Errors
/// What `open` and `dup2` say.
pub fn detach_from_terminal(out: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    redirect_output(out.unwrap_or_else(|| null.as_fd()))
}

/// Lets standard output and standard error go to `out`.
///
/// # Errors
/// What `dup2` says.
pub fn redirect_output(out: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stdout(out)?;
    redirect_stderr(out)
}

/// Lets standard error go to `out`.
///
/// # Errors
/// What `dup2` says.
pub fn redirect_stderr(out: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forking_is_refused_beside_other_threads() {
        // The tests' own runner is a thread of its own.
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv());
        assert!(fork().is_err());
        assert!(take_env_vars(&["PATH"]).is_err());
        drop(stop);
        assert!(thread.join().unwrap().is_err());
        assert!(std::env::var_os("PATH").is_some());
    }
}
