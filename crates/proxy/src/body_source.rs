//! The source of a request body while it is sent to a server; used by `proxied_request` through
//! [`BodySource::poll_piece`].
//!
//! Buffered bodies (memory or an unnamed temporary file) can be sent again to another server. A
//! body that streams from its client cannot, once a byte of it was read.

use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use penstock_exchange::buffering::{BufferingSettings, CollectedBody, SpoolFile};
use penstock_exchange::{Fault, FaultKind, IncomingBody};

/// Maximum bytes of a body sent at once.
pub(crate) const MAX_PIECE_BYTES: usize = 128 * 1024;

pub(crate) enum BodySource {
    Empty,
    /// The whole body; `sent` bytes were read.
    Memory {
        bytes: Vec<u8>,
        sent: usize,
    },
    File(FileBodySource),
    /// The body as the client sends it.
    Stream {
        body: Box<dyn IncomingBody>,
        is_begun: bool,
    },
    /// The body was streamed to its end and its reader released.
    Consumed,
}

pub(crate) struct FileBodySource {
    file: Arc<SpoolFile>,
    len: u64,
    sent: u64,
    store: Arc<BufferingSettings>,
    pending_read: Option<PendingRead>,
}

type PendingRead = Pin<Box<dyn Future<Output = Result<Vec<u8>, Fault>> + Send>>;

impl BodySource {
    pub(crate) fn from_collected(collected: CollectedBody, store: &Arc<BufferingSettings>) -> Self {
        match collected {
            CollectedBody::Empty => Self::Empty,
            CollectedBody::Memory(bytes) => Self::Memory { bytes, sent: 0 },
            CollectedBody::File { file, len } => Self::File(FileBodySource {
                file,
                len,
                sent: 0,
                store: Arc::clone(store),
                pending_read: None,
            }),
        }
    }

    pub(crate) fn framing(&self) -> RequestBodyFraming {
        match self {
            Self::Empty | Self::Consumed => RequestBodyFraming::None,
            Self::Memory { bytes, .. } => RequestBodyFraming::Length(bytes.len() as u64),
            Self::File(file) => RequestBodyFraming::Length(file.len),
            Self::Stream { body, .. } => body
                .length()
                .map_or(RequestBodyFraming::Chunked, RequestBodyFraming::Length),
        }
    }

    /// Rewinds for another server; `false` if bytes that were read cannot be read again.
    pub(crate) fn rewind(&mut self) -> bool {
        match self {
            Self::Empty => {}
            Self::Memory { sent, .. } => *sent = 0,
            Self::File(file) => {
                file.sent = 0;
                file.pending_read = None;
            }
            Self::Stream { is_begun, .. } => return !*is_begun,
            Self::Consumed => return false,
        }
        true
    }

    /// Takes the whole rest if it is in memory and at most `most` bytes.
    pub(crate) fn take_rest_if_small(&mut self, most: usize) -> Option<&[u8]> {
        match self {
            Self::Empty => Some(&[]),
            Self::Memory { bytes, sent } if bytes.len() - *sent <= most => {
                let from = std::mem::replace(sent, bytes.len());
                Some(&bytes[from..])
            }
            _ => None,
        }
    }

    /// Reads the next piece of at most `most` bytes into the empty `into`; ready with `false` at
    /// the end.
    ///
    /// # Errors
    /// The client's, or the temporary file's.
    pub(crate) fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
        into: &mut Vec<u8>,
    ) -> Poll<Result<bool, Fault>> {
        match self {
            Self::Empty | Self::Consumed => Poll::Ready(Ok(false)),
            Self::Memory { bytes, sent } => {
                let count = (bytes.len() - *sent).min(most);
                into.extend_from_slice(&bytes[*sent..*sent + count]);
                *sent += count;
                Poll::Ready(Ok(count > 0))
            }
            Self::File(file) => file.poll_piece(cx, most, into),
            Self::Stream { body, is_begun } => {
                let mut is_more = true;
                while into.is_empty() && is_more {
                    // The first poll invites the client to send (100 Continue).
                    *is_begun = true;
                    is_more = ready!(body.poll_fill(cx, into))?;
                }
                if !is_more {
                    *self = Self::Consumed;
                }
                Poll::Ready(Ok(!into.is_empty()))
            }
        }
    }
}

impl FileBodySource {
    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
        most: usize,
        into: &mut Vec<u8>,
    ) -> Poll<Result<bool, Fault>> {
        let left = usize::try_from(self.len - self.sent).unwrap_or(usize::MAX);
        let len = left.min(most).min(MAX_PIECE_BYTES);
        if len == 0 {
            return Poll::Ready(Ok(false));
        }
        let reading = match &mut self.pending_read {
            Some(reading) => reading,
            None => {
                into.resize(len, 0);
                if let Ok(read @ 1..) = self.file.read_at_if_cached(into, self.sent) {
                    into.truncate(read);
                    self.sent += read as u64;
                    return Poll::Ready(Ok(true));
                }
                into.clear();
                let reading = read_in_pool(&self.store, Arc::clone(&self.file), self.sent, len);
                self.pending_read.insert(reading)
            }
        };
        let piece = ready!(reading.as_mut().poll(cx));
        self.pending_read = None;
        let piece = piece?;
        self.sent += piece.len() as u64;
        into.extend_from_slice(&piece);
        Poll::Ready(Ok(true))
    }
}

fn read_in_pool(
    store: &Arc<BufferingSettings>,
    file: Arc<SpoolFile>,
    at: u64,
    len: usize,
) -> PendingRead {
    let pool = store.pool.clone();
    Box::pin(async move {
        let read = pool.run(move || {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, at).map(|()| bytes)
        });
        match read.await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) => {
                let cause = format!("cannot read a temporary file: {error}");
                Err(Fault::new(FaultKind::Internal, cause))
            }
            Err(full) => Err(Fault::new(FaultKind::Overloaded, full.to_string())),
        }
    })
}

/// How the end of a request body is signalled to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestBodyFraming {
    None,
    Length(u64),
    Chunked,
}

impl std::fmt::Debug for BodySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Source").field(&self.framing()).finish()
    }
}
