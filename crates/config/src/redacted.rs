//! Values that no message, log or page shows: keys and passwords of the configuration.
//!
//! Used by `model` for each key of that kind. What needs the value takes it as `&str`.
//!
//! # Invariants
//! - Whatever is written with `{}` or `{:?}` has `***` in place of the value, not even its length.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

/// A text that is shown as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Variables of an application's environment, of which messages show the names alone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvVariables(BTreeMap<String, String>);

impl From<BTreeMap<String, String>> for EnvVariables {
    fn from(variables: BTreeMap<String, String>) -> Self {
        Self(variables)
    }
}

impl Deref for EnvVariables {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl fmt::Debug for EnvVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.keys().map(|name| (name, Secret(String::new())));
        f.debug_map().entries(shown).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, parse_valid};

    #[test]
    fn a_secret_is_shown_as_stars() {
        let secret = Secret::from("abc");
        assert_eq!(
            format!("{secret} {secret:?} {:?}", Some(&secret)),
            "*** *** Some(***)"
        );
        assert_eq!(secret.expose(), "abc");
        let variables = BTreeMap::from([("TOKEN".to_owned(), "abc".to_owned())]);
        let variables = EnvVariables::from(variables);
        assert_eq!(format!("{variables:?}"), "{\"TOKEN\": ***}");
        assert_eq!(variables["TOKEN"], "abc");
    }

    #[test]
    fn a_configuration_is_shown_without_its_secrets() {
        const KEY: &str = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw";
        let folder = TestDir::with_files(&[("app.py", "app = 1")]);
        let text = format!(
            "[server]\nredis = \"redis://u:{KEY}@h\"\njoin = {{ listen = \"127.0.0.1:7000\", key = \"{KEY}\" }}\n\
             [hub]\ngrip_key = \"{KEY}\"\n[apps.a]\nentry = \"app:app\"\nkind = \"wsgi\"\nenv = {{ A_TOKEN = \"{KEY}\" }}\n\
             [upstreams.u]\njoinable = true\n\
             [[sites]]\n[[sites.routes]]\npath = \"/m/*\"\n\
             mercure = {{ publisher_key = \"{KEY}\", subscriber_key = \"{KEY}\" }}\n\
             [[sites.routes]]\napp = \"a\"\n"
        );
        let config = parse_valid(&folder, &text);
        assert_eq!(config.apps["a"].env["A_TOKEN"], KEY);
        let shown = format!("{config:#?}");
        assert!(shown.contains("***") && !shown.contains(KEY), "{shown}");
    }
}
