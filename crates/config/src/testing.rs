//! A temporary directory for the tests of this crate, and what texts give in it.
//!
//! Reading a configuration looks at the directories it names, so tests need real ones.
//!
//! # Invariants
//! - Every directory is a test's own and goes away with it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed when dropped.
#[derive(Debug)]
pub(crate) struct TestDir(PathBuf);

impl TestDir {
    /// A directory with these files; a name that ends in `/` is an empty directory.
    pub(crate) fn with_files(files: &[(&str, &str)]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unique = format!(
            "{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = Self(std::env::temp_dir().join(format!("penstock-config-{unique}")));
        std::fs::create_dir_all(&folder.0).unwrap();
        for (name, text) in files {
            folder.add(name, text);
        }
        folder
    }

    /// A directory of a small site: a module `app`, a rackup file, `public/`.
    pub(crate) fn with_sample_site() -> Self {
        Self::with_files(&[
            ("app.py", "application = 1\n"),
            ("penstock_hooks.py", "def on_boot(): pass\n"),
            ("rack/config.ru", ""),
            ("public/", ""),
            ("htpasswd", "anna:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n"),
            ("link-secret", "a secret of an application\n"),
        ])
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The path of something in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Adds a file, or a directory when the name ends in `/`.
    pub(crate) fn add(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        if name.ends_with('/') {
            return std::fs::create_dir_all(path).unwrap();
        }
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        write(&path, text);
    }

    /// The errors, one a line, with the directory left out of their paths.
    pub(crate) fn error_lines(&self, errors: &crate::ConfigErrors) -> Vec<String> {
        let path = self.0.display().to_string();
        let shown = errors
            .to_string()
            .replace(&format!("{path}/"), "")
            .replace(&path, ".");
        shown.lines().map(str::to_owned).collect()
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a text gives in a directory.
pub(crate) fn parse_in_dir(
    folder: &TestDir,
    text: &str,
) -> Result<crate::Config, crate::ConfigErrors> {
    crate::parse(text, &folder.join("penstock.toml"))
}

/// The configuration of a text that has no mistake.
pub(crate) fn parse_valid(folder: &TestDir, text: &str) -> crate::Config {
    parse_in_dir(folder, text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

/// Checks rows of: name, text, lines of the errors.
pub(crate) fn check_error_table(rows: &[(&str, &str, &[&str])]) {
    let folder = TestDir::with_sample_site();
    for (name, text, expected) in rows {
        let errors = parse_in_dir(&folder, text).err();
        let lines = errors
            .map(|errors| folder.error_lines(&errors))
            .unwrap_or_default();
        assert_eq!(lines, *expected, "{name}");
    }
}

/// The lines of a text's errors.
pub(crate) fn check_errors_in(folder: &TestDir, text: &str) -> Vec<String> {
    match parse_in_dir(folder, text) {
        Ok(_) => panic!("no error: {text}"),
        Err(errors) => folder.error_lines(&errors),
    }
}

/// Writes a file of a test.
pub(crate) fn write(path: &Path, text: &str) {
    #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
    std::fs::write(path, text).unwrap();
}
