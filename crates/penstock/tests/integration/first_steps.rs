//! What new users meet: commands that find the server of their folder and name the others, answers
//! that say what to change, passwords, the file with the process id, first configurations.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;

use crate::support::{PATIENCE, Server, Site, eventually, is_alive, kill, texts};
use crate::upgrade::SuccessorProcess;

const APP: &str = "def app(environ, start):\n    start('200 OK', [])\n    return [b'ok']\n";
const TWO_APPS: &str = "[apps.shop]\nentry = \"app:app\"\nprocesses = 1\n\
                        [apps.blog]\nentry = \"app:app\"\nprocesses = 1\n\
                        [[sites]]\n[[sites.routes]]\napp = \"shop\"\n";

/// Runs a verb in the folder of a server; its result in one text, and its exit code.
fn run(site: &Site, arguments: &[&str]) -> (Option<i32>, String) {
    let output = site.run(arguments);
    let (stdout, stderr) = texts(&output);
    (output.status.code(), format!("{stdout}{stderr}"))
}

/// An address that was free a moment ago.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_check_beside_the_running_server_is_fine() {
    let (clients, admin) = (free_address(), free_address());
    let toml = format!(
        "[server]\nlisten = \"{clients}\"\nadmin = \"{admin}\"\n[apps.shop]\nentry = \"app:app\"\n\
         processes = 1\n"
    );
    let site = Site::new().file("app.py", APP).config(&toml);
    let server = site.serve(&[]);
    server.wait_ready("shop");
    let (code, told) = run(&site, &["check"]);
    let own = format!(
        "the running server of this configuration (process {}) has http://{clients}, http://{admin}\n",
        server.pid()
    );
    assert!(told.contains(&own) && !told.contains("in use"), "{told}");
    assert_eq!(code, Some(0), "{told}");
    // Of another file the same addresses are a mistake.
    site.write("other.toml", &toml);
    let (code, told) = run(&site, &["check", "-c", "other.toml"]);
    let file = site.dir().join("penstock.toml");
    let owner = format!("penstock of {} (process {})", file.display(), server.pid());
    assert!(code == Some(2) && told.contains(&owner), "{told}");
    let (code, told) = run(&site, &["serve", "-c", "other.toml"]);
    assert!(code == Some(1) && told.contains(&owner), "{told}");
    // What would do is an address beside each.
    assert!(
        told.contains("--listen 127.0.0.1:") && told.contains(" --admin 127.0.0.1:"),
        "{told}"
    );
}

#[test]
fn a_command_finds_the_server_of_its_folder_and_lists_the_others() {
    let site = Site::new().file("app.py", APP);
    let first = site.serve(&[]);
    let (code, told) = run(&site, &["status"]);
    let pid = format!("pid {}", first.pid());
    assert!(code == Some(0) && told.contains(&pid), "{told}");
    let second = site.serve(&[]);
    let socket = |server: &Server| format!("--admin unix:{}", server.control_path().display());
    let (code, told) = run(&site, &["stop"]);
    assert_eq!(code, Some(1), "{told}");
    for part in [
        "2 servers of ",
        &format!("process {}", first.pid()),
        &socket(&first),
        &socket(&second),
    ] {
        assert!(told.contains(part), "no {part} in {told}");
    }
    let named = format!("unix:{}", second.control_path().display());
    let (code, told) = run(&site, &["stop", "--admin", &named]);
    assert!(code == Some(0) && told.starts_with("stopped"), "{told}");
    second.wait_exit(PATIENCE);
    let (code, told) = run(&site, &["stop"]);
    assert!(code == Some(0) && told.starts_with("stopped"), "{told}");
    first.wait_exit(PATIENCE);
}

#[test]
fn a_restart_says_that_the_file_was_not_taken_over() {
    let site = Site::new().file("app.py", APP).config(TWO_APPS);
    let server = site.serve(&[]);
    server.wait_all_ready(&["shop", "blog"]);
    let (code, told) = run(&site, &["restart"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("which application? penstock restart blog, penstock restart shop"),
        "{told}"
    );
    let good = site.read("penstock.toml");
    site.write("penstock.toml", format!("{good}nonsense = 1\n"));
    let (code, refused) = run(&site, &["reload"]);
    assert!(code == Some(1) && refused.contains("unknown key `nonsense`"));
    let (code, told) = run(&site, &["restart", "shop"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.starts_with("shop: restarted with the old configuration"),
        "{told}"
    );
    assert!(told.contains("unknown key `nonsense`"), "{told}");
    site.write("penstock.toml", good);
    assert_eq!(run(&site, &["reload"]).0, Some(0));
    assert_eq!(
        run(&site, &["restart", "shop"]),
        (Some(0), "shop: restarted\n".to_owned())
    );
    site.write("app.py", "import nothing_of_this_name\n");
    let (code, told) = run(&site, &["restart", "shop"]);
    assert_eq!(code, Some(1), "{told}");
    for part in [
        "application `shop` continues to serve with its old code",
        "No module named 'nothing_of_this_name'",
    ] {
        assert!(told.contains(part), "no {part} in {told}");
    }
}

/// Runs `hash-password` with a password on its standard input.
fn hash(arguments: &[&str], password: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
    command.arg("hash-password").args(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(password.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_password_becomes_a_line_that_lets_its_user_in() {
    let toml = "[[sites]]\n[[sites.routes]]\nrespond = { body = \"in\" }\n\
                basic_auth = { users = { file = \"htpasswd\" } }\n";
    let site = Site::new().config(toml);
    let (code, told) = run(&site, &["check"]);
    assert!(code == Some(2) && told.contains("htpasswd"), "{told}");
    let output = hash(&["ann"], "open sesame\n");
    let (line, _) = texts(&output);
    assert!(
        line.starts_with("ann:$2b$12$") && line.ends_with('\n'),
        "{line}"
    );
    site.write("htpasswd", line);
    let server = site.serve(&[]);
    let get = |credentials: &str| {
        let mut client = server.connect();
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {credentials}\r\n\
             Connection: close\r\n\r\n"
        ));
        client.response().status
    };
    assert_eq!(get("YW5uOm9wZW4gc2VzYW1l"), 200);
    assert_eq!(get("YW5uOm9wZW4="), 401);
    let (_, error) = texts(&hash(&["a:b"], "x\n"));
    assert!(error.contains("a user's name has no colon"), "{error}");
    let (_, error) = texts(&hash(&[], "\n"));
    assert!(error.contains("the password is empty"), "{error}");
}

#[test]
fn a_file_has_the_process_id_from_ready_to_stop() {
    let toml = "[server]\npid_file = \"run/penstock.pid\"\n[apps.shop]\nentry = \"app:app\"\n\
                processes = 1\n";
    let site = Site::new()
        .file("app.py", APP)
        .file("run/x", "")
        .config(toml);
    let server = site.serve(&[]);
    let has = |pid: i32| {
        eventually(PATIENCE, "the file has the id", || {
            site.read("run/penstock.pid") == format!("{pid}\n")
        });
    };
    has(server.pid());
    server.signal(Signal::USR2);
    assert_eq!(
        server.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        server.log()
    );
    let successor = SuccessorProcess::of(&server);
    let pid = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
    has(pid);
    successor.end();
    assert!(!site.dir().join("run/penstock.pid").exists());
    // A failed start leaves none, and a file of another kind is left alone.
    let named = [
        "serve",
        "--pid",
        "app.py",
        "--admin",
        "off",
        "-l",
        "127.0.0.1:0",
    ];
    let (code, told) = run(&site, &named);
    assert!(
        code == Some(1) && told.contains("something else than a process id"),
        "{told}"
    );
    assert_eq!(site.read("app.py"), APP);
    let flag = site.serve(&["--pid", "flag.pid"]);
    eventually(PATIENCE, "the file of the flag", || {
        site.read("flag.pid") == format!("{}\n", flag.pid())
    });
    flag.signal(Signal::TERM);
    flag.wait_exit(PATIENCE);
    assert!(!site.dir().join("flag.pid").exists());
}

#[test]
fn a_stop_while_an_application_starts_is_no_failure() {
    let app = format!("import threading\nthreading.Event().wait()\n{APP}");
    let ready = Site::new().file("app.py", app);
    let server = ready.serve(&["--pid", "own.pid"]);
    let control = format!("unix:{}", server.control_path().display());
    let stopped = run(server.site(), &["stop", "--admin", &control]);
    assert_eq!(stopped.0, Some(0), "{stopped:?}");
    server.wait_exit(PATIENCE);
    let log = server.log();
    assert!(!log.contains("does not start yet"), "{log}");
    assert!(!server.site().dir().join("own.pid").exists(), "{log}");
}

#[test]
fn a_python_file_is_run_by_the_interpreter_of_the_application() {
    let site = Site::new()
        .file("app.py", APP)
        .file("manage.py", "import sys\nprint('managed', sys.argv[1:])\n");
    let (code, told) = run(&site, &["run", "manage.py", "migrate", "-v"]);
    assert_eq!(
        (code, told.as_str()),
        (Some(0), "managed ['migrate', '-v']\n")
    );
    let (code, told) = run(&site, &["run", "other.py"]);
    assert!(code == Some(1) && told.contains("other.py"), "{told}");
}

#[test]
fn init_proposes_the_job_of_a_celery_application() {
    let site = Site::new()
        .file("app.py", APP)
        .file("requirements.txt", "celery\n")
        .file(
            "tasks.py",
            "from celery import Celery\napp = Celery('tasks')\n",
        );
    let (code, told) = run(&site, &["init"]);
    assert_eq!(code, Some(0), "{told}");
    for part in [
        "# [jobs.celery]\n# command = \"celery -A tasks worker\"\n",
        "tls = \"local\"",
    ] {
        assert!(told.contains(part), "no {part} in {told}");
    }
    let (_, told) = run(&site, &["config", "explain", "django"]);
    assert!(told.contains("penstock run manage.py migrate"), "{told}");
    site.write("penstock.toml", "[celery]\nconcurrency = 4\n");
    let (code, told) = run(&site, &["check", "--config-only"]);
    assert!(
        code == Some(2) && told.contains("[jobs.celery] with command"),
        "{told}"
    );
}

#[test]
fn the_socket_of_a_killed_server_is_taken_for_none() {
    let site = Site::new().file("app.py", APP);
    let server = site.serve(&[]);
    let socket = server.control_path();
    kill(server.pid(), Signal::KILL);
    server.wait_exit(PATIENCE);
    eventually(PATIENCE, "it is gone", || !is_alive(server.pid()));
    assert!(socket.exists());
    let (code, told) = run(&site, &["stop"]);
    assert!(code == Some(1) && told.contains("no server"), "{told}");
}
