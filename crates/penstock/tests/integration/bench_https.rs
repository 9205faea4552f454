//! `penstock bench` against HTTPS sites: its counts agree with the server's, and the wrong server is
//! refused and named.

use std::process::Command;

use serde_json::Value;

use crate::support::{Server, Site, is_server_hidden, texts};

const CONFIG: &str = r#"
[server]
listen = [{ address = "127.0.0.1:0", tls = true }]
threads = 1

[[sites]]
tls = { certificate = "server.pem" }
[[sites.routes]]
path = "/events/*"
hub = "{path.2}"
[[sites.routes]]
files = { root = "www" }
"#;

/// A site with a certificate for 127.0.0.1 in `server.pem`, and another one in `other.pem`.
fn server() -> Server {
    let site = Site::new()
        .file("www/index.html", "0123456789")
        .config(CONFIG);
    for name in ["server.pem", "other.pem"] {
        let output = Command::new("openssl")
            .args(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 9"
                    .split(' '),
            )
            .args([
                "-subj",
                &format!("/CN={name}"),
                "-keyout",
                name,
                "-out",
                "part.pem",
            ])
            .args(["-addext", "subjectAltName=IP:127.0.0.1"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .current_dir(site.dir())
            .output()
            .expect("openssl is installed (scripts/setup test)");
        assert!(output.status.success(), "{:?}", texts(&output));
        let both = site.read(name) + &site.read("part.pem");
        site.write(name, both);
    }
    site.serve(&[])
}

fn url(server: &Server, path: &str) -> String {
    let lines = server.announced();
    let mut names = lines
        .iter()
        .filter_map(|line| line.strip_prefix("listening "));
    let port = names.find_map(|name| name.trim_end_matches('/').rsplit(':').next());
    format!("https://127.0.0.1:{}{path}", port.unwrap())
}

/// The exit code, the saved report and the standard error of `penstock bench ... --json -`.
fn bench(server: &Server, arguments: &[&str]) -> (i32, Value, String) {
    let all = [&["bench"], arguments, &["--quiet", "--json", "-"]].concat();
    let output = server.site().run(&all);
    let (stdout, stderr) = texts(&output);
    let report = serde_json::from_str(&stdout).unwrap_or_default();
    (output.status.code().unwrap(), report, stderr)
}

#[test]
fn a_run_counts_the_sessions_that_the_server_counted() {
    if is_server_hidden() {
        return;
    }
    let server = server();
    let url = url(&server, "/");
    let kept = ["run", "--ca", "server.pem", "-c", "4", "-n", "200", &url];
    let (code, report, stderr) = bench(&server, &kept);
    assert_eq!(code, 0, "{report} {stderr}");
    let figures = &report["figures"];
    assert_eq!(
        (&figures["requests"], &figures["body_bytes"]),
        (&200.into(), &2000.into())
    );
    assert_eq!(figures["tls"]["sessions"]["TLSv1.3 AES_128_GCM_SHA256"], 4);

    let each = [&kept[..], &["--no-keepalive"]].concat();
    let (code, report, stderr) = bench(&server, &each);
    assert_eq!(code, 0, "{report} {stderr}");
    let tls = &report["figures"]["tls"];
    let count = |kind: &str| tls[kind]["count"].as_u64().unwrap();
    assert_eq!(count("full") + count("resumed"), 200, "{tls}");
    assert!(count("resumed") >= 190, "{tls}");

    let full = [&each[..], &["--no-tls-resume"]].concat();
    let (code, report, _) = bench(&server, &full);
    assert_eq!(
        (code, &report["figures"]["tls"]["full"]["count"]),
        (0, &200.into()),
        "{report}"
    );
    assert_eq!(server.metric("penstock_tls_handshakes_total"), Some(404.0));
    let resumed = server.metric("penstock_tls_resumptions_total").unwrap();
    assert!((190.0..=200.0).contains(&resumed), "{resumed}");
}

#[test]
fn another_server_is_refused_and_named() {
    if is_server_hidden() {
        return;
    }
    let server = server();
    let url = url(&server, "/");
    let run = ["run", "-c", "1", "-n", "2"];
    let plain = url.replace("https://", "http://");
    for (arguments, code, said) in [
        (
            &["--ca", "other.pem", &url][..],
            1,
            "UnknownIssuer: name its issuer with --ca",
        ),
        (&["--ca", "missing.pem", &url], 2, "missing.pem: "),
        (&["--ca", "server.pem", &url], 0, ""),
        (&["--insecure", &url], 0, ""),
        // The server answers in plain HTTP.
        (&[&plain], 1, "4xx"),
    ] {
        let (found, report, stderr) = bench(&server, &[&run[..], arguments].concat());
        assert_eq!(found, code, "{arguments:?}: {report} {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
    let admin = format!("https://127.0.0.1:{}/", server.admin_port());
    let (code, report, stderr) = bench(&server, &[&run[..], &["--insecure", &admin]].concat());
    assert_eq!(
        (code, &report["figures"]["errors"]["tls"]),
        (1, &2.into()),
        "{report}"
    );
    assert!(
        stderr.contains("does not speak TLS on this port"),
        "{stderr}"
    );
}

#[test]
fn streams_over_https_are_held() {
    if is_server_hidden() {
        return;
    }
    let server = server();
    let url = url(&server, "/events/news");
    let arguments = [
        "hold",
        "--ca",
        "server.pem",
        "-n",
        "60",
        "--rate",
        "500",
        "--for",
        "1s",
        "--heartbeat",
        "0",
        &url,
    ];
    let (code, report, stderr) = bench(&server, &arguments);
    assert_eq!(code, 0, "{report} {stderr}");
    assert_eq!(
        (&report["counts"]["open"], &report["counts"]["opened"]),
        (&60.into(), &60.into())
    );
    let count = |kind: &str| report[kind]["count"].as_u64().unwrap();
    assert_eq!(
        count("full_handshakes") + count("resumed_handshakes"),
        60,
        "{report}"
    );
}
