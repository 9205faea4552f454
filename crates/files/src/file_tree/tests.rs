//! Look-ups in a real directory.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;

use penstock_config::{HidePattern, TryPattern};

use super::*;
use crate::test_support::{TestDir, open_tree};

fn tree(folder: &TestDir) -> FileTree {
    let html = TryPattern::Template {
        prefix: String::new(),
        suffix: ".html".to_owned(),
    };
    let mut patterns = TryPattern::defaults();
    patterns.push(html);
    open(folder, |files| files.try_ = patterns)
}

fn open(folder: &TestDir, say: impl FnOnce(&mut penstock_config::Files)) -> FileTree {
    let mut files = penstock_config::Files::new(folder.root());
    say(&mut files);
    open_tree(&files, Pool::new("disk", 1, 10))
}

fn found(tree: &FileTree, path: &[u8]) -> String {
    described(tree.look_up(path, None, LookupDepth::Disk))
}

fn described(looked: Result<FileLookup, Fault>) -> String {
    match looked {
        Ok(FileLookup::Found(CacheEntry::File(file))) => match &file.original.source {
            ContentSource::Memory(content) => String::from_utf8(content.to_vec()).unwrap(),
            ContentSource::Disk(file) => {
                format!("{} bytes", file.file().unwrap().metadata().unwrap().len())
            }
        },
        Ok(FileLookup::Found(CacheEntry::DirectoryRedirect)) => "directory".to_owned(),
        Ok(FileLookup::Found(CacheEntry::Script)) => "script".to_owned(),
        Ok(FileLookup::Found(CacheEntry::Absent)) => "absent".to_owned(),
        Ok(FileLookup::Found(CacheEntry::Listing(_))) => panic!("a page comes later"),
        Ok(FileLookup::Directory(_)) => "folder".to_owned(),
        Ok(FileLookup::NeedsDisk) => "unread".to_owned(),
        Err(fault) => format!("{:?}", fault.kind),
    }
}

fn file(tree: &FileTree, path: &[u8], known: Option<&Arc<FileEntry>>) -> Arc<FileEntry> {
    let known = known.map(|known| CacheEntry::File(Arc::clone(known)));
    match tree.look_up(path, known.as_ref(), LookupDepth::Disk) {
        Ok(FileLookup::Found(CacheEntry::File(found))) => found,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_folder_with_an_index_script_is_told_apart() {
    let folder = TestDir::new();
    folder.write_file("index.php", "front");
    folder.write_file("admin/index.php", "admin");
    folder.write_file("admin/index.html", "not this one");
    folder.write_file("plain/index.html", "plain");
    folder.write_file("a.css", "css");
    let mut tree = tree(&folder);
    tree.set_script_index("index.php");
    for (path, expected) in [
        ("/", "script"),
        ("/admin/", "script"),
        ("/admin", "directory"),
        ("/plain/", "plain"),
        ("/plain", "directory"),
        ("/a.css", "css"),
        ("/a.css/", "absent"),
        ("/other/", "absent"),
        ("/other", "absent"),
    ] {
        assert_eq!(found(&tree, path.as_bytes()), expected, "{path}");
    }
}

#[test]
fn looks_in_each_place_in_order() {
    let folder = TestDir::new();
    folder.write_file("index.html", "home");
    folder.write_file("a.css", "css");
    folder.write_file("docs/index.html", "docs");
    folder.write_file("about.html", "about");
    folder.write_file("empty/file", "");
    folder.write_file("large", vec![b'x'; 65_537]);
    let just_small = usize::try_from(MAX_MEMORY_BYTES).unwrap();
    folder.write_file("just-small", vec![b'x'; just_small]);
    folder.write_file("sp ace/%2e\\?", "odd");
    folder.write_file(std::ffi::OsStr::from_bytes(b"\xff\xfe.txt"), "not UTF-8");
    folder.symlink("docs/index.html", "link");
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
    assert_eq!(found(&tree, b"/just-small").len(), just_small);
    let long = [b"/".as_slice(), &[b'a'; 300]].concat();
    assert_eq!(found(&tree, &long), "absent", "a name too long");
    let long = [b"/".as_slice(), &b"abc/".repeat(2000)].concat();
    assert_eq!(found(&tree, &long), "absent", "a path too long");
}

#[test]
fn nothing_outside_the_root_is_opened() {
    let folder = TestDir::new();
    folder.write_file("../secret", "s");
    folder.write_file("../secrets/index.html", "s");
    folder.write_file("inside/a", "a");
    folder.symlink("../secret", "out");
    folder.symlink("../secrets", "out-dir");
    folder.symlink("/etc/passwd", "absolute");
    folder.symlink(folder.root().join("inside/a"), "absolute-inside");
    folder.symlink("circle", "circle");
    folder.symlink("/proc/self/root", "magic");
    folder.symlink("inside/../inside/a", "in");
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
    let folder = TestDir::new();
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
    // Only root can create devices, and not everywhere.
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
    let folder = TestDir::new();
    folder.write_file("a", "one");
    let mut tree = tree(&folder);
    let fresh = file(&tree, b"/a", None);
    assert!(!fresh.has_reliable_stamps(), "written a moment ago");
    let again = file(&tree, b"/a", Some(&fresh));
    assert!(!Arc::ptr_eq(&again, &fresh), "so it is read again");

    tree.override_settings(true, Duration::ZERO);
    let settled = file(&tree, b"/a", None);
    assert!(Arc::ptr_eq(&file(&tree, b"/a", Some(&settled)), &settled));

    folder.write_file("a", "two");
    let changed = file(&tree, b"/a", Some(&settled));
    assert!(
        matches!(&changed.original.source, ContentSource::Memory(content) if content == "two"),
        "the same size and modification time"
    );
}

#[test]
fn an_earlier_place_that_appears_is_noticed() {
    let folder = TestDir::new();
    folder.write_file("a.html", "later");
    let mut tree = tree(&folder);
    tree.override_settings(true, Duration::ZERO);
    let known = file(&tree, b"/a", None);
    std::fs::hard_link(folder.root().join("a.html"), folder.root().join("a")).unwrap();
    let now = file(&tree, b"/a", Some(&known));
    assert_ne!(now.original.stamp, known.original.stamp);
    let types = |found: &FileEntry| {
        found
            .original
            .description
            .fields
            .get("content-type")
            .map(<[u8]>::to_vec)
    };
    assert_ne!(types(&now), types(&known));
}

#[test]
fn what_the_kernel_knows_is_found_without_the_disk() {
    let folder = TestDir::new();
    folder.write_file("a", "one");
    folder.write_file("large", vec![b'x'; 70_000]);
    folder.write_file("sub/index.html", "sub");
    folder.symlink("../secret", "out");
    folder.write_file("../secret", "secret");
    let tree = tree(&folder);
    if tree.loop_accessible_device.is_none() {
        return eprintln!("skipped: the temporary folder is on no local file system");
    }
    for path in ["/a", "/large", "/sub", "/sub/", "/out", "/missing"] {
        let path = path.as_bytes();
        let from_disk = found(&tree, path);
        // Just looked up, so usually in the kernel's caches; if not, there is no result.
        let now = described(tree.look_up(path, None, LookupDepth::PageCache));
        assert!(
            now == from_disk || now == "unread",
            "{}",
            path.escape_ascii()
        );
    }
    let cached = tree.look_up(b"/a", None, LookupDepth::PageCache);
    assert_ne!(described(cached), "unread");
}

#[test]
fn a_coding_that_cannot_be_opened_is_not_offered() {
    let folder = TestDir::new();
    folder.write_file("a.css", "as it is");
    folder.symlink("a.css.gz", "a.css.gz");
    std::fs::create_dir(folder.root().join("a.css.br")).unwrap();
    let mode = rustix::fs::Mode::RUSR;
    let fifo = rustix::fs::FileType::Fifo;
    let name = folder.root().join("a.css.zst");
    rustix::fs::mknodat(rustix::fs::CWD, name, fifo, mode, 0).unwrap();
    let tree = tree(&folder);
    let found = file(&tree, b"/a.css", None);
    assert!(
        found.representations().count() == 1 && !found.original.description.varies_by_encoding()
    );
}

#[test]
fn links_are_followed_inside_or_never() {
    let folder = TestDir::new();
    folder.write_file("real/a", "a");
    folder.symlink("real/a", "file");
    folder.symlink("real", "dir");
    let inside = open(&folder, |_| {});
    let never = open(&folder, |files| files.symlinks = Symlinks::Deny);
    for path in ["/file", "/dir/a"] {
        assert_eq!(found(&inside, path.as_bytes()), "a", "{path}");
        assert_eq!(found(&never, path.as_bytes()), "absent", "{path}");
    }
    assert_eq!(found(&never, b"/real/a"), "a");
}

#[test]
fn a_root_that_goes_away_has_nothing_in_it() {
    let folder = TestDir::new();
    folder.write_file("a", "one");
    let tree = open(&folder, |files| files.listing = true);
    assert_eq!(found(&tree, b"/a"), "one");
    assert_eq!(found(&tree, b"/"), "folder");
    std::fs::remove_dir_all(folder.root()).unwrap();
    assert_eq!(found(&tree, b"/a"), "absent");
    assert_ne!(found(&tree, b"/b"), "one");
}

#[test]
fn a_file_that_is_being_written_is_described_as_it_is_found() {
    let folder = TestDir::new();
    let tree = tree(&folder);
    for len in [0usize, 1, 70_000, 3, 65_536, 65_537, 0] {
        folder.write_file("log", vec![b'x'; len]);
        let now = file(&tree, b"/log", None);
        assert_eq!(now.original.description.len, len as u64);
    }
}

#[test]
fn errors_have_the_kind_that_fits() {
    let folder = TestDir::new();
    let tree = tree(&folder);
    for (what, number, expected) in [
        ("ENOENT", 2, None),
        ("EINTR", 4, Some(FaultKind::Overloaded)),
        ("EIO", 5, Some(FaultKind::Internal)),
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
        let kind =
            (!is_not_servable(&error)).then(|| tree.fault_from_io_error(&error, b"a\nb").kind);
        assert_eq!(kind, expected, "{what}");
    }
    let cause = tree
        .fault_from_io_error(&io::Error::from_raw_os_error(5), b"a\nb")
        .cause;
    assert!(
        cause.contains("root/a\\nb") && !cause.contains('\n'),
        "{cause}"
    );
}

#[test]
fn a_root_that_is_not_there_is_named() {
    let folder = TestDir::new();
    folder.write_file("file", "");
    for name in ["missing", "file"] {
        let root = folder.root().join(name);
        let error = RootDir::open(&root).unwrap_err();
        assert!(
            error.to_string().contains(root.to_str().unwrap()),
            "{error}"
        );
    }
}

#[test]
fn a_metadata_lookup_reads_nothing_from_the_disk() {
    let folder = TestDir::new();
    let tree = tree(&folder);
    if page_cache::file_system_kind(&tree.root.fd).unwrap() != page_cache::FileSystemKind::Disk {
        return eprintln!("skipped: the temporary folder is on no disk");
    }
    let written = folder.write_file("a", "content");
    folder.write_file("large", vec![0; 100_000]);
    written.sync_all().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        page_cache::drop_cached_pages(&written).unwrap();
        match described(tree.look_up(b"/a", None, LookupDepth::Metadata)).as_str() {
            "unread" => break,
            other => assert_eq!(other, "content"),
        }
        assert!(std::time::Instant::now() < deadline, "never put off");
    }
    assert_eq!(
        described(tree.look_up(b"/a", None, LookupDepth::Disk)),
        "content"
    );
    assert_eq!(
        described(tree.look_up(b"/a", None, LookupDepth::Metadata)),
        "content",
        "in memory by now"
    );
    assert_eq!(
        described(tree.look_up(b"/large", None, LookupDepth::Metadata)),
        "100000 bytes"
    );
}

#[test]
fn reading_does_not_touch_the_time_of_access() {
    let folder = TestDir::new();
    folder.write_file("large", vec![0; 100_000]);
    let tree = tree(&folder);
    let found = file(&tree, b"/large", None);
    let ContentSource::Disk(open) = &found.original.source else {
        panic!("not kept open")
    };
    let flags = rustix::fs::fcntl_getfl(open.file().unwrap()).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NOATIME));
}

/// Writes a file with this modification time.
fn write_at(folder: &TestDir, name: &str, content: &[u8], modified: Duration) {
    let path = folder.root().join(name);
    let fresh = folder.root().join("fresh");
    std::fs::write(&fresh, content).unwrap();
    let file = File::options().write(true).open(&fresh).unwrap();
    let at = std::time::SystemTime::UNIX_EPOCH + modified;
    file.set_modified(at).unwrap();
    std::fs::rename(&fresh, path).unwrap();
}

#[test]
fn different_content_has_a_different_etag() {
    let folder = TestDir::new();
    let tag = |modified: Duration, content: &[u8]| {
        write_at(&folder, "a", content, modified);
        let tree = open(&folder, |_| {});
        let found = file(&tree, b"/a", None);
        found.original.description.etag.clone()
    };
    let sizes = [10, MAX_MEMORY_BYTES + 1, 200_000];
    for len in sizes.map(|len| usize::try_from(len).unwrap()) {
        let (one, mut other) = (vec![b'a'; len], vec![b'a'; len]);
        other[len - 1] = b'b';
        for seconds in [0, 1, 315_532_800, 1_700_000_000, 4_000_000_000] {
            let time = Duration::from_secs(seconds);
            let before = tag(time, &one);
            assert_ne!(before, tag(time, &other), "{len} at {seconds}");
            // Another machine has the same tag for the same file.
            assert_eq!(before, tag(time, &one), "{len} at {seconds}");
        }
    }
    let (day, written) = (Duration::from_secs(86400), Duration::new(1_700_000_000, 5));
    let large = vec![b'a'; 20_000];
    assert_ne!(tag(written, &large), tag(written + day, &large));
}

#[test]
fn a_content_that_is_to_be_hashed_is_read_in_a_pool_only() {
    let folder = TestDir::new();
    write_at(&folder, "a", &[b'a'; 20_000], Duration::from_secs(1));
    write_at(
        &folder,
        "b",
        &[b'a'; 20_000],
        Duration::new(1_700_000_000, 5),
    );
    let tree = open(&folder, |_| {});
    assert!(!matches!(
        tree.look_up(b"/a", None, LookupDepth::PageCache),
        Ok(FileLookup::Found(_))
    ));
    assert!(matches!(
        tree.look_up(b"/a", None, LookupDepth::Metadata),
        Ok(FileLookup::NeedsDisk)
    ));
    assert!(matches!(
        tree.look_up(b"/b", None, LookupDepth::Metadata),
        Ok(FileLookup::Found(_))
    ));
    // A repeated look-up costs nothing more.
    let known = file(&tree, b"/a", None);
    let mut settled = FileEntry::clone(&known);
    settled.original.is_stamp_reliable = true;
    let settled = CacheEntry::File(Arc::new(settled));
    assert!(matches!(
        tree.look_up(b"/a", Some(&settled), LookupDepth::Metadata),
        Ok(FileLookup::Found(_))
    ));
}

#[test]
fn a_huge_file_without_a_time_is_versioned_by_metadata() {
    let folder = TestDir::new();
    let tag = |modified| {
        write_at(&folder, "a", b"", modified);
        let path = folder.root().join("a");
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(MAX_HASHED_BYTES + 1).unwrap();
        let at = std::time::SystemTime::UNIX_EPOCH + modified;
        file.set_modified(at).unwrap();
        let tree = open(&folder, |_| {});
        // No read is needed.
        match tree.look_up(b"/a", None, LookupDepth::Metadata) {
            Ok(FileLookup::Found(CacheEntry::File(found))) => {
                found.original.description.etag.clone()
            }
            other => panic!("{other:?}"),
        }
    };
    let (none, some) = (Duration::from_secs(1), Duration::from_secs(1_700_000_000));
    assert_ne!(tag(none), tag(none));
    assert_eq!(tag(some), tag(some));
}

#[test]
fn hidden_files_are_not_found_through_links() {
    let folder = TestDir::new();
    for name in [
        "index.html",
        "app.py",
        "site.db",
        ".env",
        "CVS/Entries",
        "a.css",
    ] {
        folder.write_file(name, name);
    }
    folder.write_file("../outside/app.py", "outside");
    folder.write_file("../outside/a.txt", "text");
    folder.write_file("style.css", "css");
    folder.symlink("app.py", "app.txt");
    folder.symlink(".env", "env.txt");
    folder.symlink("site.db", "style.css.gz");
    folder.symlink("CVS", "history");
    folder.symlink("a.css", "b.css");
    folder.symlink("app.txt", "twice.txt");
    folder.symlink(folder.root().join("../outside"), "outside");
    folder.write_file("..data/real.html", "real");
    folder.symlink("..data/real.html", "mounted.html");
    let say = |files: &mut penstock_config::Files| {
        files.listing = true;
        files.try_.push(TryPattern::Fixed("/app.py".to_owned()));
    };
    let inside = open(&folder, say);
    let anywhere = open(&folder, |files| {
        say(files);
        files.symlinks = Symlinks::Any;
    });
    for (path, of_inside, of_anywhere) in [
        ("/", "index.html", "index.html"),
        ("/app.py", "absent", "absent"),
        ("/app.txt", "absent", "absent"),
        ("/twice.txt", "absent", "absent"),
        ("/env.txt", "absent", "absent"),
        ("/site.db", "absent", "absent"),
        ("/style.css.gz", "absent", "absent"),
        ("/CVS/Entries", "absent", "absent"),
        ("/CVS/", "absent", "absent"),
        ("/CVS", "absent", "absent"),
        ("/history/Entries", "absent", "absent"),
        ("/history/", "absent", "absent"),
        ("/b.css", "a.css", "a.css"),
        ("/mounted.html", "real", "real"),
        ("/outside/app.py", "absent", "absent"),
        ("/outside/a.txt", "absent", "text"),
    ] {
        assert_eq!(found(&inside, path.as_bytes()), of_inside, "{path}");
        assert_eq!(
            found(&anywhere, path.as_bytes()),
            of_anywhere,
            "{path}, any"
        );
    }
    let found_file = file(&inside, b"/style.css", None);
    assert!(
        found_file.precompressed(ContentCoding::Gzip).is_none(),
        "a database as a coding"
    );
    for tree in [&inside, &anywhere] {
        for (name, is_folder) in [("app.py", false), ("CVS", true), ("site.db", false)] {
            assert!(tree.hides_entry(b"/", name.as_bytes(), is_folder), "{name}");
        }
        assert!(!tree.hides_entry(b"/", b"a.css", false));
        for name in ["app.txt", "history", "env.txt"] {
            assert!(
                tree.link_target_metadata(b"/", name.as_bytes()).is_none(),
                "{name}"
            );
        }
        assert!(tree.link_target_metadata(b"/", b"b.css").is_some());
    }
    let open_to_all = open(&folder, |files| files.hide.clear());
    assert_eq!(found(&open_to_all, b"/app.txt"), "app.py");
    let excepted = open(&folder, |files| {
        let show = HidePattern::Except("*.py".to_owned());
        files.hide.push(show);
    });
    assert_eq!(found(&excepted, b"/app.py"), "app.py");
    assert_eq!(found(&excepted, b"/app.txt"), "app.py");
    assert_eq!(found(&excepted, b"/site.db"), "absent");
}

#[test]
fn a_hidden_file_that_may_not_be_read_is_not_there_either() {
    let folder = TestDir::new();
    let file = folder.write_file("app.py", "code");
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o000);
    file.set_permissions(closed).unwrap();
    assert_eq!(found(&tree(&folder), b"/app.py"), "absent");
}

#[test]
fn a_replaced_file_is_hidden_even_if_a_hard_link_of_it_is_left() {
    let folder = TestDir::new();
    folder.write_file("app.py", "code");
    folder.write_file("next", "next");
    folder.symlink("app.py", "app.txt");
    let tree = open(&folder, |_| {});
    let opened = tree
        .open_any(b"app.txt", LookupDepth::Disk)
        .unwrap()
        .unwrap();
    let at = |name| folder.root().join(name);
    std::fs::hard_link(at("app.py"), at("kept")).unwrap();
    std::fs::rename(at("next"), at("app.py")).unwrap();
    assert_eq!(opened.file.metadata().unwrap().nlink(), 1);
    assert!(tree.leads_to_hidden(&opened, b"app.txt").unwrap());
}
