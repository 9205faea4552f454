//! Hooks of applications: functions of a file, called around boot and forks of real workers.
//!
//! # Invariants
//!
//! - Each event calls its functions once, in the process and order that docs/processes.md names.
//! - A hook that raises before a worker is ready fails the boot with its traceback; a restart then
//!   leaves the old workers serving.

use crate::support::{PATIENCE, Server, Site, eventually, texts};

const PORTS: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\nadmin = \"127.0.0.1:0\"\n";

const WSGI: &str = "def app(environ, start):\n    start('200 OK', [])\n    return [b'served']\n";

const RACK: &str = "run ->(_env) { [200, {}, [\"served\"]] }\n";

/// Functions that write their name and the number of their worker to a file.
const PYTHON_HOOKS: &str = r#"
import os
def note(name, worker=None):
    with open("seen", "a") as file:
        file.write(f"{name} {worker.age if worker else '-'} {os.getpid()}\n")
def on_boot(): note("on_boot")
def pre_fork(server, worker): note("pre_fork", worker)
def post_fork(server, worker):
    server.log.info("forked worker %s by %s", worker.age, server.pid)
    note("post_fork", worker)
def worker_exit(server, worker): note("worker_exit", worker)
"#;

fn restart(server: &Server) -> (Option<i32>, String) {
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let output = server.site().run(&["restart", "site", "--admin", &admin]);
    (output.status.code(), texts(&output).1)
}

/// The lines of `seen`: name, number of the worker, process.
fn seen(site: &Site) -> Vec<(String, String, i32)> {
    let text = site.read("seen");
    let lines = text.lines().map(|line| {
        let parts: Vec<&str> = line.split(' ').collect();
        let [name, worker, pid] = parts[..] else {
            panic!("{line:?} in {text}");
        };
        (name.to_owned(), worker.to_owned(), pid.parse().unwrap())
    });
    lines.collect()
}

fn names(site: &Site) -> Vec<String> {
    seen(site).into_iter().map(|(name, ..)| name).collect()
}

#[test]
fn hooks_run_once_around_boot_forks_and_ends() {
    let toml = format!("{PORTS}[apps.site]\nentry = \"app:app\"\nkind = \"wsgi\"\nprocesses = 2\n");
    let site = Site::new()
        .config(&toml)
        .file("app.py", WSGI)
        .file("penstock_hooks.py", PYTHON_HOOKS);
    let server = site.serve(&[]);
    server.wait_ready("site");
    let announced = server.announced();
    let note = "hooks of site: penstock_hooks.py".to_owned();
    assert!(announced.contains(&note), "{announced:?}");
    eventually(PATIENCE, "two workers", || {
        server.workers("site").len() == 2
    });
    let lines = seen(&site);
    let of = |wanted: &str| -> Vec<_> { lines.iter().filter(|it| it.0 == wanted).collect() };
    let (boot, before, after) = (of("on_boot"), of("pre_fork"), of("post_fork"));
    assert_eq!(
        (boot.len(), before.len(), after.len()),
        (1, 2, 2),
        "{lines:?}"
    );
    assert_eq!(lines[0].0, "on_boot");
    // Before a fork it is the template, after it the worker, which has the same number.
    assert!(before.iter().all(|line| line.2 == boot[0].2), "{lines:?}");
    let mut pids: Vec<i32> = after.iter().map(|line| line.2).collect();
    let mut workers = server.workers("site");
    pids.sort_unstable();
    workers.sort_unstable();
    assert_eq!(pids, workers);
    let numbers = |lines: &[&(String, String, i32)]| -> Vec<String> {
        let mut numbers: Vec<_> = lines.iter().map(|line| line.1.clone()).collect();
        numbers.sort();
        numbers
    };
    assert_eq!(numbers(&before), numbers(&after));
    server.wait_log(&format!("forked worker {} by {}", after[0].1, server.pid()));

    // A restart loads the code and the hooks anew, and ends the old workers.
    let (code, error) = restart(&server);
    assert_eq!(code, Some(0), "{error}");
    eventually(PATIENCE, "the old workers' hooks", || {
        names(&site)
            .iter()
            .filter(|name| *name == "worker_exit")
            .count()
            == 2
    });
    let lines = seen(&site);
    let ended: Vec<i32> = lines
        .iter()
        .filter(|line| line.0 == "worker_exit")
        .map(|line| line.2)
        .collect();
    assert!(ended.iter().all(|pid| workers.contains(pid)), "{lines:?}");
    let boots = names(&site)
        .iter()
        .filter(|name| *name == "on_boot")
        .count();
    assert_eq!(boots, 2, "{lines:?}");
}

#[test]
fn a_hook_that_fails_leaves_the_old_workers_serving() {
    let toml = format!("{PORTS}[apps.site]\nentry = \"app:app\"\nprocesses = 1\n");
    let site = Site::new()
        .config(&toml)
        .file("app.py", WSGI)
        .file("penstock_hooks.py", "def after_fork(worker): pass\n");
    let server = site.serve(&[]);
    server.wait_ready("site");
    let before = server.workers("site");
    for name in ["on_boot", "before_fork", "after_fork"] {
        let hooks = format!("def {name}(*_): raise ValueError('no database for {name}')\n");
        site.write("penstock_hooks.py", hooks);
        let (code, error) = restart(&server);
        assert_eq!(code, Some(1), "{name}: {error}");
        for part in [
            "Traceback (most recent call last)",
            "penstock_hooks.py\", line 1",
        ] {
            assert!(error.contains(part), "{name}: {part} in\n{error}");
        }
        let cause = format!("ValueError: no database for {name}");
        assert!(error.contains(&cause), "{name}: {error}");
        assert_eq!(server.get("/").text(), "served", "{name}");
        assert!(server.workers("site").contains(&before[0]), "{name}");
    }
    site.write(
        "penstock_hooks.py",
        "def after_fork(worker): print('after', worker.age)\n",
    );
    let (code, error) = restart(&server);
    assert_eq!(code, Some(0), "{error}");
    eventually(PATIENCE, "a worker of the new code", || {
        let workers = server.workers("site");
        workers.len() == 1 && workers != before
    });
}

#[test]
fn check_runs_the_hooks_of_a_boot_and_reports_their_failure() {
    let toml = format!("{PORTS}[apps.site]\nentry = \"app:app\"\n");
    let site = Site::new().config(&toml).file("app.py", WSGI).file(
        "penstock_hooks.py",
        "def on_boot(): raise ValueError('no database')\n",
    );
    let output = site.run(&["check"]);
    let (stdout, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{stdout}{stderr}");
    assert!(stderr.contains("ValueError: no database"), "{stderr}");
}

#[test]
fn pumas_file_has_the_hooks_of_a_rack_application() {
    let puma = "workers 2\nthreads 1, 5\npreload_app!\n\
                def note(text)\n  \
                File.write(\"seen\", \"#{text} - #{Process.pid}\\n\", mode: \"a\")\nend\n\
                before_fork { note \"before_fork\" }\n\
                on_worker_boot { |index| note \"on_worker_boot-#{index.class}\" }\n\
                on_worker_shutdown { note \"on_worker_shutdown\" }\n";
    let toml = format!(
        "{PORTS}[apps.site]\nentry = \"config.ru\"\nprocesses = 1\nhooks = \"config/puma.rb\"\n"
    );
    let site = Site::new()
        .config(&toml)
        .file("config.ru", RACK)
        .file("config/puma.rb", puma);
    let server = site.serve(&[]);
    server.wait_ready("site");
    assert_eq!(server.get("/").text(), "served");
    assert_eq!(names(&site), ["before_fork", "on_worker_boot-Integer"]);
    let worker = server.workers("site");
    assert_eq!(seen(&site)[1].2, worker[0]);
    let (code, error) = restart(&server);
    assert_eq!(code, Some(0), "{error}");
    eventually(PATIENCE, "the old worker's hook", || {
        names(&site).contains(&"on_worker_shutdown".to_owned())
    });
}

#[test]
fn an_asgi_application_that_is_not_forked_has_hooks_too() {
    let app = "async def app(scope, receive, send):\n    assert scope['type'] == 'http'\n    \
               await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    \
               await send({'type': 'http.response.body', 'body': b'served'})\n";
    let toml = format!(
        "{PORTS}[apps.site]\nentry = \"app:app\"\nkind = \"asgi\"\nprocesses = 1\npreload = false\n\
         hooks = \"gunicorn.conf.py\"\n"
    );
    let site = Site::new()
        .config(&toml)
        .file("app.py", app)
        .file("gunicorn.conf.py", PYTHON_HOOKS);
    let server = site.serve(&[]);
    server.wait_ready("site");
    assert_eq!(server.get("/").text(), "served");
    assert_eq!(names(&site), ["on_boot", "post_fork"]);
    let (code, error) = restart(&server);
    assert_eq!(code, Some(0), "{error}");
    eventually(PATIENCE, "the old worker's hook", || {
        names(&site).contains(&"worker_exit".to_owned())
    });
}

#[test]
fn an_imported_file_of_gunicorns_stays_the_file_of_hooks() {
    let text =
        format!("wsgi_app = \"app:app\"\nworkers = 1\nbind = \"127.0.0.1:0\"\n{PYTHON_HOOKS}");
    let site = Site::new()
        .file("app.py", WSGI)
        .file("gunicorn.conf.py", text);
    let output = site.run(&["import", "gunicorn.conf.py", "-o", "penstock.toml"]);
    assert!(output.status.success(), "{}", texts(&output).1);
    let toml = site.read("penstock.toml");
    assert!(toml.contains("hooks = \"gunicorn.conf.py\""), "{toml}");
    let server = site.serve(&[]);
    assert_eq!(server.get("/").text(), "served");
    eventually(PATIENCE, "the hooks", || {
        names(&site).contains(&"post_fork".to_owned())
    });
}
