//! Checks that every test named in `docs/caching-rfc9111.md` exists.
#![expect(clippy::disallowed_methods, reason = "a test has no loop to block")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The last cell of each row of each table.
fn shown_by() -> Vec<String> {
    let text = fs::read_to_string(root().join("docs/caching-rfc9111.md")).unwrap();
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>())
        .inspect(|cells| assert_eq!(cells.len(), 5, "{cells:?}"))
        .filter(|cells| cells[4] != "shown by" && cells[4] != "---")
        .map(|cells| cells[4].to_owned())
        .collect()
}

/// All tests below `crates` as `file::test`.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
                let text = fs::read_to_string(&path).unwrap();
                found.extend(names(&text).map(|name| format!("{stem}::{name}")));
            }
        }
    }
    found
}

/// The names of functions below a line with the attribute `test`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    text.lines().map(str::trim_start).filter_map(move |line| {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let (before, rest) = line.split_once("fn ")?;
        let is_named = is_test && matches!(before, "" | "async ");
        is_test = false;
        rest.split('(').next().filter(|_| is_named)
    })
}

#[test]
fn every_test_in_the_document_exists() {
    let (tests, cells) = (tests(), shown_by());
    assert!(cells.len() > 80, "{}", cells.len());
    for cell in &cells {
        for name in cell.split(", ") {
            let name = name
                .strip_prefix('`')
                .and_then(|name| name.strip_suffix('`'));
            assert!(name.is_some_and(|name| tests.contains(name)), "{cell}");
        }
    }
}
