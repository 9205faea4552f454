//! Rules of the threat model that a compiler does not check: its tests exist, maps are keyed,
//! dependencies come from allowed sources.
//!
//! Checks the sources, like `architecture`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support::is_left_out;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

/// Every Rust file of the crates, with its text.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 100);
    found
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let page = read("docs/threat-model.md");
    let (_, invariants) = page.split_once("| invariant | tests |").unwrap();
    let rows: Vec<&str> = invariants
        .lines()
        .filter(|line| line.starts_with("| "))
        .collect();
    assert!(rows.len() > 20);
    let sources = sources();
    let mut is_test = BTreeSet::new();
    for (_, text) in &sources {
        let mut attribute = false;
        for line in text.lines().map(str::trim_start) {
            if let Some(rest) = line.strip_prefix("fn ").filter(|_| attribute) {
                is_test.insert(rest.split('(').next().unwrap().to_owned());
            }
            // A test may have more attributes, and comments between them.
            let stays = line.starts_with("#[") || line.starts_with("//");
            attribute = line == "#[test]" || attribute && stays;
        }
    }
    for row in rows {
        let tests = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            assert!(
                is_test.contains(name),
                "docs/threat-model.md: there is no test `{name}`"
            );
        }
    }
}

#[test]
fn maps_are_keyed_and_no_hasher_of_fixed_seed_is_used() {
    if is_left_out("cargo lists the packages, and the folder of the toolchain is hidden") {
        return;
    }
    // The hasher of the standard library's maps has a random key. These have none.
    let unkeyed = [
        concat!("BuildHasher", "Default"),
        concat!("Default", "Hasher"),
        concat!("Fx", "Hash"),
        concat!("Fnv", "Hash"),
        concat!("a", "hash::"),
        concat!("rustc_", "hash"),
        concat!("hash", "brown"),
        concat!("fold", "hash"),
        concat!("index", "map::"),
        concat!("Sip", "Hasher"),
        // Maps with an explicit hasher, and hashers of our own.
        concat!("with_", "hasher("),
        concat!("with_capacity_", "and_hasher("),
        concat!("Build", "Hasher for "),
        concat!("xxhash3_64::", "RandomState"),
    ];
    // With a key of its own, and its import.
    let keyed = [
        concat!("Sip", "Hasher24::new_with_key("),
        concat!("sip128::{Hasher128, ", "Sip", "Hasher24}"),
    ];
    for (path, text) in sources() {
        let text = (keyed.iter()).fold(text, |text, name| text.replace(name, ""));
        let found = unkeyed.iter().find(|name| text.contains(**name));
        assert_eq!(
            found,
            None,
            "{}: whoever chooses keys chooses collisions",
            path.display()
        );
    }
    let built = built_packages();
    for name in ["fxhash", "rustc-hash", "fnv", "nohash-hasher"] {
        assert!(!built.contains(name), "{name}: see deny.toml");
    }
}

/// Name, version and source of every package that is built.
fn locked() -> Vec<(String, String, Option<String>)> {
    let lock = read("Cargo.lock");
    let value = |package: &str, key: &str| {
        let line = package
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    let built = built_packages();
    let packages = lock.split("[[package]]").skip(1);
    packages
        .filter(|package| value(package, "name").is_some_and(|name| built.contains(&name)))
        .map(|package| {
            let name = value(package, "name").unwrap();
            (
                name,
                value(package, "version").unwrap(),
                value(package, "source"),
            )
        })
        .collect()
}

/// The names of the packages that are built. The lock file has those of features that are off, too.
fn built_packages() -> BTreeSet<String> {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--workspace", "--locked", "--offline"])
        .args(["--prefix", "none", "--edges", "normal,build,dev"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let text = String::from_utf8(tree.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// The licences that `deny.toml` allows.
fn allowed_licences() -> BTreeSet<String> {
    let deny = read("deny.toml");
    let (_, rest) = deny.split_once("\nallow = [").unwrap();
    let (list, _) = rest.split_once(']').unwrap();
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Whether one alternative of each part of an SPDX expression is allowed; a slash is an old `OR`.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let plain = expression.replace(['(', ')'], "");
    plain.split(" AND ").all(|part| {
        let mut alternatives = part.split(" OR ").flat_map(|name| name.split('/'));
        alternatives.any(|name| {
            let name = name.trim();
            allowed.contains(name.split(" WITH ").next().unwrap())
        })
    })
}

#[test]
fn dependencies_come_from_the_registry_under_known_licences() {
    if is_left_out("cargo lists the packages, and the folder of the toolchain is hidden") {
        return;
    }
    let allowed = allowed_licences();
    assert!(allowed.contains("MIT") && !is_allowed("GPL-3.0", &allowed));
    assert!(is_allowed("(MIT OR GPL-3.0) AND ISC", &allowed));
    assert!(!is_allowed("MIT AND GPL-3.0", &allowed));
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let registries = home.unwrap().join("registry/src");
    let registries: Vec<PathBuf> = match std::fs::read_dir(registries) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => Vec::new(),
    };
    let mut checked = 0;
    let packages = locked();
    for (name, version, source) in &packages {
        let Some(source) = source else {
            assert!(
                name.starts_with("penstock"),
                "{name}: from a folder that is not ours"
            );
            continue;
        };
        assert!(source.starts_with("registry+"), "{name}: from {source}");
        let manifests = registries.iter().map(|registry| {
            let folder = registry.join(format!("{name}-{version}"));
            std::fs::read_to_string(folder.join("Cargo.toml"))
        });
        // Packages for other systems are missing.
        let Some(manifest) = manifests.flat_map(Result::ok).next() else {
            continue;
        };
        let licence = manifest
            .lines()
            .find_map(|line| line.strip_prefix("license = "));
        let licence = licence.unwrap_or_default().trim_matches('"').to_owned();
        assert!(
            is_allowed(&licence, &allowed),
            "{name} {version}: {licence:?}, see deny.toml"
        );
        checked += 1;
    }
    // A vendored build has its packages elsewhere.
    assert!(
        registries.is_empty() || checked * 2 > packages.len(),
        "{checked} were found"
    );
}
