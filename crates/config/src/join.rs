//! The `join` of `[server]`: where programs dial in that serve an application elsewhere.
//!
//! Called by `parse` once the other listeners are known.
//!
//! # Invariants
//! - It listens where nothing else of the server does, its key is long enough to prove anything
//!   (RFC 2104 §3) and cannot be guessed, and no message shows it.

use crate::entropy::is_hard_to_guess;
use crate::findings::LocatedValue;
use crate::model::{JoinEndpoint, Upstream};
use crate::redacted::Secret;
use crate::section::Section;
use crate::server;

/// What a message says was expected of a key.
pub(crate) const JOIN_KEY_EXPECTED: &str = "a random secret of at least 32 bytes without control characters, such as `openssl rand -base64 32` makes";

const MIN_KEY_BYTES: usize = 32;

/// Reads the table of `[server]`, placed where its address stands.
pub(crate) fn read(server: &Section<'_>) -> Option<LocatedValue<JoinEndpoint>> {
    let table = server.table("join")?;
    let listen = server::read_listen_addr(&table, "listen");
    let key = read_key(&table, "key");
    let mut tls = true;
    table.read("tls", &mut tls);
    let (listen, key) = (listen?, key?);
    let join = JoinEndpoint {
        listen: listen.value,
        key,
        tls,
    };
    Some(LocatedValue::new(join, listen.offset))
}

/// Reads a key by which programs join.
pub(crate) fn read_key(table: &Section<'_>, name: &'static str) -> Option<Secret> {
    let key = table.secret(name)?;
    if !is_join_key(&key.value) {
        table.report_invalid_secret(name, key.offset, JOIN_KEY_EXPECTED);
        return None;
    }
    Some(key.value.into_owned().into())
}

/// Whether a text can be a key.
pub(crate) fn is_join_key(text: &str) -> bool {
    text.len() >= MIN_KEY_BYTES && !text.contains(char::is_control) && is_hard_to_guess(text)
}

/// Reports upstreams that cannot be joined.
pub(crate) fn check_joinable_upstreams<'u>(
    top: &Section<'_>,
    join: Option<&JoinEndpoint>,
    upstreams: impl Iterator<Item = &'u Upstream>,
) {
    let mut keys: Vec<_> = join.iter().map(|join| &join.key).collect();
    for upstream in upstreams {
        let name = &upstream.name;
        match (join, &upstream.join_key) {
            (None, _) if upstream.joinable => {
                let problem = format!(
                    "upstream `{name}` is `joinable`, and nobody can join: `join` is missing in \
                     [server]"
                );
                top.report_key("upstreams", problem);
            }
            (Some(_), Some(key)) => {
                if keys.contains(&key) {
                    let problem = format!(
                        "the `join_key` of upstream `{name}` is another's too: each needs one of \
                         its own"
                    );
                    top.report_key("upstreams", problem);
                }
                keys.push(key);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::JOIN_KEY_EXPECTED;
    use crate::ListenAddr;
    use crate::testing::{TestDir, check_error_table, parse_valid};

    const KEY: &str = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=";

    #[test]
    fn reads_where_and_by_which_key_and_what_may_be_joined() {
        let folder = TestDir::with_sample_site();
        let text = format!(
            "[server]\njoin = {{ listen = \"127.0.0.1:7000\", key = \"{KEY}\" }}\n[upstreams.a]\njoinable = true\n"
        );
        let config = parse_valid(&folder, &text);
        let join = config.server.join.unwrap();
        assert_eq!(join.listen, ListenAddr::loopback(7000));
        assert_eq!((join.key.expose(), join.tls), (KEY, true));
        let plain = text.replace("key =", "tls = false, key =");
        assert!(!parse_valid(&folder, &plain).server.join.unwrap().tls);
        let upstream = &config.upstreams["a"];
        assert!(upstream.joinable && upstream.servers.is_empty());
    }

    #[test]
    fn an_upstream_has_a_key_of_its_own() {
        let folder = TestDir::with_sample_site();
        let own = "pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ";
        let table = format!(
            "[server]\njoin = {{ listen = \"127.0.0.1:7000\", key = \"{KEY}\" }}\n[upstreams.a]\n"
        );
        let config = parse_valid(
            &folder,
            &format!("{table}joinable = true\njoin_key = \"{own}\"\n"),
        );
        let key = config.upstreams["a"].join_key.as_ref();
        assert_eq!(key.map(|key| key.expose()), Some(own));
        assert!(!format!("{config:?}").contains(own));
        let twice = format!("{table}joinable = true\njoin_key = \"{KEY}\"\n");
        let servers = "servers = [\"127.0.0.1:1\"]\n";
        let of_none = format!("{table}{servers}join_key = \"{own}\"\n");
        check_error_table(&[
            (
                "the key of all",
                twice.as_str(),
                &[
                    "penstock.toml:3:2: the `join_key` of upstream `a` is another's too: each needs one of its own",
                ],
            ),
            (
                "not joined",
                of_none.as_str(),
                &["penstock.toml:5:12: `join_key` is for an upstream that is `joinable`"],
            ),
        ]);
    }

    fn with_key(key: &str) -> String {
        format!(
            "[upstreams.a]\nservers = [\"127.0.0.1:1\"]\n[server]\njoin = {{ listen = \":7000\", key = \"{key}\" }}\n"
        )
    }

    #[test]
    fn refuses_what_cannot_be() {
        let guessed = with_key("0123456789abcdef0123456789abcdef");
        let words = with_key("32 bytes or more that nobody else knows");
        let short = "[upstreams.a]\nservers = [\"127.0.0.1:1\"]\n[server]\njoin = { listen = \":7000\", key = \"short\" }\n";
        let join = |listen: &str, rest: &str| {
            format!(
                "[upstreams.a]\nservers = [\"127.0.0.1:1\"]\n[server]\n{rest}join = {{ listen = \"{listen}\", key = \"{KEY}\" }}\n"
            )
        };
        let (listener, admin) = (
            join("127.0.0.1:8080", ""),
            join("127.0.0.1:7000", "admin = \"127.0.0.1:7000\"\n"),
        );
        let joined = format!(
            "[server]\njoin = {{ listen = \"127.0.0.1:7000\", key = \"{KEY}\" }}\n[upstreams.a]\njoinable = true\n"
        );
        let stream = format!("{joined}[[tcp]]\nlisten = \"127.0.0.1:81\"\nupstream = \"a\"\n");
        let proxy = format!("{joined}proxy_protocol = \"v1\"\n");
        check_error_table(&[
            (
                "nowhere",
                "[upstreams.a]\njoinable = true\n",
                &[
                    "penstock.toml:1:2: upstream `a` is `joinable`, and nobody can join: `join` is missing in [server]",
                ],
            ),
            (
                "a stream",
                &stream,
                &["penstock.toml:7:12: upstream `a` is `joinable`: no stream can lead there"],
            ),
            (
                "a PROXY header",
                &proxy,
                &[
                    "penstock.toml:5:18: `proxy_protocol` cannot stand with `joinable`: who joins knows its client",
                ],
            ),
            (
                "not HTTP",
                "[upstreams.a]\nprotocol = \"ajp\"\nservers = [\"127.0.0.1:1\"]\njoinable = true\n",
                &["penstock.toml:4:12: `joinable` is only for the protocol \"http\""],
            ),
            (
                "short",
                short,
                &[&format!(
                    "penstock.toml:4:34: `key` (not shown) cannot be used: expected {JOIN_KEY_EXPECTED}"
                )],
            ),
            (
                "a row of digits",
                &guessed,
                &[&format!(
                    "penstock.toml:4:34: `key` (not shown) cannot be used: expected {JOIN_KEY_EXPECTED}"
                )],
            ),
            (
                "words",
                &words,
                &[&format!(
                    "penstock.toml:4:34: `key` (not shown) cannot be used: expected {JOIN_KEY_EXPECTED}"
                )],
            ),
            (
                "empty",
                "[upstreams.a]\nservers = [\"127.0.0.1:1\"]\n[server]\njoin = {}\n",
                &[
                    "penstock.toml:4:8: `listen` is missing in [server.join]: expected an address such as \"127.0.0.1:8080\", \":8080\", \"[::1]:8080\" or \"unix:/run/site.sock\"",
                    &format!(
                        "penstock.toml:4:8: `key` is missing in [server.join]: expected {JOIN_KEY_EXPECTED}, or a table"
                    ),
                ],
            ),
            (
                "a listener's",
                &listener,
                &[
                    "penstock.toml:4:19: http://127.0.0.1:8080 is already taken by http://127.0.0.1:8080",
                ],
            ),
            (
                "the admin's",
                &admin,
                &[
                    "penstock.toml:5:19: admin (http://127.0.0.1:7000) and the listener http://127.0.0.1:7000 are the same address: move one, or set admin = \"off\"",
                ],
            ),
        ]);
    }
}
