//! Messages to the service manager: datagrams to the socket that it named (`sd_notify(3)`).
//!
//! Used by `penstock`. One datagram a call; nothing waits for the manager.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// The manager's socket.
#[derive(Debug)]
pub struct ServiceManager {
    socket: OwnedFd,
    address: SocketAddrUnix,
}

impl ServiceManager {
    /// Opens the socket of that name: a path, or an abstract name behind `@`.
    ///
    /// # Errors
    /// When it is neither, or too long.
    pub fn new(name: &str) -> io::Result<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
            None if name.starts_with('/') => SocketAddrUnix::new(name)?,
            None => {
                let text = format!("{name:?} is neither a path nor an abstract name");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(Self { socket, address })
    }

    /// Sends `KEY=value` lines.
    ///
    /// # Errors
    /// `WouldBlock` when the manager does not read; that it is gone.
    pub fn notify(&self, text: &str) -> io::Result<()> {
        let socket = self.socket.as_fd();
        let (bytes, flags) = (text.as_bytes(), SendFlags::NOSIGNAL);
        rustix::net::sendto(socket, bytes, flags, &self.address)?;
        Ok(())
    }
}

/// Microseconds of the clock that `RELOADING=1` is sent with (`CLOCK_MONOTONIC`).
#[must_use]
pub fn monotonic_microseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds
        .saturating_mul(1_000_000)
        .saturating_add(nanoseconds / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn notifications_reach_path_and_abstract_sockets() {
        let path = std::env::temp_dir().join(format!("penstock-notify-{}", std::process::id()));
        let manager = UnixDatagram::bind(&path).unwrap();
        ServiceManager::new(path.to_str().unwrap())
            .unwrap()
            .notify("READY=1")
            .unwrap();
        let mut buffer = [0; 32];
        let count = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"READY=1");
        std::fs::remove_file(&path).unwrap();
        use std::os::linux::net::SocketAddrExt;
        let name = format!("penstock-notify-{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        ServiceManager::new(&format!("@{name}"))
            .unwrap()
            .notify("STATUS=x")
            .unwrap();
        let count = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"STATUS=x");
        assert!(ServiceManager::new("relative").is_err());
        assert!(monotonic_microseconds() > 0);
    }
}
