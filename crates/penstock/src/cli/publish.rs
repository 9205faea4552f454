//! `penstock publish`: publishes one message, or one for each line of standard input, over one
//! connection.
//!
//! Each message is sent as an event for event streams and as a text for long polls and WebSockets,
//! so that it reaches every subscriber. Lines that arrive together are sent together.
//!
//! # Invariants
//!
//! - Messages arrive in the order of their lines.
//! - At most one batch is read ahead of the server, and a server that is behind is waited for.
//! - Exits with 1 and the server's message if any message was refused.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::admin::{self, ClientStream, RESPONSE_TIMEOUT};
use super::target::{self, AdminTarget};
use super::{PublishArguments, ServerLocation, pluralize};

/// Maximum line length: thrice that, and its JSON, still fits the server's limits of messages and
/// bodies.
const MAX_LINE_BYTES: usize = 256 << 10;

/// Maximum number of lines in a request, and the bytes that make it full.
const MAX_BATCH_LINES: usize = 200;
const MAX_BATCH_BYTES: usize = 128 << 10;

/// How long a server may be behind with its deliveries, and the delay between two tries.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(30);
const RETRY_DELAY: Duration = Duration::from_millis(50);

const MAX_RESPONSE_BYTES: usize = 64 << 10;

pub(super) fn run(to: &ServerLocation, what: &PublishArguments) -> ExitCode {
    let published = target::locate_for_changes(to).and_then(|target| {
        let mut server = PublishConnection::connect(target)?;
        match &what.message {
            Some(message) => {
                server.publish(&[publish_item(what, message)])?;
                Ok("published".to_owned())
            }
            None => {
                let lines = BufReader::new(std::io::stdin().lock());
                let lines = publish_lines(lines, |texts| {
                    let items: Vec<Value> =
                        texts.iter().map(|text| publish_item(what, text)).collect();
                    server.publish(&items)
                })?;
                Ok(format!("published {}", pluralize(lines, "message")))
            }
        }
    });
    admin::print_result(published)
}

fn publish_item(what: &PublishArguments, message: &str) -> Value {
    let mut event = json!({ "data": message });
    if let Some(name) = &what.event {
        event["event"] = json!(name);
    }
    let mut item = json!({
        "channel": what.channel,
        "formats": {
            "event": event,
            "http-response": { "body": format!("{message}\n") },
            "ws-message": { "content": message },
        },
    });
    if let Some(id) = &what.id {
        item["id"] = json!(id);
    }
    if let Some(namespace) = &what.namespace {
        item["namespace"] = json!(namespace);
    }
    item
}

/// Passes every line to `publish`, lines that were read together in one call; returns the number of
/// lines.
///
/// # Errors
/// An input error, a line that is too long or not UTF-8, or the first error of `publish`.
fn publish_lines<R: Read>(
    mut input: BufReader<R>,
    mut publish: impl FnMut(&[String]) -> Result<(), String>,
) -> Result<u64, String> {
    let (mut batch, mut bytes, mut done) = (Vec::new(), 0, 0);
    loop {
        let line = read_line(&mut input).map_err(|error| format!("line {}: {error}", done + 1))?;
        let is_end = line.is_none();
        if let Some(line) = line {
            bytes += line.len();
            batch.push(line);
            done += 1;
        }
        let has_more = !is_end && input.buffer().contains(&b'\n');
        let is_full = batch.len() >= MAX_BATCH_LINES || bytes >= MAX_BATCH_BYTES;
        if !batch.is_empty() && (is_full || !has_more) {
            publish(&batch)?;
            batch.clear();
            bytes = 0;
        }
        if is_end {
            return Ok(done);
        }
    }
}

/// Returns the next line without its line end; `None` at the end of the input.
fn read_line(input: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    let most = MAX_LINE_BYTES as u64 + 2;
    let read = input.by_ref().take(most).read_until(b'\n', &mut line);
    if read.map_err(|error| error.to_string())? == 0 {
        return Ok(None);
    }
    let text = line.strip_suffix(b"\n").unwrap_or(&line);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.len() > MAX_LINE_BYTES {
        return Err(format!("longer than {MAX_LINE_BYTES} bytes"));
    }
    let text = std::str::from_utf8(text).map_err(|_| "not UTF-8".to_owned())?;
    Ok(Some(text.to_owned()))
}

/// A keep-alive connection to the admin interface.
struct PublishConnection {
    target: AdminTarget,
    channel: Box<dyn ClientStream>,
    /// Whether the server has responded on this connection.
    has_answered: bool,
    received: Vec<u8>,
}

impl PublishConnection {
    fn connect(target: AdminTarget) -> Result<Self, String> {
        let channel = target::connect(&target.address, RESPONSE_TIMEOUT);
        let channel =
            channel.map_err(|error| target::explain_connect_error(&target.address, &error))?;
        Ok(Self {
            target,
            channel,
            has_answered: false,
            received: Vec::new(),
        })
    }

    /// Publishes messages; if the server accepts only some of them for now, sends the others later.
    fn publish(&mut self, mut items: &[Value]) -> Result<(), String> {
        let mut deadline = Instant::now() + BACKLOG_TIMEOUT;
        loop {
            let (status, text) = self.send_items(items)?;
            if status == 200 {
                return Ok(());
            }
            let taken = accepted_count(status, &text).filter(|_| Instant::now() < deadline);
            let Some(rest) = taken.and_then(|taken| items.get(taken..)) else {
                return Err(text.trim_end().to_owned());
            };
            if rest.len() < items.len() {
                deadline = Instant::now() + BACKLOG_TIMEOUT;
            }
            items = rest;
            sleep_before_retry();
        }
    }

    fn send_items(&mut self, items: &[Value]) -> Result<(u16, String), String> {
        let body = json!({ "items": items }).to_string();
        let request = encode_request(&self.target, &body);
        let answer = match self.send_and_receive(&request) {
            // No line arrived for longer than the server's idle timeout.
            Err(error) if self.has_answered && is_closed_between_requests(error.kind()) => {
                *self = Self::connect(self.target.clone())?;
                self.send_and_receive(&request)
            }
            other => other,
        }
        .map_err(|error| format!("{}: {error}", self.target.address))?;
        self.has_answered = true;
        Ok(answer)
    }

    fn send_and_receive(&mut self, request: &[u8]) -> std::io::Result<(u16, String)> {
        self.received.clear();
        self.channel.write_all(request)?;
        let mut buffer = [0; 4096];
        loop {
            let read = self.channel.read(&mut buffer)?;
            if read == 0 {
                let kind = match self.received.is_empty() {
                    true => ErrorKind::ConnectionReset,
                    false => ErrorKind::UnexpectedEof,
                };
                return Err(kind.into());
            }
            self.received.extend_from_slice(&buffer[..read]);
            if let Some(answer) = parse_response(&self.received) {
                return answer.ok_or_else(|| invalid_data("it does not speak HTTP"));
            }
            if self.received.len() > MAX_RESPONSE_BYTES {
                return Err(invalid_data("its response is too long"));
            }
        }
    }
}

fn encode_request(target: &AdminTarget, body: &str) -> Vec<u8> {
    let (length, authorization) = (body.len(), target.authorization_header());
    format!(
        "POST /publish/ HTTP/1.1\r\nHost: localhost\r\n{authorization}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// How many messages a server has accepted that is behind with its deliveries.
fn accepted_count(status: u16, text: &str) -> Option<usize> {
    let (number, _) = text.strip_prefix("items[")?.split_once(']')?;
    number.parse().ok().filter(|_| status == 429)
}

fn sleep_before_retry() {
    #[expect(clippy::disallowed_methods, reason = "a command line tool, not a loop")]
    std::thread::sleep(RETRY_DELAY);
}

/// Whether a connection was closed between two requests, so that the server read nothing of the
/// second.
fn is_closed_between_requests(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

fn invalid_data(text: &'static str) -> std::io::Error {
    std::io::Error::new(ErrorKind::InvalidData, text)
}

/// Status and body of a response; `None` while it is incomplete, `Some(None)` if it is invalid.
fn parse_response(received: &[u8]) -> Option<Option<(u16, String)>> {
    let text = String::from_utf8_lossy(received);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let parse = || {
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let length = head.split("\r\n").find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then_some(value.trim())
        });
        Some((status, length?.parse::<usize>().ok()?))
    };
    match parse() {
        None => Some(None),
        Some((_, length)) if body.len() < length => None,
        Some((status, _)) => Some(Some((status, body.to_owned()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The batches of an input, and the result.
    fn published(input: &[u8], buffer: usize) -> (Vec<Vec<String>>, Result<u64, String>) {
        let mut batches = Vec::new();
        let ended = publish_lines(BufReader::with_capacity(buffer, input), |lines| {
            batches.push(lines.to_vec());
            Ok(())
        });
        (batches, ended)
    }

    #[test]
    fn lines_are_messages_and_go_together_when_they_came_together() {
        for (input, buffer, expected) in [
            ("", 100, vec![]),
            ("one", 100, vec![vec!["one"]]),
            (
                "one\r\ntwo\n\nfour",
                100,
                vec![vec!["one", "two", ""], vec!["four"]],
            ),
            (
                "one\ntwo\nthree\n",
                4,
                vec![vec!["one"], vec!["two"], vec!["three"]],
            ),
        ] {
            let (batches, ended) = published(input.as_bytes(), buffer);
            let lines: usize = expected.iter().map(Vec::len).sum();
            assert_eq!(batches, expected, "{input:?}");
            assert_eq!(ended, Ok(lines as u64), "{input:?}");
        }
    }

    #[test]
    fn a_batch_is_bounded_in_lines_and_in_bytes() {
        let input = "x\n".repeat(MAX_BATCH_LINES * 2 + 1);
        let (batches, _) = published(input.as_bytes(), 1 << 20);
        let sizes: Vec<_> = batches.iter().map(Vec::len).collect();
        assert_eq!(sizes, [MAX_BATCH_LINES, MAX_BATCH_LINES, 1]);
        let long = "x".repeat(MAX_BATCH_BYTES);
        let input = format!("{long}\n{long}\n");
        let (batches, _) = published(input.as_bytes(), 1 << 20);
        assert_eq!(batches.len(), 2);
    }

    #[test]
    fn a_line_that_is_no_message_is_named() {
        let long = "x".repeat(MAX_LINE_BYTES);
        assert_eq!(published(format!("{long}\r\n").as_bytes(), 4096).1, Ok(1));
        for (input, expected) in [
            (
                format!("a\n{long}x\nb\n").into_bytes(),
                "line 2: longer than 262144 bytes",
            ),
            (b"a\nb\n\xff\n".to_vec(), "line 3: not UTF-8"),
        ] {
            let (batches, ended) = published(&input, 1 << 20);
            assert_eq!(ended, Err(expected.to_owned()));
            assert!(batches.len() <= 1);
        }
    }

    #[test]
    fn an_answer_is_whole_when_its_body_is() {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n";
        for (received, expected) in [
            ("HTTP/1.1 200 OK\r\n".to_owned(), None),
            (format!("{head}ab"), None),
            (format!("{head}abc"), Some(Some((200, "abc".to_owned())))),
            ("HTTP/1.1 200 OK\r\n\r\n".to_owned(), Some(None)),
            ("SSH-2.0\r\n\r\n".to_owned(), Some(None)),
        ] {
            assert_eq!(
                parse_response(received.as_bytes()),
                expected,
                "{received:?}"
            );
        }
    }

    #[test]
    fn what_a_server_has_taken_is_not_said_again() {
        for (status, text, expected) in [
            (
                429,
                "items[3]: more than hub.max_backlog_total (9) bytes wait\n",
                Some(3),
            ),
            (503, "items[0]: the server stops\n", None),
            (413, "items[3]: too long\n", None),
            (503, "the server has stopped\n", None),
            (429, "items[x]: ?\n", None),
        ] {
            assert_eq!(accepted_count(status, text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_message_has_every_form() {
        let what = PublishArguments {
            channel: "news".to_owned(),
            message: None,
            event: Some("tick".to_owned()),
            id: Some("7".to_owned()),
            namespace: None,
        };
        let expected = json!({
            "channel": "news",
            "id": "7",
            "formats": {
                "event": { "event": "tick", "data": "a" },
                "http-response": { "body": "a\n" },
                "ws-message": { "content": "a" },
            },
        });
        assert_eq!(publish_item(&what, "a"), expected);
    }
}
