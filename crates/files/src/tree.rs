//! The folder itself: opens, checks and reads. Everything here blocks and runs in a pool.
//!
//! `handler` calls [`Tree::look`] for what `memory` does not know or has to check. What must stay
//! true: every open goes through `openat2` beneath the root; what is said of a file comes from its
//! open descriptor, never from its name; bytes are kept in memory only if the file was the same
//! before and after they were read.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::clock;
use penstock_sys::file;

use crate::reply::Description;
use crate::resolve::Places;
use crate::types::content_type;

/// Files up to this size are kept in memory.
const KEPT_BYTES_MAX: u64 = 64 * 1024;

/// A file that changed this recently may change again without a new time stamp: the kernel's tick
/// is some milliseconds, and two seconds on the coarsest of file systems.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Attempts at an open that the kernel gave up because of a rename at the same time (`EAGAIN` of
/// `openat2`).
const OPEN_ATTEMPTS: usize = 4;

/// A root and the places to look in below it.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    name: PathBuf,
    places: Places,
}

/// What was found at a path.
#[derive(Debug)]
pub(crate) enum Looked {
    /// A small file: the one that was known if it is unchanged, else read.
    Small(Arc<Loaded>),
    /// A file to be sent from its descriptor: large, or changing right now.
    Opened(Opened),
    /// A directory with an index page, asked for without its final slash.
    Directory,
    /// Nothing to serve.
    Absent,
}

/// A small file in memory.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) description: Description,
    pub(crate) content: Bytes,
    identity: Identity,
    /// Whether the identity can be trusted to show the next change.
    is_settled: bool,
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) description: Description,
    pub(crate) file: File,
}

impl Loaded {
    /// Bytes of memory it takes.
    pub(crate) fn bytes_held(&self) -> usize {
        size_of::<Self>() + self.content.len() + self.description.bytes()
    }
}

impl Tree {
    /// Opens the root. Blocks.
    pub(crate) fn open(root: &Path, places: Places) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", root.display()));
        let fd = file::open_root(root).map_err(named)?;
        // A kernel or a sandbox without `openat2` is told at start. A folder that may be passed but
        // not listed is a fine root.
        match file::open_beneath(&fd, b"") {
            Err(error) if error.raw_os_error() != Some(EACCES) => return Err(named(error)),
            _ => {}
        }
        Ok(Self {
            root: fd,
            name: root.to_owned(),
            places,
        })
    }

    /// Goes through the places for `path`; the first regular file is it. Blocks.
    pub(crate) fn look(&self, path: &[u8], known: Option<&Arc<Loaded>>) -> Result<Looked, Fault> {
        let mut name = Vec::new();
        for (number, place) in self.places.iter().enumerate() {
            if !place.expand_into(path, &mut name) {
                continue;
            }
            let Some((file, metadata)) = self.open_regular(&name)? else {
                continue;
            };
            if place.is_index_of(path) {
                return Ok(Looked::Directory);
            }
            let identity = Identity::new(&metadata, number);
            if let Some(same) = known.filter(|k| k.is_settled && k.identity == identity) {
                return Ok(Looked::Small(Arc::clone(same)));
            }
            return read(file, &metadata, identity, &name).map_err(|e| self.fault(&e, &name));
        }
        Ok(Looked::Absent)
    }

    /// Opens a regular file; none when there is no such thing.
    fn open_regular(&self, name: &[u8]) -> Result<Option<(File, Metadata)>, Fault> {
        match self.open_patiently(name) {
            Ok((file, metadata)) if metadata.is_file() => Ok(Some((file, metadata))),
            Ok(_) => Ok(None),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(self.fault(&error, name)),
        }
    }

    fn open_patiently(&self, name: &[u8]) -> io::Result<(File, Metadata)> {
        let mut attempts = 1;
        loop {
            let opened = file::open_beneath(&self.root, name);
            match opened.and_then(|file| file.metadata().map(|metadata| (file, metadata))) {
                Err(error) if is_passing(&error) && attempts < OPEN_ATTEMPTS => attempts += 1,
                done => return done,
            }
        }
    }

    fn fault(&self, error: &io::Error, name: &[u8]) -> Fault {
        let place = self.name.join(String::from_utf8_lossy(name).as_ref());
        let kind = if error.kind() == io::ErrorKind::PermissionDenied {
            FaultKind::Forbidden
        } else if is_passing(error) || is_exhausted(error) {
            FaultKind::Overloaded
        } else {
            FaultKind::House
        };
        // Names from strangers may hold anything: quoted and escaped for the log.
        Fault::new(kind, format!("{place:?}: {error}"))
    }
}

/// Reads a small file whole; hands over one that is large or does not hold still.
fn read(file: File, metadata: &Metadata, identity: Identity, name: &[u8]) -> io::Result<Looked> {
    let now = clock::wall();
    let (len, description) = (metadata.size(), describe(name, metadata, now));
    if len > KEPT_BYTES_MAX {
        return Ok(Looked::Opened(Opened { description, file }));
    }
    let content = read_whole(&file, len)?;
    let after = file.metadata()?;
    if content.len() as u64 != len || Identity::new(&after, identity.place) != identity {
        let description = describe(name, &after, now);
        return Ok(Looked::Opened(Opened { description, file }));
    }
    let is_settled = identity.changed_before(now.saturating_sub(SETTLED_AFTER));
    let content = Bytes::from(content.into_boxed_slice());
    let loaded = Loaded {
        description,
        content,
        identity,
        is_settled,
    };
    Ok(Looked::Small(Arc::new(loaded)))
}

fn describe(name: &[u8], metadata: &Metadata, now: Duration) -> Description {
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    Description::new(&content_type(name), modified, metadata.size(), now)
}

/// The first `len` bytes, or what there is of them.
fn read_whole(file: &File, len: u64) -> io::Result<Vec<u8>> {
    let mut content = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < content.len() {
        match file::read_at(file, &mut content[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    content.truncate(filled);
    Ok(content)
}

/// What tells one state of one file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Cannot be set back, as the time of modification can.
    changed: (i64, i64),
    /// The number of the place it was found in: another name may mean another type.
    place: usize,
}

impl Identity {
    fn new(metadata: &Metadata, place: usize) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            place,
        }
    }

    fn changed_before(&self, moment: Duration) -> bool {
        let seconds = i64::try_from(moment.as_secs()).unwrap_or(i64::MAX);
        self.changed < (seconds, i64::from(moment.subsec_nanos()))
    }
}

/// Whether an error of `openat2` means that there is nothing to serve by that name: no such file, a
/// file as a folder, a way out of the root, a link in a circle, a socket, a device without a driver.
fn is_missing(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, InvalidFilename, InvalidInput, NotADirectory, NotFound};
    let kinds = [
        NotFound,
        NotADirectory,
        CrossesDevices,
        InvalidFilename,
        InvalidInput,
    ];
    kinds.contains(&error.kind())
        || error
            .raw_os_error()
            .is_some_and(|number| [ENXIO, ENODEV, ELOOP].contains(&number))
}

/// Whether the same call may succeed at once.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Whether descriptors or memory ran out.
fn is_exhausted(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(|number| [ENOMEM, ENFILE, EMFILE].contains(&number))
}

// Errors that the standard library has no stable name for; numbers of Linux on x86-64 and AArch64.
const ENXIO: i32 = 6;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const ENODEV: i32 = 19;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const ELOOP: i32 = 40;

#[cfg(test)]
mod tests;
