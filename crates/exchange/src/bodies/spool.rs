//! Between a worker or back end that produces a response and a client that takes it at its own pace.
//!
//! The slot driver pushes, edge pulls. The worker is relieved as fast as it produces: pieces wait in
//! memory up to `limits.response_memory`, beyond that in a nameless file up to
//! `limits.response_spool`, and only then does the worker wait. A response that asks not to be
//! buffered (`X-Accel-Buffering: no`, `text/event-stream`) never touches the file. What must stay
//! true: bytes come out in the order they went in, and an end that is a failure is seen as one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use penstock_http::FieldBlock;
use penstock_runtime::blocking::{Pool, PoolError};

use super::collect::stored;
use super::{BodyStore, NamelessFile};
use crate::{BodyStream, Fault, FaultKind};

/// Bytes read from the file at a time.
const READ_BYTES: usize = 128 * 1024;

/// Small pieces are joined up to this size: each costs an allocation here and a chunk on the wire.
const JOIN_BYTES: usize = 4 * 1024;

/// The worker's side.
#[derive(Debug)]
pub struct SpoolWriter {
    shared: Arc<Shared>,
    store: Arc<BodyStore>,
    /// Never to a file.
    is_unbuffered: bool,
    /// Pushed and neither in memory nor in the file yet.
    overflow: Vec<u8>,
}

/// The client's side.
pub struct SpoolReader {
    shared: Arc<Shared>,
    pool: Pool,
    length: Option<u64>,
    reading: Option<ReadWork>,
}

type ReadWork = Pin<Box<dyn Future<Output = Result<std::io::Result<Vec<u8>>, PoolError>> + Send>>;

#[derive(Debug, Default)]
struct Shared {
    /// Both sides' view; held for a move of pieces only.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    memory: VecDeque<Vec<u8>>,
    memory_bytes: usize,
    file: Option<Arc<NamelessFile>>,
    read_at: u64,
    write_at: u64,
    /// A write to the file is under way, at `write_at`: positions must not start anew meanwhile.
    is_writing: bool,
    end: Option<Result<(), Fault>>,
    /// Fields behind the body; there before its end is told.
    trailers: Option<FieldBlock>,
    is_reader_gone: bool,
    reader: Option<Waker>,
    /// The writer waits for room.
    writer: Option<Waker>,
    /// The writer wants to know when the reader leaves.
    watcher: Option<Waker>,
}

/// A pair of ends; `length` is the declared one. One that `is_unbuffered` never uses a file.
#[must_use]
pub fn spool(
    store: Arc<BodyStore>,
    is_unbuffered: bool,
    length: Option<u64>,
) -> (SpoolWriter, SpoolReader) {
    let shared = Arc::new(Shared::default());
    let reader = SpoolReader {
        shared: Arc::clone(&shared),
        pool: store.pool.clone(),
        length,
        reading: None,
    };
    (
        SpoolWriter {
            shared,
            store,
            is_unbuffered,
            overflow: Vec::new(),
        },
        reader,
    )
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn in_file(&self) -> u64 {
        self.write_at - self.read_at
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl SpoolWriter {
    /// Adds a piece. Call [`SpoolWriter::settle`] before receiving more from the worker.
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        if state.is_reader_gone {
            return;
        }
        let memory = self.store.response_memory.max(bytes.len());
        let has_room = state.memory_bytes + bytes.len() <= memory;
        if has_room && self.overflow.is_empty() && state.in_file() == 0 {
            state.memory_bytes += bytes.len();
            match state.memory.back_mut() {
                Some(last) if last.len() + bytes.len() <= JOIN_BYTES => {
                    last.extend_from_slice(bytes);
                }
                _ => state.memory.push_back(bytes.to_vec()),
            }
            let reader = state.reader.take();
            drop(state);
            wake(reader);
        } else {
            drop(state);
            self.overflow.extend_from_slice(bytes);
        }
    }

    /// Whether the client is gone and nobody will take what is pushed; else the task is polled when
    /// that happens.
    pub fn poll_gone(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.shared.lock();
        let is_known = state
            .watcher
            .as_ref()
            .is_some_and(|w| w.will_wake(cx.waker()));
        if !state.is_reader_gone && !is_known {
            state.watcher = Some(cx.waker().clone());
        }
        state.is_reader_gone
    }

    /// Whether [`SpoolWriter::settle`] has something to do.
    pub fn is_over(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Brings what did not fit into memory to the file, or waits until the client took enough.
    ///
    /// # Errors
    /// When the file cannot be used: the response must be cut.
    pub async fn settle(&mut self) -> Result<(), Fault> {
        while !self.overflow.is_empty() {
            let room = std::future::poll_fn(|cx| self.poll_room(cx)).await;
            match room {
                Room::Gone => self.overflow.clear(),
                Room::Memory => {
                    let piece = std::mem::take(&mut self.overflow);
                    self.push(&piece);
                }
                Room::File => self.write_file().await?,
            }
        }
        Ok(())
    }

    fn file_bytes(&self) -> u64 {
        if self.is_unbuffered {
            0
        } else {
            self.store.response_spool
        }
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Room> {
        let mut state = self.shared.lock();
        if state.is_reader_gone {
            return Poll::Ready(Room::Gone);
        }
        if state.in_file() == 0 && state.memory.is_empty() {
            state.read_at = 0;
            state.write_at = 0;
            return Poll::Ready(Room::Memory);
        }
        if state.write_at + self.overflow.len() as u64 <= self.file_bytes() {
            return Poll::Ready(Room::File);
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    async fn write_file(&mut self) -> Result<(), Fault> {
        let (file, at) = {
            let mut state = self.shared.lock();
            state.is_writing = true;
            (state.file.clone(), state.write_at)
        };
        let file = match file {
            Some(file) => file,
            None => {
                let (store, closer) = (Arc::clone(&self.store), self.store.pool.clone());
                let create = move || NamelessFile::create(&store.temp_dir, closer);
                Arc::new(stored(self.store.pool.run(create).await)?)
            }
        };
        let (shared, bytes) = (Arc::clone(&file), std::mem::take(&mut self.overflow));
        let written = self
            .store
            .pool
            .run(move || shared.write_all_at(&bytes, at).map(|()| bytes.len() as u64))
            .await;
        let written = stored(written)?;
        let mut state = self.shared.lock();
        state.file = Some(file);
        state.is_writing = false;
        state.write_at = at + written;
        let reader = state.reader.take();
        drop(state);
        wake(reader);
        Ok(())
    }

    /// Ends the response: whole, with what fields there are behind its body, or cut.
    pub fn finish(self, end: Result<Option<FieldBlock>, Fault>) {
        let end = end.map(|trailers| self.shared.lock().trailers = trailers);
        self.set_end(end);
    }

    fn set_end(&self, end: Result<(), Fault>) {
        let mut state = self.shared.lock();
        if state.end.is_none() {
            state.end = Some(end);
        }
        let reader = state.reader.take();
        drop(state);
        wake(reader);
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        // A producer that ends without a word must not look like the end of the body.
        self.set_end(Err(Fault::new(
            FaultKind::WorkerDied,
            "the response ended before its end",
        )));
    }
}

enum Room {
    Gone,
    Memory,
    File,
}

impl BodyStream for SpoolReader {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            if let Some(work) = &mut self.reading {
                let Poll::Ready(read) = work.as_mut().poll(cx) else {
                    return Poll::Pending;
                };
                self.reading = None;
                match stored(read) {
                    Ok(bytes) => return Poll::Ready(Some(Ok(self.took_from_file(bytes)))),
                    Err(fault) => return Poll::Ready(Some(Err(fault))),
                }
            }
            let mut state = self.shared.lock();
            if let Some(bytes) = state.memory.pop_front() {
                state.memory_bytes -= bytes.len();
                let writer = state.writer.take();
                drop(state);
                wake(writer);
                return Poll::Ready(Some(Ok(bytes.into())));
            }
            if state.in_file() > 0
                && let Some(file) = state.file.clone()
            {
                let (at, left) = (state.read_at, state.in_file());
                drop(state);
                if let Some(bytes) = self.read_file(file, at, left) {
                    return Poll::Ready(Some(Ok(self.took_from_file(bytes))));
                }
                continue;
            }
            if let Some(end) = state.end.take() {
                state.end = Some(Ok(()));
                return Poll::Ready(end.err().map(Err));
            }
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
    }

    fn length(&self) -> Option<u64> {
        self.length
    }

    fn take_trailers(&mut self) -> Option<FieldBlock> {
        self.shared.lock().trailers.take()
    }
}

impl std::fmt::Debug for SpoolReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpoolReader")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl SpoolReader {
    /// Reads what is in the page cache at once, else leaves work for the pool.
    fn read_file(&mut self, from: Arc<NamelessFile>, at: u64, left: u64) -> Option<Vec<u8>> {
        let want = usize::try_from(left).unwrap_or(READ_BYTES).min(READ_BYTES);
        let mut bytes = vec![0; want];
        if let Ok(read @ 1..) = from.read_at_if_cached(&mut bytes, at) {
            bytes.truncate(read);
            return Some(bytes);
        }
        let pool = self.pool.clone();
        self.reading = Some(Box::pin(async move {
            pool.run(move || from.read_exact_at(&mut bytes, at).map(|()| bytes))
                .await
        }));
        None
    }

    fn took_from_file(&mut self, bytes: Vec<u8>) -> Bytes {
        let mut state = self.shared.lock();
        state.read_at += bytes.len() as u64;
        if state.read_at == state.write_at && !state.is_writing {
            // Read to its end: the next overflow starts the file anew.
            state.read_at = 0;
            state.write_at = 0;
        }
        let writer = state.writer.take();
        drop(state);
        wake(writer);
        bytes.into()
    }
}

impl Drop for SpoolReader {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_reader_gone = true;
        state.memory.clear();
        let (writer, watcher) = (state.writer.take(), state.watcher.take());
        drop(state);
        wake(writer);
        wake(watcher);
    }
}

#[cfg(test)]
mod tests;
