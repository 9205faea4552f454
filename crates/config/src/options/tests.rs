//! The table against the parser, the types and the generated page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::*;
use crate::model::{BlockingPool, Config};
use crate::testing::{Folder, write};

/// A file with every table, so that the reader of each is run.
const EVERY_TABLE: &str = r#"
[server]
listen = [{}]
join = {}
admin_token = {}
access_log = { path = "x" }
[limits]
[blocking.default]
[apps.hello]
processes = { min = 1 }
threads = { min = 1 }
scale = {}
memory_max = {}
queue = {}
isolation = {}
grip = {}
[apps.other]
kind = "fastcgi"
upstream = { connections = {}, retry = {}, health = {}, eject = {} }
[upstreams.legacy]
servers = [{}]
queue = {}
grip = {}
connections = {}
retry = {}
health = {}
eject = {}
[caches.disk1]
[hub]
history = {}
[[sites]]
[[sites.routes]]
files = { root = "public" }
app = "hello"
cache = { key = { query = {} }, bypass = {} }
rewrite = {}
request_headers = {}
response_headers = {}
hub = {}
mercure = { publisher_key = {}, subscriber_key = {} }
[[streams]]
"#;

#[test]
fn every_option_is_read_and_no_other() {
    let folder = Folder::site();
    let reads = crate::parse::reads_of(EVERY_TABLE, folder.path());
    let read: BTreeSet<_> = reads
        .iter()
        .map(|(section, key)| (*section, key.as_str()))
        .collect();
    let sections = [""].into_iter().chain(SECTIONS.iter().map(|doc| doc.name));
    let known: BTreeSet<_> = sections
        .flat_map(|section| in_section(section).map(move |option| (section, option.key)))
        .collect();
    assert_eq!(
        read.difference(&known).collect::<Vec<_>>(),
        Vec::<&(&str, &str)>::new()
    );
    assert_eq!(
        known.difference(&read).collect::<Vec<_>>(),
        Vec::<&(&str, &str)>::new()
    );
}

#[test]
fn every_option_stands_once_in_a_section_that_is_described() {
    let mut seen = BTreeSet::new();
    for option in all() {
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

/// Whether an option may stand in the tables of the example, whose application is a WSGI one.
fn is_for_the_sample(option: &Opt) -> bool {
    ["", table::SCRIPT_KINDS, table::THREADED].contains(&option.only)
}

/// A table's body: what it must have, and every other default if those are to be said.
fn body(section: &str, say_defaults: bool, line_end: &str) -> String {
    let lines = in_section(section).filter_map(|option| {
        let value = match (option.default, option.kind) {
            _ if !is_for_the_sample(option) => return None,
            (_, Kind::Table(inner)) => format!("{{ {} }}", body(inner, say_defaults, ", ")),
            (_, Kind::List(_) | Kind::Named(_)) => return None,
            (Unset::Is(value), _) if say_defaults => value.to_owned(),
            (Unset::Required, _) => option.sample.to_owned(),
            _ if ["app", "servers"].contains(&option.key) => option.sample.to_owned(),
            _ => return None,
        };
        Some(format!("{} = {value}", option.key))
    });
    lines.collect::<Vec<_>>().join(line_end)
}

fn every_section(say_defaults: bool) -> String {
    let mut text = String::new();
    for section in SECTIONS.iter().filter(|section| !section.sample.is_empty()) {
        let heading = section.sample.trim_start_matches("# ");
        text.push_str(&format!(
            "{heading}\n{}\n",
            body(section.name, say_defaults, "\n")
        ));
    }
    text
}

fn parse(text: &str, folder: &Folder) -> Config {
    crate::testing::accept(folder, text)
}

#[test]
fn the_defaults_of_the_table_are_those_of_the_types() {
    let folder = Folder::site();
    let said = parse(&every_section(true), &folder);
    assert_eq!(said, parse(&every_section(false), &folder));
    assert_eq!(said.blocking["default"], BlockingPool::default());
    let site = &parse("[apps.hello]\n", &folder).sites[0];
    assert_eq!(said.sites, std::slice::from_ref(site));
}

#[test]
fn the_example_parses_and_mentions_every_option() {
    let folder = Folder::site();
    let example = crate::example();
    let config = parse(&example, &folder);
    assert_eq!(config.sites.len(), 1);
    for option in all() {
        assert!(example.contains(option.key), "{}", option.name());
    }
    folder.add("logs/", "");
    folder.add("errors/404.html", "");
    folder.add("errors/50x.html", "");
    parse(&uncommented(&example), &folder);
}

/// What stands behind `#` is meant to be uncommented, but for what must stand beside something else.
fn uncommented(example: &str) -> String {
    let mut section = "";
    let lines = example.lines().map(|line| {
        let said = line.strip_prefix("# ").unwrap_or(line);
        if let Some(doc) = SECTIONS
            .iter()
            .find(|doc| doc.sample.trim_start_matches("# ") == said)
        {
            section = doc.name;
            return said;
        }
        let key = said.split_once(" = ").map_or("", |(key, _)| key);
        match find(section, key) {
            Some(option) if is_for_the_sample(option) => said,
            _ => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
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
