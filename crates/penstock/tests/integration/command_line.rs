//! The command line as scripts and people use it: texts, exit codes, and output streams.
//!
//! Exit codes: 0 done, 1 failed at run time, 2 wrong usage or configuration. Results go to standard
//! output, errors to standard error.
//!
//! # Invariants
//!
//! - Every error of a configuration is reported in one run, with file, line and column.
//! - The kind of a directory is recognised.
//! - A start is complete or has no effect.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{PATIENCE, RawClient, Server, Site, eventually, texts};

const WSGI: &str = r#"
def app(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"wsgi " + environ["PATH_INFO"].encode("latin-1")]
"#;

const RACK: &str = "run ->(env) { [200, {}, [\"rack #{env['PATH_INFO']}\"]] }\n";

/// Ports that no other program can occupy.
const FREE_PORTS: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\n";

fn app_site() -> Site {
    let toml = format!("{FREE_PORTS}threads = 1\n[apps.app]\nentry = \"app:app\"\nprocesses = 1\n");
    Site::new().file("app.py", WSGI).config(&toml)
}

/// Runs a verb to its end: exit code, standard output, standard error.
fn run(site: &Site, arguments: &[&str]) -> (i32, String, String) {
    let output = site.run(arguments);
    let (stdout, stderr) = texts(&output);
    (output.status.code().unwrap(), stdout, stderr)
}

/// The same for a verb that connects to a server.
fn ask(server: &Server, arguments: &[&str]) -> (i32, String, String) {
    let admin = format!("127.0.0.1:{}", server.admin_port());
    run(server.site(), &[arguments, &["--admin", &admin]].concat())
}

/// [`run`] without the warnings for root and for an old kernel.
fn run_check(site: &Site, arguments: &[&str]) -> (i32, String, String) {
    let (code, stdout, stderr) = run(site, arguments);
    let is_other = |line: &&str| !line.contains("(penstock config explain ");
    let others: Vec<_> = stderr.lines().filter(is_other).collect();
    (code, stdout, others.join("\n"))
}

#[test]
fn check_says_that_a_configuration_is_good() {
    let (code, stdout, stderr) = run_check(&app_site(), &["check"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("penstock.toml: good"), "{stdout}");
    let bare = Site::new().file("config.ru", RACK);
    let (code, stdout, stderr) = run_check(&bare, &["check", "--config-only", "."]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
}

#[test]
fn check_says_how_much_there_is() {
    let upstream = |name: &str| format!("[upstreams.{name}]\nservers = [\"127.0.0.1:3000\"]\n");
    let stream = "[[tcp]]\nlisten = \"127.0.0.1:0\"\nupstream = \"a\"\n";
    let route = "[[sites]]\n[[sites.routes]]\nupstream = \"a\"\n";
    let rows = [
        (upstream("a"), "0 applications, 1 upstream, 1 site"),
        (
            upstream("a") + &upstream("b") + stream + route,
            "0 applications, 2 upstreams, 1 site, 1 stream",
        ),
        (
            "[apps.app]\nentry = \"app:app\"\n".to_owned(),
            "1 application, 1 site",
        ),
    ];
    for (toml, want) in rows {
        let toml = format!("{FREE_PORTS}{toml}");
        let (code, stdout, stderr) = run_check(&app_site().config(&toml), &["check"]);
        assert_eq!((code, stderr.as_str()), (0, ""), "{want}");
        assert!(
            stdout.trim_end().ends_with(&format!("good ({want})")),
            "{stdout}"
        );
    }
}

#[test]
fn check_takes_the_file_by_c_as_every_other_verb_does() {
    let site = app_site();
    let (code, stdout, stderr) = run_check(&site, &["check", "-c", "penstock.toml"]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let (code, _, stderr) = run(&site, &["check", "-c", "penstock.toml", "."]);
    assert_eq!(code, 2, "{stderr}");
}

#[test]
fn check_finds_what_only_the_machine_knows() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let toml = format!(
        "[server]\nlisten = [\"127.0.0.1:{port}\", \"192.0.2.1:8080\", \"unix:/no/such/folder/x\"]\n\
         admin = \"off\"\n[limits]\nconnections = 10000000\n\
         [upstreams.a]\nservers = [\"no-such-host.invalid:80\"]\n"
    );
    let site = Site::new().config(&toml);
    let (code, stdout, stderr) = run(&site, &["check"]);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    let own = format!("(process {}) listens there", std::process::id());
    for words in [
        "warning: limits.connections: 10000000 clients",
        &own,
        "192.0.2.1:8080",
        "this machine has no such address",
        "cannot create a socket in /no/such/folder",
        "upstreams.a.servers: no-such-host.invalid:80: ",
    ] {
        assert!(stderr.contains(words), "{words:?} in\n{stderr}");
    }
    let (code, _, stderr) = run(&site, &["check", "--config-only"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
}

#[test]
fn check_loads_the_code_in_a_process_that_is_gone_afterwards() {
    let site = app_site().file(
        "app.py",
        "import os\nopen('pid.txt', 'w').write(str(os.getpid()))\n1 / 0\n",
    );
    let (code, stdout, stderr) = run(&site, &["check"]);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    for words in [
        "apps.app: the code does not load",
        "Traceback",
        "ZeroDivisionError",
    ] {
        assert!(stderr.contains(words), "{words} in\n{stderr}");
    }
    assert_eq!(stderr.matches("Traceback").count(), 1, "{stderr}");
    let (code, _, stderr) = run(&site, &["check", "--config-only"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    // Code whose import never returns, and threads that stay.
    let hangs = "import os, threading, time\nopen('pid.txt', 'w').write(str(os.getpid()))\n\
                 threading.Thread(target=time.sleep, args=(600,)).start()\ntime.sleep(600)\n";
    site.write("app.py", hangs);
    site.write(
        "penstock.toml",
        format!(
            "{FREE_PORTS}[apps.app]\nkind = \"wsgi\"\nentry = \"app:app\"\nboot_timeout = \"1s\"\n"
        ),
    );
    let (code, _, stderr) = run(&site, &["check"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("was not loaded within boot_timeout (1s)"),
        "{stderr}"
    );
    let pid = site.read("pid.txt").parse().unwrap();
    eventually(PATIENCE, "the process is gone", || {
        !crate::support::is_alive(pid)
    });
}

#[test]
fn check_beside_the_running_server_is_no_error() {
    let server = app_site().serve(&[]);
    let toml = format!(
        "[server]\nlisten = [\"127.0.0.1:{}\"]\nadmin = \"off\"\n[apps.app]\nentry = \"app:app\"\n",
        server.port()
    );
    let site = Site::new().file("app.py", WSGI).config(&toml);
    let (code, stdout, stderr) = run(&site, &["check"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("penstock.toml: good"), "{stdout}");
    assert!(stderr.contains("warning: server.listen: "), "{stderr}");
}

const ROOT: &str = "[[sites]]\n[[sites.routes]]\nfiles = { root = \"public\" }\n";

/// Holds a port under the name of another program, until its standard input ends.
const HOLDER: &str = "import socket, sys\n\
    open('/proc/self/comm', 'w').write(sys.argv[1])\n\
    s = socket.create_server(('127.0.0.1', 0))\n\
    print(s.getsockname()[1], flush=True)\n\
    sys.stdin.read()\n";

#[test]
fn an_address_that_the_service_manager_holds_for_a_unit_is_no_error() {
    for (name, expected, words) in [
        (
            "systemd",
            0,
            "(for a socket unit, which passes it to its service)",
        ),
        ("httpd", 2, "`httpd` (process "),
    ] {
        let mut holder = Command::new("python3")
            .args(["-c", HOLDER, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(holder.stdout.take().unwrap())
            .read_line(&mut port)
            .unwrap();
        let port = port.trim();
        let toml = format!("[server]\nlisten = [\"127.0.0.1:{port}\"]\nadmin = \"off\"\n{ROOT}");
        let site = Site::new().file("public/a.txt", "a").config(&toml);
        let (code, _, stderr) = run(&site, &["check"]);
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_eq!(code, expected, "{name}: {stderr}");
        assert!(stderr.contains(words), "{name}: {stderr}");
    }
}

#[test]
fn every_mistake_is_told_in_one_run_with_its_place() {
    const WRONG: &str = "[server]\nthreads = 0\nlisten = [\"nonsense\"]\n\n[limits]\nheder_timeout = \"10s\"\n\
                         idle_timeout = \"75 parsecs\"\n\n[apps.app]\nentry = \"app:app\"\nthreads = \"two\"\n\n\
                         [[sites]]\n[[sites.routes]]\npath = \"/*\"\napp = \"ap\"\n";
    let places = [
        "penstock.toml:2:11: `threads`",
        "penstock.toml:3:11: `listen`",
        "penstock.toml:6:1: unknown key `heder_timeout` in [limits]; did you mean `header_timeout`?",
        "penstock.toml:7:16: `idle_timeout`",
        "penstock.toml:11:11: `threads`",
        "penstock.toml:16:7: there is no app",
    ];
    let site = app_site().config(WRONG);
    // A start reports the same as a check, and starts nothing.
    for arguments in [
        &["check"][..],
        &["check", "penstock.toml"],
        &["serve"],
        &["serve", "-c", "penstock.toml"],
    ] {
        let (code, stdout, stderr) = run(&site, arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        for place in places {
            assert!(
                stderr.contains(place),
                "{arguments:?}: {place:?} in\n{stderr}"
            );
        }
        assert_eq!(stderr.lines().count(), places.len(), "{stderr}");
    }
}

#[test]
fn words_of_other_servers_are_translated() {
    let toml = "[server]\nlisten = [\"http://127.0.0.1:8000/\"]\nbind = \"x\"\n\
                [apps.app]\nworkers = 3\ntimeout = 30\n\
                [upstreams.a]\nservers = [\"http://app:3000\"]\n\
                [[sites]]\nserver_name = \"a\"\n[[sites.routes]]\nproxy_pass = \"http://a\"\n";
    let (code, _, stderr) = run(&app_site().config(toml), &["check"]);
    assert_eq!(code, 2);
    for meant in [
        "127.0.0.1:8000",
        "listen",
        "processes",
        "response_timeout",
        "app:3000",
        "hosts",
        "upstream",
    ] {
        let words = format!("did you mean `{meant}`?");
        assert!(stderr.contains(&words), "{words} in\n{stderr}");
    }
    for (flag, meant) in [
        ("--http", "--listen"),
        ("--debug", "--dev"),
        ("--log-file", "--log"),
        ("--interface", "--kind"),
    ] {
        let (code, _, stderr) = run(&app_site(), &["serve", flag, "4"]);
        assert_eq!(code, 2, "{flag}");
        let words = format!("is `{meant}` here");
        assert!(stderr.contains(&words), "{words} in\n{stderr}");
        // Names that are merely similar are not suggested.
        assert!(!stderr.contains("similar"), "{stderr}");
    }
    for (arguments, words) in [
        (
            &["serve", "--timeout", "30"][..],
            "`response_timeout` in [apps.NAME]",
        ),
        (
            &["--forwarded-allow-ips=*"],
            "`trusted_proxies` in [server]",
        ),
        (&["serve", "-s", "reload"], "there is `penstock stop` here"),
        (&["serve", "-k", "gevent"], "leave `-k` out: the code shows"),
        (
            &["serve", "--worker-tmp-dir=/dev/shm"],
            "`--worker-tmp-dir` of Gunicorn: not needed: ",
        ),
        (
            &["app:app", "--factory"],
            "leave `--factory` out: a factory is recognised",
        ),
        (&["configtest"], "did you mean `penstock check`?"),
    ] {
        let (code, _, stderr) = run(&app_site(), arguments);
        assert_eq!(code, 2, "{arguments:?}");
        assert!(stderr.contains(words), "{words} in\n{stderr}");
    }
}

#[test]
fn the_usual_options_of_other_servers_work() {
    let env = "import os\ndef app(environ, start):\n    start('200 OK', [])\n    \
               return [repr([os.environ.get(n) for n in ('RACK_ENV', 'A')]).encode()]\n";
    let bare = || Site::new().file("sub/app.py", env);
    let rows: [(&[&str], &str); 3] = [
        // Uvicorn.
        (
            &[
                "app:app",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--workers",
                "1",
            ],
            "[None, None]",
        ),
        // Gunicorn.
        (
            &["-w", "1", "-b", "127.0.0.1:0", "-e", "A=b=c", "app:app"],
            "[None, 'b=c']",
        ),
        // Puma.
        (
            &["-t", "0:2", "-e", "staging", "-b", "tcp://127.0.0.1:0"],
            "['staging', None]",
        ),
    ];
    for (arguments, expected) in rows {
        let arguments = [arguments, &["--chdir", "sub", "-v"]].concat();
        let server = bare().serve(&arguments);
        server.wait_ready("sub");
        assert_eq!(server.get("/").text(), expected, "{arguments:?}");
    }
    let site = Site::new()
        .file("gunicorn.conf.py", "workers = 2\n")
        .file("app.py", WSGI);
    for flag in ["-c", "-C"] {
        let (code, _, stderr) = run(&site, &["serve", flag, "gunicorn.conf.py"]);
        assert_eq!(code, 2, "{stderr}");
        let command = "translate it by: penstock import gunicorn.conf.py -o penstock.toml";
        assert!(stderr.contains(command), "{stderr}");
    }
    let (code, _, stderr) = run(&app_site(), &["serve", "--port", "1", "--listen", ":2"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("'--port <PORT>' cannot be used with '--listen"),
        "{stderr}"
    );
}

#[test]
fn wrong_usage_is_told_with_exit_code_2() {
    let site = app_site();
    let rows: [(&str, &[&str], &str); 12] = [
        ("unknown flag", &["serve", "--prot", "1"], "--prot"),
        ("not a listener", &["serve", "-l", "nonsense"], "nonsense"),
        (
            "not an admin address",
            &["serve", "--admin", "nonsense"],
            "nonsense",
        ),
        (
            "no processes",
            &["serve", "--processes", "0"],
            "--processes",
        ),
        ("not a number", &["serve", "--threads", "two"], "two"),
        (
            "target and file",
            &["serve", ".", "-c", "penstock.toml"],
            "exclude each other",
        ),
        ("no such file", &["serve", "nowhere.toml"], "nowhere.toml"),
        ("no such target", &["serve", "no/where"], "no/where"),
        ("pause of nothing", &["pause"], "<NAME>"),
        (
            "no such key",
            &["config", "explain", "limits.nope"],
            "limits.nope",
        ),
        ("check of nothing", &["check", "nowhere"], "nowhere"),
        (
            "one address twice",
            &["serve", "-l", "127.0.0.1:4999", "-l", "127.0.0.1:4999"],
            "127.0.0.1:4999",
        ),
    ];
    for (name, arguments, word) in rows {
        let (code, stdout, stderr) = run(&site, arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{name}: {stderr}");
        assert!(stderr.contains(word), "{name}: {stderr}");
    }
}

#[test]
fn the_configuration_documents_itself() {
    let site = Site::new();
    let (code, example, _) = run(&site, &["config", "example"]);
    assert!(
        code == 0 && example.contains("[apps.") && example.contains("header_timeout"),
        "{example}"
    );
    assert_eq!(
        example.lines().next(),
        Some("#:schema ./penstock.schema.json")
    );
    let (code, schema, _) = run(&site, &["config", "schema"]);
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert!(code == 0 && schema["properties"]["limits"].is_object());
    for key in [
        "limits.header_timeout",
        "header_timeout",
        "apps.NAME.processes",
    ] {
        let (code, text, stderr) = run(&site, &["config", "explain", key]);
        assert!(
            code == 0 && text.contains("default:"),
            "{key}: {text}{stderr}"
        );
    }
    let short = concat!("penstock ", env!("CARGO_PKG_VERSION"));
    let (code, version, _) = run(&site, &["-V"]);
    assert_eq!((code, version.trim()), (0, short));
    let (code, version, _) = run(&site, &["--version"]);
    let version: Vec<_> = version.lines().collect();
    let starts = [short, "commit: ", "target: ", "features: "];
    assert!(
        code == 0
            && version.len() == 4
            && version.iter().zip(starts).all(|(v, s)| v.starts_with(s)),
        "{version:?}"
    );
    let (code, help, _) = run(&site, &["--help"]);
    assert!(
        code == 0
            && ["serve", "check", "status", "reload", "stop", "restart"]
                .iter()
                .all(|v| help.contains(v))
    );
}

#[test]
fn a_folder_is_served_for_what_it_is() {
    type Files = &'static [(&'static str, &'static str)];
    const APPLICATION: &str = "from app_of import app as application\n";
    const SINATRA: &str = "require \"sinatra\"\nget(\"/\") { \"sinatra #{request.path}\" }\n";
    const CLASSES: &str = "class Web\n  def self.call(_env)\n    [200, {}, [name]]\n  end\nend\n\
                           module Shop\n  Web = Class.new(::Web)\nend\n";
    const FACTORY: &str = "def create_app():\n    from app_of import app\n    return app\n";
    const MANAGE: &str =
        "import os\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'mysite.settings')\n";
    /// The files, the arguments, then the responses to `/` and `/page.txt`.
    type Row = (
        &'static str,
        Files,
        &'static [&'static str],
        &'static str,
        Option<&'static str>,
    );
    let rows: [Row; 17] = [
        ("rackup file", &[("config.ru", RACK)], &[], "rack /", None),
        ("app.py", &[("app.py", WSGI)], &[], "wsgi /", None),
        (
            "application",
            &[("app_of.py", WSGI), ("wsgi.py", APPLICATION)],
            &[],
            "wsgi /",
            None,
        ),
        (
            "factory",
            &[("app_of.py", WSGI), ("main.py", FACTORY)],
            &[],
            "wsgi /",
            None,
        ),
        ("package", &[("app/__init__.py", WSGI)], &[], "wsgi /", None),
        (
            "manage.py",
            &[
                ("manage.py", MANAGE),
                ("app_of.py", WSGI),
                ("mysite/wsgi.py", APPLICATION),
                ("mysite/settings.py", ""),
            ],
            &[],
            "wsgi /",
            None,
        ),
        (
            "rack before python",
            &[("config.ru", RACK), ("app.py", WSGI)],
            &[],
            "rack /",
            None,
        ),
        (
            "public before the application",
            &[("app.py", WSGI), ("public/page.txt", "a page")],
            &[],
            "wsgi /",
            Some("a page"),
        ),
        (
            "public alone",
            &[
                ("public/index.html", "index"),
                ("public/page.txt", "a page"),
            ],
            &[],
            "index",
            Some("a page"),
        ),
        (
            "files alone",
            &[("index.html", "index"), ("page.txt", "a page")],
            &[],
            "index",
            Some("a page"),
        ),
        (
            "a folder below",
            &[("below/app.py", WSGI)],
            &["below"],
            "wsgi /",
            None,
        ),
        (
            "module:callable",
            &[("other.py", WSGI)],
            &["other:app"],
            "wsgi /",
            None,
        ),
        (
            "module:factory()",
            &[("app_of.py", WSGI), ("made.py", FACTORY)],
            &["made:create_app()"],
            "wsgi /",
            None,
        ),
        (
            "a python file",
            &[("below/other.py", WSGI)],
            &["below/other.py"],
            "wsgi /",
            None,
        ),
        (
            "a rackup file of another name",
            &[("below/other.ru", RACK)],
            &["below/other.ru"],
            "rack /",
            None,
        ),
        (
            "classic Sinatra without a rackup file",
            &[("hello.rb", SINATRA), ("public/page.txt", "a page")],
            &[],
            "sinatra /",
            Some("a page"),
        ),
        (
            "a class of a ruby file",
            &[("below/shop.rb", CLASSES)],
            &["below/shop.rb:Shop::Web"],
            "Shop::Web",
            None,
        ),
    ];
    std::thread::scope(|scope| {
        for rows in rows.chunks(5) {
            scope.spawn(move || {
                for (name, files, arguments, index, page) in rows {
                    let site = files
                        .iter()
                        .fold(Site::new(), |site, (path, text)| site.file(path, text));
                    let server = site.serve(&[arguments, &["--processes", "1"][..]].concat());
                    let answer = server.get("/");
                    assert_eq!(
                        (answer.status, answer.text().as_str()),
                        (200, *index),
                        "{name}\n{}",
                        server.log()
                    );
                    if let Some(page) = page {
                        assert_eq!(server.get("/page.txt").text(), *page, "{name}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_folder_that_is_nothing_is_refused_with_what_was_looked_for() {
    let rows: [(&str, Site, &[&str]); 2] = [
        (
            "empty",
            Site::new(),
            &[
                "penstock.toml",
                "config.ru",
                "manage.py",
                "public/",
                "index.html",
            ],
        ),
        (
            "no callable",
            Site::new().file("app.py", "x = 1\n"),
            &["nothing to serve"],
        ),
    ];
    for (name, site, words) in rows {
        let (code, stdout, stderr) = run(&site, &["serve"]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{name}");
        for word in words {
            assert!(stderr.contains(word), "{name}: {word:?} in {stderr}");
        }
    }
}

#[test]
fn it_says_where_it_listens_and_what_it_runs() {
    let site = app_site();
    let server = site.serve(&["--processes", "2", "--threads", "3"]);
    server.wait_ready("app");
    let lines = server.announced();
    assert_eq!(
        lines[0],
        format!("listening http://127.0.0.1:{}", server.port())
    );
    assert_eq!(
        lines[1],
        format!("status http://127.0.0.1:{}/", server.admin_port())
    );
    assert!(lines[2].starts_with("control unix:/"), "{}", lines[2]);
    let (front, end) = (
        "app app: wsgi, 2 processes x 3 threads, ready in ",
        " s (CPython 3.",
    );
    assert!(
        lines[3].starts_with(front) && lines[3].contains(end),
        "{}",
        lines[3]
    );
    assert!(
        lines[3].ends_with(", wsgi 1.0)") && lines.len() == 4,
        "{lines:?}"
    );
    assert_eq!(server.workers("app").len(), 2);
}

#[test]
fn of_processes_that_come_with_the_load_it_says_how_many_there_are() {
    for (processes, stdout) in [
        ("{ min = 1, max = 4 }", "1 of 4 processes"),
        ("{ min = 2, max = 3 }", "2 of 3 processes"),
        ("1", "1 process"),
    ] {
        let toml = format!("[apps.app]\nentry = \"app:app\"\nprocesses = {processes}\n");
        let server = app_site().config(&toml).serve(&[]);
        server.wait_ready("app");
        let line = format!("app app: wsgi, {stdout}, ready in ");
        server.wait_log(&line);
    }
}

#[test]
fn it_says_what_it_stands_in_front_of() {
    let toml = "[upstreams.app]\nservers = [\"127.0.0.1:3000\", \"127.0.0.1:3001\"]\n\
                [upstreams.php]\nprotocol = \"fastcgi\"\nservers = [\"unix:php.sock\"]\n\
                [[sites]]\n[[sites.routes]]\nupstream = \"app\"\n";
    let server = Site::new().config(toml).serve(&[]);
    server.wait_log("upstream php: fastcgi, 1 server\n");
    let lines = server.announced();
    assert_eq!(
        lines[3..],
        [
            "upstream app: http, 2 servers",
            "upstream php: fastcgi, 1 server"
        ]
    );
}

#[test]
fn status_is_for_people_and_for_scripts() {
    let site = app_site();
    let server = site.serve(&[]);
    server.wait_ready("app");
    server.get("/");
    let (code, text, _) = ask(&server, &["status"]);
    assert_eq!(code, 0);
    for word in [
        "running, pid ",
        "app app: wsgi, ready, 1 of 1 processes ready, 0 of 1 slots busy, 0 queued",
        "  worker ",
    ] {
        assert!(text.contains(word), "{word:?} in\n{text}");
    }
    let (code, text, _) = ask(&server, &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(code, 0);
    assert_eq!(status["pid"].as_i64(), Some(i64::from(server.pid())));
    assert_eq!(status["apps"][0]["name"], "app");
    assert_eq!(status["traffic"]["requests_total"], 1);
}

#[test]
fn where_no_server_is_the_verbs_fail_and_name_the_address() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let site = Site::new();
    let address = format!("127.0.0.1:{port}");
    for verb in [&["status"][..], &["reload"], &["stop"], &["restart", "app"]] {
        for admin in [address.as_str(), "unix:nothing.sock"] {
            let (code, stdout, stderr) = run(&site, &[verb, &["--admin", admin]].concat());
            assert_eq!((code, stdout.as_str()), (1, ""), "{verb:?}");
            assert!(
                stderr.contains(admin.trim_start_matches("unix:")),
                "{verb:?}: {stderr}"
            );
        }
    }
}

#[test]
fn stop_waits_until_the_server_is_gone() {
    let site = app_site();
    let server = site.serve(&[]);
    server.wait_ready("app");
    let (code, stdout, stderr) = ask(&server, &["stop"]);
    assert_eq!((code, stdout.trim()), (0, "stopped"), "{stderr}");
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn an_interrupt_ends_it_with_exit_code_0() {
    let server = app_site().serve(&[]);
    server.wait_ready("app");
    server.signal(Signal::INT);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let site = app_site();
    let rows: [(&str, [&str; 5], &str); 2] = [
        (
            "listener",
            ["serve", "-l", &address, "--admin", "127.0.0.1:0"],
            "listens there",
        ),
        (
            "admin",
            ["serve", "-l", "127.0.0.1:0", "--admin", &address],
            "the admin interface (server.admin or --admin): ",
        ),
    ];
    for (name, arguments, word) in rows {
        let (code, stdout, stderr) = run(&site, &arguments);
        assert_eq!((code, stdout.as_str()), (1, ""), "{name}: {stderr}");
        assert!(
            stderr.contains(&address) && stderr.contains(word),
            "{name}: {stderr}"
        );
    }
    // Another Penstock server counts as another program, although both could share the port.
    let first = site.serve(&[]);
    let address = format!("127.0.0.1:{}", first.port());
    let (code, _, stderr) = run(&site, &["serve", "-l", &address, "--admin", "off"]);
    assert!(code == 1 && stderr.contains(&address), "{stderr}");
}

#[test]
fn a_unix_socket_in_use_is_an_error_and_a_dead_one_is_not() {
    let site = app_site();
    let listen = format!("unix:{}", site.dir().join("front.sock").display());
    let server = site.serve(&["-l", &listen]);
    let (code, _, stderr) = run(&site, &["serve", "-l", &listen, "--admin", "off"]);
    assert!(code == 1 && stderr.contains("front.sock"), "{stderr}");
    let answer = |path: &Path| {
        let mut client = RawClient::connect_unix(path);
        client
            .send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .response()
            .status
    };
    assert_eq!(
        answer(&site.dir().join("front.sock")),
        200,
        "the first one is undisturbed"
    );
    server.signal(Signal::KILL);
    server.wait_exit(PATIENCE);
    let next = site.serve(&["-l", &listen]);
    assert_eq!(answer(&site.dir().join("front.sock")), 200);
    drop(next);
    assert!(
        !site.dir().join("front.sock").exists(),
        "removed at a clean end"
    );
}

#[test]
fn the_admin_interface_may_be_a_unix_socket() {
    let site = app_site();
    let server = site.serve(&["--admin", "unix:admin.sock"]);
    server.wait_ready("app");
    assert!(server.log().contains("admin.sock"), "{}", server.log());
    let on = ["--admin", "unix:admin.sock"];
    let verb = |verb: &[&str]| run(&site, &[verb, &on].concat());
    let (code, text, stderr) = verb(&["status"]);
    assert!(
        code == 0 && text.contains("app app: wsgi, ready"),
        "{text}{stderr}"
    );
    assert_eq!(verb(&["restart", "app"]).0, 0);
    assert_eq!(verb(&["reload"]).0, 0);
    assert_eq!(verb(&["stop"]).0, 0);
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn the_verbs_find_the_admin_address_in_the_configuration() {
    let toml = "[server]\nthreads = 1\nadmin = \"unix:own.sock\"\n[apps.app]\nentry = \"app:app\"\nprocesses = 1\n";
    let site = app_site().config(toml);
    let server = site.serve(&[]);
    server.wait_ready("app");
    for arguments in [
        &["status"][..],
        &["status", "-c", "penstock.toml"],
        &["reload"],
        &["stop"],
    ] {
        let (code, _, stderr) = run(&site, arguments);
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
    }
    assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
}

#[test]
fn without_an_admin_interface_it_serves_all_the_same() {
    let server = app_site().serve(&["--admin", "off"]);
    server.wait_ready("app");
    assert_eq!(server.get("/").status, 200);
    assert!(!server.log().contains("status http"));
}

#[test]
fn readiness_is_written_to_the_descriptor_once_all_is_ready() {
    // Standard output is a valid descriptor too.
    let server = app_site().serve(&["--ready-fd", "1"]);
    eventually(PATIENCE, "the line", || {
        server.announced().iter().any(|line| line == "ready")
    });
    assert_eq!(server.get("/").status, 200);
    let lines = server.announced();
    assert!(
        lines[3].contains("ready in"),
        "not before the application: {lines:?}"
    );
    let broken = app_site()
        .file("app.py", "1 / 0\n")
        .serve(&["--ready-fd", "1"]);
    broken.wait_log("does not start");
    assert_eq!(broken.get("/").status, 503);
    let is_written = || broken.announced().iter().any(|line| line == "ready");
    assert!(!is_written(), "{:?}", broken.announced());
    broken.site().write("app.py", WSGI);
    eventually(PATIENCE, "the line, once it is repaired", is_written);
    let closed = app_site().serve(&["--ready-fd", "99"]);
    closed.wait_log("--ready-fd 99: cannot write");
}
