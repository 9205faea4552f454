//! Programs beside applications: kept running, restarted with their application, run at times.

use rustix::process::Signal;

use crate::support::{PATIENCE, Server, Site, eventually, is_alive, kill, texts};

const APP: &str = "def app(environ, start):\n    start('200 OK', [])\n    return [b'ok']\n";

/// Works until SIGTERM, which it notes, with what it finds in its environment.
const WORKER: &str = r#"
import os, signal, sys, threading
over = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: over.set())
with open("seen", "a") as seen:
    print("begin", os.getpid(), os.environ["QUEUE"], os.environ["SHOP"], os.getcwd(), file=seen, flush=True)
    print("works", flush=True)
    over.wait()
    print("end", os.getpid(), file=seen, flush=True)
"#;

const TOML: &str = r#"
[server]
threads = 1
[apps.shop]
dir = "shop"
kind = "wsgi"
entry = "app:app"
processes = 1
env = { SHOP = "one", QUEUE = "web" }
[jobs.mailer]
command = "python3 worker.py"
app = "shop"
processes = 2
env = { QUEUE = "mail" }
"#;

fn shop(toml: &str) -> Server {
    let site = Site::new()
        .file("shop/app.py", APP)
        .file("shop/worker.py", WORKER)
        .file("shop/seen", "")
        .config(toml);
    site.serve(&[])
}

/// The processes of the workers that have begun and not ended, and the lines of all.
fn workers(server: &Server) -> (Vec<i32>, Vec<String>) {
    let text = server.site().read("shop/seen");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let pid = |line: &String| line.split(' ').nth(1).and_then(|pid| pid.parse().ok());
    let begun = lines.iter().filter(|line| line.starts_with("begin "));
    let running = begun.filter_map(pid).filter(|&pid| is_alive(pid)).collect();
    (running, lines)
}

fn two_workers(server: &Server, what: &str) -> Vec<i32> {
    eventually(PATIENCE, what, || {
        let running = workers(server).0;
        (running.len() == 2 && server.workers("mailer").len() == 2).then_some(running)
    })
}

#[test]
fn a_job_is_kept_running_with_the_environment_of_its_application() {
    let server = shop(TOML);
    server.wait_all_ready(&["shop", "mailer"]);
    let first = two_workers(&server, "two workers");
    let folder = server.site().dir().join("shop");
    let expected = format!("mail one {}", folder.canonicalize().unwrap().display());
    for line in workers(&server).1 {
        assert!(line.ends_with(&expected), "{line}");
    }
    server.wait_log("works");
    assert_eq!(server.get("/").text(), "ok");
    // One that is killed is replaced.
    kill(first[0], Signal::KILL);
    let second = eventually(PATIENCE, "another one", || {
        let now = two_workers(&server, "two workers again");
        (!now.contains(&first[0])).then_some(now)
    });
    assert!(second.contains(&first[1]));
    // A restart of the application is one of its jobs; each ends by SIGTERM.
    let control = format!("unix:{}", server.control_path().display());
    let output = server.site().run(&["restart", "shop", "--admin", &control]);
    assert!(output.status.success(), "{output:?}");
    eventually(PATIENCE, "two new workers", || {
        let now = workers(&server).0;
        now.len() == 2 && !now.iter().any(|pid| second.contains(pid))
    });
    let ended = |pid: i32| workers(&server).1.contains(&format!("end {pid}"));
    assert!(second.iter().all(|&pid| ended(pid)));
    let last = workers(&server).0;
    server.signal(Signal::TERM);
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
    let lines = workers(&server).1;
    assert!(
        last.iter().all(|pid| lines.contains(&format!("end {pid}"))),
        "{lines:?}"
    );
}

#[test]
fn a_job_that_does_not_start_stops_nothing_else() {
    let server = shop(&TOML.replace("python3 worker.py", "python3 missing.py"));
    server.wait_ready("shop");
    assert_eq!(server.get("/").text(), "ok");
    server.wait_log("missing.py");
    let mailer = eventually(PATIENCE, "it fails", || {
        let apps = server.admin_json()["apps"].clone();
        let found = apps
            .as_array()
            .unwrap()
            .iter()
            .find(|app| app["name"] == "mailer")
            .cloned();
        found.filter(|app| app["state"] == "failing")
    });
    assert_eq!(mailer["kind"], "job");
    let report = mailer["boot_report"].as_str().unwrap();
    // Before or after the moment from which it counts as running.
    let ended = ["exit code 2", "status 2"]
        .iter()
        .any(|how| report.contains(how));
    assert!(ended, "{report}");
}

#[test]
fn a_command_runs_in_the_place_of_an_application() {
    let print = "import os, sys; print(sys.argv[1:], os.environ['SHOP'], os.environ['QUEUE'], os.getcwd()); sys.exit(7)";
    let site = Site::new()
        .file("shop/app.py", APP)
        .file("shop/worker.py", WORKER)
        .config(TOML);
    let folder = site.dir().join("shop").canonicalize().unwrap();
    for (app, queue) in [(&["--app", "mailer"][..], "mail"), (&[], "web")] {
        let words = [&["run"], app, &["python3", "-c", print, "-x", "a b"]].concat();
        let output = site.run(&words);
        let (stdout, stderr) = texts(&output);
        let expected = format!("['-x', 'a b'] one {queue} {}\n", folder.display());
        assert_eq!(
            (output.status.code(), stdout),
            (Some(7), expected),
            "{stderr}"
        );
    }
    for (words, expected) in [
        (
            &["run", "--app", "shpo", "true"][..],
            "no application or job `shpo`",
        ),
        (&["run", "no-such-command"], "run: no-such-command: "),
    ] {
        let output = site.run(words);
        let (_, stderr) = texts(&output);
        assert!(
            !output.status.success() && stderr.contains(expected),
            "{stderr}"
        );
    }
}

/// A configuration with one job that runs at times.
fn timed(keys: &str) -> String {
    format!(
        "[server]\nthreads = 1\nadmin = \"127.0.0.1:0\"\n[jobs.tick]\ndir = \"shop\"\n{keys}\n\
         [[sites]]\n[[sites.routes]]\nrespond = {{}}\n"
    )
}

#[test]
fn a_job_runs_at_its_times_and_never_twice_at_once() {
    let script = "import os\nprint('run', os.getpid(), open('busy', 'x').close())\n\
                  while not os.path.exists('go'): os.sched_yield()\nos.remove('busy')\n";
    let site = Site::new().file("shop/tick.py", script);
    let toml = timed("command = \"python3 tick.py\"\nevery = \"200ms\"\nstop_timeout = \"1s\"");
    let server = site.config(&toml).serve(&[]);
    let tick = || server.admin_json()["jobs"][0].clone();
    eventually(PATIENCE, "it runs", || tick()["pid"].is_i64());
    assert_eq!(tick()["last"], serde_json::Value::Null);
    // Times pass meanwhile.
    let begin = std::time::Instant::now();
    eventually(PATIENCE, "three times have passed", || {
        begin.elapsed().as_millis() > 700
    });
    // Another configuration of it begins no run beside the one in progress.
    let pid = tick()["pid"].as_i64();
    let changed = toml.replace("200ms", "100ms");
    server.site().write("penstock.toml", changed);
    let control = format!("unix:{}", server.control_path().display());
    let output = server.site().run(&["reload", "--admin", &control]);
    assert!(output.status.success(), "{output:?}");
    eventually(PATIENCE, "times of the changed job pass", || {
        let now = tick();
        now["schedule"] == "every 100ms" && now["runs"]["skipped"].as_u64() >= Some(2)
    });
    assert!(is_alive(i32::try_from(pid.unwrap()).unwrap()));
    assert_eq!(tick()["pid"], serde_json::Value::Null);
    server.site().write("shop/go", "");
    let now = eventually(PATIENCE, "it has run again", || {
        let now = tick();
        (now["runs"]["succeeded"].as_u64() >= Some(2)).then_some(now)
    });
    assert!(now["runs"]["skipped"].as_u64() >= Some(2), "{now}");
    assert_eq!(
        (&now["runs"]["failed"], &now["last"]["succeeded"]),
        (&0.into(), &true.into())
    );
    assert_eq!(now["schedule"], "every 100ms");
    assert!(server.metric("penstock_job_runs_succeeded_total{job=\"tick\"}") >= Some(2.0));
}

#[test]
fn a_run_that_fails_or_takes_too_long_says_so() {
    let script = "import sys\nprint('no database', file=sys.stderr)\nsys.exit(3)\n";
    let site = Site::new().file("shop/tick.py", script);
    let toml = timed("command = \"python3 tick.py\"\nevery = \"100ms\"");
    let server = site.config(&toml).serve(&[]);
    let last = eventually(PATIENCE, "it has failed", || {
        let last = server.admin_json()["jobs"][0]["last"].clone();
        last.is_object().then_some(last)
    });
    assert_eq!(
        (&last["succeeded"], &last["last_lines"]),
        (&false.into(), &"no database".into())
    );
    assert!(last["outcome"].as_str().unwrap().contains('3'), "{last}");
    server.wait_log("job tick: ");
    drop(server);
    let site = Site::new().file("shop/tick.py", "while True: pass\n");
    let toml = timed("command = \"python3 tick.py\"\nevery = \"100ms\"\ntimeout = \"200ms\"");
    let server = site.config(&toml).serve(&[]);
    server.wait_log("stopped at its `timeout` of 200ms");
}

#[test]
fn a_run_in_progress_is_asked_to_end_when_the_server_stops() {
    let script = WORKER.replace("\", os.environ[\"QUEUE\"], os.environ[\"SHOP\"]", "\"");
    let script = script.replace("os.environ[\"QUEUE\"], os.environ[\"SHOP\"], ", "");
    let site = Site::new()
        .file("shop/tick.py", script)
        .file("shop/seen", "");
    let toml = timed("command = \"python3 tick.py\"\nevery = \"100ms\"");
    let server = site.config(&toml).serve(&[]);
    let pid = eventually(PATIENCE, "it runs", || workers(&server).0.first().copied());
    // A reload that leaves it as it is leaves it alone.
    let control = format!("unix:{}", server.control_path().display());
    let output = server.site().run(&["reload", "--admin", &control]);
    assert!(output.status.success(), "{output:?}");
    assert!(is_alive(pid));
    server.signal(Signal::TERM);
    let status = server.wait_exit(PATIENCE);
    assert_eq!(status.code(), Some(0), "{}", server.log());
    assert!(
        workers(&server).1.contains(&format!("end {pid}")),
        "{}",
        server.log()
    );
}

#[test]
fn a_stop_names_the_option_that_a_job_was_killed_by() {
    let script = "import signal, threading\n\
                  signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
                  print('works', flush=True)\n\
                  threading.Event().wait()\n";
    let site = Site::new()
        .file("shop/app.py", APP)
        .file("shop/worker.py", script)
        .file("shop/tick.py", script);
    let toml = TOML.replace(
        "processes = 2\n",
        "processes = 1\nstop_timeout = \"300ms\"\n",
    ) + "[jobs.tick]\ncommand = \"python3 tick.py\"\napp = \"shop\"\nevery = \"100ms\"\n\
           stop_timeout = \"200ms\"\n";
    let server = site.config(&toml).serve(&[]);
    server.wait_all_ready(&["shop", "mailer"]);
    for name in ["mailer[", "tick["] {
        eventually(PATIENCE, name, || {
            let log = server.log();
            log.lines()
                .any(|line| line.contains(name) && line.ends_with("works"))
        });
    }
    let control = format!("unix:{}", server.control_path().display());
    let output = server.site().run(&["stop", "--admin", &control]);
    let (told, _) = texts(&output);
    assert_eq!(
        told,
        "stopped\n\
         mailer: 1 process was killed 300ms after SIGTERM: a longer \
         jobs.mailer.stop_timeout gives more time\n\
         tick: 1 process was killed 200ms after SIGTERM: a longer \
         jobs.tick.stop_timeout gives more time\n"
    );
    server.wait_exit(PATIENCE);
    server.wait_log("it did not end within 300ms of SIGTERM (jobs.mailer.stop_timeout)");
    server.wait_log("it did not end within 200ms of SIGTERM (jobs.tick.stop_timeout)");
}
