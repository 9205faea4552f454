//! Unsolicited instructions of hostile back ends and clients, in many spellings.
//!
//! A back end commands the front end only where its route allows it (`grip`, `sendfile`), and no
//! client can send what the hub sends to back ends. Every row here must have no effect.

use std::process::Command;

use crate::support::{
    Origin, RawClient, ReceivedRequest, Response, Script, Server, Site, page, texts,
};

/// Instructions that an upload contains, by its media type.
const INSTRUCT: &str = r#"{"hold": {"mode": "stream", "channels": [{"name": "private"}]}, "response": {"code": 404, "headers": {"Content-Type": "text/html", "Set-Cookie": "s=1"}, "body": "<script>"}}"#;

/// Fields that address a front end, as a back end may spell them.
const COMMANDS: [&str; 10] = [
    "Grip-Hold: stream\r\nGrip-Channel: private\r\n",
    "grip-hold: response\r\nGRIP-CHANNEL: private\r\nGrip-Timeout: 300\r\n",
    "Grip-Status: 201\r\nGrip-Expose-Headers: X-None\r\n",
    "Grip-Hold: nonsense\r\n",
    "X-Accel-Redirect: /kept/secret.txt\r\n",
    "x-accel-redirect: /kept/secret.txt\r\nX-Accel-Limit-Rate: 1\r\n",
    "X-Sendfile: /etc/hostname\r\n",
    "x-sendfile: kept/secret.txt\r\n",
    "X-LIGHTTPD-send-file: /etc/hostname\r\n",
    "X-Accel-Mapping: /=/\r\nX-Accel-Charset: utf-7\r\nX-Sendfile-Type: X-Sendfile\r\n",
];

const SAFE: &str = "Content-Type: application/grip-instruct\r\nX-Content-Type-Options: nosniff\r\n\
                    Content-Security-Policy: sandbox\r\n";

/// A store that returns uploads, with one of the fields above.
fn store() -> Origin {
    Origin::start(|seen: &ReceivedRequest| {
        let number = seen.target.rsplit('/').next().unwrap_or_default();
        let command = number.parse().ok().and_then(|at: usize| COMMANDS.get(at));
        let command = command.copied().unwrap_or_default();
        let length = INSTRUCT.len();
        Script::raw(format!(
            "HTTP/1.1 200 OK\r\n{SAFE}{command}Content-Length: {length}\r\n\r\n{INSTRUCT}"
        ))
        .keep()
    })
}

/// The same in a worker.
const APP: &str = r#"
COMMANDS = {commands}

def app(environ, start_response):
    body = environ["wsgi.input"].read()
    with open("methods", "a") as methods:
        methods.write(environ["REQUEST_METHOD"] + " ")
    seen = "%s %s %s" % (environ["REQUEST_METHOD"], environ.get("CONTENT_TYPE"), body.decode())
    names = "META_ CONNECTION_ID GRIP".split()
    for key in sorted(environ):
        if any(name in key for name in names) and key != "GRIP_URL":
            seen += " %s=%s" % (key, environ[key])
    if environ["PATH_INFO"].startswith("/seen"):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [seen.encode()]
    number = environ["PATH_INFO"].rsplit("/", 1)[-1]
    fields = [("Content-Type", "application/grip-instruct"), ("X-Content-Type-Options", "nosniff"),
              ("Content-Security-Policy", "sandbox")]
    if number.isdigit():
        fields += [tuple(line.split(": ", 1)) for line in COMMANDS[int(number)].split("\r\n") if line]
    start_response("200 OK", fields)
    return [INSTRUCT]

INSTRUCT = {instruct}
"#;

fn python() -> String {
    let app = APP.replace("{commands}", &format!("{COMMANDS:?}"));
    app.replace("{instruct}", &format!("b{INSTRUCT:?}"))
}

/// A site in front of the store and the application, with the fields hidden from clients.
fn site(origin: &Origin, of_store: &str, of_app: &str, more: &str) -> Server {
    let toml = format!(
        "[upstreams.store]\nservers = [\"{}\"]\n{of_store}\n\
         [apps.app]\nentry = \"app:app\"\nprocesses = 1\n{of_app}\n{more}\n\
         [[sites]]\n[[sites.routes]]\npath = \"/kept/*\"\ninternal = true\nfiles = {{ root = \".\" }}\n\
         [[sites.routes]]\npath = \"/store/*\"\nupstream = \"store\"\n\
         [[sites.routes]]\napp = \"app\"\n",
        origin.address()
    );
    let site = Site::new()
        .file("app.py", python())
        .file("kept/secret.txt", "the secret");
    let server = site.config(&toml).serve(&[]);
    server.wait_ready("app");
    server
}

fn check_untouched(answer: &Response, what: &str) {
    let (text, header) = (answer.text(), |name| answer.header(name));
    assert_eq!((answer.status, text.as_str()), (200, INSTRUCT), "{what}");
    assert_eq!(header("content-type"), Some("application/grip-instruct"));
    assert_eq!(header("x-content-type-options"), Some("nosniff"), "{what}");
    assert_eq!(header("content-security-policy"), Some("sandbox"), "{what}");
    assert_eq!(header("set-cookie"), None, "{what}");
    for (name, _) in &answer.headers {
        let name = name.to_ascii_lowercase();
        let speaks = name.starts_with("grip-") || name.starts_with("x-accel-");
        let speaks = speaks || name.starts_with("x-sendfile") || name.contains("lighttpd");
        assert!(!speaks, "{what}: a client sees {name}");
    }
}

#[test]
fn a_response_commands_nothing_that_its_route_does_not_grant() {
    let origin = store();
    let server = site(&origin, "", "", "");
    for (at, command) in COMMANDS.iter().enumerate() {
        for path in [format!("/store/{at}"), format!("/app/{at}")] {
            check_untouched(&server.get(&path), &format!("{path}: {command}"));
        }
    }
    assert_eq!(server.admin_json()["hub"]["streams"], 0);
}

#[test]
fn one_grant_is_not_the_other() {
    let origin = store();
    for (grants, granted) in [
        ("grip = true", "grip-"),
        ("sendfile = [\"kept\"]", "x-"),
        ("grip = false\nsendfile = false", "none"),
    ] {
        let server = site(&origin, grants, grants, "");
        for (at, command) in COMMANDS.iter().enumerate() {
            if command.to_ascii_lowercase().starts_with(granted) {
                continue;
            }
            for path in [format!("/store/{at}"), format!("/app/{at}")] {
                check_untouched(&server.get(&path), &format!("{grants}, {path}: {command}"));
            }
        }
        // The media type alone has no effect, whatever is allowed.
        for path in ["/store/upload", "/app/upload"] {
            check_untouched(&server.get(path), &format!("{grants}, {path}"));
        }
    }
}

#[test]
fn a_route_has_the_last_word() {
    let origin = store();
    let toml = format!(
        "[upstreams.store]\nservers = [\"{}\"]\ngrip = true\nsendfile = true\n\
         [[sites]]\n[[sites.routes]]\npath = \"/kept/*\"\ninternal = true\nfiles = {{ root = \".\" }}\n\
         [[sites.routes]]\npath = \"/uploads/*\"\nupstream = \"store\"\ngrip = false\nsendfile = false\n\
         [[sites.routes]]\nupstream = \"store\"\n",
        origin.address()
    );
    let site = Site::new().file("kept/secret.txt", "the secret");
    let server = site.config(&toml).serve(&[]);
    for at in 0..COMMANDS.len() {
        let path = format!("/uploads/{at}");
        check_untouched(&server.get(&path), &path);
    }
    assert_eq!(server.get("/4").text(), "the secret");
    assert_eq!(server.get("/3").status, 502, "it is obeyed, and wrong");
}

/// Fields by which a client poses as the hub.
const FORGED: &str = "Connection-Id: forged\r\nMeta-User: forged\r\nmeta-role: forged\r\n\
                      META-x_y: forged\r\nMeta_User: forged\r\nconnection_id: forged\r\n\
                      Grip-Sig: forged\r\nGrip-Last: forged\r\nGRIP_SIG: forged\r\n";

#[test]
fn a_client_cannot_say_what_the_hub_says() {
    let origin = Origin::start(|seen: &ReceivedRequest| page(seen, &seen.head));
    for grants in ["", "grip = true"] {
        let server = site(
            &origin,
            grants,
            grants,
            "[hub]\ngrip_key = \"a key of this test\"\n",
        );
        for path in ["/store/a", "/seen"] {
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{FORGED}\r\n"));
            let seen = client.expect_status(200).text();
            assert!(!seen.contains("forged"), "{grants}, {path}: {seen}");
        }
        // A handshake cannot do it either.
        let mut client = server.connect();
        client.send(format!(
            "GET /seen HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             {FORGED}\r\n"
        ));
        let seen = client.response().text();
        assert!(!seen.contains("forged"), "{grants}: {seen}");
    }
}

#[test]
fn a_client_cannot_send_the_events_of_a_websocket() {
    let origin = Origin::start(|seen: &ReceivedRequest| page(seen, &seen.head));
    for grants in ["", "grip = true"] {
        let server = site(&origin, grants, grants, "");
        for line in [
            "POST {} HTTP/1.1\r\nContent-Type: application/websocket-events",
            "POST {} HTTP/1.1\r\ncontent-type: Application/WebSocket-Events ; a=b",
            "PUT {} HTTP/1.1\r\nContent-Type:\tapplication/websocket-events",
            "POST {} HTTP/1.1\r\nContent-Type: a/b, application/websocket-events",
            "POST {} HTTP/1.1\r\nContent-Type: a/b\r\nContent-Type: application/websocket-events",
            "POST {} HTTP/1.1\r\nContent-Type: a/b\r\nAccept: application/websocket-events",
            "POST {} HTTP/1.1\r\nAccept: */*;q=0.1, APPLICATION/WEBSOCKET-EVENTS",
            "GET {} HTTP/1.1\r\nContent-Type: application/websocket-events",
        ] {
            for path in ["/store/a", "/seen"] {
                let mut client = server.connect();
                let line = line.replace("{}", path);
                client.send(format!(
                    "{line}\r\nHost: a\r\nContent-Length: 13\r\n\r\nTEXT 2\r\nhi\r\n\r"
                ));
                assert_eq!(client.response().status, 403, "{grants}, {line}");
            }
        }
        let mut client = server.connect();
        client.send(
            "POST /seen HTTP/1.1\r\nHost: a\r\nContent_Type: application/websocket-events\r\n\
             Content-Type: a/b\r\nContent-Length: 2\r\n\r\nhi",
        );
        let seen = client.expect_status(200).text();
        assert!(seen.starts_with("POST a/b hi"), "{grants}: {seen}");
    }
}

/// A browser's handshake.
fn handshake(client: &mut RawClient, path: &str, fields: &str) {
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Cookie: session=victim\r\n{fields}\r\n"
    ));
}

#[test]
fn a_get_becomes_a_post_only_with_grip_and_for_pages_of_its_own() {
    let origin = Origin::start(|seen: &ReceivedRequest| page(seen, "x"));
    // The status for the client, and the methods of the requests to the application.
    let ask = |server: &Server, fields: &str| {
        server.site().write("methods", "");
        let mut client = server.connect();
        handshake(&mut client, "/seen", fields);
        let status = client.response().status;
        (status, server.site().read("methods"))
    };
    let answered = |status, methods: &str| (status, methods.to_owned());
    let without = site(&origin, "", "", "");
    for fields in [
        "",
        "Origin: http://evil.example\r\n",
        "Origin: http://a.example\r\n",
    ] {
        assert_eq!(ask(&without, fields), answered(200, "GET "), "{fields}");
    }
    let listed = "grip = { origins = [\"https://friend.example\"] }";
    let with = site(&origin, "", listed, "");
    for other in [
        "http://evil.example",
        "null",
        "http://a.example.evil.example",
        "http://friend.example",
        "http://a.example:8080",
    ] {
        let fields = format!("Origin: {other}\r\n");
        assert_eq!(ask(&with, &fields), answered(403, "GET "), "{other}");
    }
    // The application does not accept the WebSocket, but it gets the request.
    for own in [
        "http://a.example",
        "https://a.example",
        "https://friend.example",
    ] {
        let fields = format!("Origin: {own}\r\n");
        assert_eq!(ask(&with, &fields), answered(200, "GET POST "), "{own}");
    }
    assert_eq!(ask(&with, ""), answered(200, "GET POST "));
}

/// Publishes with the command line; returns its exit code and output.
fn publish(server: &Server, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_penstock"))
        .arg("publish")
        .args(arguments)
        .args(["--admin", &format!("127.0.0.1:{}", server.admin_port())])
        .current_dir(server.site().dir())
        .output()
        .unwrap();
    let (stdout, stderr) = texts(&output);
    (output.status.code(), format!("{stdout}{stderr}"))
}

/// Waits for these words on a held stream; returns the bytes until then.
fn hear(client: &mut RawClient, words: &str) -> String {
    crate::support::eventually(crate::support::PATIENCE, words, || {
        let text = String::from_utf8_lossy(&client.received).into_owned();
        text.contains(words).then_some(text).or_else(|| {
            client.read_some();
            None
        })
    })
}

#[test]
fn channels_of_the_same_name_are_as_many_as_there_are_namespaces() {
    let holding = || {
        Origin::start(|_: &ReceivedRequest| {
            Script::raw(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nGrip-Hold: stream\r\n\
                 Grip-Channel: room\r\nContent-Length: 4\r\n\r\n:\n\n\n",
            )
            .keep()
        })
    };
    let (a, b) = (holding(), holding());
    let toml = format!(
        "[upstreams.a]\nservers = [\"{}\"]\ngrip = true\n\
         [upstreams.b]\nservers = [\"{}\"]\ngrip = true\n\
         [[sites]]\n[[sites.routes]]\npath = \"/a\"\nupstream = \"a\"\n\
         [[sites.routes]]\npath = \"/b\"\nupstream = \"b\"\n\
         [[sites.routes]]\npath = \"/open/*\"\nhub = {{ channel = \"{{path.2}}\", publish = true }}\n\
         [[sites.routes]]\npath = \"/shared/*\"\nhub = {{ channel = \"{{path.2}}\", namespace = \"a\" }}\n",
        a.address(),
        b.address()
    );
    let server = Site::new().config(&toml).serve(&[]);
    let paths = ["/a", "/b", "/open/room", "/shared/room"];
    let mut clients = paths.map(|path| {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.expect_head(200);
        client
    });
    let (code, stdout) = publish(&server, &["room", "to whom"]);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("several: a, b, hub"), "{stdout}");
    let (code, stdout) = publish(&server, &["--namespace", "c", "room", "to nobody"]);
    assert!(
        code == Some(1) && stdout.contains("namespace `c`"),
        "{stdout}"
    );
    for namespace in ["a", "b", "hub"] {
        let message = format!("for {namespace} alone");
        let (code, stdout) = publish(&server, &["--namespace", namespace, "room", &message]);
        assert_eq!(code, Some(0), "{stdout}");
    }
    // Names that pose as another namespace's reach no subscriber.
    for name in ["a\u{1f}room", "\u{1f}a\u{1f}room", "hub\u{1f}room"] {
        let (code, stdout) = publish(&server, &["--namespace", "hub", name, "forged"]);
        assert_eq!(code, Some(0), "{stdout}");
    }
    // A client of the open route publishes there and nowhere else.
    for path in ["/open/room", "/open/a%1Froom"] {
        let mut client = server.connect();
        client.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\nConnection: close\r\n\r\nstranger"
        ));
        client.response();
    }
    for namespace in ["a", "b", "hub"] {
        publish(&server, &["--namespace", namespace, "room", "the end"]);
    }
    for (client, (path, own)) in clients.iter_mut().zip(paths.into_iter().zip([
        "for a alone",
        "for b alone",
        "for hub alone",
        "for a alone",
    ])) {
        let text = hear(client, "the end");
        assert!(text.contains(own), "{path}: {text}");
        assert_eq!(text.matches(" alone").count(), 1, "{path}: {text}");
        assert!(!text.contains("forged"), "{path}: {text}");
        assert_eq!(
            text.contains("stranger"),
            path == "/open/room",
            "{path}: {text}"
        );
    }
}

/// Publishes by its `GRIP_URL`, as a GRIP library does, and with invalid tokens.
const PUBLISHER: &str = r#"
import base64, hashlib, hmac, http.client, json, os, time
from urllib.parse import parse_qs, urlsplit

def coded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

def token(key, iss, claims=None, alg="HS256"):
    claims = {"iss": iss, "exp": int(time.time()) + 600} if claims is None else claims
    text = coded(json.dumps({"alg": alg, "typ": "JWT"}).encode())
    text += "." + coded(json.dumps(claims).encode())
    signature = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return text + "." + ("" if alg == "none" else coded(signature))

def app(environ, start_response):
    query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
    url = os.environ.get("GRIP_URL", "")
    if environ["PATH_INFO"] == "/url":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [url.encode()]
    if environ["PATH_INFO"] == "/hold":
        start_response("200 OK", [("Content-Type", "text/event-stream"), ("Grip-Hold", "stream"), ("Grip-Channel", "room")])
        return [b":\n\n"]
    parts = urlsplit(url)
    said = {name: values[0] for name, values in parse_qs(parts.query).items()}
    key = base64.b64decode(said["key"].removeprefix("base64:"))
    iss = said["iss"]
    right = token(key, iss)
    sent = {
        "right": "Bearer " + right,
        "other-key": "Bearer " + token(b"x" * 32, iss),
        "other-issuer": "Bearer " + token(key, "b"),
        "expired": "Bearer " + token(key, iss, {"iss": iss, "exp": 1}),
        "endless": "Bearer " + token(key, iss, {"iss": iss}),
        "none": "Bearer " + token(key, iss, alg="none"),
        "cut": "Bearer " + right[:-2],
        "of-a-request": "Bearer " + environ["HTTP_GRIP_SIG"],
        "key-itself": "Bearer " + said["key"],
    }[query["by"]]
    item = {"channel": "room", "event": {"data": query["data"]}}
    if "namespace" in query:
        item["namespace"] = query["namespace"]
    admin = http.client.HTTPConnection(parts.netloc, timeout=10)
    admin.request("POST", "/publish/", json.dumps({"items": [item]}), {"Authorization": sent})
    answer = admin.getresponse()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"%d %s" % (answer.status, answer.read())]
"#;

#[test]
fn an_application_publishes_by_its_own_key_in_its_own_namespace() {
    let toml = "[apps.a]\nentry = \"app:app\"\nprocesses = 1\ngrip = true\n\
                [apps.b]\nentry = \"app:app\"\nprocesses = 1\ngrip = true\n\
                [apps.c]\nentry = \"app:app\"\nprocesses = 1\n\
                [[sites]]\n[[sites.routes]]\npath = \"/a/*\"\napp = \"a\"\nrewrite = { strip_prefix = \"/a\" }\n\
                [[sites.routes]]\npath = \"/b/*\"\napp = \"b\"\nrewrite = { strip_prefix = \"/b\" }\n\
                [[sites.routes]]\npath = \"/c/*\"\napp = \"c\"\nrewrite = { strip_prefix = \"/c\" }\n";
    let server = Site::new()
        .file("app.py", PUBLISHER)
        .config(toml)
        .serve(&[]);
    for app in ["a", "b", "c"] {
        server.wait_ready(app);
    }
    let mut clients = ["/a/hold", "/b/hold"].map(|path| {
        let mut client = server.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.expect_head(200);
        client
    });
    let ask = |query: &str| server.get(&format!("/a/publish?{query}")).text();
    for wrong in [
        "other-key",
        "other-issuer",
        "expired",
        "endless",
        "none",
        "cut",
        "of-a-request",
        "key-itself",
    ] {
        let answer = ask(&format!("by={wrong}&data=forged"));
        assert!(answer.starts_with("401 "), "{wrong}: {answer}");
    }
    for other in ["b", "hub", "c"] {
        let answer = ask(&format!("by=right&data=forged&namespace={other}"));
        assert!(answer.starts_with("400 "), "{other}: {answer}");
    }
    // A request without a token has no identity.
    for authorization in [
        "",
        "Authorization: Bearer guessed\r\n",
        "Authorization: Basic YTpi\r\n",
    ] {
        let body =
            r#"{"items": [{"channel": "room", "event": {"data": "forged"}, "namespace": "a"}]}"#;
        let mut client = RawClient::connect(server.admin_port());
        client.send(format!(
            "POST /publish/ HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(client.response().status, 401, "{authorization}");
    }
    assert_eq!(ask("by=right&data=one&namespace=a"), "200 Published\n");
    assert_eq!(ask("by=right&data=two"), "200 Published\n");
    let text = hear(&mut clients[0], "data: two");
    assert!(
        text.contains("data: one") && !text.contains("forged"),
        "{text}"
    );
    publish(&server, &["--namespace", "b", "room", "the end"]);
    let text = hear(&mut clients[1], "the end");
    assert!(
        !text.contains("data: one") && !text.contains("data: two"),
        "{text}"
    );
    // An application without the right to publish gets no URL.
    assert_eq!(server.get("/c/url").text(), "");
    let url = server.get("/a/url").text();
    let port = server.admin_port();
    assert!(
        url.starts_with(&format!("http://127.0.0.1:{port}?iss=a&key=base64:")),
        "{url}"
    );
    assert_ne!(url, server.get("/b/url").text());
}

/// Publishes to its `PENSTOCK_PUBLISH_URL` as it is, without a library.
const PLAIN_PUBLISHER: &str = r#"
import json, os, urllib.error, urllib.request

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    url = os.environ.get("PENSTOCK_PUBLISH_URL", "")
    if environ["PATH_INFO"] == "/url":
        return [url.encode()]
    if environ["PATH_INFO"] == "/cut":
        url = url[:-2]
    item = {"channel": "room", "event": {"data": environ["QUERY_STRING"]}}
    try:
        with urllib.request.urlopen(url, json.dumps({"items": [item]}).encode(), timeout=10) as answer:
            return [b"%d" % answer.status]
    except urllib.error.HTTPError as error:
        return [b"%d" % error.code]
"#;

#[test]
fn an_application_publishes_to_an_address_that_stands_in_no_code() {
    let toml = "[apps.a]\nentry = \"app:app\"\nprocesses = 1\n\
                grip = { namespace = \"hub\" }\n\
                [apps.c]\nentry = \"app:app\"\nprocesses = 1\n\
                [[sites]]\n[[sites.routes]]\npath = \"/rooms\"\nhub = \"room\"\n\
                [[sites.routes]]\npath = \"/c/*\"\napp = \"c\"\nrewrite = { strip_prefix = \"/c\" }\n\
                [[sites.routes]]\napp = \"a\"\n";
    let server = Site::new()
        .file("app.py", PLAIN_PUBLISHER)
        .config(toml)
        .serve(&[]);
    server.wait_ready("a");
    let mut client = server.connect();
    client.send("GET /rooms HTTP/1.1\r\nHost: a\r\n\r\n");
    client.expect_head(200);
    assert_eq!(server.get("/publish?hello").text(), "200");
    hear(&mut client, "data: hello");
    assert_eq!(server.get("/cut?forged").text(), "401");
    server.wait_log("admin: POST /publish/ refused with 401: ");
    let url = server.get("/url").text();
    let port = server.admin_port();
    assert!(
        url.starts_with(&format!("http://127.0.0.1:{port}/publish/?token=")),
        "{url}"
    );
    assert_eq!(server.get("/c/url").text(), "");
}

#[test]
fn keys_outlive_reloads_and_upgrades() {
    let toml = "[apps.a]\nentry = \"app:app\"\nprocesses = 1\ngrip = true\n";
    let server = Site::new()
        .file("app.py", PUBLISHER)
        .config(toml)
        .serve(&[]);
    server.wait_ready("a");
    let before = server.get("/url").text();
    for verb in ["reload", "upgrade"] {
        let pid = server.admin_json()["pid"].clone();
        let admin = format!("127.0.0.1:{}", server.admin_port());
        let output = server.site().run(&[verb, "--admin", &admin]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{verb}: {:?}",
            texts(&output)
        );
        assert_eq!(server.admin_json()["pid"] == pid, verb == "reload");
        assert_eq!(server.get("/url").text(), before, "{verb}");
        let answer = server.get("/publish?by=right&data=x").text();
        assert_eq!(answer, "200 Published\n", "{verb}");
    }
}
