//! Hidden and visible names in many spellings.

use super::*;
use crate::logged_names::MAX_LOGGED_NAMES;

fn hidden(patterns: &[&str]) -> HidePatterns {
    let parse = |text: &&str| HidePattern::parse(text).unwrap();
    let patterns: Vec<_> = patterns.iter().map(parse).collect();
    HidePatterns::new(&patterns)
}

fn check(names: &HidePatterns, name: &str, expected: Option<&str>) {
    let found = names.find_match(name.as_bytes());
    assert_eq!(found.map(|found| found.pattern), expected, "{name}");
}

#[test]
fn the_built_in_list_hides_what_is_private_however_it_is_spelled() {
    let names = hidden(&["default"]);
    for (name, pattern) in [
        ("app.py", "*.py"),
        ("APP.PY", "*.py"),
        ("a/b/app.Py", "*.py"),
        ("app.py.", "*.py"),
        ("app.py ", "*.py"),
        ("app.py. . ", "*.py"),
        ("app.py::$DATA", "*.py"),
        ("app.py.gz", "*.py"),
        ("app.py.1.gz", "*.py"),
        ("app.py.zip", "*.py"),
        ("app.p\u{200c}y", "*.py"),
        ("a\\app.py", "*.py"),
        ("site.sqlite3", "*.sqlite3"),
        ("site.sqlite3-wal", "*.sqlite3-*"),
        ("dump.sql.gz", "*.sql"),
        ("dump.sql.20260101", "*.sql"),
        ("server.key", "*.key"),
        ("server.\u{212a}ey", "*.key"),
        ("ID_RSA", "id_rsa"),
        ("id_r\u{17f}a", "id_rsa"),
        ("prod.env", "*.env"),
        ("prod.env.local", "*.env.*"),
        (".env", "*.env"),
        ("\u{200b}.env", "*.env"),
        ("a\\.env", "*.env"),
        (".env.production", "*.env.*"),
        ("a/.git/config", ".git/"),
        ("CVS/Entries", "cvs/"),
        ("cvs /Entries", "cvs/"),
        ("settings.py~", "*~"),
        ("index.html.bak", "*.bak"),
        ("index.html.bak.2", "*.bak"),
        ("#index.html#", "#*#"),
        ("backup-2026.tar.gz", "backup*.tar"),
        ("debug.log", "*.log"),
        ("debug.log.3.gz", "*.log"),
        ("app.log.2026-11-26", "*.log"),
        ("app.log.2026-11-26T10:15:00Z", "*.log"),
        ("app.log.2026_11_26.gz", "*.log"),
        ("error_log_20261126", "error_log"),
        ("a.b/error_log-1", "error_log"),
        ("dump.sql.2026-11-26", "*.sql"),
        ("dump.sql-2026-11-26", "*.sql"),
        ("dump.sql_1.gz", "*.sql"),
        ("dump.sql.tar.gz", "*.sql"),
        ("dump.sql.tgz", "*.sql"),
        ("dump.sql.zstd", "*.sql"),
        ("dump.sql.lz", "*.sql"),
        ("db.sqlite3.tar", "*.sqlite3"),
        ("config.php.dist", "*.php"),
        ("config.php.tmp", "*.php"),
        ("config.php.new", "*.php"),
        ("config.php.copy", "*.php"),
        ("config.php.txt", "*config*.php.txt"),
        ("wp-config.php.TXT.1", "*config*.php.txt"),
        ("local_settings.py.txt", "*settings*.py.txt"),
        ("dump.sql.txt", "*.sql.txt"),
        ("server.key.txt", "*.key.txt"),
        ("id_rsa.txt", "id_rsa.txt"),
        ("config.php-old", "*.php"),
        ("config.php_bak2", "*.php"),
        ("config.php+orig", "*.php"),
        ("config.php copy", "*.php"),
        ("config.php (1)", "*.php"),
        ("config.php(copy)", "*.php"),
        ("config.php - copy", "*.php"),
        ("config.php-save.gz", "*.php"),
        ("config.php.sample", "*.php"),
        ("config.php.example", "*.php"),
        ("config.php.default", "*.php"),
        ("config.php.template", "*.php"),
        ("config.php.bak.sample", "*.php"),
        ("database.yml.example", "database.yml"),
        ("database.yml-sample", "database.yml"),
        ("app.ini.sample", "*.ini"),
        ("prod.env-old", "*.env"),
        ("index.php.bak~", "*~"),
        ("id_rsa-old", "id_rsa"),
        ("site.sqlite3_old", "*.sqlite3"),
        ("htpa\u{df}wd", "htpasswd"),
        ("acce\u{1e9e}_log", "access_log"),
        ("Make\u{fb01}le", "makefile"),
        ("prod.tf\u{fb06}ate", "*.tfstate"),
        ("GIT~1/config", "*~1/"),
        ("a/HTPASS~1", "*~1"),
        ("ENV~1.LOC", "env~*"),
        ("config.ru", "*.ru"),
        ("Gemfile", "gemfile"),
        ("Gemfile.lock", "*.lock"),
        ("requirements-dev.txt", "requirements*.txt"),
        ("docker-compose.override.yml", "docker-compose*.yml"),
    ] {
        check(&names, name, Some(pattern));
    }
    let long = format!("{}/app.py", "a".repeat(MAX_STACK_PATH_BYTES));
    check(&names, &long, Some("*.py"));
}

#[test]
fn the_built_in_list_leaves_ordinary_sites_alone() {
    let names = hidden(&["default"]);
    for name in [
        "",
        "/",
        "index.html",
        "app.js",
        "app.js.map",
        "app.js.gz",
        "app.ts",
        "data.json",
        "openapi.yaml",
        "config.yml",
        "package.json",
        "install.sh",
        "tool.c",
        "release-1.2.zip",
        "release-1.2.tar.gz",
        "release-1.2.tar.gz.asc",
        "ca.crt",
        "id_ed25519.pub",
        "notebook.ipynb",
        "country.dbf",
        "env.js",
        "secrets.html",
        "backup.html",
        "backups/",
        "key/index.html",
        "www.example.pl/index.html",
        "docs.rs/index.html",
        "docs.rs/",
        "_sources/index.rst.txt",
        "makefile.txt",
        "lesson-1.php.txt",
        "hello.py.txt",
        "style.css-old",
        "page-old",
        "release (1).zip",
        "docs-example/index.html",
        "example",
        "-old",
        "(1)",
        "core.min.1.js",
        "app.1.2.3.js",
        "jquery-3.7.1.min.js",
        "robots.txt",
        "humans.txt",
        "llms-full.txt",
        "LICENSE.txt",
        "notes.2026-11-26.txt",
        "report.2026-11-26",
        "release-1.2",
        "release-1.2_3",
        "v1.tar",
        "photo~1.jpg",
        "~anna/index.html",
        "stra\u{df}e.html",
        "py",
        "db",
        "caf\u{e9}.html",
        ".well-known/security.txt",
    ] {
        check(&names, name, None);
    }
}

#[test]
fn the_last_pattern_that_matches_decides() {
    let names = hidden(&[
        "default",
        "!*.py",
        "/private/*",
        "drafts/",
        "tmp*",
        "!/private/a.css",
    ]);
    for (name, expected) in [
        ("app.py", None),
        ("app.py.gz", None),
        ("app.rb", Some("*.rb")),
        ("private/app.py", Some("/private/*")),
        ("private/a/b.css", Some("/private/*")),
        ("private/", Some("/private/*")),
        ("private/a.css", None),
        ("a/private/b.css", None),
        ("drafts/a.html", Some("drafts/")),
        ("a/Drafts/b/c.html", Some("drafts/")),
        ("drafts", None),
        ("tmp", Some("tmp*")),
        ("tmp1/a.css", Some("tmp*")),
        ("a/tmp.css", Some("tmp*")),
    ] {
        check(&names, name, expected);
    }
    let names = hidden(&["*.py", "default"]);
    check(&names, "app.py", Some("*.py"));
    assert!(names.find_match(b"app.py").unwrap().is_default);
    assert!(hidden(&[]).is_empty());
    check(&hidden(&[]), "app.py", None);
}

#[test]
fn each_file_is_logged_once_and_their_number_is_bounded() {
    let told = LoggedNames::default();
    let names = hidden(&["default"]);
    let hiding = names.find_match(b"app.py").unwrap();
    assert!(!told.is_logged_or_full(|name| name == b"app.py"));
    log_hidden_file(&told, Path::new("/srv"), b"app.py", hiding);
    assert!(
        told.is_logged_or_full(|name| name == b"app.py")
            && !told.is_logged_or_full(|name| name == b"b.py")
    );
    for number in 0..MAX_LOGGED_NAMES {
        log_hidden_file(
            &told,
            Path::new("/srv"),
            format!("{number}.py").as_bytes(),
            hiding,
        );
    }
    assert!(told.is_logged_or_full(|name| name == b"b.py"));
    assert_eq!(told.0.lock().unwrap().len(), MAX_LOGGED_NAMES);
}
