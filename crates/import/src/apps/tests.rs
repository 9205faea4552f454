//! Files of application servers, setting by setting.

use std::path::Path;

use crate::testing::{MemoryFiles, assert_has, import_text, problems};
use crate::{Coverage, ServerKind, Translation, import};

fn made(kind: ServerKind, text: &str) -> Translation {
    let made = import_text(kind, "settings", text);
    // The folder of the application does not exist here; an error of the text has a key.
    let problems = problems(&made.toml);
    let wrong: Vec<&String> = problems
        .iter()
        .filter(|it| {
            !it.contains("/nonexistent") || it.contains("unknown") || it.contains("expected")
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{}", made.toml);
    made
}

#[test]
fn translates_gunicorn_and_uvicorn() {
    let rows = [
        ("bind = '0.0.0.0:8000'", "listen = [\":8000\"]"),
        (
            "bind = ['unix:/run/a.sock', '127.0.0.1:80']",
            "listen = [\"unix:/run/a.sock\", \"127.0.0.1:80\"]",
        ),
        ("workers = 4", "processes = 4"),
        (
            "workers = int(os.environ.get('WEB_CONCURRENCY', 2))",
            "processes = \"${WEB_CONCURRENCY:-2}\"",
        ),
        ("n = 3\nworkers = n", "processes = 3"),
        (
            "wsgi_app = 'shop.wsgi:application'",
            "entry = \"shop.wsgi:application\"",
        ),
        (
            "worker_class = 'uvicorn.workers.UvicornWorker'",
            "kind = \"asgi\"",
        ),
        ("timeout: int = 120", "response_timeout = \"120s\""),
        (
            "raw_env = [\n    'A=b',\n    'C=d',\n]",
            "env = { A = \"b\", C = \"d\" }",
        ),
        ("umask = 0o007", "umask = \"0007\""),
        ("accesslog = '-'", "access_log = \"stdout\""),
        ("limit_request_line = 4094", "target_bytes = \"4094B\""),
        ("preload_app = True", "preload = true"),
        (
            "forwarded_allow_ips = '10.0.0.1,10.0.0.2'",
            "trusted_proxies = [\"10.0.0.1\", \"10.0.0.2\"]",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&made(ServerKind::Gunicorn, text), expected);
    }
    let call = "import uvicorn\nif __name__ == '__main__':\n    uvicorn.run(\n        'main:app',\n        host='0.0.0.0',\n        port=9000,\n        workers=2,\n        frob=1,\n    )\n";
    let translated = made(ServerKind::Uvicorn, call);
    assert_has(&translated, "listen = [\":9000\"]");
    assert_has(
        &translated,
        "entry = \"main:app\"\nprocesses = 2\nkind = \"asgi\"",
    );
}

#[test]
fn code_of_python_is_reported_and_not_run() {
    let text = "import multiprocessing\nworkers = multiprocessing.cpu_count() * 2 + 1\n\ndef post_fork(server, worker):\n    pass\n\nif True:\n    threads = 2\nname = 'x'\n";
    let translated = made(ServerKind::Gunicorn, text);
    let report = translated.report.to_text();
    let lines: Vec<usize> = translated
        .report
        .directives
        .iter()
        .map(|it| it.line)
        .collect();
    assert_eq!(lines, [1, 2, 4, 7, 9], "{report}");
    assert_has(
        &translated,
        "# settings:2 `workers = multiprocessing.cpu_count() * 2 + 1`: by hand: code is not run",
    );
    assert!(
        report.contains("`def post_fork(server, worker):`: translated: `apps.NAME.hooks`"),
        "{report}"
    );
    assert!(
        report.contains("settings:7 `if True:`: by hand: "),
        "{report}"
    );
    assert_has(&translated, "hooks = \"settings\"");
    let without = made(
        ServerKind::Gunicorn,
        "def pre_request(worker, req):\n    pass\n",
    );
    let report = without.report.to_text();
    assert!(
        report.contains("`def pre_request(worker, req):`: not offered: "),
        "{report}"
    );
    assert!(!without.toml.contains("hooks = "), "{}", without.toml);
}

#[test]
fn translates_puma_and_unicorn() {
    let rows = [
        (
            "port ENV.fetch('PORT') { 3000 }",
            "listen = [\":${PORT:-3000}\"]",
        ),
        (
            "bind 'unix:///run/a.sock'",
            "listen = [\"unix:/run/a.sock\"]",
        ),
        (
            "bind \"tcp://0.0.0.0:#{ENV.fetch('PORT', 9292)}\"",
            "listen = [\":${PORT:-9292}\"]",
        ),
        (
            "workers ENV.fetch(\"WEB_CONCURRENCY\") { 2 }",
            "processes = \"${WEB_CONCURRENCY:-2}\"",
        ),
        (
            "max = ENV.fetch(\"RAILS_MAX_THREADS\") { 5 }\nthreads max, max",
            "threads = \"${RAILS_MAX_THREADS:-5}\"",
        ),
        (
            "a = ENV.fetch(\"A\") { 5 }\nb = ENV.fetch(\"B\") { a }\nthreads b, b",
            "threads = \"${B:-5}\"",
        ),
        ("threads 1, 6", "threads = { min = 1, max = 6 }"),
        ("preload_app!", "preload = true"),
        (
            "environment ENV['RACK_ENV'] || 'development'",
            "RACK_ENV = \"${RACK_ENV:-development}\"",
        ),
        (
            "bind 'tcp://0.0.0.0:1'\nif x\n workers 2\nend",
            "# settings:3 `workers 2`: by hand: it stands in a condition",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&made(ServerKind::Puma, text), expected);
    }
    let unicorn = made(
        ServerKind::Unicorn,
        "worker_processes 3\nlisten 8080\ntimeout 30\nbefore_fork do |server, worker|\n  a.b\nend\npid '/run/u.pid'\n",
    );
    assert_has(&unicorn, "processes = 3");
    assert_has(&unicorn, "hooks = \"settings\"");
    let puma = made(
        ServerKind::Puma,
        "on_worker_boot { a.b }\nbefore_fork do\n  c\nend\n",
    );
    assert_has(&puma, "hooks = \"settings\"");
    let (translated, all) = (
        puma.report.count(Coverage::Translated),
        puma.report.directives.len(),
    );
    assert_eq!((translated, all), (2, 2), "{}", puma.report.to_text());
    assert_has(&unicorn, "listen = [\":8080\"]");
    let lines: Vec<usize> = unicorn.report.directives.iter().map(|it| it.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 7]);
}

#[test]
fn conditions_of_ruby_are_left_to_a_person() {
    let translated = made(
        ServerKind::Puma,
        "if ENV['X']\n  workers 2\nelse\n  workers 1\nend\nplugin :tmp_restart if true\n",
    );
    assert_eq!(translated.report.directives.len(), 4);
    assert_eq!(translated.report.count(Coverage::ByHand), 3);
}

#[test]
fn translates_uwsgi_passenger_and_procfiles() {
    let ini = made(
        ServerKind::Uwsgi,
        "[uwsgi]\nmodule = shop.wsgi\ncallable = app\nprocesses = 4\nthreads=2\nharakiri = 30\nhttp = :8000\nmax_requests = 500\nvacuum = true\nfrob = 1\n",
    );
    assert_has(
        &ini,
        "entry = \"shop.wsgi:app\"\nprocesses = 4\nthreads = 2\nresponse_timeout = \"30s\"\nmax_requests = 500",
    );
    assert_has(&ini, "listen = [\":8000\"]");
    let passenger = made(
        ServerKind::Passenger,
        "{\n  \"port\": 4000,\n  \"max_pool_size\": 6,\n  \"envvars\": { \"A\": \"b\" },\n  \"turbocaching\": false\n}",
    );
    assert_has(&passenger, "processes = { max = 6 }");
    assert_has(&passenger, "listen = [\":4000\"]");
    let procfile = import_text(
        ServerKind::Procfile,
        "Procfile",
        "web: gunicorn shop.wsgi:app -w 3\nworker: celery -A shop worker\n",
    );
    assert_has(&procfile, "entry = \"shop.wsgi:app\"\nprocesses = 3");
    assert_has(
        &procfile,
        "[jobs.worker]\ncommand = \"celery -A shop worker\"\napp = \"web\"",
    );
    let jobs = "web: x $PORT\nrelease: python manage.py migrate\nq: rq -u ${URL:-a} main\n";
    let procfile = import_text(ServerKind::Procfile, "Procfile", jobs);
    assert_has(
        &procfile,
        "[jobs.q]\ncommand = [\"sh\", \"-c\", \"exec rq -u $${URL:-a} main\"]\napp = \"web\"",
    );
    assert_has(&procfile, "release_command = \"python manage.py migrate\"");
    let alone = import_text(ServerKind::Procfile, "Procfile", "release: ./migrate\n");
    assert_has(&alone, "# Procfile:1 `release: ./migrate`: by hand: ");
    let node = import_text(
        ServerKind::Procfile,
        "Procfile",
        "web: node server.js --port $PORT\n",
    );
    assert_has(&node, "command = \"node server.js --port {port}\"");
}

#[test]
fn passenger_names_what_it_starts() {
    let rows = [
        (
            "{\"app_type\": \"node\", \"startup_file\": \"server.js\"}",
            "kind = \"command\"\ncommand = [\"node\", \"server.js\"]",
        ),
        (
            "{\"app_type\": \"wsgi\"}",
            "kind = \"wsgi\"\nentry = \"passenger_wsgi:application\"",
        ),
        (
            "{\"app_type\": \"wsgi\", \"startup_file\": \"shop/main.py\"}",
            "entry = \"shop.main:application\"",
        ),
        ("{\"app_type\": \"rack\"}", "kind = \"rack\""),
        ("{\"max_request_queue_size\": 70}", "queue = { max = 70 }"),
        (
            "{\"static_files_dir\": \"assets\"}",
            "files = { root = \"assets\" }\napp = \"app\"",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&made(ServerKind::Passenger, text), expected);
    }
}

#[test]
fn a_configuration_elsewhere_names_the_folder_of_the_application() {
    let dir = Path::new("/srv/shop");
    let rows = [
        (ServerKind::Passenger, "{\"port\": 1}", "/srv/shop"),
        (ServerKind::Gunicorn, "workers = 1\n", "/srv/shop"),
        (ServerKind::Gunicorn, "chdir = '/srv/x'\n", "/srv/x"),
        (ServerKind::Procfile, "web: node a.js $PORT\n", "/srv/shop"),
    ];
    for (kind, text, expected) in rows {
        let files = MemoryFiles::default();
        let made = crate::import_from_dir(Path::new("f"), text, Some(kind), &files, Some(dir));
        assert_has(&made.unwrap(), &format!("dir = \"{expected}\""));
    }
}

#[test]
fn errors_have_a_place() {
    let rows = [
        (
            ServerKind::Gunicorn,
            "a = 1\nb = 'x\n",
            "f:2:1: a quote that is not closed",
        ),
        (
            ServerKind::Gunicorn,
            "a = [1,\n",
            "f:1:1: a bracket that is not closed",
        ),
        (
            ServerKind::Uwsgi,
            "<uwsgi/>",
            "f: only the ini form of uWSGI is read: write `key = value` lines below [uwsgi]",
        ),
        (
            ServerKind::Passenger,
            "{\n \"a\": }",
            "f:2:7: no JSON: a comma, quote or brace is wrong",
        ),
        (
            ServerKind::Procfile,
            "web gunicorn",
            "f:1:1: expected `TYPE: COMMAND`",
        ),
    ];
    for (kind, text, expected) in rows {
        let error = import(Path::new("f"), text, Some(kind), &MemoryFiles::default()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn hostile_files_end() {
    let kinds = [
        ServerKind::Gunicorn,
        ServerKind::Uvicorn,
        ServerKind::Puma,
        ServerKind::Unicorn,
        ServerKind::Uwsgi,
        ServerKind::Passenger,
        ServerKind::Procfile,
    ];
    let texts = [
        format!("a = {}1{}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("uvicorn.run({}", "a=[".repeat(10_000)),
        "if x\n".repeat(20_000),
        "workers 1\n".repeat(20_000),
        "a = \"#{".repeat(5_000),
        "a,".repeat(50_000),
        "\"\"\"".to_owned(),
        "é'\u{1}\n\\\n}{".repeat(100),
    ];
    for kind in kinds {
        for text in &texts {
            let _ = import(Path::new("f"), text, Some(kind), &MemoryFiles::default());
        }
    }
    let text = "import os\nworkers: int = int(os.environ.get('A', '2')) # x\nbind = [\"unix:/a\", r'b']\nuvicorn.run('a:b', port=1, x={'a': (1, 2)})\nthreads ENV.fetch(\"X\") { 5 }, 6\nbind \"tcp://#{ENV['A'] || \"b\"}:1\"\n";
    for kind in kinds {
        for end in 0..text.len() {
            let _ = import(
                Path::new("f"),
                &text[..end],
                Some(kind),
                &MemoryFiles::default(),
            );
        }
    }
}

#[test]
fn heartbeats_of_puma_bound_no_request() {
    let translated = made(ServerKind::Puma, "worker_timeout 15\n");
    assert!(
        !translated.toml.contains("response_timeout"),
        "{}",
        translated.toml
    );
    assert_eq!(translated.report.count(Coverage::NotNeeded), 1);
}

#[test]
fn comments_of_passenger_are_skipped() {
    let text = "{\n  // one \"port\": 1\n  \"envvars\": { \"A\": \"http://a/*b*/ \\\" // c\" }, /* two\n */ \"port\": 5000\n}";
    let translated = made(ServerKind::Passenger, text);
    assert_has(&translated, "A = 'http://a/*b*/ \" // c'");
    assert_has(&translated, "listen = [\":5000\"]");
    let error = import(
        Path::new("f"),
        "{\n /* a\n b */ \"a\": }",
        Some(ServerKind::Passenger),
        &MemoryFiles::default(),
    );
    let expected = "f:3:12: no JSON: a comma, quote or brace is wrong";
    assert_eq!(error.unwrap_err().to_string(), expected);
}

#[test]
fn values_of_python_keep_their_variables() {
    let rows = [
        (
            "import os\nbind = f\"0.0.0.0:{os.getenv('PORT', '5000')}\"",
            "listen = [\":${PORT:-5000}\"]",
        ),
        (
            "t = os.getenv('TIMEOUT', '120')\ntimeout = int(t)",
            "response_timeout = \"${TIMEOUT:-120}s\"",
        ),
        (
            "keepalive = int(os.getenv('KEEP', '5'))",
            "idle_timeout = \"${KEEP:-5}s\"",
        ),
        ("bind = f'{a}:{{b}}'", "by hand: code is not run; "),
        (
            "def on_exit(server):\n    pass",
            "# settings:1 `def on_exit(server):`: not offered: ",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&made(ServerKind::Gunicorn, text), expected);
    }
    let translated = made(
        ServerKind::Gunicorn,
        "certfile = None\ndaemon = False\npreload_app = None\n",
    );
    assert_eq!(translated.report.count(Coverage::NotNeeded), 3);
    assert!(!translated.toml.contains("preload"));
}

#[test]
fn what_is_not_run_is_said() {
    let uwsgi = made(ServerKind::Uwsgi, "[uwsgi]\nwsgi-file = /app/a.wsgi\n");
    assert!(!uwsgi.toml.contains("\nentry"), "{}", uwsgi.toml);
    assert_has(
        &uwsgi,
        "`wsgi-file = /app/a.wsgi`: by hand: `entry` names a module",
    );
    let file = "web: bin/pool bundle exec puma -C config/puma.rb\n";
    let wrapped = import_text(ServerKind::Procfile, "Procfile", file);
    assert_has(&wrapped, "by hand: `bin/pool` is not run");
    for line in [
        "web: bundle exec puma\n",
        "web: poetry run gunicorn a:b\n",
        "web: x --port $PORT\n",
    ] {
        let made = import_text(ServerKind::Procfile, "Procfile", line);
        assert_eq!(made.report.count(Coverage::ByHand), 0, "{line}");
    }
}
