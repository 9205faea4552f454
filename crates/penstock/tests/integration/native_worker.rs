//! The native parts of the Python and the Ruby worker are in use where they can be, and not needed.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::support::{PATIENCE, Site, eventually, texts};

const APP: &str = "\
import sys
def application(environ, start):
    start('200 OK', [])
    return [str('penstock_worker._native' in sys.modules).encode()]
";

const TOML: &str = r#"
[server]
threads = 1
[apps.site]
entry = "app:application"
kind = "wsgi"
processes = 1
"#;

const RACK_APP: &str = "\
run ->(_env) { [200, {}, [PenstockWorker::NativePart.is_loaded.to_s]] }
";

const RACK_TOML: &str = r#"
[server]
threads = 1
[apps.site]
entry = "config.ru"
kind = "rack"
processes = 1
"#;

fn is_native_in_ruby(more: &str) -> String {
    let site = Site::new().file("config.ru", RACK_APP).file("up/x", "");
    let server = site.config(&format!("{RACK_TOML}{more}")).serve(&[]);
    server.wait_ready("site");
    server.get("/").text()
}

fn is_native(more: &str) -> String {
    let site = Site::new().file("app.py", APP).file("up/x", "");
    let server = site.config(&format!("{TOML}{more}")).serve(&[]);
    server.wait_ready("site");
    server.get("/").text()
}

#[test]
fn it_is_loaded_also_in_a_template_and_in_isolation() {
    for more in [
        "",
        "preload = false\n",
        "isolation = { write_paths = [\"up\"] }\n",
        "threads = 3\n",
    ] {
        assert_eq!(is_native(more), "True", "{more}");
    }
}

#[test]
fn the_scripts_serve_without_it() {
    assert_eq!(is_native("env = { PENSTOCK_NATIVE = \"off\" }\n"), "False");
    let site = Site::new().file("app.py", APP).config(TOML);
    let output = site.run(&["check"]);
    assert!(output.status.success(), "{:?}", texts(&output));
}

#[test]
fn ruby_loads_it_too_by_a_link_in_a_directory_that_it_may_write_to() {
    for (more, expected) in [
        ("", "true"),
        ("preload = false\n", "true"),
        ("threads = 3\n", "true"),
        ("isolation = { write_paths = [\"up\"] }\n", "true"),
        // A directory that does not exist, and others that it may not write to.
        (
            "isolation = { write_paths = [\"up\"] }\nenv = { TMPDIR = \"/none\" }\n",
            "false",
        ),
        ("env = { PENSTOCK_NATIVE = \"off\" }\n", "false"),
    ] {
        assert_eq!(is_native_in_ruby(more), expected, "{more}");
    }
}

const COUNTING_APP: &str = "\
import os, time
calls = 0
def application(environ, start):
    global calls
    if environ['PATH_INFO'] == '/slow':
        with open('/proc/self/maps') as maps, open('count.new', 'w') as file:
            file.write('%d %s' % (calls, 'penstock-answers' in maps.read()))
        os.rename('count.new', 'count')
        while not os.path.exists('open'):
            time.sleep(0.01)
    calls += 1
    start('200 OK', [('Content-Length', '0')])
    return [b'']
";

/// Answers wait in memory for those that follow them, but for no request that takes its time.
#[test]
fn while_a_request_is_slow_all_that_were_served_before_it_are_answered() {
    const CLIENTS: usize = 24;
    let site = Site::new().file("app.py", COUNTING_APP).config(TOML);
    let server = site.serve(&[]);
    server.wait_ready("site");
    let (answered, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|clients| {
        for _ in 0..CLIENTS {
            clients.spawn(|| {
                let mut client = server.connect();
                while !is_over.load(Ordering::Relaxed) {
                    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                    assert_eq!(client.response().status, 200);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // By then the worker gets several at once.
        eventually(PATIENCE, "there is load", || {
            answered.load(Ordering::Relaxed) > 3000
        });
        let mut slow = server.connect();
        slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
        let count = server.site().dir().join("count");
        eventually(PATIENCE, "it is there", || count.exists());
        let text = fs::read_to_string(count).unwrap();
        let (served, has_ring) = text.split_once(' ').unwrap();
        let served: usize = served.parse().unwrap();
        assert_eq!(has_ring, "True");
        eventually(PATIENCE, "all that were served have their answers", || {
            answered.load(Ordering::Relaxed) == served
        });
        is_over.store(true, Ordering::Relaxed);
        server.site().write("open", "");
        assert_eq!(slow.response().status, 200);
    });
}
