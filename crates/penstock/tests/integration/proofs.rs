//! Rules that ask clients for a proof, together with rewrites, caches, reloads and one another.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::{
    Origin, PATIENCE, ReceivedRequest, Response, Script, Server, Site, eventually, head_of, page,
};

fn begin(server: &Server, target: &str, fields: &str) -> crate::support::RawClient {
    let mut client = server.connect();
    client.send(format!(
        "GET {target} HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n"
    ));
    client
}

fn ask(server: &Server, target: &str, fields: &str) -> Response {
    begin(server, target, fields).response()
}

fn password(user: &str, password: &str) -> String {
    let encoded = STANDARD.encode(format!("{user}:{password}"));
    format!("Authorization: Basic {encoded}\r\n")
}

fn reload(server: &Server) {
    let control = format!("unix:{}", server.control_path().display());
    let output = server.site().run(&["reload", "--admin", &control]);
    assert!(output.status.success(), "{output:?}");
}

/// Answers with what it was asked for, and fields.
fn echo(seen: &ReceivedRequest, fields: &str) -> Script {
    let field = |name: &str| seen.field(name).unwrap_or_else(|| "-".to_owned());
    let body = format!(
        "{} {} {} {}",
        seen.target,
        field("X-Forwarded-Uri"),
        field("X-Original-URL"),
        field("X-User")
    );
    Script::raw(head_of("200 OK", fields, body.len()) + &body).keep()
}

#[test]
fn a_service_is_told_what_the_client_asked_for_whatever_the_route_makes_of_it() {
    let service = Origin::start(|seen| echo(seen, ""));
    let app = Origin::start(|seen| echo(seen, ""));
    let toml = format!(
        "[server]\nthreads = 1\ntrusted_proxies = [\"127.0.0.1\"]\n[upstreams.app]\nservers = [\"{}\"]\n[[sites]]\n\
         [[sites.routes]]\npath = {{ regex = \"^/fr/(.*)$\" }}\nupstream = \"app\"\n\
         rewrite = {{ regex = \"^/fr/(.*)$\", to = \"/internal/{{re.1}}\" }}\n\
         forward_auth = \"http://{service}/auth\"\n\
         [[sites.routes]]\npath = \"/s p/*\"\nupstream = \"app\"\n\
         rewrite = {{ strip_prefix = \"/s p\", add_prefix = \"/base\" }}\n\
         forward_auth = \"http://{service}/auth\"\n",
        app.address(),
        service = service.address(),
    );
    let server = Site::new().config(&toml).serve(&[]);
    for (target, passed_on) in [
        ("/fr/secret?a=1", "/internal/secret?a=1"),
        ("/s%20p/x?b", "/base/x?b"),
    ] {
        let response = ask(&server, target, "X-Forwarded-Prefix: /outer\r\n");
        assert_eq!(response.status, 200, "{target}");
        let asked = service.requests().pop().unwrap();
        let told = |name: &str| asked.field(name).unwrap();
        assert_eq!(told("X-Forwarded-Uri"), format!("/outer{target}"));
        let url = format!("http://shop.example/outer{target}");
        assert_eq!(told("X-Original-URL"), url);
        let got = app.requests().pop().unwrap().target;
        assert_eq!(got, passed_on, "{target}");
    }
}

#[test]
fn a_link_is_what_was_signed_whatever_the_route_makes_of_it() {
    let rewrite = "rewrite = [{ regex = \"^/[a-z]+/(.*)$\", to = \"/files/{re.1}\" }]\n";
    let toml = format!(
        "[server]\nthreads = 1\n[[sites]]\n\
         [[sites.routes]]\npath = \"/s/*\"\nsigned_url = {{ secret = {{ file = \"secret\" }} }}\n\
         files = {{ root = \"public\" }}\n{rewrite}\
         [[sites.routes]]\npath = \"/shared/*\"\n\
         signed_url = {{ secret = {{ file = \"secret\" }} }}\n\
         files = {{ root = \"public\" }}\n{rewrite}"
    );
    let server = Site::new()
        .config(&toml)
        .file("secret", "a secret of thirty-two bytes.....\n")
        .file("public/files/a.zip", "zip")
        .serve(&[]);
    // Signed by Python's `hmac`.
    let of_s = "expires=2000000000&signature=nxFkS2HVNjCOmM131Ec1TbVkfac3Tdx4CE62TMq4cDQ";
    let of_shared = "expires=2000000000&signature=ucMWS19v6DPeVQfHwSowaFbj7WQUwe7EGe7e3_z__qc";
    for (path, signed, status) in [
        ("/s/a.zip", of_s, 200),
        ("/shared/a.zip", of_shared, 200),
        ("/s/a.zip", of_shared, 403),
        ("/shared/a.zip", of_s, 403),
    ] {
        let response = ask(&server, &format!("{path}?{signed}"), "");
        assert_eq!(response.status, status, "{path} {signed}");
    }
}

/// What `htpasswd -nbB -C 8 anna pw` printed.
const USERS: &str = "anna:$2y$08$eUxulD/y762Gmbn/7GNdn.BcwFzPWtm5YoG.8PQTsQeK3jGUklCLG\n";

#[test]
fn a_page_with_many_files_is_one_attempt_to_sign_in() {
    let toml = "[server]\nthreads = 2\n[[sites]]\n[[sites.routes]]\n\
         basic_auth = { users = { file = \"users\" } }\nrespond = { body = \"in\" }\n";
    let server = Site::new().config(toml).file("users", USERS).serve(&[]);
    let right = password("anna", "pw");
    let mut clients: Vec<_> = (0..60).map(|_| begin(&server, "/", &right)).collect();
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    // Wrong ones at a time are one attempt, too.
    let wrong = password("anna", "no");
    let mut clients: Vec<_> = (0..60).map(|_| begin(&server, "/", &wrong)).collect();
    let mut refused = 0;
    for client in &mut clients {
        let status = client.response().status;
        refused += usize::from(status == 401);
        assert!(matches!(status, 401 | 429), "{status}");
    }
    assert!(refused > 0);
    // A reload forgets no password that was right: no hash is computed, and so none is refused.
    eventually(
        PATIENCE,
        "this client is refused for another password",
        || ask(&server, "/", &password("anna", "another")).status == 429,
    );
    reload(&server);
    assert_eq!(ask(&server, "/", &right).status, 200);
    // With other users it does.
    server.site().write("users", USERS.replace("anna", "bert"));
    reload(&server);
    assert_eq!(ask(&server, "/", &right).status, 429);
}

#[test]
fn two_authorization_fields_are_none() {
    let toml = "[server]\nthreads = 1\n[[sites]]\n[[sites.routes]]\n\
         basic_auth = { users = { file = \"users\" } }\nrespond = { body = \"in\" }\n";
    let server = Site::new().config(toml).file("users", USERS).serve(&[]);
    let right = password("anna", "pw");
    assert_eq!(ask(&server, "/", &right).status, 200);
    for more in [
        password("bert", "x"),
        "Authorization: Bearer x\r\n".to_owned(),
    ] {
        let response = ask(&server, "/", &(right.clone() + &more));
        assert_eq!(response.status, 401, "{more}");
    }
}

#[test]
fn all_ways_to_sign_in_are_offered_unless_the_service_has_failed() {
    let service = Origin::start(|seen| match seen.field("X-Fail") {
        Some(_) => Script::raw(head_of("500 Oops", "", 4) + "boom").keep(),
        None => {
            let fields = "WWW-Authenticate: Bearer\r\n";
            Script::raw(head_of("401 Unauthorized", fields, 5) + "login").keep()
        }
    });
    let toml = format!(
        "[server]\nthreads = 1\n[[sites]]\n[[sites.routes]]\nsatisfy = \"any\"\n\
         basic_auth = {{ realm = \"R\", users = {{ file = \"users\" }} }}\n\
         forward_auth = \"http://{}/auth\"\nrespond = {{ body = \"in\" }}\n",
        service.address()
    );
    let server = Site::new().config(&toml).file("users", USERS).serve(&[]);
    let challenges = |response: &Response| {
        let fields = response.headers.iter();
        let named = fields.filter(|(name, _)| name.eq_ignore_ascii_case("WWW-Authenticate"));
        named.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let basic = "Basic realm=\"R\", charset=\"UTF-8\"";
    let offered = ask(&server, "/", "");
    assert_eq!((offered.status, offered.text()), (401, "login".to_owned()));
    assert_eq!(challenges(&offered), [basic, "Bearer"]);
    let failed = ask(&server, "/", "X-Fail: 1\r\n");
    assert_eq!(
        (failed.status, challenges(&failed)),
        (401, vec![basic.to_owned()])
    );
    let fields = password("anna", "pw") + "X-Fail: 1\r\n";
    assert_eq!(ask(&server, "/", &fields).status, 200);
}

/// Signed with [`SECRET`] for the users `anna` and `bert`.
const TOKENS: [&str; 2] = [
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\
     eyJzdWIiOiJhbm5hIiwiYXVkIjoic2hvcCIsImV4cCI6NDEwMjQ0NDgwMCwicm9sZXMiOlsic3RhZmYiXX0.\
     eLw9guTt-8DaCFEy-HPW48LOjrh59Z5I6Fy3mt82Chk",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\
     eyJzdWIiOiJiZXJ0IiwiYXVkIjoic2hvcCIsImV4cCI6NDEwMjQ0NDgwMCwicm9sZXMiOlsic3RhZmYiXX0.\
     804BJwYyOf8q_omwk4HMqKe1AinRlYiG8XhKiDCIyKU",
];
const SECRET: &str = "a secret of more than 32 bytes for tests\n";

#[test]
fn a_cache_keeps_the_pages_of_users_apart() {
    let app = Origin::start(|seen| {
        let is_public = seen.target.starts_with("/public");
        let control = ["max-age=60", "public, max-age=60"][usize::from(is_public)];
        echo(seen, &format!("Cache-Control: {control}\r\n"))
    });
    let toml = format!(
        "[server]\nthreads = 1\n[upstreams.app]\nservers = [\"{}\"]\n\
         [caches.c]\nmax_size = \"16MiB\"\n[[sites]]\n[[sites.routes]]\nupstream = \"app\"\n\
         cache = {{ stores = [\"c\"] }}\n\
         jwt = {{ key = {{ file = \"key\" }}, cookie = \"tok\", claims = {{ X-User = \"sub\" }} }}\n",
        app.address()
    );
    let server = Site::new().config(&toml).file("key", SECRET).serve(&[]);
    let of = |target: &str, token: &str| ask(&server, target, &format!("Cookie: tok={token}\r\n"));
    let is_hit = |response: &Response| {
        let status = response.header("Cache-Status").unwrap_or_default();
        status.contains("hit")
    };
    // What says that it is for all is stored, by user where the back end sees the user.
    eventually(PATIENCE, "the cache is open", || {
        is_hit(&of("/public/x", TOKENS[0]))
    });
    for (token, user) in TOKENS.iter().zip(["anna", "bert"]) {
        for target in ["/public/x", "/public/x", "/x", "/x"] {
            let response = of(target, token);
            assert!(response.text().ends_with(user), "{}", response.text());
            if target == "/x" {
                // A user's page without a word about others is none for a shared cache.
                assert!(!is_hit(&response), "{user}");
            }
        }
        assert!(is_hit(&of("/public/x", token)), "{user}");
    }
}

#[test]
fn a_route_that_a_reload_adds_has_the_keys_of_its_tokens_at_once() {
    use crate::streams::mercure::{KEY_ONE_TOKEN, key_set};
    let origin = Origin::start(|seen| page(seen, key_set("one")));
    let toml = |rule: &str| {
        format!("[server]\nthreads = 1\n[[sites]]\n[[sites.routes]]\nrespond = {{}}\n{rule}")
    };
    let site = Site::new().config(&toml(""));
    let server = site.serve(&[]);
    let rule = format!("jwt = {{ jwks = \"http://{}/keys\" }}\n", origin.address());
    server.site().write("penstock.toml", toml(&rule));
    reload(&server);
    // Its key is good; the token has no end, which a route with `jwt` refuses. 503 is without keys.
    let bearer = format!("Authorization: Bearer {KEY_ONE_TOKEN}\r\n");
    assert_eq!(ask(&server, "/", &bearer).status, 401);
}

#[test]
fn a_reload_keeps_the_places_of_requests_in_progress() {
    let origin = Origin::start(|_| {
        Script::early()
            .gate("open")
            .send(head_of("200 OK", "", 0))
            .keep()
    });
    let toml = format!(
        "[server]\nthreads = 1\n[upstreams.u]\nservers = [\"{}\"]\n[[sites]]\n[[sites.routes]]\n\
         upstream = \"u\"\nmax_concurrent = 1\n",
        origin.address()
    );
    let server = Site::new().config(&toml).serve(&[]);
    let mut first = begin(&server, "/", "");
    origin.wait_at("open", 1);
    assert_eq!(ask(&server, "/", "").status, 429);
    reload(&server);
    assert_eq!(ask(&server, "/", "").status, 429);
    origin.open_gate("open");
    assert_eq!(first.response().status, 200);
    eventually(PATIENCE, "the place is free", || {
        ask(&server, "/", "").status == 200
    });
}
