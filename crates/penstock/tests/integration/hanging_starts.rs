//! A program that cannot start because its disk does not respond affects no other application.
//!
//! Such a disk is simulated in two ways. A lease on the program's file blocks `execve` until its
//! holder releases it (fcntl(2), `F_SETLEASE`); a FUSE file system responds to no look-up.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{PATIENCE, Server, Site, eventually, kill, texts};

/// Holds a lease on the file, and records in another file that a process wants to open it.
const LEASE: &str = r#"
import fcntl, os, signal, sys
program, wanted = sys.argv[1:]
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
file = os.open(program, os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
signal.sigwait([signal.SIGIO])
open(wanted, "w").write("yes")
signal.pause()
"#;

/// A FUSE file system that is mounted, and responds to nothing else.
const DISK: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
if libc.mount(b"hung", sys.argv[1].encode(), b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
unique = struct.unpack_from("<Q", os.read(device, 1 << 17), 8)[0]
answer = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 8, 1 << 16, 1, 1, 0, 0)
os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
open(sys.argv[2], "w").write("mounted")
while os.read(device, 1 << 17):
    open(sys.argv[3], "w").write("yes")
"#;

const PROGRAM: &str = "#!/bin/sh\nexec python3 -m http.server --bind 127.0.0.1 \"$1\"\n";

const OTHER: &str = "import os\n\
    def app(environ, start_response):\n    \
        start_response('200 OK', [])\n    \
        return [str(os.getpid()).encode()]\n";

/// `hung` is the program of one application; the other starts its worker by itself each time.
fn config(hung: &str) -> String {
    format!(
        "[server]\nthreads = 1\n\
         [apps.hung]\nkind = \"command\"\ncommand = [\"{hung}\", \"{{port}}\"]\nprocesses = 1\n\
         [apps.other]\nentry = \"other:app\"\npreload = false\nprocesses = 1\n\
         [[sites]]\n[[sites.routes]]\npath = \"/hung/*\"\napp = \"hung\"\n\
         [[sites.routes]]\napp = \"other\"\n"
    )
}

struct Lease(Child);

impl Lease {
    fn take(site: &Site) -> Self {
        site.write("lease.py", LEASE);
        let mut holder = Command::new("python3");
        holder.args(["lease.py", "hung.sh", "wanted"]);
        let mut holder = holder
            .current_dir(site.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 5];
        let mut output = holder.stdout.take().unwrap();
        std::io::Read::read_exact(&mut output, &mut said).unwrap();
        assert_eq!(said, *b"held\n");
        Self(holder)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn site() -> Site {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::new()
        .file("hung.sh", PROGRAM)
        .file("other.py", OTHER)
        .config(&config("./hung.sh"));
    let program = site.dir().join("hung.sh");
    std::fs::set_permissions(program, PermissionsExt::from_mode(0o755)).unwrap();
    site
}

const LATE: &str = "within 10 s";

/// Checks everything independent of the application with the hanging start.
fn everything_else_goes_on(server: &Server) {
    for path in ["/healthz", "/metrics"] {
        assert_eq!(server.admin("GET", path).status, 200, "{path}");
    }
    let before = server.get("/").text();
    let control = format!("unix:{}", server.control_path().display());
    for verb in [&["restart", "other"][..], &["status"]] {
        let output = server.site().run(&[verb, &["--admin", &control]].concat());
        assert!(output.status.success(), "{verb:?}: {:?}", texts(&output));
    }
    assert_ne!(server.get("/").text(), before, "another worker");
    let log = server.log();
    assert!(!log.contains(LATE), "it hangs no more: {log}");
}

#[test]
fn one_hanging_start_stops_nothing_else_and_is_named() {
    let site = site();
    let lease = Lease::take(&site);
    let server = site.serve(&[]);
    server.wait_ready("other");
    eventually(PATIENCE, "its program is asked for", || {
        site.read("wanted") == "yes"
    });
    everything_else_goes_on(&server);
    eventually(PATIENCE, "the failure is named", || {
        let log = server.log();
        let mut lines = log.lines();
        lines.any(|line| {
            line.contains("hung: cannot start a worker: ./hung.sh: not started within 10 s")
        })
    });
    // Nothing is left of that start, and the next one succeeds.
    drop(lease);
    server.wait_ready("hung");
    assert_eq!(server.get("/hung/").status, 404, "{}", server.log());
}

#[test]
fn a_stop_and_a_reload_wait_for_no_hanging_start() {
    let site = site();
    let _lease = Lease::take(&site);
    let server = site.serve(&[]);
    server.wait_ready("other");
    let is_wanted = || site.read("wanted") == "yes";
    eventually(PATIENCE, "its program is asked for", is_wanted);
    // A configuration without that application takes effect at once.
    let toml = config("./hung.sh");
    let without = toml.replace("app = \"hung\"", "app = \"other\"");
    let (begin, end) = (without.find("[apps.hung]"), without.find("[apps.other]"));
    let without = [&without[..begin.unwrap()], &without[end.unwrap()..]].concat();
    site.write("penstock.toml", without);
    let reloaded = server.admin("POST", "/reload");
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(server.get("/hung/").status, 200);
    assert!(!server.log().contains(LATE), "{}", server.log());
    drop(_lease);
    // With the start in progress again, the server stops as quickly as ever.
    std::fs::remove_file(site.dir().join("wanted")).unwrap();
    let _lease = Lease::take(&site);
    site.write("penstock.toml", toml);
    let told = std::thread::scope(|scope| {
        let reload = scope.spawn(|| server.admin("POST", "/reload"));
        eventually(PATIENCE, "its program is asked for", is_wanted);
        let began = Instant::now();
        server.signal(Signal::TERM);
        assert_eq!(server.wait_exit(PATIENCE).code(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(8), "{}", server.log());
        reload.join()
    });
    drop(told);
    assert!(!server.log().contains(LATE), "{}", server.log());
}

/// A disk on which even the look-up of the program hangs.
#[test]
fn a_disk_that_answers_nothing_stops_no_other_application() {
    use std::os::unix::fs::PermissionsExt;
    let site = site().file("disk.py", DISK).file("disk/hung.sh", PROGRAM);
    let program = site.dir().join("disk/hung.sh");
    std::fs::set_permissions(program, PermissionsExt::from_mode(0o755)).unwrap();
    site.write("penstock.toml", config("disk/hung.sh"));
    let Some(server) = site.serve_with_mounts("mount -t tmpfs none /mnt", &[]) else {
        return;
    };
    server.wait_all_ready(&["hung", "other"]);
    // Look-ups in that directory hang from now on.
    let disk = Command::new("nsenter")
        .args(["--user", "--preserve-credentials", "--mount", "--target"])
        .arg(server.pid().to_string())
        .arg("python3")
        .args(["disk.py", "disk", "mounted", "wanted"].map(|name| site.dir().join(name)))
        .stdin(Stdio::null())
        .spawn();
    let mut disk = disk.unwrap();
    eventually(PATIENCE, "the disk is there", || {
        if disk.try_wait().unwrap().is_some() {
            return true;
        }
        site.read("mounted") == "mounted"
    });
    if disk.try_wait().unwrap().is_some() {
        eprintln!("left out: no file systems of our own here");
        return;
    }
    for worker in server.workers("hung") {
        kill(worker, Signal::KILL);
    }
    eventually(PATIENCE, "its program is looked for", || {
        site.read("wanted") == "yes"
    });
    everything_else_goes_on(&server);
    eventually(PATIENCE, "the failure is named", || {
        let log = server.log();
        log.contains("hung: cannot start a worker: its program was not found within 10 s")
    });
    assert_eq!(server.get("/").status, 200);
    disk.kill().unwrap();
    disk.wait().unwrap();
    server.signal(Signal::TERM);
    assert_eq!(
        server.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        server.log()
    );
}
