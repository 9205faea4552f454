//! Keys and tables by words of their names, texts and headings.
//!
//! `config explain` asks for a word that is no key of Penstock's and none of another server's.

use std::cmp::Reverse;

use crate::describe::{describe_default, describe_type};
use crate::options::{self, OptionRow, SECTIONS, SectionDoc};

/// A key or table with the words that were looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionHit {
    /// Its name, such as `apps.NAME.processes` or `[jobs.NAME]`.
    pub name: String,
    /// The first sentence of its text.
    pub summary: String,
}

/// Most hits of a search.
const MAX_HITS: usize = 8;

/// Bytes of a text that is looked for, at most.
const MAX_QUERY_BYTES: usize = 100;

/// How well a word fits: in a name whole or in part, in a heading's text, in any text.
const IN_NAME: usize = 8;
const IN_PART_OF_NAME: usize = 5;
const IN_HEADING: usize = 2;
const IN_TEXT: usize = 1;

/// What a word among the first of a text adds: the text is about it.
const AT_BEGINNING: usize = 2;
const BEGINNING_WORDS: usize = 4;

/// The keys and tables that have every word of a text, the best first.
#[must_use]
pub fn search_options(text: &str) -> Vec<OptionHit> {
    let words = split_words(text);
    if words.is_empty() || text.len() > MAX_QUERY_BYTES {
        return Vec::new();
    }
    let tables = SECTIONS.iter().map(|section| {
        let score = score(&words, section.name, section.description, IN_HEADING);
        (score, table_hit(section))
    });
    let keys = options::all_options().map(|option| {
        let text = format!(
            "{} {} {}",
            option.full_description(),
            describe_type(option),
            describe_default(option)
        );
        (
            score(&words, &option.name(), &text, IN_TEXT),
            key_hit(option),
        )
    });
    let mut hits: Vec<(usize, OptionHit)> = tables
        .chain(keys)
        .filter_map(|(score, hit)| Some((score?, hit)))
        .collect();
    // Equals stay in the order of the file.
    hits.sort_by_key(|(score, _)| Reverse(*score));
    hits.truncate(MAX_HITS);
    hits.into_iter().map(|(_, hit)| hit).collect()
}

/// How well all words fit; `None` when one of them occurs nowhere.
fn score(words: &[String], name: &str, text: &str, in_text: usize) -> Option<usize> {
    let parts = split_words(name);
    let in_name = |word: &String| parts.contains(word).then_some(IN_NAME);
    let in_part = |word: &String| {
        let begins = parts.iter().any(|part| part.starts_with(word.as_str()));
        begins.then_some(IN_PART_OF_NAME)
    };
    let spoken = split_words(text);
    let in_words = |word: &String| {
        let singular = match word.len() > MIN_PLURAL_BYTES {
            true => word.strip_suffix('s').unwrap_or(word),
            false => word,
        };
        let at = spoken.iter().position(|it| it.starts_with(singular))?;
        let more = if at < BEGINNING_WORDS {
            AT_BEGINNING
        } else {
            0
        };
        Some(in_text + more)
    };
    let scores = words.iter().map(|word| {
        in_name(word)
            .or_else(|| in_part(word))
            .or_else(|| in_words(word))
    });
    scores.sum()
}

/// Bytes of a word that is looked for without its final `s` too, at least.
const MIN_PLURAL_BYTES: usize = 4;

/// The words of a text in lower case; a key is a word for each of its parts.
fn split_words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

fn table_hit(section: &SectionDoc) -> OptionHit {
    // A table within another is named as its key.
    let is_header = section.heading.starts_with('[');
    let name = if is_header {
        section.heading
    } else {
        section.name
    };
    OptionHit {
        name: name.to_owned(),
        summary: first_sentence(section.description),
    }
}

fn key_hit(option: &OptionRow) -> OptionHit {
    OptionHit {
        name: option.name(),
        summary: first_sentence(option.description),
    }
}

fn first_sentence(text: &str) -> String {
    let end = text
        .find(". ")
        .or_else(|| text.find(": "))
        .unwrap_or(text.len());
    text[..end].trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_keys_and_tables_by_their_words() {
        let rows = [
            ("celery", "[jobs.NAME]"),
            ("workers", "apps.NAME.processes"),
            ("password", "sites.routes.basic_auth"),
            ("certificate authority", "[acme]"),
            ("websocket compression", "apps.NAME.websocket_compression"),
        ];
        for (text, expected) in rows {
            let hits = search_options(text);
            let names: Vec<&str> = hits.iter().map(|hit| hit.name.as_str()).collect();
            let is_found = names.iter().any(|name| name.contains(expected));
            assert!(is_found, "{text}: {names:?}");
            assert!(hits.len() <= MAX_HITS, "{text}");
            assert!(hits.iter().all(|hit| !hit.summary.is_empty()), "{hits:?}");
        }
        assert_eq!(search_options("celery")[0].name, "[jobs.NAME]");
    }

    #[test]
    fn words_that_occur_nowhere_have_no_hits() {
        for text in ["frobnicate", "", " . ", "celery frobnicate"] {
            assert_eq!(search_options(text), [], "{text}");
        }
        assert_eq!(search_options(&"listen ".repeat(100_000)), []);
    }
}
