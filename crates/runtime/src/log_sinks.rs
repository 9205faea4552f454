//! Daemons that take log lines as datagrams: syslog (RFC 5424) and the journal of systemd.
//!
//! Used by the writer thread of [`crate::logger`] alone, never by an event loop: a send may wait
//! for a daemon, up to [`SEND_TIMEOUT`].
//!
//! # Invariants
//! - A line is one datagram. What does not fit is cut at its end.
//! - A daemon that is away costs its lines, which are counted, and nothing else.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The longest line in a datagram: what syslog daemons take by default (RFC 5424 §6.1 asks for
/// 2,048 bytes at least).
const MAX_LINE_BYTES: usize = 8192;

/// How long a daemon may leave a full socket.
const SEND_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a daemon that is away is left alone.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Where journald listens.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// Facility `local0`, severity `info` (RFC 5424 §6.2.1).
const PRIORITY: u8 = 16 * 8 + 6;

/// A daemon that takes a datagram for each line.
#[derive(Debug)]
pub struct DatagramSink {
    destination: Destination,
    form: DatagramForm,
    socket: Option<DaemonSocket>,
    /// The last failure to connect.
    failed_at: Option<Instant>,
    datagram: Vec<u8>,
}

#[derive(Debug)]
enum Destination {
    Unix(PathBuf),
    Udp(SocketAddr),
}

#[derive(Debug)]
enum DatagramForm {
    /// The host's name, and the tag of the lines.
    Syslog {
        host: String,
        tag: &'static str,
    },
    Journal {
        tag: &'static str,
    },
}

#[derive(Debug)]
enum DaemonSocket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl DatagramSink {
    /// A syslog daemon at a socket of this machine.
    #[must_use]
    pub fn syslog_unix(path: PathBuf, tag: &'static str) -> Self {
        Self::new(Destination::Unix(path), syslog_form(tag))
    }

    /// A syslog daemon that is reached by UDP.
    #[must_use]
    pub fn syslog_udp(address: SocketAddr, tag: &'static str) -> Self {
        Self::new(Destination::Udp(address), syslog_form(tag))
    }

    /// The journal of systemd; `socket` is its place, for tests.
    #[must_use]
    pub fn journal(socket: Option<PathBuf>, tag: &'static str) -> Self {
        let path = socket.unwrap_or_else(|| JOURNAL_SOCKET.into());
        Self::new(Destination::Unix(path), DatagramForm::Journal { tag })
    }

    fn new(destination: Destination, form: DatagramForm) -> Self {
        Self {
            destination,
            form,
            socket: None,
            failed_at: None,
            datagram: Vec::new(),
        }
    }

    /// Sends a line; `now` is the monotonic clock, `wall` the time since 1970.
    ///
    /// # Errors
    /// When the daemon is away, or has left its socket full for too long: the line is lost.
    pub(crate) fn send_line(
        &mut self,
        line: &[u8],
        now: Instant,
        wall: Duration,
    ) -> io::Result<()> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = &line[..line.len().min(MAX_LINE_BYTES)];
        self.datagram.clear();
        self.form.encode(line, wall, &mut self.datagram);
        if self.socket.is_some() && self.send().is_ok() {
            return Ok(());
        }
        // The daemon may have been started anew.
        if self
            .failed_at
            .is_some_and(|at| now.duration_since(at) < RETRY_INTERVAL)
        {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let sent = self.destination.connect().and_then(|socket| {
            self.socket = Some(socket);
            self.send()
        });
        self.failed_at = sent.is_err().then_some(now);
        if sent.is_err() {
            self.socket = None;
        }
        sent
    }

    fn send(&self) -> io::Result<()> {
        match &self.socket {
            Some(DaemonSocket::Unix(socket)) => socket.send(&self.datagram).map(drop),
            Some(DaemonSocket::Udp(socket)) => socket.send(&self.datagram).map(drop),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl Destination {
    fn connect(&self) -> io::Result<DaemonSocket> {
        match self {
            Self::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                Ok(DaemonSocket::Unix(socket))
            }
            Self::Udp(address) => {
                let any: SocketAddr = match address {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                Ok(DaemonSocket::Udp(socket))
            }
        }
    }
}

impl DatagramForm {
    fn encode(&self, line: &[u8], wall: Duration, out: &mut Vec<u8>) {
        // Writing to a Vec cannot fail.
        match self {
            Self::Syslog { host, tag } => {
                let (time, pid) = (penstock_http::rfc3339_millis(wall), std::process::id());
                let _ = write!(out, "<{PRIORITY}>1 {time} {host} {tag} {pid} access - ");
                out.extend_from_slice(line);
            }
            Self::Journal { tag } => {
                let _ = write!(out, "SYSLOG_IDENTIFIER={tag}\nPRIORITY=6\n");
                push_journal_field(out, b"MESSAGE", line);
            }
        }
    }
}

/// A field of the journal's native protocol: with its length where a value has several lines.
fn push_journal_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    if value.contains(&b'\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// The form of RFC 5424 with this machine's name, or `-` where it has none.
fn syslog_form(tag: &'static str) -> DatagramForm {
    #[expect(
        clippy::disallowed_methods,
        reason = "a file of the kernel, read when a log is opened"
    )]
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_printable = |name: &str| name.bytes().all(|byte| byte.is_ascii_graphic());
    let name = name.trim();
    let host = match name.is_empty() || name.len() > 255 || !is_printable(name) {
        true => "-".to_owned(),
        false => name.to_owned(),
    };
    DatagramForm::Syslog { host, tag }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: Duration = Duration::from_millis(784_111_777_042);

    #[test]
    fn a_line_is_one_message_of_rfc_5424() {
        let daemon = UdpSocket::bind("127.0.0.1:0").unwrap();
        daemon
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut sink = DatagramSink::syslog_udp(daemon.local_addr().unwrap(), "penstock");
        let long = [vec![b'x'; MAX_LINE_BYTES + 100], b"\n".to_vec()].concat();
        let now = Instant::now();
        sink.send_line(b"a \"b\"\n", now, WALL).unwrap();
        sink.send_line(&long, now, WALL).unwrap();
        let mut room = vec![0; 65536];
        let length = daemon.recv(&mut room).unwrap();
        let text = std::str::from_utf8(&room[..length]).unwrap();
        let parts: Vec<&str> = text.splitn(8, ' ').collect();
        let pid = std::process::id().to_string();
        assert_eq!(parts[..2], ["<134>1", "1994-11-06T08:49:37.042Z"]);
        assert_eq!(parts[3..], ["penstock", &pid, "access", "-", "a \"b\""]);
        let length = daemon.recv(&mut room).unwrap();
        assert!(room[..length].ends_with(&vec![b'x'; MAX_LINE_BYTES]));
        assert!(length < MAX_LINE_BYTES + 200);
    }

    #[test]
    fn a_daemon_that_comes_back_gets_lines_again() {
        let folder = std::env::temp_dir().join(format!("penstock-sink-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("journal");
        let mut sink = DatagramSink::journal(Some(path.clone()), "penstock");
        let start = Instant::now();
        assert!(sink.send_line(b"lost\n", start, WALL).is_err());
        let first = UnixDatagram::bind(&path).unwrap();
        let soon = start + RETRY_INTERVAL / 2;
        assert!(sink.send_line(b"too soon\n", soon, WALL).is_err());
        let later = start + RETRY_INTERVAL;
        sink.send_line(b"one\n", later, WALL).unwrap();
        let mut room = [0; 200];
        let length = first.recv(&mut room).unwrap();
        let expected = b"SYSLOG_IDENTIFIER=penstock\nPRIORITY=6\nMESSAGE=one\n";
        assert_eq!(&room[..length], expected);
        drop(first);
        std::fs::remove_file(&path).unwrap();
        let second = UnixDatagram::bind(&path).unwrap();
        sink.send_line(b"two\n", later, WALL).unwrap();
        let length = second.recv(&mut room).unwrap();
        assert!(room[..length].ends_with(b"MESSAGE=two\n"));
        let mut two_lines = Vec::new();
        push_journal_field(&mut two_lines, b"A", b"b\nc");
        assert_eq!(two_lines, b"A\n\x03\0\0\0\0\0\0\0b\nc\n");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
