//! Rules for names and prose: types are nouns, and comments and documents are plain.
//!
//! The rules have no exceptions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::architecture::{root, texts};

/// Words that are no participle, though they look like one.
const NOUNS: &[&str] = &["Testbed"];

/// Pronouns, adverbs and irregular participles: none of them names a thing.
const NOT_NOUNS: &str = "Ahead All Always Any Apart Away Back Before Begun Behind Beyond Both Bound Built Chosen \
    Done Drawn Each Early Found Given Gone Held Here Inside Kept Known Late Left Lent Made Never None Nobody \
    Now Often Once One Other Others Ours Outside Said Seen Sent Somebody Soon Spoken Taken There Told Twice \
    What Which Who Worn Written";

/// Words that a reader has to solve. Plain prose names the subject.
const TELLTALES: [&str; 9] = [
    "who", "whom", "whoever", "nobody", "somebody", "what is", "is said", "is told", "whomever",
];

/// Telltale words in a thousand words of prose.
const MAX_TELLTALES: f64 = 1.0;

#[test]
fn types_are_named_by_nouns() {
    let types = visible_types();
    let looks_wrong = |name: &&String| {
        let is_one_word = name.chars().skip(1).all(|c| !c.is_uppercase());
        let is_participle = name.ends_with("ed") || name.ends_with("ing");
        is_one_word
            && (is_participle || NOT_NOUNS.split_whitespace().any(|word| word == *name))
            && !NOUNS.contains(&name.as_str())
    };
    let wrong: BTreeSet<&str> = types
        .keys()
        .filter(looks_wrong)
        .map(String::as_str)
        .collect();
    assert_eq!(wrong, BTreeSet::new());
}

#[test]
fn no_type_name_is_used_three_times() {
    let types = visible_types();
    let twins: BTreeSet<&str> = types
        .iter()
        .filter(|(_, files)| files.len() > 2)
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(twins, BTreeSet::new());
}

#[test]
fn prose_is_plain() {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (path, text) in texts(&root()) {
        let path = path.strip_prefix(root()).unwrap();
        let Some(prose) = prose(path, &text) else {
            continue;
        };
        let words: Vec<String> = prose
            .split(|c: char| !c.is_alphabetic() && c != '\'')
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
            .collect();
        let told = |telltale: &&str| {
            let parts: Vec<&str> = telltale.split(' ').collect();
            words
                .windows(parts.len())
                .filter(|found| *found == parts)
                .count()
        };
        let found: usize = TELLTALES.iter().map(told).sum();
        let count = counts.entry(part(path)).or_default();
        count.0 += found;
        count.1 += words.len();
    }
    assert!(counts.len() > 15, "{counts:?}");
    let rate = |(found, words): (usize, usize)| found as f64 * 1000.0 / words as f64;
    let above: BTreeSet<&str> = counts
        .iter()
        .filter(|(_, count)| rate(**count) > MAX_TELLTALES)
        .map(|(part, _)| part.as_str())
        .collect();
    assert_eq!(above, BTreeSet::new(), "{counts:?}");
}

/// The part of the tree that a file counts for: its crate, or its directory.
fn part(path: &Path) -> String {
    let parts: Vec<String> = path
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    match (parts[0].as_str(), parts.len()) {
        ("crates", _) => parts[..2].join("/"),
        (_, 1) => "root".to_owned(),
        (first, _) => first.to_owned(),
    }
}

/// The comments of a source file, the text of a document; `None` for other files.
fn prose(path: &Path, text: &str) -> Option<String> {
    let extension = path.extension()?.to_str()?;
    let comments = |marks: &[&str]| {
        let mut prose = String::new();
        for line in text.lines() {
            let line = line.trim_start();
            if let Some(mark) = marks.iter().find(|mark| line.starts_with(*mark)) {
                prose.push_str(&line[mark.len()..]);
                prose.push('\n');
            }
        }
        prose
    };
    match extension {
        "rs" | "js" => Some(comments(&["///", "//!", "//"])),
        "py" | "rb" | "sh" => Some(comments(&["#"])),
        // Code in documents is no prose.
        "md" => Some(text.split("```").step_by(2).collect()),
        _ => None,
    }
}

/// The types of production code that other modules see, and the files that declare each.
fn visible_types() -> BTreeMap<String, Vec<String>> {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in texts(&root().join("crates")) {
        let path = path
            .strip_prefix(root())
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let is_test =
            path.contains("/tests") || path.contains("testing") || path.contains("simulation");
        if !path.ends_with(".rs") || is_test {
            continue;
        }
        let production = text.split("#[cfg(test)]\nmod ").next().unwrap();
        for line in production.lines().map(str::trim_start) {
            let Some(rest) = ["pub ", "pub(crate) "]
                .iter()
                .find_map(|word| line.strip_prefix(word))
            else {
                continue;
            };
            let declared = ["struct ", "enum ", "trait ", "type ", "union "]
                .iter()
                .find_map(|word| rest.strip_prefix(word));
            if let Some(declared) = declared {
                let name: String = declared
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                types.entry(name).or_default().push(path.clone());
            }
        }
    }
    assert!(types.len() > 500);
    types
}
