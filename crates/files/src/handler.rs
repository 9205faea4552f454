//! Static files as a handler: the memory first, then what the kernel has in memory, then the disk in a pool.
//!
//! Made by `penstock`'s wiring at start and at each reload (the root is opened once, so a symbolic
//! link to a release is followed at that moment); asked by edge for each request of its route. What
//! must stay true: a request answered from memory makes no system call and allocates nothing (an open
//! file is looked at with one); nobody waits long for news of what is known; a request that falls through
//! is passed on unchanged.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_exchange::{
    Asked, AtHand, Fault, FaultKind, Handler, Handling, Name, Reply, Request, Response,
};
use penstock_http::{Method, RequestHead};
use penstock_runtime::blocking::{Pool, PoolError};
use penstock_runtime::{clock, loops};
use tokio::sync::oneshot;

use crate::compress::{Compressor, Progress, Waiting};
use crate::known::{Choice, Found, Known, Source};
use crate::listing::Listings;
use crate::memory::{Bounds, Lookup, Memory};
use crate::tree::{Looked, Root, Tree};
use crate::{reply, resolve};

/// How long a request waits for a check of what is known, or for a compression, before it gets what there
/// is. Longer than both take but for an ill disk and a crowded pool.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// What a folder of static files is made from.
#[derive(Debug, Clone)]
pub struct FilesSetup {
    /// What the route says about its folder.
    pub files: penstock_config::Files,
    /// Opens, checks and reads.
    pub pool: Pool,
    /// How many loops ask: they share the memory.
    pub loops: usize,
    /// Whether another handler of the route gets what is not here.
    pub falls_through: bool,
    /// The script that the other handler runs for a folder in which it is: `index.php`.
    pub script_index: Option<String>,
}

/// A folder of static files. A handle: the work of a request keeps the folder for itself.
#[derive(Debug)]
pub struct Files {
    folder: Arc<Folder>,
}

#[derive(Debug)]
struct Folder {
    tree: Arc<Tree>,
    memory: Memory,
    compressor: Compressor,
    listings: Listings,
    pool: Pool,
    falls_through: bool,
    script_index: Option<String>,
}

/// How a request for a file stands.
enum Settled {
    Answer(Response),
    /// The coding for it is being made of this.
    Wait(Waiting, Arc<Found>),
}

impl Files {
    /// Serves what is below `root`.
    ///
    /// # Errors
    /// When a media type or a `Cache-Control` of the configuration cannot be sent; names it.
    pub fn new(root: Arc<Root>, setup: FilesSetup) -> io::Result<Self> {
        let mut tree = Tree::new(root, &setup.files, setup.pool.clone())?;
        if let Some(index) = &setup.script_index {
            tree.look_for_script(index);
        }
        let folder = Folder {
            tree: Arc::new(tree),
            memory: Memory::new(Bounds::of_root(setup.loops)),
            compressor: Compressor::default(),
            listings: Listings::default(),
            pool: setup.pool,
            falls_through: setup.falls_through,
            script_index: setup.script_index,
        };
        Ok(Self {
            folder: Arc::new(folder),
        })
    }
}

impl Folder {
    /// Answers with what is known; `is_news` when it was found for this very request.
    fn reply(self: &Arc<Self>, request: Request, known: &Known, is_news: bool) -> Handling {
        let is_read = matches!(request.head.method(), Method::Get | Method::Head);
        let response = match known {
            Known::Script => return Handling::Now(Ok(self.pass_to_script(request))),
            _ if !is_read => return Handling::Now(self.other_method(request)),
            Known::File(found) => return self.reply_file(request, found, is_news),
            Known::Absent => return Handling::Now(self.miss(request)),
            Known::Directory => reply::redirect(&request.mount, request.path(), request.query()),
            Known::Listing(page) => reply::listing(&request.head, page),
        };
        Handling::Now(Ok(self.named(response)))
    }

    fn reply_file(
        self: &Arc<Self>,
        request: Request,
        found: &Arc<Found>,
        is_news: bool,
    ) -> Handling {
        if !is_news
            && found.descriptors() > 0
            && !self.tree.is_unchanged(found.behind(&request.head))
        {
            self.memory.forget(request.path());
            return Handling::Later(Box::pin(Arc::clone(self).look(request, None)));
        }
        let (waiting, found) = match self.settle(&request, Arc::clone(found)) {
            Settled::Answer(response) => return Handling::Now(Ok(self.named(response))),
            Settled::Wait(waiting, found) => (waiting, found),
        };
        let folder = Arc::clone(self);
        Handling::Later(Box::pin(async move {
            let is_done = clock::timeout(WAIT_MAX, waiting.done()).await;
            let settled = is_done.map(|()| folder.settle(&request, Arc::clone(&found)));
            Ok(folder.named(match settled {
                Some(Settled::Answer(response)) => response,
                _ => reply::answer(&request.head, &found.original),
            }))
        }))
    }

    /// Answers in the coding that the client is to get, if that is there; begins to make it if not.
    fn settle(&self, request: &Request, mut found: Arc<Found>) -> Settled {
        loop {
            let coding = match found.choose(&request.head) {
                Choice::Ready(file) => {
                    return Settled::Answer(reply::answer(&request.head, file));
                }
                Choice::Make(coding) => coding,
            };
            match self.compressor.get(&found, coding, &self.pool) {
                // One coding less is to be made each time, so this comes to an end.
                Progress::Done(content) => {
                    let refined = Arc::new(found.with_made(coding, content.as_ref()));
                    let path = request.path();
                    self.memory.refine(path, &found, Arc::clone(&refined));
                    found = refined;
                }
                Progress::Running(waiting) => return Settled::Wait(waiting, found),
                Progress::Busy => {
                    return Settled::Answer(reply::answer(&request.head, &found.original));
                }
            }
        }
    }

    /// Answers once it is known what there is: on the loop if the kernel has it in memory.
    fn find_out(
        self: &Arc<Self>,
        request: Request,
        known: Option<Known>,
        is_old: bool,
    ) -> Handling {
        let began = clock::now().max(request.arrived);
        match self.tree.look_now(request.path(), known.as_ref()) {
            Some(Ok(Looked::Known(found))) => {
                self.keep(request.path().into(), &found, began);
                self.reply(request, &found, true)
            }
            Some(Err(fault)) if fault.kind != FaultKind::Overloaded => {
                self.memory.forget(request.path());
                Handling::Now(Err(self.blamed(fault)))
            }
            _ => {
                let folder = Arc::clone(self);
                Handling::Later(match known {
                    Some(known) if !is_old => Box::pin(folder.check(request, known)),
                    known => Box::pin(folder.look(request, known)),
                })
            }
        }
    }

    /// Answers from the disk.
    async fn look(self: Arc<Self>, request: Request, known: Option<Known>) -> Result<Reply, Fault> {
        let found = self.ask_tree(request.path().into(), request.arrived, known);
        let found = found.await.map_err(|fault| self.blamed(fault))?;
        match self.reply(request, &found, true) {
            Handling::Now(reply) => reply,
            Handling::Later(work) => work.await,
        }
    }

    /// Checks on the disk whether what is known is still so, and answers with what is known if that takes
    /// long: the check goes on for those that come after.
    async fn check(self: Arc<Self>, request: Request, known: Known) -> Result<Reply, Fault> {
        let (tell, told) = oneshot::channel();
        let (folder, arrived) = (Arc::clone(&self), request.arrived);
        let path: Arc<[u8]> = request.path().into();
        let before = known.clone();
        self.memory.hold(&path);
        loops::spawn_here(async move {
            let asked = folder.ask_tree(Arc::clone(&path), arrived, Some(before));
            let found = asked.await;
            if let Err(fault) = &found
                && fault.kind == FaultKind::Overloaded
            {
                folder.memory.release(&path, clock::now().max(arrived));
            }
            // The request may have its answer already.
            drop(tell.send(found));
        });
        let told = clock::timeout(WAIT_MAX, told).await;
        let (found, is_news) = match told {
            Some(Ok(Ok(found))) => (found, true),
            // No means to check it: what was right a moment ago is better than a refusal. The pool tells
            // the log that it is full.
            Some(Ok(Err(fault))) if fault.kind == FaultKind::Overloaded => {
                log::debug!("files: served without a check: {}", fault.cause);
                (known, false)
            }
            Some(Ok(Err(fault))) => return Err(self.blamed(fault)),
            Some(Err(_)) | None => (known, false),
        };
        match self.reply(request, &found, is_news) {
            Handling::Now(reply) => reply,
            Handling::Later(work) => work.await,
        }
    }

    /// Looks in the pool, and keeps what was found.
    async fn ask_tree(
        &self,
        path: Arc<[u8]>,
        arrived: Instant,
        known: Option<Known>,
    ) -> Result<Known, Fault> {
        let (tree, name) = (Arc::clone(&self.tree), Arc::clone(&path));
        let before = known.clone();
        let looked = self.pool.run_priority(move || {
            let began = clock::now().max(arrived);
            (began, tree.look(&name, before.as_ref()))
        });
        let mut looked = looked.await;
        // What is opened by now is in memory, so what is done twice is short.
        if let Ok((_, Ok(Looked::Unread))) = looked {
            let (tree, name) = (Arc::clone(&self.tree), Arc::clone(&path));
            let reading = self.pool.run(move || {
                let began = clock::now().max(arrived);
                (began, tree.look_and_read(&name, known.as_ref()))
            });
            looked = reading.await;
        }
        let (began, looked) = looked.unwrap_or_else(|error| (arrived, Err(pool_fault(&error))));
        let found = match looked {
            Ok(Looked::Known(found)) => Ok(found),
            Ok(Looked::Folder(folder)) => self.list(&path, folder).await,
            Ok(Looked::Unread) => Err(Fault::new(FaultKind::House, "a file was not read")),
            Err(fault) => Err(fault),
        };
        match &found {
            Ok(found) => self.keep(path, found, began),
            Err(fault) if fault.kind == FaultKind::Overloaded => {}
            Err(_) => self.memory.forget(&path),
        }
        found
    }

    async fn list(&self, path: &Arc<[u8]>, folder: File) -> Result<Known, Fault> {
        let page = self.listings.page(&self.tree, path, folder, &self.pool);
        page.await.map(Known::Listing)
    }

    /// Keeps what was found by a check that began at `began`.
    fn keep(&self, path: Arc<[u8]>, found: &Known, began: Instant) {
        match found {
            // An open file that changes would be described as it was.
            Known::File(file) if file.descriptors() > 0 && !file.is_settled() => {
                self.memory.forget(&path);
            }
            found => self.memory.keep(path, found.clone(), began),
        }
    }

    /// There is nothing by that name.
    fn miss(&self, request: Request) -> Result<Reply, Fault> {
        if self.falls_through {
            return Ok(Reply::Pass(Box::new(request)));
        }
        Err(self.blamed(Fault::new(FaultKind::NotFound, "no such file")))
    }

    /// The script of the folder is another handler's to run.
    fn pass_to_script(&self, mut request: Request) -> Reply {
        if let Some(index) = &self.script_index {
            request.descend(index);
        }
        Reply::Pass(Box::new(request))
    }

    fn other_method(&self, request: Request) -> Result<Reply, Fault> {
        if self.falls_through {
            return Ok(Reply::Pass(Box::new(request)));
        }
        let fault = Fault::new(FaultKind::MethodNotAllowed, "files take GET and HEAD");
        Err(self.blamed(fault))
    }

    fn named(&self, mut response: Response) -> Reply {
        response.timing.handler = Some(Name::Room(reply::HANDLER));
        response.into()
    }

    fn blamed(&self, mut fault: Fault) -> Fault {
        fault.timing.handler = Some(Name::Room(reply::HANDLER));
        fault
    }
}

impl Handler for Files {
    fn handle(&self, request: Request) -> Handling {
        let folder = &self.folder;
        let path = request.path();
        let is_read = matches!(request.head.method(), Method::Get | Method::Head);
        // A form may be sent to a folder, which is to its script.
        let may_be_script = folder.script_index.is_some() && path.ends_with(b"/");
        if !is_read && !may_be_script {
            return Handling::Now(folder.other_method(request));
        }
        if names_slash(&request.head) {
            return Handling::Now(folder.miss(request));
        }
        // The head's arrival is recent enough for an age of a second, and saves reading the clock.
        match folder.memory.find(path, request.arrived) {
            Lookup::Fresh(known) => folder.reply(request, &known, false),
            Lookup::Stale(known) => folder.find_out(request, Some(known), false),
            Lookup::Old(known) => folder.find_out(request, Some(known), true),
            // Never kept in memory, so not asked before it.
            Lookup::Unknown if !resolve::is_servable(path) => Handling::Now(folder.miss(request)),
            Lookup::Unknown => folder.find_out(request, None, false),
        }
    }

    fn at_hand(&self, asked: &Asked<'_>, take: &mut dyn FnMut(AtHand<'_>)) {
        if !matches!(asked.head.method(), Method::Get | Method::Head) || names_slash(asked.head) {
            return;
        }
        let memory = &self.folder.memory;
        memory.glance(asked.path, asked.arrived, |known| {
            if let Known::File(found) = known
                && let Choice::Ready(file) = found.choose(asked.head)
                && let Source::Memory(content) = &file.source
                && let Some(answer) = reply::at_hand(asked.head, &file.description, content)
            {
                take(answer);
            }
        });
    }
}

/// Whether a slash is encoded in the path: that would be one in the name of a file, and no file has one.
fn names_slash(head: &RequestHead) -> bool {
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

pub(crate) fn pool_fault(error: &PoolError) -> Fault {
    let kind = match error {
        PoolError::Full { .. } => FaultKind::Overloaded,
        PoolError::Lost { .. } => FaultKind::House,
    };
    Fault::new(kind, error.to_string())
}

#[cfg(test)]
mod tests;
