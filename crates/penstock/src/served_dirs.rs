//! The directories that one configuration serves files from, each opened once.
//!
//! `wiring` creates one for each build of the settings.
//!
//! # Invariants
//!
//! - Routes of the same directory share its descriptor.
//! - Routes with the same settings for a directory share the handler too, with its cache.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_config::Files as FilesConfig;
use penstock_files::{FilesHandler, FilesSetup, RootDir};

/// The settings that a handler's responses depend on. The pool follows from the name in the
/// configuration.
type HandlerKey = (FilesConfig, bool, Option<String>);

#[derive(Debug, Default)]
pub(crate) struct ServedDirs {
    roots: HashMap<PathBuf, Arc<RootDir>>,
    handlers: HashMap<HandlerKey, Arc<FilesHandler>>,
}

impl ServedDirs {
    /// Returns the handler for a route's directory. May block.
    ///
    /// # Errors
    /// A directory that cannot be opened, or an invalid rule for its files; names the directory.
    pub(crate) fn get_or_open(&mut self, setup: FilesSetup) -> Result<Arc<FilesHandler>, String> {
        let script_index = setup.script_index.clone();
        let key = (setup.files.clone(), setup.falls_through, script_index);
        if let Some(files) = self.handlers.get(&key) {
            return Ok(Arc::clone(files));
        }
        let path = &key.0.root;
        let root = match self.roots.get(path) {
            Some(root) => Arc::clone(root),
            None => {
                let root = Arc::new(RootDir::open(path).map_err(|error| error.to_string())?);
                self.roots.insert(path.clone(), Arc::clone(&root));
                root
            }
        };
        let files = FilesHandler::new(root, setup)
            .map_err(|error| format!("{}: {error}", key.0.root.display()))?;
        let files = Arc::new(files);
        self.handlers.insert(key, Arc::clone(&files));
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use penstock_runtime::blocking::Pool;

    use super::*;

    #[test]
    fn routes_of_one_folder_share_what_is_open() {
        let mut folders = ServedDirs::default();
        let pool = Pool::new("default", 1, 1);
        let mut open = |listing, falls_through| {
            let files = FilesConfig {
                listing,
                ..FilesConfig::new(std::env::temp_dir())
            };
            let setup = FilesSetup {
                files,
                pool: pool.clone(),
                loops: 1,
                falls_through,
                script_index: None,
            };
            folders.get_or_open(setup).unwrap()
        };
        let first = open(false, false);
        assert!(Arc::ptr_eq(&first, &open(false, false)));
        let (listing, falling) = (open(true, false), open(false, true));
        assert!(!Arc::ptr_eq(&first, &listing) && !Arc::ptr_eq(&first, &falling));
        assert_eq!((folders.roots.len(), folders.handlers.len()), (1, 3));
    }
}
