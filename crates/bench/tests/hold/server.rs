//! A server of streams for the tests: responds by path, keeps streams open, and sends all of them
//! heartbeat comments and published messages.
//!
//! One thread accepts and responds, one sends heartbeats, and one serves each connection that is no
//! stream. On drop it stops accepting and closes all connections.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig;

use crate::socket::Socket;

/// A server of streams on its own port.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    streams: Mutex<Vec<Kept>>,
    /// Connections that are kept open and never served.
    others: Mutex<Vec<TcpStream>>,
    published: AtomicUsize,
    mischief: bool,
    tls: Option<Arc<ServerConfig>>,
}

struct Kept {
    socket: Socket,
    is_chunked: bool,
}

impl Server {
    /// A correct server.
    pub(crate) fn start(beat: Duration) -> Self {
        Self::with(beat, false, None)
    }

    /// A server that publishes incorrectly: its first stream never gets the second message, its
    /// second one gets the third twice.
    pub(crate) fn mischievous(beat: Duration) -> Self {
        Self::with(beat, true, None)
    }

    /// A correct server with TLS.
    pub(crate) fn with_tls(beat: Duration, tls: Arc<ServerConfig>) -> Self {
        Self::with(beat, false, Some(tls))
    }

    fn with(beat: Duration, mischief: bool, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The default of 128 overflows, and resets connections, in a pause of a busy machine.
        rustix::net::listen(&listener, 4096).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            mischief,
            tls,
            ..Shared::default()
        });
        let accepting = Arc::clone(&shared);
        let beating = Arc::clone(&shared);
        let threads = vec![
            std::thread::spawn(move || accepting.accept(&listener)),
            std::thread::spawn(move || beating.beat(beat)),
        ];
        Self {
            address,
            shared,
            threads,
        }
    }

    /// The number of open streams.
    pub(crate) fn streams(&self) -> usize {
        self.shared.streams.lock().unwrap().len()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
        self.shared.streams.lock().unwrap().clear();
        for other in self.shared.others.lock().unwrap().drain(..) {
            let _ = other.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        while let Ok((socket, _)) = listener.accept() {
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            // The client may have given up meanwhile.
            let _ = self.answer(socket);
        }
    }

    fn answer(self: &Arc<Self>, socket: TcpStream) -> io::Result<()> {
        socket.set_read_timeout(Some(DEADLINE))?;
        socket.set_nodelay(true)?;
        let mut socket = Socket::new(socket, self.tls.as_ref());
        let mut pending = Vec::new();
        let Some(head) = head(&mut socket, &mut pending)? else {
            return Ok(());
        };
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        match &*path {
            "/chunked" => self.keep(socket, CHUNKED, true),
            "/until-close" => self.keep(socket, UNTIL_CLOSE, false),
            "/pieces" => {
                for piece in CHUNKED.as_bytes().chunks(11) {
                    socket.write_all(piece)?;
                    std::thread::yield_now();
                }
                self.keep(socket, "", true)
            }
            "/503" => socket.write_all(b"HTTP/1.1 503 Full\r\nContent-Length: 0\r\n\r\n"),
            "/ended" => socket.write_all(format!("{CHUNKED}0\r\n\r\n").as_bytes()),
            "/closed" => socket.write_all(CHUNKED.as_bytes()),
            "/until-close-announced" => {
                socket.write_all(UNTIL_CLOSE.as_bytes())?;
                socket.close_session()
            }
            "/until-close-cut" => socket.write_all(UNTIL_CLOSE.as_bytes()),
            "/reset" => {
                socket.write_all(CHUNKED.as_bytes())?;
                rustix::net::sockopt::set_socket_linger(socket.tcp(), Some(Duration::ZERO))?;
                Ok(())
            }
            "/malformed" => socket.write_all(b"+OK ready\r\n\r\n"),
            "/silent" => {
                socket.write_all(CHUNKED.as_bytes())?;
                self.others.lock().unwrap().push(socket.tcp().try_clone()?);
                Ok(())
            }
            "/never" => {
                self.others.lock().unwrap().push(socket.tcp().try_clone()?);
                Ok(())
            }
            _ => {
                self.others.lock().unwrap().push(socket.tcp().try_clone()?);
                let shared = Arc::clone(self);
                std::thread::spawn(move || shared.serve(socket, pending, head));
                Ok(())
            }
        }
    }

    fn keep(&self, mut socket: Socket, head: &str, is_chunked: bool) -> io::Result<()> {
        socket.write_all(head.as_bytes())?;
        // A client that does not read must not block the others.
        socket.tcp().set_nonblocking(true)?;
        self.streams
            .lock()
            .unwrap()
            .push(Kept { socket, is_chunked });
        Ok(())
    }

    /// Serves requests on a connection that is no stream.
    fn serve(&self, mut socket: Socket, mut pending: Vec<u8>, first: String) {
        let mut next = Some(first);
        while let Some(head) = next {
            if head.starts_with("POST ") {
                let Ok(body) = body(&mut socket, &mut pending, &head) else {
                    return;
                };
                self.publish(&body);
            }
            let answer = match head.contains(" /page ") || head.starts_with("POST ") {
                true => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                false => "HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno",
            };
            if socket.write_all(answer.as_bytes()).is_err() {
                return;
            }
            next = head_or_end(&mut socket, &mut pending);
        }
    }

    fn publish(&self, body: &str) {
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let content = &body["items"][0]["formats"]["http-stream"]["content"];
        let content = content.as_str().unwrap();
        let number = self.published.fetch_add(1, Ordering::SeqCst) + 1;
        let times = |stream: usize| match (self.mischief, stream, number) {
            (true, 0, 2) => 0,
            (true, 1, 3) => 2,
            _ => 1,
        };
        let mut streams = self.streams.lock().unwrap();
        for (index, kept) in streams.iter_mut().enumerate() {
            for _ in 0..times(index) {
                kept.send(content);
            }
        }
    }

    fn beat(&self, every: Duration) {
        while !self.is_over.load(Ordering::SeqCst) {
            let mut streams = self.streams.lock().unwrap();
            streams.retain_mut(|kept| kept.send(":\n\n"));
            drop(streams);
            std::thread::park_timeout(every);
        }
    }
}

impl Kept {
    /// Sends to the stream; returns whether it is still open.
    fn send(&mut self, content: &str) -> bool {
        let chunk = match self.is_chunked {
            true => format!("{:x}\r\n{content}\r\n", content.len()),
            false => content.to_owned(),
        };
        self.socket.try_send(chunk.as_bytes())
    }
}

/// The next head, if the client continues.
fn head_or_end(socket: &mut Socket, pending: &mut Vec<u8>) -> Option<String> {
    head(socket, pending).ok().flatten()
}

fn head(socket: &mut Socket, pending: &mut Vec<u8>) -> io::Result<Option<String>> {
    let mut chunk = [0; 4096];
    loop {
        let end = pending.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end {
            let head: Vec<u8> = pending.drain(..end + 4).collect();
            return Ok(String::from_utf8(head).ok());
        }
        match socket.read(&mut chunk)? {
            0 => return Ok(None),
            count => pending.extend_from_slice(&chunk[..count]),
        }
    }
}

fn body(socket: &mut Socket, pending: &mut Vec<u8>, head: &str) -> io::Result<String> {
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut chunk = [0; 4096];
    while pending.len() < length {
        match socket.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => pending.extend_from_slice(&chunk[..count]),
        }
    }
    let body: Vec<u8> = pending.drain(..length).collect();
    Ok(String::from_utf8(body).unwrap())
}

const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const UNTIL_CLOSE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";

/// A test that waits longer has failed.
const DEADLINE: Duration = Duration::from_secs(20);
