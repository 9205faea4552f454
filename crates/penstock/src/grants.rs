//! Responses that may name another body: what their routes' handlers are given for that.
//!
//! `wiring` puts it right around a back end whose route has `sendfile`, and around no other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_config::{Files as FilesConfig, HidePattern, Sendfile, TryPattern};
use penstock_exchange::{Asked, AtHand, Handler, Handling, Request, SendfileGrant, Spoken};
use penstock_files::{Files, FilesSetup};

use crate::upstreams::{Pools, default_pool};

/// The folders of `sendfile` of one configuration, each opened once.
#[derive(Debug)]
pub(crate) struct Folders<'a> {
    opened: BTreeMap<PathBuf, Arc<dyn Handler>>,
    pools: &'a Pools,
    /// Names that no folder gives out.
    hide: &'a [HidePattern],
    loops: usize,
}

impl<'a> Folders<'a> {
    pub(crate) fn new(pools: &'a Pools, hide: &'a [HidePattern], loops: usize) -> Self {
        Self {
            opened: BTreeMap::new(),
            pools,
            hide,
            loops,
        }
    }

    /// `inner`, whose responses may name what `sendfile` says.
    ///
    /// # Errors
    /// A folder that cannot be opened.
    pub(crate) fn grant(
        &mut self,
        inner: Arc<dyn Handler>,
        sendfile: Option<&Sendfile>,
    ) -> Result<Arc<dyn Handler>, String> {
        let Some(sendfile) = sendfile else {
            return Ok(inner);
        };
        let opened = |folder: &PathBuf| Ok((folder.clone(), self.open(folder)?));
        let folders: Result<_, String> = sendfile.folders.iter().map(opened).collect();
        let grant = Arc::new(SendfileGrant { folders: folders? });
        Ok(Arc::new(Granted { inner, grant }))
    }

    fn open(&mut self, folder: &Path) -> Result<Arc<dyn Handler>, String> {
        if let Some(opened) = self.opened.get(folder) {
            return Ok(Arc::clone(opened));
        }
        let setup = FilesSetup {
            files: sent_from(folder, self.hide),
            pool: default_pool(self.pools),
            loops: self.loops,
            falls_through: false,
            script_index: None,
        };
        let files = Files::open(setup).map_err(|error| format!("{}: {error}", folder.display()))?;
        let files: Arc<dyn Handler> = Arc::new(files);
        self.opened.insert(folder.to_owned(), Arc::clone(&files));
        Ok(files)
    }
}

/// The files that `X-Sendfile` may name: one path each, and nothing said about them that the response does not
/// say, since they may be meant for one client alone.
fn sent_from(folder: &Path, hide: &[HidePattern]) -> FilesConfig {
    FilesConfig {
        hide: hide.to_vec(),
        try_: vec![TryPattern::path()],
        precompressed: Vec::new(),
        compress: Vec::new(),
        immutable: false,
        ..FilesConfig::new(folder.to_owned())
    }
}

/// A back end whose responses may name another body.
#[derive(Debug)]
struct Granted {
    inner: Arc<dyn Handler>,
    grant: Arc<SendfileGrant>,
}

impl Granted {
    fn with_grant(&self, mut request: Request) -> Request {
        request.sendfile = Some(Arc::clone(&self.grant));
        request
    }
}

impl Handler for Granted {
    fn handle(&self, request: Request) -> Handling {
        self.inner.handle(self.with_grant(request))
    }

    fn begin(&self, request: Request) -> Handling {
        self.inner.begin(self.with_grant(request))
    }

    fn obey(&self, spoken: Spoken) -> Handling {
        self.inner.obey(spoken)
    }

    fn at_hand(&self, asked: &Asked<'_>, take: &mut dyn FnMut(AtHand<'_>)) {
        self.inner.at_hand(asked, take);
    }
}
