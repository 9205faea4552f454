//! Reading a request's whole body before a worker or back end hears of it: to memory, then to a nameless file.
//!
//! First step of an application's or upstream's handler. A slow sender costs a connection, never a worker; a body of any size
//! costs at most `limits.body_memory` and one write buffer.

use std::sync::Arc;

use super::{BodyStore, NamelessFile};
use crate::{Fault, FaultKind, IncomingBody, RequestBody};

/// Bytes gathered before they are written to the file in one job.
const WRITE_BYTES: usize = 256 * 1024;

/// A body that has arrived.
#[derive(Debug)]
pub enum Collected {
    /// There is none.
    Empty,
    /// All of it in memory.
    Memory(Vec<u8>),
    /// All of it in a file.
    File {
        /// The file.
        file: Arc<NamelessFile>,
        /// Its length.
        len: u64,
    },
}

impl Collected {
    /// Its length; `None` when the request has no body.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => None,
            Self::Memory(bytes) => Some(bytes.len() as u64),
            Self::File { len, .. } => Some(*len),
        }
    }
}

/// Reads `body` to its end.
///
/// # Errors
/// What the body says (too large, too slow, malformed, gone), or that it cannot be stored.
pub async fn collect(body: RequestBody, store: &BodyStore) -> Result<Collected, Fault> {
    let RequestBody::Incoming(mut body) = body else {
        return Ok(Collected::Empty);
    };
    let expected = body
        .length()
        .and_then(|length| usize::try_from(length).ok());
    let mut buffer = Vec::with_capacity(expected.unwrap_or(0).min(store.body_memory));
    while fill(&mut *body, &mut buffer).await? {
        if buffer.len() > store.body_memory {
            return to_file(body, buffer, store).await;
        }
    }
    Ok(Collected::Memory(buffer))
}

async fn fill(body: &mut dyn IncomingBody, into: &mut Vec<u8>) -> Result<bool, Fault> {
    std::future::poll_fn(|cx| body.poll_fill(cx, into)).await
}

async fn to_file(
    mut body: Box<dyn IncomingBody>,
    mut buffer: Vec<u8>,
    store: &BodyStore,
) -> Result<Collected, Fault> {
    let pool = &store.pool;
    let dir = store.temp_dir.clone();
    let closer = pool.clone();
    let created = pool.run(move || NamelessFile::create(&dir, closer)).await;
    let file = Arc::new(stored(created)?);
    let mut len = 0;
    let mut more = true;
    while more {
        while more && buffer.len() < WRITE_BYTES {
            more = fill(&mut *body, &mut buffer).await?;
        }
        let (shared, at) = (Arc::clone(&file), len);
        len += buffer.len() as u64;
        let written = pool
            .run(move || {
                let done = shared.write_all_at(&buffer, at);
                buffer.clear();
                done.map(|()| buffer)
            })
            .await;
        buffer = stored(written)?;
    }
    Ok(Collected::File { file, len })
}

/// A body that cannot be stored is the house's failure, named in the log.
pub(super) fn stored<T>(
    done: Result<std::io::Result<T>, penstock_runtime::blocking::PoolError>,
) -> Result<T, Fault> {
    match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Fault::new(
            FaultKind::House,
            format!("cannot use a temporary file: {error}"),
        )),
        Err(full) => Err(Fault::new(FaultKind::Overloaded, full.to_string())),
    }
}
