//! A configuration of several files, with variables and with secrets in files of their own.
//!
//! # Invariants
//! - A reload reads every file again, and `check` names the file and the line of a mistake.
//! - No output shows a secret.

use crate::support::{PATIENCE, Server, Site, eventually, texts};

const MAIN: &str = r#"
[server]
listen = ["127.0.0.1:0"]
include = ["${SITES}/*.toml"]
env_file = "variables.env"
[hub]
grip_key = { credential = "grip" }
"#;

const SECRET: &str = "pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ";

fn respond(host: &str, body: &str) -> String {
    format!(
        "[[sites]]\nhosts = [\"{host}\"]\n[[sites.routes]]\nrespond = {{ body = \"{body}\" }}\n"
    )
}

fn site() -> Site {
    Site::new()
        .config(MAIN)
        .file(
            "variables.env",
            "GREETING='hello \"you\"'\nHOST=file.example\n",
        )
        .file(
            "parts/a.toml",
            respond("${HOST}", "${GREETING} from ${PLACE:-nowhere}"),
        )
        .file("credentials/grip", format!("{SECRET}\n"))
}

fn variables(site: &Site) -> [(&'static str, String); 3] {
    let credentials = site.dir().join("credentials").display().to_string();
    [
        ("SITES", "parts".to_owned()),
        ("HOST", "a.example".to_owned()),
        ("CREDENTIALS_DIRECTORY", credentials),
    ]
}

fn body(server: &Server, host: &str) -> String {
    let mut client = server.connect();
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    ));
    client.response().text()
}

fn reload(server: &Server) -> (Option<i32>, String) {
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let output = server.site().run(&["reload", "--admin", &admin]);
    (output.status.code(), texts(&output).1)
}

#[test]
fn files_variables_and_secrets_make_one_configuration() {
    let site = site();
    let environment = variables(&site);
    let environment = environment
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let server = site.serve_with(&[], &environment);
    assert_eq!(body(&server, "a.example"), "hello \"you\" from nowhere");

    site.write("parts/b.toml", respond("b.example", "b"));
    site.write("variables.env", "GREETING=bye\nPLACE=here\n");
    assert_eq!(reload(&server).0, Some(0), "{}", server.log());
    assert_eq!(body(&server, "a.example"), "bye from here");
    assert_eq!(body(&server, "b.example"), "b");

    site.write("parts/c.toml", format!("\n{}", respond("b.example", "c")));
    let (code, error) = reload(&server);
    assert_eq!(code, Some(1), "{error}");
    let expected = "parts/c.toml:3:10: host b.example is already taken by the site on line 2 of \
                    parts/b.toml";
    assert!(error.contains(expected), "{error}");
    assert_eq!(body(&server, "b.example"), "b");

    site.write("parts/c.toml", "");
    site.write("credentials/grip", "");
    let (code, error) = reload(&server);
    assert_eq!(code, Some(1), "{error}");
    assert!(
        error.contains("`grip_key` (not shown) cannot be used"),
        "{error}"
    );
    assert!(!server.log().contains(SECRET) && !error.contains(SECRET));
}

#[test]
fn a_variable_that_is_missing_stops_a_start() {
    let site = site();
    let output = site.run(&["check", "--config-only"]);
    let (_, error) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("penstock.toml:4:13: the variable `SITES` is not set"),
        "{error}"
    );
}

#[test]
fn development_reloads_when_an_included_file_appears() {
    let site = site();
    let environment = variables(&site);
    let environment = environment
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let server = site.serve_with(&["--dev"], &environment);
    // A server that serves may not watch yet.
    eventually(
        PATIENCE,
        "the new file is part of the configuration",
        || {
            site.write("parts/b.toml", respond("b.example", "b"));
            body(&server, "b.example") == "b"
        },
    );
}
