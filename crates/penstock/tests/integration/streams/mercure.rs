//! A Mercure hub on a route: subscribe, publish with a token, reconnect, and survive a reload.

use rustix::process::Signal;

use super::*;
use crate::support::{Origin, TestAuthority, TlsFront, is_alive, kill, page};

/// The secret of publishers' tokens.
const KEY: &str = "a secret of this test, long enough for HS256";

/// `{"mercure":{"publish":["*"]}}`, signed with it.
const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\
    eyJtZXJjdXJlIjp7InB1Ymxpc2giOlsiKiJdfX0.UB4papN3XhKkYAdSAqfLHY2ffs7CdJ_21T4G-36clNc";

const HUB: &str = "/.well-known/mercure";

fn toml(more: &str) -> String {
    format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nthreads = 2\n[[sites]]\n[[sites.routes]]\npath = \"{HUB}\"\n\
         mercure = {{ publisher_key = \"{KEY}\", anonymous = true{more} }}\n"
    )
}

/// Publishes a form; returns the id of the update.
fn update(server: &Server, token: &str, form: &str) -> Response {
    let mut client = server.connect();
    let length = form.len();
    client.send(format!(
        "POST {HUB} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{form}"
    ));
    client.response()
}

fn listen(server: &Server, fields: &str) -> StreamClient {
    StreamClient::asking(
        server,
        &format!("{HUB}?topic=https%3A%2F%2Fa%2Fbooks%2F1"),
        fields,
    )
}

#[test]
fn an_update_reaches_its_topics_and_who_comes_back() {
    let server = Site::new().config(&toml("")).serve(&[]);
    let mut listener = listen(&server, "");
    assert_eq!(
        update(&server, "forged", "topic=https://a/books/1&data=x").status,
        401
    );
    let answer = update(
        &server,
        TOKEN,
        "topic=https%3A%2F%2Fa%2Fbooks%2F1&data=first&type=change",
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
    let id = answer.text();
    assert_eq!(
        update(&server, TOKEN, "topic=https://a/books/2&data=other").status,
        200
    );
    assert_eq!(
        update(&server, TOKEN, "topic=https://a/books/1&data=second").status,
        200
    );
    let text = listener.hear("data: second\n").text();
    assert!(
        text.contains("event: change\n") && text.contains(&format!("id: {id}\n")),
        "{text}"
    );
    assert!(
        !text.contains("other") && !text.contains("data: x"),
        "{text}"
    );
    let mut again = listen(&server, &format!("Last-Event-ID: {id}\r\n"));
    let text = again.hear("data: second\n").text();
    assert!(!text.contains("data: first"), "{text}");
}

#[test]
fn a_reload_goes_on_with_subscribers_and_history() {
    let site = Site::new().config(&toml(""));
    let server = site.serve(&[]);
    let mut listener = listen(&server, "");
    let id = update(&server, TOKEN, "topic=https://a/books/1&data=before").text();
    server
        .site()
        .write("penstock.toml", toml(", heartbeat_interval = \"9s\""));
    let (code, _, stderr) = verb(&server, &["reload"], "");
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(
        update(&server, TOKEN, "topic=https://a/books/1&data=after").status,
        200
    );
    listener.hear("data: before\n").hear("data: after\n");
    let mut again = listen(&server, &format!("Last-Event-ID: {id}\r\n"));
    again.hear("data: after\n");
}

#[test]
fn an_upgrade_goes_on_with_subscribers_and_history() {
    let server = Site::new().config(&toml("")).serve(&[]);
    let mut subscribers: Vec<_> = (0..20).map(|_| listen(&server, "")).collect();
    let id = update(&server, TOKEN, "topic=https://a/books/1&data=before").text();
    let mut pid = server.pid();
    for round in ["first", "second"] {
        let (code, stdout, stderr) = verb(&server, &["upgrade"], "");
        assert_eq!(code, 0, "{stdout}{stderr}\n{}", server.log());
        // No subscriber holds the old process.
        match pid == server.pid() {
            true => assert_eq!(server.wait_exit(PATIENCE).code(), Some(0)),
            false => eventually(PATIENCE, "the old process ends", || !is_alive(pid)),
        }
        pid = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
        let form = format!("topic=https://a/books/1&data={round}");
        assert_eq!(update(&server, TOKEN, &form).status, 200);
        for subscriber in &mut subscribers {
            subscriber.hear(&format!("data: {round}\n"));
        }
    }
    for subscriber in &subscribers {
        let events = subscriber.text();
        let data = events.lines().filter(|line| line.starts_with("data: "));
        let expected = ["data: before", "data: first", "data: second"];
        assert!(data.eq(expected), "{events}");
    }
    let mut again = listen(&server, &format!("Last-Event-ID: {id}\r\n"));
    again.hear("data: first\n").hear("data: second\n");
    kill(pid, Signal::TERM);
    eventually(PATIENCE, "the new one ends", || !is_alive(pid));
}

#[test]
fn a_key_that_is_none_is_an_error_of_check() {
    let toml = toml("").replace(
        &format!("\"{KEY}\""),
        "{ key = \"-----BEGIN PUBLIC KEY-----\\nAAAA\\n-----END PUBLIC KEY-----\\n\", algorithm = \"RS256\" }",
    );
    let site = Site::new().config(&toml);
    let output = site.run(&["check"]);
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("publisher_key"), "{stderr}");
}

/// `{"iss":"https://id.example","aud":["hub","shop"],"mercure":{"publish":["*"]}}`, signed with
/// Ed25519 and the private key of RFC 8037, appendix A; `kid` is `one`, then `two`.
pub(crate) const KEY_ONE_TOKEN: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6Im9uZSJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUiLCJhdWQ\
    iOlsiaHViIiwic2hvcCJdLCJtZXJjdXJlIjp7InB1Ymxpc2giOlsiKiJdfX0.W6d-PSTXlVSZiNxD4kD\
    Ut_15oT2Rsi7e67msMd9pyL3twbVWE3Uu5xw0gLd-sLPdMMWfOzhGP0fy32Odx5HDCQ";
pub(crate) const KEY_TWO_TOKEN: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6InR3byJ9.eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUiLCJhdWQ\
    iOlsiaHViIiwic2hvcCJdLCJtZXJjdXJlIjp7InB1Ymxpc2giOlsiKiJdfX0.lIb_VQx0p8ODR0CepRb\
    dfJXViG31a0MIBS3JOam41OtnOtP_s_IpqEqQzbsQmSrXxtqKGvxjZhGIT4DMZiqdAg";

pub(crate) fn key_set(id: &str) -> String {
    format!(
        r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{id}","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}}]}}"#
    )
}

#[test]
fn the_keys_of_a_set_are_fetched_and_fetched_again() {
    let origin = Origin::start(|seen| {
        // Another key after the first fetch.
        let id = if seen.connection == 0 { "one" } else { "two" };
        page(seen, key_set(id))
    });
    let toml = |keys: &str, audience: &str| {
        format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\n[[sites]]\n[[sites.routes]]\npath = \"{HUB}\"\n\
             mercure = {{ publisher_key = {{ jwks = \"{keys}\" }}, issuer = \"https://id.example\", \
             audience = \"{audience}\" }}\n"
        )
    };
    let publish = |server: &Server, token| update(server, token, "topic=a&data=b").status;
    let url = format!("http://{}/keys", origin.address());
    let server = Site::new().config(&toml(&url, "hub")).serve(&[]);
    eventually(PATIENCE, "the first key is there", || {
        publish(&server, KEY_ONE_TOKEN) == 200
    });
    assert_eq!(publish(&server, TOKEN), 401);
    eventually(PATIENCE, "the second key is there", || {
        publish(&server, KEY_TWO_TOKEN) == 200
    });
    assert_eq!(publish(&server, KEY_ONE_TOKEN), 401);
    assert_eq!(origin.requests().len(), 2);
    let server = Site::new()
        .file("keys.json", key_set("one"))
        .config(&toml("keys.json", "shop"))
        .serve(&[]);
    eventually(PATIENCE, "the file is read", || {
        publish(&server, KEY_ONE_TOKEN) == 200
    });
    let gone = Site::new().config(&toml("none.json", "hub")).serve(&[]);
    gone.wait_log("none.json: cannot be read: No such file");
    assert_eq!(publish(&gone, KEY_ONE_TOKEN), 401);
}

#[test]
fn the_keys_of_a_set_come_over_tls_from_a_server_that_proves_its_name() {
    let origin = Origin::start(|seen| page(seen, key_set("one")));
    let authority = TestAuthority::new("Servers");
    let secure = TlsFront::before(&origin, &authority, "127.0.0.1");
    let wrong = TlsFront::before(&origin, &authority, "id.example");
    let serve = |front: &TlsFront| {
        let url = format!("https://{}/keys", front.address());
        let toml = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\n[[sites]]\n[[sites.routes]]\npath = \"{HUB}\"\n\
             mercure = {{ publisher_key = {{ jwks = \"{url}\" }} }}\n"
        );
        let site = Site::new().file("ca.pem", authority.pem()).config(&toml);
        let authorities = site.dir().join("ca.pem").display().to_string();
        site.serve_with(&[], &[("SSL_CERT_FILE", &authorities)])
    };
    let server = serve(&secure);
    eventually(PATIENCE, "the key is there", || {
        update(&server, KEY_ONE_TOKEN, "topic=a&data=b").status == 200
    });
    let refused = serve(&wrong);
    refused.wait_log("TLS handshake failed: invalid peer certificate");
    assert_eq!(
        update(&refused, KEY_ONE_TOKEN, "topic=a&data=b").status,
        401
    );
}
