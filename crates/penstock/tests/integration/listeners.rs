//! Listeners: both address families for a port alone, and Unix sockets that front ends of other
//! users can reach, that replace no other file, and that are removed at a stop.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::process::Signal;

use crate::support::{PATIENCE, Site, eventually, is_alive, kill, texts};

const FILES: &str = "[[sites]]\n[[sites.routes]]\nfiles = { root = \"public\" }\n";

fn site(listen: &str) -> Site {
    let toml = format!("[server]\nlisten = {listen}\nadmin = \"127.0.0.1:0\"\n{FILES}");
    Site::new().file("public/a.txt", "file").config(&toml)
}

const GET: &[u8] = b"GET /a.txt HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";

fn ask(mut stream: impl Read + Write) -> String {
    stream.write_all(GET).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn ask_host(host: &str, port: u16) -> Option<String> {
    let stream = TcpStream::connect((host, port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Some(ask(stream))
}

fn has_ipv6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}

#[test]
fn a_port_alone_is_reached_over_ipv4_and_ipv6() {
    let toml = format!(
        "[server]\nlisten = [\":0\"]\nadmin = \"127.0.0.1:0\"\naccess_log = {{ path = \"access.log\", format = \"json\" }}\n{FILES}"
    );
    let server = Site::new()
        .file("public/a.txt", "file")
        .config(&toml)
        .serve(&[]);
    let port = server.port();
    assert!(ask_host("127.0.0.1", port).unwrap().ends_with("file"));
    eventually(PATIENCE, "the request is logged", || {
        server.site().read("access.log").contains("\"127.0.0.1")
    });
    assert!(!server.site().read("access.log").contains("::ffff"));
    if has_ipv6() {
        assert!(ask_host("::1", port).unwrap().ends_with("file"));
    }
    assert!(server.log().contains(&format!("listening http://*:{port}")));
    // It passes to the successor.
    server.signal(Signal::USR2);
    assert_eq!(
        server.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        server.log()
    );
    assert!(ask_host("127.0.0.1", port).unwrap().ends_with("file"));
    let successor = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
    kill(successor, Signal::TERM);
    eventually(PATIENCE, "the successor ends", || !is_alive(successor));
}

#[test]
fn both_families_stand_side_by_side_on_one_port() {
    if !has_ipv6() {
        return;
    }
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = reserved.local_addr().unwrap().port();
    drop(reserved);
    let listen = format!("[\"[::]:{port}\", \"0.0.0.0:{port}\"]");
    let server = site(&listen).serve(&[]);
    assert!(ask_host("127.0.0.1", port).unwrap().ends_with("file"));
    assert!(ask_host("::1", port).unwrap().ends_with("file"));
    drop(server);
    let server = site(&format!("[\"[::]:{port}\"]")).serve(&[]);
    assert!(ask_host("::1", port).unwrap().ends_with("file"));
    assert_eq!(ask_host("127.0.0.1", port), None, "as it is written");
    drop(server);
}

#[test]
fn a_unix_socket_is_everybodys_unless_something_else_is_said() {
    let server = site(
        "[\"unix:a.sock\", { address = \"unix:b.sock\", mode = \"0660\" }, { address = \"unix:c.sock\", mode = \"600\" }]",
    )
    .serve_after("umask 077", &[]);
    let path = |name: &str| server.site().dir().join(name);
    for (name, mode) in [("a.sock", 0o666), ("b.sock", 0o660), ("c.sock", 0o600)] {
        let found = std::fs::metadata(path(name)).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, mode, "{name}");
        assert!(ask(UnixStream::connect(path(name)).unwrap()).ends_with("file"));
    }
    // A reload applies the settings of a listener that stays.
    let toml = server.site().read("penstock.toml").replace("0660", "0640");
    server.site().write("penstock.toml", toml);
    server.admin("POST", "/reload");
    eventually(PATIENCE, "the mode changes", || {
        std::fs::metadata(path("b.sock"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
            == 0o640
    });
}

#[test]
fn a_unix_socket_is_given_to_whom_the_configuration_says() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let site = site(
        "[\"unix:a.sock\", { address = \"unix:b.sock\", mode = \"0660\", owner = \"12345:12346\" }]",
    );
    let server = site.serve(&[]);
    let owner = |name: &str| {
        let found = std::fs::metadata(site.dir().join(name)).unwrap();
        (found.uid(), found.gid())
    };
    assert_eq!((owner("a.sock"), owner("b.sock")), ((0, 0), (12345, 12346)));
    drop(server);
    let toml = site
        .read("penstock.toml")
        .replace("12345:12346", "nobody-of-that-name");
    site.write("penstock.toml", toml);
    let output = site.run(&["serve"]);
    let (_, complaint) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        complaint.contains("b.sock: owner: there is no user `nobody-of-that-name`"),
        "{complaint}"
    );
    assert!(!site.dir().join("a.sock").exists(), "nothing is left");
}

#[test]
fn a_unix_socket_takes_the_place_of_a_stale_one_and_of_nothing_else() {
    let site = site("[\"unix:a.sock\"]");
    let path = site.dir().join("a.sock");
    let refused = |what: &str| {
        let output = site.run(&["serve"]);
        let (_, complaint) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        assert!(complaint.contains(what), "{complaint}");
    };
    // Left by a process that has ended.
    drop(UnixListener::bind(&path).unwrap());
    let server = site.serve(&[]);
    refused("another program listens there");
    assert!(ask(UnixStream::connect(&path).unwrap()).ends_with("file"));
    // It stays over an upgrade and is removed by the last server.
    server.signal(Signal::USR2);
    assert_eq!(
        server.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        server.log()
    );
    assert!(ask(UnixStream::connect(&path).unwrap()).ends_with("file"));
    let successor = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
    kill(successor, Signal::TERM);
    eventually(PATIENCE, "the successor ends", || !is_alive(successor));
    assert!(!path.exists());

    std::fs::write(&path, "precious").unwrap();
    refused("a file that is not a socket exists");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();

    let other = UnixListener::bind(&path).unwrap();
    other.set_nonblocking(true).unwrap();
    refused("another program listens there");
    assert!(path.exists());
    drop(other);

    for (listen, what) in [
        ("unix:@site".to_owned(), "abstract socket"),
        (format!("unix:/{}", "x".repeat(150)), "at most 107"),
    ] {
        let output = site.run(&["serve", "-l", &listen]);
        let (_, complaint) = texts(&output);
        assert!(
            !output.status.success() && complaint.contains(what),
            "{complaint}"
        );
    }
}
