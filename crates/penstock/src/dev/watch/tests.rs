//! Tests with real directories and events of the kernel.

use std::time::Duration;

use penstock_runtime::{clock, loops};

use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = format!("penstock-watch-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn folder(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn file(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::File::create(&path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run<F: Future>(work: F) -> F::Output {
    loops::block_on(work).unwrap()
}

/// Collects changes up to one of `last`, which must come.
async fn until(changes: &mut ChangeQueue, last: &Path) -> Vec<FileChange> {
    let deadline = clock::now() + Duration::from_secs(10);
    let mut seen = Vec::new();
    while seen
        .last()
        .is_none_or(|change: &FileChange| change.path != last)
    {
        let next = clock::timeout_at(deadline, changes.next()).await;
        seen.push(next.flatten().expect("a change in time"));
    }
    seen
}

#[test]
fn sees_changes_below_but_not_in_ignored_folders() {
    let folder = Folder::new("ignored");
    folder.folder("lib/deep");
    folder.folder(".git");
    folder.folder("node_modules/x");
    std::fs::create_dir_all(folder.0.join("myenv")).unwrap();
    folder.file("myenv/pyvenv.cfg");
    let (mut watch, mut changes) = start_watching().unwrap();
    watch.watch_recursively(&folder.0);
    assert_eq!(watch.watched_dirs.len(), 3, "{:?}", watch.watched_dirs);
    run(async {
        folder.file(".git/index");
        folder.file("node_modules/x/index.js");
        folder.file("myenv/a.py");
        let last = folder.file("lib/deep/view.py");
        let seen = until(&mut changes, &last).await;
        assert!(seen.iter().all(|change| change.path == last), "{seen:?}");
    });
}

#[test]
fn a_new_folder_says_that_it_is_one() {
    let folder = Folder::new("new");
    let (mut watch, mut changes) = start_watching().unwrap();
    watch.watch_recursively(&folder.0);
    run(async {
        let made = folder.folder("made");
        let seen = until(&mut changes, &made).await;
        assert!(seen.iter().any(|change| change.is_new_dir));
        watch.watch_recursively(&made);
        let file = folder.file("made/a.py");
        let seen = until(&mut changes, &file).await;
        assert!(!seen.iter().any(|change| change.is_new_dir), "{seen:?}");
    });
}

#[test]
fn watches_no_more_folders_than_its_bound() {
    let folder = Folder::new("bound");
    for name in ["a", "b", "c", "d"] {
        folder.folder(name);
    }
    let (mut watch, _changes) = start_watching().unwrap();
    watch.max_watched_dirs = 3;
    watch.watch_recursively(&folder.0);
    assert_eq!(watch.watched_dirs.len(), 3);
    assert!(watch.has_warned);
}

#[test]
fn what_finds_no_room_is_not_forgotten() {
    let folder = Folder::new("lost");
    let (mut watch, mut changes) = start_watching().unwrap();
    watch.watch_recursively(&folder.0);
    assert!(!changes.take_lost_flag());
    let deadline = clock::now() + Duration::from_secs(10);
    let mut count = 0;
    while !changes.has_lost_changes.load(Ordering::Relaxed) && clock::now() < deadline {
        folder.file(&format!("{count}.py"));
        count += 1;
    }
    assert!(changes.take_lost_flag() && !changes.take_lost_flag());
    assert!(run(changes.next()).is_some());
}
