//! The handler for static files: answers from the cache, then from the kernel's caches, then from
//! the disk in a pool.
//!
//! `penstock` creates it at the start and at each reload. The root is opened once, so a symbolic
//! link to a release is resolved at that time. `edge` calls it for each request of its route.
//!
//! # Invariants
//!
//! - A response from the cache makes no system call and allocates nothing (an open file costs one
//!   check).
//! - A request does not wait long for the check of a cached entry.
//! - A request passed to the next handler is unchanged, but for the target of a fallback.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_config::TryFallback;
use penstock_exchange::{
    Fault, FaultKind, Handler, HandlerName, HandlerProgress, InlineResponse, Reply, Request,
    RequestPath, RequestView, Response,
};
use penstock_http::{HeadWriter, Method, RequestHead};
use penstock_runtime::blocking::{Pool, PoolError};
use penstock_runtime::{clock, loops};
use tokio::sync::oneshot;

use crate::compressor::{CompressionStatus, CompressionWaiter, Compressor};
use crate::file_cache::{FileCache, FileCacheLimits, FileCacheLookup};
use crate::file_entry::{CacheEntry, ContentSource, FileEntry, SelectedCoding};
use crate::file_tree::{FileLookup, FileTree, LookupDepth, RootDir};
use crate::listing::ListingJobs;
use crate::{reply, resolve};

/// How long a request waits for a check or a compression before it gets what is available. Both
/// take longer only with a failing disk or a crowded pool.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// The settings of a [`FilesHandler`].
#[derive(Debug, Clone)]
pub struct FilesSetup {
    /// The route's `files` configuration.
    pub files: penstock_config::Files,
    /// Opens, checks and reads files.
    pub pool: Pool,
    /// Number of event loops, which share the cache limits.
    pub loops: usize,
    /// Whether the route's next handler gets requests for missing files.
    pub falls_through: bool,
    /// The index script that the next handler runs for a directory, such as `index.php`.
    pub script_index: Option<String>,
}

/// A directory of static files. A handle: pending requests keep the state alive.
#[derive(Debug)]
pub struct FilesHandler {
    state: Arc<FilesState>,
}

#[derive(Debug)]
struct FilesState {
    tree: Arc<FileTree>,
    file_cache: FileCache,
    compressor: Compressor,
    listings: ListingJobs,
    pool: Pool,
    falls_through: bool,
    fallback: Option<TryFallback>,
    script_index: Option<String>,
}

enum CodingOutcome {
    Response(Response),
    /// The file's coding is being compressed.
    Wait(CompressionWaiter, Arc<FileEntry>),
}

impl FilesHandler {
    /// Serves the files below `root`.
    ///
    /// # Errors
    /// Fails if a configured media type or `Cache-Control` is invalid, and names it.
    pub fn new(root: Arc<RootDir>, setup: FilesSetup) -> io::Result<Self> {
        let mut tree = FileTree::new(root, &setup.files, setup.pool.clone())?;
        if let Some(index) = &setup.script_index {
            tree.set_script_index(index);
        }
        let folder = FilesState {
            tree: Arc::new(tree),
            file_cache: FileCache::new(FileCacheLimits::for_root(setup.loops)),
            compressor: Compressor::default(),
            listings: ListingJobs::default(),
            pool: setup.pool,
            falls_through: setup.falls_through,
            fallback: setup.files.fallback,
            script_index: setup.script_index,
        };
        Ok(Self {
            state: Arc::new(folder),
        })
    }
}

impl FilesState {
    /// Responds from an entry. `is_news` is set if it was found for this request.
    fn respond(
        self: &Arc<Self>,
        request: Request,
        known: &CacheEntry,
        is_news: bool,
    ) -> HandlerProgress {
        let is_read = matches!(request.head.method(), Method::Get | Method::Head);
        let response = match known {
            CacheEntry::Script => return HandlerProgress::Ready(Ok(self.pass_to_script(request))),
            _ if !is_read => return HandlerProgress::Ready(self.respond_other_method(request)),
            CacheEntry::File(found) => return self.respond_with_file(request, found, is_news),
            CacheEntry::Absent => return HandlerProgress::Ready(self.respond_missing(request)),
            CacheEntry::DirectoryRedirect => reply::redirect_to_directory(&request),
            CacheEntry::Listing(page) => reply::respond_with_listing(&request.head, page),
        };
        HandlerProgress::Ready(Ok(with_handler_name(response)))
    }

    fn respond_with_file(
        self: &Arc<Self>,
        request: Request,
        found: &Arc<FileEntry>,
        is_news: bool,
    ) -> HandlerProgress {
        if !is_news
            && found.open_descriptor_count() > 0
            && !self.tree.is_unchanged(found.source_file_for(&request.head))
        {
            self.file_cache.remove(request.path());
            return HandlerProgress::Pending(Box::pin(
                Arc::clone(self).look_up_in_pool(request, None),
            ));
        }
        let (waiting, found) = match self.respond_in_coding(&request, Arc::clone(found)) {
            CodingOutcome::Response(response) => {
                return HandlerProgress::Ready(Ok(with_handler_name(response)));
            }
            CodingOutcome::Wait(waiting, found) => (waiting, found),
        };
        let folder = Arc::clone(self);
        HandlerProgress::Pending(Box::pin(async move {
            let is_done = clock::timeout(MAX_WAIT, waiting.wait()).await;
            let settled = is_done.map(|()| folder.respond_in_coding(&request, Arc::clone(&found)));
            Ok(with_handler_name(match settled {
                Some(CodingOutcome::Response(response)) => response,
                _ => reply::build_file_response(&request.head, &found.original),
            }))
        }))
    }

    /// Responds in the client's coding if it exists, else starts to compress it.
    fn respond_in_coding(&self, request: &Request, mut found: Arc<FileEntry>) -> CodingOutcome {
        loop {
            let coding = match found.select_coding(&request.head) {
                SelectedCoding::Ready(file) => {
                    return CodingOutcome::Response(reply::build_file_response(
                        &request.head,
                        file,
                    ));
                }
                SelectedCoding::Compress(coding) => coding,
            };
            match self.compressor.get_or_start(&found, coding, &self.pool) {
                // Terminates: each time one coding less is compressible.
                CompressionStatus::Done(content) => {
                    let refined = Arc::new(found.with_compressed(coding, content.as_ref()));
                    let path = request.path();
                    self.file_cache
                        .replace_if_same(path, &found, Arc::clone(&refined));
                    found = refined;
                }
                CompressionStatus::Running(waiting) => return CodingOutcome::Wait(waiting, found),
                CompressionStatus::Busy => {
                    return CodingOutcome::Response(reply::build_file_response(
                        &request.head,
                        &found.original,
                    ));
                }
            }
        }
    }

    /// Looks the path up: on the event loop if the kernel has it in memory, else in the pool.
    fn look_up(
        self: &Arc<Self>,
        request: Request,
        known: Option<CacheEntry>,
        is_old: bool,
    ) -> HandlerProgress {
        let began = clock::now().max(request.arrived_at);
        let depth = LookupDepth::PageCache;
        match self.tree.look_up(request.path(), known.as_ref(), depth) {
            Ok(FileLookup::Found(found)) => {
                self.cache_entry(request.path().into(), &found, began);
                self.respond(request, &found, true)
            }
            Err(fault) if fault.kind != FaultKind::Overloaded => {
                self.file_cache.remove(request.path());
                HandlerProgress::Ready(Err(fault_with_handler_name(fault)))
            }
            _ => {
                let folder = Arc::clone(self);
                HandlerProgress::Pending(match known {
                    Some(known) if !is_old => Box::pin(folder.revalidate(request, known)),
                    known => Box::pin(folder.look_up_in_pool(request, known)),
                })
            }
        }
    }

    async fn look_up_in_pool(
        self: Arc<Self>,
        request: Request,
        known: Option<CacheEntry>,
    ) -> Result<Reply, Fault> {
        let found = self.look_up_and_cache(request.path().into(), request.arrived_at, known);
        let found = found.await.map_err(fault_with_handler_name)?;
        match self.respond(request, &found, true) {
            HandlerProgress::Ready(reply) => reply,
            HandlerProgress::Pending(work) => work.await,
        }
    }

    /// Checks the entry on the disk. If that takes long, responds from the entry, and the check
    /// continues for later requests.
    async fn revalidate(
        self: Arc<Self>,
        request: Request,
        known: CacheEntry,
    ) -> Result<Reply, Fault> {
        let (tell, told) = oneshot::channel();
        let (folder, arrived) = (Arc::clone(&self), request.arrived_at);
        let path: Arc<[u8]> = request.path().into();
        let before = known.clone();
        self.file_cache.suspend_checks(&path);
        loops::spawn_here(async move {
            let asked = folder.look_up_and_cache(Arc::clone(&path), arrived, Some(before));
            let found = asked.await;
            if let Err(fault) = &found
                && fault.kind == FaultKind::Overloaded
            {
                folder
                    .file_cache
                    .resume_checks(&path, clock::now().max(arrived));
            }
            // The request may have been answered already.
            drop(tell.send(found));
        });
        let told = clock::timeout(MAX_WAIT, told).await;
        let (found, is_news) = match told {
            Some(Ok(Ok(found))) => (found, true),
            // The check was not possible: a slightly old entry is better than an error. The pool
            // logs that it is full.
            Some(Ok(Err(fault))) if fault.kind == FaultKind::Overloaded => {
                log::debug!(
                    "files: served from the cache without revalidation: {}",
                    fault.cause
                );
                (known, false)
            }
            Some(Ok(Err(fault))) => return Err(fault_with_handler_name(fault)),
            Some(Err(_)) | None => (known, false),
        };
        match self.respond(request, &found, is_news) {
            HandlerProgress::Ready(reply) => reply,
            HandlerProgress::Pending(work) => work.await,
        }
    }

    async fn look_up_and_cache(
        &self,
        path: Arc<[u8]>,
        arrived: Instant,
        known: Option<CacheEntry>,
    ) -> Result<CacheEntry, Fault> {
        let look_up = |known: Option<CacheEntry>, depth| {
            let (tree, name) = (Arc::clone(&self.tree), Arc::clone(&path));
            move || {
                let began = clock::now().max(arrived);
                (began, tree.look_up(&name, known.as_ref(), depth))
            }
        };
        let first = look_up(known.clone(), LookupDepth::Metadata);
        let mut looked = self.pool.run_priority(first).await;
        // The files just opened are in memory, so repeating that is quick.
        if let Ok((_, Ok(FileLookup::NeedsDisk))) = looked {
            looked = self.pool.run(look_up(known, LookupDepth::Disk)).await;
        }
        let (began, looked) =
            looked.unwrap_or_else(|error| (arrived, Err(fault_from_pool_error(&error))));
        let found = match looked {
            Ok(FileLookup::Found(found)) => Ok(found),
            Ok(FileLookup::Directory(folder)) => self.build_listing(&path, folder).await,
            Ok(FileLookup::NeedsDisk) => {
                Err(Fault::new(FaultKind::Internal, "a file was not read"))
            }
            Err(fault) => Err(fault),
        };
        match &found {
            Ok(found) => self.cache_entry(path, found, began),
            Err(fault) if fault.kind == FaultKind::Overloaded => {}
            Err(_) => self.file_cache.remove(&path),
        }
        found
    }

    async fn build_listing(&self, path: &Arc<[u8]>, folder: File) -> Result<CacheEntry, Fault> {
        let page = self
            .listings
            .get_or_build(&self.tree, path, folder, &self.pool);
        page.await.map(CacheEntry::Listing)
    }

    /// Caches the result of a check that began at `began`.
    fn cache_entry(&self, path: Arc<[u8]>, found: &CacheEntry, began: Instant) {
        match found {
            // An open file that changes would have an outdated description.
            CacheEntry::File(file)
                if file.open_descriptor_count() > 0 && !file.has_reliable_stamps() =>
            {
                self.file_cache.remove(&path);
            }
            found => self.file_cache.insert(path, found.clone(), began),
        }
    }

    fn respond_missing(&self, request: Request) -> Result<Reply, Fault> {
        self.pass_or_refuse(request, FaultKind::NotFound, "no such file")
    }

    /// Passes the request to the next handler, which runs the directory's index script.
    fn pass_to_script(&self, mut request: Request) -> Reply {
        if let Some(index) = &self.script_index {
            request.descend_into(index);
        }
        Reply::Pass(Box::new(request))
    }

    fn respond_other_method(&self, request: Request) -> Result<Reply, Fault> {
        let cause = "files take GET and HEAD";
        self.pass_or_refuse(request, FaultKind::MethodNotAllowed, cause)
    }

    fn pass_or_refuse(
        &self,
        request: Request,
        kind: FaultKind,
        cause: &'static str,
    ) -> Result<Reply, Fault> {
        match (&self.fallback, self.falls_through) {
            (Some(TryFallback::Status(403)), _) if kind == FaultKind::NotFound => Err(
                fault_with_handler_name(Fault::new(FaultKind::Forbidden, cause)),
            ),
            (Some(TryFallback::Status(_)), _) | (_, false) => {
                Err(fault_with_handler_name(Fault::new(kind, cause)))
            }
            (Some(fallback), true) => pass_with_target(request, fallback),
            (None, true) => Ok(Reply::Pass(Box::new(request))),
        }
    }
}

/// Passes a request on with the path and query of the fallback; method and body stay.
fn pass_with_target(mut request: Request, fallback: &TryFallback) -> Result<Reply, Fault> {
    let head = &request.head;
    let sent = head.target_path_query();
    let (path, query) = match sent.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (sent, None),
    };
    if let Some(target) = fallback.target(path, query) {
        let made = HeadWriter::with_kept_fields(head, head.method_str(), &target, |_| true);
        let made = made.finish().map_err(|error| error.to_string());
        let made = made.and_then(|head| {
            let path = RequestPath::from_head(&head).map_err(|error| error.to_string())?;
            Ok((head, path))
        });
        let (head, path) = made.map_err(|error| {
            let cause = format!("the last item of `try` makes no path: {error}");
            fault_with_handler_name(Fault::new(FaultKind::Internal, cause))
        })?;
        request.retarget(Arc::new(head), path);
    }
    Ok(Reply::Pass(Box::new(request)))
}

fn with_handler_name(mut response: Response) -> Reply {
    response.timing.handler = Some(HandlerName::Component(reply::HANDLER_NAME));
    response.into()
}

fn fault_with_handler_name(mut fault: Fault) -> Fault {
    fault.timing.handler = Some(HandlerName::Component(reply::HANDLER_NAME));
    fault
}

impl Handler for FilesHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let folder = &self.state;
        let path = request.path();
        let is_read = matches!(request.head.method(), Method::Get | Method::Head);
        // A form may be sent to a directory with an index script.
        let may_be_script = folder.script_index.is_some() && path.ends_with(b"/");
        if !is_read && !may_be_script {
            return HandlerProgress::Ready(folder.respond_other_method(request));
        }
        if has_encoded_slash(&request.head) {
            return HandlerProgress::Ready(folder.respond_missing(request));
        }
        // The request's arrival is recent enough for an age of a second, and saves reading the
        // clock.
        match folder.file_cache.look_up(path, request.arrived_at) {
            FileCacheLookup::Fresh(known) => folder.respond(request, &known, false),
            FileCacheLookup::Stale(known) => folder.look_up(request, Some(known), false),
            FileCacheLookup::Expired(known) => folder.look_up(request, Some(known), true),
            // Never cached, so not looked up before.
            FileCacheLookup::Miss if !resolve::is_servable_path(path) => {
                HandlerProgress::Ready(folder.respond_missing(request))
            }
            FileCacheLookup::Miss => folder.look_up(request, None, false),
        }
    }

    fn try_inline(&self, asked: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        if !matches!(asked.head.method(), Method::Get | Method::Head)
            || has_encoded_slash(asked.head)
        {
            return;
        }
        let memory = &self.state.file_cache;
        memory.with_fresh(asked.path, asked.arrived_at, |known| {
            if let CacheEntry::File(found) = known
                && let SelectedCoding::Ready(file) = found.select_coding(asked.head)
                && let ContentSource::Memory(content) = &file.source
                && let Some(answer) = reply::try_inline(asked.head, &file.description, content)
            {
                take(answer);
            }
        });
    }
}

/// Whether the path has an encoded slash. It would belong to a file name, and no file name contains
/// one.
fn has_encoded_slash(head: &RequestHead) -> bool {
    let target = head.path_query_bytes();
    target.contains(&b'%') && {
        let path = target
            .split(|&byte| byte == b'?')
            .next()
            .unwrap_or_default();
        path.windows(3)
            .any(|three| three.eq_ignore_ascii_case(b"%2f"))
    }
}

pub(crate) fn fault_from_pool_error(error: &PoolError) -> Fault {
    let kind = match error {
        PoolError::Full { .. } => FaultKind::Overloaded,
        PoolError::Lost { .. } => FaultKind::Internal,
    };
    Fault::new(kind, error.to_string())
}

#[cfg(test)]
mod tests;
