//! One table of a file: typed, ranged values out of it, with every mistake noted and passed over.
//!
//! Opened by `parse` and the readers of each table. Opening reports unknown keys; each getter
//! leaves its target alone when the key is absent or wrong, so that defaults live in `model` only
//! and reading goes on to the next mistake.
//!
//! # Invariants
//! - A getter asks for a key that the option table has, under a kind that fits it.

mod lists;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::did_you_mean;
use crate::findings::{Findings, LocatedValue};
use crate::foreign_words::{address_of_url, explain_job_table, translate_key};
use crate::options::{self, OptionDefault, OptionKind, OptionRow};
use crate::suggest::nearest_word;
use crate::values::PathRegex;

pub(crate) use lists::{FlagOrWord, TextOrList, TextOrTable};
pub(crate) use value::{Keys, MAX_DURATION, OptionValue, set};

/// A table being read.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    /// Where problems go.
    pub(crate) findings: &'a Findings<'a>,
    /// Where the table starts.
    pub(crate) offset: usize,
    /// Its name with the reader's own names in it, such as `apps.guestbook`.
    pub(crate) display_name: String,
    subtable: &'a DeTable<'a>,
    name: &'static str,
}

impl<'a> Section<'a> {
    /// The table `name` of the option table, after its unknown keys were reported.
    pub(crate) fn new(
        found: &'a Findings<'a>,
        name: &'static str,
        display_name: String,
        table: LocatedValue<&'a DeTable<'a>>,
    ) -> Self {
        let section = Self {
            findings: found,
            offset: table.offset,
            display_name,
            subtable: table.value,
            name,
        };
        for key in section.subtable.keys() {
            section.check_key_is_known(key);
        }
        for option in options::options_in(name) {
            // The reader of a list of tables reports its absence in words of its own.
            let is_list = matches!(option.kind, OptionKind::Tables(_));
            let is_required = matches!(option.default, OptionDefault::Required) && !is_list;
            if is_required && !section.has(option.key) {
                section.report_missing(option.key);
            }
        }
        section
    }

    /// Whether the key was written, rightly or wrongly.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.subtable.contains_key(key)
    }

    /// Whether it has keys that there are not, which were reported.
    pub(crate) fn has_unknown_keys(&self) -> bool {
        let mut keys = self.subtable.keys();
        keys.any(|key| options::find_option(self.name, key.get_ref()).is_none())
    }

    /// Adds a problem at an offset.
    pub(crate) fn report(&self, at: usize, problem: impl Into<String>) {
        self.findings.add_problem(at, problem);
    }

    /// Adds a problem at the value of a key, or at the table if the key was not written.
    pub(crate) fn report_key(&self, key: &str, problem: impl Into<String>) {
        self.report(self.key_offset(&[key]), problem);
    }

    /// Reports that a key without a default is absent.
    pub(crate) fn report_missing(&self, key: &'static str) {
        if let Some(option) = self.option(key) {
            let (place, expected) = (self.place(), option.kind.expected());
            self.report(
                self.offset,
                format!("`{key}` is missing {place}: expected {expected}"),
            );
        }
    }

    /// Reports a value of the right type that its reader could not make sense of.
    pub(crate) fn report_invalid(&self, key: &str, value: &LocatedValue<&str>) {
        let kind = self.option(key).map(|option| option.kind);
        let suggestion = match kind.map(OptionKind::without_table) {
            Some(OptionKind::Choice(words) | OptionKind::FlagOrChoices(words)) => {
                nearest_word(value.value, words.iter().copied())
            }
            Some(OptionKind::FlagOrWord(word)) => nearest_word(value.value, [word]),
            _ => address_of_url(value.value).filter(|_| ADDRESS_KEYS.contains(&key)),
        };
        let expected = kind.map(|kind| kind.expected_item()).unwrap_or_default();
        let expected = format!("{expected}{}", did_you_mean(suggestion));
        self.report_invalid_item(key, value.value, value.offset, &expected);
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Option<LocatedValue<&'a str>> {
        let (option, value) = self.option_and_value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some(LocatedValue::new(text.as_ref(), value.span().start)),
            _ => self.report_wrong_type(option, value),
        }
    }

    /// The expression of the key `regex`.
    pub(crate) fn regex(&self) -> Option<LocatedValue<PathRegex>> {
        let text = self.text("regex")?;
        match PathRegex::new(text.value) {
            Ok(regex) => Some(LocatedValue::new(regex, text.offset)),
            Err(reason) => {
                let problem = format!("`regex` is no regular expression: {reason}");
                self.report(text.offset, problem);
                None
            }
        }
    }

    /// A text that `read` makes sense of.
    pub(crate) fn parse_text<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<LocatedValue<T>> {
        let text = self.text(key)?;
        let value = read(text.value);
        if value.is_none() {
            self.report_invalid(key, &text);
        }
        value.map(|value| LocatedValue::new(value, text.offset))
    }

    /// A path, made absolute.
    pub(crate) fn path(&self, key: &str) -> Option<LocatedValue<PathBuf>> {
        let usable = |text: &str| !text.is_empty() && !text.contains('\0');
        self.parse_text(key, |text| {
            usable(text).then(|| self.findings.resolve_path(text))
        })
    }

    /// Texts under free keys, with the offset of each key.
    pub(crate) fn string_map(&self, key: &str) -> BTreeMap<String, LocatedValue<String>> {
        let mut texts = BTreeMap::new();
        let Some((option, value)) = self.option_and_value(key) else {
            return texts;
        };
        let Some(table) = value.get_ref().as_table() else {
            self.report_wrong_type::<()>(option, value);
            return texts;
        };
        for (name, value) in table.iter() {
            match value.get_ref().as_str() {
                Some(text) => {
                    let text = LocatedValue::new(text.to_owned(), name.span().start);
                    texts.insert(name.get_ref().to_string(), text);
                }
                None => self.report_type(name.get_ref(), "a string", value),
            }
        }
        texts
    }

    /// The table under a key.
    pub(crate) fn table(&self, key: &str) -> Option<Self> {
        let (option, value) = self.option_and_value(key)?;
        let name = option.kind.inline_table()?;
        let display_name = format!("{}.{key}", self.display_name.trim_matches(['[', ']']));
        let display_name = display_name.trim_start_matches('.').to_owned();
        match value.get_ref() {
            DeValue::Table(table) => {
                let table = LocatedValue::new(table, value.span().start);
                Some(Self::new(self.findings, name, display_name, table))
            }
            _ => self.report_wrong_type(option, value),
        }
    }

    /// The tables under free names, with the offset of each name; names outside the grammar are
    /// reported and left out.
    pub(crate) fn named_tables(&self, key: &str) -> Vec<(LocatedValue<String>, Self)> {
        let mut tables = Vec::new();
        let Some((option, value)) = self.option_and_value(key) else {
            return tables;
        };
        let (OptionKind::NamedTables(template), Some(named)) =
            (option.kind, value.get_ref().as_table())
        else {
            self.report_wrong_type::<()>(option, value);
            return tables;
        };
        for (name, value) in named.iter() {
            let text = LocatedValue::new(name.get_ref().as_ref(), name.span().start);
            if !is_valid_name(text.value) {
                self.report_invalid_item(key, text.value, text.offset, NAME_EXPECTED);
                continue;
            }
            let display_name = format!("{key}.{}", text.value);
            match value.get_ref() {
                DeValue::Table(table) => {
                    let table = LocatedValue::new(table, text.offset);
                    let section = Self::new(self.findings, template, display_name, table);
                    tables.push((
                        LocatedValue::new(text.value.to_owned(), text.offset),
                        section,
                    ));
                }
                _ => self.report_type(&display_name, "a table", value),
            }
        }
        tables
    }

    /// Where the value of the first of these keys that was written stands, else the table.
    pub(crate) fn key_offset(&self, keys: &[&str]) -> usize {
        let value = keys.iter().find_map(|key| self.subtable.get(*key));
        value.map_or(self.offset, |value| value.span().start)
    }

    /// Variables of an environment; those that no process could have are reported and left out.
    pub(crate) fn env_variables(&self, key: &str) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        for (name, value) in self.string_map(key) {
            if name.is_empty() || name.contains(['=', '\0']) || value.value.contains('\0') {
                self.report_invalid_item(key, &name, value.offset, VARIABLE_EXPECTED);
            } else {
                variables.insert(name, value.value);
            }
        }
        variables
    }

    /// Reports a part of a value.
    pub(crate) fn report_invalid_item(&self, key: &str, value: &str, at: usize, expected: &str) {
        self.report(
            at,
            format!("`{key}` cannot be {value:?}: expected {expected}"),
        );
    }

    /// Reports a text that is no usable secret, without showing it.
    pub(crate) fn report_invalid_secret(&self, key: &str, at: usize, expected: &str) {
        self.report(at, invalid_secret_message(key, expected));
    }

    /// Reports a key that was written beside what it cannot stand with.
    pub(crate) fn report_not_applicable(&self, key: &'static str) {
        if let Some(option) = self.option(key).filter(|_| self.has(key)) {
            self.report_key(key, format!("`{key}` is only for {}", option.only_for));
        }
    }

    /// Reports two bounds that are the wrong way round.
    pub(crate) fn check_order(&self, low: (&str, u64), high: (&str, u64)) {
        let ((low, low_value), (high, high_value)) = (low, high);
        if low_value > high_value {
            let at = self.key_offset(&[low, high]);
            let problem = format!("`{low}` ({low_value}) is above `{high}` ({high_value})");
            self.report(at, problem);
        }
    }

    /// Whether the value under a key is a table.
    pub(crate) fn is_table(&self, key: &str) -> bool {
        self.subtable
            .get(key)
            .is_some_and(|value| value.get_ref().is_table())
    }

    fn option_and_value(
        &self,
        key: &str,
    ) -> Option<(&'static OptionRow, &'a Spanned<DeValue<'a>>)> {
        let option = self.option(key)?;
        #[cfg(test)]
        self.findings.record_option_lookup(self.name, key);
        Some((option, self.subtable.get(key)?))
    }

    fn option(&self, key: &str) -> Option<&'static OptionRow> {
        options::find_option(self.name, key)
    }

    /// Reports the type and gives nothing.
    fn report_wrong_type<T>(&self, option: &OptionRow, value: &Spanned<DeValue<'_>>) -> Option<T> {
        self.report_type(option.key, &option.kind.expected(), value);
        None
    }

    fn report_type(&self, key: &str, expected: &str, value: &Spanned<DeValue<'_>>) {
        let found = type_with_article(value.get_ref());
        let problem = format!("`{key}` must be {expected}, not {found}");
        self.report(value.span().start, problem);
    }

    fn check_key_is_known(&self, key: &Spanned<std::borrow::Cow<'_, str>>) {
        let (text, at) = (key.get_ref().as_ref(), key.span().start);
        if options::find_option(self.name, text).is_some() {
            return;
        }
        let place = self.place();
        let but = options::shared_keys_of(self.name).map_or(&[][..], |like| like.except);
        if let Some((key, reason)) = but.iter().find(|(key, _)| *key == text) {
            return self.report(at, format!("`{key}` has no place {place}: {reason}"));
        }
        let known = || options::options_in(self.name).map(|option| option.key);
        if self.name == crate::basic_auth::USERS {
            // A user, whose name is like no key.
            return self.report(at, crate::basic_auth::explain_inline_user(text));
        }
        if let Some(told) = explain_job_table(text).filter(|_| self.name.is_empty()) {
            return self.report(at, told);
        }
        let translated = translate_key(self.name, text).map(str::to_owned);
        let suggestion = translated.or_else(|| nearest_word(text, known()));
        let tables = match (&suggestion, self.name) {
            // A table that does not exist: there are few.
            (None, "") => format!("; there are {}", known().collect::<Vec<_>>().join(", ")),
            _ => String::new(),
        };
        let suggestion = did_you_mean(suggestion);
        self.report(
            at,
            format!("unknown key `{text}` {place}{suggestion}{tables}"),
        );
    }

    /// `in [section]`, or at the top.
    fn place(&self) -> String {
        match self.display_name.as_str() {
            "" => "at the top level".to_owned(),
            section => format!("in [{section}]"),
        }
    }

    /// The whole name of a key of this table; those of lists are clear without it.
    fn display_key(&self, key: &str) -> String {
        if self.display_name.is_empty() || self.display_name.starts_with('[') {
            return key.to_owned();
        }
        format!("{}.{key}", self.display_name)
    }
}

/// Whether a text can name an application or a pool: it shows up in URLs, metrics and messages.
pub(crate) fn is_valid_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= 64
        && text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
        && text.bytes().all(plain)
}

/// What is wrong with a secret, without showing it.
pub(crate) fn invalid_secret_message(key: &str, expected: &str) -> String {
    format!("`{key}` (not shown) cannot be used: expected {expected}")
}

/// The type of a value with its article.
fn type_with_article(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Keys of addresses, which other servers write as URLs.
const ADDRESS_KEYS: [&str; 4] = ["listen", "address", "admin", "servers"];

const VARIABLE_EXPECTED: &str = "a variable without `=` in its name and without zero bytes";
const NAME_EXPECTED: &str = "a name of at most 64 letters, digits, `-`, `_` and `.`";
