//! What the processes of an application inherit, and what a killed server leaves behind: nothing
//! that its operator has not set.

use std::collections::BTreeMap;

use rustix::process::Signal;

use crate::support::{PATIENCE, Server, Site, eventually};

/// Reports the environment of a program that the application starts, and how an interrupted one
/// ends.
const APP: &str = r#"
import os, signal, subprocess, time

def tell(environ):
    script = "grep -E 'Sig(Blk|Ign)' /proc/self/status; echo files: $(ulimit -Sn)"
    # As they are: Python would reset two of them.
    return subprocess.check_output(["sh", "-c", script], restore_signals=False)

def spawned(environ):
    child = subprocess.Popen(["sleep", "60"])
    child.send_signal(signal.SIGINT)
    return str(child.wait(10)).encode()

def forked(environ):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, b"x")
            while True:
                time.sleep(0.05)
        except KeyboardInterrupt:
            os._exit(7)
    os.read(reader, 1)
    os.kill(pid, signal.SIGINT)
    return str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode()

def pid(environ):
    return str(os.getpid()).encode()

def app(environ, start_response):
    start_response("200 OK", [])
    return [globals()[environ["PATH_INFO"][1:]](environ)]
"#;

const RUBY: &str = r#"
run ->(env) {
  case env["PATH_INFO"]
  when "/r/tell"
    [200, {}, [`grep -E 'Sig(Blk|Ign)' /proc/self/status; echo files: $(ulimit -Sn)`]]
  when "/r/spawned"
    pid = spawn("sleep 60")
    Process.kill(:INT, pid)
    [200, {}, ["-#{Process.wait2(pid)[1].termsig}"]]
  else
    reader, writer = IO.pipe
    pid = fork do
      writer.write("x")
      loop { sleep 0.05 }
    rescue Interrupt
      exit!(7)
    end
    reader.readpartial(1)
    Process.kill(:INT, pid)
    [200, {}, [Process.wait2(pid)[1].exitstatus.to_s]]
  end
}
"#;

const PROGRAM: &str = r#"
import http.server, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        script = "grep -E 'Sig(Blk|Ign)' /proc/self/status; echo files: $(ulimit -Sn)"
        body = subprocess.check_output(["sh", "-c", script])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

const TOML: &str = r#"
[apps.site]
entry = "app:app"
kind = "wsgi"
processes = 1
[apps.ruby]
kind = "rack"
dir = "ruby"
processes = 1
[apps.program]
kind = "command"
command = "python3 program.py {port}"
processes = 1
[[sites]]
[[sites.routes]]
path = "/r/*"
app = "ruby"
[[sites.routes]]
path = "/program"
app = "program"
[[sites.routes]]
app = "site"
"#;

fn site() -> Site {
    Site::new()
        .file("app.py", APP)
        .file("ruby/config.ru", RUBY)
        .file("program.py", PROGRAM)
        .config(TOML)
}

/// The values of `tell`: the sets of signals, and the limit.
fn reported(server: &Server, path: &str) -> BTreeMap<String, String> {
    let text = server.get(path).text();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect()
}

/// SIGPIPE and SIGXFSZ, which Python itself ignores.
const OF_PYTHON: u64 = 1 << 12 | 1 << 24;

#[test]
fn children_have_signals_and_limits_as_the_operator_set_them() {
    // The parent of the server blocks, ignores and limits.
    let script = "ulimit -Sn 777; trap '' INT QUIT USR2 CHLD TTOU";
    let server = site().serve_after(script, &[]);
    server.wait_all_ready(&["site", "ruby", "program"]);
    for path in ["/tell", "/r/tell", "/program"] {
        let reported = reported(&server, path);
        assert_eq!(reported["files"], "777", "{path}");
        let set = |name: &str| u64::from_str_radix(&reported[name], 16).unwrap();
        assert_eq!(set("SigBlk"), 0, "{path}");
        assert_eq!(set("SigIgn") & !OF_PYTHON, 0, "{path}: {reported:?}");
    }
    for (path, expected) in [
        ("/spawned", "-2"),
        ("/forked", "7"),
        ("/r/spawned", "-2"),
        ("/r/forked", "7"),
    ] {
        assert_eq!(server.get(path).text(), expected, "{path}");
    }
    // The worker itself leaves that to the server.
    let pid = server.get("/pid").text();
    crate::support::kill(pid.parse().unwrap(), Signal::INT);
    assert_eq!(server.get("/pid").text(), pid);
    // A successor has the same.
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let output = server.site().run(&["upgrade", "--admin", &admin]);
    assert_eq!(output.status.code(), Some(0), "{}", server.log());
    server.wait_exit(PATIENCE);
    let reported = reported(&server, "/tell");
    assert_eq!(reported["files"], "777");
    let set = |name: &str| u64::from_str_radix(&reported[name], 16).unwrap();
    assert_eq!(set("SigIgn") & !OF_PYTHON, 0, "{reported:?}");
    let output = server.site().run(&["stop", "--admin", &admin]);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_a_killed_server_left_goes_at_the_next_start() {
    let site = Site::new()
        .file(
            "program.py",
            "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1])\ns.listen()\n\
             while True:\n    c, _ = s.accept()\n    c.recv(9999)\n    c.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\nok')\n    c.close()\n",
        )
        .file("tmp/penstock.1-strange/letter", "not ours")
        .config(
            "[limits]\ntemp_dir = \"tmp\"\n[apps.program]\nkind = \"command\"\n\
             command = \"python3 program.py {socket}\"\nprocesses = 2\n",
        );
    let folders = || {
        let all = std::fs::read_dir(site.dir().join("tmp")).unwrap().flatten();
        let mut names: Vec<_> = all
            .map(|it| it.file_name().into_string().unwrap())
            .collect();
        names.retain(|name| name != "penstock.1-strange");
        names
    };
    let mut before = Vec::new();
    for _ in 0..3 {
        let server = site.serve(&[]);
        server.wait_ready("program");
        assert_eq!(server.get("/").text(), "ok");
        let now = folders();
        assert_eq!(now.len(), 1, "{before:?} {now:?}");
        assert_ne!(now, before);
        // A second server leaves the first one's directory alone.
        let other = site.serve(&[]);
        other.wait_ready("program");
        assert_eq!(folders().len(), 2);
        assert_eq!(server.get("/").text(), "ok");
        drop(other);
        let workers = server.workers("program");
        server.signal(Signal::KILL);
        server.wait_exit(PATIENCE);
        eventually(PATIENCE, "its processes die with it", || {
            workers.iter().all(|pid| !crate::support::is_alive(*pid))
        });
        before = now;
    }
    assert_eq!(site.read("tmp/penstock.1-strange/letter"), "not ours");
}
