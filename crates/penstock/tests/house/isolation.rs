//! Applications are kept out of the server's process: what one that is hostile tries comes to nothing.
//!
//! It runs as the same user as the server, which is the worst that a deployment can be.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Server, Site};

/// Each attempt answers with what it has achieved, or with why it has not.
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

def find_leaked():
    links = [(number, os.readlink(f"/proc/self/fd/{number}")) for number in os.listdir("/proc/self/fd")
             if os.path.lexists(f"/proc/self/fd/{number}")]
    leaked = [link for link in links if "leaked" in link[1]]
    if not leaked:
        raise OSError(0, "no such descriptor")
    return str(leaked)

def find_leaked_in_a_program():
    import subprocess
    seen = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True)
    if "leaked" not in seen.stdout:
        raise OSError(0, "no such descriptor")
    return seen.stdout

def app(environ, start_response):
    start_response("200 OK", [])
    try:
        text = "DONE: " + globals()[environ["PATH_INFO"][1:]]()
    except OSError as error:
        text = f"refused: {error}"
    return [text.encode()]
"#;

/// A program that is a server of its own, and tells which files it was started with.
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
[apps.program]
kind = "command"
command = "python3 program.py {port}"
processes = 1
[[sites]]
[[sites.routes]]
path = "/program"
app = "program"
[[sites.routes]]
app = "hostile"
"#;

/// The server as an ordinary user, whoever runs the tests, started by a shell that has left a file open.
fn serve_as_ordinary_user() -> Server {
    let site = Site::new()
        .file("hostile.py", HOSTILE)
        .file("program.py", PROGRAM)
        .file("leaked.txt", "a secret of whoever started it")
        .config(TOML);
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    open(site.dir());
    open(site.dir().parent().unwrap());
    let other = match rustix::process::geteuid().is_root() {
        true => "setpriv --reuid=12345 --regid=12346 --clear-groups",
        false => "",
    };
    let script = format!("exec 9<leaked.txt\nexec {other} \"$0\" \"$@\"");
    let server = site.serve_after(&script, &[]);
    server.wait_all_ready(&["hostile", "program"]);
    server
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
    // It serves on, and what it needs of its own it still reads.
    assert!(server.admin_json()["resident_bytes"].as_u64().unwrap() > 0);
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
    let told = server.admin_json()["warnings"].to_string();
    assert_eq!(told.contains(words), is_root, "{told}");
    let output = site.run(&["check"]);
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(complained.contains(words), is_root, "{complained}");
    assert_eq!(output.status.code(), Some(0), "{complained}");
}
