//! Finds the Celery application of a folder, for the job that `penstock init` proposes.
//!
//! # Invariants
//!
//! - Files are read, never run: at most [`MAX_FILES`], of at most [`MAX_FILE_BYTES`] each.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum number of Python files that are searched.
const MAX_FILES: usize = 200;

/// Maximum size of a file that is searched.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Files that name what a project needs.
const REQUIREMENTS: [&str; 6] = [
    "pyproject.toml",
    "requirements.txt",
    "Pipfile",
    "setup.cfg",
    "setup.py",
    "environment.yml",
];

/// The module of the folder's Celery application, as `celery -A` takes it; `None` if the project
/// does not need Celery or has no module that makes one.
pub(super) fn find_module(folder: &Path) -> Option<String> {
    needs_celery(folder).then(|| find_application(folder))?
}

fn needs_celery(folder: &Path) -> bool {
    let below = python_files(&folder.join("requirements"), "txt");
    let all = REQUIREMENTS.iter().map(|name| folder.join(name));
    all.chain(below).any(|file| {
        let text = read(&file).to_ascii_lowercase();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
        text.split(|c| !is_name(c)).any(|word| word == "celery")
    })
}

/// The first of: a package with `celery.py` (as Django projects have it), a module of the folder, a
/// module of a package.
fn find_application(folder: &Path) -> Option<String> {
    let packages = packages(folder);
    let name = |path: &Path| Some(path.file_stem()?.to_str()?.to_owned());
    let with_celery = |package: &&PathBuf| makes_application(&package.join("celery.py"));
    if let Some(package) = packages.iter().find(with_celery) {
        return name(package);
    }
    let mut own = python_files(folder, "py");
    // A module of this name would hide the library.
    own.retain(|file| file.file_name().is_some_and(|it| it != "celery.py"));
    if let Some(module) = own.iter().find(|file| makes_application(file)) {
        return name(module);
    }
    packages.iter().find_map(|package| {
        let files = python_files(package, "py");
        let module = files.iter().find(|file| makes_application(file))?;
        match name(module)?.as_str() {
            "__init__" => name(package),
            module => Some(format!("{}.{module}", name(package)?)),
        }
    })
}

fn makes_application(file: &Path) -> bool {
    read(file).lines().any(|line| {
        let line = line.trim_start();
        !line.starts_with('#') && line.contains("= Celery(")
    })
}

/// The packages of a folder, by name.
fn packages(folder: &Path) -> Vec<PathBuf> {
    let mut all = entries(folder);
    all.retain(|path| path.join("__init__.py").is_file());
    all
}

/// The files of a folder with this ending, by name.
fn python_files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut all = entries(folder);
    all.retain(|path| path.extension().is_some_and(|it| it == ending) && path.is_file());
    all.truncate(MAX_FILES);
    all
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// The text of a file; empty if it cannot be read.
#[expect(clippy::disallowed_methods, reason = "no event loop runs in this verb")]
fn read(file: &Path) -> String {
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file);
    let read = opened.and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, the files of a folder, and the module.
    type Row = (
        &'static str,
        &'static [(&'static str, &'static str)],
        Option<&'static str>,
    );

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
    fn the_module_is_that_of_the_application() {
        const MAKES: &str = "from celery import Celery\napp = Celery(\"shop\")\n";
        let rows: [Row; 7] = [
            (
                "django",
                &[
                    ("requirements.txt", "Django\ncelery[redis]>=5\n"),
                    ("shop/__init__.py", ""),
                    ("shop/celery.py", MAKES),
                ],
                Some("shop"),
            ),
            (
                "module",
                &[
                    ("pyproject.toml", "dependencies = [\"celery>=5\"]"),
                    ("tasks.py", MAKES),
                ],
                Some("tasks"),
            ),
            (
                "module of a package",
                &[
                    ("requirements/base.txt", "celery\n"),
                    ("shop/__init__.py", ""),
                    ("shop/queue.py", MAKES),
                ],
                Some("shop.queue"),
            ),
            ("not needed", &[("tasks.py", MAKES)], None),
            (
                "another package",
                &[
                    ("requirements.txt", "django-celery-results\n"),
                    ("tasks.py", MAKES),
                ],
                None,
            ),
            (
                "no application",
                &[
                    ("requirements.txt", "celery\n"),
                    ("tasks.py", "# app = Celery(1)\n"),
                ],
                None,
            ),
            ("empty", &[], None),
        ];
        for (name, files, expected) in rows {
            let folder = format!(
                "penstock-celery-{}-{}",
                name.replace(' ', "-"),
                std::process::id()
            );
            let folder = std::env::temp_dir().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            for (file, text) in files {
                let path = folder.join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            let found = find_module(&folder);
            std::fs::remove_dir_all(&folder).unwrap();
            assert_eq!(found.as_deref(), expected, "{name}");
        }
    }
}
