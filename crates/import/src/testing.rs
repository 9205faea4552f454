//! What tests of translators share: included files in memory, and the parser of configurations.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::{IncludeReader, ServerKind, Translation, import};

/// Files in memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryFiles(BTreeMap<PathBuf, String>);

impl MemoryFiles {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| (PathBuf::from(path), (*text).to_owned()));
        Self(files.collect())
    }
}

impl IncludeReader for MemoryFiles {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.0
            .get(path)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<String>> {
        let below = self
            .0
            .keys()
            .filter(|path| path.parent() == Some(directory));
        let names = below.filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
        Ok(names.collect())
    }
}

/// Imports a text without other files.
pub(crate) fn import_text(kind: ServerKind, file: &str, text: &str) -> Translation {
    let made = import(Path::new(file), text, Some(kind), &MemoryFiles::default());
    made.unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Panics where the output is no configuration. Files that do not exist are no matter.
pub(crate) fn assert_loadable(translation: &Translation) {
    let problems = problems(&translation.toml);
    assert!(
        problems.is_empty(),
        "{}\n{}",
        problems.join("\n"),
        translation.toml
    );
}

/// The errors of a configuration, but for files and folders that do not exist.
pub(crate) fn problems(toml: &str) -> Vec<String> {
    let Err(errors) = penstock_config::parse(toml, Path::new("/nonexistent/penstock.toml")) else {
        return Vec::new();
    };
    // The last two follow from files that are not there, and from a file without a site.
    let excused = [
        "does not exist",
        "No such file or directory",
        "`intercept_errors` needs `error_pages`",
        "nothing to serve",
    ];
    let lines = errors.to_string();
    let lines = lines
        .lines()
        .filter(|line| !line.trim().is_empty() && !excused.iter().any(|text| line.contains(text)));
    lines.map(str::to_owned).collect()
}

/// Panics unless the output has the text.
pub(crate) fn assert_has(translation: &Translation, text: &str) {
    assert!(
        translation.toml.contains(text),
        "no {text:?} in\n{}",
        translation.toml
    );
}

/// A set of `docs/migrate`: a file of another server, and its translation by a person.
#[derive(Debug)]
pub(crate) struct MigrationSet {
    pub(crate) name: String,
    pub(crate) theirs: String,
    pub(crate) ours: String,
}

/// The sets of a server.
pub(crate) fn sets_of(server: &str, file: &str) -> Vec<MigrationSet> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/migrate")
        .join(server);
    let entries = std::fs::read_dir(&folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    let set = |name: String| MigrationSet {
        theirs: read(&folder.join(&name).join(file)),
        ours: read(&folder.join(&name).join("penstock.toml")),
        name,
    };
    names.into_iter().map(set).collect()
}

fn read(path: &Path) -> String {
    #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
    std::fs::read_to_string(path).unwrap()
}

/// Panics unless both translations have the same addresses of servers, and statuses that are of
/// the person's.
pub(crate) fn assert_servers_of_set(set: &MigrationSet, made: &Translation) {
    let addresses = |text: &str| -> std::collections::BTreeSet<String> {
        let words = text.split('"').skip(1).step_by(2);
        let is_address = |word: &&str| word.starts_with("127.0.0.1:") || word.starts_with("unix:");
        words.filter(is_address).map(str::to_owned).collect()
    };
    let theirs = addresses(&made.toml);
    for address in addresses(&set.ours) {
        assert!(
            theirs.contains(&address),
            "{}: no {address} in\n{}",
            set.name,
            made.toml
        );
    }
}
