//! Reading a request's whole body before a worker or back end gets it: to memory, then to an
//! unnamed file.
//!
//! The first step of an application's or upstream's handler. A slow sender costs a connection,
//! never a worker; a body of any size costs at most `limits.body_memory` and one write buffer.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{BufferingSettings, SpoolFile, TempFilePurpose, TempSpaceGrant};
use crate::{AddressPrefix, Fault, FaultKind, IncomingBody, RequestBody};

/// Bytes gathered before they are written to the file in one job.
const WRITE_BATCH_BYTES: usize = 256 * 1024;

/// A body that has arrived.
#[derive(Debug)]
pub enum CollectedBody {
    /// No body.
    Empty,
    /// All of it in memory.
    Memory(Vec<u8>),
    /// All of it in a file.
    File { file: Arc<SpoolFile>, len: u64 },
}

impl CollectedBody {
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
/// A fault of the body (too large, too slow, malformed, gone), or that it cannot be stored.
pub async fn collect_body(
    body: RequestBody,
    client: Option<AddressPrefix>,
    settings: &BufferingSettings,
) -> Result<CollectedBody, Fault> {
    let RequestBody::Incoming(mut body) = body else {
        return Ok(CollectedBody::Empty);
    };
    let expected = body
        .length()
        .and_then(|length| usize::try_from(length).ok());
    let mut buffer = Vec::with_capacity(expected.unwrap_or(0).min(settings.max_body_memory));
    while read_more(&mut *body, &mut buffer).await? {
        if buffer.len() > settings.max_body_memory {
            let grant = settings
                .temp_space
                .create_grant(client, TempFilePurpose::Body);
            return collect_to_file(body, buffer, grant, settings).await;
        }
    }
    Ok(CollectedBody::Memory(buffer))
}

async fn read_more(body: &mut dyn IncomingBody, into: &mut Vec<u8>) -> Result<bool, Fault> {
    std::future::poll_fn(|cx| body.poll_fill(cx, into)).await
}

async fn collect_to_file(
    mut body: Box<dyn IncomingBody>,
    mut buffer: Vec<u8>,
    grant: Arc<TempSpaceGrant>,
    settings: &BufferingSettings,
) -> Result<CollectedBody, Fault> {
    let grow = |bytes: usize| match grant.try_grow(bytes as u64) {
        true => Ok(()),
        false => Err(body_refused(settings, settings.temp_space.refusal_cause())),
    };
    grow(buffer.len())?;
    let mut granted = buffer.len();
    let pool = &settings.pool;
    let dir = settings.temp_dir.clone();
    let closer = pool.clone();
    let of_file = Arc::clone(&grant);
    let create = move || SpoolFile::create(&dir, closer, of_file);
    let file = Arc::new(check_body_stored(pool.run(create).await, settings)?);
    let mut len = 0;
    let mut more = true;
    while more {
        while more && buffer.len() < WRITE_BATCH_BYTES {
            more = read_more(&mut *body, &mut buffer).await?;
        }
        grow(buffer.len() - granted)?;
        granted = 0;
        let (shared, at) = (Arc::clone(&file), len);
        len += buffer.len() as u64;
        let written = pool
            .run(move || {
                let done = shared.write_all_at(&buffer, at);
                buffer.clear();
                done.map(|()| buffer)
            })
            .await;
        buffer = check_body_stored(written, settings)?;
    }
    Ok(CollectedBody::File { file, len })
}

/// As [`map_storage_error`], for a request body: a full disk is not an internal failure.
fn check_body_stored<T>(
    done: Result<std::io::Result<T>, penstock_runtime::blocking::PoolError>,
    settings: &BufferingSettings,
) -> Result<T, Fault> {
    match done {
        Ok(Err(error)) if is_disk_full_error(&error) => {
            let folder = settings.temp_dir.display();
            let cause = format!("limits.temp_dir: {folder} has no room ({error})");
            Err(body_refused(settings, cause))
        }
        done => map_storage_error(done),
    }
}

fn body_refused(settings: &BufferingSettings, cause: String) -> Fault {
    settings.temp_space.record_refusal();
    Fault::new(
        FaultKind::Overloaded,
        format!("request body: no temporary file for it: {cause}"),
    )
}

/// Whether an error says that there is no room on the disk.
pub(super) fn is_disk_full_error(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// A body that cannot be stored is an internal failure, named in the log.
pub(super) fn map_storage_error<T>(
    done: Result<std::io::Result<T>, penstock_runtime::blocking::PoolError>,
) -> Result<T, Fault> {
    match done {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Fault::new(
            FaultKind::Internal,
            format!("cannot use a temporary file: {error}"),
        )),
        Err(full) => Err(Fault::new(FaultKind::Overloaded, full.to_string())),
    }
}
