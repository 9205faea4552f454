//! Test helpers of this crate: a temporary directory, heads and requests.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{ListenerInfo, Mount, Request, RequestBody};
use penstock_http::{HeadLimits, ParseProgress, RequestHead, parse_head};
use penstock_runtime::blocking::Pool;
use penstock_sys::net::PeerAddress;

use crate::file_tree::{FileTree, RootDir};

/// Opens the tree of `files.root`.
pub(crate) fn open_tree(files: &penstock_config::Files, pool: Pool) -> FileTree {
    let root = Arc::new(RootDir::open(&files.root).unwrap());
    FileTree::new(root, files, pool).unwrap()
}

impl FileTree {
    /// Overrides settings that take time or depend on the test machine.
    pub(crate) fn override_settings(&mut self, is_asked_on_loops: bool, settled_after: Duration) {
        self.loop_accessible_device = self.loop_accessible_device.filter(|_| is_asked_on_loops);
        self.stamp_settle_time = settled_after;
    }

    /// Whether look-ups on event loops are enabled.
    pub(crate) fn looks_up_on_loops(&self) -> bool {
        self.loop_accessible_device.is_some()
    }
}

/// A directory removed at the end of its test; files go into its `root`.
#[derive(Debug)]
pub(crate) struct TestDir {
    dir: PathBuf,
}

impl TestDir {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("penstock-files-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(dir.join("root")).unwrap();
        Self { dir }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Writes a file below the root (`../x` is next to it) with an old modification time.
    pub(crate) fn write_file(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) -> File {
        let path = self.root().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = File::create(path).unwrap();
        file.write_all(content.as_ref()).unwrap();
        // With a fraction, as after a write: whole seconds look like an archive's.
        let modified = FILE_MODIFIED_TIME + Duration::from_nanos(7);
        file.set_modified(SystemTime::UNIX_EPOCH + modified)
            .unwrap();
        file
    }

    pub(crate) fn symlink(&self, target: impl AsRef<Path>, name: &str) {
        std::os::unix::fs::symlink(target, self.root().join(name)).unwrap();
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        // A leftover directory does not fail a test.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The modification time of files in a [`TestDir`]: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) const FILE_MODIFIED_TIME: Duration = Duration::from_secs(784_111_777);

/// A head from its request line and fields, without line ends.
pub(crate) fn head(line: &str, fields: &[(&str, &str)]) -> RequestHead {
    let mut text = format!("{line} HTTP/1.1\r\nHost: a\r\n");
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    match parse_head(text.as_bytes(), &HeadLimits::default()).unwrap() {
        ParseProgress::Complete((head, _)) => head,
        ParseProgress::Partial => panic!("the head is whole"),
    }
}

/// A request without a body that arrived at `at`.
pub(crate) fn request(line: &str, fields: &[(&str, &str)], at: Instant) -> Request {
    let listener = ListenerInfo {
        scheme: "http",
        address: None,
        name: String::new(),
        proxy_protocol: false,
        has_tls: false,
    };
    let arrival = RequestEnvironment {
        peer: PeerAddress::Unix,
        listener: Arc::new(listener),
        client_state: Arc::default(),
        trusted_proxies: Arc::default(),
        forwarded: None,
        mount: Mount::default(),
        arrived_at: at,
    };
    let head = head(line, fields);
    let path = RequestPath::from_head(&head).unwrap();
    Request::new(Arc::new(head), path, RequestBody::Empty, arrival)
}
