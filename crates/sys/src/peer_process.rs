//! The process at the other end of a Unix socket, and whether it descends from this one.
//!
//! `penstock` checks each connection to its control socket: an application, and any process it has
//! started, must not command the server that runs it.
//!
//! # Invariants
//! - A peer counts as no descendant only if each of its ancestors was seen, up to one that belongs
//!   to another user and is hidden. A peer that has exited or cannot be inspected is
//!   [`PeerOrigin::Unknown`], unless it is root's and hidden from a server that is not root.
//! - A process that an application has left behind is known by its mark (`resource_limits`),
//!   whatever has become of its parents and its server.
//! - Where the kernel has `SO_PEERPIDFD` (Linux 6.5), the inspected process is the peer and not
//!   another one that has reused its pid.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::resource_limits;
use crate::signals::{self, DescendantSender, Lineage, ProcessRoots, find_lineage};

/// A process that has connected to a Unix socket, as the kernel knew it then.
#[derive(Debug)]
pub struct PeerProcess {
    /// Its process id; `None` if it is in another pid namespace, where no descendant can be.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
    /// A handle on the process, where the kernel provides one.
    handle: PeerHandle,
}

#[derive(Debug)]
enum PeerHandle {
    Pidfd(OwnedFd),
    /// The kernel has no such handles.
    Unsupported,
    /// The process has been reaped.
    Reaped,
}

/// The origin of a peer process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerOrigin {
    /// It does not descend from this process, nor from the server before it.
    NotDescendant,
    /// It does.
    Descendant(DescendantSender),
    /// It does not, and comes from an application of another server, or of a killed one.
    Application,
    /// It has exited, or its ancestors cannot be seen.
    Unknown,
}

impl PeerProcess {
    /// Returns the process that has connected to this socket.
    ///
    /// # Errors
    /// Those of `getsockopt`, or that it is not a connected Unix socket.
    pub fn from_socket(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let (pid, uid) = peer_credentials(socket)?;
        Ok(Self {
            pid: u32::try_from(pid).ok().filter(|pid| *pid != 0),
            uid,
            handle: peer_pidfd(socket)?,
        })
    }

    /// Determines its origin; `predecessor` is the server before this one.
    #[must_use]
    pub fn origin(&self, predecessor: Option<u32>) -> PeerOrigin {
        let Some(pid) = self.pid else {
            return PeerOrigin::NotDescendant;
        };
        if matches!(self.handle, PeerHandle::Reaped) {
            return PeerOrigin::Unknown;
        }
        let us = std::process::id();
        let found = match find_lineage(pid, ProcessRoots::with_live_predecessor(us, predecessor)) {
            Lineage::Outside => match resource_limits::is_marked_as_application(pid) {
                Ok(false) => PeerOrigin::NotDescendant,
                Ok(true) => PeerOrigin::Application,
                Err(_) if self.is_hidden_root() => PeerOrigin::NotDescendant,
                Err(_) => PeerOrigin::Unknown,
            },
            Lineage::Unknown if self.is_hidden_root() => PeerOrigin::NotDescendant,
            Lineage::Unknown => PeerOrigin::Unknown,
            Lineage::Below { child, root } => {
                return PeerOrigin::Descendant(DescendantSender {
                    pid,
                    child,
                    is_of_predecessor: root != us,
                });
            }
        };
        // Checked last: while it runs, no other process has had its pid.
        match &self.handle {
            PeerHandle::Pidfd(process) if has_ended(process) => PeerOrigin::Unknown,
            _ => found,
        }
    }

    /// Whether it is root's and hidden from a server that is not (`hidepid` of /proc), though it
    /// runs. No application is root: the sandbox leads to no other user.
    fn is_hidden_root(&self) -> bool {
        let is_there = match (&self.handle, self.pid) {
            (PeerHandle::Pidfd(process), _) => !has_ended(process),
            (PeerHandle::Unsupported, Some(pid)) => signals::process_exists(pid),
            (PeerHandle::Unsupported, None) | (PeerHandle::Reaped, _) => false,
        };
        is_there && self.uid == 0 && !rustix::process::geteuid().is_root()
    }
}

/// The user that created this listening Unix socket.
pub fn listener_owner_uid(socket: BorrowedFd<'_>) -> io::Result<u32> {
    peer_credentials(socket).map(|(_, uid)| uid)
}

/// The process and the effective user at the other end; of a listening socket those that created
/// it.
fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<(libc::pid_t, u32)> {
    // Not by `rustix`, whose pids are never 0.
    let found = getsockopt(&socket, PeerCredentials)?;
    // A socket that is not a Unix socket has no peer that the kernel knows.
    if found.uid() == u32::MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok((found.pid(), found.uid()))
}

/// `SO_PEERPIDFD` of Linux, which the C library's bindings do not name on every architecture.
const PEER_PIDFD: libc::c_int = 77;

/// Gets a pidfd of the process at the other end.
fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<PeerHandle> {
    let mut found: libc::c_int = -1;
    #[expect(clippy::cast_possible_truncation, reason = "four bytes")]
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    #[expect(unsafe_code, reason = "no safe wrapper knows this option")]
    // SAFETY: the pointers are valid for the call, and the size is that of the number.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            PEER_PIDFD,
            (&raw mut found).cast(),
            &raw mut size,
        )
    };
    if done != 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            // Older than Linux 6.5; or a kernel that has this number for another option; or a
            // sandbox.
            Some(libc::ENOPROTOOPT | libc::EOPNOTSUPP | libc::EPERM | libc::ENOSYS) => {
                Ok(PeerHandle::Unsupported)
            }
            Some(libc::ESRCH | libc::EINVAL | libc::ENODATA) => Ok(PeerHandle::Reaped),
            _ => Err(error),
        };
    }
    if found < 0 {
        return Ok(PeerHandle::Unsupported);
    }
    #[expect(unsafe_code, reason = "a descriptor that the kernel has just made")]
    // SAFETY: it was opened for this call and has no other owner.
    let process = unsafe { OwnedFd::from_raw_fd(found) };
    Ok(PeerHandle::Pidfd(process))
}

/// Whether the process has ended, reaped or not (pidfd_open(2)).
fn has_ended(process: &OwnedFd) -> bool {
    let mut looked = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // If the check fails the process was not seen running.
    rustix::event::poll(&mut looked, Some(&now)).is_err() || !looked[0].revents().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Child, Command, Stdio};

    /// A socket in a separate directory.
    struct Place(std::path::PathBuf);

    impl Place {
        fn new(name: &str) -> (Self, UnixListener) {
            let name = format!("penstock-caller-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            let listener = UnixListener::bind(folder.join("s")).unwrap();
            (Self(folder), listener)
        }

        /// A shell that runs `script`, in which `$CALL` connects and waits until it is released.
        fn call(&self, script: &str) -> Child {
            let call = "import os, socket\n\
                        s = socket.socket(socket.AF_UNIX)\n\
                        s.connect(os.environ['PLACE'])\n\
                        s.recv(1)\n";
            let mut shell = Command::new("sh");
            shell
                .args(["-c", script])
                .env("PLACE", self.0.join("s"))
                .env("CALL", call)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            shell.spawn().unwrap()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn descendants_are_told_from_other_peers() {
        let (place, listener) = Place::new("inside");
        for script in [
            "exec python3 -c \"$CALL\"",
            "sh -c 'python3 -c \"$CALL\"; :'; :",
            "setsid sh -c 'python3 -c \"$CALL\"; :'; :",
        ] {
            let mut child = place.call(script);
            let (stream, _) = listener.accept().unwrap();
            let caller = PeerProcess::from_socket(stream.as_fd()).unwrap();
            let PeerOrigin::Descendant(sender) = caller.origin(None) else {
                panic!("{script}: {:?}", caller.origin(None));
            };
            assert_eq!(sender.child, child.id(), "{script}");
            assert_eq!(Some(sender.pid), caller.pid);
            assert!(!sender.is_of_predecessor);
            drop(stream);
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_reaped_peer_is_not_an_outsider() {
        let (place, listener) = Place::new("gone");
        let mut child = place.call("exec python3 -c \"$CALL\"");
        let (mut stream, _) = listener.accept().unwrap();
        let caller = PeerProcess::from_socket(stream.as_fd()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        assert_eq!(caller.origin(None), PeerOrigin::Unknown);
        // Nor when it had exited before the check.
        let caller = PeerProcess::from_socket(stream.as_fd()).unwrap();
        assert_eq!(caller.origin(None), PeerOrigin::Unknown);
    }

    #[test]
    fn peer_user_and_listener_owner_are_read() {
        let (place, listener) = Place::new("user");
        let ours = UnixStream::connect(place.0.join("s")).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let (uid, _) = crate::account::effective_ids();
        let caller = PeerProcess::from_socket(theirs.as_fd()).unwrap();
        assert_eq!((caller.pid, caller.uid), (Some(std::process::id()), uid));
        assert_eq!(
            caller.origin(None),
            PeerOrigin::NotDescendant,
            "this process itself"
        );
        assert_eq!(listener_owner_uid(listener.as_fd()).unwrap(), uid);
        drop(ours);
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(PeerProcess::from_socket(tcp.as_fd()).is_err());
    }
}
