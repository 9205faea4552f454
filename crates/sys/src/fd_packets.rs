//! Passes sockets to another process in packets, and takes over descriptors inherited at start.
//!
//! Used by `penstock`'s upgrade (the old server sends its listeners to the new one) and by socket
//! activation (a service manager passes them to us). Packets keep their bounds (`SOCK_SEQPACKET`),
//! so that a descriptor and its text arrive together or not at all.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryMessage, ReturnFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};

use crate::net;

/// A connected pair of packet sockets, both non-blocking and close-on-exec.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok(pair)
}

/// Sends one packet, with an optional descriptor.
///
/// # Errors
/// `WouldBlock` when the queue is full, `BrokenPipe` when the other end is closed.
pub fn send_packet(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    // A packet is sent whole or not at all.
    send_packet_with_fds(socket, bytes, descriptor.as_slice())
}

/// Like [`send_packet`], with up to [`net::MAX_DESCRIPTORS`] descriptors.
///
/// # Errors
/// As [`send_packet`].
pub fn send_packet_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    net::send_descriptors(socket, bytes, descriptors).map(|_| ())
}

/// Like [`send_packet_with_fds`], for a process that has nothing else to do: blocks until the
/// packet is sent.
///
/// # Errors
/// As [`send_packet`]; `TimedOut` when the queue stays full until the deadline.
pub(crate) fn send_packet_until(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    deadline: Instant,
) -> io::Result<()> {
    loop {
        match net::send_descriptors(socket, bytes, descriptors) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_duration_since(Instant::now());
                wait_for_events(socket, PollFlags::OUT, Some(left))?;
            }
            sent => return sent.map(|_| ()),
        }
    }
}

/// Receives one packet into `buffer`; returns its length, 0 at the end, and its descriptor.
///
/// # Errors
/// `WouldBlock` when there is none; `InvalidData` when it is longer than the buffer.
pub fn receive_packet(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let (length, descriptors) = receive_packet_with_fds(socket, buffer)?;
    Ok((length, descriptors.into_iter().next()))
}

/// Like [`receive_packet`], with all descriptors, [`net::MAX_DESCRIPTORS`] at most.
pub(crate) fn receive_packet_with_fds(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let received = receive_packet_with_available_fds(socket, buffer)?;
    if received.has_lost_fds {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "packet cut"));
    }
    Ok((received.length, received.fds))
}

/// A packet with the descriptors that this process had room for.
#[derive(Debug)]
pub struct ReceivedPacket {
    /// Bytes in the buffer; 0 at the end.
    pub length: usize,
    /// The first descriptors of the packet, in order.
    pub fds: Vec<OwnedFd>,
    /// Whether there were more than this process may open.
    pub has_lost_fds: bool,
}

/// Like [`receive_packet`], with as many of its descriptors as this process may open,
/// [`net::MAX_DESCRIPTORS`] at most.
///
/// # Errors
/// `WouldBlock` when there is none; `InvalidData` when it is longer than the buffer.
pub fn receive_packet_with_available_fds(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<ReceivedPacket> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(net::MAX_DESCRIPTORS))];
    let mut descriptors = Vec::new();
    let received = net::receive_message(socket, buffer, &mut space, |item| {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            descriptors.extend(rights);
        }
    })?;
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "packet cut"));
    }
    Ok(ReceivedPacket {
        length: received.bytes,
        fds: descriptors,
        has_lost_fds: received.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// Waits until there is something to receive, without a limit if `limit` is `None`.
///
/// # Errors
/// `TimedOut`, or those of `poll`.
pub(crate) fn wait_readable(socket: BorrowedFd<'_>, limit: Option<Duration>) -> io::Result<()> {
    wait_for_events(socket, PollFlags::IN, limit)
}

/// Whether every copy of the other end is closed.
pub(crate) fn is_peer_closed(socket: BorrowedFd<'_>) -> bool {
    let now = Timespec::default();
    let mut looked = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    poll(&mut looked, Some(&now)).is_ok() && looked[0].revents().contains(PollFlags::HUP)
}

fn wait_for_events(
    socket: BorrowedFd<'_>,
    what: PollFlags,
    limit: Option<Duration>,
) -> io::Result<()> {
    let deadline = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(Timespec::try_from).transpose();
        let left = left.map_err(io::Error::other)?;
        match poll(&mut [PollFd::from_borrowed_fd(socket, what)], left.as_ref()) {
            // A signal that this process handles.
            Err(Errno::INTR) => {}
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            ready => return Ok(ready.map(|_| ())?),
        }
    }
}

/// Like [`receive_packet`], for a process that has nothing else to do: blocks until a packet
/// arrives.
///
/// # Errors
/// As [`receive_packet`]; `TimedOut` when none arrives in time.
pub fn receive_packet_with_timeout(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    patience: Duration,
) -> io::Result<(usize, Option<OwnedFd>)> {
    wait_readable(socket, Some(patience))?;
    receive_packet(socket, buffer)
}

/// Takes over a descriptor that this process inherited, by its number, and marks it close-on-exec.
/// Each number is taken once.
///
/// For the start of a process, when nothing that it opened itself can have the number.
///
/// # Errors
/// When nothing is open there, or it was taken before.
pub fn take_inherited_fd(number: RawFd) -> io::Result<OwnedFd> {
    static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if number < 3 || taken.contains(&number) {
        let text = format!("cannot take over descriptor {number}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    #[expect(unsafe_code, reason = "descriptors are named by number across exec")]
    // SAFETY: fcntl(F_SETFD) on a number; it fails when nothing is open there.
    let done = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    taken.push(number);
    #[expect(unsafe_code, reason = "descriptors are named by number across exec")]
    // SAFETY: it is open, and the list above gives each number to one owner only.
    let owned = unsafe { OwnedFd::from_raw_fd(number) };
    Ok(owned)
}

/// The address of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A TCP address.
    Tcp {
        /// The address, with its real port.
        address: SocketAddr,
        /// Whether an IPv6 socket accepts IPv4 too.
        is_dual: bool,
    },
    /// A Unix socket's file.
    Unix(PathBuf),
}

/// Returns where a socket listens, and makes it non-blocking.
///
/// # Errors
/// When it is not a listening stream socket, on TCP or a Unix socket with a file.
pub fn listen_address_of(socket: &OwnedFd) -> io::Result<ListenAddress> {
    let no = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    if sockopt::socket_type(socket)? != SocketType::STREAM {
        return Err(no("it is no stream socket"));
    }
    if !sockopt::socket_acceptconn(socket)? {
        return Err(no("it does not listen"));
    }
    rustix::io::ioctl_fionbio(socket, true)?;
    let address = rustix::net::getsockname(socket)?;
    if let Ok(address) = SocketAddr::try_from(address.clone()) {
        let is_dual = address.is_ipv6() && !sockopt::ipv6_v6only(socket)?;
        return Ok(ListenAddress::Tcp { address, is_dual });
    }
    let unix = SocketAddrUnix::try_from(address).map_err(|_| no("it is neither TCP nor Unix"))?;
    let path = unix
        .path()
        .ok_or_else(|| no("its Unix socket has no file"))?;
    let path = std::ffi::OsStr::from_bytes(path.to_bytes());
    Ok(ListenAddress::Unix(PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_packet_carries_its_text_and_descriptor() {
        let (ours, theirs) = packet_pair().unwrap();
        let file = crate::file::memfd_with_content("t", b"inside").unwrap();
        send_packet(ours.as_fd(), b"one", None).unwrap();
        send_packet(ours.as_fd(), b"two", Some(file.as_fd())).unwrap();
        drop(ours);
        let mut buffer = [0; 8];
        let (count, none) = receive_packet(theirs.as_fd(), &mut buffer).unwrap();
        assert!((&buffer[..count], none.is_none()) == (b"one", true));
        let (count, some) = receive_packet(theirs.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..count], b"two");
        let mut text = [0; 6];
        rustix::io::pread(some.unwrap(), &mut text, 0).unwrap();
        assert_eq!(&text, b"inside");
        // A process that another test starts may hold a copy of our end until its program runs.
        let end = receive_packet_with_timeout(theirs.as_fd(), &mut buffer, Duration::from_secs(10));
        assert_eq!(end.unwrap().0, 0);
    }

    #[test]
    fn a_packet_that_does_not_fit_is_an_error() {
        let (ours, theirs) = packet_pair().unwrap();
        send_packet(ours.as_fd(), b"far too long", None).unwrap();
        let error = receive_packet(theirs.as_fd(), &mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = receive_packet(theirs.as_fd(), &mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_listen_address_is_read() {
        let tcp = net::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = net::local_address(&tcp).unwrap();
        let is_dual = false;
        let bound = listen_address_of(&tcp).unwrap();
        assert_eq!(bound, ListenAddress::Tcp { address, is_dual });
        let path = std::env::temp_dir().join(format!("penstock-bound-{}", std::process::id()));
        let unix = net::listen_unix(&path, net::SocketAccess::default()).unwrap();
        assert_eq!(
            listen_address_of(&unix).unwrap(),
            ListenAddress::Unix(path.clone())
        );
        std::fs::remove_file(path).unwrap();
        let client = net::connect_tcp(address).unwrap();
        assert!(listen_address_of(&client).is_err());
    }

    #[test]
    fn an_inherited_descriptor_has_one_owner() {
        use std::os::fd::IntoRawFd;
        let number = crate::file::memfd_with_content("t", b"x")
            .unwrap()
            .into_raw_fd();
        let owned = take_inherited_fd(number).unwrap();
        assert!(take_inherited_fd(number).is_err());
        assert!(take_inherited_fd(1).is_err());
        drop(owned);
    }
}
