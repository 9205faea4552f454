//! Lets responses name another body (`X-Sendfile`, `X-Accel-Redirect`), for routes with `sendfile`.
//!
//! `wiring` wraps the back end of such a route in it, and no other.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_config::{Files as FilesConfig, HidePattern, Sendfile, TryPattern};
use penstock_exchange::{
    Handler, HandlerProgress, InlineResponse, Request, RequestView, SendfileGrant,
};
use penstock_files::FilesSetup;

use crate::components::{ThreadPools, default_pool};

/// Wraps `inner`: its responses may name the bodies that `sendfile` allows.
pub(crate) fn with_sendfile_grant(
    inner: Arc<dyn Handler>,
    sendfile: &Sendfile,
    mut open: impl FnMut(&Path) -> Result<Arc<dyn Handler>, String>,
) -> Result<Arc<dyn Handler>, String> {
    let mut folders: Vec<(PathBuf, Arc<dyn Handler>)> = Vec::new();
    for folder in &sendfile.dirs {
        folders.push((folder.clone(), open(folder)?));
    }
    let grant = Arc::new(SendfileGrant { dirs: folders });
    Ok(Arc::new(SendfileHandler { inner, grant }))
}

/// The setup of the files that `X-Sendfile` may name: one path each, and no headers besides the
/// response's own, since a file may be meant for one client alone.
pub(crate) fn sendfile_setup(
    folder: &Path,
    hide: &[HidePattern],
    pools: &ThreadPools,
    loops: usize,
) -> FilesSetup {
    let files = FilesConfig {
        hide: hide.to_vec(),
        try_: vec![TryPattern::path()],
        precompressed: Vec::new(),
        compress: Vec::new(),
        immutable: false,
        ..FilesConfig::new(folder.to_owned())
    };
    FilesSetup {
        files,
        pool: default_pool(pools),
        loops,
        falls_through: false,
        script_index: None,
    }
}

#[derive(Debug)]
struct SendfileHandler {
    inner: Arc<dyn Handler>,
    grant: Arc<SendfileGrant>,
}

impl Handler for SendfileHandler {
    fn handle(&self, mut request: Request) -> HandlerProgress {
        request.sendfile_grant = Some(Arc::clone(&self.grant));
        self.inner.handle(request)
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.inner.try_inline(request, take);
    }
}
