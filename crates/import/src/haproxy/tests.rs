//! haproxy.cfg, line by line.

use std::path::Path;

use super::servers::with_braces;
use crate::testing::{
    MemoryFiles, assert_has, assert_loadable, assert_servers_of_set, import_text, sets_of,
};
use crate::{Coverage, ServerKind, Translation, import};

fn haproxy(text: &str) -> Translation {
    let made = import_text(ServerKind::Haproxy, "haproxy.cfg", text);
    assert_loadable(&made);
    made
}

/// A frontend with these lines, and a backend.
fn frontend(lines: &str) -> Translation {
    haproxy(&format!(
        "defaults\n mode http\nfrontend web\n bind :80\n{lines}\n default_backend app\nbackend app\n server a 127.0.0.1:1\n"
    ))
}

fn backend(lines: &str) -> Translation {
    haproxy(&format!(
        "defaults\n mode http\nfrontend web\n bind :80\n default_backend app\nbackend app\n{lines}\n"
    ))
}

#[test]
fn translates_rules_of_frontends() {
    let rows = [
        (
            "acl a path_beg /api/\nuse_backend app if a",
            "path = \"/api/*\"\nupstream = \"app\"",
        ),
        (
            "acl a path_end .css .js\nuse_backend app if a",
            "match = { path = [\"*.css\", \"*.js\"] }",
        ),
        (
            "acl a hdr(host) -i A.example\nuse_backend app if a",
            "match = { host = [\"a.example\"] }",
        ),
        (
            "acl a hdr_sub(user-agent) -i bot\nhttp-request deny if a",
            "match = { header = { User-Agent = \"~*bot\" } }\nrespond = { status = 403 }",
        ),
        (
            "http-request deny deny_status 429 if { src 10.0.0.0/8 }",
            "match = { client = [\"10.0.0.0/8\"] }\nrespond = { status = 429 }",
        ),
        (
            "acl a method POST\nacl b path /x\nhttp-request deny if a !b",
            "match = { method = [\"POST\"], not = { path = [\"/x\"] } }",
        ),
        (
            "http-request deny unless { method GET HEAD }",
            "not = { method = [\"GET\", \"HEAD\"] }",
        ),
        (
            "http-request redirect scheme https code 301 unless { ssl_fc }",
            "redirect = { to = \"https://{host}{uri}\", status = 301 }",
        ),
        (
            "redirect location /new if { path /old }",
            "path = \"/old\"\nredirect = { to = \"/new\", status = 302 }",
        ),
        (
            "redirect code 301 location /start if { path / }",
            "path = \"/\"\nredirect = { to = \"/start\", status = 301 }",
        ),
        (
            "http-request return status 200 content-type application/json string '{}' if { path /h }",
            "respond = { body = \"{}\", content_type = \"application/json\" }",
        ),
        (
            "http-request set-header X-A %[src]",
            "request_headers = { set = { X-A = \"{client}\" } }",
        ),
        (
            "http-request set-header X-A b if { path_beg /x/ }",
            "request_headers = { set = { X-A = \"b\" }, when = { path = [\"/x/*\"] } }",
        ),
        (
            "http-request del-header X-A",
            "request_headers = { remove = [\"X-A\"] }",
        ),
        (
            "http-response set-header X-A b",
            "response_headers = { set = { X-A = \"b\" } }",
        ),
        (
            "http-request set-path /v1%[path] if { path_beg /a/ }",
            "rewrite = { add_prefix = \"/v1\", response_paths = false }",
        ),
        (
            "http-request auth realm R if { path_beg /x/ } !{ http_auth(users) }",
            "path = \"/x/*\"\nupstream = \"app\"\nbasic_auth = { realm = \"R\", users = { file = \"htpasswd\" } }",
        ),
        (
            "stick-table type ip size 1m expire 1m store http_req_rate(10s)\nhttp-request track-sc0 src\nhttp-request deny deny_status 429 if { sc_http_req_rate(0) gt 20 }",
            "rate_limit = { rate = \"120/m\", burst = 20 }",
        ),
        (
            "acl a path /x\nacl a path /y\nuse_backend app if a",
            "match = { path = [\"/x\", \"/y\"] }",
        ),
        (
            "use_backend app if { path /x } or { path /y }",
            "path = \"/y\"\nupstream = \"app\"",
        ),
        (
            "monitor-uri /up",
            "path = \"/up\"\nrespond = { body = \"ok\\n\" }",
        ),
        (
            "compression algo gzip\ncompression type text/html",
            "compress = { algorithms = [\"gzip\"], types = [\"text/html\"] }",
        ),
        ("timeout client 30s", "body_idle_timeout = \"30s\""),
        ("timeout http-request 5000", "header_timeout = \"5000ms\""),
    ];
    for (text, expected) in rows {
        assert_has(&frontend(text), expected);
    }
}

#[test]
fn translates_backends_and_sections() {
    let rows = [
        (
            "balance leastconn\nserver a 1.1.1.1:1\nserver b 1.1.1.2:1",
            "balance = \"least_active\"",
        ),
        (
            "server b 1.1.1.2:1\nserver a 1.1.1.1:1 weight 5 maxconn 10 backup",
            "{ address = \"1.1.1.1:1\", weight = 5, max_active = 10, backup = true }",
        ),
        (
            "option httpchk GET /up\ndefault-server inter 3s fall 2\nserver a 1.1.1.1:1 check",
            "health = { path = \"/up\", interval = \"3s\", fall = 2 }",
        ),
        (
            "server a 1.1.1.1:443 ssl verify none",
            "tls = { verify = false }",
        ),
        (
            "cookie SRV insert\nserver a 1.1.1.1:1 cookie a",
            "sticky = \"SRV\"",
        ),
        (
            "timeout server 50s\nserver a 1.1.1.1:1",
            "response_timeout = \"50s\"",
        ),
        ("retries 3\nserver a 1.1.1.1:1", "retry = { attempts = 4 }"),
        (
            "server a unix@/run/a.sock",
            "servers = [\"unix:/run/a.sock\"]",
        ),
        (
            "http-request set-header X-B c\nserver a 1.1.1.1:1",
            "request_headers = { set = { X-B = \"c\" } }",
        ),
        (
            "http-request replace-path /a/(.*) /b/\\1\nserver a 1.1.1.1:1",
            "rewrite = { regex = \"/a/(.*)\", to = \"/b/{re.1}\", response_paths = false }",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&backend(text), expected);
    }
    let sections = [
        (
            "global\n maxconn 100\n user haproxy\n nbthread 4\n",
            "connections = 100",
        ),
        (
            "listen pg\n mode tcp\n bind :5432\n server a 1.1.1.1:5432\n",
            "[[tcp]]\nlisten = \":5432\"\nupstream = \"pg\"",
        ),
        (
            "frontend t\n mode tcp\n bind :443\n use_backend b if { req_ssl_sni -i a.example }\nbackend b\n mode tcp\n server a 1.1.1.1:443\n",
            "sni = { \"a.example\" = \"b\" }",
        ),
        (
            "listen w\n mode http\n bind :443 ssl crt /etc/w.pem\n server a 1.1.1.1:80\n",
            "tls = { certificate = \"/etc/w.pem\" }",
        ),
        (
            "defaults\n mode http\nfrontend a\n bind :80\n redirect scheme https\nfrontend b\n bind :443 ssl crt /w.pem\n default_backend x\nbackend x\n server a 1.1.1.1:80\n",
            "match = { scheme = \"http\" }\nredirect = { to = \"https://{host}{uri}\", status = 302 }",
        ),
    ];
    for (text, expected) in sections {
        assert_has(&haproxy(text), expected);
    }
}

#[test]
fn each_line_is_in_the_report_once() {
    let made = haproxy(
        "global\n daemon\n lua-load x.lua\ndefaults\n mode http\n option httplog\nfrontend w\n bind :80\n frobnicate 1\n acl a ssl_c_used\n use_backend b if a\n default_backend b\nbackend b\n server s 1.1.1.1:1\npeers p\n peer q 1.1.1.1:2\n",
    );
    let lines: Vec<usize> = made.report.directives.iter().map(|it| it.line).collect();
    assert_eq!(lines, (1..=16).collect::<Vec<_>>());
    assert_has(&made, "# haproxy.cfg:3 `lua-load x.lua`: not offered: ");
    assert_has(&made, "# haproxy.cfg:9 `frobnicate 1`: by hand: ");
    assert_has(
        &made,
        "# haproxy.cfg:11 `use_backend b if a`: by hand: no condition of a route is like `ssl_c_used`",
    );
}

#[test]
fn errors_have_a_place() {
    let rows = [
        (
            "global\n user 'a\n",
            "h.cfg:2:7: a quote that is not closed",
        ),
        ("maxconn 1\n", "h.cfg:1:1: `maxconn` stands in no section"),
    ];
    for (text, expected) in rows {
        let error = import(
            Path::new("h.cfg"),
            text,
            Some(ServerKind::Haproxy),
            &MemoryFiles::default(),
        );
        assert_eq!(error.unwrap_err().to_string(), expected);
    }
}

#[test]
fn hostile_files_end() {
    let many = format!(
        "defaults\n mode http\nfrontend f\n bind :80\n{}{}",
        " http-request set-header A b if { path /x }\n".repeat(2_000),
        " use_backend b if { path /x }\n".repeat(2_000)
    );
    let ors = format!(
        "frontend f\n mode http\n http-request deny if {}",
        "{ path /a } or ".repeat(5_000)
    );
    let ands = format!(
        "frontend f\n mode http\n http-request deny if {}",
        "{ path /a } ".repeat(5_000)
    );
    let servers = format!("backend b\n{}", " server a 1.1.1.1:1 check\n".repeat(6_000));
    for text in [&many, &ors, &ands, &servers] {
        let _ = import(
            Path::new("h.cfg"),
            text,
            Some(ServerKind::Haproxy),
            &MemoryFiles::default(),
        );
    }
    let text = "global\n maxconn 1\ndefaults\n mode http\nfrontend f\n bind :80 ssl crt /x.pem\n acl a hdr(host) -i \"b c\"\n http-request set-path %[path,regsub(^/a,)] if a or !{ src 1.1.1.1 }\n use_backend b unless a\nbackend b\n balance hdr(x)\n server a unix@/x check inter 1s\n";
    for end in 0..text.len() {
        let _ = import(
            Path::new("h.cfg"),
            &text[..end],
            Some(ServerKind::Haproxy),
            &MemoryFiles::default(),
        );
    }
}

#[test]
fn the_sets_of_the_documents_are_translated() {
    let sets = sets_of("haproxy", "haproxy.cfg");
    assert_eq!(sets.len(), 3);
    for set in sets {
        let made = import_text(ServerKind::Haproxy, "haproxy.cfg", &set.theirs);
        assert_loadable(&made);
        assert_servers_of_set(&set, &made);
        assert_eq!(
            made.report.count(Coverage::NotOffered),
            0,
            "{}",
            made.report.to_text()
        );
        assert!(
            made.report.count(Coverage::ByHand) <= 3,
            "{}",
            made.report.to_text()
        );
    }
}

#[test]
fn a_frontend_is_reached_by_its_own_listeners_alone() {
    let made = haproxy(
        "defaults\n mode http\nfrontend web\n bind :80\n monitor-uri /up\n default_backend \
         a\nfrontend inside\n bind 127.0.0.1:8081\n bind 10.0.0.1:8082\n acl admin path_beg \
         /admin/\n http-request deny if admin\n default_backend b\nbackend a\n server a \
         127.0.0.1:1\nbackend b\n server b 127.0.0.1:2\n",
    );
    for expected in [
        "path = \"/up\"\nmatch = { listener = [\":80\"] }\nrespond",
        "match = { listener = [\":80\"] }\nupstream = \"a\"",
        "path = \"/admin/*\"\nmatch = { listener = [\"127.0.0.1:8081\", \"10.0.0.1:8082\"] }\nrespond",
        "match = { listener = [\"127.0.0.1:8081\", \"10.0.0.1:8082\"] }\nupstream = \"b\"",
    ] {
        assert_has(&made, expected);
    }
    assert!(!made.toml.contains("Host ="), "{}", made.toml);
}

#[test]
fn values_are_kept_or_left() {
    let rows = [
        (
            "http-request set-header X-Forwarded-Host a.example",
            "set = { X-Forwarded-Host = \"a.example\" }",
        ),
        (
            "http-request set-header Host b.example if { path_beg /b/ }",
            "{ set = { Host = \"b.example\" }, when = { path = [\"/b/*\"] } }",
        ),
        (
            "http-request set-header Host a.example",
            "set = { Host = \"a.example\" }",
        ),
        (
            "acl a req.ver 9\nacl b path_beg /b\nacl c path /c\nhttp-request deny if a b",
            "haproxy.cfg:6 `acl b path_beg /b`: by hand: the rules that name it are left by hand",
        ),
        (
            "log 10.0.0.1 local0\nlog 10.0.0.2 local0",
            "haproxy.cfg:6 `log 10.0.0.2 local0`: by hand: `server.access_log` has one target",
        ),
        ("clitimeout 30000", "body_idle_timeout = \"30000ms\""),
    ];
    for (text, expected) in rows {
        assert_has(&frontend(text), expected);
    }
    let rows = [
        (
            "server a 1.1.1.1:1 proto h2",
            "not offered: `servers` has the address; not `proto h2`",
        ),
        (
            "server a 1.1.1.1:1 minconn 5",
            "by hand: `servers` has the address; not `minconn 5`",
        ),
        (
            "srvtimeout 5s\ncontimeout 2s\nserver a 1.1.1.1:1",
            "connect_timeout = \"2s\"",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&backend(text), expected);
    }
    let made = haproxy("listen s :1936\n mode http\n server a 1.1.1.1:1\n");
    assert_has(&made, "listen = [\":1936\"]");
    let made = frontend("option forwardfor\nacl c path /c");
    let coverage = |line: &str| {
        let mut all = made.report.directives.iter();
        all.find(|it| it.text.starts_with(line))
            .map(|it| it.coverage)
    };
    assert_eq!(coverage("option forwardfor"), Some(Coverage::BuiltIn));
    assert_eq!(coverage("acl c"), Some(Coverage::NotNeeded));
}

#[test]
fn variables_of_addresses_have_braces() {
    let rows = [
        ("$A", "${A}"),
        ("${A}:1", "${A}:1"),
        ("0.0.0.0:$P_1", "0.0.0.0:${P_1}"),
        ("$", "$"),
        ("${A", "${A"),
        ("a$-b", "a$-b"),
    ];
    for (text, expected) in rows {
        assert_eq!(with_braces(text), expected);
    }
    let text = "frontend w\n mode http\n bind 0.0.0.0:$PORT\n default_backend b\nbackend b\n server a \"$BACK\" check\n";
    let made = import_text(ServerKind::Haproxy, "haproxy.cfg", text);
    assert_has(&made, "listen = [\":${PORT}\"]");
    assert_has(&made, "servers = [\"${BACK}\"]");
}
