//! Ids of requests: made or kept, and in every record of a request.

use super::{APP, json_lines};
use crate::support::{Origin, Response, Server, Site, page};

fn serve(origin: &Origin, mode: &str, proxies: &str) -> Server {
    let toml = format!(
        "[server]\nthreads = 1\nrequest_id = \"{mode}\"\ntrusted_proxies = [{proxies}]\n\
         access_log = {{ path = \"access.log\", format = \"json\" }}\n\
         [apps.shop]\nkind = \"wsgi\"\nentry = \"app:app\"\nprocesses = 1\n\
         [upstreams.b]\nservers = [\"{}\"]\n\
         [[sites]]\n\
         [[sites.routes]]\npath = \"/origin\"\nupstream = \"b\"\n\
         [[sites.routes]]\npath = \"/own\"\nupstream = \"b\"\n\
         request_headers = {{ set = {{ X-Request-Id = \"of-the-route\" }} }}\n\
         [[sites.routes]]\npath = \"/files/*\"\nfiles = {{ root = \"public\" }}\n\
         [[sites.routes]]\napp = \"shop\"\n",
        origin.address()
    );
    let site = Site::new().config(&toml);
    let site = site.file("app.py", APP).file("public/files/a.txt", "a");
    let server = site.serve(&[]);
    server.wait_ready("shop");
    server
}

fn ask(server: &Server, target: &str, fields: &str) -> Response {
    let mut client = server.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
    client.response()
}

#[test]
fn an_id_is_in_every_record_of_a_request() {
    let origin = Origin::start(|seen| page(seen, "origin"));
    let server = serve(&origin, "respond", "\"127.0.0.1\"");
    let targets = [
        ("/?HTTP_X_REQUEST_ID", 200),
        ("/origin", 200),
        ("/files/a.txt", 200),
        ("/files/none", 404),
        ("/fail", 500),
    ];
    let responses = targets.map(|(target, status)| {
        let response = ask(&server, target, "");
        assert_eq!(response.status, status, "{target}");
        response
    });
    let ids = responses.each_ref().map(|response| {
        let id = response.header("X-Request-Id").expect("an id");
        assert_eq!((id.len(), id.as_bytes()[14]), (36, b'7'), "{id}");
        id.to_owned()
    });
    let lines = json_lines(&server, "access.log", targets.len());
    for (line, (id, (target, status))) in lines.iter().zip(ids.iter().zip(targets)) {
        assert_eq!(
            (&line["request_id"], &line["status"]),
            (&id.as_str().into(), &status.into())
        );
        assert_eq!(line["target"], target);
    }
    assert_eq!(responses[0].text(), ids[0]);
    assert_eq!(
        origin.last().field("x-request-id").as_deref(),
        Some(&*ids[1])
    );
    for (response, id) in responses[3..].iter().zip(&ids[3..]) {
        let text = response.text();
        assert!(text.contains(&format!("Request id: {id}\n")), "{text}");
    }
    server.wait_log(&format!("request_id={}", ids[4]));
}

#[test]
fn only_a_trusted_proxy_names_a_request() {
    let origin = Origin::start(|seen| page(seen, "origin"));
    let named = "X-Request-Id: from-client.1\r\nX_Request_Id: twin\r\n";
    for (proxies, is_trusted) in [("\"127.0.0.1\"", true), ("\"10.0.0.1\"", false)] {
        let server = serve(&origin, "pass", proxies);
        let response = ask(&server, "/origin", named);
        assert_eq!(response.header("X-Request-Id"), None, "it is not asked for");
        let seen = origin.last();
        let id = seen.field("x-request-id").expect("an id");
        assert_eq!(id == "from-client.1", is_trusted, "{id}");
        assert_eq!(seen.field("x_request_id"), None, "no twin of it arrives");
        assert_eq!(
            ask(&server, "/?HTTP_X_REQUEST_ID", named).text() == "from-client.1",
            is_trusted
        );
        for odd in ["a b", "a\"b", &"a".repeat(129), ""] {
            ask(&server, "/origin", &format!("X-Request-Id: {odd}\r\n"));
            let id = origin.last().field("x-request-id").expect("an id");
            assert_eq!(id.len(), 36, "{odd:?} is not kept: {id}");
        }
        ask(&server, "/own", named);
        let of_rule = origin.last().field("x-request-id");
        assert_eq!(
            of_rule.as_deref(),
            Some("of-the-route"),
            "a rule's value stays"
        );
    }
    let server = serve(&origin, "off", "\"10.0.0.1\"");
    ask(&server, "/origin", "X-Request-Id: a b\r\n");
    assert_eq!(origin.last().field("x-request-id").as_deref(), Some("a b"));
    let lines = json_lines(&server, "access.log", 1);
    assert_eq!(lines[0].get("request_id"), None);
}
