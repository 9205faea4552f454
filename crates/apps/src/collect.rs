//! Reading a request's whole body before a worker hears of it: to memory, then to a nameless file.
//!
//! First step of `handler`. A slow sender costs a connection, never a worker; a body of any size
//! costs at most `limits.body_memory` and one write buffer.

use std::sync::Arc;

use penstock_config::Limits;
use penstock_exchange::{Fault, FaultKind, IncomingBody, RequestBody};
use penstock_runtime::blocking::Pool;

use crate::nameless::NamelessFile;

/// Bytes gathered before they are written to the file in one job.
const WRITE_BYTES: usize = 256 * 1024;

/// A body that has arrived.
#[derive(Debug)]
pub(crate) enum Collected {
    Empty,
    Memory(Vec<u8>),
    File { file: Arc<NamelessFile>, len: u64 },
}

impl Collected {
    /// Its length; `None` when the request has no body.
    pub(crate) fn length(&self) -> Option<u64> {
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
pub(crate) async fn collect(
    body: RequestBody,
    limits: &Limits,
    pool: &Pool,
) -> Result<Collected, Fault> {
    let RequestBody::Incoming(mut body) = body else {
        return Ok(Collected::Empty);
    };
    let expected = body
        .length()
        .and_then(|length| usize::try_from(length).ok());
    let mut buffer = Vec::with_capacity(expected.unwrap_or(0).min(limits.body_memory));
    while fill(&mut *body, &mut buffer).await? {
        if buffer.len() > limits.body_memory {
            return to_file(body, buffer, limits, pool).await;
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
    limits: &Limits,
    pool: &Pool,
) -> Result<Collected, Fault> {
    let dir = limits.temp_dir.clone();
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
pub(crate) fn stored<T>(
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
