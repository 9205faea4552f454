//! Applications of the kinds command and fastcgi: what their tables give, and their errors.

use std::time::Duration;

use super::*;
use crate::model::{ConnectionLimits, Processes, Upstream};
use crate::testing::{TestDir, check_error_table, parse_valid};

fn read_app(folder: &TestDir, lines: &str) -> App {
    parse_valid(folder, &format!("[apps.a]\n{lines}\n")).apps["a"].clone()
}

#[test]
fn reads_a_program_of_the_users_own() {
    let folder = TestDir::with_sample_site();
    let app = read_app(
        &folder,
        r#"
kind = "command"
command = "thin -e 'my env' -p {port} start"
processes = 3
threads = 2
queue = { max = 7, timeout = "8s" }
response_timeout = "9s"
boot_timeout = "10s"
env = { A = "b" }
upstream = { connect_timeout = "1s", health = { path = "/up" }, connections = { max = 4 }, sendfile_root = "public" }
"#,
    );
    let words = ["thin", "-e", "my env", "-p", "{port}", "start"];
    assert_eq!(app.command, words);
    assert_eq!((app.kind, app.entry.as_str()), (AppKind::Command, ""));
    assert_eq!((app.threads, app.processes), (2, Processes::exactly(3)));
    assert_eq!(app.boot_timeout, Duration::from_secs(10));
    assert_eq!(app.env["A"], "b");
    let upstream = app.upstream.unwrap();
    let expected = Upstream {
        max_active: Some(2),
        max_queued: 7,
        queue_timeout: Duration::from_secs(8),
        response_timeout: Duration::from_secs(9),
        connect_timeout: Duration::from_secs(1),
        health: upstream.health.clone(),
        connections: ConnectionLimits {
            max_idle: 4,
            max: 4,
            ..ConnectionLimits::default()
        },
        sendfile: crate::model::Sendfile {
            is_enabled: true,
            dirs: vec![folder.join("public")],
        },
        ..Upstream::new("a", Protocol::Http, Vec::new())
    };
    assert_eq!(*upstream, expected);
    let path = expected.health.and_then(|health| health.path);
    assert_eq!(path.as_deref(), Some("/up"));
}

#[test]
fn gives_every_default_to_a_fastcgi_program() {
    let folder = TestDir::with_files(&[("index.php", "")]);
    let app = read_app(
        &folder,
        "kind = \"fastcgi\"\ncommand = [\"php-cgi\", \"\", \"a b\"]",
    );
    assert_eq!(app.command, ["php-cgi", "", "a b"]);
    let expected = Upstream {
        max_active: Some(1),
        ..Upstream::new("a", Protocol::FastCgi, Vec::new())
    };
    assert_eq!(app.upstream.as_deref(), Some(&expected));
    let lines = "kind = \"fastcgi\"\ncommand = \"x -s {socket}\"\nupstream = { root = \"/w\", index = \"i.php\", params = { A = \"b\" } }";
    let upstream = read_app(&folder, lines).upstream.unwrap();
    assert_eq!(upstream.index.as_deref(), Some("i.php"));
    assert_eq!(upstream.params["A"], "b");
}

#[test]
fn answers_for_every_path_after_public_like_any_application() {
    let folder = TestDir::with_sample_site();
    let text = "[apps.a]\nkind = \"command\"\ncommand = \"x {port}\"\n";
    let route = &parse_valid(&folder, text).sites[0].routes[0];
    assert_eq!(route.app.as_deref(), Some("a"));
    assert!(route.files.is_some());
}

#[test]
fn reports_commands_that_cannot_work() {
    const EXPECTED: &str = "expected a command such as \"thin -p {port} start\", each quote closed, or a list of texts";
    let missing = format!("penstock.toml:1:7: `command` is missing in [apps.a]: {EXPECTED}");
    let bad =
        |value: &str| format!("penstock.toml:3:11: `command` cannot be {value:?}: {EXPECTED}");
    let typed = "penstock.toml:3:11: `command` must be a command such as \"thin -p {port} start\", each quote closed, or a list of texts, not an integer";
    let rows: &[(&str, &str, &[&str])] = &[
        ("absent", "kind = \"command\"", &[&missing]),
        ("absent of fastcgi", "kind = \"fastcgi\"", &[&missing]),
        ("empty", "kind = \"command\"\ncommand = \" \"", &[&bad(" ")]),
        (
            "no program",
            "kind = \"command\"\ncommand = \"'' {port}\"",
            &[&bad("'' {port}")],
        ),
        (
            "open quote",
            "kind = \"command\"\ncommand = \"a '{port}\"",
            &[&bad("a '{port}")],
        ),
        (
            "empty list",
            "kind = \"command\"\ncommand = []",
            &[&bad("")],
        ),
        (
            "zero byte",
            "kind = \"command\"\ncommand = [\"a\\u0000\"]",
            &[&bad("a\0")],
        ),
        ("type", "kind = \"command\"\ncommand = 1", &[typed]),
        (
            "type of an item",
            "kind = \"command\"\ncommand = [\"a\", 1]",
            &[
                "penstock.toml:3:17: `command` must be a command such as \"thin -p {port} start\", each quote closed, or a list of texts, not an integer",
            ],
        ),
        (
            "two places",
            "kind = \"command\"\ncommand = [\"x\", \"{socket}\", \"{port}{port}\"]",
            &[
                "penstock.toml:3:11: `command` has {port} and {socket}: one of them says where to listen",
            ],
        ),
        (
            "two places of fastcgi",
            "kind = \"fastcgi\"\ncommand = \"x {fd} {port}\"",
            &[
                "penstock.toml:3:11: `command` has {port} and {fd}: one of them says where to listen",
            ],
        ),
    ];
    for (name, lines, expected) in rows {
        check_error_table(&[(name, &format!("[apps.a]\n{lines}\n"), expected)]);
    }
}

#[test]
fn a_command_without_a_place_is_valid() {
    let folder = TestDir::with_sample_site();
    let app = read_app(&folder, "kind = \"command\"\ncommand = \"node server.js\"");
    assert_eq!(app.command, ["node", "server.js"]);
}

#[test]
fn a_node_project_without_a_kind_is_told_its_keys() {
    let folder = TestDir::with_files(&[("package.json", "{}")]);
    let text = "[apps.a]\ndir = \".\"\n";
    let errors = crate::parse(text, &folder.join("penstock.toml")).unwrap_err();
    let expected = "add kind = \"command\" and command = \"npm start\"";
    assert!(errors.to_string().contains(expected), "{errors}");
}

#[test]
fn reports_keys_of_the_other_kinds() {
    check_error_table(&[
        (
            "of a script",
            "[apps.a]\nkind = \"command\"\ncommand = \"x {fd}\"\nentry = \"app:application\"\ninterpreter = \"python3\"\n",
            &[
                "penstock.toml:4:9: `entry` is only for the kinds \"wsgi\", \"asgi\" and \"rack\"",
                "penstock.toml:5:15: `interpreter` is only for the kinds \"wsgi\", \"asgi\" and \"rack\"",
            ],
        ),
        (
            "of a program",
            "[apps.a]\nkind = \"wsgi\"\ncommand = \"x {fd}\"\nupstream = {}\n",
            &[
                "penstock.toml:3:11: `command` is only for the kinds \"command\" and \"fastcgi\"",
                "penstock.toml:4:12: `upstream` is only for the kinds \"command\" and \"fastcgi\"",
            ],
        ),
        (
            "without a kind",
            "[apps.a]\ndir = \"public\"\ncommand = \"x {fd}\"\n",
            &[
                "penstock.toml:3:11: `command` is only for the kinds \"command\" and \"fastcgi\": add kind = \"command\"",
            ],
        ),
        (
            "of a kind that is wrong",
            "[apps.a]\nkind = \"comand\"\ncommand = \"x {fd}\"\n",
            &[
                "penstock.toml:2:8: `kind` cannot be \"comand\": expected \"wsgi\" or \"asgi\" or \"rack\" or \"command\" or \"fastcgi\"; did you mean `command`?",
            ],
        ),
        (
            "that the application says itself",
            "[apps.a]\nkind = \"command\"\ncommand = \"x {fd}\"\nupstream = { protocol = \"http\", servers = [], max_active = 1, queue = {}, response_timeout = \"1s\", blance = 1 }\n",
            &[
                "penstock.toml:4:14: `protocol` has no place in [apps.a.upstream]: the application's `kind` says it",
                "penstock.toml:4:33: `servers` has no place in [apps.a.upstream]: they are the application's processes",
                "penstock.toml:4:47: `max_active` has no place in [apps.a.upstream]: it is the application's `threads`",
                "penstock.toml:4:63: `queue` has no place in [apps.a.upstream]: it stands beside `upstream`",
                "penstock.toml:4:75: `response_timeout` has no place in [apps.a.upstream]: it stands beside `upstream`",
                "penstock.toml:4:100: unknown key `blance` in [apps.a.upstream]; did you mean `balance`?",
            ],
        ),
        (
            "that its protocol ignores",
            "[apps.a]\nkind = \"command\"\ncommand = \"x {fd}\"\nupstream = { root = \"/w\" }\n",
            &["penstock.toml:4:21: `root` is only for other protocols than \"http\""],
        ),
        (
            "fewer connections than threads",
            "[apps.a]\nkind = \"command\"\ncommand = \"x {fd}\"\nthreads = 5\nupstream = { connections = { max = 4 } }\n",
            &["penstock.toml:5:36: `max_active` (5) is above `max` (4)"],
        ),
        (
            "one name for two",
            "[apps.a]\nkind = \"command\"\ncommand = \"x {fd}\"\n[upstreams.a]\nservers = [\"b:80\"]\n[[sites]]\n[[sites.routes]]\napp = \"a\"\n",
            &[
                "penstock.toml:4:12: upstream `a` has the name of an application of kind \"command\" or \"fastcgi\": rename one",
            ],
        ),
    ]);
}
