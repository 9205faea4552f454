//! nginx.conf, directive by directive.

use std::path::Path;

use crate::testing::{
    MemoryFiles, assert_has, assert_loadable, assert_servers_of_set, import_text, sets_of,
};
use crate::{Coverage, ServerKind, Translation, import};

fn nginx(text: &str) -> Translation {
    let made = import_text(ServerKind::Nginx, "nginx.conf", text);
    assert_loadable(&made);
    made
}

/// A server with these directives.
fn server(text: &str) -> Translation {
    nginx(&format!(
        "server {{ listen 80; server_name a.example; {text} }}"
    ))
}

#[test]
fn translates_directives_of_locations() {
    let rows = [
        (
            "location / { proxy_pass http://127.0.0.1:3000; }",
            "upstream = \"server-3000\"",
        ),
        (
            "location /api/ { proxy_pass http://127.0.0.1:1/; }",
            "rewrite = { strip_prefix = \"/api\", response_paths = false }",
        ),
        (
            "location /a/ { proxy_pass http://127.0.0.1:1/b/; }",
            "add_prefix = \"/b\"",
        ),
        (
            "location = /x { proxy_pass http://127.0.0.1:1/y; }",
            "rewrite = { regex = \"^.*$\", to = \"/y\"",
        ),
        (
            "location / { proxy_pass https://api.example.net; }",
            "tls = { verify = false }\nhost = \"server\"",
        ),
        (
            "location / { proxy_pass http://unix:/run/a.sock; }",
            "servers = [\"unix:/run/a.sock\"]",
        ),
        (
            "location / { proxy_read_timeout 5m; proxy_pass http://127.0.0.1:1; }",
            "response_timeout = \"5m\"",
        ),
        (
            "location / { proxy_buffering off; proxy_pass http://127.0.0.1:1; }",
            "response_buffering = false",
        ),
        (
            "location / { uwsgi_pass 127.0.0.1:3031; include uwsgi_params; }",
            "protocol = \"uwsgi\"",
        ),
        (
            "root /srv; location /s/ { alias /srv/static/; }",
            "files = { root = \"/srv/static\" }\nrewrite = { strip_prefix = \"/s\" }",
        ),
        (
            "location = /f.ico { alias /srv/img/f.ico; }",
            "files = { root = \"/srv/img\" }",
        ),
        (
            r"location ~ ^/d/(.+)\.zip$ { alias /srv/$1; }",
            "to = \"/{re.1}\"",
        ),
        (
            "root /srv; location / { try_files $uri $uri/ /index.html; }",
            "try = [\"{path}\", \"{path}/index.html\", \"/index.html\"]",
        ),
        ("root /srv; location / { autoindex on; }", "listing = true"),
        (
            "root /srv; location / { expires 1h; }",
            "cache_control = { \"*\" = \"max-age=3600\" }",
        ),
        (
            "location / { return 301 https://$host$request_uri; }",
            "redirect = { to = \"https://{hostname}{uri}\", status = 301 }",
        ),
        ("location / { return 444; }", "respond = { status = 403 }"),
        (
            "location / { return 503 'soon'; }",
            "respond = { status = 503, body = \"soon\" }",
        ),
        (
            "rewrite ^/old/(.*)$ /new/$1 permanent; location / { return 404; }",
            "redirect = { to = \"/new/{re.1}?{query}\", status = 301 }",
        ),
        (
            "rewrite ^/old/(.*)$ /new/$1? redirect; location / { return 404; }",
            "redirect = \"/new/{re.1}\"",
        ),
        (
            "rewrite ^/old/(.*)$ /new?a=$1 redirect; location / { return 404; }",
            "redirect = \"/new?a={re.1}&{query}\"",
        ),
        (
            "location / { rewrite ^/a/(.*)$ /b/$1 break; proxy_pass http://127.0.0.1:1; }",
            "rewrite = { regex = \"^/a/(.*)$\", to = \"/b/{re.1}\" }",
        ),
        (
            "location / { allow 10.0.0.0/8; deny all; proxy_pass http://127.0.0.1:1; }",
            "allow = [\"10.0.0.0/8\"]",
        ),
        ("location /x { deny all; }", "respond = { status = 403 }"),
        (
            "location / { auth_basic \"A\"; auth_basic_user_file /x; proxy_pass http://127.0.0.1:1; }",
            "basic_auth = { realm = \"A\", users = { file = \"/x\" } }",
        ),
        (
            "location / { limit_except GET POST { deny all; } proxy_pass http://127.0.0.1:1; }",
            "not = { method = [\"GET\", \"POST\", \"HEAD\"] }",
        ),
        (
            "location / { add_header X-A b always; add_header X-C d; proxy_pass http://127.0.0.1:1; }",
            "response_headers = [{ set = { X-A = \"b\" } }, { set = { X-C = \"d\" }, status = [\"2xx\", \"3xx\"] }]",
        ),
        (
            "location / { proxy_hide_header X-A; proxy_pass http://127.0.0.1:1; }",
            "response_headers = { remove = [\"X-A\"] }",
        ),
        (
            "location / { proxy_set_header X-Real-IP $remote_addr; proxy_set_header Accept-Encoding \"\"; proxy_pass http://127.0.0.1:1; }",
            "request_headers = { set = { X-Real-IP = \"{client}\" }, remove = [\"Accept-Encoding\"] }",
        ),
        (
            "location / { client_max_body_size 10m; proxy_pass http://127.0.0.1:1; }",
            "max_body_size = \"10MiB\"",
        ),
        (
            "location / { limit_rate 100k; proxy_pass http://127.0.0.1:1; }",
            "response_rate = { rate = \"100KiB/s\" }",
        ),
        (
            "if ($request_method = POST) { return 405; } location / { return 404; }",
            "match = { method = [\"POST\"] }\nrespond = { status = 405 }",
        ),
        (
            "if ($http_user_agent ~* \"bot|crawl\") { return 403; } location / { return 404; }",
            "header = { User-Agent = \"~*bot|crawl\" }",
        ),
        (
            "if ($host != 'a.example') { return 301 https://a.example$request_uri; }",
            "not = { host = [\"a.example\"] }",
        ),
        (
            "if ($arg_v = '') { return 400; }",
            "not = { query = { v = \"*\" } }",
        ),
        (
            "root /srv; location / { if (!-f $request_filename) { proxy_pass http://127.0.0.1:7; break; } }",
            "files = { root = \"/srv\" }\nupstream = \"server-7\"",
        ),
        (
            "access_log off; location / { return 404; }",
            "access_logs = []",
        ),
        (
            "set $up http://127.0.0.1:9; location / { proxy_pass $up; }",
            "servers = [\"127.0.0.1:9\"]",
        ),
        (
            "ssl_certificate /c; ssl_certificate_key /k; listen 443 ssl; location / { return 404; }",
            "tls = { certificate = \"/c\", key = \"/k\" }",
        ),
        (
            "location / { internal; proxy_pass http://127.0.0.1:1; }",
            "internal = true",
        ),
        (
            "error_page 404 /404.html; root /srv;",
            "error_pages = { 404 = \"/srv/404.html\" }",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&server(text), expected);
    }
}

#[test]
fn translates_directives_of_the_process_and_of_all_servers() {
    let rows = [
        ("user www-data;", "user = \"www-data\""),
        (
            "worker_processes 4; events { worker_connections 2048; }",
            "threads = 4",
        ),
        ("events { worker_connections 2048; }", "connections = 2048"),
        ("error_log /var/log/e.log warn;", "log = \"/var/log/e.log\""),
        ("http { keepalive_timeout 65; }", "idle_timeout = \"65s\""),
        ("http { client_max_body_size 0; }", "body_bytes = \"1TiB\""),
        (
            "http { large_client_header_buffers 4 16k; }",
            "header_bytes = \"64KiB\"",
        ),
        (
            "http { set_real_ip_from 10.0.0.0/8; }",
            "trusted_proxies = [\"10.0.0.0/8\"]",
        ),
        (
            "http { access_log /var/log/a.log main; }",
            "access_log = { path = \"/var/log/a.log\" }",
        ),
        ("http { ssl_protocols TLSv1.3; }", "profile = \"modern\""),
        (
            "upstream u { least_conn; server 1.2.3.4:5 weight=2 max_fails=0; server 1.2.3.5:6 backup; }",
            "balance = \"least_active\"",
        ),
        (
            "upstream u { hash $http_x_a; server 1.2.3.4:5; }",
            "key = \"header:X-A\"",
        ),
        (
            "upstream u { server 1.2.3.4; keepalive 8; }",
            "connections = { soft = 8 }",
        ),
        (
            "stream { server { listen 5432; proxy_pass 10.0.0.1:5432; proxy_timeout 2h; } }",
            "[[tcp]]\nlisten = \":5432\"",
        ),
        (
            "stream { map $ssl_preread_server_name $b { a.example u; default v; } upstream u { server 1.1.1.1:443; } upstream v { server 1.1.1.2:443; } server { listen 443; ssl_preread on; proxy_pass $b; } }",
            "sni = { \"a.example\" = \"u\" }",
        ),
        (
            "map $http_user_agent $bad { default 0; ~*sqlmap 1; nikto 1; } server { if ($bad) { return 403; } }",
            "header = { User-Agent = \"nikto\" }",
        ),
        (
            "geo $office { default 0; 10.0.0.0/8 1; 192.168.0.0/16 1; } server { if ($office = 1) { return 200 hi; } }",
            "client = [\"10.0.0.0/8\", \"192.168.0.0/16\"]",
        ),
        (
            "limit_req_zone $binary_remote_addr zone=z:1m rate=10r/s; server { location / { limit_req zone=z burst=20; proxy_pass http://127.0.0.1:1; } }",
            "rate_limit = { rate = \"10/s\", burst = 21, max_delay = \"2s\" }",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&nginx(text), expected);
    }
}

#[test]
fn orders_locations_as_nginx_looks_for_them() {
    let made = server(
        "location / { return 201; } location /a/ { return 202; } location ~ x { return 203; }
         location ^~ /s/ { return 204; } location = /e { return 205; } location /a/b/ { return 206; }
         location /n/ { location ~ y { return 207; } return 208; }",
    );
    let statuses = made
        .toml
        .lines()
        .filter_map(|line| line.strip_prefix("respond = { status = "));
    let statuses: Vec<&str> = statuses.map(|rest| &rest[..3]).collect();
    assert_eq!(
        statuses,
        ["205", "207", "204", "203", "206", "202", "208", "201"]
    );
}

#[test]
fn a_host_gets_the_routes_of_each_of_its_servers() {
    let made = nginx(
        "server { listen 80 default_server; return 444; }
         server { listen 80; server_name a.example; return 301 https://a.example$request_uri; }
         server { listen 443 ssl; server_name a.example; ssl_certificate /c; location / { return 200; } }
         server { listen 80; server_name b.example; location / { return 202; } }",
    );
    assert_has(
        &made,
        "hosts = [\"a.example\"]\ntls = { certificate = \"/c\" }\nredirect_to_https = false",
    );
    assert_has(
        &made,
        "match = { scheme = \"http\" }\nredirect = { to = \"https://a.example{uri}\", status = 301 }",
    );
    assert_has(&made, "match = { scheme = \"https\" }\nrespond = {}");
    assert_has(
        &made,
        "hosts = [\"b.example\"]\n\n[[sites.routes]]\nrespond = { status = 202 }",
    );
}

#[test]
fn reads_included_files_in_their_place() {
    let files = MemoryFiles::new(&[
        (
            "/etc/nginx/conf.d/a.conf",
            "server { listen 81; include snippets/x.conf; }",
        ),
        (
            "/etc/nginx/conf.d/b.conf",
            "server { listen 82; return 404; }",
        ),
        (
            "/etc/nginx/snippets/x.conf",
            "location / { return 410; }\ninclude x.conf;",
        ),
    ]);
    let text =
        "http { include /etc/nginx/conf.d/*.conf; include mime.types; include absent.conf; }";
    let made = import(Path::new("/etc/nginx/nginx.conf"), text, None, &files).unwrap();
    assert_loadable(&made);
    assert_has(&made, "listen = [\":81\", \":82\"]");
    assert_has(&made, "respond = { status = 410 }");
    let report = made.report.to_text();
    assert!(
        report.contains("snippets/x.conf:2 `include x.conf`: by hand: the file includes itself"),
        "{report}"
    );
    assert!(
        report.contains("`include mime.types`: built in"),
        "{report}"
    );
    assert!(
        report.contains("`include absent.conf`: by hand: the file cannot be read"),
        "{report}"
    );
}

#[test]
fn each_directive_is_in_the_report_once() {
    let text = "user a;\nfoo bar baz;\nhttp {\n  perl_set $a b;\n  map $uri $x {\n    /a 1;\n  }\n  server {\n    listen 80;\n    frob 1;\n    location / {\n      more_set_headers \"A: b\";\n      content_by_lua_block { ngx.say(\"}\") }\n    }\n  }\n}\n";
    let made = nginx(text);
    let lines: Vec<usize> = made.report.directives.iter().map(|it| it.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13]);
    assert_has(&made, "# nginx.conf:2 `foo bar baz`: by hand: ");
    assert_has(&made, "# nginx.conf:4 `perl_set $a b`: not offered: ");
    assert_has(&made, "# nginx.conf:10 `frob 1`: by hand: ");
    assert_has(
        &made,
        "# nginx.conf:12 `more_set_headers \"A: b\"`: by hand: ",
    );
}

#[test]
fn errors_have_a_place() {
    let rows = [
        (
            "server {\n  listen 80\n}",
            "n.conf:3:1: a semicolon is missing behind `listen`",
        ),
        (
            "server {",
            "n.conf:1:1: the block of `server` is not closed",
        ),
        ("a;\n}", "n.conf:2:1: a brace that closes no block"),
        (
            "a",
            "n.conf:1:1: `a` has neither a semicolon nor a block behind it",
        ),
        (
            "{}",
            "n.conf:1:1: a block without a directive in front of it",
        ),
    ];
    for (text, expected) in rows {
        let kind = Some(ServerKind::Nginx);
        let error = import(Path::new("n.conf"), text, kind, &MemoryFiles::default()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn hostile_files_end() {
    let deep = format!("{}{}", "a {".repeat(100_000), "}".repeat(100_000));
    let many_routes = format!(
        "server {{ {} }}",
        "location /a { return 200; }".repeat(6_000)
    );
    let many_servers = "server { server_name a.b; listen 80; }".repeat(4_000);
    let wide = format!(
        "{} server {{ {} }}",
        "proxy_set_header A b; deny 1.2.3.4;".repeat(2_000),
        "location /a { proxy_pass http://127.0.0.1:1; }".repeat(1_000)
    );
    let quotes = "'".repeat(1_000_001);
    let maps = format!(
        "map $uri $x {{ {} }} server {{ if ($x) {{ return 403; }} }}",
        "/a 1;".repeat(10_000)
    );
    for text in [&deep, &many_routes, &many_servers, &wide, &quotes, &maps] {
        let kind = Some(ServerKind::Nginx);
        let made = import(Path::new("n.conf"), text, kind, &MemoryFiles::default());
        if let Ok(made) = made {
            assert!(made.toml.len() < 100 << 20);
        }
    }
    // Each prefix of a file with all constructs.
    let text = "user a;\nhttp { map $a $b { default 'x\"y'; ~^\\d 1; } server { listen 80; location ~* \\.(a|b)$ { rewrite ^/(.*)$ /x?$1 last; if ($b) { return 301 /$1; } } } }";
    for end in 0..text.len() {
        let kind = Some(ServerKind::Nginx);
        let _ = import(
            Path::new("n.conf"),
            &text[..end],
            kind,
            &MemoryFiles::default(),
        );
    }
}

#[test]
fn the_sets_of_the_documents_are_translated() {
    let sets = sets_of("nginx", "nginx.conf");
    assert_eq!(sets.len(), 10);
    for set in sets {
        let made = import_text(ServerKind::Nginx, "nginx.conf", &set.theirs);
        assert_loadable(&made);
        assert_servers_of_set(&set, &made);
        assert_eq!(
            made.report.count(Coverage::NotOffered),
            0,
            "{}",
            made.report.to_text()
        );
        assert!(
            made.report.count(Coverage::ByHand) <= 1,
            "{}",
            made.report.to_text()
        );
    }
}

#[test]
fn a_server_is_reached_by_its_own_listeners_alone() {
    let made = nginx(
        "server { listen 80; server_name a.example; location / { return 201; } }
         server { listen 127.0.0.1:8081; server_name b.example; location / { return 202; } }",
    );
    let outside = "match = { listener = [\":80\"] }\nrespond = { status = 201 }";
    let inside = "match = { listener = [\"127.0.0.1:8081\"] }\nrespond = { status = 202 }";
    assert_has(&made, outside);
    assert_has(&made, inside);
    for site in made.toml.split("[[sites]]").skip(1) {
        assert!(!site.contains("[[sites.routes]]\nrespond"), "{}", made.toml);
        let has_both = site.contains(outside) && site.contains(inside);
        assert!(has_both, "hosts do not choose the listener: {}", made.toml);
    }
    // An address whose port is that of a listener on every address.
    let made = nginx(
        "server { listen 80; location / { return 201; } }
         server { listen 127.0.0.1:80; location / { return 202; } }",
    );
    assert_has(&made, outside);
    assert_has(
        &made,
        "# by hand: a route of the listener \"127.0.0.1:80\", which is not in `listen`",
    );
    assert!(!made.toml.contains("\nrespond = { status = 202 }"));
}

#[test]
fn nested_expressions_stand_just_before_the_one_around_them() {
    let made = server(
        "root /srv;
         location ~ /data/ { return 404; }
         location ~ \\.(?:css|wasm)$ { expires 1h; location ~ \\.wasm$ { return 202; } }
         location ^~ /up/ { location ~ ^/up/a { location ~ \\.js$ { return 203; } return 204; } }",
    );
    let at = |text: &str| {
        made.toml
            .find(text)
            .unwrap_or_else(|| panic!("no {text} in {}", made.toml))
    };
    let order = [
        at("regex = '\\.js$'"),
        at("path = { regex = \"^/up/a\" }"),
        at("regex = \"/data/\""),
        at("regex = '\\.wasm$'"),
        at("regex = '\\.(?:css|wasm)$'"),
    ];
    assert!(order.is_sorted(), "{order:?} {}", made.toml);
    assert_has(
        &made,
        "match = { path = ['~\\.(?:css|wasm)$'] }\nrespond = { status = 202 }",
    );
    assert_has(
        &made,
        "match = { path = [\"~^/up/a\"], named = [\"location\"] }\nrespond = { status = 203 }",
    );
    assert_has(&made, "[conditions.location]\npath = [\"/up/*\"]");
}

#[test]
fn the_script_of_a_folder_is_run() {
    let php = "root /srv; location ~ \\.php$ { fastcgi_pass 127.0.0.1:9000; }";
    let front = "path = { regex = \"^/(.*/|)$\" }\nupstream = \"server-9000\"\nrewrite = { regex = \
                 \"^/(.*/|)$\", to = \"/{re.1}index.php\" }";
    assert_has(&server(&format!("index index.php; {php}")), front);
    let tried = "location / { try_files $uri $uri/ =404; }";
    assert_has(&server(&format!("index index.php; {tried} {php}")), front);
    for text in [
        format!("index index.html index.php; {php}"),
        "index index.php; root /srv;".to_owned(),
    ] {
        assert_has(
            &server(&text),
            "by hand: a folder's `index.php` is not run: ",
        );
    }
    let fallback = "location / { try_files $uri /index.php; }";
    let made = server(&format!("index index.php; {fallback} {php}"));
    assert!(!made.toml.contains("(.*/|)$"), "{}", made.toml);
}

#[test]
fn settings_keep_their_values() {
    let cached = "location / { proxy_pass http://127.0.0.1:1; proxy_cache c; proxy_cache_valid 200 404 1h; \
                  proxy_cache_valid any 1m; }";
    let made = nginx(&format!(
        "proxy_cache_path /c keys_zone=c:1m; server {{ listen 80; {cached} }}"
    ));
    assert_has(
        &made,
        "ttl_by_status = { 200 = \"1h\", 404 = \"1h\" }, default_ttl = \"1m\"",
    );
    let rows = [
        (
            "location / { proxy_pass http://127.0.0.1:1; expires 1y; add_header Cache-Control public,immutable; }",
            "set = { Cache-Control = \"max-age=31536000, public,immutable\" }",
        ),
        (
            "access_log /var/log/a.log; location /up { access_log off; return 200; } location / { return 404; }",
            "[access_logs.a-log]\npath = \"/var/log/a.log\"\nmatch = { not = { path = [\"~^/up\"] } }",
        ),
        (
            "location / { proxy_pass http://127.0.0.1:1; proxy_set_header X-Forwarded-Proto https; }",
            "request_headers = { set = { X-Forwarded-Proto = \"https\" } }",
        ),
        (
            "location / { proxy_pass http://127.0.0.1:1; }",
            "# nginx.conf:1: nginx sends `Host: 127.0.0.1:1` here, Penstock the client's. `host` changes that",
        ),
    ];
    for (text, expected) in rows {
        assert_has(&server(text), expected);
    }
    let kept = "location / { proxy_pass http://127.0.0.1:1; proxy_set_header Host $host; }";
    assert!(!server(kept).toml.contains("nginx sends `Host"));
}

#[test]
fn constants_are_folders_and_each_rest_is_a_comment() {
    let made = server(
        "set $public /srv/public; set $public_dir /srv/dir; root $public_dir;
         location /a/ { root $public; }",
    );
    assert_has(&made, "files = { root = \"/srv/dir\" }");
    assert_has(&made, "files = { root = \"/srv/public\" }");
    let made = nginx("http { include absent.conf; server { listen 80; return 404; } }");
    assert_has(
        &made,
        "# nginx.conf:1 `include absent.conf`: by hand: the file cannot be read",
    );
}
