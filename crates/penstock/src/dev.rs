//! Development mode (`serve --dev`): changed files take effect by themselves, errors explain
//! themselves, requests are shown to the person at the terminal.
//!
//! `server` calls [`start`] once; a task on the control loop then turns changes of files
//! (`dev/watch.rs`, `code`) into restarts of applications and reloads of the configuration,
//! the same that the commands do. `wiring` wraps applications in `dev/explain.rs`. What must stay true:
//! without `--dev` nothing here runs, and no change ever waits for a restart that hangs.

mod explain;
mod frames;
mod watch;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_config::LogTarget;
use penstock_runtime::{clock, loops};
use tokio::sync::Notify;

pub(crate) use self::explain::explained;
use self::watch::{Change, Changes, Watch};
use crate::code::{self, Apart};
use crate::server::{Live, Server};
use crate::upstreams::default_pool;

/// Nothing has changed for so long: an editor has written all its files.
const QUIET: Duration = Duration::from_millis(100);

/// Changes that go on for longer than this do not wait any more.
const GATHER_MAX: Duration = Duration::from_millis(500);

/// How often to look whether there are other applications than before.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Whether lines for a person get colours there: it is a terminal, and nobody said `NO_COLOR`.
pub(crate) fn has_colours(target: &LogTarget) -> bool {
    let is_terminal = match target {
        LogTarget::Stdout => std::io::stdout().is_terminal(),
        LogTarget::Stderr => std::io::stderr().is_terminal(),
        LogTarget::File(_) => false,
    };
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Watches the code of the server's applications and its configuration, in development.
pub(crate) fn start(server: &Arc<Server>, development: bool) {
    if !development {
        return;
    }
    match watch::start() {
        Ok((watch, changes)) => loops::spawn_here(follow(Arc::clone(server), watch, changes)),
        Err(error) => log::warn!("changes of files are not seen: {error}"),
    }
}

/// What is watched, and what is not code in there.
#[derive(Debug, Clone, Default, PartialEq)]
struct Places {
    /// Names and folders of applications.
    apps: Vec<(String, PathBuf)>,
    config: Option<PathBuf>,
    apart: Apart,
}

/// What is to be done about changes.
#[derive(Debug, Default, PartialEq)]
struct Due {
    reload: bool,
    /// Applications to restart.
    apps: BTreeSet<String>,
}

/// What is under way, and who is told of its end.
#[derive(Debug, Default)]
struct Restarting {
    /// Applications that restart.
    names: Mutex<BTreeSet<String>>,
    /// Whether the configuration is read again.
    reloads: AtomicBool,
    ended: Notify,
}

async fn follow(server: Arc<Server>, watch: Watch, mut changes: Changes) {
    let watch = Arc::new(Mutex::new(watch));
    let restarting = Arc::new(Restarting::default());
    let outputs = code::outputs();
    let mut places = Places::default();
    let mut due = Due::default();
    while !server.is_draining() {
        let now = Places::of(&server.live(), &outputs);
        if now != places {
            places = now;
            look_at(&server, &watch, places.roots()).await;
        }
        act(&server, &restarting, &mut due);
        let change = tokio::select! {
            change = changes.next() => change,
            () = restarting.ended.notified() => continue,
            () = clock::sleep(LOOK_AGAIN) => continue,
        };
        let Some(change) = change else { return };
        let folders = gather(change, &mut changes, &places, &mut due).await;
        look_at(&server, &watch, folders).await;
    }
}

/// Takes what comes until it is quiet; gives the folders that are new.
async fn gather(
    first: Change,
    changes: &mut Changes,
    places: &Places,
    due: &mut Due,
) -> Vec<(PathBuf, Depth)> {
    let end = clock::now() + GATHER_MAX;
    let mut folders = BTreeSet::new();
    let mut next = Some(first);
    while let Some(change) = next {
        let concerned = places.note(&change.path, due);
        if concerned && change.is_new_folder {
            folders.insert(change.path);
        }
        let now = clock::now();
        if now >= end {
            break;
        }
        let quiet = (now + QUIET).min(end);
        next = clock::timeout_at(quiet, changes.next()).await.flatten();
    }
    let mut folders: Vec<_> = folders.into_iter().map(|path| (path, Depth::All)).collect();
    if changes.take_lost() {
        due.reload = places.config.is_some();
        due.apps
            .extend(places.apps.iter().map(|(name, _)| name.clone()));
        folders.extend(places.roots());
    }
    folders
}

/// Whether the folders below are watched too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    One,
    All,
}

async fn look_at(server: &Server, watch: &Arc<Mutex<Watch>>, folders: Vec<(PathBuf, Depth)>) {
    if folders.is_empty() {
        return;
    }
    let (pool, watch) = (default_pool(&server.live().rooms.pools), Arc::clone(watch));
    let looked = pool.run(move || {
        let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
        for (folder, depth) in folders {
            match depth {
                Depth::All => watch.follow(&folder),
                Depth::One => drop(watch.add(&folder)),
            }
        }
    });
    if let Err(error) = looked.await {
        log::warn!("folders are not watched: {error}");
    }
}

/// Reloads, and restarts what is not being restarted already; that has its turn afterwards. Waits for none of
/// them.
fn act(server: &Arc<Server>, restarting: &Arc<Restarting>, due: &mut Due) {
    if due.reload && !restarting.reloads.swap(true, Ordering::Relaxed) {
        due.reload = false;
        let (server, restarting) = (Arc::clone(server), Arc::clone(restarting));
        loops::spawn_here(async move {
            // The result is in the log.
            let _ = server.reload_in_turn().await;
            restarting.reloads.store(false, Ordering::Relaxed);
            restarting.ended.notify_one();
        });
    }
    let free: Vec<_> = {
        let names = restarting.names();
        let free = due.apps.iter().filter(|name| !names.contains(*name));
        free.cloned().collect()
    };
    for name in free {
        due.apps.remove(&name);
        let Some(app) = server.live().rooms.apps.get(&name).cloned() else {
            continue;
        };
        log::info!("{name}: files have changed");
        restarting.names().insert(name.clone());
        let restarting = Arc::clone(restarting);
        loops::spawn_here(async move {
            // The executor logs what comes of it.
            let _ = app.restart().await;
            restarting.names().remove(&name);
            restarting.ended.notify_one();
        });
    }
}

impl Restarting {
    fn names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn of(live: &Live, outputs: &[PathBuf]) -> Self {
        let config = &live.config;
        let apps = live.rooms.apps.values();
        let apps = apps.map(|app| (app.name().to_owned(), app.config().dir.clone()));
        Self {
            apps: apps.collect(),
            config: config.path.clone(),
            apart: Apart::of(config, outputs),
        }
    }

    /// The folders to watch.
    fn roots(&self) -> Vec<(PathBuf, Depth)> {
        let apps = self.apps.iter().map(|(_, dir)| (dir.clone(), Depth::All));
        let config = self.config.as_deref().and_then(Path::parent);
        let config = config.map(|dir| (dir.to_owned(), Depth::One));
        apps.chain(config).collect()
    }

    /// Notes what a change of this path makes due; says whether it is one of somebody's code.
    fn note(&self, path: &Path, due: &mut Due) -> bool {
        if self.config.as_deref() == Some(path) {
            // It restarts what it makes different.
            due.reload = true;
            return false;
        }
        let mut is_code = false;
        for (name, dir) in &self.apps {
            if self.apart.leaves(path, dir) {
                due.apps.insert(name.clone());
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
        let places = Places {
            apps: vec![
                ("a".to_owned(), "/srv/tmp/a".into()),
                ("b".to_owned(), "/srv/tmp/a/sub".into()),
            ],
            config: Some("/srv/tmp/a/penstock.toml".into()),
            apart: Apart::these(vec![
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
            let mut due = Due::default();
            assert_eq!(
                places.note(Path::new(path), &mut due),
                !apps.is_empty(),
                "{path}"
            );
            let apps = apps.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(due, Due { reload, apps }, "{path}");
        }
    }

    #[test]
    fn only_terminals_have_colours() {
        assert!(!has_colours(&LogTarget::File("/dev/stdout".into())));
    }
}
