//! Who may use a route: networks, passwords, tokens and signatures, all or one of them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::{
    Origin, PATIENCE, Response, Script, Server, Site, eventually, head_of, page, texts,
};

/// The response to a GET with these lines of fields.
fn ask(server: &Server, target: &str, fields: &str) -> Response {
    let mut client = server.connect();
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n"
    ));
    client.response()
}

/// Loopback is a trusted proxy unless the file lists others.
fn from(client: &str) -> String {
    format!("X-Forwarded-For: {client}\r\n")
}

fn password(user: &str, password: &str) -> String {
    let encoded = STANDARD.encode(format!("{user}:{password}"));
    format!("Authorization: Basic {encoded}\r\n")
}

#[test]
fn a_network_or_a_password_is_enough_where_the_route_says_so() {
    let toml = "[server]\nthreads = 1\n[[sites]]\n[[sites.routes]]\npath = \"/any\"\n\
         satisfy = \"any\"\nallow = [\"10.0.0.0/8\"]\ndeny = [\"10.6.6.6\"]\nbasic_auth = \"users\"\n\
         respond = { body = \"in\" }\n[[sites.routes]]\npath = \"/all\"\n\
         allow = [\"10.0.0.0/8\"]\nbasic_auth = \"users\"\nrespond = { body = \"in\" }\n";
    let users = "bert:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n";
    let server = Site::new().config(toml).file("users", users).serve(&[]);
    let right = password("bert", "password");
    for (target, fields, status) in [
        ("/any", from("10.1.2.3"), 200),
        ("/any", from("203.0.113.1"), 401),
        ("/any", from("203.0.113.1") + &right, 200),
        ("/any", from("10.6.6.6") + &right, 403),
        ("/any", from("203.0.113.1") + &password("bert", "x"), 401),
        ("/all", from("10.1.2.3"), 401),
        ("/all", from("203.0.113.1") + &right, 403),
        ("/all", from("10.1.2.3") + &right, 200),
    ] {
        let response = ask(&server, target, &fields);
        assert_eq!(response.status, status, "{target} {fields}");
        let challenge = response.header("WWW-Authenticate");
        assert_eq!(challenge.is_some(), status == 401, "{target} {fields}");
    }
}

/// Signed with [`SECRET`]: `{"sub":"anna","aud":"shop","exp":4102444800,"roles":["staff"]}`.
const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\
    eyJzdWIiOiJhbm5hIiwiYXVkIjoic2hvcCIsImV4cCI6NDEwMjQ0NDgwMCwicm9sZXMiOlsic3RhZmYiXX0.\
    eLw9guTt-8DaCFEy-HPW48LOjrh59Z5I6Fy3mt82Chk";
const SECRET: &str = "a secret of more than 32 bytes for tests\n";

#[test]
fn a_token_names_the_user_of_an_application() {
    let app = Origin::start(|seen| {
        let field = |name| seen.field(name).unwrap_or_else(|| "-".to_owned());
        let body = format!("{} {}", field("X-User"), field("X-Roles"));
        let head = head_of("200 OK", "", body.len());
        Script::raw(head + &body).keep()
    });
    let toml = format!(
        "[server]\nthreads = 1\naccess_log = \"access.log\"\n[upstreams.app]\n\
         servers = [\"{}\"]\n[[sites]]\n[[sites.routes]]\npath = \"/admin\"\nupstream = \"app\"\n\
         jwt = {{ key = {{ file = \"key\" }}, require = {{ roles = \"admin\" }} }}\n\
         [[sites.routes]]\nupstream = \"app\"\n\
         jwt = {{ key = {{ file = \"key\" }}, audience = \"shop\", query = \"pass_it\", \
         cookie = \"jwt\", claims = {{ X-User = \"sub\", X-Roles = \"roles\", X-None = \"none\" }} }}\n",
        app.address(),
    );
    let server = Site::new().config(&toml).file("key", SECRET).serve(&[]);
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    for (target, fields) in [
        (
            "/",
            bearer.clone() + "X-User: root\r\nX_Roles: admin\r\nX-None: x\r\n",
        ),
        ("/", format!("Cookie: jwt={TOKEN}\r\n")),
        (&format!("/?pass_it={TOKEN}"), String::new()),
    ] {
        let response = ask(&server, target, &fields);
        let found = (response.status, response.text());
        assert_eq!(found, (200, "anna staff".to_owned()), "{target}");
    }
    assert_eq!(app.requests()[0].field("X-None"), None);
    assert_eq!(app.requests()[0].field("X_Roles"), None);
    for (target, fields, status, error) in [
        ("/", "", 401, None),
        (
            "/",
            "Authorization: Bearer a.b.c\r\n",
            401,
            Some("invalid_token"),
        ),
        ("/admin", &*bearer, 403, Some("insufficient_scope")),
    ] {
        let response = ask(&server, target, fields);
        assert_eq!(response.status, status, "{target} {fields}");
        let challenge = response.header("WWW-Authenticate").unwrap();
        assert!(
            challenge.starts_with("Bearer realm=\"restricted\""),
            "{challenge}"
        );
        let found = challenge.split("error=\"").nth(1);
        assert_eq!(found.map(|rest| rest.trim_end_matches('"')), error);
    }
    assert_eq!(app.requests().len(), 3);
    eventually(PATIENCE, "the user and no token in the log", || {
        let log = std::fs::read_to_string(server.site().dir().join("access.log")).unwrap();
        log.contains(" - anna [") && log.contains("pass_it=***") && !log.contains(TOKEN)
    });
}

#[test]
fn a_set_of_keys_opens_nothing_before_it_is_there() {
    use crate::streams::mercure::{KEY_ONE_TOKEN, key_set};
    let origin = Origin::start(|seen| page(seen, key_set("one")));
    let toml = |address: &str| {
        format!(
            "[server]\nthreads = 1\n[[sites]]\n[[sites.routes]]\nrespond = {{ body = \"in\" }}\n\
             jwt = {{ jwks = \"http://{address}/keys\", issuer = \"https://id.example\" }}\n"
        )
    };
    let bearer = format!("Authorization: Bearer {KEY_ONE_TOKEN}\r\n");
    let site = Site::new().config(&toml("127.0.0.1:9"));
    let server = site.serve(&[]);
    assert_eq!(ask(&server, "/", &bearer).status, 503);
    assert_eq!(ask(&server, "/", "").status, 401);
    server.wait_log("jwt: the keys of http://127.0.0.1:9/keys have not been read yet");
    drop(server);
    let site = Site::new().config(&toml(&origin.address().to_string()));
    let server = site.serve(&[]);
    // Its key is good; the token has no end, which a route with `jwt` refuses.
    eventually(PATIENCE, "the key is there", || {
        ask(&server, "/", &bearer).status == 401
    });
    let refused = ask(&server, "/", &bearer);
    let challenge = refused.header("WWW-Authenticate").unwrap();
    assert!(
        challenge.ends_with("error=\"invalid_token\""),
        "{challenge}"
    );
}

#[test]
fn a_folder_is_open_to_links_that_the_application_has_signed() {
    let toml = "[server]\nthreads = 1\naccess_log = \"access.log\"\n[[sites]]\n\
         [[sites.routes]]\npath = \"/s/*\"\nsigned_url = { secret = { file = \"secrets\" } }\n\
         files = { root = \"private\" }\nrewrite = { strip_prefix = \"/s\" }\n\
         [[sites.routes]]\npath = \"/old/*\"\nrespond = { body = \"old\" }\n\
         signed_url = { secret = \"secret\", md5 = \"{expires}{path} {secret}\" }\n";
    let server = Site::new()
        .config(toml)
        .file(
            "secrets",
            "the next secret of the app\na secret of thirty-two bytes.....\n",
        )
        .file("private/a.zip", "zip")
        .serve(&[]);
    // Signed by Python's `hmac`; the second one ended in 2001.
    let good = "/s/a.zip?expires=2000000000&signature=nxFkS2HVNjCOmM131Ec1TbVkfac3Tdx4CE62TMq4cDQ";
    let old = "/s/a.zip?expires=1000000000&signature=0SS9ygY2q9pdYXctCqIcEDene0Hhgh4K4yMZRq7bcyU";
    for (target, status) in [
        (good.to_owned(), 200),
        (old.to_owned(), 410),
        (format!("{good}&x=1"), 403),
        (good.replace("a.zip", "b.zip"), 403),
        ("/s/a.zip".to_owned(), 403),
        (
            "/old/x?expires=1&md5=AAAAAAAAAAAAAAAAAAAAAA".to_owned(),
            403,
        ),
    ] {
        assert_eq!(ask(&server, &target, "").status, status, "{target}");
    }
    let mut client = server.connect();
    client.send(format!(
        "POST {good} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    ));
    assert_eq!(client.response().status, 403);
    eventually(PATIENCE, "no signature in the log", || {
        let log = std::fs::read_to_string(server.site().dir().join("access.log")).unwrap();
        log.contains("signature=***") && log.contains("md5=***") && !log.contains("nxFkS2")
    });
}

#[test]
fn check_names_keys_and_hashes_that_no_request_could_use() {
    let toml = "[[sites]]\n[[sites.routes]]\npath = \"/a\"\nbasic_auth = \"users\"\nrespond = {}\n\
         [[sites.routes]]\npath = \"/b\"\njwt = { key = { file = \"key\" } }\nrespond = {}\n";
    let users = "anna:$2b$99$zDoxuuBuZ7gBZcNn6uK7WuLrqJZmbQFYwMqTQwm2gXE9eAEMrIdAC\n\
         bert:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n";
    let site = Site::new()
        .config(toml)
        .file("users", users)
        .file("key", "guessed");
    let checked = site.run(&["check", "--config-only"]);
    let (_, stderr) = texts(&checked);
    assert!(!checked.status.success(), "{stderr}");
    for expected in [
        "route /a: basic_auth: the hash of `anna` is broken",
        "route /b: jwt.key: HS256 needs a secret of at least 32 bytes",
    ] {
        assert!(stderr.contains(expected), "{stderr}");
    }
    assert!(
        !stderr.contains("bert") && !stderr.contains("guessed"),
        "{stderr}"
    );
}
