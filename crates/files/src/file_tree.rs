//! Opens, checks and reads files below a root.
//!
//! `handler` calls [`FileTree::look_up`] on the event loop, which answers from the kernel's caches.
//! Otherwise it calls it in a blocking pool: with priority over reads to open files, and among the
//! reads for small files with content on the disk.
//!
//! # Invariants
//!
//! - Every open uses `open_beneath` of `penstock_sys::file`.
//! - A file's description comes from its open descriptor, never from its name.
//! - Content is cached only if the file was the same before and after the read.
//! - On an event loop no file system is asked that may have to ask another process or machine.

mod opener;

use std::fs::{File, Metadata};
use std::hash::Hasher;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{ContentCoding, MediaTypes, Symlinks};
use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::blocking::Pool;
use penstock_runtime::{DiskFile, clock};
use penstock_sys::file;
use penstock_sys::page_cache;
use twox_hash::XxHash3_64;

use self::opener::{
    EACCES, ELOOP, NoAtimeOpener, is_not_servable, is_out_of_resources, is_retryable,
};
use crate::compressor::{self, read_up_to};
use crate::description::{EtagVersion, FileAttributes, FileDescription, is_plausible_mtime};
use crate::file_entry::{
    CacheEntry, CodingOffer, CodingState, ContentSource, FileEntry, FileStamp, Representation,
};
use crate::file_header_rules::FileHeaderRules;
use crate::hide_patterns::{HidePatterns, log_hidden_file};
use crate::logged_names::LoggedNames;
use crate::resolve::PathCandidates;
use crate::unfollowed_links::{is_link_logged, log_unfollowed_link};
use crate::unreadable_files::log_unreadable_file;

/// Files up to this size are cached with their content: copying it into the socket costs less than
/// `sendfile` with its checks.
const MAX_MEMORY_BYTES: u64 = 16 * 1024;

/// Files up to this size are hashed if their modification time may not identify a version: some
/// milliseconds in a pool. Two larger versions of one size are indistinguishable then.
const MAX_HASHED_BYTES: u64 = 8 * 1024 * 1024;

/// A file changed this recently may change again with the same time stamp: the kernel's tick is
/// some milliseconds, and two seconds on the coarsest file systems.
const STAMP_SETTLE_TIME: Duration = Duration::from_secs(2);

/// Attempts at an open that fails because of a concurrent rename (`EAGAIN` of `openat2`).
const MAX_OPEN_ATTEMPTS: usize = 4;

/// An open root directory. Routes with the same directory share one.
#[derive(Debug)]
pub struct RootDir {
    fd: OwnedFd,
    path: PathBuf,
    /// Without symbolic links, to locate the targets of links below.
    real_path: Option<PathBuf>,
    /// The file system's device number, if event loops may access it.
    loop_accessible_device: Option<u64>,
}

/// A root with a route's settings.
#[derive(Debug)]
pub(crate) struct FileTree {
    root: Arc<RootDir>,
    candidates: PathCandidates,
    file_header_rules: FileHeaderRules,
    precompressed: Vec<ContentCoding>,
    compress: Vec<ContentCoding>,
    listing: bool,
    symlinks: file::SymlinkPolicy,
    opener: NoAtimeOpener,
    logged_links: LoggedNames,
    hide_patterns: HidePatterns,
    logged_hidden: LoggedNames,
    logged_unreadable: LoggedNames,
    pool: Pool,
    /// The file system's device number, if event loops may access it.
    pub(crate) loop_accessible_device: Option<u64>,
    /// The index script by which a directory belongs to another handler.
    script_index: Option<Vec<u8>>,
    pub(crate) stamp_settle_time: Duration,
}

#[derive(Debug)]
pub(crate) enum FileLookup {
    Found(CacheEntry),
    Directory(File),
    /// It cannot be found at this depth.
    NeedsDisk,
}

/// How far a look-up may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupDepth {
    /// The kernel's caches: for event loops.
    PageCache,
    /// Names and metadata on the disk, content in memory.
    Metadata,
    Disk,
}

/// Why a look-up stopped without a result.
#[derive(Debug)]
enum LookupStop {
    NeedsDisk,
    Fault(Fault),
}

/// The attributes of a representation that follow from names.
#[derive(Clone, Copy)]
struct NameAttributes<'a> {
    /// That of the original.
    name: &'a [u8],
    /// The index of its candidate.
    candidate: usize,
    content_type: &'a str,
    coding: Option<ContentCoding>,
    varies_by_encoding: bool,
}

struct OpenedFile {
    file: File,
    metadata: Metadata,
    /// Whether a symbolic link below the root led to it.
    is_linked: bool,
}

impl RootDir {
    /// Opens the directory. Blocks.
    ///
    /// # Errors
    /// Fails if it does not exist or is no directory. The error names it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let fd = file::open_root(path).map_err(named)?;
        // A directory with search but without read permission is a valid root.
        match file::open_beneath(&fd, b"") {
            Err(error) if error.raw_os_error() != Some(EACCES) => return Err(named(error)),
            _ => {}
        }
        let loop_device = match page_cache::file_system_kind(&fd).map_err(named)? {
            page_cache::FileSystemKind::Memory | page_cache::FileSystemKind::Disk => {
                Some(device_of(&fd)?)
            }
            page_cache::FileSystemKind::Layered | page_cache::FileSystemKind::Other => None,
        };
        Ok(Self {
            real_path: file::fd_path(&fd).ok(),
            path: path.to_owned(),
            loop_accessible_device: loop_device,
            fd,
        })
    }

    /// The directory's path as configured.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl FileTree {
    /// Creates a tree below `root` with the settings of `files`.
    ///
    /// # Errors
    /// Fails if a media type or a `Cache-Control` is invalid.
    pub(crate) fn new(
        root: Arc<RootDir>,
        files: &penstock_config::Files,
        pool: Pool,
    ) -> io::Result<Self> {
        Ok(Self {
            loop_accessible_device: root.loop_accessible_device,
            root,
            candidates: PathCandidates::new(&files.try_),
            file_header_rules: FileHeaderRules::new(files)?,
            precompressed: files.precompressed.clone(),
            compress: files.compress.clone(),
            listing: files.listing,
            symlinks: match files.symlinks {
                Symlinks::InsideRoot => file::SymlinkPolicy::Beneath,
                Symlinks::Deny => file::SymlinkPolicy::Never,
                Symlinks::Any => file::SymlinkPolicy::Anywhere,
            },
            opener: NoAtimeOpener::default(),
            logged_links: LoggedNames::default(),
            hide_patterns: HidePatterns::new(&files.hide),
            logged_hidden: LoggedNames::default(),
            logged_unreadable: LoggedNames::default(),
            pool,
            script_index: None,
            stamp_settle_time: STAMP_SETTLE_TIME,
        })
    }

    /// Directories with a script of this name become [`CacheEntry::Script`].
    pub(crate) fn set_script_index(&mut self, name: &str) {
        self.script_index = Some(name.as_bytes().to_vec());
    }

    /// Tries the candidates for `path` in order; the first regular file is the result. Blocks,
    /// except for [`LookupDepth::PageCache`].
    pub(crate) fn look_up(
        &self,
        path: &[u8],
        known: Option<&CacheEntry>,
        reach: LookupDepth,
    ) -> Result<FileLookup, Fault> {
        if reach == LookupDepth::PageCache && self.loop_accessible_device.is_none() {
            return Ok(FileLookup::NeedsDisk);
        }
        match self.search(path, known, reach) {
            Err(LookupStop::NeedsDisk) => Ok(FileLookup::NeedsDisk),
            Err(LookupStop::Fault(fault)) => {
                self.log_unreadable(path, &fault);
                Err(fault)
            }
            Ok(looked) => Ok(looked),
        }
    }

    /// Whether an open file is unchanged, within the last millisecond. True if event loops may not
    /// access its file system.
    pub(crate) fn is_unchanged(&self, one: &Representation) -> bool {
        match &one.source {
            ContentSource::Disk(open) if self.loop_accessible_device == Some(one.stamp.device) => {
                open.is_unchanged(|now| one.stamp.matches(now))
            }
            _ => true,
        }
    }

    /// Opens the target of a symbolic link in the directory at `path`, for a listing. `None` if the
    /// link is not followed or its target is hidden. Blocks.
    pub(crate) fn link_target_metadata(&self, path: &[u8], name: &[u8]) -> Option<Metadata> {
        let below = [path.strip_prefix(b"/").unwrap_or(path), name].concat();
        let opened = self.open_any(&below, LookupDepth::Disk).ok()??;
        let is_hidden = self.leads_to_hidden(&opened, &below).unwrap_or(true);
        (!is_hidden).then_some(opened.metadata)
    }

    /// Whether a listing of the directory at `path` omits an entry.
    pub(crate) fn hides_entry(&self, path: &[u8], name: &[u8], is_folder: bool) -> bool {
        let slash: &[u8] = if is_folder { b"/" } else { b"" };
        let below = [path.strip_prefix(b"/").unwrap_or(path), name, slash].concat();
        self.hide_patterns.find_match(&below).is_some()
    }

    fn search(
        &self,
        path: &[u8],
        known: Option<&CacheEntry>,
        reach: LookupDepth,
    ) -> Result<FileLookup, LookupStop> {
        let known = match known {
            Some(CacheEntry::File(found)) => Some(found),
            _ => None,
        };
        if path.ends_with(b"/") && self.has_script(path, reach)? {
            return Ok(FileLookup::Found(CacheEntry::Script));
        }
        let mut name = Vec::new();
        for (number, place) in self.candidates.iter().enumerate() {
            if !place.expand_into(path, &mut name) {
                continue;
            }
            let Some(regular) = self.open_visible(&name, reach)? else {
                continue;
            };
            if place.is_index_of(path) {
                return Ok(FileLookup::Found(CacheEntry::DirectoryRedirect));
            }
            let found = self.describe(regular, &name, number, known, reach)?;
            return Ok(FileLookup::Found(CacheEntry::File(found)));
        }
        if !path.ends_with(b"/") && self.has_script(path, reach)? {
            return Ok(FileLookup::Found(CacheEntry::DirectoryRedirect));
        }
        if !self.listing {
            return Ok(FileLookup::Found(CacheEntry::Absent));
        }
        self.search_dir(path, reach)
    }

    /// Whether the directory at `path` has the index script. A script that only the other handler
    /// may read counts.
    fn has_script(&self, path: &[u8], reach: LookupDepth) -> Result<bool, LookupStop> {
        let Some(index) = &self.script_index else {
            return Ok(false);
        };
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let slash: &[u8] = match path {
            [] | [.., b'/'] => b"",
            _ => b"/",
        };
        match self.open_regular(&[path, slash, index].concat(), reach) {
            Ok(found) => Ok(found.is_some()),
            Err(LookupStop::Fault(fault)) if fault.kind == FaultKind::Forbidden => Ok(true),
            Err(stop) => Err(stop),
        }
    }

    /// Looks for a directory at `path` without an index page.
    fn search_dir(&self, path: &[u8], reach: LookupDepth) -> Result<FileLookup, LookupStop> {
        let name = path.strip_prefix(b"/").unwrap_or(path);
        let mut folder = Vec::with_capacity(name.len() + 1);
        folder.extend_from_slice(name);
        if !name.ends_with(b"/") {
            folder.push(b'/');
        }
        if self.hide_patterns.find_match(&folder).is_some() {
            return Ok(FileLookup::Found(CacheEntry::Absent));
        }
        let opened = match self.open_any(name, reach) {
            Err(LookupStop::Fault(fault)) if fault.kind == FaultKind::Forbidden => {
                self.log_unreadable(path, &fault);
                None
            }
            opened => opened?,
        };
        let is_folder = |opened: &OpenedFile| opened.metadata.is_dir();
        let opened = match opened.filter(is_folder) {
            Some(opened) if self.leads_to_hidden(&opened, name)? => None,
            opened => opened,
        };
        Ok(match opened {
            None => FileLookup::Found(CacheEntry::Absent),
            Some(_) if !path.ends_with(b"/") => FileLookup::Found(CacheEntry::DirectoryRedirect),
            Some(folder) => FileLookup::Directory(folder.file),
        })
    }

    fn describe(
        &self,
        regular: OpenedFile,
        name: &[u8],
        candidate: usize,
        known: Option<&Arc<FileEntry>>,
        reach: LookupDepth,
    ) -> Result<Arc<FileEntry>, LookupStop> {
        let content_type = self.file_header_rules.content_type(name);
        let len = regular.metadata.size();
        let is_makeable = !self.compress.is_empty()
            && (compressor::MIN_COMPRESSIBLE_BYTES..=compressor::MAX_COMPRESSIBLE_BYTES)
                .contains(&len)
            && MediaTypes::compressible().contains(content_type.as_bytes());
        let mut named = NameAttributes {
            name,
            candidate,
            content_type: &content_type,
            coding: None,
            varies_by_encoding: true,
        };
        let mut offers = Vec::new();
        for &coding in &self.precompressed {
            let known = known.and_then(|known| known.precompressed(coding));
            named.coding = Some(coding);
            let ready = self.load_precompressed(&regular.metadata, named, known, reach)?;
            offers.extend(ready.map(|ready| CodingOffer {
                coding,
                state: CodingState::Precompressed(ready),
            }));
        }
        let varies = is_makeable || !offers.is_empty();
        (named.coding, named.varies_by_encoding) = (None, varies);
        let same = known.map(|known| &known.original);
        let same = same.filter(|same| same.description.varies_by_encoding() == varies);
        let original = self.load(regular, named, same, reach)?;
        if let Some(known) = known.filter(|known| known.is_unchanged(&original, &offers)) {
            return Ok(Arc::clone(known));
        }
        // A file that may change undetected is not worth compressing, and its content is uncertain.
        if is_makeable && original.is_stamp_reliable {
            for &coding in &self.compress {
                if !offers.iter().any(|offer| offer.coding == coding) {
                    let state = CodingState::Compressible;
                    offers.push(CodingOffer { coding, state });
                }
            }
        }
        Ok(Arc::new(FileEntry::new(original, offers)))
    }

    /// The precompressed file for a coding, unless it is older than the original.
    fn load_precompressed(
        &self,
        original: &Metadata,
        named: NameAttributes<'_>,
        known: Option<&Representation>,
        reach: LookupDepth,
    ) -> Result<Option<Representation>, LookupStop> {
        let suffix = named.coding.map_or("", ContentCoding::suffix);
        let name = [named.name, suffix.as_bytes()].concat();
        let opened = match self.open_visible(&name, reach) {
            // A failure to open it does not affect the original.
            Err(LookupStop::Fault(fault)) if fault.kind != FaultKind::Overloaded => {
                log::debug!("files: precompressed file not used: {}", fault.cause);
                None
            }
            opened => opened?,
        };
        let modified = modification_time(original);
        opened
            .filter(|beside| !is_older(modification_time(&beside.metadata), modified))
            .map(|beside| self.load(beside, named, known, reach))
            .transpose()
    }

    /// Loads a file: with its content if it is small, else with its descriptor. Returns the known
    /// representation if it is unchanged.
    fn load(
        &self,
        regular: OpenedFile,
        named: NameAttributes<'_>,
        known: Option<&Representation>,
        reach: LookupDepth,
    ) -> Result<Representation, LookupStop> {
        let OpenedFile { file, metadata, .. } = regular;
        let stamp = FileStamp::new(&metadata, named.candidate);
        if let Some(same) = known.filter(|k| k.is_stamp_reliable && k.stamp == stamp) {
            return Ok(same.clone());
        }
        let now = clock::wall_time();
        let describe = |metadata: &Metadata, version: EtagVersion| {
            FileDescription::new(&FileAttributes {
                content_type: named.content_type,
                modified: modification_time(metadata),
                len: metadata.size(),
                version,
                coding: named.coding,
                varies_by_encoding: named.varies_by_encoding,
                cache_control: self.file_header_rules.cache_control(named.name),
                now,
            })
        };
        let settled_at = now.saturating_sub(self.stamp_settle_time);
        let on_disk = |file: File, metadata: &Metadata, version: EtagVersion| {
            let stamp = FileStamp::new(metadata, named.candidate);
            Representation {
                description: describe(metadata, version),
                source: ContentSource::Disk(Arc::new(DiskFile::new(file, self.pool.clone()))),
                stamp,
                is_stamp_reliable: stamp.changed_before(settled_at),
            }
        };
        let failed = |error: io::Error| self.stop_with_fault(&error, named.name);
        let len = metadata.size();
        if len > MAX_MEMORY_BYTES {
            let version = large_file_version(&file, &stamp, &metadata, now, reach)
                .map_err(failed)?
                .ok_or(LookupStop::NeedsDisk)?;
            return Ok(on_disk(file, &metadata, version));
        }
        let content = match reach {
            LookupDepth::Disk => read_up_to(&file, len).map_err(failed)?,
            LookupDepth::Metadata | LookupDepth::PageCache => {
                read_cached(&file, len).ok_or(LookupStop::NeedsDisk)?
            }
        };
        let after = file.metadata().map_err(failed)?;
        if content.len() as u64 != len || !stamp.matches(&after) {
            let state = FileStamp::new(&after, named.candidate).metadata_hash();
            let mut changing = on_disk(file, &after, EtagVersion::MetadataHash(state));
            changing.is_stamp_reliable = false;
            return Ok(changing);
        }
        let version = EtagVersion::ContentHash(XxHash3_64::oneshot(&content));
        Ok(Representation {
            description: describe(&metadata, version),
            source: ContentSource::Memory(content.into_boxed_slice().into()),
            stamp,
            is_stamp_reliable: stamp.changed_before(settled_at),
        })
    }

    /// Opens a regular file that may be served. A hidden file counts as missing, apart from the
    /// log.
    fn open_visible(
        &self,
        name: &[u8],
        reach: LookupDepth,
    ) -> Result<Option<OpenedFile>, LookupStop> {
        let Some(hiding) = self.hide_patterns.find_match(name) else {
            let opened = self.open_regular(name, reach)?;
            return match opened {
                Some(opened) if self.leads_to_hidden(&opened, name)? => Ok(None),
                opened => Ok(opened),
            };
        };
        if !hiding.is_default || self.logged_hidden.is_logged_or_full(|known| known == name) {
            return Ok(None);
        }
        match self.open_regular(name, reach) {
            Err(LookupStop::NeedsDisk) => return Err(LookupStop::NeedsDisk),
            Ok(Some(_)) => log_hidden_file(&self.logged_hidden, &self.root.path, name, hiding),
            Ok(None) | Err(LookupStop::Fault(_)) => {}
        }
        Ok(None)
    }

    /// Opens a regular file; `None` if there is none.
    fn open_regular(
        &self,
        name: &[u8],
        reach: LookupDepth,
    ) -> Result<Option<OpenedFile>, LookupStop> {
        let opened = self.open_any(name, reach)?;
        Ok(opened.filter(|opened| opened.metadata.is_file()))
    }

    /// Whether a symbolic link led to a hidden file. Reads `/proc` only for links.
    fn leads_to_hidden(&self, opened: &OpenedFile, name: &[u8]) -> Result<bool, LookupStop> {
        if !opened.is_linked || self.hide_patterns.is_empty() {
            return Ok(false);
        }
        let real =
            file::fd_path(&opened.file).map_err(|error| self.stop_with_fault(&error, name))?;
        let root = self.root.real_path.as_deref();
        // A path outside the root keeps its leading slash, so that path patterns do not match it.
        let below = root.and_then(|root| real.strip_prefix(root).ok());
        let real = below.unwrap_or(&real).as_os_str().as_bytes().to_vec();
        // A replaced file has this suffix, even if a hard link to it is left.
        let before = real.strip_suffix(DELETED_SUFFIX).map(<[u8]>::to_vec);
        let names = [Some(real), before].into_iter().flatten();
        let hiding = names.into_iter().find_map(|mut name| {
            if opened.metadata.is_dir() {
                name.push(b'/');
            }
            self.hide_patterns.find_match(&name)
        });
        let Some(hiding) = hiding else {
            return Ok(false);
        };
        if hiding.is_default {
            log_hidden_file(&self.logged_hidden, &self.root.path, name, hiding);
        }
        Ok(true)
    }

    /// Opens any kind of file; `None` if there is none.
    fn open_any(&self, name: &[u8], reach: LookupDepth) -> Result<Option<OpenedFile>, LookupStop> {
        let mut is_linked = false;
        let mut opened = self.open_following(name, reach, file::SymlinkPolicy::Never);
        let follows = self.symlinks != file::SymlinkPolicy::Never;
        if follows && matches!(&opened, Err(error) if error.raw_os_error() == Some(ELOOP)) {
            is_linked = true;
            opened = self.open_following(name, reach, self.symlinks);
        }
        let described = opened.and_then(|file| {
            let Some(file) = file else {
                return Ok(None);
            };
            let metadata = file.metadata()?;
            Ok(Some(OpenedFile {
                file,
                metadata,
                is_linked,
            }))
        });
        match described {
            Ok(None) => Err(LookupStop::NeedsDisk),
            Ok(Some(opened)) if !self.is_within(&opened.metadata, reach) => {
                Err(LookupStop::NeedsDisk)
            }
            Ok(opened) => Ok(opened),
            Err(error) if self.is_unlogged_link(&error, name) => {
                if reach == LookupDepth::PageCache {
                    return Err(LookupStop::NeedsDisk);
                }
                log_unfollowed_link(&self.logged_links, &self.root.fd, &self.root.path, name);
                Ok(None)
            }
            Err(error) if is_not_servable(&error) => Ok(None),
            Err(error) if reach == LookupDepth::PageCache && is_retryable(&error) => {
                Err(LookupStop::NeedsDisk)
            }
            Err(error) => Err(self.stop_with_fault(&error, name)),
        }
    }

    /// Whether the error means a link that is not followed and not logged yet.
    fn is_unlogged_link(&self, error: &io::Error, name: &[u8]) -> bool {
        error.kind() == io::ErrorKind::CrossesDevices
            && self.symlinks == file::SymlinkPolicy::Beneath
            && !is_link_logged(&self.logged_links, name)
    }

    /// Whether the opened file may be accessed at this depth. Other file systems mounted below the
    /// root are left to the pool.
    fn is_within(&self, metadata: &Metadata, reach: LookupDepth) -> bool {
        reach != LookupDepth::PageCache || self.loop_accessible_device == Some(metadata.dev())
    }

    /// Opens a name by these rules for links. `None` if that needs more than `reach` permits.
    fn open_following(
        &self,
        name: &[u8],
        reach: LookupDepth,
        symlinks: file::SymlinkPolicy,
    ) -> io::Result<Option<File>> {
        if reach == LookupDepth::PageCache {
            let open =
                |reading| file::open_beneath_cached_with(&self.root.fd, name, symlinks, reading);
            return self.opener.open(open);
        }
        let mut attempts = 1;
        loop {
            let open = |reading| file::open_beneath_with(&self.root.fd, name, symlinks, reading);
            let opened = self.opener.open(open).map(Some);
            match opened {
                Err(error) if is_retryable(&error) && attempts < MAX_OPEN_ATTEMPTS => attempts += 1,
                done => return done,
            }
        }
    }

    fn log_unreadable(&self, path: &[u8], fault: &Fault) {
        log_unreadable_file(&self.logged_unreadable, path, fault);
    }

    fn stop_with_fault(&self, error: &io::Error, name: &[u8]) -> LookupStop {
        LookupStop::Fault(self.fault_from_io_error(error, name))
    }

    pub(crate) fn fault_from_io_error(&self, error: &io::Error, name: &[u8]) -> Fault {
        let place = self.root.path.join(String::from_utf8_lossy(name).as_ref());
        let kind = if error.kind() == io::ErrorKind::PermissionDenied {
            FaultKind::Forbidden
        } else if is_retryable(error) || is_out_of_resources(error) {
            FaultKind::Overloaded
        } else {
            FaultKind::Internal
        };
        // Clients choose names: quoted and escaped for the log.
        Fault::new(kind, format!("{place:?}: {error}"))
    }
}

/// The suffix in `/proc` of a deleted file's name.
const DELETED_SUFFIX: &[u8] = b" (deleted)";

/// The version of a file that is not cached with its content. `None` if that needs a read beyond
/// `reach`. Blocks for a read.
fn large_file_version(
    file: &File,
    stamp: &FileStamp,
    metadata: &Metadata,
    now: Duration,
    reach: LookupDepth,
) -> io::Result<Option<EtagVersion>> {
    let (seconds, nanos) = modification_time(metadata);
    let is_plausible = is_plausible_mtime(seconds, now);
    // Whole seconds come from archives and builds, which set one time for all files; a write has a
    // fraction.
    if is_plausible && nanos != 0 {
        return Ok(Some(EtagVersion::ModificationTime));
    }
    if metadata.size() <= MAX_HASHED_BYTES {
        if reach != LookupDepth::Disk {
            return Ok(None);
        }
        let hash = hash_file(file)?;
        // A concurrent write may have been hashed in part.
        if stamp.matches(&file.metadata()?) {
            return Ok(Some(EtagVersion::ContentHash(hash)));
        }
        return Ok(Some(EtagVersion::MetadataHash(stamp.metadata_hash())));
    }
    Ok(Some(match is_plausible {
        true => EtagVersion::ModificationTime,
        false => EtagVersion::MetadataHash(stamp.metadata_hash()),
    }))
}

fn hash_file(file: &File) -> io::Result<u64> {
    let mut hasher = XxHash3_64::new();
    let mut buffer = vec![0; 128 * 1024];
    let mut at = 0;
    loop {
        match file::read_at(file, &mut buffer, at) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(count) => {
                hasher.write(&buffer[..count]);
                at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Modification time since the epoch: seconds, nanoseconds.
fn modification_time(metadata: &Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}

/// Whether a precompressed file is older than the original. Whole seconds come from tools that copy
/// or unpack without fractions, or set the original's time without its fraction (`gzip -k`).
fn is_older(beside: (i64, i64), original: (i64, i64)) -> bool {
    if beside.1 == 0 {
        beside.0 < original.0
    } else {
        beside < original
    }
}

/// The device number of the root's file system. Blocks.
fn device_of(root: &OwnedFd) -> io::Result<u64> {
    Ok(File::from(root.try_clone()?).metadata()?.dev())
}

/// Reads all `len` bytes if they are in memory.
fn read_cached(file: &File, len: u64) -> Option<Vec<u8>> {
    let mut content = vec![0; usize::try_from(len).ok()?];
    let mut filled = 0;
    while filled < content.len() {
        match file::read_at_if_cached(file, &mut content[filled..], filled as u64) {
            Ok(0) | Err(_) => return None,
            Ok(count) => filled += count,
        }
    }
    Some(content)
}

#[cfg(test)]
mod tests;
