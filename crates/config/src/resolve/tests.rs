//! What a directory or a word on the command line is taken for.

use std::time::Duration;

use super::*;
use crate::model::{AccessLog, Concurrency, LogFormat, LogTarget};
use crate::testing::{TestDir, write};

fn resolve_target(folder: &TestDir, target: Option<&str>) -> Result<Config, ConfigErrors> {
    let target = target.map(str::to_owned);
    resolve_config(&Invocation {
        target,
        cwd: folder.path().to_owned(),
        ..Invocation::default()
    })
}

fn entry_of(config: &Config) -> String {
    let app = config.apps.values().next();
    app.map_or_else(
        || "none".to_owned(),
        |app| format!("{} {}", app.kind, app.entry),
    )
}

#[test]
fn recognises_a_folder() {
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);
    let rows: &[Row<'_>] = &[
        (
            "rack",
            &[("config.ru", ""), ("app.py", "app = 1")],
            "rack config.ru",
        ),
        (
            "module",
            &[("guestbook.py", "def application(e, s):\n")],
            "wsgi guestbook:application",
        ),
        (
            "package",
            &[("main/__init__.py", "def create_app():\n")],
            "wsgi main:create_app()",
        ),
        (
            "order",
            &[("wsgi.py", "app = 1"), ("app.py", "x = 1")],
            "wsgi wsgi:app",
        ),
        (
            "django",
            &[
                (
                    "manage.py",
                    "import django\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'web.settings.dev')\n",
                ),
                ("another/wsgi.py", ""),
                ("web/wsgi.py", "application = get_wsgi_application()\n"),
            ],
            "wsgi web.wsgi:application",
        ),
        (
            "django without settings",
            &[("manage.py", "import django"), ("site/wsgi.py", "")],
            "wsgi site.wsgi:application",
        ),
        (
            "django with both",
            &[
                (
                    "manage.py",
                    "import django\n'DJANGO_SETTINGS_MODULE', 'web.settings'\n",
                ),
                ("web/asgi.py", ""),
                ("web/wsgi.py", ""),
            ],
            "wsgi web.wsgi:application",
        ),
        (
            "django of asgi",
            &[("manage.py", "import django"), ("web/asgi.py", "")],
            "asgi web.asgi:application",
        ),
        (
            "fastapi",
            &[("main.py", "app = FastAPI()")],
            "asgi main:app",
        ),
        (
            "fastapi below app",
            &[("app/__init__.py", ""), ("app/main.py", "app = FastAPI()")],
            "asgi app.main:app",
        ),
        (
            "quart",
            &[("app.py", "def create_app():\n    app = Quart(__name__)\n")],
            "asgi app:create_app()",
        ),
        (
            "asgi.py",
            &[("asgi.py", "application = make()")],
            "asgi asgi:application",
        ),
        (
            "rails",
            &[
                ("config.ru", "run Rails.application"),
                ("config/application.rb", ""),
                ("Procfile", "web: puma"),
            ],
            "rack config.ru",
        ),
        (
            "not asgi",
            &[
                ("asgi.py", "application = x"),
                ("wsgi.py", "application = x"),
            ],
            "wsgi wsgi:application",
        ),
        (
            "unpacked names",
            &[("main.py", "app, rt = fast_app()\n")],
            "asgi main:app",
        ),
        (
            "another name",
            &[("main.py", "from fastapi import FastAPI\nshop = FastAPI()\n")],
            "asgi main",
        ),
        (
            "lesser name",
            &[("app.py", "dash = Dash(__name__)\nserver = dash.server\n")],
            "wsgi app:server",
        ),
        (
            "run.py",
            &[(
                "run.py",
                "from shop import create_app\napp = create_app()\n",
            )],
            "wsgi run:app",
        ),
        (
            "source folder",
            &[("src/main.py", "app = FastAPI()")],
            "asgi main:app",
        ),
        (
            "package",
            &[("shop/__init__.py", "app = Flask(__name__)")],
            "wsgi shop:app",
        ),
        (
            "module of a package in src",
            &[
                ("src/shop/__init__.py", ""),
                ("src/shop/wsgi.py", "application = make()"),
                ("tests/__init__.py", "app = 1"),
            ],
            "wsgi shop.wsgi:application",
        ),
        (
            "flaskenv",
            &[
                (".flaskenv", "FLASK_APP=hello.py\n"),
                ("hello.py", "site = Flask(__name__)"),
                ("main.py", "app = 1"),
            ],
            "wsgi hello",
        ),
        (
            "flaskenv of another place",
            &[(".flaskenv", "FLASK_APP=gone\n"), ("main.py", "app = 1")],
            "wsgi main:app",
        ),
        (
            "pyproject",
            &[
                (
                    "pyproject.toml",
                    "[tool.fastapi]\nentrypoint = \"shop.web:api\"\n",
                ),
                ("shop/web.py", "api = FastAPI()"),
            ],
            "asgi shop.web:api",
        ),
        (
            "procfile",
            &[
                ("Procfile", "web: gunicorn 'shop' shop:site"),
                ("shop.py", "site = 1"),
            ],
            "wsgi shop:site",
        ),
        (
            "channels",
            &[
                (
                    "manage.py",
                    "import django\n'DJANGO_SETTINGS_MODULE', 'web.settings'\n",
                ),
                ("web/asgi.py", "application = ProtocolTypeRouter({})\n"),
                ("web/wsgi.py", "application = get_wsgi_application()\n"),
            ],
            "asgi web.asgi:application",
        ),
        ("public", &[("public/index.html", "")], "none"),
        ("static", &[("index.html", "")], "none"),
    ];
    for (name, files, expected) in rows {
        let folder = TestDir::with_files(files);
        let config =
            resolve_target(&folder, None).unwrap_or_else(|report| panic!("{name}: {report}"));
        assert_eq!(entry_of(&config), *expected, "{name}");
        assert_eq!(config.path, None, "{name}");
        assert_eq!(config.sites.len(), 1, "{name}");
    }
}

#[test]
fn serves_public_with_fall_through_and_a_bare_index_as_files() {
    let folder = TestDir::with_files(&[("app.py", "app = 1"), ("public/", ""), ("index.html", "")]);
    let route = resolve_target(&folder, None)
        .unwrap()
        .sites
        .remove(0)
        .routes
        .remove(0);
    assert_eq!(route.files, Some(Files::new(folder.join("public"))));
    assert!(route.app.is_some());
    let folder = TestDir::with_files(&[("index.html", "")]);
    let route = resolve_target(&folder, None)
        .unwrap()
        .sites
        .remove(0)
        .routes
        .remove(0);
    assert_eq!(route.files, Some(Files::new(folder.path().to_owned())));
    assert_eq!(route.app, None);
}

#[test]
fn a_kind_that_is_said_is_no_guess_and_goes_before() {
    let folder = TestDir::with_files(&[
        ("app.py", "app = make()"),
        ("config.ru", ""),
        ("penstock.toml", "[apps.y]\nentry = \"app:app\"\n"),
        ("sub/app.py", "app = make()"),
    ]);
    let kind_of = |target: &str, kind: Option<AppKind>| {
        let config = resolve_config(&Invocation {
            target: Some(target.to_owned()),
            cwd: folder.path().to_owned(),
            kind,
            ..Invocation::default()
        });
        let app = config.map(|config| config.apps.into_values().next());
        app.map(|app| app.map(|app| (app.kind, app.kind_is_guess)))
            .map_err(|report| folder.error_lines(&report).join("\n"))
    };
    let asgi = Some(AppKind::Asgi);
    for target in ["sub", "sub/app.py", "app:app", "app", "sub/app.py:app"] {
        assert_eq!(
            kind_of(target, asgi),
            Ok(Some((AppKind::Asgi, false))),
            "{target}"
        );
        assert_eq!(
            kind_of(target, None),
            Ok(Some((AppKind::Wsgi, true))),
            "{target}"
        );
    }
    assert_eq!(
        kind_of("penstock.toml", None),
        Ok(Some((AppKind::Wsgi, true)))
    );
    assert_eq!(kind_of("config.ru", None), Ok(Some((AppKind::Rack, false))));
    let refused = kind_of("config.ru", asgi).unwrap_err();
    assert!(refused.contains("is of kind \"rack\""), "{refused}");
    let refused = kind_of("app:app", Some(AppKind::Rack)).unwrap_err();
    assert!(refused.contains("is of kind \"wsgi\""), "{refused}");
    let refused = kind_of("penstock.toml", asgi).unwrap_err();
    assert!(
        refused.contains("leave --kind out, which is for a folder"),
        "{refused}"
    );
}

#[test]
fn ruby_code_without_a_rackup_file_is_an_application() {
    let classic = "require 'sinatra'\nget('/') { 'hi' }\n";
    let modular = "require \"sinatra/base\"\nclass Shop < Sinatra::Base # web\nend\n";
    let roda = "require \"roda\"\nclass Shop < ::Roda; plugin :json\nend\n";
    type Row<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
    let rows: [Row<'_>; 11] = [
        (&[("app.rb", classic)], Some("app.rb")),
        (&[("hello.rb", classic)], Some("hello.rb")),
        (&[("server.rb", modular)], Some("server.rb")),
        (&[("app.rb", roda), ("other.rb", classic)], Some("app.rb")),
        (&[("x.rb", "Web = Class.new(Roda) do\n")], Some("x.rb")),
        (&[("x.rb", classic), ("x_test.rb", classic)], Some("x.rb")),
        (&[("x.rb", classic), ("y.rb", modular)], None),
        (&[("app.rb", "puts 1\n")], None),
        (&[("app.rb", "# require 'sinatra'\n")], None),
        (&[("app.rb", "require 'sinatra/base'\n")], None),
        (&[("app.rb", classic), ("config.ru", "")], Some("config.ru")),
    ];
    for (files, expected) in rows {
        let folder = TestDir::with_files(files);
        match (resolve_target(&folder, None), expected) {
            (Ok(config), Some(expected)) => {
                let app = config.apps.into_values().next().unwrap();
                assert_eq!(
                    (app.kind, &*app.entry),
                    (AppKind::Rack, expected),
                    "{files:?}"
                );
            }
            (Err(mut report), None) => {
                let problem = report.errors.remove(0).problem;
                assert!(
                    problem.starts_with("nothing to serve was recognised here"),
                    "{problem}"
                );
            }
            (other, _) => panic!("{files:?}: {other:?}"),
        }
    }
    // A tool beside a site does not run; files beside an application are its own.
    for (page, runs) in [
        ("index.html", false),
        ("public/index.html", false),
        ("public/style.css", true),
    ] {
        let apps = |name| {
            let folder = TestDir::with_files(&[(page, ""), (name, classic)]);
            resolve_target(&folder, None).unwrap().apps.len()
        };
        assert_eq!(apps("preview.rb") == 1, runs, "{page}");
        assert_eq!(apps("app.rb"), 1, "{page}");
    }
    let folder = TestDir::with_files(&[
        ("index.html", ""),
        ("preview.rb", classic),
        ("penstock.toml", "[apps.x]\n"),
    ]);
    let app = resolve_target(&folder, None)
        .unwrap()
        .apps
        .into_values()
        .next();
    assert_eq!(app.unwrap().entry, "preview.rb");
    let folder = TestDir::with_files(&[("app.py", "app = make()"), ("app.rb", classic)]);
    let app = resolve_target(&folder, None)
        .unwrap()
        .apps
        .into_values()
        .next();
    assert_eq!(app.unwrap().kind, AppKind::Wsgi);
}

#[test]
fn one_module_of_any_name_is_an_application_where_nothing_else_is() {
    let flask = "from flask import Flask\napp = Flask(__name__)\n";
    let api = "from fastapi import FastAPI\nshop = FastAPI()\n";
    type Row<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
    let rows: [Row<'_>; 8] = [
        (&[("hello.py", flask)], Some("wsgi hello:app")),
        (&[("hello.py", api)], Some("asgi hello")),
        (
            &[
                ("hello.py", flask),
                ("tools.py", "x = 1"),
                ("test_hello.py", api),
            ],
            Some("wsgi hello:app"),
        ),
        (&[("hello.py", flask), ("other.py", api)], None),
        (&[("my-app.py", flask)], None),
        (&[("conftest.py", flask)], None),
        (&[("hello.py", "# Flask(\n")], None),
        (
            &[("hello.py", flask), ("app.py", "app = 1")],
            Some("wsgi app:app"),
        ),
    ];
    for (files, expected) in rows {
        let found =
            resolve_target(&TestDir::with_files(files), None).map(|config| entry_of(&config));
        assert_eq!(found.ok().as_deref(), expected, "{files:?}");
    }
    // A tool beside a site.
    let folder = TestDir::with_files(&[("index.html", ""), ("hello.py", flask)]);
    assert!(resolve_target(&folder, None).unwrap().apps.is_empty());
    let folder = TestDir::with_files(&[("hello.py", flask), ("penstock.toml", "[apps.x]\n")]);
    assert_eq!(
        entry_of(&resolve_target(&folder, None).unwrap()),
        "wsgi hello:app"
    );
}

#[test]
fn refuses_a_folder_without_anything() {
    let folder = TestDir::with_files(&[("public/style.css", "")]);
    let problem = resolve_target(&folder, None)
        .unwrap_err()
        .errors
        .remove(0)
        .problem;
    assert!(problem.to_string().contains("/public"), "{problem}");
    let folder = TestDir::with_files(&[("readme", "")]);
    let problem = resolve_target(&folder, None)
        .unwrap_err()
        .errors
        .remove(0)
        .problem;
    assert!(
        problem.starts_with("nothing to serve was recognised here"),
        "{problem}"
    );
}

#[test]
fn takes_a_target_for_what_it_is() {
    let folder = TestDir::with_files(&[
        ("web.py", "app = 1"),
        (
            "api.py",
            "from fastapi import FastAPI\nserver = FastAPI()\n",
        ),
        ("site/asgi.py", ""),
        ("none.py", "x = 1"),
        ("other/other.ru", ""),
        ("other/shop.rb", ""),
        ("my-app.py", "app = 1"),
        ("src/shop/__init__.py", ""),
        ("sub/penstock.toml", "[apps.x]\n"),
        ("sub/app.py", "app = 1"),
        ("site.toml", "[apps.y]\nentry = \"web:app\"\n"),
    ]);
    let rows = [
        ("web:app", Ok("wsgi web:app")),
        ("web.py", Ok("wsgi web:app")),
        ("api:server", Ok("asgi api:server")),
        ("api:make()", Ok("asgi api:make()")),
        ("site.asgi:application", Ok("asgi site.asgi:application")),
        ("other/other.ru", Ok("rack other.ru")),
        ("other/shop.rb", Ok("rack shop.rb")),
        ("other/shop.rb:Web::Shop", Ok("rack shop.rb:Web::Shop")),
        ("sub", Ok("wsgi app:app")),
        ("site.toml", Ok("wsgi web:app")),
        (
            "gone:app",
            Err("gone:app: entry `gone:app` was not found: looked for gone.py, gone"),
        ),
        (
            "gone.toml",
            Err("gone.toml: cannot be read: entity not found"),
        ),
        ("gone.py", Err("gone.py: cannot be read: entity not found")),
        // Whether there is an application in it is found out when it is loaded.
        ("none.py", Ok("wsgi none")),
        ("none", Ok("wsgi none")),
        ("api", Ok("asgi api")),
        ("site.asgi", Ok("asgi site.asgi")),
        ("shop", Ok("wsgi shop")),
        ("sub/app.py:other", Ok("wsgi app:other")),
        (
            "web:make('x', debug=True)",
            Ok("wsgi web:make('x', debug=True)"),
        ),
        (
            "my-app.py",
            Err(
                "my-app.py: `my-app` is not the name of a Python module, so the file cannot be imported: rename it",
            ),
        ),
        (
            "gone",
            Err(
                "gone: is neither a folder, a FILE.toml, a .ru, .rb or .py file, nor module:callable",
            ),
        ),
        (
            "start",
            Err("start: there is no such verb, file or folder; did you mean `penstock serve`?"),
        ),
    ];
    for (target, expected) in rows {
        let found = resolve_target(&folder, Some(target));
        let found = found
            .map(|config| entry_of(&config))
            .map_err(|r| folder.error_lines(&r).join("\n"));
        assert_eq!(
            found.as_deref().map_err(String::as_str),
            expected,
            "{target}"
        );
    }
}

#[test]
fn prefers_the_file_of_the_folder_and_names_it_from_here() {
    let folder = TestDir::with_files(&[("app.py", "app = 1"), ("penstock.toml", "[apps.named]\n")]);
    assert!(
        resolve_target(&folder, None)
            .unwrap()
            .apps
            .contains_key("named")
    );
    write(&folder.join("penstock.toml"), "[apps.named]\nx = 1\n");
    let report = resolve_target(&folder, None).unwrap_err();
    assert_eq!(
        report.to_string(),
        "penstock.toml:2:1: unknown key `x` in [apps.named]"
    );
}

#[test]
fn applies_what_the_command_line_says() {
    let folder = TestDir::with_files(&[("app.py", "app = 1")]);
    let base = Invocation {
        cwd: folder.path().to_owned(),
        ..Invocation::default()
    };
    let config = resolve_config(&Invocation {
        listen: vec![ListenAddr::loopback(0), ListenAddr::Unix("x.sock".into())],
        admin: Some(AdminOverride::Off),
        processes: Some(3),
        threads: Some(5),
        ..base.clone()
    });
    let config = config.unwrap();
    let unix = ListenAddr::Unix(folder.join("x.sock"));
    assert_eq!(
        config.server.listen,
        [ListenAddr::loopback(0).into(), unix.into()]
    );
    assert_eq!(config.server.admin, None);
    let app = config.apps.values().next().unwrap();
    assert_eq!((app.processes, app.threads), (Processes::exactly(3), 5));
    let report = resolve_config(&Invocation {
        listen: vec![
            ListenAddr::loopback(8090),
            ListenAddr::Unix("x".repeat(200).into()),
        ],
        processes: Some(0),
        ..base
    });
    assert_eq!(report.unwrap_err().errors.len(), 3);
}

#[test]
fn overrides_what_depends_on_what_the_command_line_says() {
    let text = r#"
[server]
listen = [{ address = "127.0.0.1:8080", proxy_protocol = true }]
[apps.a]
kind = "command"
command = "x {fd}"
upstream = { connections = { max = 2 } }
[upstreams.b]
servers = ["127.0.0.1:80"]
[[tcp]]
listen = "127.0.0.1:9000"
upstream = "b"
"#;
    let folder = TestDir::with_files(&[("penstock.toml", text)]);
    let base = Invocation {
        cwd: folder.path().to_owned(),
        ..Invocation::default()
    };
    assert!(resolve_config(&base).unwrap().server.listen[0].proxy_protocol);
    let config = resolve_config(&Invocation {
        listen: vec![ListenAddr::loopback(0)],
        threads: Some(5),
        ..base.clone()
    });
    let config = config.unwrap();
    assert_eq!(config.server.listen, [ListenAddr::loopback(0).into()]);
    let upstream = config.apps["a"].upstream.as_ref().unwrap();
    assert_eq!(upstream.max_active, Some(5));
    assert_eq!(upstream.connections.max, 5);
    let report = resolve_config(&Invocation {
        listen: vec![ListenAddr::loopback(9000)],
        ..base
    });
    assert_eq!(
        report.unwrap_err().to_string(),
        "command line: http://127.0.0.1:9000 is already taken by http://127.0.0.1:9000"
    );
}

#[test]
fn some_defaults_are_others_in_development() {
    let text = "[apps.a]\nstop_timeout = \"3s\"\n[apps.b]\nprocesses = { min = 2 }\n[[sites]]\n[[sites.routes]]\napp = \"a\"\n";
    let folder = TestDir::with_files(&[("app.py", "app = 1"), ("some.toml", text)]);
    let base = Invocation {
        cwd: folder.path().to_owned(),
        development: true,
        ..Invocation::default()
    };
    let dev_log = Some(AccessLog {
        path: LogTarget::Stdout,
        format: LogFormat::Dev,
        ..AccessLog::new(LogTarget::Stdout)
    });
    let seconds = Duration::from_secs;
    let detected = resolve_config(&base).unwrap();
    let app = detected.apps.values().next().unwrap();
    assert_eq!(app.processes, Processes::exactly(1));
    assert_eq!(
        (app.stop_timeout, app.stream_timeout),
        (seconds(2), seconds(2))
    );
    assert_eq!(detected.server.access_log, dev_log);
    assert_eq!(detected.server.shutdown_timeout, seconds(2));
    let of_file = Invocation {
        target: Some("some.toml".to_owned()),
        ..base.clone()
    };
    let read = resolve_config(&of_file).unwrap();
    let (a, b) = (&read.apps["a"], &read.apps["b"]);
    assert_eq!(
        (a.processes, a.stop_timeout),
        (Processes::exactly(1), seconds(3))
    );
    assert!(b.processes.min == 2 && b.processes.max >= 2);
    assert_eq!(read.server.access_log, dev_log);
    let said = resolve_config(&Invocation {
        processes: Some(4),
        ..of_file.clone()
    });
    assert_eq!(said.unwrap().apps["a"].processes, Processes::exactly(4));
    let served = resolve_config(&Invocation {
        development: false,
        ..of_file
    });
    let served = served.unwrap();
    assert_eq!(served.apps["a"].processes, Processes::default());
    assert_eq!(served.server.access_log, None);
    let off = "[server]\naccess_log = \"off\"\nshutdown_timeout = \"9s\"\n[apps.a]\n";
    write(&folder.join("some.toml"), off);
    let read = resolve_config(&Invocation {
        target: Some("some.toml".to_owned()),
        ..base
    });
    let server = read.unwrap().server;
    assert_eq!(
        (server.access_log, server.shutdown_timeout),
        (None, seconds(9))
    );
}

#[test]
fn threads_of_the_command_line_are_not_for_a_reactor() {
    let folder = TestDir::with_files(&[("main.py", "app = FastAPI()")]);
    // A guess may be wrong: they are there for an application that turns out to have threads.
    for (kind, threads) in [(Some(AppKind::Asgi), 1), (None, 5)] {
        let config = resolve_config(&Invocation {
            threads: Some(5),
            kind,
            cwd: folder.path().to_owned(),
            ..Invocation::default()
        });
        let config = config.unwrap();
        let app = config.apps.values().next().unwrap();
        assert_eq!(
            (app.threads, app.concurrency),
            (threads, Concurrency::Tasks)
        );
    }
}

#[test]
fn makes_a_name_of_any_folder() {
    let rows = [
        ("/srv/guestbook", "guestbook"),
        ("/srv/my app!", "my-app"),
        ("/", "app"),
        ("/-", "app"),
    ];
    for (dir, expected) in rows {
        assert_eq!(app_name_of_dir(Path::new(dir)), expected, "{dir}");
    }
}

#[test]
fn the_command_line_adds_what_the_file_lacks_for_https() {
    let upstream = "[upstreams.b]\nservers = [\"127.0.0.1:80\"]\n";
    let routes = "routes = [{ path = \"/*\", upstream = \"b\" }]\n";
    let certificate =
        format!("{upstream}[[sites]]\nhosts = [\"a.test\"]\ntls = \"local\"\n{routes}");
    let listener = format!(
        "[server]\nlisten = [{{ address = \":443\", tls = true }}]\n{upstream}[[sites]]\n{routes}"
    );
    let neither = format!("{upstream}[[sites]]\n{routes}");
    let resolve = |text: &str, https: bool, domain: bool| {
        let folder = TestDir::with_files(&[("penstock.toml", text)]);
        let addresses = https.then(|| ListenAddr::loopback(0));
        let hosts = domain.then(|| HostPattern::parse("localhost").unwrap());
        resolve_config(&Invocation {
            cwd: folder.path().to_owned(),
            listen_https: addresses.into_iter().collect(),
            domains: hosts.into_iter().collect(),
            ..Invocation::default()
        })
        .map(|config| {
            (
                config.server.has_tls_listener(),
                config.sites[0].tls.clone(),
            )
        })
        .map_err(|report| report.to_string())
    };
    let local = Ok((true, SiteTls::Local));
    assert_eq!(resolve(&certificate, true, false), local);
    assert_eq!(resolve(&listener, false, true), local);
    assert_eq!(resolve(&neither, true, true), local);
    let error = resolve(&certificate, false, false).unwrap_err();
    assert!(error.contains("no listener has TLS"), "{error}");
    let error = resolve(&listener, false, false).unwrap_err();
    assert!(error.contains("no site has a certificate"), "{error}");
    let error = resolve(&neither, true, false).unwrap_err();
    assert!(
        error.contains("--listen-https needs a certificate"),
        "{error}"
    );
}
