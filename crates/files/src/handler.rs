//! stub
use std::{io, path::PathBuf};

use penstock_config::TryPattern;
use penstock_exchange::{Fault, FaultKind, Handler, Handling, Reply, Request};
use penstock_runtime::blocking::Pool;

/// What a folder of static files is made from.
#[derive(Debug)]
pub struct FilesSetup {
    /// The folder; nothing outside it is served.
    pub root: PathBuf,
    /// Where to look for a path, in order.
    pub try_: Vec<TryPattern>,
    /// Opens, checks and reads.
    pub pool: Pool,
    /// Whether another handler of the route gets what is not here.
    pub falls_through: bool,
}

/// A folder of static files.
#[derive(Debug)]
pub struct Files { setup: FilesSetup }

impl Files {
    /// Opens.
    pub fn open(setup: FilesSetup) -> io::Result<Self> { Ok(Self { setup }) }
}

impl Handler for Files {
    fn handle(&self, request: Request) -> Handling<'_> {
        Handling::Now(if self.setup.falls_through { Ok(Reply::Pass(Box::new(request))) } else { Err(Fault::new(FaultKind::NotFound, "no such file")) })
    }
}
