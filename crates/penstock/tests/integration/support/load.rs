//! Clients that ask one request after the other while a test changes the server.
//!
//! A client that fails once ends with its error, which fails the test at the end.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{PATIENCE, eventually};

/// One client.
#[derive(Clone, Copy)]
pub(crate) struct LoadClient {
    pub(crate) path: &'static str,
    /// Whether it keeps its connection.
    pub(crate) keeps: bool,
    /// Before each further request, which may cross a close then.
    pub(crate) pause: Duration,
}

/// Clients in threads, until stopped, and their errors.
pub(crate) struct ClientLoad {
    counts: Arc<LoadCounts>,
    clients: Vec<std::thread::JoinHandle<Result<(), String>>>,
}

#[derive(Default)]
struct LoadCounts {
    stop: AtomicBool,
    answered: AtomicUsize,
    /// Connections that clients have made which keep theirs, and those that were closed.
    kept: AtomicUsize,
    ended: AtomicUsize,
}

impl ClientLoad {
    /// `connect` makes a connection for requests to `host`.
    pub(crate) fn start<S: Read + Write>(
        connect: impl Fn() -> Result<S, String> + Clone + Send + 'static,
        host: &'static str,
        clients: &[LoadClient],
    ) -> Self {
        let counts = Arc::<LoadCounts>::default();
        let start = |client: &LoadClient| {
            let (counts, connect, client) = (Arc::clone(&counts), connect.clone(), *client);
            std::thread::spawn(move || run(client, &counts, &connect, host))
        };
        let clients = clients.iter().map(start).collect();
        Self { counts, clients }
    }

    /// Requests that have succeeded.
    pub(crate) fn answered(&self) -> usize {
        self.counts.answered.load(Ordering::Relaxed)
    }

    /// Connections that clients have made which keep theirs.
    pub(crate) fn kept_connections(&self) -> usize {
        self.counts.kept.load(Ordering::Relaxed)
    }

    /// Those of them that are open.
    pub(crate) fn open_connections(&self) -> usize {
        // In this order: a connection is made before it ends.
        let ended = self.counts.ended.load(Ordering::Relaxed);
        self.kept_connections() - ended
    }

    /// Waits until this many more requests have succeeded.
    pub(crate) fn more(&self, count: usize) {
        let goal = self.answered() + count;
        eventually(PATIENCE, "requests are answered", || {
            self.answered() >= goal || self.clients.iter().any(|client| client.is_finished())
        });
    }

    /// Stops the clients.
    ///
    /// # Panics
    /// If a request has failed.
    pub(crate) fn end(self) {
        self.counts.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            assert_eq!(client.join().unwrap(), Ok(()));
        }
    }
}

fn run<S: Read + Write>(
    client: LoadClient,
    counts: &LoadCounts,
    connect: &impl Fn() -> Result<S, String>,
    host: &str,
) -> Result<(), String> {
    let mut kept = None;
    while !counts.stop.load(Ordering::Relaxed) {
        let mut open = match kept.take() {
            Some(open) => open,
            None => {
                let open = connect()?;
                counts
                    .kept
                    .fetch_add(usize::from(client.keeps), Ordering::Relaxed);
                open
            }
        };
        let closes = ask(&mut open, host, client.path)?;
        counts.answered.fetch_add(1, Ordering::Relaxed);
        let has_ended = client.keeps && closes;
        counts
            .ended
            .fetch_add(usize::from(has_ended), Ordering::Relaxed);
        kept = (client.keeps && !closes).then_some(open);
        std::thread::park_timeout(client.pause);
    }
    Ok(())
}

/// One GET; returns the error, or whether the server closes the connection.
fn ask(client: &mut (impl Read + Write), host: &str, path: &str) -> Result<bool, String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let say = |error: std::io::Error| error.to_string();
    client.write_all(request.as_bytes()).map_err(say)?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let count = client.read(&mut chunk).map_err(say)?;
        if count == 0 {
            return Err(format!("closed after {} bytes", answer.len()));
        }
        answer.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&answer).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|l| l.strip_prefix("content-length: "));
        let length: usize = length
            .ok_or("no length")?
            .parse()
            .map_err(|_| "bad length")?;
        if body.len() < length {
            continue;
        }
        return match head.starts_with("http/1.1 200 ") {
            true => Ok(head.contains("connection: close")),
            false => Err(head.lines().next().unwrap_or_default().to_owned()),
        };
    }
}
