//! The handler as `edge` uses it: responses, and whether they are immediate.

use penstock_runtime::loops;
use std::future::Future;

use bytes::Bytes;
use penstock_exchange::{Body, InlineBody, RequestPath};
use penstock_http::Status;

use super::*;
use crate::test_support::{TestDir, head, request};

mod codings;
mod large;

struct Site {
    dir: TestDir,
    files: FilesHandler,
    /// Advanced manually: when the next request arrives.
    now: Instant,
}

#[derive(Debug, PartialEq)]
enum ResponseTime {
    Immediate,
    Pending,
}

impl Site {
    /// A site that uses its pool for everything.
    fn new(falls_through: bool) -> Self {
        Self::with_pool(falls_through, Pool::new("disk", 2, 100))
    }

    fn with_pool(falls_through: bool, pool: Pool) -> Self {
        let mut site = Self::with_setup(pool, falls_through, |_| {});
        site.tree().override_settings(false, Duration::from_secs(2));
        site
    }

    /// A site with changed settings, in which stamps count as reliable at once.
    fn with_reliable_stamps(say: impl FnOnce(&mut penstock_config::Files)) -> Self {
        let mut site = Self::with_setup(Pool::new("disk", 2, 100), false, say);
        site.tree().override_settings(true, Duration::ZERO);
        site
    }

    fn with_setup(
        pool: Pool,
        falls_through: bool,
        say: impl FnOnce(&mut penstock_config::Files),
    ) -> Self {
        let folder = TestDir::new();
        let mut files = penstock_config::Files::new(folder.root());
        say(&mut files);
        let root = Arc::new(RootDir::open(&files.root).unwrap());
        let setup = FilesSetup {
            files,
            pool,
            loops: 1,
            falls_through,
            script_index: None,
        };
        Self {
            files: FilesHandler::new(root, setup).unwrap(),
            dir: folder,
            now: clock::now(),
        }
    }

    fn tree(&mut self) -> &mut FileTree {
        let folder = Arc::get_mut(&mut self.files.state).unwrap();
        Arc::get_mut(&mut folder.tree).unwrap()
    }

    /// The response to a request that has one.
    fn response(&self, line: &str, fields: &[(&str, &str)]) -> Response {
        match self.ask_with(line, fields).1 {
            Ok(Reply::Response(response)) => *response,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn ask_with(
        &self,
        line: &str,
        fields: &[(&str, &str)],
    ) -> (ResponseTime, Result<Reply, Fault>) {
        match self.files.handle(request(line, fields, self.now)) {
            HandlerProgress::Ready(reply) => (ResponseTime::Immediate, reply),
            HandlerProgress::Pending(work) => (ResponseTime::Pending, block_on(work)),
        }
    }

    /// Time, status and content.
    fn ask(&self, line: &str) -> (ResponseTime, u16, String) {
        let (when, reply) = self.ask_with(line, &[]);
        match reply {
            Ok(Reply::Response(response)) => (when, response.status.code(), text(&response.body)),
            Ok(Reply::Pass(_)) => (when, 0, "passed".to_owned()),
            Ok(Reply::Redirect(_)) => panic!("files do not redirect"),
            Err(fault) => (when, fault.kind.status().code(), String::new()),
        }
    }

    fn after(&mut self, millis: u64) {
        // A check uses the later of the two clocks, so this is late enough in any case.
        self.now = self.now.max(clock::now()) + Duration::from_millis(millis);
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    loops::block_on(future).unwrap()
}

fn text(body: &Body) -> String {
    match body {
        Body::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        Body::File(file) => format!("file {}+{}", file.start, file.len),
        Body::Omitted(length) => format!("omitted {length:?}"),
        Body::Empty => String::new(),
        Body::Stream(stream) => format!("stream {:?}", stream.length()),
        Body::Takeover(_) | Body::Hold(_) => panic!("files do not switch protocols"),
    }
}

fn expect(when: ResponseTime, status: u16, content: &str) -> (ResponseTime, u16, String) {
    (when, status, content.to_owned())
}

#[test]
fn a_small_file_is_answered_at_once_the_second_time() {
    let site = Site::new(false);
    site.dir.write_file("a.txt", "hello");
    assert_eq!(
        site.ask("GET /a.txt"),
        expect(ResponseTime::Pending, 200, "hello")
    );
    assert_eq!(
        site.ask("GET /a.txt"),
        expect(ResponseTime::Immediate, 200, "hello")
    );
    assert_eq!(
        site.ask("GET /a.txt?v=2"),
        expect(ResponseTime::Immediate, 200, "hello")
    );
    assert_eq!(
        site.ask("GET /%61.txt"),
        expect(ResponseTime::Immediate, 200, "hello")
    );
    assert_eq!(
        site.ask("HEAD /a.txt"),
        expect(ResponseTime::Immediate, 200, "omitted Some(5)")
    );

    let (_, reply) = site.ask_with("GET /a.txt", &[("Range", "bytes=1-3")]);
    let Ok(Reply::Response(response)) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(
        (response.status, text(&response.body)),
        (Status::PARTIAL_CONTENT, "ell".into())
    );
    assert_eq!(
        response.fields.get("content-range"),
        Some(b"bytes 1-3/5".as_slice())
    );
    assert_eq!(response.timing.handler.as_deref(), Some("files"));
}

#[test]
fn inline_responses_equal_those_of_the_handler() {
    let site = Site::new(true);
    site.dir.write_file("a.txt", "hello");
    site.dir.write_file("dir/index.html", "index");
    site.dir.write_file("medium", vec![b'x'; 10_000]);
    let tag = "\"ae1dfd29f4f8a00-5\"";
    for (line, fields, is_at_hand) in [
        ("GET /a.txt", &[][..], true),
        ("GET /%61.txt?q", &[], true),
        ("HEAD /a.txt", &[], true),
        ("HEAD /a.txt", &[("Range", "bytes=1-3")], true),
        ("GET /a.txt", &[("If-None-Match", "*")], true),
        ("GET /a.txt", &[("If-None-Match", "\"other\"")], true),
        (
            "GET /a.txt",
            &[("If-Match", tag), ("Range", "bytes=1-3")],
            false,
        ),
        ("GET /a.txt", &[("If-Match", "\"other\"")], false),
        ("POST /a.txt", &[], false),
        ("GET /dir", &[], false),
        ("GET /missing", &[], false),
        ("GET /medium", &[], false),
    ] {
        let head = head(line, fields);
        let path = RequestPath::from_head(&head).unwrap();
        let asked = RequestView {
            head: &head,
            path: path.bytes(&head),
            scheme: "http",
            arrived_at: site.now,
        };
        let (_, reply) = site.ask_with(line, fields);
        let mut lent = None;
        site.files.try_inline(&asked, &mut |answer| {
            let InlineBody::Bytes(body) = answer.body else {
                panic!("lent as a file")
            };
            lent = Some((answer.status, answer.fields.clone(), body.to_vec()));
        });
        assert_eq!(lent.is_some(), is_at_hand, "{line} {fields:?}");
        let Some((status, fields, body)) = lent else {
            continue;
        };
        let Ok(Reply::Response(response)) = reply else {
            panic!("{line}: {reply:?}")
        };
        assert_eq!(
            (status, fields),
            (response.status, response.fields),
            "{line}"
        );
        let expected = match &response.body {
            Body::Omitted(length) => *length == Some(body.len() as u64),
            other => text(other).as_bytes() == body,
        };
        assert!(expected, "{line}");
    }
    // A stale entry is not used inline.
    let mut late = Site::new(true);
    late.dir.write_file("a.txt", "hello");
    late.ask("GET /a.txt");
    late.after(1001);
    let head = head("GET /a.txt", &[]);
    let asked = RequestView {
        head: &head,
        path: b"/a.txt",
        scheme: "http",
        arrived_at: late.now,
    };
    late.files
        .try_inline(&asked, &mut |_| panic!("lent without a check"));
}

#[test]
fn a_large_file_is_sent_from_its_descriptor_each_time() {
    let site = Site::new(false);
    site.dir.write_file("film.mp4", vec![0; 100_000]);
    for _ in 0..2 {
        assert_eq!(
            site.ask("GET /film.mp4"),
            expect(ResponseTime::Pending, 200, "file 0+100000")
        );
    }
    assert_eq!(
        site.ask("HEAD /film.mp4"),
        expect(ResponseTime::Pending, 200, "omitted Some(100000)")
    );
    let (_, reply) = site.ask_with("GET /film.mp4", &[("Range", "bytes=-1")]);
    let Ok(Reply::Response(response)) = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(text(&response.body), "file 99999+1");
    assert_eq!(
        response.fields.get("content-type"),
        Some(b"video/mp4".as_slice())
    );
}

#[test]
fn a_change_shows_after_a_second() {
    let mut site = Site::new(false);
    let (old, new) = ("one", "two");
    site.dir.write_file("a", old);
    site.dir.write_file("gone", old);
    site.dir.write_file("grows", old);
    for path in ["a", "gone", "grows"] {
        assert_eq!(
            site.ask(&format!("GET /{path}")),
            expect(ResponseTime::Pending, 200, old)
        );
    }
    assert_eq!(site.ask("GET /new"), expect(ResponseTime::Pending, 404, ""));

    site.dir.write_file("a", new);
    site.dir.write_file("new", new);
    site.dir.write_file("grows", vec![b'x'; 70_000]);
    std::fs::remove_file(site.dir.root().join("gone")).unwrap();
    assert_eq!(
        site.ask("GET /a"),
        expect(ResponseTime::Immediate, 200, old)
    );
    assert_eq!(
        site.ask("GET /new"),
        expect(ResponseTime::Immediate, 404, "")
    );

    site.after(1001);
    for now in [false, true] {
        let when = || {
            if now {
                ResponseTime::Immediate
            } else {
                ResponseTime::Pending
            }
        };
        assert_eq!(site.ask("GET /a"), expect(when(), 200, new));
        assert_eq!(site.ask("GET /new"), expect(when(), 200, new));
        assert_eq!(site.ask("GET /gone"), expect(when(), 404, ""));
        assert_eq!(
            site.ask("GET /grows"),
            expect(ResponseTime::Pending, 200, "file 0+70000")
        );
    }
}

#[test]
fn an_unchanged_file_is_checked_once_a_second() {
    let mut site = Site::new(false);
    site.dir.write_file("a", "one");
    for _ in 0..3 {
        assert_eq!(
            site.ask("GET /a"),
            expect(ResponseTime::Pending, 200, "one")
        );
        assert_eq!(
            site.ask("GET /a"),
            expect(ResponseTime::Immediate, 200, "one")
        );
        site.after(1001);
    }
}

#[test]
fn a_missing_file_falls_through_unchanged() {
    let site = Site::new(true);
    site.dir.write_file("a", "one");
    for (line, when) in [
        ("GET /app?x=1", ResponseTime::Pending),
        ("GET /app?x=1", ResponseTime::Immediate),
        ("HEAD /app?x=1", ResponseTime::Immediate),
        ("GET /.env?x=1", ResponseTime::Immediate),
        ("POST /a?x=1", ResponseTime::Immediate),
        ("DELETE /a?x=1", ResponseTime::Immediate),
    ] {
        let (found, reply) = site.ask_with(line, &[("Cookie", "c=d")]);
        assert_eq!(found, when, "{line}");
        let Ok(Reply::Pass(passed)) = reply else {
            panic!("{line}: {reply:?}")
        };
        let (method, target) = line.split_once(' ').unwrap();
        assert_eq!(passed.head.method_str(), method);
        assert_eq!(passed.head.target(), target);
        assert_eq!(passed.path(), target.split_once('?').unwrap().0.as_bytes());
        assert_eq!(passed.query(), Some("x=1"));
        assert_eq!(passed.head.field("cookie"), Some(b"c=d".as_slice()));
        assert_eq!(passed.arrived_at, site.now);
    }
}

#[test]
fn a_missing_file_is_404_without_another_handler() {
    let site = Site::new(false);
    site.dir.write_file("a", "one");
    site.dir.write_file(".env", "secret");
    site.dir.write_file(".git/config", "secret");
    site.dir.write_file("docs/.htpasswd", "secret");
    site.dir.write_file(".well-known/acme", "token");
    site.dir.symlink("../secret", "out");
    site.dir.write_file("../secret", "secret");
    for (line, status) in [
        ("GET /nothing", 404),
        ("GET /.env", 404),
        ("GET /%2eenv", 404),
        ("GET /%2Egit/config", 404),
        ("GET /docs/.htpasswd", 404),
        ("GET /docs/%2e%2e/.env", 404),
        ("GET /docs/..%2f.env", 404),
        ("GET /%5csecret", 404),
        ("GET /a/", 404),
        ("GET /out", 404),
        ("GET /docs", 404),
        ("GET /docs/", 404),
        ("POST /a", 405),
        ("PUT /nothing", 405),
        ("OPTIONS /a", 405),
        ("GET /.well-known/acme", 200),
        ("GET /docs/../a", 200),
        ("GET //a", 200),
    ] {
        assert_eq!(site.ask(line).1, status, "{line}");
    }
}

#[test]
fn a_directory_is_redirected_with_its_query() {
    let site = Site::new(true);
    site.dir.write_file("my docs/index.html", "docs");
    for when in [ResponseTime::Pending, ResponseTime::Immediate] {
        let (found, reply) = site.ask_with("GET /my%20docs?a=%0d", &[]);
        assert_eq!(found, when);
        let Ok(Reply::Response(response)) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(response.status, Status::MOVED_PERMANENTLY);
        assert_eq!(
            response.fields.get("location"),
            Some(b"/my%20docs/?a=%0d".as_slice())
        );
    }
    assert_eq!(
        site.ask("GET /my%20docs/"),
        expect(ResponseTime::Pending, 200, "docs")
    );
}

#[test]
fn a_full_pool_refuses_only_unknown_paths() {
    let pool = Pool::new("disk", 1, 1);
    let mut site = Site::with_pool(false, pool.clone());
    site.dir.write_file("known", "one");
    assert_eq!(
        site.ask("GET /known"),
        expect(ResponseTime::Pending, 200, "one")
    );
    site.after(1001);
    let (release, held) = std::sync::mpsc::sync_channel::<()>(0);
    let (started, begun) = std::sync::mpsc::sync_channel::<()>(0);
    block_on(async {
        let mut busy = Box::pin(pool.run(move || {
            started.send(()).ok();
            held.recv().ok();
        }));
        let mut waiting = Box::pin(pool.run(|| ()));
        poll_once(&mut busy).await;
        begun.recv().unwrap();
        poll_once(&mut waiting).await;
        for (path, expected) in [("/known", Ok(200)), ("/other", Err(FaultKind::Overloaded))] {
            let line = format!("GET {path}");
            let HandlerProgress::Pending(work) = site.files.handle(request(&line, &[], site.now))
            else {
                panic!("{path}: at once")
            };
            let found = match work.await {
                Ok(Reply::Response(response)) => Ok(response.status.code()),
                Ok(Reply::Pass(_)) => Ok(0),
                Ok(Reply::Redirect(_)) => panic!("files do not redirect"),
                Err(fault) => Err(fault.kind),
            };
            assert_eq!(found, expected, "{path}");
        }
        release.send(()).unwrap();
        busy.await.unwrap();
        waiting.await.unwrap();
    });
}

async fn poll_once<F: Future + Unpin>(future: &mut F) {
    std::future::poll_fn(|cx| {
        assert!(std::pin::Pin::new(&mut *future).poll(cx).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
}
