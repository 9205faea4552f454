//! The native part of the Python worker is in use where it can be, and not needed.

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
