//! A scripted server: one thread per connection, blocking, with a deadline on every read.
//!
//! The script gets the connection and its number; [`Server::answering`] answers every request with
//! the same bytes. On drop it stops accepting.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_bench::load::Address;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The usual response.
pub(crate) const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// A server on its own port or path.
pub(crate) struct Server {
    pub(crate) address: Address,
    shared: Arc<Shared>,
}

/// Counters of the connections' threads.
#[derive(Default)]
pub(crate) struct Shared {
    requests: AtomicU64,
    connections: AtomicU64,
    lines: Mutex<Vec<String>>,
    has_ended: AtomicBool,
}

pub(crate) struct Connection {
    socket: Socket,
    pending: Vec<u8>,
    shared: Arc<Shared>,
    /// From 0, in the order of acceptance.
    pub(crate) number: u64,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Server {
    /// A TCP server that gives each connection to `script`.
    pub(crate) fn start(script: impl Fn(&mut Connection) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Self::accept(Address::Tcp(address), script, move || {
            let (socket, _) = listener.accept()?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(DEADLINE))?;
            Ok(Socket::Tcp(socket))
        })
    }

    /// As [`Server::start`], with TLS. The script gets the connection before the handshake, which
    /// its first read or write makes.
    pub(crate) fn start_tls(
        config: Arc<ServerConfig>,
        script: impl Fn(&mut Connection) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Self::accept(Address::Tcp(address), script, move || {
            let (socket, _) = listener.accept()?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(DEADLINE))?;
            let session = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
            Ok(Socket::Tls(Box::new(StreamOwned::new(session, socket))))
        })
    }

    /// As [`Server::start`], on a Unix socket.
    pub(crate) fn start_unix(script: impl Fn(&mut Connection) + Send + Sync + 'static) -> Self {
        let name = format!("penstock-load-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        Self::accept(Address::Unix(path), script, move || {
            let (socket, _) = listener.accept()?;
            socket.set_read_timeout(Some(DEADLINE))?;
            Ok(Socket::Unix(socket))
        })
    }

    /// A server that answers every request with `answer`.
    pub(crate) fn answering(answer: &'static str) -> Self {
        Self::start(move |connection| {
            while connection.request().is_some() {
                connection.send(answer);
            }
        })
    }

    fn accept(
        address: Address,
        script: impl Fn(&mut Connection) + Send + Sync + 'static,
        accept: impl Fn() -> io::Result<Socket> + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let (counts, script) = (Arc::clone(&shared), Arc::new(script));
        std::thread::spawn(move || {
            while let Ok(socket) = accept() {
                if counts.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                let mut connection = Connection {
                    socket,
                    pending: Vec::new(),
                    shared: Arc::clone(&counts),
                    number: counts.connections.fetch_add(1, Ordering::Relaxed),
                };
                let script = Arc::clone(&script);
                std::thread::spawn(move || script(&mut connection));
            }
        });
        Self { address, shared }
    }

    /// Requests read so far.
    pub(crate) fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The request lines, up to the version, in the order of reading.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.shared.lines.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        // One more connection lets the accepting thread see it.
        match &self.address {
            Address::Tcp(address) => drop(TcpStream::connect(address)),
            Address::Unix(path) => {
                drop(UnixStream::connect(path));
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Connection {
    /// The next request line, without its version; `None` if the client closed or is silent.
    pub(crate) fn request(&mut self) -> Option<String> {
        loop {
            if let Some(end) = find(&self.pending, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.pending[..end]).into_owned();
                self.pending.drain(..end + 4);
                self.shared.requests.fetch_add(1, Ordering::Relaxed);
                let line = head.split(" HTTP/").next().unwrap_or_default().to_owned();
                let mut lines = self.shared.lines.lock().unwrap();
                if lines.len() < LINES_MAX {
                    lines.push(line.clone());
                }
                return Some(line);
            }
            let mut buffer = [0; 4096];
            let count = match &mut self.socket {
                Socket::Tcp(socket) => socket.read(&mut buffer),
                Socket::Unix(socket) => socket.read(&mut buffer),
                Socket::Tls(socket) => socket.read(&mut buffer),
            };
            match count {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.pending.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// Reads exactly `count` bytes of a request body.
    pub(crate) fn body(&mut self, count: usize) {
        while self.pending.len() < count {
            let mut buffer = [0; 65536];
            let read = match &mut self.socket {
                Socket::Tcp(socket) => socket.read(&mut buffer),
                Socket::Unix(socket) => socket.read(&mut buffer),
                Socket::Tls(socket) => socket.read(&mut buffer),
            };
            match read {
                Ok(0) | Err(_) => return,
                Ok(read) => self.pending.extend_from_slice(&buffer[..read]),
            }
        }
        self.pending.drain(..count);
    }

    /// Sends text; ignores a client that disconnected.
    pub(crate) fn send(&mut self, text: &str) {
        let _ = match &mut self.socket {
            Socket::Tcp(socket) => socket.write_all(text.as_bytes()),
            Socket::Unix(socket) => socket.write_all(text.as_bytes()),
            Socket::Tls(socket) => {
                let sent = socket.write_all(text.as_bytes());
                sent.and_then(|()| socket.flush())
            }
        };
    }

    /// Announces the end of a TLS session, which a close alone does not.
    pub(crate) fn close_session(&mut self) {
        if let Socket::Tls(socket) = &mut self.socket {
            socket.conn.send_close_notify();
            let _ = socket.flush();
        }
    }

    /// Changes the keys of a TLS session, which sends a message beside the responses.
    pub(crate) fn update_keys(&mut self) {
        if let Socket::Tls(socket) = &mut self.socket {
            let _ = socket.conn.refresh_traffic_keys();
            let _ = socket.flush();
        }
    }

    /// The socket below a TLS session.
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        match &mut self.socket {
            Socket::Tls(socket) => &mut socket.sock,
            Socket::Tcp(socket) => socket,
            Socket::Unix(_) => panic!("not a TCP socket"),
        }
    }

    /// Waits for a request and leaves it unread: the close that follows is a reset.
    pub(crate) fn wait_for_bytes(&mut self) {
        if let Socket::Tcp(socket) = &self.socket {
            let _ = socket.peek(&mut [0]);
        }
    }
}

/// Simulates a slow server.
pub(crate) fn take(time: Duration) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}

/// An address that refuses: it was bound before.
pub(crate) fn refusing() -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    Address::Tcp(address)
}

/// A Unix path without a listener.
pub(crate) fn nowhere() -> Address {
    Address::Unix(PathBuf::from("/nonexistent/penstock.sock"))
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|it| it == part)
}

const DEADLINE: Duration = Duration::from_secs(20);

const LINES_MAX: usize = 10_000;
