//! The table against the parser, the types and the generated page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::*;
use crate::model::{BlockingPool, Config};
use crate::testing::{TestDir, write};

/// A file with every table, so that the reader of each is run.
const EVERY_TABLE: &str = r#"
[server]
listen = [{}]
join = {}
compress = {}
admin_token = {}
env_file = {}
redis = {}
access_log = { path = "x", format = "json", fields = [] }
[limits]
[tls]
[acme]
external_account = { key = {} }
on_demand = {}
[access_logs.shop]
path = "x"
[tracing]
[blocking.default]
[apps.hello]
processes = { min = 1 }
threads = { min = 1 }
scale = {}
max_memory = {}
queue = {}
isolation = {}
grip = {}
[apps.other]
kind = "fastcgi"
upstream = { connections = {}, retry = {}, health = {}, eject = {} }
[jobs.mailer]
command = "x"
isolation = {}
max_memory = {}
[upstreams.legacy]
servers = [{}]
tls = {}
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
compress = {}
tls = { certificate = "c.pem" }
client_certificates = { ca = "c.pem" }
hsts = { max_age = "1d" }
security_headers = {}
[[sites.routes]]
files = { root = "public" }
compress = {}
app = "hello"
cache = { key = { query = {} }, bypass = {} }
rewrite = {}
request_headers = { replace = { A = {} } }
response_headers = {}
hub = {}
mercure = { publisher_key = { file = "x" }, subscriber_key = { file = "x" } }
path = { regex = "^/" }
match = { not = {} }
basic_auth = { users = {} }
forward_auth = { url = "http://a" }
jwt = { key = {} }
signed_url = {}
cors = {}
rate_limit = {}
max_concurrent = {}
response_rate = {}
redirect = {}
split = [{ match = {} }]
split_by = {}
mirror = {}
respond = {}
[conditions.office]
[[tcp]]
tls = { certificate = "c.pem" }
client_certificates = { ca = "c.pem" }
"#;

#[test]
fn every_option_is_read_and_no_other() {
    let folder = TestDir::with_sample_site();
    let reads = crate::parse::options_read_from(EVERY_TABLE, folder.path());
    let read: BTreeSet<_> = reads
        .iter()
        .map(|(section, key)| (*section, key.as_str()))
        .collect();
    let sections = [""].into_iter().chain(SECTIONS.iter().map(|doc| doc.name));
    let known: BTreeSet<_> = sections
        .flat_map(|section| options_in(section).map(move |option| (section, option.key)))
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
    for option in all_options() {
        assert!(seen.insert(option.name()), "{} stands twice", option.name());
        let described = SECTIONS
            .iter()
            .any(|section| section.name == option.section);
        assert!(option.section.is_empty() || described, "{}", option.name());
        assert!(
            option.description.ends_with('.') && !option.description.contains('\n'),
            "{}",
            option.name()
        );
    }
}

/// Whether an option may stand in the tables of the example, which has a WSGI application.
fn is_set_in_sample(option: &OptionRow) -> bool {
    ["", expected::ONLY_SCRIPT_KINDS, expected::ONLY_THREADED].contains(&option.only_for)
}

/// A table's body: what it must have, and every other default if those are to be said.
fn table_text(section: &str, say_defaults: bool, line_end: &str) -> String {
    let lines = options_in(section).filter_map(|option| {
        let value = match (option.default_toml(), option.kind) {
            _ if !is_set_in_sample(option) => return None,
            (_, OptionKind::Table(inner)) => {
                format!("{{ {} }}", table_text(inner, say_defaults, ", "))
            }
            (_, OptionKind::Tables(_) | OptionKind::NamedTables(_)) => return None,
            (Some(value), _) if say_defaults => value,
            _ if matches!(option.default, OptionDefault::Required)
                || ["app", "servers", "file"].contains(&option.key)
                || ["tcp.upstream", "server.access_log.path"].contains(&&*option.name()) =>
            {
                option.example()
            }
            _ => return None,
        };
        Some(format!("{} = {value}", option.key))
    });
    lines.collect::<Vec<_>>().join(line_end)
}

fn text_with_every_section(say_defaults: bool) -> String {
    let mut text = String::new();
    for section in SECTIONS
        .iter()
        .filter(|section| !section.example.is_empty())
    {
        let heading = section.example.trim_start_matches("# ");
        text.push_str(&format!(
            "{heading}\n{}\n",
            table_text(section.name, say_defaults, "\n")
        ));
    }
    text
}

fn parse(text: &str, folder: &TestDir) -> Config {
    crate::testing::parse_valid(folder, text)
}

#[test]
fn the_defaults_of_the_table_are_those_of_the_types() {
    let folder = TestDir::with_sample_site();
    let said = parse(&text_with_every_section(true), &folder);
    assert_eq!(said, parse(&text_with_every_section(false), &folder));
    assert_eq!(said.blocking["default"], BlockingPool::default());
    let site = &parse("[apps.hello]\n", &folder).sites[0];
    assert_eq!(said.sites, std::slice::from_ref(site));
}

#[test]
fn the_example_parses_and_mentions_every_option() {
    let folder = TestDir::with_sample_site();
    let example = crate::example_file();
    let config = parse(&example, &folder);
    assert_eq!(config.sites.len(), 1);
    for option in all_options() {
        assert!(example.contains(option.key), "{}", option.name());
    }
    folder.add("variables.env", "");
    folder.add(".env", "");
    folder.add("logs/", "");
    folder.add("errors/404.html", "");
    folder.add("errors/50x.html", "");
    parse(&uncommented(&example), &folder);
}

/// What stands behind `#` is meant to be uncommented, but for what must stand beside something
/// else.
fn uncommented(example: &str) -> String {
    let mut section = "";
    let lines = example.lines().map(|line| {
        let said = line.strip_prefix("# ").unwrap_or(line);
        if let Some(doc) = SECTIONS
            .iter()
            .find(|doc| doc.example.trim_start_matches("# ") == said)
        {
            section = doc.name;
            return said;
        }
        let key = said.split_once(" = ").map_or("", |(key, _)| key);
        match find_option(section, key) {
            Some(option) if is_set_in_sample(option) => said,
            _ => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn reference_page_is_up_to_date() {
    let page: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    if std::env::var_os("PENSTOCK_BLESS").is_some() {
        std::fs::create_dir_all(page.parent().unwrap()).unwrap();
        write(&page, &crate::reference_page());
    }
    let written = crate::disk::read_source_or_empty(&page);
    assert!(
        written == crate::reference_page(),
        "docs/configuration.md is stale: set PENSTOCK_BLESS=1"
    );
}
