//! The entry of a path: a file with its codings, a directory, or nothing.
//!
//! `file_tree` finds it, `file_cache` stores it, and `handler` answers from it. A file is an
//! original and the codings that it has or could have; this module selects one for a client.
//!
//! # Invariants
//!
//! - A response that depends on `Accept-Encoding` has a matching `Vary`, whichever coding it has.
//! - A file without other codings does not read that field.

use std::fs::Metadata;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_config::ContentCoding;
use penstock_exchange::{Body, FileBody};
use penstock_http::{CodingChoice, Method, RequestHead, negotiate_coding};
use penstock_runtime::DiskFile;
use twox_hash::XxHash3_64;

use crate::description::FileDescription;

/// What was found at a path.
#[derive(Debug, Clone)]
pub(crate) enum CacheEntry {
    File(Arc<FileEntry>),
    /// A directory requested without its final slash.
    DirectoryRedirect,
    Listing(Bytes),
    /// A directory with an index script, which another handler runs.
    Script,
    Absent,
}

#[derive(Debug, Clone)]
pub(crate) struct FileEntry {
    pub(crate) original: Representation,
    codings: Vec<CodingOffer>,
}

#[derive(Debug, Clone)]
pub(crate) struct CodingOffer {
    pub(crate) coding: ContentCoding,
    pub(crate) state: CodingState,
}

#[derive(Debug, Clone)]
pub(crate) enum CodingState {
    /// A precompressed file next to the original.
    Precompressed(Representation),
    Compressed(Representation),
    Compressible,
}

/// A coding of a file, or the original.
#[derive(Debug, Clone)]
pub(crate) struct Representation {
    pub(crate) description: FileDescription,
    pub(crate) source: ContentSource,
    pub(crate) stamp: FileStamp,
    /// Whether a change of the file would change the stamp.
    pub(crate) is_stamp_reliable: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum ContentSource {
    Memory(Bytes),
    Disk(Arc<DiskFile>),
}

/// The coding selected for a client.
#[derive(Debug)]
pub(crate) enum SelectedCoding<'a> {
    Ready(&'a Representation),
    /// This coding, which must be compressed first.
    Compress(ContentCoding),
}

impl FileEntry {
    pub(crate) fn new(original: Representation, codings: Vec<CodingOffer>) -> Self {
        Self { original, codings }
    }

    /// Selects the representation for a request.
    pub(crate) fn select_coding(&self, head: &RequestHead) -> SelectedCoding<'_> {
        if self.codings.is_empty() || head.field("accept-encoding").is_none() {
            return SelectedCoding::Ready(&self.original);
        }
        let names = self.codings.iter().map(|offer| offer.coding.as_str());
        match negotiate_coding(|| head.field_values("accept-encoding"), names) {
            CodingChoice::Coding(number) => self.coding_for(number, head),
            // RFC 9110 §12.5.3 leaves this to the server: a body that may be useful is better than
            // none.
            CodingChoice::Identity | CodingChoice::NotAcceptable => {
                SelectedCoding::Ready(&self.original)
            }
        }
    }

    /// The file on disk that the response is sent or compressed from.
    pub(crate) fn source_file_for(&self, head: &RequestHead) -> &Representation {
        match self.select_coding(head) {
            // A representation compressed here has the original's stamp.
            SelectedCoding::Ready(file) if file.stamp != self.original.stamp => file,
            SelectedCoding::Ready(_) | SelectedCoding::Compress(_) => &self.original,
        }
    }

    fn coding_for(&self, number: usize, head: &RequestHead) -> SelectedCoding<'_> {
        let is_part = head.method() == Method::Get && head.field("range").is_some();
        match self.codings.get(number).map(|offer| &offer.state) {
            Some(CodingState::Precompressed(ready)) => SelectedCoding::Ready(ready),
            // Compressing again may give different bytes, so there are no ranges.
            Some(CodingState::Compressed(ready)) if !is_part => SelectedCoding::Ready(ready),
            Some(CodingState::Compressible) if !is_part => {
                SelectedCoding::Compress(self.codings[number].coding)
            }
            _ => SelectedCoding::Ready(&self.original),
        }
    }

    /// Returns the entry with `coding` compressed, or without it if `content` is `None`.
    pub(crate) fn with_compressed(&self, coding: ContentCoding, content: Option<&Bytes>) -> Self {
        let mut offers = self.codings.clone();
        match content {
            None => offers.retain(|offer| offer.coding != coding),
            Some(content) => {
                let made = Representation {
                    description: self
                        .original
                        .description
                        .with_compression(coding, content.len()),
                    source: ContentSource::Memory(content.clone()),
                    stamp: self.original.stamp,
                    is_stamp_reliable: true,
                };
                let offer = offers.iter_mut().find(|offer| offer.coding == coding);
                if let Some(offer) = offer {
                    offer.state = CodingState::Compressed(made);
                }
            }
        }
        Self::new(self.original.clone(), offers)
    }

    pub(crate) fn precompressed(&self, coding: ContentCoding) -> Option<&Representation> {
        let mut precompressed = self.codings.iter().filter_map(|offer| match &offer.state {
            CodingState::Precompressed(ready) if offer.coding == coding => Some(ready),
            _ => None,
        });
        precompressed.next()
    }

    pub(crate) fn is_unchanged(
        &self,
        original: &Representation,
        precompressed: &[CodingOffer],
    ) -> bool {
        let state = |offer: &CodingOffer| match &offer.state {
            CodingState::Precompressed(ready) if ready.is_stamp_reliable => {
                Some((offer.coding, ready.stamp))
            }
            _ => None,
        };
        // A precompressed file that is still being written, or was removed, is not the same.
        let all_reliable = |offers: &[CodingOffer]| {
            let mut precompressed = offers.iter().filter(|offer| offer.is_precompressed());
            precompressed.all(|offer| state(offer).is_some())
        };
        self.original.is_stamp_reliable
            && self.original.stamp == original.stamp
            && self.original.description.varies_by_encoding()
                == original.description.varies_by_encoding()
            && all_reliable(&self.codings)
            && all_reliable(precompressed)
            && self
                .codings
                .iter()
                .filter_map(state)
                .eq(precompressed.iter().filter_map(state))
    }

    /// Whether a change of any of its files would change that file's stamp.
    pub(crate) fn has_reliable_stamps(&self) -> bool {
        self.representations().all(|one| one.is_stamp_reliable)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let each = self.representations().map(Representation::memory_bytes);
        size_of::<Self>() + each.sum::<usize>()
    }

    pub(crate) fn open_descriptor_count(&self) -> usize {
        let is_open = |one: &&Representation| matches!(one.source, ContentSource::Disk(_));
        self.representations().filter(is_open).count()
    }

    /// The original and all existing codings.
    pub(crate) fn representations(&self) -> impl Iterator<Item = &Representation> {
        let offered = self.codings.iter().filter_map(|offer| match &offer.state {
            CodingState::Precompressed(ready) | CodingState::Compressed(ready) => Some(ready),
            CodingState::Compressible => None,
        });
        std::iter::once(&self.original).chain(offered)
    }
}

impl CodingOffer {
    fn is_precompressed(&self) -> bool {
        matches!(self.state, CodingState::Precompressed(_))
    }
}

impl Representation {
    pub(crate) fn body(&self, start: u64, len: u64) -> Body {
        match &self.source {
            ContentSource::Memory(content) => Body::Bytes(slice(content, start, len)),
            ContentSource::Disk(file) => Body::File(FileBody {
                file: Arc::clone(file),
                start,
                len,
            }),
        }
    }

    fn memory_bytes(&self) -> usize {
        let content = match &self.source {
            ContentSource::Memory(content) => content.len(),
            // Approximate kernel memory of an open file.
            ContentSource::Disk(_) => 1024,
        };
        size_of::<Self>() + content + self.description.memory_bytes()
    }
}

/// Up to `len` bytes of `content` from `start` on.
pub(crate) fn slice(content: &Bytes, start: u64, len: u64) -> Bytes {
    let place = |at: u64| usize::try_from(at).map_or(content.len(), |at| at.min(content.len()));
    content.slice(place(start)..place(start.saturating_add(len)))
}

/// Identifies a version of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileStamp {
    pub(crate) device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Cannot be set back, unlike the modification time.
    changed: (i64, i64),
    /// The index of the candidate that matched: another name may imply another type.
    candidate: usize,
}

impl FileStamp {
    pub(crate) fn new(metadata: &Metadata, place: usize) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            candidate: place,
        }
    }

    pub(crate) fn metadata_hash(&self) -> u64 {
        let mut hasher = XxHash3_64::new();
        let Self {
            device,
            inode,
            size,
            modified,
            changed,
            candidate: _,
        } = self;
        (device, inode, size, modified, changed).hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn changed_before(&self, moment: Duration) -> bool {
        let seconds = i64::try_from(moment.as_secs()).unwrap_or(i64::MAX);
        self.changed < (seconds, i64::from(moment.subsec_nanos()))
    }

    /// Whether the metadata match this stamp, for any candidate.
    pub(crate) fn matches(&self, metadata: &Metadata) -> bool {
        *self == Self::new(metadata, self.candidate)
    }
}

#[cfg(test)]
pub(crate) mod tests;
