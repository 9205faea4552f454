//! Listings of real directories with malicious names.

use penstock_runtime::loops;
use std::os::unix::ffi::OsStrExt;

use penstock_runtime::blocking::Pool;

use super::*;
use crate::file_tree::{FileLookup, LookupDepth};
use crate::test_support::{TestDir, open_tree};

fn listed(folder: &TestDir, path: &str, symlinks: penstock_config::Symlinks) -> String {
    let mut files = penstock_config::Files::new(folder.root());
    (files.listing, files.symlinks) = (true, symlinks);
    let tree = open_tree(&files, Pool::new("disk", 1, 1));
    match tree.look_up(path.as_bytes(), None, LookupDepth::Metadata) {
        Ok(FileLookup::Directory(open)) => {
            String::from_utf8(build_page(&tree, path.as_bytes(), &open).unwrap().to_vec()).unwrap()
        }
        other => format!("{other:?}"),
    }
}

/// The targets of a page's links.
fn links(page: &str) -> Vec<&str> {
    page.split("href=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect()
}

#[test]
fn shows_what_would_be_served_folders_first() {
    let folder = TestDir::new();
    folder.write_file("../secret", "s");
    for name in [
        "b.txt",
        "a.txt",
        ".env",
        "zoo/x",
        "bar/index.html",
        ".git/config",
    ] {
        folder.write_file(name, "12345");
    }
    folder.symlink("a.txt", "inside");
    folder.symlink("zoo", "inside-dir");
    folder.symlink("../secret", "outside");
    folder.symlink("nowhere", "broken");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.root().join("fifo"),
        FileType::Fifo,
        mode,
        0,
    )
    .unwrap();
    let inside = listed(&folder, "/", penstock_config::Symlinks::InsideRoot);
    assert_eq!(
        links(&inside),
        [
            "./bar/",
            "./inside-dir/",
            "./zoo/",
            "./a.txt",
            "./b.txt",
            "./inside"
        ]
    );
    assert!(inside.contains("<td>5</td><td>Sun, 06 Nov 1994 08:49:37 GMT</td>"));
    let never = listed(&folder, "/", penstock_config::Symlinks::Deny);
    assert_eq!(links(&never), ["./bar/", "./zoo/", "./a.txt", "./b.txt"]);
    let below = listed(&folder, "/zoo/", penstock_config::Symlinks::InsideRoot);
    assert_eq!(links(&below), ["../", "./x"]);
    assert!(below.contains("<title>/zoo/</title>"));
}

#[test]
fn names_are_escaped() {
    let folder = TestDir::new();
    let names: [&[u8]; 7] = [
        b"<script>alert(1)</script>",
        b"line\r\nbreak",
        b"quote\"'&amp;",
        b"javascript:alert(1)",
        b"\xff\xfe",
        b"a b%20c?d#e",
        "\u{202e}\u{e9}".as_bytes(),
    ];
    for name in names {
        // A name cannot contain a slash.
        let name: Vec<u8> = name.iter().copied().filter(|&byte| byte != b'/').collect();
        folder.write_file(std::ffi::OsStr::from_bytes(&name), "");
    }
    let page = listed(&folder, "/", penstock_config::Symlinks::InsideRoot);
    let mut found = links(&page);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "./%3Cscript%3Ealert%281%29%3Cscript%3E",
            "./%E2%80%AE%C3%A9",
            "./%FF%FE",
            "./a%20b%2520c%3Fd%23e",
            "./javascript%3Aalert%281%29",
            "./line%0D%0Abreak",
            "./quote%22%27%26amp%3B",
        ]
    );
    assert!(!page.contains("<script") && !page.contains('\r'));
    assert!(page.contains("&lt;script&gt;") && page.contains("quote&quot;&#39;&amp;amp;"));
    assert!(page.contains("line\u{fffd}\u{fffd}break"));
}

#[test]
fn a_path_in_the_title_is_text_too() {
    let page = render_page(b"/<b>\"\r\n\xff/", &[], true);
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("<h1>/&lt;b&gt;&quot;\u{fffd}\u{fffd}\u{fffd}/</h1>"));
    assert!(page.contains("more than 10000 names"));
}

#[test]
fn hidden_names_count_against_the_bound() {
    let folder = TestDir::new();
    std::fs::create_dir(folder.root().join("many")).unwrap();
    let many = |number: usize| folder.root().join(format!("many/.{number}"));
    for number in 0..MAX_ENTRIES {
        File::create(many(number)).unwrap();
    }
    let listed = || listed(&folder, "/many/", penstock_config::Symlinks::InsideRoot);
    assert!(!listed().contains("more than"));
    File::create(many(MAX_ENTRIES)).unwrap();
    assert!(listed().contains("more than"));
}

#[test]
fn concurrent_requests_for_a_directory_share_one_page() {
    let folder = TestDir::new();
    folder.write_file("sub/a", "");
    let mut files = penstock_config::Files::new(folder.root());
    files.listing = true;
    let pool = Pool::new("disk", 1, 2);
    let tree = Arc::new(open_tree(&files, pool.clone()));
    let listings = ListingJobs::default();
    let listed = |path: &'static str| {
        let Ok(FileLookup::Directory(open)) =
            tree.look_up(path.as_bytes(), None, LookupDepth::Metadata)
        else {
            panic!("no folder")
        };
        let (tree, listings, pool) = (Arc::clone(&tree), listings.clone(), pool.clone());
        async move {
            let path = path.as_bytes().into();
            listings.get_or_build(&tree, &path, open, &pool).await
        }
    };
    let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
    let (started, begun) = std::sync::mpsc::sync_channel::<()>(0);
    pool.spawn(move || {
        started.send(()).ok();
        held.recv().ok();
    })
    .unwrap();
    begun.recv().unwrap();
    let ended = loops::block_on(async {
        let all =
            async { tokio::join!(listed("/"), listed("/sub/"), listed("/"), listed("/sub/")) };
        let release = async {
            assert_eq!(pool.snapshot().queued, 2, "one for each folder");
            // The queue is full: a new build is refused and leaves no entry behind.
            let other = b"/else/".as_slice().into();
            let refused =
                listings.get_or_build(&tree, &other, File::open(folder.root()).unwrap(), &pool);
            assert_eq!(refused.await.unwrap_err().kind, FaultKind::Overloaded);
            release.send(()).unwrap();
        };
        let ((root, sub, again, sub_again), ()) = tokio::join!(all, release);
        assert_eq!(root.unwrap().as_ptr(), again.unwrap().as_ptr());
        assert_eq!(sub.unwrap().as_ptr(), sub_again.unwrap().as_ptr());
    });
    ended.unwrap();
    assert!(lock(&listings.running).is_empty());
    pool.close();
}

#[test]
fn a_waiter_builds_a_page_that_was_given_up() {
    let folder = TestDir::new();
    folder.write_file("a.txt", "1");
    let mut files = penstock_config::Files::new(folder.root());
    files.listing = true;
    let pool = Pool::new("disk", 1, 0);
    let tree = Arc::new(open_tree(&files, pool.clone()));
    let listings = ListingJobs::default();
    let path: Arc<[u8]> = b"/".as_slice().into();
    loops::block_on(async {
        let ListingStart::Started(work, _) = listings.join_or_start(&path) else {
            panic!("nobody else makes it");
        };
        let open = File::open(folder.root()).unwrap();
        let mut page = std::pin::pin!(listings.get_or_build(&tree, &path, open, &pool));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(
            page.as_mut().poll(&mut cx).is_pending(),
            "it waits for that"
        );
        // As if the pool were full.
        drop(work);
        let page = page.await.unwrap();
        assert!(page.windows(5).any(|name| name == b"a.txt"));
    })
    .unwrap();
}
