//! Static files through the whole server: tried first, passed on if missing, never outside of the
//! root.
//!
//! `penstock-files` tests the rules; these tests cover configuration, routes, edge and application
//! together.

use rustix::process::Signal;

use crate::support::{APP, PATIENCE, Server, Site, eventually, get};

const SECRET: &str = "the secret";

/// `public/` beside the application and a secret.
fn server() -> Server {
    let site = Site::new()
        .file("app.py", APP)
        .file("secret.txt", SECRET)
        .file("public/index.html", "<h1>index</h1>")
        .file("public/a.txt", "0123456789")
        .file("public/sub/index.html", "sub")
        .file("public/sp ace.txt", "space")
        .file("public/.env", SECRET)
        .file("public/.git/config", SECRET)
        .file("public/big.bin", big());
    let public = site.dir().join("public");
    std::os::unix::fs::symlink("../secret.txt", public.join("link.txt")).unwrap();
    std::os::unix::fs::symlink("a.txt", public.join("inside.txt")).unwrap();
    std::os::unix::fs::symlink("/etc", public.join("etc")).unwrap();
    let server = site.serve(&["--processes", "1"]);
    server.wait_ready("site");
    server
}

fn big() -> Vec<u8> {
    (0..5_000_000u32).map(|n| (n % 249) as u8).collect()
}

#[test]
fn a_file_comes_before_the_application_and_the_rest_falls_through() {
    let server = server();
    for (path, body) in [
        ("/", "<h1>index</h1>"),
        ("/a.txt", "0123456789"),
        ("/a.txt?query", "0123456789"),
        ("/x/../a.txt", "0123456789"),
        ("/%61.txt", "0123456789"),
        ("/sub/", "sub"),
        ("/sp%20ace.txt", "space"),
        ("/inside.txt", "0123456789"),
    ] {
        assert_eq!(server.get(path).text(), body, "{path}");
    }
    assert_eq!(server.site().seen(), [""; 0]);
    for path in ["/b.txt", "/a.txt/", "/a.txt/x", "/A.TXT"] {
        assert!(
            server
                .get(path)
                .text()
                .starts_with(&format!("GET {path} 0 ")),
            "{path}"
        );
    }
    let mut client = server.connect();
    client.send("POST /a.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert!(
        client
            .expect_status(200)
            .text()
            .starts_with("POST /a.txt 2 ")
    );
}

#[test]
fn nothing_hidden_or_outside_is_given_out() {
    let server = server();
    for path in [
        "/.env",
        "/.git/config",
        "/%2eenv",
        "/sub/../.env",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/sub/..%2f..%2fsecret.txt",
        "/..%5csecret.txt",
        "/..;/secret.txt",
        "/%252e%252e/secret.txt",
        "/%c0%ae%c0%ae/secret.txt",
        "/.../secret.txt",
        "//secret.txt",
        "/link.txt",
        "/etc/passwd",
        "/public/../../secret.txt",
        "/secret.txt",
        "/a.txt%00.html",
        "/a.txt%20",
        "//etc/passwd",
        "/app.py",
        "/penstock.toml",
    ] {
        let response = server.get(path);
        let text = response.text();
        assert!(
            !text.contains(SECRET) && !text.contains("root:"),
            "{path}: {text}"
        );
        // Refused, or passed on to the application, which echoes it.
        assert!(
            response.status == 400 || text.starts_with("GET "),
            "{path}: {text}"
        );
    }
}

#[test]
fn the_rules_of_conditions_and_ranges_hold() {
    let server = server();
    let first = server.get("/a.txt");
    let (tag, modified) = (
        first.header("etag").unwrap(),
        first.header("last-modified").unwrap(),
    );
    let mut client = server.connect();
    for (name, lines, status, body) in [
        ("none match", format!("If-None-Match: {tag}"), 304, ""),
        (
            "another tag",
            "If-None-Match: \"x\"".into(),
            200,
            "0123456789",
        ),
        (
            "modified since",
            format!("If-Modified-Since: {modified}"),
            304,
            "",
        ),
        (
            "match fails",
            "If-Match: \"x\"".into(),
            412,
            "412 Precondition Failed",
        ),
        ("range", "Range: bytes=2-4".into(), 206, "234"),
        ("suffix", "Range: bytes=-3".into(), 206, "789"),
        (
            "range of this file",
            format!("Range: bytes=0-0\r\nIf-Range: {tag}"),
            206,
            "0",
        ),
        (
            "range of another",
            "Range: bytes=0-0\r\nIf-Range: \"x\"".into(),
            200,
            "0123456789",
        ),
        ("behind the end", "Range: bytes=10-".into(), 416, "416"),
        ("no range", "Range: lines=1-2".into(), 200, "0123456789"),
        (
            "1,000 ranges",
            format!("Range: bytes={}", ["0-0"; 1000].join(",")),
            200,
            "0123456789",
        ),
    ] {
        client.send(format!("GET /a.txt HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n"));
        let response = client.response();
        assert_eq!(response.status, status, "{name}");
        if matches!(status, 200 | 206 | 304) {
            assert_eq!(response.text(), body, "{name}");
            assert_eq!(response.header("etag"), Some(tag), "{name}");
        }
        let range = response.header("content-range");
        assert_eq!(
            range.is_some(),
            matches!(status, 206 | 416),
            "{name}: {range:?}"
        );
    }
    client.send("HEAD /a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.expect_head(200).header("content-length"), Some("10"));
    assert_eq!(server.site().seen(), [""; 0]);
}

#[test]
fn a_large_file_arrives_whole_and_in_parts() {
    let server = server();
    let big = big();
    let mut client = server.connect();
    for _ in 0..2 {
        client.send("GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.expect_status(200).body == big);
    }
    client.send("GET /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=1000000-3999999\r\n\r\n");
    assert!(client.expect_status(206).body == big[1_000_000..4_000_000]);
}

#[test]
fn a_folder_is_asked_for_with_a_slash() {
    let server = server();
    let response = server.get("/sub?x=1");
    assert!(matches!(response.status, 301 | 308), "{}", response.line);
    assert_eq!(response.header("location"), Some("/sub/?x=1"));
    // Two slashes never redirect to another host.
    let elsewhere = server.get("//sub");
    let location = elsewhere.header("location").unwrap_or("/");
    assert!(!location.starts_with("//"), "{location}");
}

#[test]
fn without_an_application_there_is_an_end() {
    let server = Site::new()
        .file("index.html", "x")
        .file("a.txt", "a")
        .serve(&[]);
    assert_eq!(server.get("/none").status, 404);
    let mut client = server.connect();
    client.send("DELETE /a.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.expect_status(405).header("allow"), Some("GET, HEAD"));
}

#[test]
fn places_are_tried_in_the_order_of_the_configuration() {
    let toml = "[[sites]]\n[[sites.routes]]\npath = \"/app/*\"\n\
                files = { root = \"www\", try = [\"{path}\", \"{path}.html\", \"/fallback.html\"] }\n\
                [[sites.routes]]\nfiles = { root = \"other\" }\n";
    let server = Site::new()
        .file("www/app/page.html", "page")
        .file("www/fallback.html", "fallback")
        .file("other/x.txt", "other")
        .config(toml)
        .serve(&[]);
    for (path, status, body) in [
        ("/app/page.html", 200, "page"),
        ("/app/page", 200, "page"),
        ("/app/anything/else", 200, "fallback"),
        ("/x.txt", 200, "other"),
        ("/fallback.html", 404, ""),
    ] {
        let response = get(server.port(), path);
        assert_eq!(response.status, status, "{path}");
        assert!(
            response.text().starts_with(body),
            "{path}: {}",
            response.text()
        );
    }
}

#[test]
fn a_changed_file_is_seen_soon_and_a_removed_one_is_gone() {
    let server = server();
    assert_eq!(server.get("/a.txt").text(), "0123456789");
    server.site().write("public/a.txt", "changed");
    eventually(PATIENCE, "the new file", || {
        server.get("/a.txt").text() == "changed"
    });
    std::fs::remove_file(server.site().dir().join("public/a.txt")).unwrap();
    eventually(PATIENCE, "the application", || {
        server.get("/a.txt").text().starts_with("GET /a.txt")
    });
}

#[test]
fn a_pipe_in_the_root_holds_up_nobody() {
    let server = server();
    let pipe = server.site().dir().join("public/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let response = server.get("/pipe");
    assert!(
        response.status == 403 || response.text().starts_with("GET /pipe "),
        "{}",
        response.line
    );
    assert_eq!(server.get("/a.txt").status, 200);
}

/// A site of files alone, with a setting for them.
fn files_only(site: Site, say: &str) -> Server {
    let toml = format!("[[sites]]\n[[sites.routes]]\nfiles = {{ root = \"public\"{say} }}\n");
    site.config(&toml).serve(&[])
}

#[test]
fn a_client_gets_the_coding_that_it_can_read() {
    let text = "some text that shrinks well\n".repeat(200);
    let site = Site::new()
        .file("public/app.js", &text)
        .file("public/app.js.br", "brotli")
        .file("public/style.css", &text)
        .file("public/photo.jpg", &text);
    let server = files_only(site, "");
    let mut client = server.connect();
    let mut ask = |method: &str, path: &str, fields: &str| {
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"
        ));
        match method {
            "HEAD" => client.expect_head(200),
            _ => client.response(),
        }
    };
    let beside = ask("GET", "/app.js", "Accept-Encoding: gzip, br\r\n");
    assert_eq!(beside.text(), "brotli");
    assert_eq!(beside.header("content-encoding"), Some("br"));
    assert_eq!(beside.header("vary"), Some("Accept-Encoding"));
    assert_eq!(
        beside.header("content-type"),
        Some("text/javascript; charset=utf-8")
    );
    let tag = beside.header("etag").unwrap();
    let had = format!("Accept-Encoding: br\r\nIf-None-Match: {tag}\r\n");
    let had = ask("GET", "/app.js", &had);
    assert_eq!(
        (had.status, had.header("vary")),
        (304, Some("Accept-Encoding"))
    );
    let part = ask(
        "GET",
        "/app.js",
        "Accept-Encoding: br\r\nRange: bytes=0-2\r\n",
    );
    assert_eq!((part.status, part.text().as_ref()), (206, "bro"));

    let plain = ask("GET", "/style.css", "");
    assert_eq!(
        (plain.text().as_ref(), plain.header("content-encoding")),
        (text.as_str(), None)
    );
    assert_eq!(plain.header("vary"), Some("Accept-Encoding"));
    // A recently written file may change without a sign: it is compressed once it is older.
    let made = eventually(PATIENCE, "a compressed answer", || {
        let made = ask("GET", "/style.css", "Accept-Encoding: zstd\r\n");
        (made.header("content-encoding") == Some("zstd")).then_some(made)
    });
    assert!(made.body.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) && made.body.len() < text.len());
    assert_ne!(made.header("etag"), plain.header("etag"));
    let headed = ask("HEAD", "/style.css", "Accept-Encoding: zstd\r\n");
    assert_eq!(
        headed.header("content-length"),
        made.header("content-length")
    );
    assert_eq!(headed.header("content-encoding"), Some("zstd"));
    let picture = ask("GET", "/photo.jpg", "Accept-Encoding: gzip, br, zstd\r\n");
    assert_eq!(
        (picture.text().as_ref(), picture.header("vary")),
        (text.as_str(), None)
    );
}

#[test]
fn several_ranges_come_in_one_body() {
    let site = Site::new()
        .file("public/a.txt", "0123456789")
        .file("public/big.bin", big());
    let server = files_only(site, "");
    let big = big();
    for (path, kind, parts) in [
        ("/a.txt", "text/plain; charset=utf-8", vec![(0, 2), (9, 1)]),
        (
            "/big.bin",
            "application/octet-stream",
            vec![(10, 90), (1_000_000, 2_000_000), (4_999_999, 1)],
        ),
    ] {
        let content: &[u8] = if path == "/a.txt" {
            b"0123456789"
        } else {
            &big
        };
        let ranges: Vec<_> = parts
            .iter()
            .map(|(start, len)| format!("{start}-{}", start + len - 1))
            .collect();
        let mut client = server.connect();
        let range_list = ranges.join(", ");
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nRange: bytes={range_list}\r\n\r\n"
        ));
        let response = client.expect_status(206);
        let framed = response.header("content-type").unwrap();
        let boundary = framed
            .strip_prefix("multipart/byteranges; boundary=")
            .unwrap();
        let mut expected = Vec::new();
        for ((start, len), range) in parts.iter().zip(&ranges) {
            if !expected.is_empty() {
                expected.extend_from_slice(b"\r\n");
            }
            let head = format!(
                "--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: bytes {range}/{}\r\n\r\n",
                content.len()
            );
            expected.extend_from_slice(head.as_bytes());
            expected.extend_from_slice(&content[*start..start + len]);
        }
        expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        assert!(response.body == expected, "{path}");
    }
}

#[test]
fn a_folder_is_listed_where_that_is_asked_for() {
    let site = || {
        Site::new()
            .file("public/docs/<b>.txt", "markup")
            .file("public/docs/sub/x", "x")
            .file("public/docs/.env", SECRET)
    };
    let server = files_only(site(), ", listing = true");
    let page = server.get("/docs/");
    assert_eq!(page.status, 200);
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(page.header("cache-control"), Some("no-cache"));
    let text = page.text();
    assert!(text.contains("href=\"./sub/\"") && text.contains("href=\"./%3Cb%3E.txt\""));
    assert!(
        text.contains("&lt;b&gt;.txt") && !text.contains(".env"),
        "{text}"
    );
    let redirect = server.get("/docs?a=b");
    assert_eq!(
        (redirect.status, redirect.header("location")),
        (301, Some("/docs/?a=b"))
    );
    assert_eq!(server.get("/docs/%3Cb%3E.txt").text(), "markup");
    assert_eq!(server.get("/none/").status, 404);
    let silent = files_only(site(), "");
    for path in ["/docs/", "/docs", "/"] {
        assert_eq!(silent.get(path).status, 404, "{path}");
    }
}

#[test]
fn names_decide_how_long_a_file_may_be_kept_and_links_whether_it_is_there() {
    let site = Site::new()
        .file("public/index.html", "index")
        .file("public/app-3f2a9c81.js", "app")
        .file("public/app.foo", "foo");
    let public = site.dir().join("public");
    std::os::unix::fs::symlink("index.html", public.join("link.html")).unwrap();
    let say = ", symlinks = \"none\", types = { foo = \"text/x-foo\" }, \
               cache_control = { \"*.html\" = \"no-cache\" }";
    let server = files_only(site, say);
    for (path, status, cache, kind) in [
        ("/", 200, Some("no-cache"), "text/html; charset=utf-8"),
        ("/app.foo", 200, None, "text/x-foo; charset=utf-8"),
        (
            "/app-3f2a9c81.js",
            200,
            Some("public, max-age=31536000, immutable"),
            "text/javascript; charset=utf-8",
        ),
    ] {
        let response = server.get(path);
        assert_eq!(response.status, status, "{path}");
        assert_eq!(response.header("cache-control"), cache, "{path}");
        assert_eq!(response.header("content-type"), Some(kind), "{path}");
    }
    for path in ["/link.html", "/%2findex.html"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
}

#[test]
fn links_lead_anywhere_where_that_is_wanted() {
    let site = Site::new()
        .file("public/index.html", "index")
        .file("shared/a.txt", "shared")
        .file("secret.txt", SECRET);
    let public = site.dir().join("public");
    std::os::unix::fs::symlink("../shared", public.join("uploads")).unwrap();
    std::os::unix::fs::symlink(site.dir().join("shared"), public.join("absolute")).unwrap();
    std::os::unix::fs::symlink("/nothing/there", public.join("dangling")).unwrap();
    let server = files_only(site, ", symlinks = \"any\"");
    // Twice: the second look-up is in memory.
    for _ in 0..2 {
        for path in ["/uploads/a.txt", "/absolute/a.txt"] {
            assert_eq!(server.get(path).text(), "shared", "{path}");
        }
        for path in [
            "/../secret.txt",
            "/uploads/../../secret.txt",
            "/uploads/%2e%2e/%2e%2e/secret.txt",
            "/uploads/..%2f..%2fsecret.txt",
            "/dangling",
            "/dangling/a.txt",
        ] {
            let answer = server.get(path);
            assert!(
                matches!(answer.status, 400 | 404),
                "{path}: {}",
                answer.status
            );
            assert!(!answer.text().contains(SECRET), "{path}");
        }
    }
}

#[test]
fn a_link_that_is_not_followed_is_explained_once_and_by_check() {
    let site = Site::new()
        .file("shared/up/a.jpg", "jpeg")
        .file("app/public/index.html", "index");
    let public = site.dir().join("app/public");
    std::os::unix::fs::symlink(site.dir().join("shared/up"), public.join("storage")).unwrap();
    std::os::unix::fs::symlink("../../shared/up", public.join("uploads")).unwrap();
    let toml = "[[sites]]\n[[sites.routes]]\nfiles = { root = \"app/public\" }\n";
    let server = site.config(toml).serve(&[]);
    for _ in 0..3 {
        for path in ["/storage/a.jpg", "/storage/b/c.jpg", "/uploads/a.jpg"] {
            assert_eq!(server.get(path).status, 404, "{path}");
        }
    }
    assert_eq!(server.get("/nothing/a.jpg").status, 404);
    let lines = |of: &str| {
        let log = server.log();
        let told = log.lines().filter(|line| line.contains("symbolic link"));
        told.filter(|line| line.contains(of)).count()
    };
    for link in ["public/storage", "public/uploads"] {
        eventually(PATIENCE, "the log says why", || lines(link) > 0);
        assert_eq!(lines(link), 1, "{}", server.log());
    }
    assert_eq!(lines(""), 2);
    assert_eq!(lines("symlinks = \"any\""), 2, "which key follows it");
    let mut check = std::process::Command::new(env!("CARGO_BIN_EXE_penstock"));
    let check = check
        .args(["check", "penstock.toml"])
        .current_dir(server.site().dir());
    let said = check.output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    for link in ["public/storage", "public/uploads"] {
        let mut lines = said.lines();
        assert!(
            lines.any(|line| line.contains(link) && line.contains("symlinks = \"any\"")),
            "{said}"
        );
    }
}

#[test]
fn a_release_of_one_time_and_size_is_never_taken_for_the_one_before() {
    let site = Site::new();
    let large = |letter: &str| letter.repeat(100_000);
    for (folder, letter) in [("one", "a"), ("two", "b")] {
        for (name, content) in [("small.js", letter.to_owned()), ("large.js", large(letter))] {
            let path = site.dir().join(folder).join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, content).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            let second = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
            file.set_modified(second).unwrap();
        }
    }
    std::os::unix::fs::symlink("one", site.dir().join("current")).unwrap();
    let toml = "[[sites]]\n[[sites.routes]]\nfiles = { root = \"current\" }\n";
    let server = site.config(toml).serve(&[]);
    let tags = ["/small.js", "/large.js"].map(|path| {
        let answer = server.get(path);
        assert_eq!(answer.header("last-modified"), None, "{path}");
        (path, answer.header("etag").unwrap().to_owned())
    });
    let ask = |path: &str, tag: &str| {
        let mut client = server.connect();
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nIf-None-Match: {tag}\r\n\r\n"
        ));
        client
    };
    for (path, tag) in &tags {
        ask(path, tag).expect_head(304);
    }
    let next = server.site().dir().join("next");
    std::os::unix::fs::symlink("two", &next).unwrap();
    std::fs::rename(next, server.site().dir().join("current")).unwrap();
    server.signal(Signal::HUP);
    for (path, tag) in &tags {
        eventually(PATIENCE, "the new release is there", || {
            server.get(path).text().starts_with('b')
        });
        let answer = ask(path, tag).expect_status(200);
        assert!(answer.text().starts_with('b'), "{path}");
    }
}
