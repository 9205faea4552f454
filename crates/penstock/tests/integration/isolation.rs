//! Applications are isolated from the server's process: every attempt of a hostile one fails.
//!
//! It runs as the same user as the server, which is the worst case.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Server, Site, is_left_out, kernel_parts};

/// Each attempt responds with its result, or with the error.
const HOSTILE: &str = r#"
import ctypes, os, signal, sys

libc = ctypes.CDLL(None, use_errno=True)
SERVER = os.getppid()

def checked(done):
    if done == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return done

def read_memory():
    with open(f"/proc/{SERVER}/maps") as maps:
        areas = [line.split()[0] for line in maps if " rw" in line]
    with open(f"/proc/{SERVER}/mem", "rb") as memory:
        memory.seek(int(areas[0].split("-")[0], 16))
        return f"{len(memory.read(16))} bytes of {len(areas)} areas"

def read_environment():
    with open(f"/proc/{SERVER}/environ", "rb") as file:
        return f"{len(file.read())} bytes"

def list_descriptors():
    return f"{len(os.listdir(f'/proc/{SERVER}/fd'))} descriptors"

def enter_its_root():
    return str(os.listdir(f"/proc/{SERVER}/root"))

def copy_a_descriptor():
    pidfd = os.pidfd_open(SERVER)
    return f"descriptor {checked(libc.syscall(438, pidfd, 0, 0))}"

def trace():
    return f"attached {checked(libc.ptrace(16, SERVER, None, None))}"

def read_by_call():
    buffer = ctypes.create_string_buffer(16)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
    return f"{checked(libc.process_vm_readv(SERVER, vector, 1, vector, 1, 0))} bytes"

def signal_server():
    os.kill(SERVER, signal.SIGTERM)
    return "sent"

def stop_server():
    os.kill(SERVER, signal.SIGSTOP)
    return "sent"

def signal_another():
    """The worker of another application, which has told its number in a file."""
    os.kill(int(open("victim.pid").read()), signal.SIGKILL)
    return "sent"

def read_another():
    with open(f"/proc/{open('victim.pid').read()}/mem", "rb") as memory:
        return f"opened {memory}"

def read_its_environment():
    with open(f"/proc/{open('victim.pid').read()}/environ", "rb") as file:
        return f"{len(file.read())} bytes"

def open_its_descriptors():
    """Their numbers are plain to see for its user, what they lead to is not."""
    folder = f"/proc/{open('victim.pid').read()}/fd"
    return str([os.readlink(f"{folder}/{number}") for number in os.listdir(folder)])

def trace_another():
    return f"attached {checked(libc.ptrace(16, int(open('victim.pid').read()), None, None))}"

def connect_abstract():
    import socket
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + open("abstract.name").read())
    return "connected"

def own_status():
    return open("/proc/self/status").read()

def call(number, *arguments):
    return f"returned {checked(libc.syscall(number, *arguments))}"

def mount():
    return f"mounted {checked(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))}"

def load_program():
    return call(321, 0, ctypes.create_string_buffer(128), 128)

def watch_the_processor():
    attributes = ctypes.create_string_buffer(128)
    attributes[4:5] = b"\x80"
    return call(298, attributes, 0, -1, -1, 0)

def fault_by_hand():
    return call(323, 1)

def read_keys():
    return call(250, 0, -4, 0)

def read_kernel_log():
    return call(103, 3, ctypes.create_string_buffer(64), 64)

def open_by_handle():
    return call(304, -100, ctypes.create_string_buffer(64), 0)

def call_as_32_bit_x32():
    return call(0x40000000 + 101, 16, SERVER, 0, 0)

def find_leaked():
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    links = [(path, os.readlink(path)) for path in paths if os.path.lexists(path)]
    leaked = [link for link in links if "leaked" in link[1]]
    if not leaked:
        raise OSError(0, "no such descriptor")
    return str(leaked)

def find_leaked_in_a_program():
    import subprocess
    seen = subprocess.check_output(["ls", "-l", "/proc/self/fd"], close_fds=False)
    if b"leaked" not in seen:
        raise OSError(0, "no such descriptor")
    return seen.decode()

def app(environ, start_response):
    start_response("200 OK", [])
    try:
        text = "DONE: " + globals()[environ["PATH_INFO"][1:]]()
    except OSError as error:
        text = f"refused: {error}"
    return [text.encode()]
"#;

/// The same in Ruby. `syscall` takes the numbers of one processor.
const RUBY: &str = r##"
require "socket"

SERVER = Process.ppid
VICTIM = -> { File.read("../victim.pid").to_i }

def call(*arguments)
  $VERBOSE = nil
  "returned #{syscall(*arguments)}"
end

ATTEMPTS = {
  "read_memory" => -> { File.open("/proc/#{SERVER}/mem", "rb") { |file| "opened #{file}" } },
  "read_environment" => -> { File.binread("/proc/#{SERVER}/environ") },
  "list_descriptors" => -> { Dir.children("/proc/#{SERVER}/fd").inspect },
  "read_another" => -> { File.open("/proc/#{VICTIM.call}/mem", "rb") { |file| "opened #{file}" } },
  "read_its_environment" => -> { File.binread("/proc/#{VICTIM.call}/environ") },
  "open_its_descriptors" => lambda {
    folder = "/proc/#{VICTIM.call}/fd"
    Dir.children(folder).map { |number| File.readlink("#{folder}/#{number}") }.inspect
  },
  "signal_server" => -> { Process.kill(:TERM, SERVER) },
  "stop_server" => -> { Process.kill(:STOP, SERVER) },
  "signal_another" => -> { Process.kill(:KILL, VICTIM.call) },
  "connect_abstract" => -> { UNIXSocket.new("\0#{File.read("../abstract.name")}") },
  "trace" => -> { call(101, 16, SERVER, 0, 0) },
  "trace_another" => -> { call(101, 16, VICTIM.call, 0, 0) },
  "mount" => -> { call(165, "none", "/tmp", "tmpfs", 0, 0) },
  "load_program" => -> { call(321, 0, "x" * 128, 128) },
  "read_keys" => -> { call(250, 0, -4, 0) },
  "call_x32" => -> { call(0x40000000 + 101, 16, SERVER, 0, 0) },
  "find_leaked" => lambda {
    links = Dir.children("/proc/self/fd").map { |number| "/proc/self/fd/#{number}" }
    links = links.select { |link| File.symlink?(link) }.map { |link| File.readlink(link) }
    links.grep(/leaked/).first || raise(Errno::EBADF)
  }
}.freeze

run(lambda do |env|
  text = begin
    "DONE: #{ATTEMPTS.fetch(env["PATH_INFO"].split("/").last).call}"
  rescue SystemCallError => e
    "refused: #{e.class}"
  end
  [200, {}, [text]]
end)
"##;

/// Another application of the same user.
const VICTIM: &str = r#"
import os, socket
SOCKET = socket.socket(socket.AF_UNIX)
SOCKET.bind(f"\0penstock-test-{os.getpid()}")
SOCKET.listen()
for name, text in (("victim.pid", os.getpid()), ("abstract.name", f"penstock-test-{os.getpid()}")):
    with open(name, "w") as file:
        file.write(str(text))

def app(environ, start_response):
    start_response("200 OK", [])
    return [str(os.getpid()).encode()]
"#;

/// A program that is its own server, and reports its inherited files.
const PROGRAM: &str = r#"
import http.server, os, sys
FOUND = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
         if os.path.lexists(f"/proc/self/fd/{n}")]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = "\n".join(FOUND).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

const TOML: &str = r#"
[apps.hostile]
entry = "hostile:app"
kind = "wsgi"
processes = 1
[apps.victim]
entry = "victim:app"
kind = "wsgi"
processes = 1
preload = false
[apps.rack]
dir = "rack"
kind = "rack"
processes = 1
[apps.program]
kind = "command"
command = "python3 program.py {port}"
processes = 1
[[sites]]
[[sites.routes]]
path = "/victim"
app = "victim"
[[sites.routes]]
path = "/rack/*"
app = "rack"
[[sites.routes]]
path = "/program"
app = "program"
[[sites.routes]]
app = "hostile"
"#;

/// The server as an ordinary user, whichever user runs the tests, started by a shell that has left
/// a file open.
fn serve_as_ordinary_user() -> Server {
    let server = prepare(TOML).serve();
    server.wait_all_ready(&["hostile", "victim", "rack", "program"]);
    server
}

/// A site that an ordinary user can serve.
struct UnprivilegedSite(Site);

fn prepare(toml: &str) -> UnprivilegedSite {
    let site = Site::new()
        .file("hostile.py", HOSTILE)
        .file("program.py", PROGRAM)
        .file("rack/config.ru", RUBY)
        .file("victim.py", VICTIM)
        .file("leaked.txt", "a secret of whoever started it")
        .config(toml);
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    open(site.dir());
    open(site.dir().parent().unwrap());
    UnprivilegedSite(site)
}

impl UnprivilegedSite {
    fn serve(&self) -> Server {
        let other = match rustix::process::geteuid().is_root() {
            true => "setpriv --reuid=12345 --regid=12346 --clear-groups",
            false => "",
        };
        let script = format!("exec 9<leaked.txt\nexec {other} \"$0\" \"$@\"");
        self.0.serve_after(&script, &[])
    }
}

#[test]
fn an_application_neither_reads_nor_traces_the_server_of_its_user() {
    let server = serve_as_ordinary_user();
    for attempt in [
        "read_memory",
        "read_environment",
        "list_descriptors",
        "enter_its_root",
        "copy_a_descriptor",
        "trace",
        "read_by_call",
    ] {
        let text = server.get(&format!("/{attempt}")).text();
        assert!(text.starts_with("refused: [Errno "), "{attempt}: {text}");
    }
    // The server continues to serve, and can still read its own data.
    assert!(server.admin_json()["resident_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn an_application_reaches_no_process_outside_of_its_own() {
    if !has_scopes() {
        eprintln!("left out: Landlock has no scopes here");
        return;
    }
    let server = serve_as_ordinary_user();
    let victim = server.get("/victim").text();
    for attempt in [
        "signal_server",
        "stop_server",
        "signal_another",
        "read_another",
        "read_its_environment",
        "open_its_descriptors",
        "trace_another",
        "connect_abstract",
    ] {
        let text = server.get(&format!("/{attempt}")).text();
        assert!(text.starts_with("refused: [Errno "), "{attempt}: {text}");
    }
    assert_eq!(server.get("/victim").text(), victim, "it was not replaced");
}

#[test]
fn an_application_makes_no_calls_of_administrators() {
    let server = serve_as_ordinary_user();
    // The unit's own filter refuses them first, and kills a process that makes a call of another
    // architecture (`SystemCallArchitectures=native`).
    let is_reported = has_scopes() && !is_left_out("refused calls are not reported");
    let has_machines = cfg!(target_arch = "x86_64") && !is_left_out("calls of another machine");
    for (attempt, call) in DENIED_CALLS {
        let text = server.get(&format!("/{attempt}")).text();
        let is_refused = text == "refused: [Errno 1] Operation not permitted";
        assert!(is_refused, "{attempt}: {text}");
        if is_reported {
            server.wait_log(&format!("refused {call} by process"));
        }
    }
    if has_machines {
        let text = server.get("/call_as_32_bit_x32").text();
        assert_eq!(text, "refused: [Errno 38] Function not implemented");
    }
    if is_reported {
        let name = "penstock_app_refused_calls_total{app=\"hostile\"}";
        let counted = server.metric(name).unwrap_or_default();
        assert!(counted >= f64::from(u32::try_from(DENIED_CALLS.len()).unwrap()));
    }
    let status = server.get("/own_status").text();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
}

/// Calls with numbers specific to this processor, and their names in the log.
#[cfg(target_arch = "x86_64")]
const DENIED_CALLS: &[(&str, &str)] = &[
    ("trace", "ptrace"),
    ("read_by_call", "process_vm_readv"),
    ("copy_a_descriptor", "pidfd_open to the server"),
    ("mount", "mount"),
    ("load_program", "bpf"),
    ("watch_the_processor", "perf_event_open"),
    ("fault_by_hand", "userfaultfd"),
    ("read_keys", "keyctl"),
    ("read_kernel_log", "syslog"),
    ("open_by_handle", "open_by_handle_at"),
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_CALLS: &[(&str, &str)] = &[
    ("trace", "ptrace"),
    ("read_by_call", "process_vm_readv"),
    ("mount", "mount"),
];

#[test]
fn isolation_is_switched_off_by_application() {
    let toml = TOML.replace("[apps.victim]\n", "[apps.victim]\nisolation = false\n");
    let server = prepare(&toml).serve();
    server.wait_all_ready(&["hostile", "victim", "rack", "program"]);
    // The tests themselves may run within a filter.
    let filters = |status: &str| -> usize {
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("Seccomp_filters:"));
        count.unwrap().trim().parse().unwrap()
    };
    let victim = server.get("/victim").text();
    let open = std::fs::read_to_string(format!("/proc/{victim}/status")).unwrap();
    let isolated = server.get("/own_status").text();
    assert_eq!(filters(&open) + 1, filters(&isolated), "{open}{isolated}");
}

#[test]
fn an_application_in_ruby_achieves_as_little() {
    let server = serve_as_ordinary_user();
    let victim = server.get("/victim").text();
    let is_x86 = cfg!(target_arch = "x86_64");
    let denied = ["Errno::EACCES", "Errno::EPERM", "Errno::ENOENT"];
    // The unit's /proc shows nothing of the server, and calls of another architecture kill the
    // worker.
    let is_hardened = is_left_out("how a call of another machine is refused");
    let denied = &denied[..if is_hardened { 3 } else { 2 }];
    // The attempt, whether this kernel and processor can refuse it, and how.
    for (attempt, is_tried, errors) in [
        ("read_memory", true, denied),
        ("read_environment", true, denied),
        ("list_descriptors", true, denied),
        ("find_leaked", true, &["Errno::EBADF"]),
        ("read_another", has_scopes(), denied),
        ("read_its_environment", has_scopes(), denied),
        ("open_its_descriptors", has_scopes(), denied),
        ("signal_server", has_scopes(), denied),
        ("stop_server", has_scopes(), denied),
        ("signal_another", has_scopes(), denied),
        ("connect_abstract", has_scopes(), denied),
        ("trace", is_x86, denied),
        ("trace_another", is_x86, denied),
        ("mount", is_x86, denied),
        ("load_program", is_x86, denied),
        ("read_keys", is_x86, denied),
        ("call_x32", is_x86 && !is_hardened, &["Errno::ENOSYS"]),
    ] {
        if !is_tried {
            continue;
        }
        let text = server.get(&format!("/rack/{attempt}")).text();
        let error = text.strip_prefix("refused: ");
        assert!(
            error.is_some_and(|error| errors.contains(&error)),
            "{attempt}: {text}"
        );
    }
    assert_eq!(server.get("/victim").text(), victim, "it was not replaced");
}

fn has_scopes() -> bool {
    let parts = kernel_parts();
    parts.landlock >= 6 && parts.has_notifications
}

#[test]
fn no_application_inherits_what_the_server_was_started_with() {
    let server = serve_as_ordinary_user();
    for attempt in ["find_leaked", "find_leaked_in_a_program"] {
        let text = server.get(&format!("/{attempt}")).text();
        assert_eq!(text, "refused: [Errno 0] no such descriptor", "{attempt}");
    }
    let found = server.get("/program").text();
    assert!(!found.contains("leaked"), "{found}");
}

#[test]
fn a_server_that_stays_root_says_so() {
    let site = Site::with_app().config("[apps.site]\nentry = \"app:app\"\n");
    let server = site.serve(&[]);
    server.wait_ready("site");
    let words = "the server and its applications run as root";
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(server.log().contains(words), is_root, "{}", server.log());
    let warnings = server.admin_json()["warnings"].to_string();
    assert_eq!(warnings.contains(words), is_root, "{warnings}");
    let output = site.run(&["check"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(stderr.contains(words), is_root, "{stderr}");
    assert_eq!(output.status.code(), Some(0), "{stderr}");
}
