//! The native parts of the Python and the Ruby worker are in use where they can be, and not needed.

use crate::support::{Site, texts};

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
