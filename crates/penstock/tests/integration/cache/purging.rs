//! Purging by URL, prefix, tag and all at once, through the command and through the API.

use serde_json::{Value, json};

use super::{
    CacheSetup, IN_MEMORY, ON_DISK, answer, counting, in_front_of, is_hit, text, verb, wait_hit,
    wait_objects,
};
use crate::support::{Origin, Response, Script, Server, head_of};

const PAGES: [&str; 4] = ["/news/1", "/news/2", "/newest", "/?page=/news/"];

/// Stores all of [`PAGES`].
fn fill(server: &Server) {
    for target in PAGES {
        super::get(server, target);
        wait_hit(server, target);
    }
}

/// Which of [`PAGES`] are still in the cache.
fn kept(server: &Server) -> Vec<&'static str> {
    let is_kept = |target: &&str| is_hit(&super::get(server, target));
    PAGES.into_iter().filter(is_kept).collect()
}

fn purge(server: &Server, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = verb(server, &[&["purge"], arguments].concat());
    assert_eq!(code, 0, "{arguments:?}: {stderr}");
    stdout.trim().to_owned()
}

fn post(server: &Server, fields: &str, body: &str) -> Response {
    let mut client = server.control();
    client.send(format!(
        "POST /cache/purge HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.response()
}

#[test]
fn the_command_takes_out_what_it_is_told_to_and_nothing_else() {
    for cache in [IN_MEMORY, ON_DISK] {
        let origin = counting("Cache-Control: max-age=3600\r\n");
        let server = CacheSetup::new(&origin, cache).serve();
        fill(&server);
        assert_eq!(purge(&server, &["http://a/news/1"]), "purged 1 object");
        assert_eq!(kept(&server), PAGES[1..]);
        fill(&server);
        assert_eq!(purge(&server, &["/news/2"]), "purged 1 object");
        assert_eq!(kept(&server), [PAGES[0], PAGES[2], PAGES[3]]);
        fill(&server);
        assert_eq!(purge(&server, &["/news"]), "purged 0 objects");
        assert_eq!(purge(&server, &["http://b/news/1"]), "purged 0 objects");
        assert_eq!(kept(&server), PAGES);
        assert_eq!(purge(&server, &["--prefix", "/news/"]), "purged 2 objects");
        assert_eq!(kept(&server), PAGES[2..]);
        fill(&server);
        assert_eq!(
            purge(&server, &["--prefix", "http://a/new"]),
            "purged 3 objects"
        );
        assert_eq!(kept(&server), PAGES[3..]);
        fill(&server);
        assert_eq!(
            purge(&server, &["--all", "--cache", "store"]),
            "purged 4 objects"
        );
        wait_objects(&server, 0);
        assert_eq!(kept(&server), PAGES[..0]);
    }
}

#[test]
fn a_tag_takes_out_all_that_bore_it() {
    let origin = Origin::start(|seen| {
        let tags = match seen.target.as_str() {
            "/news/1" => "Surrogate-Key: news one\r\n",
            "/news/2" => "Cache-Tag: two,news\r\n",
            _ => "Surrogate-Key: newspaper\r\n",
        };
        answer(seen, &format!("Cache-Control: max-age=3600\r\n{tags}"), "x")
    });
    let server = in_front_of(&origin);
    fill(&server);
    assert_eq!(purge(&server, &["--tag", "none"]), "purged 0 objects");
    assert_eq!(purge(&server, &["--tag", "two"]), "purged 1 object");
    assert_eq!(kept(&server), [PAGES[0], PAGES[2], PAGES[3]]);
    fill(&server);
    assert_eq!(purge(&server, &["--tag", "news"]), "purged 2 objects");
    assert_eq!(kept(&server), PAGES[2..]);
}

#[test]
fn all_variants_go_with_their_url() {
    let origin = Origin::start(|seen| {
        let fields = "Cache-Control: max-age=3600\r\nVary: Accept-Language\r\n";
        answer(
            seen,
            fields,
            seen.field("accept-language").unwrap_or_default(),
        )
    });
    let server = in_front_of(&origin);
    let ask = |language: &str| {
        let field = format!("Accept-Language: {language}\r\n");
        super::ask(&server, "GET /a", &field)
    };
    for language in ["de", "fr"] {
        assert_eq!(ask(language).text(), language);
        assert!(is_hit(&ask(language)));
    }
    assert_eq!(purge(&server, &["/a"]), "purged 2 objects");
    for language in ["de", "fr"] {
        assert!(!is_hit(&ask(language)), "{language}");
    }
}

#[test]
fn the_api_does_the_same_and_says_how_many() {
    let origin = counting("Cache-Control: max-age=3600\r\n");
    let server = in_front_of(&origin);
    fill(&server);
    for (body, objects) in [
        (json!({ "url": "/news/1" }), 1),
        (json!({ "url": "/news/1", "cache": "store" }), 0),
        (json!({ "tag": "none" }), 0),
        (json!({ "prefix": "http://a/news/" }), 1),
        (json!({ "all": true }), 2),
    ] {
        let answer = post(
            &server,
            "Content-Type: application/json\r\n",
            &body.to_string(),
        );
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        let stdout: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(stdout, json!({ "ok": true, "objects": objects }), "{body}");
    }
    assert_eq!(kept(&server), PAGES[..0]);
}

#[test]
fn a_purge_that_is_not_clear_is_refused_and_takes_nothing_out() {
    let origin = counting("Cache-Control: max-age=3600\r\n");
    let server = in_front_of(&origin);
    fill(&server);
    let all = r#"{"all": true}"#;
    for (name, fields, body, status) in [
        ("no JSON", "", "all", 400),
        ("empty", "", "", 400),
        ("an empty rule", "", "{}", 400),
        ("all is not", "", r#"{"all": false}"#, 400),
        ("everything begins so", "", r#"{"prefix": ""}"#, 400),
        ("no such cache", "", r#"{"all": true, "cache": "x"}"#, 404),
        (
            "another origin",
            "Origin: http://evil.example\r\n",
            all,
            403,
        ),
        ("another site", "Sec-Fetch-Site: cross-site\r\n", all, 403),
    ] {
        let answer = post(&server, fields, body);
        assert_eq!(answer.status, status, "{name}: {}", answer.text());
    }
    assert_eq!(server.admin("GET", "/cache/purge").status, 405);
    for arguments in [
        &["purge"][..],
        &["purge", "/news/1", "--all"],
        &["purge", "--prefix", "/a", "--tag", "b"],
    ] {
        let (code, stdout, stderr) = verb(&server, arguments);
        assert_eq!(code, 2, "{arguments:?}: {stdout}");
        assert!(stderr.contains("Usage: penstock purge"), "{stderr}");
    }
    let (code, stdout, stderr) = verb(&server, &["purge", "news/1"]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("\"news/1\" is no url"), "{stderr}");
    assert_eq!(kept(&server), PAGES);
}

#[test]
fn where_no_server_is_the_command_fails_and_names_the_address() {
    let site = crate::support::Site::new();
    let nowhere = ["purge", "--all", "--admin", "unix:nothing.sock"];
    let output = site.run(&nowhere);
    let (stdout, stderr) = crate::support::texts(&output);
    assert_eq!((output.status.code(), stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("nothing.sock"), "{stderr}");
}

#[test]
fn what_is_on_its_way_in_while_it_is_purged_is_not_kept() {
    let origin = Origin::start(|_| {
        let head = head_of("200 OK", "Cache-Control: max-age=3600\r\n", 3);
        Script::early().gate("go").send(format!("{head}old")).keep()
    });
    let server = in_front_of(&origin);
    let mut client = super::asking(&server, "/a");
    origin.wait_at("go", 1);
    purge(&server, &["/a"]);
    origin.open_gate("go");
    assert_eq!(client.expect_status(200).text(), "old");
    let before = origin.lines().len();
    assert_eq!(text(&server, "/a"), "old");
    assert!(
        origin.lines().len() > before,
        "it was served from before the purge"
    );
}
