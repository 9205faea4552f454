//! Caddyfile, directive by directive.

use std::path::Path;

use crate::testing::{
    MemoryFiles, assert_has, assert_loadable, assert_servers_of_set, import_text, sets_of,
};
use crate::{Coverage, ServerKind, Translation, import};

fn caddy(text: &str) -> Translation {
    let made = import_text(ServerKind::Caddy, "Caddyfile", text);
    assert_loadable(&made);
    made
}

/// A site with these directives, a line each.
fn site(text: &str) -> Translation {
    caddy(&format!("http://a.example {{\n{text}\n}}\n"))
}

#[test]
fn translates_directives_of_sites() {
    let rows = [
        ("reverse_proxy 127.0.0.1:3000", "upstream = \"server-3000\""),
        (
            "reverse_proxy /api/* app:3000",
            "path = \"/api/*\"\nupstream = \"app-3000\"",
        ),
        (
            "handle_path /api/* {\nreverse_proxy :1\n}",
            "rewrite = { strip_prefix = \"/api\", response_paths = false }",
        ),
        (
            "reverse_proxy a:1 b:2 {\nlb_policy round_robin\nhealth_uri /up\nhealth_interval 5s\n}",
            "health = { path = \"/up\", interval = \"5s\" }",
        ),
        (
            "reverse_proxy a:1 {\nheader_up X-A {remote_host}\nheader_down -Server\n}",
            "request_headers = { set = { X-A = \"{client}\" } }",
        ),
        (
            "reverse_proxy https://a.example {\ntransport http {\ntls_insecure_skip_verify\n}\nheader_up Host {upstream_hostport}\n}",
            "tls = { verify = false }\nhost = \"server\"",
        ),
        (
            "reverse_proxy unix//run/a.sock",
            "servers = [\"unix:/run/a.sock\"]",
        ),
        ("root * /srv\nfile_server", "files = { root = \"/srv\" }"),
        ("root /srv\nfile_server browse", "listing = true"),
        (
            "root * /srv\ntry_files {path} /index.html\nfile_server",
            "try = [\"{path}\", \"/index.html\"]",
        ),
        (
            "root * /srv\nphp_fastcgi unix//run/php.sock\nfile_server",
            "files = { root = \"/srv\" }\nupstream = \"php\"",
        ),
        (
            "php_fastcgi 127.0.0.1:9000 {\nroot /app\nenv A b\n}",
            "params = { A = \"b\" }",
        ),
        (
            "redir /old /new 301",
            "path = \"/old\"\nredirect = { to = \"/new\", status = 301 }",
        ),
        (
            "redir https://b.example{uri} permanent",
            "redirect = { to = \"https://b.example{uri}\", status = 301 }",
        ),
        ("respond /health \"OK\" 200", "respond = { body = \"OK\" }"),
        ("respond 404", "respond = { status = 404 }"),
        ("error /x \"no\" 403", "respond = { status = 403 }"),
        ("abort /x", "respond = { status = 403 }"),
        (
            "header X-A b\nrespond ok",
            "response_headers = { set = { X-A = \"b\" } }",
        ),
        (
            "header {\n-Server\n+X-B c\n?X-D e\n}\nrespond ok",
            "response_headers = { remove = [\"Server\"], add = { X-B = \"c\" }, default = { X-D = \"e\" } }",
        ),
        (
            "header /s/* X-A b\nreverse_proxy :1",
            "path = \"/s/*\"\nupstream = \"server-1\"\nresponse_headers = { set = { X-A = \"b\" } }",
        ),
        (
            "request_body {\nmax_size 10MB\n}\nreverse_proxy :1",
            "max_body_size = \"10MB\"",
        ),
        (
            "rewrite * /x{uri}\nreverse_proxy :1",
            "rewrite = { add_prefix = \"/x\"",
        ),
        (
            "uri strip_prefix /a\nreverse_proxy :1",
            "rewrite = { strip_prefix = \"/a\"",
        ),
        (
            "basic_auth /admin/* {\nada $2y$x\n}\nreverse_proxy :1",
            "basic_auth = { users = { file = \"htpasswd\" } }",
        ),
        (
            "forward_auth auth:9 {\nuri /verify\ncopy_headers Remote-User\n}\nreverse_proxy :1",
            "forward_auth = { url = \"http://auth:9/verify\", copy_headers = [\"Remote-User\"] }",
        ),
        (
            "encode zstd gzip\nreverse_proxy :1",
            "compress = { algorithms = [\"zstd\", \"gzip\"] }",
        ),
        (
            "@a {\nmethod POST\nheader X-A b*\n}\nrespond @a 405",
            "match = { method = [\"POST\"], header = { X-A = \"b*\" } }",
        ),
        (
            "@a path /x/* /y\nrespond @a 404",
            "match = { path = [\"/x/*\", \"/y\"] }",
        ),
        (
            "@a path_regexp ^/p/([0-9]+)$\nredir @a /q/{re.1}",
            "path = { regex = \"^/p/([0-9]+)$\" }\nredirect = \"/q/{re.1}\"",
        ),
        (
            "@a not remote_ip private_ranges\nrespond @a 403",
            "not = { client = [\"192.168.0.0/16\"",
        ),
        (
            "log {\noutput file /var/log/a.log\nformat json\n}\nrespond ok",
            "[access_logs.a-example]\npath = \"/var/log/a.log\"\nformat = \"json\"",
        ),
        (
            "handle_errors {\nrewrite * /err.html\nfile_server\n}\nroot * /srv\nfile_server",
            "error_pages = { 4xx = \"/srv/err.html\", 5xx = \"/srv/err.html\" }",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&site(text), expected);
    }
}

#[test]
fn translates_addresses_and_global_options() {
    let rows = [
        (
            "example.com {\nrespond ok\n}",
            "listen = [{ address = \":443\", tls = true }, \":80\"]",
        ),
        (
            "example.com {\nrespond ok\n}",
            "hosts = [\"example.com\"]\ntls = \"auto\"",
        ),
        ("localhost\nrespond ok", "tls = \"local\""),
        (":8080 {\nrespond ok\n}", "listen = [\":8080\"]"),
        (
            "http://a.example, http://b.example {\nrespond ok\n}",
            "hosts = [\"a.example\", \"b.example\"]",
        ),
        (
            "{\nemail a@b.example\n}\na.example {\nrespond ok\n}",
            "[acme]\nemail = \"a@b.example\"",
        ),
        (
            "{\nhttp_port 8080\ndefault_bind 127.0.0.1\nauto_https off\n}\nhttp://a.example {\nrespond ok\n}",
            "listen = [\"127.0.0.1:8080\"]",
        ),
        (
            "{\nservers {\ntimeouts {\nidle 2m\n}\ntrusted_proxies static 10.0.0.0/8\n}\n}\n:80 {\nrespond ok\n}",
            "idle_timeout = \"2m\"",
        ),
        (
            "a.example {\ntls /c.pem /k.pem\nrespond ok\n}",
            "tls = { certificate = \"/c.pem\", key = \"/k.pem\" }",
        ),
        (
            "(sec) {\nheader X-A {args[0]}\n}\n:80 {\nimport sec b\nrespond ok\n}",
            "set = { X-A = \"b\" }",
        ),
        (
            "http://a.example {\nredir https://a.example{uri}\n}\nhttps://a.example {\nrespond ok\n}",
            "match = { scheme = \"http\" }\nredirect = \"https://a.example{uri}\"",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&caddy(text), expected);
    }
}

#[test]
fn routes_are_sorted_as_caddy_sorts() {
    let made = site(
        "respond 201\nrespond /a/* 202\nrespond /a/b/* 203\nredir /r /s\nhandle /h/* {\nrespond 204\n}\nhandle /h/i/* {\nrespond 205\n}",
    );
    let answers = made
        .toml
        .lines()
        .filter(|line| line.starts_with("redirect") || line.starts_with("respond"));
    let answers: Vec<&str> = answers
        .map(|line| {
            line.trim_start_matches("respond = { status = ")
                .trim_end_matches(" }")
        })
        .collect();
    assert_eq!(
        answers,
        ["redirect = \"/s\"", "205", "204", "203", "202", "201"]
    );
}

#[test]
fn each_directive_is_in_the_report_once() {
    let made = caddy(
        "{\n\tfrob\n}\n(s) {\n\tencode\n}\na.example {\n\timport s\n\ttemplates\n\treverse_proxy :1 {\n\t\tunhealthy_status 5xx\n\t\tblah\n\t}\n\t@x expression true\n\trespond @x 403\n}\n",
    );
    let lines: Vec<usize> = made.report.directives.iter().map(|it| it.line).collect();
    assert_eq!(lines, [2, 4, 5, 7, 8, 9, 10, 11, 12, 14, 15]);
    assert_has(&made, "# Caddyfile:9 `templates`: not offered: ");
    assert_has(&made, "# Caddyfile:12 `blah`: by hand: ");
    assert_has(&made, "# Caddyfile:15 `respond @x 403`: by hand: ");
}

#[test]
fn hostile_files_end() {
    let deep = format!("a.b {{\n{}", "handle {\n".repeat(50_000));
    let loops = "(a) {\nimport b\nimport b\n}\n(b) {\nimport a\nimport a\n}\n:80 {\nimport a\n}\n";
    let many = format!(
        ":80 {{\n{}}}",
        "header /a/* X b\nrespond /a/b 200\n".repeat(1_000)
    );
    let wide = format!(":80 {{\n{}}}", "reverse_proxy /a/* x:1\n".repeat(3_000));
    for text in [
        deep.as_str(),
        loops,
        &many,
        &wide,
        "{",
        "}",
        "a {\n}\n}",
        "\"",
        "{$",
        "a.b {\nrespond <<X\n",
    ] {
        let _ = import(Path::new("Caddyfile"), text, None, &MemoryFiles::default());
    }
    let text = "{\nemail a\n}\n(s) {\nheader A {args[0]}\n}\na.b, c.d {\nimport s x\n@m {\npath /a*\nnot method GET\n}\nhandle_path /x/* {\nuri replace /a /b\nreverse_proxy @m https://a {\nheader_up A {b}\n}\n}\n}\n";
    for end in 0..text.len() {
        let _ = import(
            Path::new("Caddyfile"),
            &text[..end],
            None,
            &MemoryFiles::default(),
        );
    }
}

#[test]
fn the_sets_of_the_documents_are_translated() {
    let sets = sets_of("caddy", "Caddyfile");
    assert_eq!(sets.len(), 5);
    for set in sets {
        let made = import_text(ServerKind::Caddy, "Caddyfile", &set.theirs);
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
fn variables_of_the_file_and_of_hosts_are_kept() {
    let made =
        caddy("{$GLOBAL}\n{\n\t{$OPTIONS}\n}\n{$EXTRA:x}\na.example {\n\treverse_proxy :1\n}\n");
    assert_has(&made, "hosts = [\"a.example\"]");
    for line in ["1 `{$GLOBAL}`", "3 `{$OPTIONS}`", "5 `{$EXTRA:x}`"] {
        assert_has(&made, &format!("# Caddyfile:{line}: by hand: "));
    }
    let text = "{$DOMAIN:localhost}, http://{$OTHER} {\n\theader X-A b\n\treverse_proxy :1\n}\n";
    let made = import_text(ServerKind::Caddy, "Caddyfile", text);
    assert_has(&made, "hosts = [\"${DOMAIN:-localhost}\"]\ntls = \"local\"");
    assert_has(&made, "hosts = [\"${OTHER}\"]");
    assert_has(&made, "response_headers = { set = { X-A = \"b\" } }");
    let made = import_text(
        ServerKind::Caddy,
        "Caddyfile",
        "{$DOMAIN}\nreverse_proxy :1\n",
    );
    assert_has(&made, "hosts = [\"${DOMAIN}\"]");
}

#[test]
fn each_route_of_a_block_is_compressed_as_the_block_says() {
    let made = site("handle {\n\tencode zstd gzip\n\treverse_proxy /a/* :1\n\treverse_proxy :2\n}");
    let count = made
        .toml
        .matches("compress = { algorithms = [\"zstd\", \"gzip\"] }")
        .count();
    assert_eq!(count, 2, "{}", made.toml);
}

#[test]
fn a_site_is_reached_by_its_own_listeners_alone() {
    let made = caddy(
        "http://a.example {\n\treverse_proxy :1\n}\nhttp://a.example:8081 {\n\treverse_proxy :2\n}\n:9000 \
         {\n\tbind 127.0.0.1\n\treverse_proxy :3\n}\n",
    );
    for (listener, port) in [(":80", 1), (":8081", 2), ("127.0.0.1:9000", 3)] {
        let route =
            format!("match = {{ listener = [\"{listener}\"] }}\nupstream = \"server-{port}\"");
        assert_has(&made, &route);
    }
    assert!(
        !caddy(":8080 {\n\treverse_proxy :1\n}\n")
            .toml
            .contains("match")
    );
}
