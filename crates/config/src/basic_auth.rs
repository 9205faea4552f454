//! The `basic_auth` of a route, and its file of users in the form of Apache's `htpasswd`.
//!
//! Called by `route`.
//!
//! # Invariants
//! - Every user has a hash that `rules` can verify; a password in plain text is refused.
//! - No message shows a hash.

use std::collections::BTreeMap;

use crate::disk;
use crate::findings::LocatedValue;
use crate::model::BasicAuth;
use crate::redacted::Secret;
use crate::section::{Keys as _, Section};

/// The table with the file of users.
pub(crate) const USERS: &str = "sites.routes.basic_auth.users";

/// What a hash looks like.
const EXAMPLE_HASH: &str = "$2b$12$ and 53 letters";

/// Explains where a user of the configuration file belongs; its password is not shown.
pub(crate) fn explain_inline_user(user: &str) -> String {
    format!(
        "`{user}` has no place in `users`: users stand in a file of their own, users = {{ file = \
         \"htpasswd\" }}, with a line `{user}:HASH` where HASH is as {EXAMPLE_HASH}. To write that \
         line: penstock hash-password {user} >> htpasswd"
    )
}

/// Reads the users of a route.
pub(crate) fn read(route: &Section<'_>) -> Option<BasicAuth> {
    let mut auth = BasicAuth::default();
    if !route.is_table("basic_auth") {
        let file = route.path("basic_auth")?;
        auth.users = read_file(route, &file);
        return Some(auth);
    }
    let table = route.table("basic_auth")?;
    auth.read_keys(&table);
    let users = table.table("users");
    if !table.has("users") {
        table.report_missing("users");
    }
    let users = users.filter(|users| users.has("file") || !users.has_unknown_keys());
    let file = users?.path("file")?;
    auth.users = read_file(&table, &file);
    Some(auth)
}

/// Whether a text can stand in a `WWW-Authenticate` field between quotes.
pub(crate) fn is_realm(text: &str) -> bool {
    crate::headers::is_field_value(text) && !text.contains(['"', '\\'])
}

fn read_file(
    table: &Section<'_>,
    file: &LocatedValue<std::path::PathBuf>,
) -> BTreeMap<String, Secret> {
    let path = file.value.display();
    let text = disk::read_file(&file.value);
    let text = text.and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| std::io::ErrorKind::InvalidData.into())
    });
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            table.report(
                file.offset,
                format!("`file` {path} cannot be read: {error}"),
            );
            return BTreeMap::new();
        }
    };
    let (users, problems) = parse(&text);
    for (line, problem) in problems {
        table.report(file.offset, format!("{path}:{line}: {problem}"));
    }
    if users.is_empty() {
        table.report(
            file.offset,
            format!("{path} has no user: penstock hash-password NAME prints the line of one"),
        );
    }
    users
}

/// The users of a file, and what is wrong in which line.
fn parse(text: &str) -> (BTreeMap<String, Secret>, Vec<(usize, String)>) {
    let (mut users, mut problems) = (BTreeMap::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let problem = match line.split_once(':') {
            None | Some(("", _)) => "expected `user:hash`".to_owned(),
            Some((user, _)) if users.contains_key(user) => format!("`{user}` stands twice"),
            Some((user, hash)) if is_known_hash(hash) => {
                users.insert(user.to_owned(), hash.into());
                continue;
            }
            Some((user, _)) => format!(
                "the password of `{user}` is no hash of bcrypt, argon2id or SHA-1, as {EXAMPLE_HASH}: \
                 penstock hash-password {user} prints its line"
            ),
        };
        problems.push((index + 1, problem));
    }
    (users, problems)
}

/// Whether `rules` can verify a hash: its kind and its form.
fn is_known_hash(hash: &str) -> bool {
    let is_bcrypt = ["$2a$", "$2b$", "$2y$"]
        .iter()
        .any(|kind| hash.starts_with(kind));
    let is_plain = hash.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain
        && (is_bcrypt && hash.len() == 60
            || hash.starts_with("$argon2id$") && hash.len() < 512
            || hash.starts_with("{SHA}") && hash.len() == 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, parse_valid};

    const BCRYPT: &str = "$2y$04$0123456789012345678901uHnS2UXnAdPNPRsBZ8XzGHS5zE5Vy4i";

    #[test]
    fn reads_the_hashes_of_htpasswd() {
        let sha = "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=";
        let argon = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$AAAA";
        let text = format!("# users\nanna:{BCRYPT}\n\nbert:{sha}\r\ncora:{argon}\n");
        let (users, problems) = parse(&text);
        assert_eq!(problems, []);
        let hashes: Vec<_> = users
            .iter()
            .map(|(user, hash)| (&**user, hash.expose()))
            .collect();
        assert_eq!(hashes, [("anna", BCRYPT), ("bert", sha), ("cora", argon)]);
    }

    #[test]
    fn a_password_in_plain_text_is_refused_without_showing_it() {
        let folder = TestDir::with_files(&[
            (
                "users",
                &format!("anna:{BCRYPT}\nbert:hunter2\ncora:$apr1$x$y\n:x\nanna:{BCRYPT}\n"),
            ),
            ("empty", "# nobody\n"),
        ]);
        let text = |auth: &str| {
            format!("[[sites]]\n[[sites.routes]]\nrespond = {{}}\nbasic_auth = {auth}\n")
        };
        let problems = |auth: &str| {
            let found = crate::parse(&text(auth), &folder.path().join("penstock.toml"));
            found.expect_err(auth).to_string()
        };
        let found = problems("{ users = { file = \"users\" } }");
        for expected in [
            "users:2: the password of `bert` is no hash",
            "users:3: the password of `cora` is no hash",
            "users:4: expected `user:hash`",
            "users:5: `anna` stands twice",
        ] {
            assert!(found.contains(expected), "{found}");
        }
        assert!(
            !found.contains("hunter2") && !found.contains("apr1"),
            "{found}"
        );
        for (auth, expected) in [
            ("{ users = { file = \"empty\" } }", "has no user"),
            ("{ users = { file = \"none\" } }", "cannot be read"),
            ("{}", "`users` is missing"),
            ("{ users = {} }", "`file` is missing"),
            (
                "{ users = { fiona = \"hunter2\" } }",
                "`fiona` has no place in `users`: users stand in a file",
            ),
            (
                "{ users = { fiona = \"hunter2\" } }",
                "penstock hash-password fiona >> htpasswd",
            ),
            ("{ users = \"x\" }", "`users`"),
            (
                "{ users = { file = \"users\" }, realm = \"a\\\"b\" }",
                "`realm` cannot be",
            ),
        ] {
            let found = problems(auth);
            assert!(found.contains(expected), "{auth}: {found}");
            assert!(!found.contains("hunter2"), "{auth}: {found}");
        }
        folder.add("users", &format!("anna:{BCRYPT}\n"));
        let config = parse_valid(
            &folder,
            &text("{ users = { file = \"users\" }, realm = \"A\" }"),
        );
        let auth = config.sites[0].routes[0].basic_auth.as_ref().unwrap();
        assert_eq!((auth.realm.as_str(), auth.users.len()), ("A", 1));
        assert!(!format!("{auth:?}").contains("$2y$"));
    }
}
