//! Every form of a change, and the bodies that are refused.

use super::*;

fn weight(weight: u16) -> NonZeroU16 {
    NonZeroU16::new(weight).unwrap()
}

#[test]
fn reads_each_action() {
    let server = || "127.0.0.1:3000".to_owned();
    let plain = NewServer {
        server: server(),
        weight: weight(1),
        max_active: None,
        backup: false,
    };
    let full = NewServer {
        weight: weight(65_535),
        max_active: NonZeroU32::new(8),
        backup: true,
        ..plain.clone()
    };
    let rows = [
        ("\"add\"", ServerChangeRequest::Add(plain)),
        (
            "\"add\", \"weight\": 65535, \"max_active\": 8, \"backup\": true",
            ServerChangeRequest::Add(full),
        ),
        (
            "\"remove\"",
            ServerChangeRequest::Remove { server: server() },
        ),
        ("\"drain\"", ServerChangeRequest::Drain { server: server() }),
        (
            "\"disable\"",
            ServerChangeRequest::Disable { server: server() },
        ),
        (
            "\"enable\"",
            ServerChangeRequest::Enable { server: server() },
        ),
        (
            "\"weight\", \"weight\": 2",
            ServerChangeRequest::Weight {
                server: server(),
                weight: weight(2),
            },
        ),
        (
            "\"max_active\", \"max_active\": 3",
            ServerChangeRequest::MaxActive {
                server: server(),
                max_active: NonZeroU32::new(3),
            },
        ),
        (
            "\"max_active\", \"max_active\": null",
            ServerChangeRequest::MaxActive {
                server: server(),
                max_active: None,
            },
        ),
    ];
    for (action, expected) in rows {
        for text in [
            format!(r#"{{"action": {action}, "server": "127.0.0.1:3000"}}"#),
            format!("\r\n\t{{\"server\": \"127.0.0.1:3000\", \"action\": {action}}}\n"),
        ] {
            assert_eq!(
                parse_server_change(text.as_bytes()).ok(),
                Some(expected.clone()),
                "{text}"
            );
        }
    }
}

#[test]
fn refuses_what_is_not_meant_and_says_what_was_expected() {
    let rows = [
        ("nothing", "", "not an object"),
        ("a list in order", r#"["drain", "a:1"]"#, "not an object"),
        ("a word", "drain", "not an object"),
        ("cut short", r#"{"action": "drain", "server": "a:1""#, "EOF"),
        (
            "two objects",
            r#"{"action": "drain", "server": "a:1"} {}"#,
            "trailing",
        ),
        (
            "a raw control byte",
            "{\"action\": \"drain\", \"server\": \"\u{1}\"}",
            "control character",
        ),
        ("no action", r#"{"server": "a:1"}"#, "`action`"),
        (
            "unknown action",
            r#"{"action": "kill", "server": "a:1"}"#,
            "`kill`",
        ),
        (
            "action in capitals",
            r#"{"action": "Drain", "server": "a:1"}"#,
            "`Drain`",
        ),
        (
            "two actions",
            r#"{"action": "drain", "action": "drain", "server": "a:1"}"#,
            "duplicate",
        ),
        ("no server", r#"{"action": "drain"}"#, "`server`"),
        (
            "server is a number",
            r#"{"action": "drain", "server": 3000}"#,
            "a string",
        ),
        (
            "two servers",
            r#"{"action": "drain", "server": "a:1", "server": "a:2"}"#,
            "duplicate",
        ),
        (
            "a key of another action",
            r#"{"action": "drain", "server": "a:1", "weight": 2}"#,
            "`weight`",
        ),
        (
            "a key of none",
            r#"{"action": "add", "server": "a:1", "max": 2}"#,
            "`max`",
        ),
        (
            "no weight",
            r#"{"action": "weight", "server": "a:1"}"#,
            "`weight`",
        ),
        (
            "weight 0",
            r#"{"action": "weight", "server": "a:1", "weight": 0}"#,
            "nonzero",
        ),
        (
            "weight below 0",
            r#"{"action": "weight", "server": "a:1", "weight": -1}"#,
            "`-1`",
        ),
        (
            "weight too large",
            r#"{"action": "add", "server": "a:1", "weight": 65536}"#,
            "65536",
        ),
        (
            "half a weight",
            r#"{"action": "add", "server": "a:1", "weight": 0.5}"#,
            "0.5",
        ),
        (
            "weight null",
            r#"{"action": "weight", "server": "a:1", "weight": null}"#,
            "null",
        ),
        (
            "no bound",
            r#"{"action": "max_active", "server": "a:1"}"#,
            "`max_active`",
        ),
        (
            "bound 0",
            r#"{"action": "max_active", "server": "a:1", "max_active": 0}"#,
            "nonzero",
        ),
        (
            "backup is a word",
            r#"{"action": "add", "server": "a:1", "backup": "yes"}"#,
            "a boolean",
        ),
    ];
    for (name, text, expected) in rows {
        let error = parse_server_change(text.as_bytes())
            .expect_err(name)
            .to_string();
        assert!(error.contains(expected), "{name}: {error}");
        assert!(
            error.contains("expected an object such as {"),
            "{name}: {error}"
        );
    }
    assert!(parse_server_change(b"{\"action\": \"drain\", \"server\": \"\xff\"}").is_err());
    let deep = format!("{{\"action\": {}", "[".repeat(64 << 10));
    assert!(parse_server_change(deep.as_bytes()).is_err());
}
