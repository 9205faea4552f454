//! Development mode (`serve --dev`): changed files take effect, errors explain themselves, and
//! requests are shown at the terminal.
//!
//! `server` calls [`start`] once. A task on the control loop turns changes of files
//! (`dev/watch.rs`, `code`) into restarts of applications and reloads of the configuration, as the
//! commands do. `wiring` wraps applications in `dev/explain.rs`, which explains errors and marks pages
//! of old code.
//!
//! # Invariants
//!
//! - Without `--dev` nothing here runs.
//! - A change never waits for a hanging restart.

mod code_state;
mod explain;
mod secrets;
mod traceback_frames;
mod watch;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_config::{ConfigSources, LogTarget};
use penstock_runtime::{clock, loops};
use tokio::sync::mpsc;

pub(crate) use self::explain::with_explanations;
use self::watch::{ChangeQueue, DirWatcher, FileChange};
use crate::code::{self, NonCodePaths};
use crate::components::default_pool;
use crate::server::{LiveState, Server};

/// Time without changes after which an editor has written all its files.
const QUIET_PERIOD: Duration = Duration::from_millis(100);

/// Maximum time to gather changes before they are applied.
const MAX_GATHER_TIME: Duration = Duration::from_millis(500);

/// How often to check whether the applications have changed.
const APPS_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Whether lines for a person are coloured: on a terminal, unless `NO_COLOR` is set.
pub(crate) fn has_colours(target: &LogTarget) -> bool {
    let is_terminal = match target {
        LogTarget::Stdout => std::io::stdout().is_terminal(),
        LogTarget::Stderr => std::io::stderr().is_terminal(),
        _ => false,
    };
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Watches the code of the server's applications and its configuration, in development.
pub(crate) fn start(server: &Arc<Server>, development: bool) {
    if !development {
        return;
    }
    match watch::start_watching() {
        Ok((watch, changes)) => {
            loops::spawn_here(watch_and_apply(Arc::clone(server), watch, changes));
        }
        Err(error) => {
            log::warn!("watch: cannot watch files: {error}. Restart the server after changes");
        }
    }
}

/// The watched paths, and the paths below them that are not code.
#[derive(Debug, Clone, Default, PartialEq)]
struct WatchedPaths {
    /// Names and directories of applications.
    app_dirs: Vec<(String, PathBuf)>,
    sources: ConfigSources,
    non_code: NonCodePaths,
}

/// An action that changes require.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Reload,
    /// Of the application of that name.
    Restart(String),
}

async fn watch_and_apply(server: Arc<Server>, watch: DirWatcher, mut changes: ChangeQueue) {
    let watch = Arc::new(Mutex::new(watch));
    let outputs = code::standard_output_files();
    let mut watched_paths = WatchedPaths::default();
    let (mut due, mut ongoing) = (BTreeSet::new(), BTreeSet::new());
    let (done, mut finished) = mpsc::channel(1);
    while !server.is_draining() {
        let now = WatchedPaths::from_live(&server.live_state(), &outputs);
        if now != watched_paths {
            watched_paths = now;
            watch_folders(&server, &watch, watched_paths.roots()).await;
        }
        start_actions(&server, &mut due, &mut ongoing, &done);
        let change = tokio::select! {
            change = changes.next() => change,
            Some(action) = finished.recv() => {
                ongoing.remove(&action);
                continue;
            }
            () = clock::sleep(APPS_POLL_INTERVAL) => continue,
        };
        let Some(change) = change else { return };
        let folders = gather_changes(change, &mut changes, &watched_paths, &mut due).await;
        watch_folders(&server, &watch, folders).await;
    }
}

/// Gathers changes until [`QUIET_PERIOD`] passes without one; returns the new directories.
async fn gather_changes(
    first: FileChange,
    changes: &mut ChangeQueue,
    watched_paths: &WatchedPaths,
    due: &mut BTreeSet<Action>,
) -> Vec<(PathBuf, WatchDepth)> {
    let end = clock::now() + MAX_GATHER_TIME;
    let mut folders = BTreeSet::new();
    let mut next = Some(first);
    while let Some(change) = next {
        let concerned = watched_paths.record_change(&change.path, due);
        if concerned && change.is_new_dir {
            folders.insert(change.path);
        }
        let now = clock::now();
        if now >= end {
            break;
        }
        let quiet = (now + QUIET_PERIOD).min(end);
        next = clock::timeout_at(quiet, changes.next()).await.flatten();
    }
    let mut folders: Vec<_> = folders
        .into_iter()
        .map(|path| (path, WatchDepth::Recursive))
        .collect();
    if changes.take_lost_flag() {
        due.extend(watched_paths.sources.files.first().map(|_| Action::Reload));
        let names = watched_paths.app_dirs.iter().map(|(name, _)| name.clone());
        due.extend(names.map(Action::Restart));
        folders.extend(watched_paths.roots());
    }
    folders
}

/// Whether the directories below are watched too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WatchDepth {
    Shallow,
    Recursive,
}

async fn watch_folders(
    server: &Server,
    watch: &Arc<Mutex<DirWatcher>>,
    folders: Vec<(PathBuf, WatchDepth)>,
) {
    if folders.is_empty() {
        return;
    }
    let (pool, watch) = (
        default_pool(&server.live_state().components.pools),
        Arc::clone(watch),
    );
    let looked = pool.run(move || {
        let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
        for (folder, depth) in folders {
            match depth {
                WatchDepth::Recursive => watch.watch_recursively(&folder),
                WatchDepth::Shallow => drop(watch.watch_dir(&folder)),
            }
        }
    });
    if let Err(error) = looked.await {
        log::warn!("watch: cannot watch directories: {error}");
    }
}

/// Starts due actions without waiting for them; those in progress stay due.
fn start_actions(
    server: &Arc<Server>,
    due: &mut BTreeSet<Action>,
    ongoing: &mut BTreeSet<Action>,
    done: &mpsc::Sender<Action>,
) {
    let free: Vec<_> = due.difference(ongoing).cloned().collect();
    for action in free {
        due.remove(&action);
        let app = match &action {
            Action::Reload => None,
            Action::Restart(name) => {
                let Some(app) = server.live_state().components.apps.get(name).cloned() else {
                    continue;
                };
                log::info!("{name}: restarting: files have changed");
                Some(app)
            }
        };
        ongoing.insert(action.clone());
        let (server, done) = (Arc::clone(server), done.clone());
        loops::spawn_here(async move {
            // The result is in the log.
            let _ = match app {
                None => server.reload_after_current().await.map(drop),
                Some(app) => app.restart().await,
            };
            // Development may have ended meanwhile.
            let _ = done.send(action).await;
        });
    }
}

impl WatchedPaths {
    fn from_live(live: &LiveState, outputs: &[PathBuf]) -> Self {
        let config = &live.config;
        let apps = live.components.apps.values();
        let apps = apps.map(|app| (app.name().to_owned(), app.config().dir.clone()));
        Self {
            app_dirs: apps.collect(),
            sources: config.sources.clone(),
            non_code: NonCodePaths::from_config(config, outputs),
        }
    }

    /// The directories to watch.
    fn roots(&self) -> Vec<(PathBuf, WatchDepth)> {
        let apps = self
            .app_dirs
            .iter()
            .map(|(_, dir)| (dir.clone(), WatchDepth::Recursive));
        let folders = self.sources.folders().into_iter();
        let folders = folders.filter(|folder| folder.is_dir());
        apps.chain(folders.map(|folder| (folder, WatchDepth::Shallow)))
            .collect()
    }

    /// Records the actions that a changed path requires; returns whether the path is an
    /// application's code.
    fn record_change(&self, path: &Path, due: &mut BTreeSet<Action>) -> bool {
        if self.sources.contains(path) {
            // The reload restarts changed applications.
            due.insert(Action::Reload);
            return false;
        }
        let mut is_code = false;
        for (name, dir) in &self.app_dirs {
            if self.non_code.is_code(path, dir) {
                due.insert(Action::Restart(name.clone()));
                is_code = true;
            }
        }
        is_code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_due_for_those_whose_code_it_is() {
        let mut sources = ConfigSources::default();
        sources.files.push("/srv/tmp/a/penstock.toml".into());
        let watched_paths = WatchedPaths {
            app_dirs: vec![
                ("a".to_owned(), "/srv/tmp/a".into()),
                ("b".to_owned(), "/srv/tmp/a/sub".into()),
            ],
            sources,
            non_code: NonCodePaths(vec![
                "/srv/tmp".into(),
                "/srv/tmp/a/public".into(),
                "/srv/tmp/a/run.txt".into(),
            ]),
        };
        let rows: [(&str, bool, &[&str]); 8] = [
            ("/srv/tmp/a/penstock.toml", true, &[]),
            ("/srv/tmp/a/app.py", false, &["a"]),
            ("/srv/tmp/a/sub/app.py", false, &["a", "b"]),
            ("/srv/tmp/a/public/site.css", false, &[]),
            ("/srv/tmp/a/run.txt", false, &[]),
            ("/srv/tmp/a/tmp/x.py", false, &[]),
            ("/srv/tmp/a", false, &[]),
            ("/srv/tmp/other.py", false, &[]),
        ];
        for (path, reload, apps) in rows {
            let mut due = BTreeSet::new();
            assert_eq!(
                watched_paths.record_change(Path::new(path), &mut due),
                !apps.is_empty(),
                "{path}"
            );
            let restarts = apps.iter().map(|name| Action::Restart((*name).to_owned()));
            let reload = reload.then_some(Action::Reload);
            assert!(
                due.into_iter().eq(reload.into_iter().chain(restarts)),
                "{path}"
            );
        }
    }

    #[test]
    fn only_terminals_have_colours() {
        assert!(!has_colours(&LogTarget::File("/dev/stdout".into())));
    }
}
