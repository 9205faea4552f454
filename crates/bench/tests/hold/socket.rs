//! The server's end of a connection, with or without TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Socket {
    /// The handshake is made by the first read.
    pub(crate) fn new(socket: TcpStream, tls: Option<&Arc<ServerConfig>>) -> Self {
        match tls {
            None => Self::Plain(socket),
            Some(config) => {
                let session = ServerConnection::new(Arc::clone(config)).unwrap();
                Self::Tls(Box::new(StreamOwned::new(session, socket)))
            }
        }
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(session) => &session.sock,
        }
    }

    /// Sends `bytes` without waiting; returns whether the connection is still open.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        let sent = match self {
            // A partial chunk would break what follows.
            Self::Plain(socket) => socket.write(bytes).and_then(|count| match count {
                count if count == bytes.len() => Ok(()),
                _ => Err(io::ErrorKind::WriteZero.into()),
            }),
            Self::Tls(session) => {
                let StreamOwned { conn, sock } = &mut **session;
                let mut sent = conn.writer().write_all(bytes);
                // What does not fit is sent before the next bytes.
                while sent.is_ok() && conn.wants_write() {
                    sent = conn.write_tls(sock).map(|_| ());
                }
                sent
            }
        };
        sent.map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |()| true)
    }

    /// Announces the end of a session.
    pub(crate) fn close_session(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(session) => {
                session.conn.send_close_notify();
                session.flush()
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(session) => session.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(session) => session.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(session) => session.flush(),
        }
    }
}
