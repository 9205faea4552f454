//! The readiness probe: one GET, and whether the answer is what the scenario expects.
//!
//! `running` asks again and again until a deployment answers. Written here and not taken from `load`,
//! since it needs a whole body and nothing of the speed. What must stay true: every wait has a
//! deadline, every answer a bound, and an answer that is not expected is told from none yet.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::load::Address;
use crate::scenario::{Content, Expect};
use crate::target::Target;

/// More than any page that is compared as a whole; a longer body is cut here.
const BYTES_MAX: u64 = 64 << 20;

/// What the probe asks for.
#[derive(Debug)]
pub(super) struct Probe<'a> {
    pub(super) address: &'a Address,
    pub(super) host: &'a str,
    pub(super) path: &'a str,
    pub(super) headers: &'a [(String, String)],
    pub(super) expect: &'a Expect,
}

/// What came of asking once.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// It answers as it must.
    Ready,
    /// It does not answer yet; why.
    NotYet(String),
    /// It answers something else.
    Wrong(String),
}

impl Probe<'_> {
    /// Asks once; takes no longer than until `deadline`.
    pub(super) fn ask(&self, deadline: Instant) -> Finding {
        let answer = match self.exchange(deadline) {
            Ok(bytes) => bytes,
            Err(error) => return Finding::NotYet(error.to_string()),
        };
        match Answer::parse(&answer) {
            Some(answer) => answer.judged(self.expect),
            // Also what a server sends that is only half started, or dies while it answers.
            None if answer.is_empty() => Finding::NotYet("closed without an answer".to_owned()),
            None => Finding::Wrong(format!("no HTTP response: {}", shown(&answer))),
        }
    }

    fn exchange(&self, deadline: Instant) -> io::Result<Vec<u8>> {
        match self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, left(deadline)?)?;
                stream.set_read_timeout(Some(left(deadline)?))?;
                stream.set_write_timeout(Some(left(deadline)?))?;
                self.converse(stream, deadline)
            }
            // A full backlog would make this connect wait, and nothing else connects here.
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(left(deadline)?))?;
                stream.set_write_timeout(Some(left(deadline)?))?;
                self.converse(stream, deadline)
            }
        }
    }

    fn converse(&self, mut stream: impl Read + Write, deadline: Instant) -> io::Result<Vec<u8>> {
        stream.write_all(self.request().as_bytes())?;
        let mut answer = Vec::new();
        let mut chunk = [0; 16 << 10];
        while (answer.len() as u64) < BYTES_MAX && !is_complete(&answer) {
            // Each read may take as long as is left at the start: a dripping server is noticed here.
            left(deadline)?;
            match stream.read(&mut chunk)? {
                0 => break,
                count => answer.extend_from_slice(&chunk[..count]),
            }
        }
        Ok(answer)
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

/// The body of a page that a server has for everybody.
///
/// # Errors
/// When it does not answer in time, or not with 200.
pub(crate) fn fetch(target: &Target, within: Duration) -> io::Result<Vec<u8>> {
    let probe = Probe {
        address: &target.address,
        host: &target.host,
        path: &target.path,
        headers: &[],
        expect: &Expect {
            status: 200,
            body: Content::Any,
        },
    };
    let answer = Answer::parse(&probe.exchange(Instant::now() + within)?);
    let answer = answer.ok_or_else(|| io::Error::other("no HTTP response"))?;
    match answer.status {
        200 => Ok(answer.body),
        status => Err(io::Error::other(format!("status {status}"))),
    }
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
    }
    Ok(left)
}

/// A response, body decoded as far as it came.
struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, body) = split_head(bytes)?;
        let status = head.lines().next()?.strip_prefix("HTTP/1.")?;
        let status = status.split(' ').nth(1)?.parse().ok()?;
        let length = field(head, "content-length").and_then(|text| text.parse().ok());
        let body = match length {
            Some(length) => body.get(..length).unwrap_or(body).to_vec(),
            None if is_chunked(head) => dechunked(body).0,
            None => body.to_vec(),
        };
        Some(Self { status, body })
    }

    fn judged(&self, expect: &Expect) -> Finding {
        if self.status != expect.status {
            let what = format!("status {}: {}", self.status, shown(&self.body));
            // An application may still be loading behind a front end that answers already.
            return match self.status {
                502 | 503 => Finding::NotYet(what),
                _ => Finding::Wrong(format!("{what} (expected status {})", expect.status)),
            };
        }
        let (fits, wanted) = match &expect.body {
            Content::Any => (true, ""),
            Content::Exact(text) => (self.body == text.as_bytes(), text.as_str()),
            Content::Contains(text) => (
                memchr::memmem::find(&self.body, text.as_bytes()).is_some(),
                text.as_str(),
            ),
        };
        match fits {
            true => Finding::Ready,
            false => Finding::Wrong(format!("{} (expected {wanted:?})", shown(&self.body))),
        }
    }
}

fn split_head(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = memchr::memmem::find(bytes, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    Some((head, &bytes[end + 4..]))
}

fn field<'a>(head: &'a str, wanted: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then(|| value.trim())
    })
}

fn is_chunked(head: &str) -> bool {
    field(head, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
}

/// Whether nothing more belongs to the response, as far as it says so itself.
fn is_complete(bytes: &[u8]) -> bool {
    let Some((head, body)) = split_head(bytes) else {
        return false;
    };
    match field(head, "content-length").and_then(|text| text.parse::<usize>().ok()) {
        Some(length) => body.len() >= length,
        None => is_chunked(head) && dechunked(body).1,
    }
}

/// The data of chunks (RFC 9112 §7.1), and whether the last one was there.
fn dechunked(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut data = Vec::new();
    while let Some(end) = memchr::memmem::find(rest, b"\r\n") {
        let size = std::str::from_utf8(&rest[..end]).unwrap_or_default();
        let size = size.split(';').next().unwrap_or_default().trim();
        let Ok(size) = usize::from_str_radix(size, 16) else {
            break;
        };
        if size == 0 {
            return (data, true);
        }
        rest = &rest[end + 2..];
        let Some((chunk, behind)) = rest.split_at_checked(size) else {
            data.extend_from_slice(rest);
            break;
        };
        data.extend_from_slice(chunk);
        rest = behind.get(2..).unwrap_or_default();
    }
    (data, false)
}

/// The beginning of what came, for a message.
fn shown(bytes: &[u8]) -> String {
    let begin = &bytes[..bytes.len().min(200)];
    format!("{:?}", String::from_utf8_lossy(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(body: Content) -> Expect {
        Expect { status: 200, body }
    }

    fn judged(answer: &str, body: Content) -> &'static str {
        match Answer::parse(answer.as_bytes()).map(|answer| answer.judged(&expect(body))) {
            Some(Finding::Ready) => "ready",
            Some(Finding::NotYet(_)) => "not yet",
            Some(Finding::Wrong(_)) => "wrong",
            None => "no response",
        }
    }

    #[test]
    fn judges_answers() {
        let exact = || Content::Exact("Hello".to_owned());
        let contains = || Content::Contains("ell".to_owned());
        for (name, answer, body, verdict) in [
            (
                "until close",
                "HTTP/1.1 200 OK\r\n\r\nHello",
                exact(),
                "ready",
            ),
            (
                "length",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHello",
                exact(),
                "ready",
            ),
            (
                "too long",
                "HTTP/1.1 200 OK\r\n\r\nHello!",
                exact(),
                "wrong",
            ),
            (
                "contains",
                "HTTP/1.0 200 OK\r\n\r\nHello!",
                contains(),
                "ready",
            ),
            (
                "chunked",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nHe\r\n3\r\nllo\r\n0\r\n\r\n",
                exact(),
                "ready",
            ),
            ("any", "HTTP/1.1 200\r\n\r\n", Content::Any, "ready"),
            (
                "502",
                "HTTP/1.1 502 Bad Gateway\r\n\r\n",
                Content::Any,
                "not yet",
            ),
            ("503", "HTTP/1.1 503 Busy\r\n\r\nHello", exact(), "not yet"),
            ("500", "HTTP/1.1 500 Error\r\n\r\nHello", exact(), "wrong"),
            ("garbage", "SSH-2.0\r\n\r\n", Content::Any, "no response"),
            (
                "half a head",
                "HTTP/1.1 200 OK\r\nA: b",
                Content::Any,
                "no response",
            ),
        ] {
            assert_eq!(judged(answer, body), verdict, "{name}");
        }
    }

    #[test]
    fn knows_when_a_response_is_complete() {
        for (answer, complete) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nH", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nHe", true),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nHe\r\n",
                false,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nHe\r\n0\r\n",
                true,
            ),
            ("HTTP/1.1 200 OK\r\n\r\nHe", false),
        ] {
            assert_eq!(is_complete(answer.as_bytes()), complete, "{answer}");
        }
    }

    #[test]
    fn bad_chunks_end_the_body() {
        for text in ["zz\r\n", "ffffffffffffffff\r\nab", "5\r\nab", "", "-1\r\n"] {
            assert!(!dechunked(text.as_bytes()).1, "{text}");
        }
    }
}
