//! Values that must stay secret: as a text, or from a file of their own.
//!
//! Used by the reader of each such key. `{ file = "..." }` names a file, `{ credential = "..." }`
//! a credential that the service manager gives the server (systemd.exec(5), `LoadCredential=`).
//!
//! # Invariants
//! - No message shows a secret.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::disk;
use crate::findings::LocatedValue;
use crate::section::Section;

/// Bytes of a secret's file.
const MAX_SECRET_BYTES: u64 = 64 << 10;

keys! {
    /// A secret in a file of its own, in place of a text: for every key that is a password, a key
    /// or a token. The file is read at the start and at each reload.
    SECRET in "secret_file", "{ ... } in place of a secret", "" {
        /// The file; the end of its last line is no part of the secret.
        "file": crate::options::OptionKind::Path,
            crate::options::OptionDefault::Described("required, unless there is a `credential`"),
            example r#""/run/secrets/key""#;
        /// The name of a credential that systemd gives the server (`LoadCredential=`,
        /// `SetCredentialEncrypted=`): a file in `$CREDENTIALS_DIRECTORY`.
        "credential": crate::options::OptionKind::Text(CREDENTIAL_EXPECTED),
            crate::options::OptionDefault::Described("none"), example r#""redis""#;
    }
}

/// What a message says was expected of a credential.
pub(crate) const CREDENTIAL_EXPECTED: &str = "the name of a credential, such as \"redis\"";

impl<'a> Section<'a> {
    /// The secret under a key: a text, or what stands in the file that a table names.
    pub(crate) fn secret(&self, key: &str) -> Option<LocatedValue<Cow<'a, str>>> {
        match self.is_table(key) {
            true => self.table(key)?.secret_in_file(),
            false => {
                let text = self.text(key)?;
                Some(LocatedValue::new(text.value.into(), text.offset))
            }
        }
    }

    /// The secret in the file that this table names.
    pub(crate) fn secret_in_file(&self) -> Option<LocatedValue<Cow<'a, str>>> {
        let path = self.secret_path()?;
        self.findings.add_value_file(path.value.clone());
        match disk::read_text(&path.value, MAX_SECRET_BYTES) {
            Ok(mut text) => {
                text.truncate(text.trim_end_matches(['\r', '\n']).len());
                Some(LocatedValue::new(text.into(), path.offset))
            }
            Err(error) => {
                let shown = path.value.display();
                self.report(path.offset, format!("{shown} {}", error.problem));
                None
            }
        }
    }

    /// The file that this table names, itself or as a credential.
    pub(crate) fn secret_path(&self) -> Option<LocatedValue<PathBuf>> {
        let file = self.path("file");
        let credential = self.parse_text("credential", |text| {
            is_credential_name(text).then(|| text.to_owned())
        });
        match (self.has("file"), self.has("credential")) {
            (false, false) => {
                self.report_missing("file");
                None
            }
            (true, true) => {
                self.report_key(
                    "credential",
                    "`file` and `credential` are both the secret: keep one",
                );
                None
            }
            (true, false) => file,
            (false, true) => self.credential_path(&credential?),
        }
    }

    fn credential_path(&self, name: &LocatedValue<String>) -> Option<LocatedValue<PathBuf>> {
        let directory = std::env::var_os("CREDENTIALS_DIRECTORY");
        let Some(directory) = directory.filter(|directory| !directory.is_empty()) else {
            self.report(name.offset, NO_CREDENTIALS);
            return None;
        };
        let path = Path::new(&directory).join(&name.value);
        Some(LocatedValue::new(path, name.offset))
    }
}

/// Whether a text names a file of a directory and no other (systemd.exec(5): a file name).
fn is_credential_name(text: &str) -> bool {
    let is_plain = |c: char| c != '/' && !c.is_control();
    !["", ".", ".."].contains(&text) && text.len() <= 255 && text.chars().all(is_plain)
}

const NO_CREDENTIALS: &str = "`credential` needs a service manager that passes credentials, and \
     `CREDENTIALS_DIRECTORY` is not set: add `LoadCredential=` to the service, or name a `file`";

#[cfg(test)]
mod tests {
    use crate::testing::{TestDir, check_errors_in, parse_valid};

    const KEY: &str = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=";

    fn folder() -> TestDir {
        TestDir::with_files(&[
            ("app.py", "application = 1\n"),
            ("key", &format!("{KEY}\r\n")),
            ("redis", "redis://:s3cret@h\n"),
            ("short", "s3cret"),
            ("pipe/", ""),
        ])
    }

    #[test]
    fn every_secret_may_stand_in_a_file() {
        let text = r#"
[server]
redis = { file = "redis" }
join = { listen = "127.0.0.1:7000", key = { file = "key" } }
admin_token = { file = "key" }
[hub]
grip_key = { file = "key" }
[apps.a]
[upstreams.old]
protocol = "ajp"
servers = ["127.0.0.1:1"]
secret = { file = "short" }
[upstreams.u]
joinable = true
join_key = { file = "short-key" }
[[sites]]
[[sites.routes]]
path = "/m/*"
mercure = { publisher_key = { file = "key" }, subscriber_key = { key = { file = "key" }, algorithm = "HS256" } }
[[sites.routes]]
app = "a"
"#;
        let folder = folder();
        folder.add("short-key", "pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ");
        let config = parse_valid(&folder, text);
        let server = &config.server;
        assert_eq!(server.redis.as_ref().unwrap().expose(), "redis://:s3cret@h");
        assert_eq!(server.join.as_ref().unwrap().key.expose(), KEY);
        assert_eq!(server.admin_token.as_deref(), Some(&*folder.join("key")));
        assert_eq!(config.hub.grip_key.as_ref().unwrap().expose(), KEY);
        let secret = config.upstreams["old"].secret.as_ref();
        assert_eq!(secret.unwrap().expose(), "s3cret");
        let join_key = config.upstreams["u"].join_key.as_ref();
        assert_eq!(
            join_key.unwrap().expose(),
            "pW3sX9vB1nK7mQ5tR2yU8iO4aL6cE0dZ"
        );
        let mercure = config.sites[0].routes[0].mercure.as_ref().unwrap();
        let shown = format!("{:?} {:?}", mercure.publisher_key, mercure.subscriber_key);
        assert_eq!(shown.matches("Single").count(), 2, "{shown}");
        for file in ["key", "redis", "short", "short-key"] {
            assert!(config.sources.contains(&folder.join(file)), "{file}");
        }
    }

    #[test]
    fn reports_files_without_a_secret_and_never_shows_one() {
        let rows = [
            ("{ file = \"none\" }", "redis = ", "18: none does not exist"),
            (
                "{ file = \"pipe\" }",
                "redis = ",
                "18: pipe is a folder: name its files, as in \"sites/*.toml\"",
            ),
            (
                "{ file = \"short\" }",
                "redis = ",
                "18: `redis` (not shown) cannot be used: expected ",
            ),
            (
                "{}",
                "redis = ",
                "9: `file` is missing in [server.redis]: expected a path",
            ),
            (
                "{ file = \"key\", credential = \"x\" }",
                "redis = ",
                "38: `file` and `credential` are both the secret: keep one",
            ),
            (
                "{ credential = \"a/b\" }",
                "redis = ",
                "24: `credential` cannot be \"a/b\": expected ",
            ),
            (
                "{ credential = \"x\" }",
                "redis = ",
                "24: `credential` needs a service manager",
            ),
        ];
        for (value, key, expected) in rows {
            let text = format!("[apps.a]\n[server]\n{key}{value}\n");
            let lines = check_errors_in(&folder(), &text);
            assert_eq!(lines.len(), 1, "{value}: {lines:?}");
            let expected = format!("penstock.toml:3:{expected}");
            assert!(lines[0].starts_with(&expected), "{value}: {}", lines[0]);
            assert!(!lines[0].contains("s3cret"), "{}", lines[0]);
        }
    }
}
