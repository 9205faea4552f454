//! `penstock import`: files of other servers become configurations, with a report.

use crate::support::{Site, texts};

/// Runs a verb to its end: exit code, standard output, standard error.
fn run(site: &Site, arguments: &[&str]) -> (i32, String, String) {
    let output = site.run(arguments);
    let (stdout, stderr) = texts(&output);
    (output.status.code().unwrap(), stdout, stderr)
}

const NGINX: &str = "\
http {
    include sites/*.conf;
    perl_set $a b;
}
";

const INCLUDED: &str = "\
server {
    listen 127.0.0.1:0;
    location / {
        return 200 'hi';
    }
}
";

fn nginx_site() -> Site {
    Site::new()
        .file("nginx.conf", NGINX)
        .file("sites/a.conf", INCLUDED)
}

#[test]
fn a_file_becomes_a_configuration_that_is_good() {
    let site = nginx_site();
    let (code, stdout, stderr) = run(&site, &["import", "nginx.conf", "-o", "made.toml"]);
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert_eq!(
        last,
        "7 directives: 4 translated, 1 built in, 1 not needed, 1 not offered"
    );
    assert!(
        stderr.contains("nginx.conf:3 `perl_set $a b`: not offered: "),
        "{stderr}"
    );
    let (code, stdout, stderr) = run(&site, &["check", "--config-only", "made.toml"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(
        stdout.starts_with("made.toml: good (0 applications, 1 site)") || stdout.contains("good"),
        "{stdout}"
    );
}

#[test]
fn no_file_is_replaced_without_force() {
    let site = nginx_site().file("out.toml", "old");
    let (code, _, stderr) = run(&site, &["import", "nginx.conf", "-o", "out.toml"]);
    assert_eq!(code, 2);
    assert_eq!(
        stderr,
        "penstock: out.toml: is there already: --force replaces it\n"
    );
    let forced = [
        "import",
        "nginx.conf",
        "-o",
        "out.toml",
        "--force",
        "--report",
        "summary",
    ];
    let (code, _, stderr) = run(&site, &forced);
    assert_eq!((code, stderr.lines().count()), (0, 1));
}

#[test]
fn the_report_is_json_if_it_is_wanted() {
    let (code, stdout, stderr) = run(&nginx_site(), &["import", "nginx.conf", "--report", "json"]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("[[sites.routes]]\nrespond = { body = \"hi\" }"),
        "{stdout}"
    );
    let report: serde_json::Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!(report["counts"]["translated"], 4);
    assert_eq!(report["directives"][0]["line"], 1);
}

#[test]
fn files_that_cannot_be_read_are_errors_with_their_place() {
    let site = Site::new()
        .file("nginx.conf", "server {\n    listen 80\n}\n")
        .file("notes.txt", "Dear all,");
    let rows: [(&[&str], &str); 4] = [
        (
            &["import", "nginx.conf"],
            "penstock: nginx.conf:3:1: a semicolon is missing behind `listen`\n",
        ),
        (
            &["import", "absent.conf"],
            "penstock: absent.conf: cannot be read: ",
        ),
        (
            &["import", "."],
            "penstock: .: cannot be read: it is no regular file",
        ),
        (
            &["import", "notes.txt"],
            "penstock: notes.txt: not recognised as a file of another server: name its kind by --from nginx|",
        ),
    ];
    for (arguments, expected) in rows {
        let (code, stdout, stderr) = run(&site, arguments);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert!(stderr.starts_with(expected), "{stderr}");
    }
}

#[test]
fn words_of_other_servers_are_explained() {
    let (code, stdout, _) = run(&Site::new(), &["config", "explain", "client_max_body_size"]);
    assert_eq!(code, 0);
    let first = stdout.lines().next().unwrap();
    assert_eq!(
        first,
        "client_max_body_size (nginx): `limits.body_bytes` (64 MiB), `max_body_size` of a route."
    );
    assert!(stdout.contains("\nlimits.body_bytes\n"), "{stdout}");
    let (code, _, stderr) = run(&Site::new(), &["config", "explain", "worker_clas"]);
    assert_eq!(code, 2);
    assert!(
        stderr.contains("did you mean `worker_class` (Gunicorn)"),
        "{stderr}"
    );
}

#[test]
fn init_writes_what_a_start_finds() {
    let wsgi = "def application(environ, start):\n    start('200 OK', [])\n    return [b'ok']\n";
    let site = Site::new()
        .file("app.py", wsgi)
        .file(".env", "SECRET=tell-nobody\n");
    let (code, stdout, stderr) = run(&site, &["init", "--print"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("entry = \"app:application\""), "{stdout}");
    let (code, stdout, stderr) = run(&site, &["config", "init"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("wrote ") && !stdout.contains("tell-nobody"));
    let (code, stdout, stderr) = run(&site, &["check"]);
    assert!(
        code == 0 && stdout.contains("good (1 application, 1 site)"),
        "{stdout}{stderr}"
    );
    let (code, _, stderr) = run(&site, &["init"]);
    assert!(code == 2 && stderr.contains("penstock.toml: is there already"));
    let (code, _, stderr) = run(&Site::new(), &["init"]);
    assert!(
        code == 2 && stderr.contains("nothing to serve was recognised"),
        "{stderr}"
    );
}
