//! Held streams through the real binary: an application asks to hold a response and is free, and
//! published messages reach all subscribers.
//!
//! This file has the shared parts: sites whose applications hold streams, a streaming client, and
//! ways to publish.
//!
//! # Invariants
//!
//! - A stream is correctly framed from its first byte to its last.
//! - A client receives every message once and in order.

mod bounds;
mod grip;
mod memory;
pub(crate) mod mercure;
mod persistence;
mod polls;
mod publishing;
mod returns;
mod route;
mod shared_upgrades;
mod tls;

use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::support::{PATIENCE, RawClient, Response, Server, Site, eventually, find, texts};

/// Holds by path: see the file.
const WSGI: &str = include_str!("apps/streams.py");

/// The same in Ruby, as far as it is used.
const RACK: &str = include_str!("apps/streams.ru");

/// One process with one thread: a second concurrent request would be seen.
const ONE: &str = "[apps.app]\nprocesses = 1\nthreads = 1\ngrip = true\n";

/// A WSGI application that holds streams, with more lines in `[server]` and these tables.
fn serve_with(server: &str, tables: &str) -> Server {
    let toml = format!("[server]\nthreads = 2\n{server}\n{ONE}entry = \"app:app\"\n{tables}");
    let server = Site::new().file("app.py", WSGI).config(&toml).serve(&[]);
    server.wait_ready("app");
    server
}

fn serve() -> Server {
    serve_with("", "")
}

struct StreamClient {
    client: RawClient,
    head: String,
    /// The body so far, decoded.
    heard: Vec<u8>,
    /// Whether the last chunk has arrived.
    is_whole: bool,
}

impl StreamClient {
    /// Sends a request, and waits for the head of a stream.
    fn open(server: &Server, path: &str) -> Self {
        Self::asking(server, path, "")
    }

    /// The same with more fields, each with its line end.
    fn asking(server: &Server, path: &str, fields: &str) -> Self {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
        Self::over(client)
    }

    /// Waits for the head of a stream that was requested.
    fn over(mut client: RawClient) -> Self {
        let end = eventually(PATIENCE, "the head of the stream", || {
            find(&client.received, b"\r\n\r\n").or_else(|| {
                let read = client.read_some();
                assert!(read.is_some_and(|bytes| !bytes.is_empty()), "no head came");
                None
            })
        });
        let head: Vec<u8> = client.received.drain(..end + 4).collect();
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert!(
            head.contains("\r\ntransfer-encoding: chunked\r\n"),
            "{head}"
        );
        let mut listener = Self {
            client,
            head,
            heard: Vec::new(),
            is_whole: false,
        };
        listener.decode();
        listener
    }

    /// Decodes whole chunks of the received bytes. An invalid chunk fails the test.
    fn decode(&mut self) {
        while let Some(end) = find(&self.client.received, b"\r\n") {
            let line = String::from_utf8_lossy(&self.client.received[..end]).into_owned();
            let size = usize::from_str_radix(&line, 16);
            let size = size.unwrap_or_else(|_| panic!("chunk {line:?}"));
            let (begin, stop) = (end + 2, end + 2 + size);
            if self.client.received.len() < stop + 2 {
                return;
            }
            assert!(!self.is_whole, "behind the last chunk");
            let whole: Vec<u8> = self.client.received.drain(..stop + 2).collect();
            assert_eq!(&whole[stop..], b"\r\n", "behind the data of a chunk");
            self.heard.extend_from_slice(&whole[begin..stop]);
            self.is_whole = size == 0;
        }
    }

    /// The body so far, as text.
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.heard).into_owned()
    }

    /// Reads until `is_there` accepts the body so far.
    fn until(&mut self, what: &str, is_there: impl Fn(&str) -> bool) -> &mut Self {
        eventually(PATIENCE, what, || {
            is_there(&self.text()) || {
                let read = self.client.read_some();
                let is_open = read.is_some_and(|bytes| !bytes.is_empty());
                self.decode();
                let is_there = is_there(&self.text());
                assert!(
                    is_open || is_there,
                    "{what}: it ended after {:?}",
                    self.text()
                );
                is_there
            }
        });
        self
    }

    /// Reads until the body contains these words.
    fn hear(&mut self, words: &str) -> &mut Self {
        self.until(&format!("{words:?}"), |text| text.contains(words))
    }

    /// Reads to the end, which must be clean; returns the whole body.
    fn end(&mut self) -> String {
        eventually(PATIENCE, "the end of the stream", || {
            let read = self.client.read_some();
            self.decode();
            read.is_none_or(|bytes| bytes.is_empty())
        });
        assert!(self.is_whole, "cut after {:?}", self.text());
        assert_eq!(self.client.received, b"", "behind the last chunk");
        self.text()
    }
}

/// The milliseconds after which a stream that ends asks its client to return.
fn retry_of(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("retry: "));
    let number = line.and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no retry: {text:?}"))
}

/// How many streams the server holds, by its status.
fn held(server: &Server) -> u64 {
    server.admin_json()["hub"]["streams"].as_u64().unwrap()
}

/// Waits until the server holds this many.
fn wait_held(server: &Server, count: u64) {
    let what = format!("{count} streams are held");
    eventually(PATIENCE, &what, || held(server) == count);
}

/// Runs a verb against the server, with this standard input.
fn verb(server: &Server, arguments: &[&str], input: &str) -> (i32, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_penstock"))
        .args(arguments)
        .args(["--admin", &format!("127.0.0.1:{}", server.admin_port())])
        .current_dir(server.site().dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // It may end before it has read all of it.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let (stdout, stderr) = texts(&output);
    (output.status.code().unwrap(), stdout, stderr)
}

/// Publishes with the command line.
fn publish(server: &Server, channel: &str, message: &str) {
    let (code, stdout, stderr) = verb(server, &["publish", channel, message], "");
    assert_eq!((code, stdout.trim()), (0, "published"), "{stderr}");
}

/// Publishes a body, with more fields, each with its line end.
fn post(server: &Server, path: &str, fields: &str, body: &str) -> Response {
    let mut client = server.control();
    let length = body.len();
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
    ));
    client.response()
}
