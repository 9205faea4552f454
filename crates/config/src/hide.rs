//! Which names below a directory of files are never sent: the patterns of `hide`, and the built-in
//! list.
//!
//! Read by `server` and `files`; the `files` crate compiles the patterns. The list is argued class
//! by class in `docs/files.md`.
//!
//! # Invariants
//! - A pattern that could never match, or an exception before there is anything to except, is
//!   refused.
//! - The built-in list names files by their last segment, and directories by a final slash: a
//!   directory called `example.pl` is a directory.

use std::fmt;

use crate::findings::LocatedValue;
use crate::section::Section;

/// One item of `hide`. Of several that match a path, the last decides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HidePattern {
    /// The built-in list: `"default"`.
    Defaults,
    /// Names that are hidden: `*.psd`, `drafts/`, `/internal/*`.
    Hide(String),
    /// Names that are served all the same, written with an exclamation mark: `!*.py`.
    Except(String),
}

impl HidePattern {
    /// What leaving `hide` out means.
    #[must_use]
    pub fn defaults() -> Vec<Self> {
        vec![Self::Defaults]
    }

    /// Reads one item.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "default" {
            return Some(Self::Defaults);
        }
        let (is_shown, pattern) = match text.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, text),
        };
        let pattern_owned = || pattern.to_owned();
        is_hide_pattern(pattern).then(|| match is_shown {
            true => Self::Except(pattern_owned()),
            false => Self::Hide(pattern_owned()),
        })
    }
}

impl fmt::Display for HidePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Defaults => f.write_str("default"),
            Self::Hide(pattern) => f.write_str(pattern),
            Self::Except(pattern) => write!(f, "!{pattern}"),
        }
    }
}

/// Reads the key `hide` of a table, if it is there.
pub(crate) fn read(table: &Section<'_>) -> Option<Vec<HidePattern>> {
    let items = table.list("hide", HidePattern::parse)?;
    check_exceptions(table, &items);
    Some(items.into_iter().map(|item| item.value).collect())
}

/// An exception from nothing hides nothing: it is meant for the built-in list.
fn check_exceptions(table: &Section<'_>, items: &[LocatedValue<HidePattern>]) {
    if let Some(first) = items.first()
        && let HidePattern::Except(pattern) = &first.value
    {
        let written = format!("!{pattern}");
        table.report_invalid_item("hide", &written, first.offset, EXCEPTION_EXPECTED);
    }
}

/// Whether some name could match: a name (`*.psd`), a directory (`drafts/`), or with a slash in
/// front a path below the root (`/internal/*`).
fn is_hide_pattern(text: &str) -> bool {
    let path = text.strip_prefix('/');
    let inner = path.unwrap_or(text);
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    let is_part = |part: &str| !["", ".", ".."].contains(&part);
    let is_plain = path.is_some() || !inner.contains('/');
    is_plain && !text.contains(char::is_control) && inner.split('/').all(is_part)
}

/// What an item of `hide` may be.
pub(crate) const HIDE_EXPECTED: &str = "\"default\", a pattern such as \"*.psd\", \"drafts/\" or \
     \"/internal/*\", or an exception such as \"!*.py\"";

const EXCEPTION_EXPECTED: &str =
    "something before it to except from, as in hide = [\"default\", \"!*.py\"]";

/// What `"default"` stands for, in small letters: it matches whatever the case.
#[rustfmt::skip]
pub const DEFAULT_HIDE_PATTERNS: &[&str] = &[
    // Version control and the directories of tools. Names with a dot in front are never served by
    // that name; they stand here for links to them.
    ".git", ".git/", ".hg/", ".svn/", ".bzr/", "_darcs/", "cvs/", "__pycache__/", "web-inf/",
    ".ssh/", ".gnupg/", ".aws/", ".kube/", ".docker/",
    // Names with a dot in front, in the short form of FAT and NTFS: `GIT~1` is `.git`.
    "*~1", "*~1/", "*~2", "*~2/", "*~3", "*~3/", "*~4", "*~4/", "env~*",
    // Environment and settings that hold passwords.
    ".envrc", "*.env", "*.env.*", ".ht*", ".netrc", ".npmrc", ".pypirc", ".pgpass", ".my.cnf",
    "*.ini", "*.conf", "web.config", "penstock.toml", "database.yml", "application.properties",
    "application.yml", "credentials.json", "client_secret*.json", "service-account*.json",
    "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml", "kubeconfig", "*.kubeconfig",
    "*.tfstate", "*.tfvars",
    // Databases, what they write beside themselves, and their dumps.
    "*.accdb", "*.db", "*.db-*", "*.db3", "*.db3-*", "*.duckdb", "*.dump", "*.frm", "*.ibd",
    "*.ldf", "*.ldif", "*.mdb", "*.mdf", "*.myd", "*.rdb", "*.s3db", "*.sql", "*.sqlite",
    "*.sqlite-*", "*.sqlite2", "*.sqlite3", "*.sqlite3-*", "*.sql.txt",
    // Private keys and what holds them.
    "*.agekey", "*.bks", "*.jks", "*.kdb", "*.kdbx", "*.key", "*.keystore", "*.keytab", "*.ovpn",
    "*.p12", "*.p8", "*.pem", "*.pfx", "*.pkcs12", "*.ppk", "htpasswd", "*.htpasswd", "id_dsa",
    "id_ecdsa", "id_ed25519", "id_rsa", "secring.gpg", "id_rsa.txt", "id_ed25519.txt", "*.key.txt",
    "*.pem.txt",
    // Backups and what editors leave.
    "*~", "#*#", "*.bak", "*.backup", "*.bkp", "*.old", "*.orig", "*.rej", "*.save", "*.swn",
    "*.swo", "*.swp", "backup*.7z", "backup*.rar", "backup*.tar", "backup*.tgz", "backup*.zip",
    // Logs.
    "*.log", "*.log-*", "access_log", "error_log",
    // Code that runs on servers.
    "*.ascx", "*.asax", "*.asp", "*.aspx", "*.cfm", "*.cgi", "*.clj", "*.cs", "*.cshtml", "*.eex",
    "*.erb", "*.erl", "*.ex", "*.exs", "*.fcgi", "*.gemspec", "*.go", "*.groovy", "*.haml",
    "*.heex", "*.inc", "*.j2", "*.java", "*.jinja", "*.jinja2", "*.jsp", "*.jspx", "*.kt", "*.kts",
    "*.leex", "*.lua", "*.mako", "*.phar", "*.php", "*.php3", "*.php4", "*.php5", "*.php7",
    "*.php8", "*.phps", "*.phtml", "*.pl", "*.pm", "*.py", "*.pyc", "*.pyo", "*.pyw", "*.rake",
    "*.rb", "*.rs", "*.ru", "*.scala", "*.slim", "*.twig", "*config*.php.txt", "*settings*.py.txt",
    "*.vb", "*.war",
    // How an application is built and deployed.
    "artisan", "capfile", "cargo.toml", "compose.yaml", "compose.yml", "composer.json",
    "docker-compose*.yaml", "docker-compose*.yml", "dockerfile", "dockerfile.*", "gemfile",
    "guardfile", "jenkinsfile", "*.lock", "makefile", "package-lock.json", "pipfile",
    "pnpm-lock.yaml", "procfile", "pyproject.toml", "rakefile", "requirements*.txt", "setup.cfg",
    "vagrantfile",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_a_name_a_folder_a_path_or_an_exception() {
        use HidePattern::{Defaults, Except, Hide};
        let hide = |text: &str| Some(Hide(text.to_owned()));
        let show = |text: &str| Some(Except(text.to_owned()));
        for (text, expected) in [
            ("default", Some(Defaults)),
            ("*.psd", hide("*.psd")),
            ("drafts/", hide("drafts/")),
            ("/internal/*", hide("/internal/*")),
            ("/internal/", hide("/internal/")),
            ("!*.py", show("*.py")),
            ("!/_downloads/*", show("/_downloads/*")),
            ("*", hide("*")),
            ("", None),
            ("!", None),
            ("/", None),
            ("a/b", None),
            ("../a", None),
            ("/a/../b", None),
            ("/a//b", None),
            ("a\n", None),
        ] {
            assert_eq!(HidePattern::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn the_built_in_list_is_in_the_form_in_which_it_is_matched() {
        for (index, pattern) in DEFAULT_HIDE_PATTERNS.iter().enumerate() {
            assert_eq!(*pattern, pattern.to_ascii_lowercase(), "small letters");
            assert!(is_hide_pattern(pattern), "{pattern}");
            assert!(!pattern.starts_with('/'), "{pattern}: no path");
            assert!(
                !DEFAULT_HIDE_PATTERNS[..index].contains(pattern),
                "{pattern}"
            );
        }
    }

    #[test]
    fn the_documentation_names_every_pattern_of_the_built_in_list() {
        let docs = include_str!("../../../docs/files.md");
        for pattern in DEFAULT_HIDE_PATTERNS {
            let written = format!("`{pattern}`");
            assert!(docs.contains(&written), "docs/files.md lacks {written}");
        }
    }
}
