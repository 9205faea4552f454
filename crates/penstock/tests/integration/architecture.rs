//! Architecture rules that a compiler does not check.
//!
//! Checks the sources: imports between crates (the table in ARCHITECTURE.md), head comments, lints,
//! the place of `unsafe`, sleeping tests, unused examples, addresses of package registries.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const GENERATED_DIRS: [&str; 7] = [
    "target",
    "artifacts",
    "corpus",
    "data",
    "__pycache__",
    "node_modules",
    "vendor",
];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Every text file below `folder` that is not generated.
pub(crate) fn texts(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let hidden = name.starts_with('.') && !name.starts_with(".git");
            if name == ".git"
                || hidden
                || GENERATED_DIRS.contains(&name.as_str())
                || path.is_symlink()
            {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty());
    found.sort();
    found
}

fn rust_files() -> Vec<(PathBuf, String)> {
    let mut files = texts(&root().join("crates"));
    files.extend(texts(&root().join("fuzz")));
    files.retain(|(path, _)| path.extension().is_some_and(|extension| extension == "rs"));
    files
}

/// The manifest of each crate, by the name of its directory.
fn manifests() -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(root().join("crates")).unwrap();
    let manifest = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (
            name,
            std::fs::read_to_string(entry.path().join("Cargo.toml")).unwrap(),
        )
    };
    entries.map(|entry| manifest(entry.unwrap())).collect()
}

/// The workspace crates that a manifest uses outside of tests.
fn imports(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]") && !line.contains("dev-");
        } else if let Some(rest) = line.strip_prefix("penstock-").filter(|_| inside) {
            found.insert(rest.split(['.', ' ', '=']).next().unwrap().to_owned());
        }
    }
    found
}

/// The rows of the code map: crate, description, allowed imports.
fn code_map() -> BTreeMap<String, (String, String)> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line
            .strip_prefix("| `")?
            .trim_end_matches('|')
            .split('|')
            .collect();
        let name = cells[0].trim().trim_matches('`').to_owned();
        Some((
            name,
            (cells[1].trim().to_owned(), cells.get(2)?.trim().to_owned()),
        ))
    };
    text.lines().filter_map(row).collect()
}

#[test]
fn crates_import_only_what_the_code_map_allows() {
    let (map, manifests) = (code_map(), manifests());
    let names = |map: BTreeSet<&String>| map.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(map.keys().collect()),
        names(manifests.keys().collect()),
        "the code map in ARCHITECTURE.md and crates/ name different crates"
    );
    for (name, manifest) in &manifests {
        let allowed: BTreeSet<String> = if map[name].1 == "all but the pure ones" {
            let pure = |what: &str| what.starts_with("pure");
            map.iter()
                .filter(|(_, (what, _))| !pure(what))
                .map(|(name, _)| name.clone())
                .collect()
        } else {
            // Names are in backquotes, remarks are not.
            map[name]
                .1
                .split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        };
        let wrong: Vec<_> = imports(manifest).difference(&allowed).cloned().collect();
        assert_eq!(
            wrong, [""; 0],
            "{name} imports what ARCHITECTURE.md does not allow it"
        );
    }
}

#[test]
fn crates_take_the_lints_of_the_workspace() {
    for (name, manifest) in manifests() {
        let own = name == "sys" && manifest.contains("[lints.rust]\nunsafe_code = \"deny\"");
        assert!(
            own || manifest.contains("[lints]\nworkspace = true"),
            "{name}"
        );
    }
    let workspace = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(workspace.contains("unsafe_code = \"forbid\""));
}

#[test]
fn files_begin_with_what_they_are() {
    let bare = |(path, text): (PathBuf, String)| (!text.starts_with("//! ")).then_some(path);
    let bare: Vec<_> = rust_files().into_iter().filter_map(bare).collect();
    assert!(bare.is_empty(), "no head comment: {bare:?}");
}

#[test]
fn unsafe_code_stands_in_sys_only_and_says_why_it_is_sound() {
    for (path, text) in rust_files() {
        let in_sys = path.starts_with(root().join("crates/sys"));
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            // The word with a block, function or implementation behind it, not in a sentence.
            let code = line.split("//").next().unwrap();
            let is_unsafe = ["{", "fn ", "impl "]
                .iter()
                .any(|s| code.contains(&format!("unsafe {s}")));
            if !is_unsafe || path.ends_with("architecture.rs") {
                continue;
            }
            let place = format!("{}:{}", path.display(), number + 1);
            assert!(in_sys, "{place}");
            let before = &lines[number.saturating_sub(6)..=number];
            assert!(
                before.iter().any(|line| line.contains("SAFETY:")),
                "{place}: no SAFETY comment"
            );
        }
    }
}

#[test]
fn tests_wait_for_conditions_and_not_for_time() {
    let word = concat!("::sle", "ep(");
    for (path, text) in rust_files() {
        let is_test =
            path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
        let tests = if is_test {
            text.as_str()
        } else {
            text.split_once("#[cfg(test)]\nmod tests {")
                .map_or("", |(_, tests)| tests)
        };
        if path.ends_with("integration/support.rs") {
            continue;
        }
        // Applications in tests may sleep (`time.sleep`); the test itself may not.
        let sleeps = tests.lines().find(|line| line.contains(word));
        assert_eq!(sleeps, None, "{}", path.display());
    }
}

#[test]
fn every_example_is_tried_by_a_test() {
    let mut tests = texts(&root().join("tests"));
    tests.extend(texts(&root().join("crates/penstock/tests")));
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() {
            let tried = tests.iter().any(|(_, text)| text.contains(&name));
            assert!(tried, "examples/{name} is named by no test");
        }
    }
}

#[test]
fn no_file_names_the_address_of_a_package_registry() {
    // Each machine has its own way to packages; an address in the sources would be wrong on most.
    let hosts = [
        concat!("crates", ".io"),
        concat!("pypi", ".org"),
        concat!("pythonhosted", ".org"),
        concat!("rubygems", ".org"),
        concat!("npmjs", ".org"),
        concat!("proxy.golang", ".org"),
    ];
    for (path, text) in texts(&root()) {
        // Lock files name the registry, wherever it is.
        if path
            .file_name()
            .is_some_and(|name| name == "Cargo.lock" || name == "Gemfile.lock")
        {
            continue;
        }
        let named = hosts.iter().find(|host| text.contains(**host));
        assert_eq!(named, None, "{}", path.display());
    }
}

#[test]
fn source_files_that_documents_name_exist() {
    let files: Vec<String> = rust_files()
        .iter()
        .map(|(path, _)| path.to_string_lossy().into_owned())
        .collect();
    let mut checked = 0;
    for (path, text) in texts(&root()) {
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        for name in text.split('`').skip(1).step_by(2) {
            let is_path = name.contains('/') && !name.contains([' ', '{', '*']);
            if is_path && name.ends_with(".rs") {
                checked += 1;
                let end = format!("/{name}");
                let exists = files.iter().any(|file| file.ends_with(&end));
                assert!(exists, "{} names {name}", path.display());
            }
        }
    }
    assert!(checked > 50);
}

#[test]
fn steps_in_the_architecture_name_functions_of_their_files() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    // The files of each list, in the order of its steps.
    let mut lists: Vec<BTreeSet<String>> = Vec::new();
    for line in text.lines() {
        let step = line.split_once(". `").filter(|(number, _)| {
            number.bytes().all(|byte| byte.is_ascii_digit()) && !number.is_empty()
        });
        // The line that a step continues on is a part of it.
        let is_continued = line.starts_with("   `") && !lists.is_empty();
        let names = match step {
            Some(_) => line,
            None if is_continued => line,
            None => continue,
        };
        if line.starts_with("1. ") {
            lists.push(BTreeSet::new());
        }
        let files = lists.last_mut().unwrap();
        let mut file = None;
        let mut functions = 0;
        for name in names.split('`').skip(1).step_by(2) {
            if name.contains('/') {
                assert!(file.is_none() || functions > 0, "no function: {line}");
                let path = root().join("crates").join(name);
                let source = std::fs::read_to_string(&path)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                files.insert(name.to_owned());
                (file, functions) = (Some((name, source)), 0);
                continue;
            }
            let (path, source) = file.as_ref().unwrap();
            let is_defined = ["fn ", "def "].iter().any(|keyword| {
                let definition = format!("{keyword}{name}");
                source
                    .match_indices(&definition)
                    .any(|(at, _)| source[at + definition.len()..].starts_with(['(', '<']))
            });
            assert!(is_defined, "{path} has no function {name}: {line}");
            functions += 1;
        }
        assert!(functions > 0, "no function: {line}");
    }
    assert_eq!(lists.len(), 3);
    for files in lists {
        assert!(files.len() <= 10, "{} files: {files:?}", files.len());
    }
}
