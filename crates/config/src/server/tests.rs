//! Listeners with a PROXY protocol header, trusted proxies, the process itself.

use crate::testing::{TestDir, check_error_table, parse_in_dir, parse_valid};
use crate::{ControlSocket, HttpListener, ListenAddr, LogTarget, SocketPermissions};

#[test]
fn reads_listeners_as_texts_and_as_tables() {
    let text = "[apps.a]\n[server]\nlisten = [\":80\", { address = \":81\", proxy_protocol = true }, { address = \"unix:x.sock\" }]\n";
    let folder = TestDir::with_sample_site();
    let server = parse_valid(&folder, text).server;
    let tcp = |text: &str| text.parse::<ListenAddr>().unwrap();
    let unix = ListenAddr::Unix(folder.join("x.sock"));
    let behind = HttpListener {
        proxy_protocol: true,
        ..tcp(":81").into()
    };
    assert_eq!(
        server.listen,
        [tcp(":80").into(), behind.clone(), unix.into()]
    );
    assert_eq!(server.trusted_proxies, None);
    for (one, expected) in [
        ("\":80\"", tcp(":80").into()),
        ("{ address = \":81\", proxy_protocol = true }", behind),
    ] {
        let text = format!("[apps.a]\n[server]\nlisten = {one}\n");
        assert_eq!(parse_valid(&folder, &text).server.listen, [expected]);
    }
}

#[test]
fn reads_who_is_trusted() {
    let read = |list: &str| {
        let text = format!("[apps.a]\n[server]\ntrusted_proxies = {list}\n");
        parse_valid(&TestDir::with_sample_site(), &text)
            .server
            .trusted_proxies
    };
    let texts = ["10.0.0.0/8", "192.0.2.7", "unix"].map(str::to_owned);
    assert_eq!(
        read(r#"["10.0.0.0/8", "192.0.2.7", "unix"]"#),
        Some(texts.to_vec())
    );
    assert_eq!(read("[]"), Some(Vec::new()));
}

#[test]
fn reports_listeners_and_networks_that_are_wrong() {
    check_error_table(&[
        (
            "tables",
            "[apps.a]\n[server]\nlisten = [{ proxy_protocol = 1 }, { address = \"x\" }, 1, { address = \":80\", port = 1 }]\n",
            &[
                &format!(
                    "penstock.toml:3:11: `address` is missing in [server.listen]: expected {}",
                    ListenAddr::EXPECTED
                ),
                "penstock.toml:3:30: `proxy_protocol` must be true or false, not an integer",
                &format!(
                    "penstock.toml:3:47: `address` cannot be \"x\": expected {}",
                    ListenAddr::EXPECTED
                ),
                &format!(
                    "penstock.toml:3:54: `listen` must be {}, or a table, or a list of these, not an integer",
                    ListenAddr::EXPECTED
                ),
                "penstock.toml:3:76: unknown key `port` in [server.listen]",
            ],
        ),
        (
            "probes where a listener is",
            "[apps.a]\n[server]\nlisten = [\":80\"]\nprobes = \"127.0.0.1:80\"\n",
            &["penstock.toml:4:10: http://127.0.0.1:80 is already taken by http://*:80 on line 3"],
        ),
        (
            "probes where administrators are",
            "[apps.a]\n[server]\nadmin = \"127.0.0.1:9090\"\nprobes = \":9090\"\n",
            &[
                "penstock.toml:4:10: http://*:9090 is already taken by http://127.0.0.1:9090 on line 3",
            ],
        ),
        (
            "taken",
            "[apps.a]\n[server]\nlisten = [{ address = \":80\" },\n{ address = \"127.0.0.1:80\", proxy_protocol = true }]\n",
            &["penstock.toml:4:13: http://127.0.0.1:80 is already taken by http://*:80 on line 3"],
        ),
        (
            "networks",
            "[apps.a]\n[server]\ntrusted_proxies = [\"10.0.0.0/33\", \"proxy.example\"]\n",
            &[
                "penstock.toml:3:20: `trusted_proxies` cannot be \"10.0.0.0/33\": expected \"unix\", an address, or a network such as \"10.0.0.0/8\"",
                "penstock.toml:3:35: `trusted_proxies` cannot be \"proxy.example\": expected \"unix\", an address, or a network such as \"10.0.0.0/8\"",
            ],
        ),
    ]);
}

#[test]
fn reads_what_the_servers_own_process_is() {
    let folder = TestDir::with_sample_site();
    let text = "[apps.a]\n[server]\nlog = \"logs/server.log\"\nuser = \"www-data:web\"\numask = \"0027\"\n\
                max_open_files = 4096\ndir = \".\"\nkeep_alive_drain = \"2s\"\nreuse_port = true\n";
    let server = parse_valid(&folder, text).server;
    assert_eq!(server.log, LogTarget::File(folder.join("logs/server.log")));
    assert_eq!(server.user.as_deref(), Some("www-data"));
    assert_eq!(server.group.as_deref(), Some("web"));
    assert_eq!(
        (server.umask, server.max_open_files),
        (Some(0o27), Some(4096))
    );
    assert_eq!(server.keep_alive_drain, std::time::Duration::from_secs(2));
    assert!(server.reuse_port && !crate::Server::default().reuse_port);
    assert!(server.dir.is_some_and(|folder| folder.is_absolute()));
    let text = "[apps.a]\n[server]\nuser = \"33:web\"\ngroup = \"44\"\nlog = \"stdout\"\n";
    let server = parse_valid(&folder, text).server;
    assert_eq!(server.user.as_deref(), Some("33"));
    assert_eq!(
        (server.group.as_deref(), server.log),
        (Some("44"), LogTarget::Stdout)
    );
}

#[test]
fn reports_users_and_masks_that_cannot_be() {
    check_error_table(&[(
        "process",
        "[apps.a]\n[server]\nuser = \"a:b:c\"\ngroup = \"a b\"\numask = \"28\"\n",
        &[
            "penstock.toml:3:8: `user` cannot be \"a:b:c\": expected a user's name or number, or `user:group`",
            "penstock.toml:4:9: `group` cannot be \"a b\": expected a group's name or number",
            "penstock.toml:5:9: `umask` cannot be \"28\": expected three or four octal digits",
        ],
    )]);
}

#[test]
fn reads_who_may_connect_to_a_unix_socket() {
    let folder = TestDir::with_sample_site();
    let read = |table: &str| {
        let text = format!(
            "[apps.a]\n[server]\nlisten = [\":80\", {{ address = \"unix:x.sock\"{table} }}]\n"
        );
        let server = parse_valid(&folder, &text).server;
        let file = server
            .socket_permissions
            .get(&folder.join("x.sock"))
            .cloned();
        file.unwrap()
    };
    let named = |text: &str| Some(text.to_owned());
    let rows = [
        ("", None, None, None),
        (", mode = \"0660\"", Some(0o660), None, None),
        (", mode = \"600\"", Some(0o600), None, None),
        (", owner = \"www\"", None, named("www"), None),
        (", owner = \"33:web\"", None, named("33"), named("web")),
        (", owner = \":web\"", None, None, named("web")),
    ];
    for (table, mode, user, group) in rows {
        assert_eq!(
            read(table),
            SocketPermissions { mode, user, group },
            "{table}"
        );
    }
}

#[test]
fn reports_unix_sockets_that_cannot_be() {
    let long = "x".repeat(200);
    let listen = |item: &str| format!("[apps.a]\n[server]\nlisten = [{item}]\n");
    let rows = [
        (
            "\"unix:@site\"".to_owned(),
            "`unix:@site` would be an abstract socket, which has no permissions: choose the path of a file, \
             such as \"unix:/run/site.sock\"",
        ),
        (
            format!("\"unix:/{long}\""),
            "201 bytes, and the path of a Unix socket has at most 107: choose a shorter one",
        ),
        (
            format!("{{ address = \"unix:/{long}\" }}"),
            "201 bytes, and the path of a Unix socket has at most 107: choose a shorter one",
        ),
        (
            "{ address = \":80\", mode = \"0660\" }".to_owned(),
            "`mode` sets who may open the file of a Unix socket, and this address is a TCP port: remove `mode`",
        ),
        (
            "{ address = \"unix:/a\", mode = \"rw\" }".to_owned(),
            "`mode` cannot be \"rw\": expected three or four octal digits",
        ),
        (
            "{ address = \"unix:/a\", owner = \":\" }".to_owned(),
            "`owner` cannot be \":\": expected `user`, `user:group` or `:group`, by name or number",
        ),
    ];
    for (item, expected) in rows {
        let folder = TestDir::with_sample_site();
        let report = parse_in_dir(&folder, &listen(&item)).unwrap_err();
        let report = folder.error_lines(&report);
        assert!(
            report.len() == 1 && report[0].ends_with(expected),
            "{item}: {report:?}"
        );
    }
}

#[test]
fn reads_where_the_server_is_changed() {
    let folder = TestDir::with_sample_site();
    let read = |lines: &str| parse_valid(&folder, &format!("[apps.a]\n[server]\n{lines}")).server;
    assert_eq!(read("").control_socket, ControlSocket::Auto);
    assert_eq!(
        read("control_socket = \"off\"\n").control_socket,
        ControlSocket::Off
    );
    let server = read("control_socket = \"unix:c.sock\"\nadmin_token = { file = \"token\" }\n");
    assert_eq!(
        server.control_socket,
        ControlSocket::Path(folder.join("c.sock"))
    );
    assert_eq!(server.admin_token, Some(folder.join("token")));
    let expected = "\"off\", or a Unix socket such as \"unix:/run/penstock/control.sock\"";
    check_error_table(&[
        (
            "no socket",
            "[apps.a]\n[server]\ncontrol_socket = \"127.0.0.1:8091\"\n",
            &[&format!(
                "penstock.toml:3:18: `control_socket` cannot be \"127.0.0.1:8091\": expected {expected}"
            )],
        ),
        (
            "a listener's",
            "[apps.a]\n[server]\nlisten = [\"unix:/run/a.sock\"]\ncontrol_socket = \"unix:/run/a.sock\"\n",
            &[
                "penstock.toml:4:18: unix:/run/a.sock is already taken by unix:/run/a.sock on line 3",
            ],
        ),
        (
            "the admin interface's",
            "[apps.a]\n[server]\nadmin = \"unix:/run/a.sock\"\ncontrol_socket = \"unix:/run/a.sock\"\n",
            &[
                "penstock.toml:4:18: unix:/run/a.sock is already taken by unix:/run/a.sock on line 3",
            ],
        ),
        (
            "a token without a file",
            "[apps.a]\n[server]\nadmin_token = {}\n",
            &["penstock.toml:3:15: `file` is missing in [server.admin_token]: expected a path"],
        ),
    ]);
}
