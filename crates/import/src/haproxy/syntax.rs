//! The sections of haproxy.cfg: lines of words.
//!
//! # Invariants
//! - Quotes, escapes and comments are those of HAProxy's configuration manual, section 2.2.

use std::path::Path;

use crate::answers::{self, Product};
use crate::directives::{DirectiveId, DirectiveLog};
use crate::{ImportError, limits};

/// A line.
#[derive(Debug, Clone)]
pub(super) struct HaproxyLine {
    pub(super) id: DirectiveId,
    pub(super) words: Vec<String>,
    /// Whether `no` stands in front.
    pub(super) is_negated: bool,
}

impl HaproxyLine {
    /// A word, empty where there is none.
    pub(super) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    /// The words from this one on.
    pub(super) fn rest(&self, from: usize) -> &[String] {
        self.words.get(from..).unwrap_or_default()
    }

    /// Whether it begins with these words.
    pub(super) fn begins(&self, words: &[&str]) -> bool {
        words
            .iter()
            .enumerate()
            .all(|(at, word)| self.word(at) == *word)
    }
}

/// A section with its lines.
#[derive(Debug, Clone)]
pub(super) struct HaproxySection {
    pub(super) id: DirectiveId,
    pub(super) kind: String,
    pub(super) name: String,
    /// The `defaults` section that it names.
    pub(super) from: Option<String>,
    pub(super) lines: Vec<HaproxyLine>,
}

const SECTIONS: [&str; 22] = [
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "userlist",
    "peers",
    "resolvers",
    "mailers",
    "cache",
    "program",
    "http-errors",
    "ring",
    "log-forward",
    "fcgi-app",
    "crt-list",
    "log-profile",
    "traces",
    "crt-store",
    "acme",
    "dynamic-update",
    "healthcheck",
];

/// Reads a text into a log.
pub(super) fn parse(
    file: &Path,
    text: &str,
    log: &mut DirectiveLog,
) -> Result<Vec<HaproxySection>, ImportError> {
    let file = file.display().to_string();
    let mut sections: Vec<HaproxySection> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let error = |column: usize, problem: String| ImportError::Syntax {
            file: file.clone(),
            line: number,
            column,
            problem,
        };
        let mut words =
            split(line).map_err(|(column, problem)| error(column, problem.to_owned()))?;
        if words.is_empty() || words[0].starts_with('.') && is_conditional(&words[0]) {
            continue;
        }
        if log.len() >= limits::MAX_DIRECTIVES {
            return Err(error(
                1,
                format!("more than {} directives", limits::MAX_DIRECTIVES),
            ));
        }
        let text = words.join(" ");
        let is_section = SECTIONS.contains(&words[0].as_str())
            && (!line.starts_with([' ', '\t']) || is_unambiguous(&words, &sections));
        if is_section {
            let id = log.add(&file, number, &words[0], &text);
            let from = words
                .iter()
                .position(|word| word == "from")
                .and_then(|at| words.get(at + 1).cloned());
            // `listen stats :1936`: an address behind the name, as old files have it.
            let address = words.get(2).filter(|it| *it != "from" && it.contains(':'));
            let bind = address.map(|address| HaproxyLine {
                id,
                words: vec!["bind".to_owned(), address.clone()],
                is_negated: false,
            });
            let serves = matches!(words[0].as_str(), "listen" | "frontend");
            sections.push(HaproxySection {
                id,
                kind: words[0].clone(),
                name: words
                    .get(1)
                    .filter(|it| *it != "from")
                    .cloned()
                    .unwrap_or_default(),
                from,
                lines: bind.into_iter().filter(|_| serves).collect(),
            });
            continue;
        }
        let is_negated = words[0] == "no" && words.len() > 1;
        if is_negated || (words[0] == "default" && words.get(1).is_some_and(|it| it == "option")) {
            words.remove(0);
        }
        let word = table_word(&words);
        let id = log.add(&file, number, &word, &text);
        let Some(section) = sections.last_mut() else {
            return Err(error(1, format!("`{}` stands in no section", words[0])));
        };
        section.lines.push(HaproxyLine {
            id,
            words,
            is_negated,
        });
    }
    Ok(sections)
}

/// `.if`, `.endif` and their like: both branches are read.
fn is_conditional(word: &str) -> bool {
    [
        ".if", ".elif", ".else", ".endif", ".notice", ".warning", ".diag", ".alert",
    ]
    .contains(&word)
}

/// Whether an indented line begins a section all the same: words that no section has as a keyword.
fn is_unambiguous(words: &[String], sections: &[HaproxySection]) -> bool {
    let is_first = sections.is_empty();
    is_first
        || (["global", "defaults", "frontend", "backend", "listen"].contains(&words[0].as_str())
            && words.len() <= 2)
}

/// The longest beginning of a line that the table has.
fn table_word(words: &[String]) -> String {
    for length in (1..=3.min(words.len())).rev() {
        let word = words[..length].join(" ");
        let word = word
            .split('(')
            .next()
            .unwrap_or_default()
            .trim_end_matches(|c: char| c.is_ascii_digit() && word.contains("track-sc"));
        if answers::answer(Product::Haproxy, word).is_some() {
            return word.to_owned();
        }
    }
    words.first().cloned().unwrap_or_default()
}

/// The words of a line, or the column and the problem.
fn split(line: &str) -> Result<Vec<String>, (usize, &'static str)> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<(char, usize)> = None;
    let mut chars = line.chars().enumerate().peekable();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some((open, _)), c) if c == open => quote = None,
            (Some(('"', _)) | None, '\\') => {
                let next = chars.next().map(|(_, c)| c);
                let word = word.get_or_insert_default();
                match next {
                    Some('n') => word.push('\n'),
                    Some('t') => word.push('\t'),
                    Some('r') => word.push('\r'),
                    Some(plain @ (' ' | '#' | '\\' | '"' | '\'')) => word.push(plain),
                    Some(other) => word.extend(['\\', other]),
                    None => {}
                }
            }
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some((c, at + 1));
                word.get_or_insert_default();
            }
            (None, '#') => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    if let Some((_, column)) = quote {
        return Err((column, "a quote that is not closed"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_lines_as_haproxy_does() {
        let rows: [(&str, &[&str]); 6] = [
            ("  bind :80 # x", &["bind", ":80"]),
            ("a \"b c\" 'd \\ e'", &["a", "b c", "d \\ e"]),
            ("a b\\ c", &["a", "b c"]),
            (r"a ^/(.*)\.php", &["a", r"^/(.*)\.php"]),
            ("a \"\"", &["a", ""]),
            ("# only", &[]),
        ];
        for (line, expected) in rows {
            assert_eq!(split(line).unwrap(), expected, "{line}");
        }
        assert_eq!(split("a 'b"), Err((3, "a quote that is not closed")));
    }

    #[test]
    fn finds_the_words_of_the_table() {
        let rows = [
            ("timeout connect 5s", "timeout connect"),
            ("option httplog", "option httplog"),
            ("http-request track-sc0 src", "http-request track-sc"),
            ("balance roundrobin", "balance roundrobin"),
            ("acl a path /", "acl"),
            ("frobnicate x", "frobnicate"),
        ];
        for (line, expected) in rows {
            assert_eq!(table_word(&split(line).unwrap()), expected);
        }
    }
}
