//! Private files are never published: sources, databases, keys, backups and files with passwords
//! are beside the pages of a site, and no handler serves them.
//!
//! `penstock-files` tests the patterns; these tests cover every path through the whole server.

use crate::support::{PATIENCE, Server, Site, eventually, get};

const SECRET: &str = "the secret";

/// A typical directory: pages, and files that should not be there.
fn folder() -> Site {
    let mut site = Site::new()
        .file("index.html", "<h1>index</h1>")
        .file("style.css", "css")
        .file("docs/index.html", "docs")
        .file(".well-known/security.txt", "Contact: x");
    for name in PRIVATE {
        site = site.file(name, SECRET);
    }
    // A file of a known format: an application beside it would get it.
    site = site.file(".env", format!("KEY={SECRET}"));
    let dir = site.dir().to_owned();
    for (target, link) in [
        ("shop.py", "shop.txt"),
        (".env", "env.txt"),
        ("shop.txt", "twice.html"),
        ("CVS", "history"),
        ("site.sqlite3", "style.css.gz"),
    ] {
        std::os::unix::fs::symlink(target, dir.join(link)).unwrap();
    }
    site
}

const PRIVATE: [&str; 28] = [
    ".env",
    ".git/config",
    ".htpasswd",
    "CVS/Entries",
    "Gemfile",
    "__pycache__/shop.cpython-312.pyc",
    "backup.tar.gz",
    "composer.json",
    "debug.log",
    "docs/notes.py",
    "dump.sql.gz",
    "id_rsa",
    "index.html.bak",
    "index.html~",
    "index.php",
    "lib/shop.rb",
    "privkey.pem",
    "prod.env",
    "requirements.txt",
    "server.key",
    "shop.py",
    "site.sqlite3",
    "site.sqlite3-wal",
    "wp-config.php.old",
    "wp-config.php-old",
    "wp-config.php.sample",
    "wp-config.php_bak",
    "wp-config.php.txt",
];

/// The private names, and other spellings of some.
fn spellings() -> Vec<String> {
    let plain = PRIVATE.iter().map(|name| format!("/{name}"));
    let others = [
        "/%2eenv",
        "/%2Eenv",
        "/.%65nv",
        "/.env?download",
        "/.env/",
        "/.env%00.html",
        "/docs/../.env",
        "/docs/%2e%2e/.env",
        "/./.env",
        "//.env",
        "/docs//../.env",
        "/.git/./config",
        "/.well-known/../.env",
        "/.well-known/..%2f.env",
        "/%73hop.py",
        "/shop%2epy",
        "/shop.p%79",
        "/shop.py?a=b.html",
        "/shop.py;a.html",
        "/shop.py/",
        "/shop.py/index.html",
        "/shop.py%20",
        "/shop.py.",
        "/shop.py%2e",
        "/shop.py%00",
        "/shop.py%00.html",
        "/shop.py%2f",
        "/SHOP.PY",
        "/shop.PY",
        "/shop%252epy",
        "//shop.py",
        "/./shop.py",
        "/docs/../shop.py",
        "/docs/..%2fshop.py",
        "/docs/%2e%2e%2fshop.py",
        "/docs/..;/shop.py",
        "/docs\\..\\shop.py",
        "/shop.py::$DATA",
        "/shop.py%3a%3a$DATA",
        "/shop.txt",
        "/twice.html",
        "/env.txt",
        "/history/Entries",
        "/style.css.gz",
        "/SITE.sqlite3",
        "/site.sqlite3?x",
        "/dump.sql",
        "/dump.sql.gz",
        "/cvs/Entries",
        "/CVS/",
        "/CVS",
    ];
    plain.chain(others.map(str::to_owned)).collect()
}

/// Requests every spelling with these fields, and finds no secret; `passed` is what else may
/// respond.
fn nothing_is_given(server: &Server, method: &str, fields: &str, passed: Option<&str>) {
    for path in spellings() {
        let mut client = server.connect();
        client.patience(PATIENCE);
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n"
        ));
        let answer = String::from_utf8_lossy(&client.read_to_end()).into_owned();
        let status = answer.get(9..12).unwrap_or_default();
        assert!(!answer.contains(SECRET), "{method} {path}: {answer}");
        let is_other = passed.is_some_and(|passed| answer.contains(passed));
        assert!(
            matches!(status, "404" | "400" | "405") || is_other,
            "{method} {path}: {answer}"
        );
    }
}

#[test]
fn a_folder_with_sources_a_database_and_an_env_gives_none_of_them_away() {
    let server = folder().serve(&[]);
    assert_eq!(server.get("/").text(), "<h1>index</h1>");
    assert_eq!(server.get("/.well-known/security.txt").text(), "Contact: x");
    // Twice: a missing file is cached for a second.
    for (method, fields) in [
        ("GET", ""),
        ("GET", ""),
        ("HEAD", ""),
        ("GET", "Range: bytes=0-3\r\n"),
        ("GET", "Accept-Encoding: gzip, br, zstd\r\n"),
        (
            "GET",
            "If-None-Match: \"x\"\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
        ),
        ("POST", "Content-Length: 0\r\n"),
    ] {
        nothing_is_given(&server, method, fields, None);
    }
    let mut client = server.connect();
    client.send("GET /style.css HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    let style = client.expect_status(200);
    assert_eq!(
        (style.text().as_str(), style.header("content-encoding")),
        ("css", None)
    );
    server.wait_log("hidden by \"*.py\" of the default list");
    let log = server.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("/shop.py\": hidden by"));
    assert_eq!(lines.count(), 1, "{log}");
}

#[test]
fn lists_places_and_applications_give_nothing_private_away_either() {
    let site = folder().config(
        r#"
        [[sites]]
        [[sites.routes]]
        path = "/listed/*"
        rewrite = { strip_prefix = "/listed" }
        files = { root = ".", listing = true, try = ["{path}"], symlinks = "any" }
        [[sites.routes]]
        path = "/placed/*"
        rewrite = { strip_prefix = "/placed" }
        files = { root = ".", try = ["{path}.py", "{path}", "/shop.py", "/shop.txt"] }
        [[sites.routes]]
        path = "/excepted/*"
        rewrite = { strip_prefix = "/excepted" }
        files = { root = ".", hide = ["default", "!/docs/*.py", "/docs/index.*"] }
        [[sites.routes]]
        path = "/open/*"
        rewrite = { strip_prefix = "/open" }
        files = { root = ".", hide = [] }
        "#,
    );
    let server = site.serve(&[]);
    let list = server.get("/listed/").text();
    assert!(
        list.contains("style.css") && list.contains("docs/"),
        "{list}"
    );
    for name in PRIVATE
        .iter()
        .chain(&["shop.txt", "env.txt", "twice.html", "history"])
    {
        let name = name.split('/').next().unwrap();
        let is_folder_of_pages = name == "docs" || name == "lib";
        assert!(is_folder_of_pages || !list.contains(name), "{name}: {list}");
    }
    assert!(!server.get("/listed/lib/").text().contains("shop.rb"));
    for path in spellings() {
        for prefix in ["/listed", "/placed", "/excepted"] {
            let path = format!("{prefix}{path}");
            let is_excepted = path == "/excepted/docs/notes.py";
            let answer = server.get(&path);
            assert_eq!(answer.text().contains(SECRET), is_excepted, "{path}");
        }
    }
    assert_eq!(server.get("/placed/shop").status, 404);
    assert_eq!(server.get("/excepted/docs/").status, 404);
    assert_eq!(server.get("/open/shop.py").text(), SECRET);
    assert_eq!(server.get("/open/.env").status, 404);
}

#[test]
fn a_folder_that_is_not_understood_is_refused_with_the_command_that_would_work() {
    for (files, advice) in [
        (
            &["server.js", "package.json"][..],
            "write `web: npm start` to a file Procfile",
        ),
        (&["public/style.css", "go.mod"], "serve --files"),
        (&["composer.json"], "write its folder to penstock.toml"),
        (&["README.md", "backend/config.ru"], "/backend\n"),
        (&["a.txt"], "serve --files"),
        (&["a.txt", "dist/index.html"], "/dist\n"),
    ] {
        let mut site = Site::new();
        for name in files {
            site = site.file(name, SECRET);
        }
        let output = site.run(&["serve", "-l", "127.0.0.1:0", "--admin", "off"]);
        let (_, error) = crate::support::texts(&output);
        assert_eq!(output.status.code(), Some(2), "{files:?}: {error}");
        assert!(error.contains(advice), "{files:?}: {error}");
    }
    let site = Site::new().file("a.txt", "plain").file("shop.py", SECRET);
    let server = site.file("config.ru", SECRET).serve(&["--files"]);
    assert_eq!(server.get("/a.txt").text(), "plain");
    assert_eq!(server.get("/shop.py").status, 404);
    assert_eq!(server.get("/config.ru").status, 404);
    eventually(PATIENCE, "it says so", || {
        let announced = server.announced();
        announced
            .iter()
            .any(|line| line.starts_with("files only: "))
    });
}

#[test]
fn an_application_s_folder_publishes_its_public_folder_alone() {
    let app = r#"
def app(environ, start):
    fields = [("Content-Type", "text/plain")]
    if environ["PATH_INFO"].startswith("/send/"):
        fields.append(("X-Sendfile", environ["penstock.test"] + environ["PATH_INFO"][5:]))
    start("200 OK", fields)
    return [b"from the application"]
"#;
    let site = folder();
    let root = site.dir().display().to_string();
    let site = site
        .file(
            "app.py",
            app.replace("environ[\"penstock.test\"]", &format!("{root:?}")),
        )
        .file("public/a.txt", "public")
        .file("public/b.py", SECRET)
        .file("public/c.db", SECRET)
        .config(
            r#"
            [apps.site]
            dir = "."
            entry = "app:app"
            processes = 1
            sendfile_root = "."
            "#,
        );
    let server = site.serve(&[]);
    server.wait_ready("site");
    assert_eq!(server.get("/a.txt").text(), "public");
    for path in ["/b.py", "/c.db"] {
        assert_eq!(server.get(path).text(), "from the application", "{path}");
    }
    nothing_is_given(&server, "GET", "", Some("from the application"));
    assert_eq!(get(server.port(), "/send/style.css").text(), "css");
    for name in PRIVATE
        .iter()
        .chain(&["shop.txt", "env.txt", "history/Entries"])
    {
        let answer = get(server.port(), &format!("/send/{name}"));
        assert!(!answer.text().contains(SECRET), "{name}");
    }
}
