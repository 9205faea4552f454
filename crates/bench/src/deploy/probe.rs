//! The readiness probe: one GET, and whether the response is as the scenario expects.
//!
//! `supervised` repeats it until a deployment responds. Separate from `load`, since it needs whole
//! bodies and no speed.
//!
//! # Invariants
//!
//! - Every wait has a deadline and every response a size limit.
//! - No byte of a response is scanned again for each read.
//! - An unexpected response is distinguished from no response yet.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::load::Address;
use crate::scenario::Expect;
use crate::target::Target;

/// More than any page that is compared as a whole; a longer body is truncated.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// A head without an end is invalid.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// So is a chunk line without an end.
const MAX_CHUNK_HEAD_BYTES: usize = 4 << 10;
/// Between two attempts to connect to a Unix socket with a full backlog.
const BACKLOG_RETRY_DELAY: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct ReadinessProbe<'a> {
    pub(super) address: &'a Address,
    pub(super) host: &'a str,
    pub(super) path: &'a str,
    pub(super) headers: &'a [(String, String)],
    pub(super) expect: &'a Expect,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadinessResult {
    /// It responds as expected.
    Ready,
    /// It does not respond yet; the cause.
    NotYet(String),
    /// It responds differently.
    Wrong(String),
}

impl ReadinessProbe<'_> {
    /// Probes once, until `deadline` at the latest.
    pub(super) fn run(&self, deadline: Instant) -> ReadinessResult {
        let answer = match self.exchange(deadline) {
            Ok(bytes) => bytes,
            Err(error) => return ReadinessResult::NotYet(error.to_string()),
        };
        match ProbeResponse::parse(&answer) {
            Some(answer) => answer.judge(self.expect),
            // Also from a server that is starting, or that dies while responding.
            None if answer.is_empty() => {
                ReadinessResult::NotYet("closed without a response".to_owned())
            }
            None => ReadinessResult::Wrong(format!("no HTTP response: {}", excerpt(&answer))),
        }
    }

    fn exchange(&self, deadline: Instant) -> io::Result<Vec<u8>> {
        match self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, time_left(deadline)?)?;
                stream.set_read_timeout(Some(time_left(deadline)?))?;
                stream.set_write_timeout(Some(time_left(deadline)?))?;
                self.send_and_receive(stream, deadline)
            }
            Address::Unix(path) => {
                let stream = connect_unix(path, deadline)?;
                stream.set_read_timeout(Some(time_left(deadline)?))?;
                stream.set_write_timeout(Some(time_left(deadline)?))?;
                self.send_and_receive(stream, deadline)
            }
        }
    }

    fn send_and_receive(
        &self,
        mut stream: impl Read + Write,
        deadline: Instant,
    ) -> io::Result<Vec<u8>> {
        stream.write_all(self.request().as_bytes())?;
        let mut received = ReceivedResponse::default();
        let mut chunk = [0; 16 << 10];
        while received.bytes.len() < MAX_RESPONSE_BYTES && !received.is_complete() {
            // A read may take all the time left at its start: a slowly dripping server is detected
            // here.
            time_left(deadline)?;
            match stream.read(&mut chunk)? {
                0 => break,
                count => received.bytes.extend_from_slice(&chunk[..count]),
            }
        }
        Ok(received.bytes)
    }

    fn request(&self) -> String {
        let mut request = format!("GET {} HTTP/1.1\r\n", self.path);
        let names = || self.headers.iter().map(|(name, _)| name);
        if !names().any(|name| name.eq_ignore_ascii_case("host")) {
            request.extend(["Host: ", self.host, "\r\n"]);
        }
        for (name, value) in self.headers {
            if !name.eq_ignore_ascii_case("connection") {
                request.extend([name, ": ", value, "\r\n"]);
            }
        }
        request.push_str("Connection: close\r\n\r\n");
        request
    }
}

/// Fetches the body of a public page.
///
/// # Errors
/// No response in time, or a status other than 200.
pub(crate) fn fetch_body(target: &Target, within: Duration) -> io::Result<Vec<u8>> {
    let probe = ReadinessProbe {
        address: &target.address,
        host: &target.host,
        path: &target.path,
        headers: &[],
        expect: &Expect::default(),
    };
    let answer = ProbeResponse::parse(&probe.exchange(Instant::now() + within)?);
    let answer = answer.ok_or_else(|| io::Error::other("no HTTP response"))?;
    match answer.status {
        200 => Ok(answer.body),
        status => Err(io::Error::other(format!("status {status}"))),
    }
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "no response in time",
        ));
    }
    Ok(left)
}

/// Connects without blocking for space in the backlog, a wait without a limit.
pub(crate) fn connect_unix(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path)?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            // On a Unix socket (unix(7)) this is a full backlog, not a connection in progress.
            Err(Errno::AGAIN) => {
                let pause = time_left(deadline)?.min(BACKLOG_RETRY_DELAY);
                let _ = poll(&mut [], Timespec::try_from(pause).ok().as_ref());
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The response so far, and the scan position.
#[derive(Default)]
struct ReceivedResponse {
    bytes: Vec<u8>,
    /// No end of the head before this position; once that is found, no chunk head behind it.
    scanned: usize,
    end: Option<ResponseEnd>,
}

#[derive(Clone, Copy)]
enum ResponseEnd {
    AtOffset(usize),
    LastChunk,
    /// At the end of the connection.
    OnClose,
}

impl ReceivedResponse {
    /// Whether the response is complete by its own framing.
    fn is_complete(&mut self) -> bool {
        let end = match self.end {
            Some(end) => end,
            None => match self.find_end() {
                Some(end) => *self.end.insert(end),
                None => return self.bytes.len() > MAX_HEAD_BYTES,
            },
        };
        match end {
            ResponseEnd::AtOffset(end) => self.bytes.len() >= end,
            ResponseEnd::LastChunk => self.is_last_chunk_there(),
            ResponseEnd::OnClose => false,
        }
    }

    fn find_end(&mut self) -> Option<ResponseEnd> {
        // The blank line may be split.
        let from = self.scanned.saturating_sub(3);
        let Some(found) = memchr::memmem::find(&self.bytes[from..], b"\r\n\r\n") else {
            self.scanned = self.bytes.len();
            return None;
        };
        self.scanned = from + found + 4;
        let Some((head, _)) = split_head(&self.bytes) else {
            // Not text, so not a head.
            return Some(ResponseEnd::AtOffset(0));
        };
        Some(match content_length(head) {
            Some(length) => ResponseEnd::AtOffset(self.scanned.saturating_add(length)),
            None if is_chunked(head) => ResponseEnd::LastChunk,
            None => ResponseEnd::OnClose,
        })
    }

    fn is_last_chunk_there(&mut self) -> bool {
        while let Some(rest) = self.bytes.get(self.scanned..) {
            match ChunkHead::parse(rest) {
                ChunkHead::Partial => return false,
                ChunkHead::Malformed | ChunkHead::Complete { data: 0, .. } => return true,
                ChunkHead::Complete { line, data } => {
                    let behind = line.saturating_add(data).saturating_add(2);
                    self.scanned = self.scanned.saturating_add(behind);
                }
            }
        }
        false
    }
}

/// A response, with as much of the body as arrived, decoded.
struct ProbeResponse {
    status: u16,
    body: Vec<u8>,
}

impl ProbeResponse {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, body) = split_head(bytes)?;
        let status = head.lines().next()?.strip_prefix("HTTP/1.")?;
        let status = status.split(' ').nth(1)?.parse().ok()?;
        let body = match content_length(head) {
            Some(length) => body.get(..length).unwrap_or(body).to_vec(),
            None if is_chunked(head) => decode_chunks(body),
            None => body.to_vec(),
        };
        Some(Self { status, body })
    }

    fn judge(&self, expect: &Expect) -> ReadinessResult {
        if self.status != expect.status {
            let what = format!("status {}: {}", self.status, excerpt(&self.body));
            // An application may still be loading behind a front end that responds already.
            return match self.status {
                502 | 503 => ReadinessResult::NotYet(what),
                _ => ReadinessResult::Wrong(format!("{what} (expected status {})", expect.status)),
            };
        }
        let is_body = |text: &&String| self.body == text.as_bytes();
        let is_in = |text: &&String| memchr::memmem::find(&self.body, text.as_bytes()).is_some();
        let missing = expect.body.as_ref().filter(|text| !is_body(text));
        let missing = missing.or_else(|| expect.contains.as_ref().filter(|text| !is_in(text)));
        match missing {
            None => ReadinessResult::Ready,
            Some(wanted) => {
                ReadinessResult::Wrong(format!("{} (expected {wanted:?})", excerpt(&self.body)))
            }
        }
    }
}

fn split_head(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = memchr::memmem::find(bytes, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    Some((head, &bytes[end + 4..]))
}

fn find_field<'a>(head: &'a str, wanted: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

fn content_length(head: &str) -> Option<usize> {
    find_field(head, "content-length")?.parse().ok()
}

fn is_chunked(head: &str) -> bool {
    find_field(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
}

/// The line before a chunk (RFC 9112 §7.1).
enum ChunkHead {
    /// Its end is missing.
    Partial,
    Malformed,
    /// The lengths of the line and of the data behind it.
    Complete {
        line: usize,
        data: usize,
    },
}

impl ChunkHead {
    fn parse(rest: &[u8]) -> Self {
        let begin = &rest[..rest.len().min(MAX_CHUNK_HEAD_BYTES)];
        let Some(end) = memchr::memmem::find(begin, b"\r\n") else {
            return match begin.len() < MAX_CHUNK_HEAD_BYTES {
                true => Self::Partial,
                false => Self::Malformed,
            };
        };
        let size = std::str::from_utf8(&rest[..end]).unwrap_or_default();
        let size = size.split(';').next().unwrap_or_default().trim();
        match usize::from_str_radix(size, 16) {
            Ok(data) => Self::Complete {
                line: end + 2,
                data,
            },
            Err(_) => Self::Malformed,
        }
    }
}

/// Decodes the chunks that arrived and are valid.
fn decode_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while let ChunkHead::Complete { line, data: size } = ChunkHead::parse(rest) {
        let chunk = &rest[line..];
        let Some((chunk, behind)) = chunk.split_at_checked(size) else {
            data.extend_from_slice(chunk);
            break;
        };
        data.extend_from_slice(chunk);
        rest = match size {
            0 => break,
            _ => behind.get(2..).unwrap_or_default(),
        };
    }
    data
}

/// The beginning of a response, for a message.
fn excerpt(bytes: &[u8]) -> String {
    let begin = &bytes[..bytes.len().min(200)];
    format!("{:?}", String::from_utf8_lossy(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(answer: &str, expect: &Expect) -> &'static str {
        match ProbeResponse::parse(answer.as_bytes()).map(|answer| answer.judge(expect)) {
            Some(ReadinessResult::Ready) => "ready",
            Some(ReadinessResult::NotYet(_)) => "not yet",
            Some(ReadinessResult::Wrong(_)) => "wrong",
            None => "no response",
        }
    }

    #[test]
    fn judges_answers() {
        let any = &Expect::default();
        let exact = &Expect {
            body: Some("Hello".to_owned()),
            ..Expect::default()
        };
        let contains = &Expect {
            contains: Some("ell".to_owned()),
            ..Expect::default()
        };
        for (name, answer, expect, verdict) in [
            (
                "until close",
                "HTTP/1.1 200 OK\r\n\r\nHello",
                exact,
                "ready",
            ),
            (
                "length",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello",
                exact,
                "ready",
            ),
            ("too long", "HTTP/1.1 200 OK\r\n\r\nHello!", exact, "wrong"),
            (
                "contains",
                "HTTP/1.0 200 OK\r\n\r\nHello!",
                contains,
                "ready",
            ),
            (
                "chunked",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nHe\r\n3\r\nllo\r\n0\r\n\r\n",
                exact,
                "ready",
            ),
            ("any", "HTTP/1.1 200\r\n\r\n", any, "ready"),
            ("502", "HTTP/1.1 502 Bad Gateway\r\n\r\n", any, "not yet"),
            ("503", "HTTP/1.1 503 Busy\r\n\r\nHello", exact, "not yet"),
            ("500", "HTTP/1.1 500 Error\r\n\r\nHello", exact, "wrong"),
            ("garbage", "SSH-2.0\r\n\r\n", any, "no response"),
            ("half a head", "HTTP/1.1 200 OK\r\nA: b", any, "no response"),
        ] {
            assert_eq!(judged(answer, expect), verdict, "{name}");
        }
    }

    /// The number of bytes, one by one, after which a response is complete; the same as in one
    /// piece.
    fn completed_by(answer: &[u8]) -> Option<usize> {
        let mut received = ReceivedResponse::default();
        let end = (1..=answer.len()).find(|end| {
            received.bytes.push(answer[end - 1]);
            received.is_complete()
        });
        let bytes = answer.to_vec();
        let mut whole = ReceivedResponse {
            bytes,
            ..ReceivedResponse::default()
        };
        assert_eq!(whole.is_complete(), end.is_some());
        end
    }

    #[test]
    fn knows_when_a_response_is_complete() {
        for (answer, is_complete) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nH", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nHe", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nHe\r\n",
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nHe\r\n1;x=y\r\nl\r\n0\r\n",
                true,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nab",
                false,
            ),
            ("HTTP/1.1 200 OK\r\n\r\nHe", false),
        ] {
            let expected = is_complete.then_some(answer.len());
            assert_eq!(completed_by(answer.as_bytes()), expected, "{answer}");
        }
    }

    #[test]
    fn does_not_wait_for_the_end_of_what_is_no_response() {
        let bad_chunk = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n";
        assert!(completed_by(bad_chunk).is_some());
        assert!(completed_by(b"HTTP/1.1 200 \xff\r\n\r\n").is_some());
        assert!(completed_by(&vec![b'x'; MAX_HEAD_BYTES + 1]).is_some());
        let endless = [&bad_chunk[..47], &[b'0'; MAX_CHUNK_HEAD_BYTES]].concat();
        assert!(completed_by(&endless).is_some());
    }

    #[test]
    fn bad_chunks_end_the_body() {
        for (text, data) in [
            ("zz\r\n", ""),
            ("ffffffffffffffff\r\nab", "ab"),
            ("5\r\nab", "ab"),
            ("2\r\nab\r\n-1\r\ncd", "ab"),
            ("2\r\nab\r\n0\r\n\r\n", "ab"),
            ("", ""),
            ("-1\r\n", ""),
        ] {
            assert_eq!(decode_chunks(text.as_bytes()), data.as_bytes(), "{text}");
        }
    }

    #[test]
    fn a_full_backlog_is_waited_for_no_longer_than_the_deadline() {
        let folder = crate::deploy::new_temp_dir().unwrap();
        let path = folder.path().join("full.sock");
        let flags = SocketFlags::CLOEXEC;
        let full = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&full, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let now = Instant::now();
        let _first = connect_unix(&path, now + Duration::from_secs(10)).unwrap();
        let found = connect_unix(&path, now + Duration::from_millis(50));
        assert_eq!(found.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
