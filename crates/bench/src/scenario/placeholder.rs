//! Placeholders such as `{{port}}` and `{{dir}}`: their names and values.
//!
//! `check` validates every text of a scenario with [`unknown_placeholder`]; `deploy` fills texts
//! in with [`PlaceholderValues`]. Only a lower-case word between the braces counts, so that
//! templates inside `files` may use the same braces with spaces.

use std::path::{Path, PathBuf};

/// Constant during a whole comparison.
const SHARED_NAMES: [&str; 4] = ["here", "root", "penstock", "cache"];
/// New for each start.
const START_NAMES: [&str; 10] = [
    "dir", "port", "port2", "port3", "port4", "port5", "port6", "port7", "port8", "port9",
];

/// The scope of a text, which decides which names it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceholderScope {
    /// Used outside of a start.
    Shared,
    /// Used by a start: ports and a directory exist.
    Start,
}

impl PlaceholderScope {
    /// The scope of the texts below a key; `None` where braces have no meaning.
    pub(super) fn of_key(key: &str) -> Option<Self> {
        match key {
            "setup" | "versions" | "paths_file" | "body_file" | "ca" => Some(Self::Shared),
            "files" | "start" | "env" | "url" => Some(Self::Start),
            _ => None,
        }
    }
}

/// The first placeholder of a text that is unknown in the scope.
pub(super) fn unknown_placeholder(text: &str, scope: PlaceholderScope) -> Option<&str> {
    let is_known = |name: &str| {
        SHARED_NAMES.contains(&name)
            || (scope == PlaceholderScope::Start && START_NAMES.contains(&name))
    };
    let mut found = split_placeholder(text);
    while let Some((_, name, behind)) = found {
        if !is_known(name) {
            return Some(name);
        }
        found = split_placeholder(behind);
    }
    None
}

/// The values of the placeholders.
#[derive(Debug, Clone)]
pub struct PlaceholderValues {
    /// `{{here}}`: the directory of the scenario file.
    pub here: PathBuf,
    /// `{{root}}`: the root of the repository, else `here`.
    pub root: PathBuf,
    /// `{{cache}}`: a directory that persists between runs.
    pub cache: PathBuf,
    /// `{{penstock}}`: the binary, a copy that no build changes.
    pub penstock: PathBuf,
    /// The values of one start.
    pub start: Option<PerStartValues>,
}

/// The values that are new for each start.
#[derive(Debug, Clone)]
pub struct PerStartValues {
    /// `{{dir}}`: a new directory.
    pub dir: PathBuf,
    /// `{{port}}`, `{{port2}}` to `{{port9}}`.
    pub ports: [u16; 9],
}

impl PlaceholderValues {
    /// Fills in every placeholder; one without a value here stays.
    #[must_use]
    pub fn fill(&self, text: &str) -> String {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some((before, name, behind)) = split_placeholder(rest) {
            filled += before;
            match self.value(name) {
                Some(value) => filled += &value,
                None => filled.extend(["{{", name, "}}"]),
            }
            rest = behind;
        }
        filled + rest
    }

    /// A named file: placeholders filled in, relative to the scenario's directory.
    #[must_use]
    pub fn resolve_file_path(&self, name: &str) -> PathBuf {
        self.here.join(self.fill(name))
    }

    fn value(&self, name: &str) -> Option<String> {
        let path = match name {
            "here" => &self.here,
            "root" => &self.root,
            "cache" => &self.cache,
            "penstock" => &self.penstock,
            "dir" => &self.start.as_ref()?.dir,
            _ => {
                let index = match name.strip_prefix("port")? {
                    "" => 0,
                    digit => digit.parse::<usize>().ok()?.checked_sub(1)?,
                };
                return self.start.as_ref()?.ports.get(index).map(u16::to_string);
            }
        };
        Some(path.to_string_lossy().into_owned())
    }
}

/// The root for a scenario in `here`: the nearest parent directory with a workspace, else `here`.
#[allow(
    clippy::disallowed_methods,
    reason = "checked once, before any event loop runs"
)]
pub(crate) fn find_root(here: &Path) -> PathBuf {
    here.ancestors()
        .find(|folder| {
            std::fs::read_to_string(folder.join("Cargo.toml"))
                .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
        })
        .unwrap_or(here)
        .to_owned()
}

/// The first placeholder of a text: what precedes it, its name, and the rest.
fn split_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let is_word = |name: &str| {
        name.starts_with(|one: char| one.is_ascii_lowercase())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    (0..text.len()).find_map(|start| {
        let (name, behind) = text.get(start..)?.strip_prefix("{{")?.split_once("}}")?;
        is_word(name).then_some((&text[..start], name, behind))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> PlaceholderValues {
        PlaceholderValues {
            here: "/here".into(),
            root: "/root".into(),
            cache: "/cache".into(),
            penstock: "/bin/penstock".into(),
            start: Some(PerStartValues {
                dir: "/dir".into(),
                ports: [1, 2, 3, 4, 5, 6, 7, 8, 9],
            }),
        }
    }

    #[test]
    fn fills_in_what_is_known() {
        for (text, expected) in [
            ("{{here}}/a {{root}} {{cache}}", "/here/a /root /cache"),
            ("{{port}}:{{port2}}:{{port9}}{{dir}}", "1:2:9/dir"),
            ("{{penstock}} serve", "/bin/penstock serve"),
            // Not placeholders: spaces, capitals, empty, unclosed.
            (
                "{{ here }} {{HERE}} {{}} {{here",
                "{{ here }} {{HERE}} {{}} {{here",
            ),
            ("{{{dir}}}", "{/dir}"),
            ("{{port0}}{{port10}}", "{{port0}}{{port10}}"),
            ("ä{{dir}}ö{", "ä/dirö{"),
            ("", ""),
        ] {
            assert_eq!(values().fill(text), expected, "{text}");
        }
    }

    #[test]
    fn names_what_is_unknown() {
        for (text, scope, expected) in [
            ("{{here}} {{dir}} {{port2}}", PlaceholderScope::Start, None),
            ("{{here}} {{dir}}", PlaceholderScope::Shared, Some("dir")),
            ("{{prot}}", PlaceholderScope::Start, Some("prot")),
            ("{{port1}}", PlaceholderScope::Start, Some("port1")),
            ("{{ jinja }}", PlaceholderScope::Shared, None),
        ] {
            assert_eq!(unknown_placeholder(text, scope), expected, "{text}");
        }
    }

    #[test]
    fn without_a_start_its_placeholders_stay() {
        let values = PlaceholderValues {
            start: None,
            ..values()
        };
        assert_eq!(values.fill("{{dir}} {{here}}"), "{{dir}} /here");
        assert_eq!(values.resolve_file_path("a/b"), Path::new("/here/a/b"));
        assert_eq!(
            values.resolve_file_path("{{cache}}/b"),
            Path::new("/cache/b")
        );
    }
}
