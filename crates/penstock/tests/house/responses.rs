//! How responses are framed.
use crate::support::*;

#[test]
fn smoke() {
    let server = Site::new().file("index.html", "hello").serve(&[]);
    let r = server.get("/");
    assert_eq!(r.status, 200, "{}", server.log());
    println!("{}\n{:?}\n{}", server.log(), r, server.admin_json());
}
#[test]
fn smoke2() {
    let server = Site::new().file("app.py", "def app(e, s):\n    s('200 OK', [('Content-Type','text/plain')])\n    return [b'hi']\n").serve(&["--processes", "1"]);
    println!("{}", server.log());
    server.wait_ready("app");
    let r = server.get("/");
    println!("{}\n{:?}\n{}\n{}", server.log(), r, server.admin_json(), server.admin("GET", "/metrics").text());
}
