//! Sockets: listening, accepting, single-call reads and writes, and descriptors that are sent with
//! bytes.
//!
//! All descriptors created here are non-blocking and close-on-exec. Used by `runtime`'s listener
//! and stream (which add readiness) and by `apps` for the socketpairs of its workers.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};

pub use rustix::net::Shutdown;

/// Length of a listener's accept queue; the kernel caps it at `net.core.somaxconn` (4096 by
/// default).
const BACKLOG: i32 = 4096;

/// Opens a TCP listener that shares its port with the other loops' listeners (`SO_REUSEPORT`).
///
/// # Errors
/// Those of `socket`, `bind` or `listen`, for example address in use or permission denied.
pub fn listen_tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = bind_tcp(address, Sharing::Allowed, Families::One)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Checks that no other socket listens on `address`: binds it once without sharing the port.
///
/// `SO_REUSEPORT` lets a second server of the same user join a port silently; a start that requires
/// to be the only one calls this first.
///
/// # Errors
/// Those of `bind`, address in use above all.
pub fn check_tcp_free(address: SocketAddr) -> io::Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    Ok(bind_tcp(address, Sharing::Refused, Families::One).map(drop)?)
}

/// Returns the real address of a TCP listener (port 0 resolved).
pub fn local_address(listener: &OwnedFd) -> io::Result<SocketAddr> {
    TcpListener::from(listener.try_clone()?).local_addr()
}

/// Opens a TCP listener for `port` on every address of the machine, IPv6 and IPv4; only IPv4 where
/// there is no IPv6. Shares its port like [`listen_tcp`].
pub fn listen_port(port: u16) -> io::Result<OwnedFd> {
    match bind_tcp(all_ipv6(port), Sharing::Allowed, Families::Both) {
        Err(error) if has_no_ipv6(error) => {
            listen_tcp(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
        }
        socket => {
            let socket = socket?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(socket)
        }
    }
}

/// Like [`check_tcp_free`], for [`listen_port`].
pub fn check_port_free(port: u16) -> io::Result<()> {
    if port == 0 {
        return Ok(());
    }
    match bind_tcp(all_ipv6(port), Sharing::Refused, Families::Both) {
        Err(error) if has_no_ipv6(error) => {
            check_tcp_free(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
        }
        bound => Ok(bound.map(drop)?),
    }
}

fn all_ipv6(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Allowed,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Families {
    /// That of the address: `[::]:80` beside `0.0.0.0:80` is two listeners, not a clash.
    One,
    /// IPv6 and IPv4.
    Both,
}

fn bind_tcp(address: SocketAddr, sharing: Sharing, families: Families) -> Result<OwnedFd, Errno> {
    let socket = stream_socket(family_of(address))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if sharing == Sharing::Allowed {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, families == Families::One)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(socket)
}

fn family_of(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Whether an error means that this machine, or a sandbox, has no IPv6: it is not built in or
/// loaded (`EAFNOSUPPORT`, also systemd's `RestrictAddressFamilies`), or disabled
/// (`EADDRNOTAVAIL`).
fn has_no_ipv6(error: Errno) -> bool {
    matches!(
        error,
        Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL | Errno::PROTONOSUPPORT
    )
}

/// Access to a Unix listener.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// The permissions of its file; `None` is all that the umask allows.
    pub mode: Option<u32>,
    /// The owner's uid; `None` is this process's user.
    pub user: Option<u32>,
    /// The group's gid; `None` is this process's.
    pub group: Option<u32>,
}

/// Opens a Unix listener at `path`. A stale socket file is removed first, so a crash never blocks
/// the next start; a live one is an error, and so is any other file. Connections are possible only
/// after the file's permissions and owner are as `access` says.
///
/// # Errors
/// `AddrInUse` when another process listens there, `AlreadyExists` when there is another file,
/// otherwise those of `bind` or `chown`.
pub fn listen_unix(path: &Path, access: SocketAccess) -> io::Result<OwnedFd> {
    let (socket, file) = bind_unix(path)?;
    let opened =
        set_socket_access(path, access).and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?));
    if let Err(error) = opened {
        drop(file);
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
}

/// Sets permissions and owner of a Unix socket's file: of that file only, even if its path is
/// replaced meanwhile.
///
/// # Errors
/// There is no socket, or those of `chown` or `chmod`.
pub fn set_socket_access(path: &Path, access: SocketAccess) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a socket any more",
        ));
    }
    let differs = |wanted: Option<u32>, now: u32| wanted.filter(|wanted| *wanted != now);
    let user = differs(access.user, stat.st_uid).map(Uid::from_raw);
    let group = differs(access.group, stat.st_gid).map(Gid::from_raw);
    if user.is_some() || group.is_some() {
        rustix::fs::chownat(&file, "", user, group, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = access.mode {
        let mode = Mode::from_raw_mode(mode);
        let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::chmod(by_descriptor, mode) {
            // Without /proc: by its path, which was a socket a moment ago.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => rustix::fs::chmod(path, mode)?,
            done => done?,
        }
    }
    Ok(())
}

/// How often a stale file that reappears is removed.
const MAX_BIND_TRIES: usize = 3;

/// Binds a socket that does not listen yet. While the second value lives, no other server removes a
/// stale file at that path.
fn bind_unix(path: &Path) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let address = SocketAddrUnix::new(path)?;
    let lock = lock_dir(path);
    for _ in 0..MAX_BIND_TRIES {
        let socket = stream_socket(AddressFamily::UNIX)?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => remove_stale_socket(path)?,
            bound => {
                bound?;
                return Ok((socket, lock));
            }
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Delay between two attempts to lock a directory.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);

const MAX_LOCK_POLLS: usize = 200;

/// Two servers that start at once must not each take the other's new socket for a stale one. A
/// directory that cannot be locked is used without.
fn lock_dir(path: &Path) -> Option<OwnedFd> {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let folder = rustix::fs::open(folder, flags, Mode::empty()).ok()?;
    for _ in 0..MAX_LOCK_POLLS {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "another server opens a socket in the same directory"
                )]
                std::thread::sleep(LOCK_POLL_INTERVAL);
            }
            locked => return locked.ok().map(|()| folder),
        }
    }
    None
}

/// Removes a stale socket file; succeeds if there is none.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let look = || rustix::fs::lstat(path);
    let found = match look() {
        Err(Errno::NOENT) => return Ok(()),
        found => found?,
    };
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket exists: move it away or choose another path",
        ));
    }
    let probe = stream_socket(AddressFamily::UNIX)?;
    match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // It listens, its queue is full, it is of another kind, or belongs to another user.
        Ok(()) | Err(_) => return Err(io::ErrorKind::AddrInUse.into()),
    }
    // Only the file that was checked, not one that has replaced it since.
    let now = look()?;
    let is_same = (now.st_dev, now.st_ino, now.st_ctime, now.st_ctime_nsec)
        == (
            found.st_dev,
            found.st_ino,
            found.st_ctime,
            found.st_ctime_nsec,
        );
    if !is_same {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(rustix::fs::unlink(path)?)
}

/// The origin of an accepted connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    /// A TCP peer.
    Tcp(SocketAddr),
    /// A Unix-socket peer, which has no address.
    Unix,
}

impl PeerAddress {
    /// Creates the address of a TCP peer. An IPv4 peer of a dual-stack socket has a mapped address,
    /// which is turned into its IPv4 address.
    #[must_use]
    pub fn tcp(address: SocketAddr) -> Self {
        Self::Tcp(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }
}

/// Whether an address is a loopback address, including IPv4-mapped ones.
pub fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Accepts one connection; sets `TCP_NODELAY` on TCP.
///
/// # Errors
/// `WouldBlock` when none waits; `EMFILE`/`ENFILE` when descriptors ran out.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, PeerAddress)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (socket, address) = rustix::net::acceptfrom_with(listener, flags)?;
    let tcp = address.and_then(|a| SocketAddr::try_from(a).ok());
    match tcp {
        Some(address) => {
            sockopt::set_tcp_nodelay(&socket, true)?;
            Ok((socket, PeerAddress::tcp(address)))
        }
        None => Ok((socket, PeerAddress::Unix)),
    }
}

/// Lets the kernel probe the peer of a TCP connection that is silent: first after `idle`, then
/// every `interval`. The connection breaks when the peer refuses a probe, or leaves `count`
/// unanswered.
///
/// # Errors
/// Those of `setsockopt`; a socket that is not TCP has no such option.
pub fn enable_keepalive(
    socket: BorrowedFd<'_>,
    idle: Duration,
    interval: Duration,
    count: u32,
) -> io::Result<()> {
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    sockopt::set_tcp_keepcnt(socket, count)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Whether the kernel paces what a TCP socket, or a listener's connections, send (`bbr`).
pub fn is_paced(socket: impl AsFd) -> bool {
    sockopt::tcp_congestion(socket).is_ok_and(|name| is_pacing(&name))
}

fn is_pacing(congestion_control: &str) -> bool {
    congestion_control.starts_with("bbr")
}

/// Disables pacing for a TCP socket that is not connected yet, or for a listener's future
/// connections. It is meant for loopback: pacing spares no network queue there, but each
/// piece waits for a timer, and 1 GB took eight times the processor time, and three times as long.
/// `reno` does not pace, and any user may select it (tcp(7)). A connection that was paced
/// once stays so.
pub fn stop_pacing(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_congestion(socket, "reno")?)
}

/// Begins a TCP connection with `TCP_NODELAY`, over loopback not [paced](stop_pacing). It is
/// established when the socket becomes writable and [`connect_result`] succeeds.
///
/// # Errors
/// Immediate errors of `socket` or `connect`, for example that no route or no port is left.
pub fn connect_tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = stream_socket(family_of(address))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if is_loopback(address) && is_paced(&socket) {
        // Where this is forbidden, the connection is only slower.
        let _ = stop_pacing(&socket);
    }
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(e) => Err(e.into()),
    }
}

/// Connects to the Unix socket at `path`.
///
/// # Errors
/// `WouldBlock` when the listener's queue is full, otherwise those of `connect`.
pub fn connect_unix(path: &Path) -> io::Result<OwnedFd> {
    let socket = stream_socket(AddressFamily::UNIX)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Returns the result of [`connect_tcp`]; call it once the socket is writable.
pub fn connect_result(socket: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::socket_error(socket)?.map_err(io::Error::from)
}

fn stream_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Creates a connected pair of Unix stream sockets. The first is non-blocking (ours), the second
/// blocking (for a worker process); both are close-on-exec.
pub fn worker_socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Reads available bytes into `buffer`; 0 is the end of the stream.
///
/// # Errors
/// `WouldBlock` when there are none; `ConnectionReset` and the like.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let (count, _) = rustix::net::recv(socket, buffer, RecvFlags::empty())?;
    Ok(count)
}

/// Checks for a byte without taking it; 0 is the end of the stream.
pub fn peek(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut byte = [0_u8; 1];
    let (count, _) = rustix::net::recv(socket, &mut byte, RecvFlags::PEEK)?;
    Ok(count)
}

/// Like [`receive`], and receives descriptors that come with the bytes (at most four a message).
pub fn receive_with_descriptors(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let received = receive_message(socket, buffer, &mut space, |item| {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            descriptors.extend(rights);
        }
    });
    Ok(received?.bytes)
}

/// Receives bytes, passing what comes beside them to `take`.
pub(crate) fn receive_message(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    space: &mut [MaybeUninit<u8>],
    take: impl FnMut(RecvAncillaryMessage<'_>),
) -> Result<RecvMsg, Errno> {
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let buffers = &mut [IoSliceMut::new(buffer)];
    let received = rustix::net::recvmsg(socket, buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    ancillary.drain().for_each(take);
    Ok(received)
}

/// Writes a prefix of `buffer`, never raising SIGPIPE.
///
/// # Errors
/// `WouldBlock` when the socket is full; `BrokenPipe` when the peer is gone.
pub fn send(socket: BorrowedFd<'_>, buffer: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, buffer, SendFlags::NOSIGNAL)?)
}

/// Like [`send`], but lets the kernel hold the bytes back for more that follows at once
/// (`MSG_MORE`).
pub fn send_with_more(socket: BorrowedFd<'_>, buffer: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::MORE;
    Ok(rustix::net::send(socket, buffer, flags)?)
}

/// Writes a prefix of the slices in one call, never raising SIGPIPE.
pub fn send_vectored(socket: BorrowedFd<'_>, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut ancillary = SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(
        socket,
        buffers,
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?)
}

/// Like [`receive`], and returns which process sent the bytes, if enabled
/// ([`enable_sender_credentials`]).
pub fn receive_with_sender(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<u32>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut sender = None;
    let received = receive_message(socket, buffer, &mut space, |item| {
        if let RecvAncillaryMessage::ScmCredentials(who) = item {
            sender = u32::try_from(who.pid.as_raw_nonzero().get()).ok();
        }
    });
    Ok((received?.bytes, sender))
}

/// Makes the kernel report the sending process of later messages to this Unix socket
/// (`SO_PASSCRED`).
pub fn enable_sender_credentials(socket: &OwnedFd) -> io::Result<()> {
    Ok(sockopt::set_socket_passcred(socket, true)?)
}

/// Sends `bytes` with one descriptor attached to them.
pub fn send_descriptor(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<usize> {
    send_descriptors(socket, bytes, &[descriptor])
}

/// Maximum number of descriptors that [`send_descriptors`] sends.
pub const MAX_DESCRIPTORS: usize = 64;

/// Like [`send_descriptor`], with up to [`MAX_DESCRIPTORS`] of them.
///
/// # Errors
/// As [`send`]; `InvalidInput` when there are too many.
pub fn send_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let is_fit = descriptors.len() <= MAX_DESCRIPTORS
        && (descriptors.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    if !is_fit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors for one message",
        ));
    }
    let buffers = [IoSlice::new(bytes)];
    Ok(rustix::net::sendmsg(
        socket,
        &buffers,
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?)
}

/// Makes the coming close a reset (`SO_LINGER` 0), so that the peer cannot take a truncated message
/// for a complete one.
pub fn reset_on_close(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(Duration::ZERO))?)
}

/// Makes the kernel break a TCP connection whose peer acknowledges nothing for `time`, at least a
/// second (`TCP_USER_TIMEOUT`).
///
/// # Errors
/// Those of `setsockopt`; a Unix socket has no such option.
pub fn set_user_timeout(socket: impl AsFd, time: Duration) -> io::Result<()> {
    // The kernel reads it as a signed number.
    let most = i32::MAX.unsigned_abs();
    let milliseconds =
        u32::try_from(time.as_millis()).map_or(most, |asked| asked.clamp(1_000, most));
    Ok(sockopt::set_tcp_user_timeout(socket, milliseconds)?)
}

/// Makes the kernel probe a TCP peer that was silent for `idle`, and then four times as often
/// (`SO_KEEPALIVE`). At least a second, at most nine hours. [`set_user_timeout`] determines when
/// the connection breaks.
///
/// # Errors
/// Those of `setsockopt`; a Unix socket has no such option.
pub fn enable_keepalive_after(socket: impl AsFd, idle: Duration) -> io::Result<()> {
    let (shortest, longest) = (Duration::from_secs(1), Duration::from_secs(9 * 3600));
    let idle = idle.clamp(shortest, longest);
    let socket = socket.as_fd();
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, (idle / 4).max(shortest))?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Bytes written to a socket that its peer has not received yet (`SIOCOUTQ`): for TCP, not
/// acknowledged.
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut count: libc::c_int = 0;
    #[expect(unsafe_code, reason = "an ioctl that no safe wrapper offers")]
    // SAFETY: TIOCOUTQ (the same number as SIOCOUTQ) writes one int through the pointer, which is
    // valid for the call; the descriptor is open for its duration.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Shuts down one or both directions of a connection.
///
/// # Errors
/// `NotConnected` when the peer is gone.
pub fn shutdown(socket: impl AsFd, how: Shutdown) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, how)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_mapped_peer_is_an_ipv4_peer() {
        for (sent, seen) in [
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
        ] {
            let peer = PeerAddress::tcp(sent.parse().unwrap());
            assert_eq!(peer, PeerAddress::Tcp(seen.parse().unwrap()), "{sent}");
        }
    }

    #[test]
    fn loopback_pacing_can_be_stopped() {
        for (name, expected) in [
            ("bbr", true),
            ("bbr2", true),
            ("cubic", false),
            ("reno", false),
        ] {
            assert_eq!(is_pacing(name), expected, "{name}");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        stop_pacing(&listener).unwrap();
        let ours = connect_tcp(address).unwrap();
        let (theirs, _) = accept(listener.as_fd()).unwrap();
        // Connections inherit it from the listener.
        assert_eq!(sockopt::tcp_congestion(&theirs).unwrap(), "reno");
        assert!(!is_paced(&ours));
        let (unix, _) = worker_socket_pair().unwrap();
        assert!(!is_paced(&unix));
        for (address, expected) in [
            ("127.8.9.10:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("10.0.0.1:1", false),
            ("[::ffff:10.0.0.1]:1", false),
        ] {
            assert_eq!(is_loopback(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn a_vanished_peer_is_detected() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        for (asked, milliseconds, idle, between) in [
            (Duration::from_millis(1), 1_000, 1, 1),
            (Duration::from_secs(60), 60_000, 60, 15),
            (Duration::MAX, i32::MAX.unsigned_abs(), 32_400, 8_100),
        ] {
            set_user_timeout(&socket, asked).unwrap();
            enable_keepalive_after(&socket, asked).unwrap();
            assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), milliseconds);
            let seconds = |time: Duration| time.as_secs();
            assert_eq!(seconds(sockopt::tcp_keepidle(&socket).unwrap()), idle);
            assert_eq!(seconds(sockopt::tcp_keepintvl(&socket).unwrap()), between);
            assert!(sockopt::socket_keepalive(&socket).unwrap());
        }
        let (ours, _theirs) = worker_socket_pair().unwrap();
        assert!(set_user_timeout(&ours, Duration::from_secs(1)).is_err());
        assert!(enable_keepalive_after(&ours, Duration::from_secs(1)).is_err());
    }

    #[test]
    fn a_descriptor_is_passed_with_its_bytes() {
        let (ours, theirs) = worker_socket_pair().unwrap();
        let (mut read, write) = UnixStream::pair().unwrap();
        send_descriptor(ours.as_fd(), b"x", write.as_fd()).unwrap();
        drop(write);
        let mut buffer = [0; 8];
        let mut got = Vec::new();
        let n = receive_with_descriptors(theirs.as_fd(), &mut buffer, &mut got).unwrap();
        assert_eq!((&buffer[..n], got.len()), (&b"x"[..], 1));
        send(got[0].as_fd(), b"through").unwrap();
        drop(got);
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn sender_credentials_are_received() {
        let (ours, theirs) = worker_socket_pair().unwrap();
        enable_sender_credentials(&ours).unwrap();
        send(theirs.as_fd(), b"it is me").unwrap();
        let mut buffer = [0; 64];
        let said = receive_with_sender(ours.as_fd(), &mut buffer).unwrap();
        assert_eq!(said, (8, Some(std::process::id())));
    }

    #[test]
    fn many_descriptors_fit_a_message_and_too_many_are_refused() {
        let (ours, theirs) = worker_socket_pair().unwrap();
        let many = vec![theirs.as_fd(); MAX_DESCRIPTORS];
        assert_eq!(send_descriptors(ours.as_fd(), b"abc", &many).unwrap(), 3);
        let more = vec![theirs.as_fd(); MAX_DESCRIPTORS + 1];
        let refused = send_descriptors(ours.as_fd(), b"x", &more).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    /// A directory for sockets, removed with its test.
    struct TempDir(std::path::PathBuf);

    impl TempDir {
        fn new(name: &str) -> Self {
            let name = format!("penstock-net-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }
    }

    impl Drop for TempDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_stale_socket_file_does_not_block_a_start_and_a_live_one_does() {
        let dir = TempDir::new("stale");
        let path = dir.0.join("http.sock");
        let open = || listen_unix(&path, SocketAccess::default());
        let first = open().unwrap();
        assert_eq!(open().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(UnixStream::connect(&path).is_ok(), "it is left alone");
        drop(first);
        // A process that another test starts may hold a copy until its program runs.
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while let Err(error) = open() {
            assert!(std::time::Instant::now() < deadline, "{error}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_full_accept_queue_is_not_a_stale_socket() {
        let dir = TempDir::new("full");
        let path = dir.0.join("full.sock");
        let socket = stream_socket(AddressFamily::UNIX).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let mut waiting = Vec::new();
        while let Ok(one) = connect_unix(&path) {
            waiting.push(one);
        }
        let refused = listen_unix(&path, SocketAccess::default()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }

    #[test]
    fn only_sockets_are_removed() {
        let dir = TempDir::new("file");
        let target = dir.0.join("target");
        std::fs::write(&target, "precious").unwrap();
        std::fs::create_dir(dir.0.join("folder")).unwrap();
        std::os::unix::fs::symlink(&target, dir.0.join("link")).unwrap();
        for name in ["target", "folder", "link"] {
            let path = dir.0.join(name);
            let refused = listen_unix(&path, SocketAccess::default()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{name}");
            assert!(path.symlink_metadata().is_ok(), "{name}");
        }
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
    }

    #[test]
    fn a_socket_has_its_mode_whatever_the_umask_is() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = TempDir::new("mode");
        for mode in [0o666, 0o660, 0o600, 0o777] {
            let path = dir.0.join(format!("{mode:o}.sock"));
            let access = SocketAccess {
                mode: Some(mode),
                ..SocketAccess::default()
            };
            let _listener = listen_unix(&path, access).unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!(found.permissions().mode() & 0o7777, mode);
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let path = dir.0.join("owner.sock");
        let access = SocketAccess {
            mode: Some(0o660),
            user: Some(12345),
            group: Some(12346),
        };
        let _listener = listen_unix(&path, access).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), (12345, 12346));
    }

    #[test]
    fn permissions_are_set_on_the_socket_itself_only() {
        let dir = TempDir::new("swap");
        let (file, link) = (dir.0.join("file"), dir.0.join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let access = SocketAccess {
            mode: Some(0o777),
            ..SocketAccess::default()
        };
        for path in [&file, &link] {
            assert!(
                set_socket_access(path, access).is_err(),
                "{}",
                path.display()
            );
        }
    }

    #[test]
    fn a_bare_port_listens_on_both_families() {
        let listener = listen_port(0).unwrap();
        let port = local_address(&listener).unwrap().port();
        assert_eq!(
            check_port_free(port).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        assert!(listen_port(port).is_ok(), "another loop shares it");
        for host in ["127.0.0.1", "::1"] {
            let Ok(client) = std::net::TcpStream::connect((host, port)) else {
                assert_eq!(host, "::1", "IPv4 is always there");
                continue;
            };
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            let peer = loop {
                match accept(listener.as_fd()) {
                    Ok((_, peer)) => break peer,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
                assert!(std::time::Instant::now() < deadline);
                std::thread::yield_now();
            };
            assert_eq!(peer, PeerAddress::Tcp(client.local_addr().unwrap()));
        }
    }

    #[test]
    fn a_bare_port_falls_back_to_ipv4() {
        for error in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            assert!(has_no_ipv6(error));
        }
        assert!(!has_no_ipv6(Errno::ADDRINUSE) && !has_no_ipv6(Errno::ACCESS));
    }

    #[test]
    fn two_loops_share_a_port_and_a_probe_sees_it_taken() {
        let first = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = local_address(&first).unwrap();
        assert!(listen_tcp(address).is_ok());
        assert_eq!(
            check_tcp_free(address).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
    }
}
