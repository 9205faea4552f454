//! What a tree gives out and what it does not, on a real folder.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;

use penstock_config::TryPattern;

use super::*;
use crate::testing::Folder;

fn tree(folder: &Folder) -> Tree {
    let html = TryPattern::Around {
        prefix: String::new(),
        suffix: ".html".to_owned(),
    };
    let mut patterns = TryPattern::defaults();
    patterns.push(html);
    Tree::open(&folder.root(), Places::new(&patterns)).unwrap()
}

fn found(tree: &Tree, path: &[u8]) -> String {
    match tree.look(path, None) {
        Ok(Looked::Small(file)) => String::from_utf8(file.content.to_vec()).unwrap(),
        Ok(Looked::Opened(opened)) => format!("{} bytes", opened.file.metadata().unwrap().len()),
        Ok(Looked::Directory) => "directory".to_owned(),
        Ok(Looked::Absent) => "absent".to_owned(),
        Err(fault) => format!("{:?}", fault.kind),
    }
}

#[test]
fn looks_in_each_place_in_order() {
    let folder = Folder::new();
    folder.write("index.html", "home");
    folder.write("a.css", "css");
    folder.write("docs/index.html", "docs");
    folder.write("about.html", "about");
    folder.write("empty/file", "");
    folder.write("large", vec![b'x'; 65_537]);
    folder.write("just-small", vec![b'x'; 65_536]);
    folder.write("sp ace/%2e\\?", "odd");
    folder.write(std::ffi::OsStr::from_bytes(b"\xff\xfe.txt"), "not UTF-8");
    folder.link("docs/index.html", "link");
    let tree = tree(&folder);
    for (path, expected) in [
        (b"/".as_slice(), "home"),
        (b"/index.html", "home"),
        (b"/a.css", "css"),
        (b"/a.css/", "absent"),
        (b"/docs/", "docs"),
        (b"/docs", "directory"),
        (b"/docs/index.html", "docs"),
        (b"/docs/index.html/", "absent"),
        (b"/about", "about"),
        (b"/about/", "absent"),
        (b"/empty", "absent"),
        (b"/empty/", "absent"),
        (b"/empty/file", ""),
        (b"/large", "65537 bytes"),
        (b"/sp ace/%2e\\?", "odd"),
        (b"/\xff\xfe.txt", "not UTF-8"),
        (b"/link", "docs"),
        (b"/nothing", "absent"),
    ] {
        assert_eq!(found(&tree, path), expected, "{}", path.escape_ascii());
    }
    assert_eq!(found(&tree, b"/just-small").len(), 65_536);
    let long = [b"/".as_slice(), &[b'a'; 300]].concat();
    assert_eq!(found(&tree, &long), "absent", "a name too long");
    let long = [b"/".as_slice(), &b"abc/".repeat(2000)].concat();
    assert_eq!(found(&tree, &long), "absent", "a path too long");
}

#[test]
fn nothing_outside_the_root_is_opened() {
    let folder = Folder::new();
    folder.write("../secret", "s");
    folder.write("../secrets/index.html", "s");
    folder.write("inside/a", "a");
    folder.link("../secret", "out");
    folder.link("../secrets", "out-dir");
    folder.link("/etc/passwd", "absolute");
    folder.link(folder.root().join("inside/a"), "absolute-inside");
    folder.link("circle", "circle");
    folder.link("/proc/self/root", "magic");
    folder.link("inside/../inside/a", "in");
    let tree = tree(&folder);
    for (path, expected) in [
        ("/../secret", "absent"),
        ("/inside/../../secret", "absent"),
        ("//etc/passwd", "absent"),
        ("/out", "absent"),
        ("/out-dir", "absent"),
        ("/out-dir/", "absent"),
        ("/out-dir/index.html", "absent"),
        ("/absolute", "absent"),
        ("/absolute-inside", "absent"),
        ("/circle", "absent"),
        ("/magic/etc/passwd", "absent"),
        ("/in", "a"),
    ] {
        assert_eq!(found(&tree, path.as_bytes()), expected, "{path}");
    }
}

#[test]
fn what_is_no_regular_file_is_not_there_and_nothing_hangs() {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let folder = Folder::new();
    let root = folder.root();
    mknodat(
        CWD,
        root.join("fifo"),
        FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .unwrap();
    let _listener = UnixListener::bind(root.join("socket")).unwrap();
    std::fs::create_dir(root.join("folder")).unwrap();
    // Devices are only root's to make, and not everywhere.
    let zero = makedev(1, 5);
    let device = mknodat(
        CWD,
        root.join("zero"),
        FileType::CharacterDevice,
        Mode::RUSR,
        zero,
    );
    let tree = tree(&folder);
    for name in ["fifo", "socket", "folder", "folder/"] {
        assert_eq!(
            found(&tree, format!("/{name}").as_bytes()),
            "absent",
            "{name}"
        );
    }
    if device.is_ok() {
        let found = found(&tree, b"/zero");
        assert!(
            ["absent", "Forbidden"].contains(&found.as_str()),
            "a device: {found}"
        );
    }
}

#[test]
fn an_unchanged_file_is_not_read_again() {
    let folder = Folder::new();
    folder.write("a", "one");
    let tree = tree(&folder);
    let read = |known: Option<&Arc<Loaded>>| match tree.look(b"/a", known) {
        Ok(Looked::Small(file)) => file,
        other => panic!("{other:?}"),
    };
    let fresh = read(None);
    assert!(!fresh.is_settled, "written a moment ago");
    assert!(
        !Arc::ptr_eq(&read(Some(&fresh)), &fresh),
        "so it is read again"
    );

    let settled = settle(&fresh);
    assert!(Arc::ptr_eq(&read(Some(&settled)), &settled));

    folder.write("a", "two");
    let changed = read(Some(&settled));
    assert_eq!(
        changed.content, "two",
        "the same size and modification time"
    );
}

#[test]
fn an_earlier_place_that_appears_is_noticed() {
    let folder = Folder::new();
    folder.write("a.html", "later");
    let tree = tree(&folder);
    let Ok(Looked::Small(known)) = tree.look(b"/a", None) else {
        panic!("not found")
    };
    std::fs::hard_link(folder.root().join("a.html"), folder.root().join("a")).unwrap();
    let Ok(Looked::Small(now)) = tree.look(b"/a", Some(&settle(&known))) else {
        panic!("not found")
    };
    assert_eq!(now.identity.place, 0);
}

/// The same file as if it had been read long after its last change.
fn settle(file: &Loaded) -> Arc<Loaded> {
    Arc::new(Loaded {
        description: Description::new("text/plain", (0, 0), 3, Duration::ZERO),
        content: file.content.clone(),
        identity: file.identity,
        is_settled: true,
    })
}

#[test]
fn errors_have_the_kind_that_fits() {
    let folder = Folder::new();
    let tree = tree(&folder);
    for (what, number, expected) in [
        ("ENOENT", 2, None),
        ("EINTR", 4, Some(FaultKind::Overloaded)),
        ("EIO", 5, Some(FaultKind::House)),
        ("ENXIO", 6, None),
        ("EAGAIN", 11, Some(FaultKind::Overloaded)),
        ("ENOMEM", 12, Some(FaultKind::Overloaded)),
        ("EACCES", 13, Some(FaultKind::Forbidden)),
        ("EXDEV", 18, None),
        ("ENODEV", 19, None),
        ("ENOTDIR", 20, None),
        ("ENFILE", 23, Some(FaultKind::Overloaded)),
        ("EMFILE", 24, Some(FaultKind::Overloaded)),
        ("ENAMETOOLONG", 36, None),
        ("ELOOP", 40, None),
    ] {
        let error = io::Error::from_raw_os_error(number);
        let kind = (!is_missing(&error)).then(|| tree.fault(&error, b"a\nb").kind);
        assert_eq!(kind, expected, "{what}");
    }
    let cause = tree.fault(&io::Error::from_raw_os_error(5), b"a\nb").cause;
    assert!(
        cause.contains("root/a\\nb") && !cause.contains('\n'),
        "{cause}"
    );
}

#[test]
fn a_root_that_is_not_there_is_named() {
    let folder = Folder::new();
    folder.write("file", "");
    for name in ["missing", "file"] {
        let root = folder.root().join(name);
        let error = Tree::open(&root, Places::new(&[])).unwrap_err();
        assert!(
            error.to_string().contains(root.to_str().unwrap()),
            "{error}"
        );
    }
}
