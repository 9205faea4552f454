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

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use penstock_client::Client;
use penstock_runtime::{clock, loops::block_on};
use serde_json::{Value, json};

use super::target::{self, AdminTarget, MAX_RESPONSE_BYTES, RESPONSE_TIMEOUT};
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

pub(super) fn run(to: &ServerLocation, what: &PublishArguments) -> Result<String, String> {
    let target = target::locate_write_target(to)?;
    block_on(publish_all(target, what)).map_err(|error| error.to_string())?
}

/// Publishes the messages. Nothing else runs on this loop, so that input may be waited for.
async fn publish_all(target: AdminTarget, what: &PublishArguments) -> Result<String, String> {
    let mut server = PublishConnection::connect(target).await?;
    if let Some(message) = &what.message {
        server.publish(&[publish_item(what, message)]).await?;
        return Ok("published".to_owned());
    }
    let mut input = BufReader::new(std::io::stdin().lock());
    let mut lines = 0;
    loop {
        let batch = read_batch(&mut input, lines)?;
        if batch.is_empty() {
            return Ok(format!("published {}", pluralize(lines, "message")));
        }
        lines += batch.len() as u64;
        let items: Vec<Value> = batch.iter().map(|text| publish_item(what, text)).collect();
        server.publish(&items).await?;
    }
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

/// Reads the next lines that arrived together, after `done` others; none at the end of the input.
///
/// # Errors
/// An input error, or a line that is too long or not UTF-8.
fn read_batch<R: Read>(input: &mut BufReader<R>, done: u64) -> Result<Vec<String>, String> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while batch.len() < MAX_BATCH_LINES && bytes < MAX_BATCH_BYTES {
        let number = done + batch.len() as u64 + 1;
        let line = read_line(input).map_err(|error| format!("line {number}: {error}"))?;
        let Some(line) = line else { break };
        bytes += line.len();
        batch.push(line);
        if !input.buffer().contains(&b'\n') {
            break;
        }
    }
    Ok(batch)
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
    client: Client,
}

impl PublishConnection {
    async fn connect(target: AdminTarget) -> Result<Self, String> {
        let mut client = Client::new(target.connect_address());
        let connected = client.connect(RESPONSE_TIMEOUT).await;
        connected.map_err(|error| target.explain_error(&error))?;
        Ok(Self { target, client })
    }

    /// Publishes messages; if the server accepts only some of them for now, sends the others later.
    async fn publish(&mut self, mut items: &[Value]) -> Result<(), String> {
        let mut deadline = Instant::now() + BACKLOG_TIMEOUT;
        loop {
            let (status, text) = self.send_items(items).await?;
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
            clock::sleep(RETRY_DELAY).await;
        }
    }

    async fn send_items(&mut self, items: &[Value]) -> Result<(u16, String), String> {
        let body = json!({ "items": items }).to_string();
        let request = self.target.encode_request("POST", "/publish/", &body);
        let exchange = self
            .client
            .exchange(&request, RESPONSE_TIMEOUT, MAX_RESPONSE_BYTES);
        let response = exchange.await;
        let response = response.map_err(|error| self.target.explain_error(&error))?;
        let text = String::from_utf8_lossy(&response.body).into_owned();
        Ok((response.status, text))
    }
}

/// How many messages a server has accepted that is behind with its deliveries.
fn accepted_count(status: u16, text: &str) -> Option<usize> {
    let (number, _) = text.strip_prefix("items[")?.split_once(']')?;
    number.parse().ok().filter(|_| status == 429)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The batches of an input, and the result.
    fn published(input: &[u8], buffer: usize) -> (Vec<Vec<String>>, Result<u64, String>) {
        let mut input = BufReader::with_capacity(buffer, input);
        let (mut batches, mut lines) = (Vec::new(), 0);
        loop {
            match read_batch(&mut input, lines) {
                Ok(batch) if batch.is_empty() => return (batches, Ok(lines)),
                Ok(batch) => {
                    lines += batch.len() as u64;
                    batches.push(batch);
                }
                Err(error) => return (batches, Err(error)),
            }
        }
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
