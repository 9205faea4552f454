//! What applications do over TLS as without: uploads, files that they name, WebSockets, connections
//! that they take over.

use super::{HttpsServer, tls_of};
use crate::rack::rack_site;
use crate::support::{RawClient, Site};

/// The application `app` of `entry` at `a.test`.
fn app_toml(entry: &str, more: &str) -> String {
    let tls = tls_of("a");
    format!(
        "[apps.app]\nentry = \"{entry}\"\nprocesses = 1\n{more}\n\
         [[sites]]\nhosts = [\"a.test\"]\n{tls}"
    )
}

const APP_ROUTE: &str = "[[sites.routes]]\napp = \"app\"\n";

fn start(site: Site, toml: &str) -> (HttpsServer, RawClient) {
    let https = HttpsServer::start(site, toml);
    https.server.wait_ready("app");
    let client = https.client.connect(https.port(), "a.test");
    (https, client)
}

#[test]
fn a_large_upload_arrives_whole() {
    let toml = app_toml("app:app", "");
    let (_https, mut client) = start(Site::with_app(), &format!("{toml}{APP_ROUTE}"));
    let body: Vec<u8> = (0..8 << 20_u32).map(|at| (at % 251) as u8).collect();
    let length = body.len();
    client.send(format!(
        "POST /up HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.send(&body);
    let text = client.expect_status(200).text();
    let expected = format!("POST /up {length} {}", md5_of(&body));
    assert_eq!(text, expected);
    // As much in the other direction.
    client.send("GET /big HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let body = client.expect_status(200).body;
    assert!(body == b"0123456789abcdef".repeat(512 << 10));
}

/// The MD5 of bytes, by `md5sum`.
fn md5_of(bytes: &[u8]) -> String {
    use std::io::Write;
    let mut child = std::process::Command::new("md5sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout)[..32].to_owned()
}

#[test]
fn a_file_that_an_application_names_is_sent() {
    const APP: &str = r#"
def app(environ, start):
    start("200 OK", [("X-Accel-Redirect", "/protected/big.bin")])
    return [b"ignored"]
"#;
    let content = b"0123456789abcdef".repeat(64 << 10);
    let site = Site::new()
        .file("app.py", APP)
        .file("private/big.bin", &content);
    let toml = app_toml("app:app", "sendfile = [\"private\"]");
    let routes = "[[sites.routes]]\npath = \"/protected/*\"\ninternal = true\n\
                  rewrite = { strip_prefix = \"/protected\" }\nfiles = { root = \"private\" }\n";
    let (_https, mut client) = start(site, &format!("{toml}{routes}{APP_ROUTE}"));
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let answer = client.expect_status(200);
    assert_eq!(answer.header("x-accel-redirect"), None);
    assert!(answer.body == content);
}

#[test]
fn a_websocket_is_one_over_tls() {
    const APP: &str = r#"
async def app(scope, receive, send):
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": scope["scheme"]})
    message = await receive()
    await send({"type": "websocket.send", "text": message["text"] + "!"})
    await receive()
"#;
    let site = Site::new().file("app.py", APP);
    let toml = app_toml("app:app", "");
    let (_https, mut client) = start(site, &format!("{toml}{APP_ROUTE}"));
    client.send(
        "GET /chat HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    client.expect_status(101);
    expect_bytes(&mut client, b"\x81\x03wss");
    // A text of two bytes, masked with zeros, and a close.
    client.send(b"\x81\x82\0\0\0\0hi");
    expect_bytes(&mut client, b"\x81\x03hi!");
    client.send(b"\x88\x80\0\0\0\0");
}

/// Waits until exactly these bytes have arrived.
fn expect_bytes(client: &mut RawClient, expected: &[u8]) {
    while client.received.len() < expected.len() {
        let read = client.read_some();
        assert!(
            read.is_some_and(|bytes| !bytes.is_empty()),
            "more is to come"
        );
    }
    assert_eq!(client.received, expected);
    client.received.clear();
}

#[test]
fn a_connection_is_taken_over_with_its_session() {
    const APP: &str = r#"
run(lambda do |env|
  io = env["rack.hijack"].call
  io.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
  io.write(env["rack.url_scheme"] + " ")
  io.write(io.readpartial(100))
  io.close
  [200, {}, []]
end)
"#;
    let toml = app_toml("config.ru", "");
    let (_https, mut client) = start(rack_site(APP), &format!("{toml}{APP_ROUTE}"));
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n");
    client.send("after");
    client.expect_status(101);
    assert_eq!(client.read_to_end(), b"https after");
}
