//! A stream on its way from one event loop to another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Stream, StreamLayer};

/// A stream that is registered with no loop. Dropped, it closes its socket; a layer announces no
/// end then.
#[derive(Debug)]
pub struct DetachedStream {
    socket: OwnedFd,
    layer: Option<Box<dyn StreamLayer>>,
}

impl Stream {
    /// Deregisters the stream, so that any loop may take it.
    pub fn detach(self) -> DetachedStream {
        let (socket, layer) = self.into_parts();
        DetachedStream { socket, layer }
    }
}

impl DetachedStream {
    /// Registers the stream with the current loop.
    ///
    /// # Errors
    /// As [`Stream::new`].
    pub fn attach(self) -> io::Result<Stream> {
        let mut stream = Stream::new(self.socket)?;
        stream.layer = self.layer;
        Ok(stream)
    }
}

impl AsFd for DetachedStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
