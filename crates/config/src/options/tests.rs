//! The table against the parser, the types and the generated page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::*;
use crate::model::{BlockingPool, Config};
use crate::testing::{Folder, write};

/// A file with every table, so that the reader of each is run.
const EVERY_TABLE: &str = r#"
[server]
access_log = { path = "x" }
[limits]
[blocking.default]
[apps.hello]
processes = { min = 1 }
queue = {}
[[sites]]
[[sites.routes]]
files = { root = "public" }
app = "hello"
"#;

#[test]
fn every_built_option_is_read_and_no_other() {
    let folder = Folder::site();
    let reads = crate::parse::reads_of(EVERY_TABLE, folder.path());
    let read: BTreeSet<_> = reads
        .iter()
        .map(|(section, key)| (*section, key.as_str()))
        .collect();
    let built = OPTIONS.iter().filter(|option| option.is_built());
    let built: BTreeSet<_> = built.map(|option| (option.section, option.key)).collect();
    assert_eq!(
        read.difference(&built).collect::<Vec<_>>(),
        Vec::<&(&str, &str)>::new()
    );
    assert_eq!(
        built.difference(&read).collect::<Vec<_>>(),
        Vec::<&(&str, &str)>::new()
    );
}

#[test]
fn every_option_stands_once_in_a_section_that_is_described() {
    let mut seen = BTreeSet::new();
    for option in OPTIONS {
        assert!(seen.insert(option.name()), "{} stands twice", option.name());
        let described = SECTIONS
            .iter()
            .any(|section| section.name == option.section);
        assert!(option.section.is_empty() || described, "{}", option.name());
        assert!(
            option.doc.ends_with('.') && !option.doc.contains('\n'),
            "{}",
            option.name()
        );
    }
}

/// A file in which every option that has a default says it.
fn with_every_default() -> String {
    let mut text = String::new();
    for section in SECTIONS.iter().filter(|section| !section.sample.is_empty()) {
        text.push_str(&format!("{}\n", section.sample));
        for option in in_section(section.name).filter(|option| option.is_built()) {
            if let Unset::Is(value) = option.default {
                text.push_str(&format!("{} = {value}\n", option.key));
            }
        }
        if section.name == "sites.routes" {
            text.push_str("app = \"hello\"\nfiles.root = \"public\"\n");
            for option in in_section("sites.routes.files") {
                if let Unset::Is(value) = option.default {
                    text.push_str(&format!("files.{} = {value}\n", option.key));
                }
            }
        }
    }
    let queue = in_section("apps.NAME.queue").map(|option| match option.default {
        Unset::Is(value) => format!("{} = {value}", option.key),
        other => panic!("{other:?}"),
    });
    let queue = queue.collect::<Vec<_>>().join(", ");
    text.replace(
        "[apps.hello]\n",
        &format!("[apps.hello]\nqueue = {{ {queue} }}\n"),
    )
}

fn parse(text: &str, folder: &Folder) -> Config {
    let parsed = crate::parse(text, &folder.join("penstock.toml"));
    parsed.unwrap_or_else(|report| panic!("{report}\n{text}"))
}

#[test]
fn the_defaults_of_the_table_are_those_of_the_types() {
    let folder = Folder::site();
    let said = parse(&with_every_default(), &folder);
    let unsaid = parse("[apps.hello]\n", &folder);
    assert_eq!(said, unsaid);
    assert_eq!(said.blocking["default"], BlockingPool::default());
}

#[test]
fn the_example_parses_and_mentions_every_option() {
    let folder = Folder::site();
    let example = crate::example();
    let config = parse(&example, &folder);
    assert_eq!(config.sites.len(), 1);
    for option in OPTIONS.iter().filter(|option| option.is_built()) {
        assert!(example.contains(option.key), "{}", option.name());
    }
    // What stands behind `#` is meant to be uncommented.
    let is_key = |line: &str| {
        line.strip_prefix("# ")
            .and_then(|line| line.split_once(" = "))
            .is_some_and(|(key, _)| OPTIONS.iter().any(|option| option.key == key))
    };
    folder.add("logs/", "");
    let lines = example
        .lines()
        .map(|line| if is_key(line) { &line[2..] } else { line });
    parse(&lines.collect::<Vec<_>>().join("\n"), &folder);
}

#[test]
fn the_reference_page_is_fresh() {
    let page: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("PENSTOCK_BLESS").is_some() {
        std::fs::create_dir_all(page.parent().unwrap()).unwrap();
        write(&page, &crate::reference());
    }
    let written = crate::disk::source_text(&page);
    assert!(
        written == crate::reference(),
        "docs/configuration.md is stale: set PENSTOCK_BLESS=1"
    );
}
