//! The tables of `docs/migrate`: complete, and true to the options that exist.
//!
//! Beside the table of a server, `words/SERVER.txt` lists all of its words.
//!
//! # Invariants
//!
//! - Each word stands in one row, and each row names words of the list alone.
//! - An answer is a key, a placeholder, `built in: ...`, `not needed: ...` or `not offered: because ...`.
//! - Each key, placeholder, verb and flag that an answer names exists.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::architecture::root;
use crate::support::texts;

/// Servers with the number of words that each has at least.
const SERVERS: [(&str, usize); 11] = [
    ("apache", 300),
    ("caddy", 300),
    ("gunicorn", 100),
    ("haproxy", 300),
    ("nginx", 300),
    ("passenger", 70),
    ("puma", 70),
    ("traefik", 300),
    ("unicorn", 20),
    ("uvicorn", 50),
    ("uwsgi", 1_000),
];

/// Longest cell of a table, in characters.
const MAX_CELL: usize = 165;

const PHRASES: [&str; 3] = ["built in: ", "not needed: ", "not offered: because "];

/// A row of a table.
struct Row {
    line: usize,
    words: Vec<String>,
    answer: String,
}

#[test]
fn each_word_of_another_server_stands_in_one_row() {
    let mut problems = Vec::new();
    for (server, least) in SERVERS {
        let mut listed = BTreeSet::new();
        for word in read(&list_path(server)).lines() {
            if !listed.insert(word.to_owned()) {
                problems.push(format!(
                    "{}: `{word}` stands twice: remove one",
                    list_path(server)
                ));
            }
        }
        let mut lines: BTreeMap<String, usize> = BTreeMap::new();
        for row in rows(server) {
            for word in row.words {
                let at = format!("{}:{}: `{word}`", table_path(server), row.line);
                if !listed.contains(&word) {
                    problems.push(format!("{at}: add it to {}", list_path(server)));
                }
                if let Some(first) = lines.insert(word, row.line) {
                    problems.push(format!("{at} is in line {first}, too: remove one"));
                }
            }
        }
        let missing = listed.iter().filter(|word| !lines.contains_key(*word));
        problems.extend(missing.map(|word| {
            let (list, table) = (list_path(server), table_path(server));
            format!("{list}: `{word}`: add it to a row of {table}")
        }));
        assert!(listed.len() > least, "{server}: {}", listed.len());
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn answers_name_keys_and_commands_that_exist() {
    let (keys, commands) = (Keys::read(), Commands::read());
    let placeholders = read("docs/traffic.md");
    let exists = |name: &str| match name.strip_prefix("penstock ") {
        Some(command) => commands.has(command),
        None if name.starts_with("--") => commands.has_flag(name),
        None if name.starts_with('{') => placeholders.contains(name),
        None => !is_key(name) || keys.has(name),
    };
    let mut problems = Vec::new();
    for (server, _) in SERVERS {
        for row in rows(server) {
            let at = format!("{}:{}", table_path(server), row.line);
            let names: Vec<&str> = row.answer.split('`').skip(1).step_by(2).collect();
            let begins_with_name = row.answer.starts_with('`')
                && (is_key(names[0]) || names[0].starts_with("--") || names[0].starts_with('{'));
            let has_phrase = PHRASES.iter().any(|phrase| row.answer.starts_with(phrase));
            if !begins_with_name && !has_phrase {
                problems.push(format!(
                    "{at}: {:?}: begin with a key or placeholder in backticks, or with one of {PHRASES:?}",
                    row.answer
                ));
            }
            problems.extend(names.into_iter().filter(|name| !exists(name)).map(|name| {
                format!("{at}: `{name}` is neither in docs/configuration.md, docs/traffic.md nor in the help of a verb: correct it")
            }));
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

fn table_path(server: &str) -> String {
    format!("docs/migrate/{server}.md")
}

fn list_path(server: &str) -> String {
    format!("docs/migrate/words/{server}.txt")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn rows(server: &str) -> Vec<Row> {
    let path = table_path(server);
    let mut rows = Vec::new();
    for (index, text) in read(&path).lines().enumerate() {
        let line = index + 1;
        let Some(cells) = text.strip_prefix("| ").filter(|rest| rest.starts_with('`')) else {
            continue;
        };
        let cells: Vec<&str> = cells.trim_end_matches(" |").split(" | ").collect();
        let [words, answer] = cells[..] else {
            panic!("{path}:{line}: {} cells: a row has two", cells.len());
        };
        for cell in [words, answer] {
            let length = cell.chars().count();
            assert!(
                length <= MAX_CELL,
                "{path}:{line}: a cell of {length} characters: shorten it to {MAX_CELL}"
            );
        }
        let words: Vec<String> = words
            .split(", ")
            .map(|word| {
                let word = word
                    .strip_prefix('`')
                    .and_then(|word| word.strip_suffix('`'));
                let word = word.filter(|word| !word.contains('`'));
                word.unwrap_or_else(|| panic!("{path}:{line}: put each word in backticks"))
                    .to_owned()
            })
            .collect();
        let answer = answer.to_owned();
        rows.push(Row {
            line,
            words,
            answer,
        });
    }
    rows
}

/// Whether a text in backticks is meant as a key or table, and not as a value, field or path.
fn is_key(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase() || c == '[')
}

/// The options of docs/configuration.md.
struct Keys {
    names: BTreeSet<String>,
    /// Tables with their keys, each by the last part of its name.
    pairs: BTreeSet<(String, String)>,
}

impl Keys {
    fn read() -> Self {
        let text = read("docs/configuration.md");
        let mut tables: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut copies = Vec::new();
        let mut table = "";
        for line in text.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                table = heading.trim_matches('`');
                tables.entry(table).or_default();
            } else if let Some(row) = line.strip_prefix("| `") {
                tables.entry(table).or_default().push(first_span(row));
            } else if let Some((_, of)) = line.split_once("It has the keys of `") {
                copies.push((table, first_span(of)));
            }
        }
        // Twice, for tables that have the keys of a table that has those of another.
        for (table, of) in copies.repeat(2) {
            let keys = tables.get(of).cloned().unwrap_or_default();
            tables.entry(table).or_default().extend(keys);
        }
        let mut keys = Self {
            names: BTreeSet::new(),
            pairs: BTreeSet::new(),
        };
        for (heading, members) in tables {
            keys.add_table(heading, &members);
        }
        assert!(keys.names.len() > 200, "{}", keys.names.len());
        keys
    }

    fn add_table(&mut self, heading: &str, members: &[&str]) {
        let (name, parent) = heading.split_once(" in ").unwrap_or((heading, ""));
        let name = path(name.split(" = ").next().unwrap_or(name));
        let parent = path(parent.split(" of ").next().unwrap_or(parent));
        let own = name.last().cloned().unwrap_or_default();
        let ways = parent.last().into_iter().chain(&name).cloned();
        let ways: Vec<String> = ways.collect();
        self.names.extend(ways.iter().cloned());
        self.pairs.extend(
            ways.windows(2)
                .map(|pair| (pair[0].clone(), pair[1].clone())),
        );
        for member in members {
            self.names.insert((*member).to_owned());
            self.pairs.insert((own.clone(), (*member).to_owned()));
        }
    }

    /// Whether a key or table exists, and the keys in its value: `rewrite = { strip_prefix = "/a" }`.
    fn has(&self, text: &str) -> bool {
        let (name, value) = text.split_once(" = ").unwrap_or((text, ""));
        let name = path(name);
        let exists = match &name[..] {
            [] => false,
            [one] => self.names.contains(one),
            more => more
                .windows(2)
                .all(|pair| self.pairs.contains(&(pair[0].clone(), pair[1].clone()))),
        };
        let outside_quotes: String = value.split('"').step_by(2).collect::<Vec<_>>().join("\"");
        let inner = outside_quotes.split(" =").map(|part| {
            let name = part.rsplit([' ', '{', ',']).next();
            name.unwrap_or_default().to_owned()
        });
        let mut inner: Vec<String> = inner.collect();
        inner.pop();
        exists && inner.iter().all(|key| self.names.contains(key))
    }
}

/// The parts of a name such as `[caches.NAME]`, `[[sites.routes]]` or `limits.body_bytes`.
fn path(name: &str) -> Vec<String> {
    name.trim_matches(['[', ']', '`'])
        .split('.')
        .filter(|part| !part.is_empty() && *part != "NAME")
        .map(str::to_owned)
        .collect()
}

/// The text up to the next backtick.
fn first_span(text: &str) -> &str {
    text.split('`').next().unwrap_or_default()
}

/// The verbs of the command line with their flags.
struct Commands(BTreeMap<String, BTreeSet<String>>);

impl Commands {
    fn read() -> Self {
        let help = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_penstock"));
            texts(&command.args(arguments).arg("--help").output().unwrap()).0
        };
        let flags = |text: &str| -> BTreeSet<String> {
            let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '-');
            let flags = words.filter(|word| word.starts_with("--"));
            flags.map(str::to_owned).collect()
        };
        let top = help(&[]);
        let verbs = top.lines().filter_map(|line| {
            let (verb, meaning) = line.strip_prefix("  ")?.split_once(' ')?;
            (!verb.is_empty() && meaning.starts_with(' ')).then_some(verb)
        });
        let verbs = verbs.filter(|verb| verb.chars().all(|c| c.is_ascii_lowercase()));
        let commands = verbs.map(|verb| (verb.to_owned(), flags(&help(&[verb]))));
        let commands: BTreeMap<_, _> = commands.collect();
        assert!(commands.contains_key("serve"), "{top}");
        Self(commands)
    }

    fn has(&self, command: &str) -> bool {
        let mut words = command.split(' ');
        let flags = words.next().and_then(|verb| self.0.get(verb));
        let mut named = words.filter(|word| word.starts_with("--"));
        flags.is_some_and(|flags| named.all(|flag| flags.contains(flag)))
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.0.values().any(|flags| flags.contains(flag))
    }
}
