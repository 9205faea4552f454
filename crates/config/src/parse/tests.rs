//! What a text gives: values, or every error with its place.
//!
//! Tables of texts against the lines of the errors; the directory of the test is left out of them.

use std::time::Duration;

use super::*;
use crate::model::*;
use crate::testing::{TestDir, check_error_table, parse_in_dir, parse_valid};
use crate::{HostPattern, ListenAddr, PathPattern, TryPattern};

const APP: &str = "[apps.a]\ndir = \".\"\n";

#[test]
fn gives_every_default_for_a_file_with_one_application() {
    let folder = TestDir::with_sample_site();
    let config = parse_valid(&folder, APP);
    assert_eq!(config.server, Server::default());
    assert_eq!(config.limits, Limits::default());
    assert_eq!(
        config.blocking.get("default"),
        Some(&BlockingPool::default())
    );
    assert_eq!(config.base_dir, folder.path());
    assert_eq!(config.path, Some(folder.join("penstock.toml")));
    let app = App {
        kind_is_guess: true,
        ..App::new(
            "a",
            folder.path().to_owned(),
            AppKind::Wsgi,
            "app:application",
        )
    };
    assert_eq!(config.apps["a"], app);
    let files = Some(Files::new(folder.join("public")));
    let route = Route {
        files,
        app: Some("a".to_owned()),
        ..Route::new(PathPattern::any())
    };
    assert_eq!(config.sites, [Site::new(vec![route])]);
}

#[test]
fn leaves_public_out_when_the_folder_has_none() {
    let folder = TestDir::with_files(&[("config.ru", "")]);
    let config = parse_valid(&folder, "[apps.a]\n");
    assert_eq!(config.apps["a"].kind, AppKind::Rack);
    assert_eq!(config.sites[0].routes[0].files, None);
}

/// The text of the design, without the parts that are not built.
const WHOLE: &str = r#"
[server]
listen = ["127.0.0.1:8080", "unix:/run/penstock/http.sock"]
threads = 2
admin = "127.0.0.1:8090"                 # status page
access_log = { path = "logs/access.log", format = "combined" }
shutdown_timeout = "20s"

[limits]
connections = 100000
target_bytes = "8KiB"
header_bytes = "32KiB"
headers = 100
body_bytes = "64MiB"
header_timeout = "10s"
idle_timeout = "75s"
body_idle_timeout = "30s"
min_body_rate = "500B/s"
body_rate_grace = "10s"
body_memory = "64KiB"
response_memory = "64KiB"
response_spool = "64MiB"
websocket_message_bytes = "1MiB"
temp_dir = "."

[blocking.default]
threads = 32
max_queue = 65536

[apps.guestbook]
dir = "."
kind = "wsgi"
entry = "app:application"
interpreter = ".venv/bin/python"
processes = { min = 1, max = 4 }
threads = 1
queue = { max = 1000, timeout = "30s" }
response_timeout = "60s"
boot_timeout = "1m"
env = { GREETING = "hello" }

[[sites]]
hosts = ["example.com", "*.example.com"]
[[sites.routes]]
path = "/assets/*"
files = { root = "public", blocking = "default" }
[[sites.routes]]
path = "/*"
files = { root = "public", try = ["{path}", "{path}/index.html", "{path}.html"] }
app = "guestbook"
"#;

/// What else the design has, of back ends and streams.
const BACK_ENDS: &str = r#"
[[sites]]
[[sites.routes]]
path = "/internal/*"
upstream = "legacy"
internal = true
rewrite = { strip_prefix = "/internal", add_prefix = "/v2" }
request_headers = { set = { X-A = "{client}" }, remove = ["X-B"] }
response_headers = { add = { X-C = "c" } }

[apps.mongrels]
kind = "command"
command = "thin -p {port} 'start now'"
upstream = { health = { path = "/up", status = "200-399" }, retry = { budget = 0.1 } }

[upstreams.legacy]
protocol = "http"
servers = ["127.0.0.1:30000", { address = "unix:/tmp/rails0.sock", weight = 2, max_active = 1 }]
balance = "hash"
key = "cookie:id"
max_active = 1
queue = { max = 1000, timeout = "30s" }
connections = { min = 0, soft = 8, max = 64, ttl = "60s" }
retry = { attempts = 2 }
health = { path = "/up", interval = "2s", rise = 2, fall = 3 }

[[tcp]]
listen = "127.0.0.1:9000"
upstream = "legacy"

[hub]
max_streams = 1000
history = { max_messages = 10, max_age = "1m" }
grip_key = "base64:c2VjcmV0"

[[sites]]
hosts = ["live.example.com"]
[[sites.routes]]
path = "/news/*"
hub = { channels = ["news.{path.2}", "{query.user}"], publish = true }
[[sites.routes]]
path = "/.well-known/mercure"
mercure = { publisher_key = "!ChangeThisMercureHubJWTSecretKey!", origins = ["https://app.example"] }
"#;

#[test]
fn reads_every_table() {
    let folder = TestDir::with_sample_site();
    let config = parse_valid(&folder, WHOLE);
    let unix = ListenAddr::Unix("/run/penstock/http.sock".into());
    assert_eq!(
        config.server.listen,
        [ListenAddr::loopback(8080).into(), unix.into()]
    );
    assert_eq!(config.server.threads, 2);
    assert_eq!(config.server.shutdown_timeout, Duration::from_secs(20));
    let path = LogTarget::File(folder.join("logs/access.log"));
    assert_eq!(config.server.access_log, Some(AccessLog::new(path)));
    let temp_dir = folder.path().to_owned();
    assert_eq!(
        config.limits,
        Limits {
            temp_dir,
            ..Limits::default()
        }
    );
    let app = &config.apps["guestbook"];
    assert_eq!(app.processes, Processes { min: 1, max: 4 });
    assert_eq!(app.interpreter, Some(folder.join(".venv/bin/python")));
    assert_eq!(app.env["GREETING"], "hello");
    let site = &config.sites[0];
    assert_eq!(
        site.hosts[1],
        HostPattern::Subdomains(".example.com".to_owned())
    );
    assert_eq!(
        site.routes[0].path,
        PathPattern::Prefix("/assets/".to_owned())
    );
    assert_eq!(site.routes[0].app, None);
    let tries = &site.routes[1].files.as_ref().unwrap().try_;
    assert_eq!(
        tries
            .iter()
            .map(TryPattern::to_string)
            .collect::<Vec<_>>()
            .join(" "),
        "{path} {path}/index.html {path}.html"
    );
}

#[test]
fn reads_the_short_forms() {
    let folder = TestDir::with_sample_site();
    let server = |text: &str| parse_valid(&folder, &format!("{APP}[server]\n{text}\n")).server;
    let log = |path| Some(AccessLog::new(path));
    assert_eq!(server("access_log = \"off\"").access_log, None);
    assert_eq!(server("access_log = { format = \"off\" }").access_log, None);
    assert_eq!(
        server("access_log = \"stdout\"").access_log,
        log(LogTarget::Stdout)
    );
    let json = server("access_log = { path = \"stderr\", format = \"json\" }").access_log;
    assert_eq!(
        json,
        Some(AccessLog {
            format: LogFormat::Json,
            ..AccessLog::new(LogTarget::Stderr)
        })
    );
    assert_eq!(server("admin = \"off\"").admin, None);
    let app = |text: &str| parse_valid(&folder, &format!("{APP}{text}\n")).apps["a"].clone();
    assert_eq!(app("processes = 3").processes, Processes::exactly(3));
    assert_eq!(
        app("processes = { min = 2, max = 2 }").processes,
        Processes::exactly(2)
    );
    assert_eq!(
        app("processes = { max = 5 }").processes,
        Processes { min: 1, max: 5 }
    );
    assert_eq!(
        app("processes = { min = 1000 }").processes,
        Processes::exactly(1000)
    );
    assert_eq!(
        app("interpreter = \"python3.12\"").interpreter,
        Some("python3.12".into())
    );
    assert_eq!(app("queue = { max = 0 }").max_queued, 0);
    let config = parse_valid(&folder, &format!("{APP}[blocking.disk]\nmax_queue = 0\n"));
    assert_eq!(config.blocking["disk"].max_queued, 0);
}

#[test]
fn reports_what_is_wrong_inside_a_table() {
    check_error_table(&[
        (
            "unknown key",
            "[apps.a]\n[server]\n  theads = 2\n",
            &["penstock.toml:3:3: unknown key `theads` in [server]; did you mean `threads`?"],
        ),
        (
            "unknown table",
            "[apps.a]\n[limit]\n",
            &["penstock.toml:2:2: unknown key `limit` at the top level; did you mean `limits`?"],
        ),
        (
            "stranger",
            "[apps.a]\nbanana = 1\n",
            &["penstock.toml:2:1: unknown key `banana` in [apps.a]"],
        ),
        (
            "type",
            "[apps.a]\nthreads = \"many\"\n",
            &[
                "penstock.toml:2:11: `threads` must be a number from 1 to 1024, or a table, not a string",
            ],
        ),
        (
            "zero",
            "[apps.a]\n[limits]\nheaders = 0\n",
            &["penstock.toml:3:11: `headers` cannot be 0: expected a number from 1 to 10000"],
        ),
        (
            "negative",
            "[apps.a]\nthreads = -1\n",
            &["penstock.toml:2:11: `threads` cannot be -1: expected a number from 1 to 1024"],
        ),
        (
            "size",
            "[apps.a]\n[limits]\nbody_bytes = \"8 apples\"\n",
            &[
                "penstock.toml:3:14: `body_bytes` cannot be \"8 apples\": expected a size such as \"8KiB\", \"10MB\" or a number of bytes",
            ],
        ),
        (
            "zero size",
            "[apps.a]\n[limits]\nbody_bytes = 0\n",
            &["penstock.toml:3:14: `body_bytes` cannot be 0: expected at least 1B"],
        ),
        (
            "no unit",
            "[apps.a]\nboot_timeout = \"10\"\n",
            &[
                "penstock.toml:2:16: `boot_timeout` cannot be \"10\": expected a duration such as \"500ms\", \"10s\", \"5m\", \"1h\" or \"1d\"",
            ],
        ),
        (
            "number as duration",
            "[apps.a]\nboot_timeout = 10\n",
            &[
                "penstock.toml:2:16: `boot_timeout` must be a duration such as \"500ms\", \"10s\", \"5m\", \"1h\" or \"1d\", not an integer",
            ],
        ),
        (
            "zero duration",
            "[apps.a]\nboot_timeout = \"0s\"\n",
            &["penstock.toml:2:16: `boot_timeout` cannot be \"0s\": expected at least 1ms"],
        ),
        (
            "endless",
            "[apps.a]\nboot_timeout = \"9999d\"\n",
            &["penstock.toml:2:16: `boot_timeout` cannot be \"9999d\": expected at most 365d"],
        ),
        (
            "a long message",
            "[apps.a]\n[limits]\nwebsocket_message_bytes = \"33MiB\"\n",
            &[
                "penstock.toml:3:27: `websocket_message_bytes` cannot be \"34603008 bytes\": expected a size of at most 32MiB",
            ],
        ),
        (
            "rate",
            "[apps.a]\n[limits]\nmin_body_rate = \"500\"\n",
            &[
                "penstock.toml:3:17: `min_body_rate` cannot be \"500\": expected a rate such as \"500B/s\" or \"1KiB/s\"",
            ],
        ),
        (
            "min above max",
            "[apps.a]\nprocesses = { min = 4, max = 2 }\n",
            &["penstock.toml:2:21: `min` (4) is above `max` (2)"],
        ),
        (
            "target above head",
            "[apps.a]\n[limits]\ntarget_bytes = \"64KiB\"\n",
            &["penstock.toml:3:16: `target_bytes` (65536) is above `header_bytes` (32768)"],
        ),
        (
            "environment",
            "[apps.a]\nenv = { A = 1, \"B=C\" = \"x\" }\n",
            &[
                "penstock.toml:2:13: `A` must be a string, not an integer",
                "penstock.toml:2:16: `env` cannot be \"B=C\": expected a variable without `=` in its name and without zero bytes",
            ],
        ),
        (
            "log format",
            "[apps.a]\n[server]\naccess_log = { path = \"x\", format = \"jsn\" }\n",
            &[
                "penstock.toml:3:37: `format` cannot be \"jsn\": expected \"combined\", \"common\", \"json\", \"dev\", \"off\" or a text with words in braces; did you mean `json`?",
            ],
        ),
        (
            "log path",
            "[apps.a]\n[server]\naccess_log = { format = \"json\" }\n",
            &[
                "penstock.toml:3:14: `path` is missing in [server.access_log]: expected a path, \"stdout\", \"stderr\", \"journald\", \"syslog\" or an address such as \"syslog:10.0.0.1:514\"",
            ],
        ),
        (
            "name",
            "[apps.\"a/b\"]\n",
            &[
                "penstock.toml:1:7: `apps` cannot be \"a/b\": expected a name of at most 64 letters, digits, `-`, `_` and `.`",
            ],
        ),
        (
            "temp_dir",
            "[apps.a]\n[limits]\ntemp_dir = \"nowhere\"\n",
            &["penstock.toml:3:12: `temp_dir`: nowhere does not exist"],
        ),
    ]);
}

#[test]
fn reports_addresses_that_are_wrong_or_taken() {
    check_error_table(&[
        (
            "grammar",
            "[apps.a]\n[server]\nlisten = [\"localhost\", \"1.2.3.4:99999\"]\n",
            &[
                "penstock.toml:3:11: `listen` cannot be \"localhost\": expected an address such as \"127.0.0.1:8080\", \":8080\", \"[::1]:8080\" or \"unix:/run/site.sock\"",
                "penstock.toml:3:24: `listen` cannot be \"1.2.3.4:99999\": expected an address such as \"127.0.0.1:8080\", \":8080\", \"[::1]:8080\" or \"unix:/run/site.sock\"",
            ],
        ),
        (
            "twice",
            "[apps.a]\n[server]\nlisten = [\"127.0.0.1:80\",\n  \":80\"]\n",
            &["penstock.toml:4:3: http://*:80 is already taken by http://127.0.0.1:80 on line 3"],
        ),
        (
            "admin",
            "[apps.a]\n[server]\nadmin = \"127.0.0.1:8080\"\n",
            &[
                "penstock.toml:3:9: admin (http://127.0.0.1:8080) and the listener http://127.0.0.1:8080 are the same address: move one, or set admin = \"off\"",
            ],
        ),
        (
            "default admin",
            "[apps.a]\n[server]\nlisten = [\":8090\"]\n",
            &[
                "penstock.toml:3:11: admin (http://127.0.0.1:8090) and the listener http://*:8090 are the same address: move one, or set admin = \"off\"",
            ],
        ),
        (
            "any port twice",
            "[apps.a]\n[server]\nlisten = [\":0\", \":0\"]\n",
            &[],
        ),
        (
            "two families",
            "[apps.a]\n[server]\nlisten = [\":80\", \"[::]:80\"]\n",
            &[],
        ),
        (
            "none",
            "[apps.a]\n[server]\nlisten = []\n",
            &[
                "penstock.toml:3:10: `listen` needs at least one item: expected an address such as \"127.0.0.1:8080\", \":8080\", \"[::1]:8080\" or \"unix:/run/site.sock\"",
            ],
        ),
    ]);
}

#[test]
fn reports_applications_whose_code_is_not_there() {
    check_error_table(&[
        (
            "dir",
            "[apps.a]\ndir = \"nowhere\"\nentry = \"app:application\"\n",
            &["penstock.toml:2:7: `dir`: nowhere does not exist"],
        ),
        (
            "file",
            "[apps.a]\ndir = \"app.py\"\n",
            &["penstock.toml:2:7: `dir`: app.py is not a folder"],
        ),
        (
            "module",
            "[apps.a]\nentry = \"main.web:app\"\n",
            &[
                "penstock.toml:2:9: entry `main.web:app` was not found: looked for main/web.py, main/web",
            ],
        ),
        (
            "rackup",
            "[apps.a]\nkind = \"rack\"\nentry = \"x.ru\"\n",
            &["penstock.toml:3:9: entry `x.ru` was not found: looked for x.ru"],
        ),
        (
            "grammar",
            "[apps.a]\nentry = \"app.py\"\n",
            &[
                "penstock.toml:2:9: `entry` cannot be \"app.py\": expected \"module:callable\", \"module:factory()\" or a .ru or .rb file",
            ],
        ),
        (
            "kind",
            "[apps.a]\nkind = \"wsgy\"\n",
            &[
                "penstock.toml:2:8: `kind` cannot be \"wsgy\": expected \"wsgi\" or \"asgi\" or \"rack\" or \"command\" or \"fastcgi\"; did you mean `wsgi`?",
            ],
        ),
        (
            "nothing",
            "[apps.a]\ndir = \"public\"\n",
            &[
                "penstock.toml:1:7: app `a`: no application was recognised in public: set `entry`, such as entry = \"module:callable\", or kind = \"command\" and `command` for another server",
            ],
        ),
        (
            "no rackup",
            "[apps.a]\nkind = \"rack\"\n",
            &[
                "penstock.toml:1:7: app `a`: no application was recognised in .: set `entry`, such as entry = \"module:callable\"",
            ],
        ),
        (
            "rackup below",
            "[apps.a]\nentry = \"rack/config.ru\"\n",
            &[],
        ),
    ]);
}

#[test]
fn finds_modules_in_packages_and_virtual_environments() {
    let folder = TestDir::with_files(&[
        ("package/__init__.py", ""),
        ("package/web.py", ""),
        ("lib/elsewhere.py", ""),
        (
            ".venv/lib/python3.12/site-packages/installed/__init__.py",
            "",
        ),
    ]);
    let rows = [
        ("package:app", "", true),
        ("package.web:app", "", true),
        ("installed:app", "", true),
        ("elsewhere:app", "", false),
        ("elsewhere:app", "env = { PYTHONPATH = \"lib\" }", true),
    ];
    for (entry, more, expected) in rows {
        let text = format!("[apps.a]\nentry = \"{entry}\"\n{more}\n");
        assert_eq!(
            parse_in_dir(&folder, &text).is_ok(),
            expected,
            "{entry} {more}"
        );
    }
}

#[test]
fn reports_routes_that_cannot_work() {
    let site = "[apps.web]\n[[sites]]\n";
    let with = |rest: &str| format!("{site}{rest}");
    let rows: &[(&str, &str, &[&str])] = &[
        (
            "no route",
            "",
            &["penstock.toml:2:1: a site needs at least one [[sites.routes]]"],
        ),
        (
            "nothing to do",
            "[[sites.routes]]\npath = \"/x\"\n",
            &[
                "penstock.toml:3:1: route /x has nothing to do: give it `files`, `app`, `upstream`, `split`, `hub`, `mercure`, `redirect` or `respond`",
            ],
        ),
        (
            "unknown app",
            "[[sites.routes]]\napp = \"wbe\"\n",
            &["penstock.toml:4:7: there is no app `wbe`; did you mean `web`?"],
        ),
        (
            "unknown pool",
            "[[sites.routes]]\nfiles = { root = \"public\", blocking = \"disk1\" }\n",
            &["penstock.toml:4:39: there is no blocking pool `disk1`"],
        ),
        (
            "no root",
            "[[sites.routes]]\nfiles = { try = [\"{path}\"] }\n",
            &["penstock.toml:4:9: `root` is missing in [sites.routes.files]: expected a path"],
        ),
        (
            "bad root",
            "[[sites.routes]]\nfiles = { root = \"app.py\" }\n",
            &["penstock.toml:4:18: `root`: app.py is not a folder"],
        ),
        (
            "bad path",
            "[[sites.routes]]\npath = \"x*\"\napp = \"web\"\n",
            &[
                "penstock.toml:4:8: `path` cannot be \"x*\": expected a path such as \"/about\", \"/assets/*\" or \"*.php\", or a table",
            ],
        ),
        (
            "a path as a shell writes it",
            "[[sites.routes]]\npath = \"/admin*\"\napp = \"web\"\n",
            &[
                "penstock.toml:4:8: `path` cannot be \"/admin*\": expected a path such as \"/about\", \"/assets/*\" or \"*.php\"; did you mean `/admin/*`?",
            ],
        ),
        (
            "bad try",
            "[[sites.routes]]\nfiles = { root = \"public\", try = [\"../{path}\"] }\n",
            &[
                "penstock.toml:4:35: `try` cannot be \"../{path}\": expected a path inside the root such as \"{path}.html\" or \"/index.html\"",
            ],
        ),
        (
            "twice",
            "[[sites.routes]]\npath = \"/x\"\napp = \"web\"\n[[sites.routes]]\npath = \"/x\"\napp = \"web\"\n",
            &["penstock.toml:7:8: route /x can never match: the site has the same path on line 4"],
        ),
        (
            "shadowed",
            "[[sites.routes]]\napp = \"web\"\n[[sites.routes]]\npath = \"/x/*\"\napp = \"web\"\n",
            &[
                "penstock.toml:6:8: route /x/* can never match: /* on line 3 answers first; put this one before it",
            ],
        ),
        (
            "files alone answer too, with not found",
            "[[sites.routes]]\nfiles = { root = \"public\" }\n[[sites.routes]]\npath = \"/x/*\"\napp = \"web\"\n",
            &[
                "penstock.toml:6:8: route /x/* can never match: /* on line 3 answers first; put this one before it",
            ],
        ),
        (
            "narrow first",
            "[[sites.routes]]\npath = \"/x/*\"\napp = \"web\"\n[[sites.routes]]\napp = \"web\"\n",
            &[],
        ),
    ];
    let folder = TestDir::with_sample_site();
    for (name, rest, expected) in rows {
        let report = parse_in_dir(&folder, &with(rest)).err();
        let lines = report
            .map(|report| folder.error_lines(&report))
            .unwrap_or_default();
        assert_eq!(lines, *expected, "{name}");
    }
}

#[test]
fn reports_sites_that_clash() {
    let route = "[[sites.routes]]\napp = \"a\"\n";
    let site = |hosts: &str| format!("[[sites]]\n{hosts}\n{route}");
    let folder = TestDir::with_sample_site();
    let rows = [
        (
            "same host",
            site("hosts = [\"a.org\"]") + &site("hosts = [\"A.org\"]"),
            vec!["penstock.toml:6:10: host a.org is already taken by the site on line 2"],
        ),
        (
            "both any",
            site("") + &site("hosts = []"),
            vec![
                "penstock.toml:5:1: only one site can answer for any host: the one on line 1 does; give this one `hosts`",
            ],
        ),
        (
            "bad host",
            site("hosts = [\"http://a.org\"]"),
            vec![
                "penstock.toml:2:10: `hosts` cannot be \"http://a.org\": expected a host such as \"example.com\" or \"*.example.com\", without scheme and port",
            ],
        ),
        (
            "narrower",
            site("hosts = [\"*.a.org\"]") + &site("hosts = [\"x.a.org\"]") + &site(""),
            vec![],
        ),
    ];
    for (name, sites, expected) in rows {
        let report = parse_in_dir(&folder, &format!("{sites}[apps.a]\n")).err();
        let lines = report
            .map(|report| folder.error_lines(&report))
            .unwrap_or_default();
        assert_eq!(lines, expected, "{name}");
    }
}

#[test]
fn reports_a_file_that_serves_nothing_or_does_not_say_what() {
    check_error_table(&[
        (
            "empty",
            "",
            &[
                "penstock.toml:1:1: nothing to serve: there is no [apps.NAME], [upstreams.NAME], [[sites]] or [[tcp]] table",
            ],
        ),
        (
            "empty apps",
            "apps = {}\n",
            &[
                "penstock.toml:1:1: nothing to serve: there is no [apps.NAME], [upstreams.NAME], [[sites]] or [[tcp]] table",
            ],
        ),
        (
            "empty sites",
            "sites = []\n[apps.a]\n",
            &[
                "penstock.toml:1:9: nothing to serve: there is no [apps.NAME], [upstreams.NAME], [[sites]] or [[tcp]] table",
            ],
        ),
        (
            "two",
            "[apps.a]\n[apps.b]\n",
            &[
                "penstock.toml:1:2: 2 applications (a, b) and no [[sites]]: say which one answers which path",
            ],
        ),
    ]);
}

#[test]
fn reports_everything_in_one_run_sorted_by_place() {
    check_error_table(&[(
        "many",
        "[server]\nthreads = 0\nlisten = 1\n[apps.a]\nentry = \"no:app\"\nkidn = 1\n[limits]\nx = 1\n",
        &[
            "penstock.toml:2:11: `threads` cannot be 0: expected a number from 1 to 1024",
            "penstock.toml:3:10: `listen` must be an address such as \"127.0.0.1:8080\", \":8080\", \"[::1]:8080\" or \"unix:/run/site.sock\", or a table, or a list of these, not an integer",
            "penstock.toml:5:9: entry `no:app` was not found: looked for no.py, no",
            "penstock.toml:6:1: unknown key `kidn` in [apps.a]; did you mean `kind`?",
            "penstock.toml:8:1: unknown key `x` in [limits]",
        ],
    )]);
}

#[test]
fn reports_syntax_with_its_place() {
    let folder = TestDir::with_sample_site();
    let rows = [
        (
            "unclosed string",
            "[server]\nadmin = \"off\nthreads = 1\n",
            "penstock.toml:2:",
        ),
        ("no value", "[server]\nthreads =\n", "penstock.toml:2:"),
        (
            "twice",
            "[server]\nthreads = 1\nthreads = 2\n",
            "penstock.toml:3:1:",
        ),
        (
            "deep",
            &format!("a = {}", "[".repeat(100_000)),
            "penstock.toml:1:",
        ),
    ];
    for (name, text, place) in rows {
        let report = parse_in_dir(&folder, text).unwrap_err();
        assert!(
            report.errors[0].problem.starts_with("not valid TOML"),
            "{name}: {report}"
        );
        assert!(
            folder.error_lines(&report)[0].starts_with(place),
            "{name}: {report}"
        );
    }
}

#[test]
fn takes_the_line_ends_and_the_mark_of_other_editors() {
    let folder = TestDir::with_sample_site();
    parse_valid(&folder, "\u{feff}[apps.a]\r\nthreads = 2\r\n");
    let report = parse_in_dir(&folder, "[apps.a]\r\n  x = 2\r\n").unwrap_err();
    assert_eq!(
        folder.error_lines(&report),
        ["penstock.toml:2:3: unknown key `x` in [apps.a]"]
    );
}

#[test]
fn reports_a_file_that_cannot_be_read() {
    let folder = TestDir::with_files(&[("penstock.toml", "")]);
    let report = load(&folder.join("other.toml")).unwrap_err();
    assert_eq!(
        folder.error_lines(&report),
        ["other.toml: cannot be read: entity not found"]
    );
    assert!(load(folder.path()).is_err());
}

#[test]
fn never_panics_on_a_mutilated_file() {
    let folder = TestDir::with_sample_site();
    let whole = format!("{WHOLE}{BACK_ENDS}");
    parse_valid(&folder, &whole);
    for end in 0..whole.len() {
        let _ = parse_in_dir(&folder, &whole[..end]);
        let mut bytes = whole.as_bytes().to_vec();
        bytes[end] = b"\"[]{}=.,0\n\0x"[end % 12];
        if let Ok(text) = String::from_utf8(bytes) {
            let _ = parse_in_dir(&folder, &text);
        }
    }
}
