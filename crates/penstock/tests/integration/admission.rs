//! Who may use a route: networks, passwords, tokens and signatures, all or one of them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::support::{Response, Server, Site};

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
