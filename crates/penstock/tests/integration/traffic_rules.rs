//! Rules for traffic: routes by conditions, redirects, fixed answers, access by network.

use base64::Engine as _;

use crate::support::{
    Origin, PATIENCE, RawClient, Response, Script, Server, Site, eventually, head_of, page, texts,
};

/// Two listeners, of which one is a socket that only this machine reaches.
const LISTENERS: &str = r#"
[server]
threads = 1
listen = ["127.0.0.1:0", "unix:inside.sock"]

[[sites]]
[[sites.routes]]
match = { listener = ["unix:inside.sock"] }
respond = { body = "inside" }
[[sites.routes]]
match = { listener = ["127.0.0.1:0"] }
respond = { body = "outside" }
"#;

const TOML: &str = r#"
[server]
threads = 1

[conditions.beta]
cookie = { group = "beta" }

[[sites]]
hosts = ["a.example", "www.a.example"]
canonical_host = "a.example"
[[sites.routes]]
respond = { body = "canonical" }

[[sites]]
[[sites.routes]]
path = "/app"
match = ["beta"]
respond = { body = "beta" }
[[sites.routes]]
path = "/app"
match = { method = ["POST", "PUT"], header = { Content-Type = "application/json*" } }
respond = { status = 202, body = "json", content_type = "application/json" }
[[sites.routes]]
path = "/app"
match = { client = ["203.0.113.0/24"] }
respond = { body = "from {client}" }
[[sites.routes]]
path = "/app"
match = { query = { preview = "*" }, not = { header = { Upgrade = "*" } } }
respond = { body = "preview {query.preview}" }
[[sites.routes]]
path = "/app"
respond = { body = "app" }
[[sites.routes]]
path = { regex = "^/p/([0-9]+)/(?<name>.+)$" }
redirect = { to = "/product/{re.name}?id={re.1}", status = 301 }
[[sites.routes]]
path = "*.php"
respond = { status = 410, body = "no scripts at {path}\n" }
[[sites.routes]]
path = "/old/*"
redirect = "https://new.example{uri}"
[[sites.routes]]
path = "/loop/*"
redirect = "{scheme}://{host}{uri}"
[[sites.routes]]
path = { regex = "^/away(.*)$" }
redirect = "/{re.1}#part"
[[sites.routes]]
path = "/echo"
redirect = "/login?next={query.next}"
[[sites.routes]]
path = "/kept/*"
redirect = "/other?{query}"
[[sites.routes]]
path = "/inside/*"
allow = ["10.0.0.0/8", "127.0.0.1"]
deny = ["10.6.6.6"]
files = { root = "public" }
rewrite = { strip_prefix = "/inside" }
[[sites.routes]]
path = "/closed"
respond = { status = 503, file = "closed.html", headers = { Retry-After = "60", X-From = "{method} {path}" } }
[[sites.routes]]
path = "/preflight"
match = { method = ["OPTIONS"] }
respond = { status = 204, headers = { Allow = "GET" } }
"#;

fn site() -> Site {
    Site::new()
        .config(TOML)
        .file("public/secret.txt", "secret")
        .file("closed.html", "<p>closed")
}

fn ask(server: &Server, line: &str, fields: &str) -> Response {
    let mut client = server.connect();
    let fields = match fields.contains("Host:") {
        true => fields.to_owned(),
        false => format!("Host: other\r\n{fields}"),
    };
    client.send(format!("{line} HTTP/1.1\r\n{fields}\r\n"));
    client.response()
}

#[test]
fn the_first_route_whose_conditions_hold_answers() {
    let server = site().serve(&[]);
    for (line, fields, status, body) in [
        ("GET /app", "", 200, "app"),
        ("GET /app", "Cookie: a=1; group=beta\r\n", 200, "beta"),
        ("GET /app", "Cookie: group=alpha\r\n", 200, "app"),
        (
            "POST /app",
            "Content-Type: application/json; charset=utf-8\r\nContent-Length: 0\r\n",
            202,
            "json",
        ),
        (
            "POST /app",
            "Content-Type: text/json\r\nContent-Length: 0\r\n",
            200,
            "app",
        ),
        (
            "GET /app?preview=1%0d%0aX:%20y",
            "",
            200,
            "preview 1%0d%0aX:%20y",
        ),
        ("GET /app?preview=1", "Upgrade: websocket\r\n", 200, "app"),
        // Loopback is a trusted proxy unless the file lists others.
        (
            "GET /app",
            "X-Forwarded-For: 203.0.113.9\r\n",
            200,
            "from 203.0.113.9",
        ),
        ("GET /app", "X-Forwarded-For: 198.51.100.1\r\n", 200, "app"),
        ("GET /a/b.php?x", "", 410, "no scripts at /a/b.php\n"),
        ("GET /a/b.php5", "", 404, ""),
        ("OPTIONS /preflight", "", 204, ""),
        ("GET /preflight", "", 404, ""),
    ] {
        let response = ask(&server, line, fields);
        assert_eq!(response.status, status, "{line} {fields}");
        if !body.is_empty() {
            assert_eq!(response.text(), body, "{line} {fields}");
        }
    }
    let closed = ask(&server, "GET /closed", "");
    assert_eq!((closed.status, closed.text().as_str()), (503, "<p>closed"));
    assert_eq!(closed.header("Retry-After"), Some("60"));
    assert_eq!(closed.header("X-From"), Some("GET /closed"));
    assert_eq!(
        closed.header("Content-Type"),
        Some("text/html; charset=utf-8")
    );
}

#[test]
fn a_route_of_a_listener_is_for_its_connections_alone() {
    let site = Site::new().config(LISTENERS);
    let socket = site.dir().join("inside.sock");
    let server = site.serve(&[]);
    let inside = RawClient::connect_unix(&socket);
    for (mut client, expected) in [(server.connect(), "outside"), (inside, "inside")] {
        for host in ["a", "inside.sock", "127.0.0.1:0"] {
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            let response = client.response();
            assert_eq!(response.text(), expected, "{host}");
        }
    }
}

#[test]
fn redirects_keep_what_was_asked_for_and_never_lead_back() {
    let server = site().serve(&[]);
    for (target, status, location) in [
        ("/p/7/a%20b", 301, "/product/a%20b?id=7"),
        ("/p/7/a%2520b", 301, "/product/a%2520b?id=7"),
        ("/p/x/a", 404, ""),
        ("/old/x?y=1", 302, "https://new.example/old/x?y=1"),
        (
            "/echo?next=%0d%0aSet-Cookie:%20a=1",
            302,
            "/login?next=%0d%0aSet-Cookie:%20a=1",
        ),
        ("/away/evil.example", 302, "/evil.example#part"),
        (
            "/away/%5Cevil.example%23x",
            302,
            "/%5Cevil.example%23x#part",
        ),
        ("/kept/x?a=1&b", 302, "/other?a=1&b"),
        ("/kept/x", 302, "/other"),
        ("/loop/x", 500, ""),
    ] {
        let response = ask(&server, &format!("GET {target}"), "");
        assert_eq!(response.status, status, "{target}");
        let expected = (!location.is_empty()).then_some(location);
        assert_eq!(response.header("Location"), expected, "{target}");
        assert_eq!(response.header("Set-Cookie"), None);
    }
    eventually(PATIENCE, "the cause in the log", || {
        server
            .log()
            .contains("`redirect` leads to the URL that was asked for")
    });
    // A body that nobody reads does not become the next request.
    let mut client = server.connect();
    let body = "GET /closed HTTP/1.1\r\nHost: x\r\n\r\n";
    let length = body.len();
    client.send(format!(
        "POST /old/x HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}\
         GET /app HTTP/1.1\r\nHost: a\r\n\r\n"
    ));
    assert_eq!(client.response().status, 302);
    assert_eq!(client.response().text(), "app");
}

#[test]
fn a_site_redirects_to_its_own_host() {
    let server = site().serve(&[]);
    let of = |fields: &str| ask(&server, "GET /x?y", fields);
    assert_eq!(of("Host: a.example\r\n").text(), "canonical");
    assert_eq!(of("Host: A.EXAMPLE:8080\r\n").text(), "canonical");
    let other = of("Host: www.a.example:8080\r\n");
    let location = other.header("Location");
    assert_eq!(
        (other.status, location),
        (308, Some("http://a.example:8080/x?y"))
    );
    let other = of("Host: www.a.example\r\nX-Forwarded-Proto: https\r\n");
    assert_eq!(other.header("Location"), Some("https://a.example/x?y"));
}

#[test]
fn a_route_is_for_the_clients_of_its_lists() {
    let server = site().serve(&[]);
    for (client, status) in [
        ("", 200),
        ("10.1.2.3", 200),
        ("10.6.6.6", 403),
        ("203.0.113.9", 403),
        ("::ffff:10.1.2.3", 200),
        ("::1", 403),
    ] {
        let fields = match client {
            "" => String::new(),
            client => format!("X-Forwarded-For: {client}\r\n"),
        };
        for path in [
            "/inside/secret.txt",
            "//inside/secret.txt",
            "/x/../inside/secret.txt",
        ] {
            let response = ask(&server, &format!("GET {path}"), &fields);
            assert_eq!(response.status, status, "{client} {path}");
        }
    }
    // What an untrusted peer says of itself does not count.
    let strict = TOML.replace(
        "threads = 1",
        "threads = 1\ntrusted_proxies = [\"192.0.2.1\"]",
    );
    let strict = strict.replace("\"127.0.0.1\"]\ndeny", "\"192.0.2.1\"]\ndeny");
    let server = site().config(&strict).serve(&[]);
    let spoofed = ask(
        &server,
        "GET /inside/secret.txt",
        "X-Forwarded-For: 10.1.2.3\r\n",
    );
    assert_eq!(spoofed.status, 403);
}

#[test]
fn a_rate_is_kept_over_all_loops_and_over_a_reload() {
    let toml = r#"
[server]
threads = 2

[[sites]]
error_pages = { 429 = "slow-down.html" }
[[sites.routes]]
path = "/limited"
rate_limit = { rate = "10/h", burst = 10 }
respond = { body = "here" }
[[sites.routes]]
path = "/by-key"
rate_limit = { rate = "1/h", key = ["header:X-Key"] }
respond = { body = "here" }
[[sites.routes]]
path = "/waits"
rate_limit = { rate = "20/s", burst = 1, max_delay = "5s", key = "route" }
respond = { body = "here" }
[[sites.routes]]
respond = { status = 404 }
"#;
    let server = Site::new()
        .config(toml)
        .file("slow-down.html", "slow down")
        .serve(&[]);
    let limited = || ask(&server, "GET /limited", "");
    let statuses: Vec<u16> = (0..12).map(|_| limited().status).collect();
    assert_eq!(statuses, [[200; 10].as_slice(), &[429; 2]].concat());
    let refused = limited();
    assert_eq!(refused.text(), "slow down");
    let number = |name: &str| -> u64 { refused.header(name).unwrap().parse().unwrap() };
    assert!((350..=360).contains(&number("Retry-After")), "{refused:?}");
    assert_eq!(
        refused.header("RateLimit-Policy"),
        Some("\"rate\";q=10;w=3600")
    );
    assert!(
        refused
            .header("RateLimit")
            .unwrap()
            .starts_with("\"rate\";r=0;t=3")
    );
    // Another client has a rate of its own, whichever addresses of its network it takes.
    let of = |client: &str| {
        ask(
            &server,
            "GET /limited",
            &format!("X-Forwarded-For: {client}\r\n"),
        )
    };
    assert_eq!(of("203.0.113.1").status, 200);
    for _ in 0..9 {
        assert_eq!(of("2001:db8:1:2::1").status, 200);
    }
    assert_eq!(of("2001:db8:1:2::ffff").status, 200);
    assert_eq!(of("2001:db8:1:2:3::").status, 429);
    let by_key = |fields: &str| ask(&server, "GET /by-key", fields).status;
    assert_eq!([by_key("X-Key: a\r\n"), by_key("X-Key: a\r\n")], [200, 429]);
    assert_eq!(
        [by_key("X-Key: b\r\n"), by_key(""), by_key("")],
        [200, 200, 200]
    );
    let begun = std::time::Instant::now();
    for _ in 0..5 {
        assert_eq!(ask(&server, "GET /waits", "").status, 200);
    }
    assert!(begun.elapsed() >= std::time::Duration::from_millis(199));
    server
        .site()
        .write("penstock.toml", format!("{toml}# changed\n"));
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let reloaded = server.site().run(&["reload", "--admin", &admin]);
    assert!(reloaded.status.success(), "{:?}", texts(&reloaded));
    assert_eq!(limited().status, 429);
}

#[test]
fn a_route_is_for_users_who_know_their_passwords() {
    const APP: &str = "def application(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/plain')])
    return [environ.get('REMOTE_USER', 'nobody').encode()]
";
    let toml = r#"
[server]
threads = 1
access_log = "access.log"

[apps.shop]
kind = "wsgi"
entry = "shop:application"
processes = 1

[[sites]]
[[sites.routes]]
path = "/admin/*"
basic_auth = { realm = "Admin", users = { file = "users" } }
app = "shop"
[[sites.routes]]
app = "shop"
"#;
    let users = "anna:$2b$05$zDoxuuBuZ7gBZcNn6uK7WuLrqJZmbQFYwMqTQwm2gXE9eAEMrIdAC\n\
                 bert:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n";
    let server = Site::new()
        .config(toml)
        .file("shop.py", APP)
        .file("users", users)
        .serve(&[]);
    server.wait_ready("shop");
    let as_user = |text: &str| {
        let encoded = base64::engine::general_purpose::STANDARD.encode(text);
        format!("Authorization: Basic {encoded}\r\n")
    };
    let of = |fields: &str| ask(&server, "GET /admin/x", fields);
    for (user, password) in [
        ("anna", "gehäim pw"),
        ("bert", "password"),
        ("anna", "gehäim pw"),
    ] {
        let response = of(&as_user(&format!("{user}:{password}")));
        assert_eq!((response.status, response.text().as_str()), (200, user));
    }
    // A name that the client sets is not that of the server.
    let open = ask(&server, "GET /", &as_user("anna:gehäim pw"));
    assert_eq!(open.text(), "nobody");
    for fields in [
        String::new(),
        "Authorization: Basic\r\n".to_owned(),
        "Authorization: Basic !!!\r\n".to_owned(),
        "Authorization: Bearer YW5uYQ==\r\n".to_owned(),
        "Remote-User: anna\r\n".to_owned(),
        as_user("anna"),
    ] {
        let refused = of(&fields);
        assert_eq!(refused.status, 401, "{fields}");
        let challenge = refused.header("WWW-Authenticate");
        assert_eq!(challenge, Some("Basic realm=\"Admin\", charset=\"UTF-8\""));
    }
    // Twenty attempts may fail; then even the right password waits, but for one that is known.
    let wrong =
        |user: &str| of(&(as_user(&format!("{user}:wrong")) + "X-Forwarded-For: 203.0.113.1\r\n"));
    let statuses: Vec<u16> = (0..22)
        .map(|at| wrong(["anna", "nobody"][at % 2]).status)
        .collect();
    assert_eq!(statuses, [[401; 20].as_slice(), &[429; 2]].concat());
    assert!(wrong("anna").header("Retry-After").is_some());
    let known = of(&(as_user("bert:password") + "X-Forwarded-For: 203.0.113.1\r\n"));
    assert_eq!(known.status, 200);
    eventually(PATIENCE, "users in the log", || {
        let log = std::fs::read_to_string(server.site().dir().join("access.log")).unwrap();
        log.contains(" - anna [") && log.contains("- - [") && !log.contains("password")
    });
}

#[test]
fn check_names_rules_that_cannot_be_meant() {
    for (from, to, expected) in [
        (
            "match = [\"beta\"]",
            "match = [\"bete\"]",
            "there is no condition `bete`; did you mean `beta`?",
        ),
        ("{re.name}", "{re.nome}", "`{re.nome}` stands for nothing"),
        (
            "^/p/",
            "^/p/(",
            "`regex` is no regular expression: unclosed group",
        ),
        (
            "path = \"/echo\"\nredirect = \"/login",
            "path = \"/login\"\nredirect = \"/login",
            "",
        ),
    ] {
        let site = site().config(&TOML.replace(from, to));
        let checked = site.run(&["check", "--config-only"]);
        let (_, stderr) = texts(&checked);
        assert_eq!(
            checked.status.success(),
            expected.is_empty(),
            "{to}: {stderr}"
        );
        assert!(stderr.contains(expected), "{to}: {stderr}");
    }
}

/// A service that knows `Cookie: session=anna`, and sends others to its login.
fn auth_service() -> Origin {
    Origin::start(|seen| match seen.field("cookie").as_deref() {
        Some("session=anna") => Script::raw(head_of(
            "204 No Content",
            "X-User: anna\r\nX-Other: kept\r\n",
            0,
        ))
        .keep(),
        Some("session=broken") => Script::raw("HTTP/1.1 20\r\n\r\n"),
        _ => {
            let fields = "Location: https://login.example/\r\nSet-Cookie: next=1\r\n";
            Script::raw(head_of("302 Found", fields, 0)).keep()
        }
    })
}

#[test]
fn a_service_decides_about_each_request() {
    let auth = auth_service();
    let app = Origin::start(|seen| page(seen, "app"));
    let toml = format!(
        "[server]\nthreads = 1\n[upstreams.app]\nservers = [\"{}\"]\n[[sites]]\n\
         [[sites.routes]]\npath = \"/in/*\"\nupstream = \"app\"\n\
         forward_auth = {{ url = \"http://{}/verify?rd=1\", copy_headers = [\"X-User\"] }}\n\
         [[sites.routes]]\nupstream = \"app\"\n",
        app.address(),
        auth.address(),
    );
    let server = Site::new().config(&toml).serve(&[]);
    let body = "a".repeat(100_000);
    let length = body.len();
    let post = |fields: &str| {
        let mut client = server.connect();
        client.send(format!(
            "POST /in/x?y=1 HTTP/1.1\r\nHost: shop.example\r\nX-User: mallory\r\n{fields}\
             If-None-Match: *\r\nRange: bytes=0-1\r\nContent-Type: text/plain\r\nX-Forwarded-Uri: /free\r\nX-Forwarded-Method: GET\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        client.response()
    };
    let admitted = post("Cookie: session=anna\r\n");
    assert_eq!((admitted.status, admitted.text().as_str()), (200, "app"));
    let question = &auth.requests()[0];
    assert_eq!(question.line(), "GET /verify?rd=1");
    for (name, expected) in [
        ("Host", Some(auth.address().to_string())),
        ("X-Forwarded-Host", Some("shop.example".to_owned())),
        ("X-Forwarded-Uri", Some("/in/x?y=1".to_owned())),
        ("X-Forwarded-Method", Some("POST".to_owned())),
        (
            "X-Original-URL",
            Some("http://shop.example/in/x?y=1".to_owned()),
        ),
        ("Content-Length", None),
        ("Content-Type", None),
        ("If-None-Match", None),
        ("Range", None),
    ] {
        assert_eq!(question.field(name), expected, "{name}");
    }
    assert!(question.body.is_empty());
    let served = &app.requests()[0];
    assert_eq!(served.field("X-User").as_deref(), Some("anna"));
    assert_eq!(served.field("X-Other"), None);
    assert_eq!(served.body.len(), length);
    // Others get the answer of the service, and the application hears nothing of them.
    let refused = post("");
    assert_eq!(refused.status, 302);
    assert_eq!(refused.header("Location"), Some("https://login.example/"));
    assert_eq!(refused.header("Set-Cookie"), Some("next=1"));
    assert_eq!(post("Cookie: session=broken\r\n").status, 503);
    drop(auth);
    assert_eq!(post("Cookie: session=anna\r\n").status, 503);
    assert_eq!(app.requests().len(), 1);
    eventually(PATIENCE, "the service in the log", || {
        server.log().contains("forward_auth http://127.0.0.1:")
    });
    assert_eq!(ask(&server, "GET /out", "").status, 200);
}

#[test]
fn pages_of_other_sites_may_use_what_is_open_to_them() {
    let app = Origin::start(|_| {
        let fields = "Access-Control-Allow-Origin: https://old.example\r\nVary: Cookie\r\n";
        Script::raw(head_of("200 OK", fields, 0)).keep()
    });
    let toml = format!(
        "[server]\nthreads = 1\n[upstreams.app]\nservers = [\"{}\"]\n[[sites]]\n\
         [[sites.routes]]\npath = \"/api/*\"\nupstream = \"app\"\n\
         cors = {{ origins = [\"https://app.example\", \"https://*.b.example\"], \
         methods = [\"PUT\"], expose = [\"X-Total\"], credentials = true, max_age = \"1m\" }}\n\
         [[sites.routes]]\npath = \"/closed\"\ncors = [\"*\"]\n\
         allow = [\"192.0.2.1\"]\nrespond = {{}}\n[[sites.routes]]\nupstream = \"app\"\n",
        app.address(),
    );
    let server = Site::new().config(&toml).serve(&[]);
    let of = |line: &str, fields: &str| ask(&server, line, fields);
    let preflight = "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a\r\n";
    for origin in ["https://app.example", "https://x.b.example"] {
        let fields = format!("Origin: {origin}\r\n{preflight}");
        let response = of("OPTIONS /api/x", &fields);
        assert_eq!(response.status, 204);
        for (name, expected) in [
            ("Access-Control-Allow-Origin", Some(origin)),
            ("Access-Control-Allow-Credentials", Some("true")),
            ("Access-Control-Allow-Methods", Some("PUT")),
            ("Access-Control-Allow-Headers", Some("x-a")),
            ("Access-Control-Max-Age", Some("60")),
            ("Vary", Some("Origin")),
        ] {
            assert_eq!(response.header(name), expected, "{name}");
        }
    }
    assert_eq!(app.requests().len(), 0);
    let read = of(
        "PUT /api/x",
        "Origin: https://app.example\r\nContent-Length: 0\r\n",
    );
    assert_eq!(
        read.header("Access-Control-Allow-Origin"),
        Some("https://app.example")
    );
    assert_eq!(
        read.header("Access-Control-Expose-Headers"),
        Some("X-Total")
    );
    assert_eq!(read.header("Access-Control-Allow-Methods"), None);
    for origin in [
        "https://evil.example",
        "http://app.example",
        "https://app.example.evil",
        "null",
    ] {
        for (line, more) in [("OPTIONS /api/x", preflight), ("GET /api/x", "")] {
            let response = of(line, &format!("Origin: {origin}\r\n{more}"));
            assert_eq!(
                response.header("Access-Control-Allow-Origin"),
                None,
                "{origin}"
            );
            assert_eq!(
                response.header("Access-Control-Allow-Methods"),
                None,
                "{origin}"
            );
        }
    }
    // An OPTIONS of an application is the application's.
    assert_eq!(
        of("OPTIONS /api/x", "Origin: https://app.example\r\n").status,
        200
    );
    // Errors can be read, too.
    let refused = of("GET /closed", "Origin: https://any.example\r\n");
    assert_eq!(
        (
            refused.status,
            refused.header("Access-Control-Allow-Origin")
        ),
        (403, Some("*"))
    );
    let open = of("GET /free", "Origin: https://any.example\r\n");
    assert_eq!(
        open.header("Access-Control-Allow-Origin"),
        Some("https://old.example")
    );
}

#[test]
fn attempts_at_the_same_time_are_bounded_too() {
    let toml = "[server]\nthreads = 2\n[[sites]]\n[[sites.routes]]\nbasic_auth = \"users\"\n\
                respond = { body = \"in\" }\n";
    let users = "anna:$2b$05$zDoxuuBuZ7gBZcNn6uK7WuLrqJZmbQFYwMqTQwm2gXE9eAEMrIdAC\n";
    let server = Site::new().config(toml).file("users", users).serve(&[]);
    let mut clients: Vec<_> = (0..60).map(|_| server.connect()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        let text = base64::engine::general_purpose::STANDARD.encode(format!("anna:{at}"));
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {text}\r\n\r\n"
        ));
    }
    let statuses: Vec<u16> = clients.iter_mut().map(|it| it.response().status).collect();
    let count = |status| statuses.iter().filter(|found| **found == status).count();
    assert_eq!((count(401), count(429)), (20, 40), "{statuses:?}");
}

#[test]
fn a_cache_keeps_apart_what_rules_keep_apart() {
    let app = Origin::start(|seen| {
        let role = seen.field("X-Role").unwrap_or_else(|| "guest".to_owned());
        let user = seen.field("X-User").unwrap_or_else(|| "nobody".to_owned());
        let body = format!("{role} {user}");
        let head = head_of("200 OK", "Cache-Control: max-age=60\r\n", body.len());
        Script::raw(head + &body).keep()
    });
    let auth = Origin::start(|seen| {
        let user = seen.field("X-Api-Key").unwrap_or_default();
        Script::raw(head_of("204 No Content", &format!("X-User: {user}\r\n"), 0)).keep()
    });
    let toml = format!(
        "[server]\nthreads = 1\n[caches.m]\nmax_size = \"1MiB\"\n[upstreams.app]\n\
         servers = [\"{}\"]\n[[sites]]\n[[sites.routes]]\npath = \"/r/*\"\ncache = [\"m\"]\n\
         upstream = \"app\"\nmatch = {{ client = [\"10.0.0.0/8\"] }}\n\
         request_headers = {{ set = {{ X-Role = \"staff\" }} }}\n\
         [[sites.routes]]\npath = \"/r/*\"\ncache = [\"m\"]\nupstream = \"app\"\n\
         [[sites.routes]]\npath = \"/u/*\"\ncache = [\"m\"]\nupstream = \"app\"\n\
         forward_auth = {{ url = \"http://{}\", copy_headers = [\"X-User\"] }}\n",
        app.address(),
        auth.address(),
    );
    let server = Site::new().config(&toml).serve(&[]);
    let of = |path: &str, fields: &str| ask(&server, &format!("GET {path}"), fields).text();
    for _ in 0..2 {
        assert_eq!(of("/r/x", "X-Forwarded-For: 10.1.2.3\r\n"), "staff nobody");
        assert_eq!(of("/r/x", ""), "guest nobody");
        assert_eq!(of("/u/x", "X-Api-Key: anna\r\n"), "guest anna");
        assert_eq!(of("/u/x", "X-Api-Key: bert\r\n"), "guest bert");
    }
    assert_eq!(app.requests().len(), 4, "the rest came from the cache");
}

#[test]
fn an_internal_redirect_meets_the_rules_of_its_target() {
    let app = Origin::start(|_| {
        Script::raw(head_of("200 OK", "X-Accel-Redirect: /kept/a.txt\r\n", 0)).keep()
    });
    let toml = format!(
        "[server]\nthreads = 1\n[upstreams.app]\nservers = [\"{}\"]\nsendfile = true\n[[sites]]\n\
         [[sites.routes]]\npath = \"/kept/*\"\nmatch = {{ method = [\"GET\"] }}\n\
         allow = [\"192.0.2.1\"]\nfiles = {{ root = \"kept\" }}\n\
         rewrite = {{ strip_prefix = \"/kept\" }}\n\
         [[sites.routes]]\npath = \"/kept/*\"\nfiles = {{ root = \"kept\" }}\n\
         rewrite = {{ strip_prefix = \"/kept\" }}\n\
         [[sites.routes]]\nupstream = \"app\"\n",
        app.address(),
    );
    let site = Site::new().config(&toml).file("kept/a.txt", "secret");
    let server = site.serve(&[]);
    // The target is read by GET, whatever the client's method.
    for line in ["GET /x", "POST /x"] {
        assert_eq!(
            ask(&server, line, "Content-Length: 0\r\n").status,
            403,
            "{line}"
        );
    }
}
