//! Results of a walk compared with those of `openat2`, and a tree that changes meanwhile.

use super::*;
use crate::file::{AccessTimePolicy, open_resolved, open_root};
use rustix::fs::ResolveFlags;

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// A directory, removed with its test.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("penstock-walk-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("root/a/b/c")).unwrap();
        std::fs::create_dir_all(dir.join("beside")).unwrap();
        std::fs::write(dir.join("secret"), "secret").unwrap();
        std::fs::write(dir.join("beside/other"), "other").unwrap();
        std::fs::write(dir.join("root/top"), "top").unwrap();
        std::fs::write(dir.join("root/a/b/file"), "file").unwrap();
        for (text, link) in [
            ("top", "to-top"),
            ("a/b", "to-folder"),
            ("a/b/", "to-folder-slash"),
            ("a/b/../../top", "down-and-up"),
            ("../secret", "out"),
            ("a/../../secret", "out-late"),
            ("/etc/passwd", "absolute"),
            ("loop-b", "loop-a"),
            ("loop-a", "loop-b"),
            ("nothing", "dangling"),
            ("to-folder/../top", "link-and-up"),
            ("top/", "file-slash"),
            ("../beside", "to-beside"),
            ("..", "up"),
            (".", "self"),
        ] {
            symlink(text, dir.join("root").join(link)).unwrap();
        }
        symlink("../../top", dir.join("root/a/b/to-top")).unwrap();
        symlink("../../../secret", dir.join("root/a/b/out")).unwrap();
        Self(dir)
    }

    fn root(&self) -> OwnedFd {
        open_root(&self.0.join("root")).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The file's identity, or the error's number.
fn outcome(opened: Result<File, Errno>) -> Result<(u64, u64), i32> {
    let opened = opened.map_err(Errno::raw_os_error)?;
    let metadata = opened.metadata().unwrap();
    Ok((metadata.dev(), metadata.ino()))
}

/// The result of `openat2` once no rename of another test interferes.
fn open_by_kernel(root: &OwnedFd, path: &[u8], symlinks: SymlinkPolicy) -> Result<File, Errno> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (noted, no_more) = (AccessTimePolicy::Updated, ResolveFlags::empty());
        let opened = open_resolved(root, path, symlinks, noted, no_more);
        if opened.as_ref().err() != Some(&Errno::AGAIN) || Instant::now() > deadline {
            return opened;
        }
    }
}

const PATHS: [&str; 44] = [
    "",
    ".",
    "./",
    "top",
    "./top",
    "top/",
    "top/.",
    "top/x",
    "a",
    "a/",
    "a/b/file",
    "a//b///file",
    "a/./b/./file",
    "a/b/../b/file",
    "a/b/c/../../../top",
    "a/b/c/../../../..",
    "a/..",
    "..",
    "../secret",
    "a/../../secret",
    "/etc/passwd",
    "nothing",
    "nothing/x",
    "a/nothing/..",
    "to-top",
    "to-top/",
    "to-folder",
    "to-folder/file",
    "to-folder/",
    "to-folder-slash/file",
    "to-folder/..",
    "to-folder/../..",
    "down-and-up",
    "out",
    "out-late",
    "absolute",
    "loop-a",
    "dangling",
    "link-and-up",
    "file-slash",
    "a/b/to-top",
    "a/b/out",
    "to-beside/other",
    "up/root/top",
];

#[test]
fn the_walk_agrees_with_openat2() {
    if !*crate::kernel::HAS_OPENAT2 {
        return; // Nothing to compare with: the tests below have fixed expectations.
    }
    let tree = Tree::new("same");
    let root = tree.root();
    for path in PATHS {
        for symlinks in [
            SymlinkPolicy::Beneath,
            SymlinkPolicy::Never,
            SymlinkPolicy::Anywhere,
        ] {
            let bytes = path.as_bytes();
            let refused = symlinks == SymlinkPolicy::Anywhere && crate::file::escapes_root(bytes);
            if refused {
                continue; // Refused before either is called.
            }
            let kernel = open_by_kernel(&root, bytes, symlinks);
            let walked = open(root.as_fd(), bytes, symlinks, READ);
            assert_eq!(outcome(walked), outcome(kernel), "{path:?} {symlinks:?}");
        }
    }
}

#[test]
fn no_path_escapes_the_root() {
    let tree = Tree::new("out");
    let root = tree.root();
    let secret = std::fs::metadata(tree.0.join("secret")).unwrap().ino();
    for symlinks in [SymlinkPolicy::Beneath, SymlinkPolicy::Never] {
        for path in PATHS {
            if let Ok(file) = open(root.as_fd(), path.as_bytes(), symlinks, READ) {
                let found = file.metadata().unwrap();
                assert_ne!(found.ino(), secret, "{path}");
                let name = std::fs::read_link(format!(
                    "/proc/self/fd/{}",
                    std::os::fd::AsRawFd::as_raw_fd(&file)
                ));
                assert!(name.unwrap().starts_with(tree.0.join("root")), "{path}");
            }
        }
    }
    for path in ["out", "a/b/out", "absolute", "up", "../secret", "/etc"] {
        let refused = open(root.as_fd(), path.as_bytes(), SymlinkPolicy::Beneath, READ);
        assert_eq!(refused.err(), Some(Errno::XDEV), "{path}");
    }
    let followed = open(root.as_fd(), b"out", SymlinkPolicy::Anywhere, READ);
    assert_eq!(followed.unwrap().metadata().unwrap().ino(), secret);
}

#[test]
fn a_changing_tree_never_escapes_the_root() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let tree = Tree::new("race");
    let (root, dir) = (tree.root(), tree.0.clone());
    let secret = std::fs::metadata(dir.join("secret")).unwrap().ino();
    std::fs::write(dir.join("root/a/b/secret"), "inside").unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // `a/b` is a directory, then a link that leads out, and so on.
            while !is_done.load(Ordering::Relaxed) {
                std::fs::rename(dir.join("root/a/b"), dir.join("root/a/kept")).unwrap();
                symlink("../..", dir.join("root/a/b")).unwrap();
                std::fs::remove_file(dir.join("root/a/b")).unwrap();
                std::fs::rename(dir.join("root/a/kept"), dir.join("root/a/b")).unwrap();
            }
        });
        let mut found = 0;
        for _ in 0..20_000 {
            for path in ["a/b/secret", "a/b/c/../secret"] {
                if let Ok(file) = open(root.as_fd(), path.as_bytes(), SymlinkPolicy::Beneath, READ)
                {
                    let ino = file.metadata().unwrap().ino();
                    assert_ne!(ino, secret, "{path}");
                    found += 1;
                }
            }
        }
        is_done.store(true, Ordering::Relaxed);
        assert!(found > 0, "the directory was never seen");
    });
}

#[test]
fn too_many_symlinks_are_an_error() {
    let tree = Tree::new("long");
    let long = "self/".repeat(MAX_LINKS + 1);
    let root = tree.root();
    let refused = open(root.as_fd(), long.as_bytes(), SymlinkPolicy::Beneath, READ);
    assert_eq!(refused.err(), Some(Errno::LOOP));
    let down_and_up = "a/b/c/../../../".repeat(260);
    symlink(down_and_up, tree.0.join("root/deep")).unwrap();
    let deep = "deep/".repeat(MAX_LINKS);
    let refused = open(root.as_fd(), deep.as_bytes(), SymlinkPolicy::Beneath, READ);
    assert_eq!(refused.err(), Some(Errno::LOOP), "not thousands of opens");
    let long = "./".repeat(MAX_PATH_BYTES / 2);
    let refused = open(root.as_fd(), long.as_bytes(), SymlinkPolicy::Beneath, READ);
    assert_eq!(refused.err(), Some(Errno::NAMETOOLONG));
    let zero = open(root.as_fd(), b"to\0p", SymlinkPolicy::Beneath, READ);
    assert_eq!(zero.err(), Some(Errno::INVAL));
}

#[test]
fn the_access_time_can_stay_unchanged_without_openat2() {
    let tree = Tree::new("noatime");
    let root = tree.root();
    let opened = crate::file::open_by_walking(
        &root,
        b"a/b/file",
        SymlinkPolicy::Beneath,
        AccessTimePolicy::Unchanged,
    );
    let flags = rustix::fs::fcntl_getfl(opened.unwrap()).unwrap();
    assert!(flags.contains(OFlags::NOATIME));
}
