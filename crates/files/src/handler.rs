//! Static files as a handler: the memory first, then the disk in a pool.
//!
//! Made by `penstock`'s wiring at start and at each reload (the root is opened once, so a symbolic
//! link to a release is followed at that moment); asked by edge for each request of its route. What
//! must stay true: a request answered from memory makes no system call and allocates nothing; a
//! request that falls through is passed on unchanged.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use penstock_config::TryPattern;
use penstock_exchange::{
    Asked, AtHand, Body, Fault, FaultKind, FileBody, Handler, Handling, Name, Reply, Request,
    Response,
};
use penstock_http::Method;
use penstock_runtime::blocking::{Pool, PoolError};
use penstock_runtime::{DiskFile, clock};

use crate::memory::{Bounds, Known, Lookup, Memory};
use crate::reply;
use crate::resolve::{self, Places};
use crate::tree::{Loaded, Looked, Opened, Tree};

/// Memory for the small files of one root.
const MEMORY_BYTES: usize = 32 << 20;

/// Paths that one root's memory knows something of.
const MEMORY_ENTRIES: usize = 32 << 10;

/// What a folder of static files is made from.
#[derive(Debug)]
pub struct FilesSetup {
    /// The folder; nothing outside it is served.
    pub root: PathBuf,
    /// Where to look for a path, in order.
    pub try_: Vec<TryPattern>,
    /// Opens, checks and reads.
    pub pool: Pool,
    /// How many loops ask: they share the memory.
    pub loops: usize,
    /// Whether another handler of the route gets what is not here.
    pub falls_through: bool,
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
    pool: Pool,
    falls_through: bool,
}

impl Files {
    /// Opens the root. Blocks: for use at start and reload.
    ///
    /// # Errors
    /// When the root does not exist or is no directory, or the kernel has no `openat2`; names the root.
    pub fn open(setup: FilesSetup) -> io::Result<Self> {
        let tree = Tree::open(&setup.root, Places::new(&setup.try_))?;
        let folder = Folder {
            tree: Arc::new(tree),
            memory: Memory::new(Bounds {
                loops: setup.loops,
                bytes: MEMORY_BYTES,
                entries: MEMORY_ENTRIES,
            }),
            pool: setup.pool,
            falls_through: setup.falls_through,
        };
        Ok(Self {
            folder: Arc::new(folder),
        })
    }
}

impl Folder {
    /// Answers with what is known.
    fn reply(&self, request: Request, known: &Known) -> Result<Reply, Fault> {
        match known {
            Known::File(file) => Ok(self.named(answer_small(&request, file))),
            Known::Directory => Ok(self.named(reply::redirect(request.path(), request.query()))),
            Known::Absent => self.miss(request),
        }
    }

    /// Answers from the disk, and keeps what was found there.
    async fn look(self: Arc<Self>, request: Request, known: Option<Known>) -> Result<Reply, Fault> {
        let path: Arc<[u8]> = request.path().into();
        let (checked, looked) = self.ask_tree(&path, request.arrived, known.as_ref()).await;
        let found = match (looked, known) {
            (Ok(Looked::Small(file)), _) => Known::File(file),
            (Ok(Looked::Directory), _) => Known::Directory,
            (Ok(Looked::Absent), _) => Known::Absent,
            (Ok(Looked::Opened(opened)), _) => {
                self.memory.forget(&path);
                return Ok(self.named(self.answer_opened(&request, opened)));
            }
            // No means to check it: what was right a moment ago is better than a refusal.
            (Err(fault), Some(known)) if fault.kind == FaultKind::Overloaded => {
                log::warn!("files: served without a check: {}", fault.cause);
                return self.reply(request, &known);
            }
            (Err(fault), _) => {
                self.memory.forget(&path);
                return Err(self.blamed(fault));
            }
        };
        self.memory.keep(path, found.clone(), checked);
        self.reply(request, &found)
    }

    /// Looks in the pool; also gives the moment at which that began.
    async fn ask_tree(
        &self,
        path: &Arc<[u8]>,
        arrived: Instant,
        known: Option<&Known>,
    ) -> (Instant, Result<Looked, Fault>) {
        let (tree, path) = (Arc::clone(&self.tree), Arc::clone(path));
        let known = match known {
            Some(Known::File(file)) => Some(Arc::clone(file)),
            _ => None,
        };
        let looked = self.pool.run(move || {
            let began = clock::now().max(arrived);
            (began, tree.look(&path, known.as_ref()))
        });
        looked
            .await
            .unwrap_or_else(|error| (arrived, Err(pool_fault(&error))))
    }

    fn answer_opened(&self, request: &Request, opened: Opened) -> Response {
        let Opened { description, file } = opened;
        let file = Arc::new(DiskFile::new(file, self.pool.clone()));
        reply::answer(&request.head, &description, |start, len| {
            Body::File(FileBody {
                file: Arc::clone(&file),
                start,
                len,
            })
        })
    }

    /// There is nothing by that name.
    fn miss(&self, request: Request) -> Result<Reply, Fault> {
        if self.falls_through {
            return Ok(Reply::Pass(Box::new(request)));
        }
        Err(self.blamed(Fault::new(FaultKind::NotFound, "no such file")))
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
        Reply::Response(response)
    }

    fn blamed(&self, mut fault: Fault) -> Fault {
        fault.timing.handler = Some(Name::Room(reply::HANDLER));
        fault
    }
}

impl Handler for Files {
    fn handle(&self, request: Request) -> Handling {
        let folder = &self.folder;
        if !matches!(request.head.method(), Method::Get | Method::Head) {
            return Handling::Now(folder.other_method(request));
        }
        let path = request.path();
        // The head's arrival is recent enough for an age of a second, and saves reading the clock.
        let known = match folder.memory.find(path, request.arrived) {
            Lookup::Fresh(known) => return Handling::Now(folder.reply(request, &known)),
            Lookup::Stale(known) => Some(known),
            // Never kept in memory, so not asked before it.
            Lookup::Unknown if !resolve::is_servable(path) => {
                return Handling::Now(folder.miss(request));
            }
            Lookup::Unknown => None,
        };
        Handling::Later(Box::pin(Arc::clone(folder).look(request, known)))
    }

    fn at_hand(&self, asked: &Asked<'_>, take: &mut dyn FnMut(AtHand<'_>)) {
        if !matches!(asked.head.method(), Method::Get | Method::Head) {
            return;
        }
        let memory = &self.folder.memory;
        memory.glance(asked.path, asked.arrived, |known| {
            if let Known::File(file) = known
                && let Some(answer) = reply::at_hand(asked.head, &file.description, &file.content)
            {
                take(answer);
            }
        });
    }
}

fn answer_small(request: &Request, file: &Loaded) -> Response {
    reply::answer(&request.head, &file.description, |start, len| {
        // A file in memory is far smaller than what either number can hold.
        let start = usize::try_from(start)
            .unwrap_or(usize::MAX)
            .min(file.content.len());
        let end = usize::try_from(len).map_or(usize::MAX, |len| start.saturating_add(len));
        Body::Bytes(file.content.slice(start..end.min(file.content.len())))
    })
}

fn pool_fault(error: &PoolError) -> Fault {
    let kind = match error {
        PoolError::Full { .. } => FaultKind::Overloaded,
        PoolError::Lost { .. } => FaultKind::House,
    };
    Fault::new(kind, error.to_string())
}

#[cfg(test)]
mod tests;
