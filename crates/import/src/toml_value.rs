//! Values of TOML, written on one line.

use std::collections::BTreeMap;
use std::fmt;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TomlValue {
    Text(String),
    Integer(u64),
    Bool(bool),
    List(Vec<Self>),
    Table(TomlTable),
}

/// Keys with their values, in the order in which they were set.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct TomlTable {
    entries: Vec<(String, TomlValue)>,
    places: BTreeMap<String, usize>,
}

/// How many items of a list are looked at for a repetition.
const NEAR_ITEMS: usize = 64;

impl TomlTable {
    /// A table of one key.
    pub(crate) fn with(key: &str, value: impl Into<TomlValue>) -> Self {
        let mut table = Self::default();
        table.set(key, value);
        table
    }

    /// Sets a key, in place of an earlier value.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<TomlValue>) {
        *self.value_mut(key) = value.into();
    }

    /// Sets a key of a table within, which is made where it is missing.
    pub(crate) fn set_in(&mut self, path: &[&str], value: impl Into<TomlValue>) {
        match path {
            [] => {}
            [key] => self.set(key, value),
            [key, rest @ ..] => self.table_mut(key).set_in(rest, value),
        }
    }

    /// The value of a key; a new key has `false`.
    fn value_mut(&mut self, key: &str) -> &mut TomlValue {
        let at = match self.places.get(key) {
            Some(at) => *at,
            None => {
                self.entries.push((key.to_owned(), false.into()));
                self.places.insert(key.to_owned(), self.entries.len() - 1);
                self.entries.len() - 1
            }
        };
        &mut self.entries[at].1
    }

    /// The table with this key, in place of any other value.
    pub(crate) fn table_mut(&mut self, key: &str) -> &mut Self {
        let value = self.value_mut(key);
        if !matches!(value, TomlValue::Table(_)) {
            *value = Self::default().into();
        }
        match value {
            TomlValue::Table(table) => table,
            _ => unreachable!("it was made a table"),
        }
    }

    /// Appends to the list with this key, unless the value is one of its last.
    pub(crate) fn push(&mut self, key: &str, value: impl Into<TomlValue>) {
        let value = value.into();
        match self.value_mut(key) {
            TomlValue::List(list) => {
                if !list
                    .iter()
                    .rev()
                    .take(NEAR_ITEMS)
                    .any(|near| *near == value)
                {
                    list.push(value);
                }
            }
            other => *other = vec![value].into(),
        }
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&TomlValue> {
        self.places.get(key).map(|at| &self.entries[*at].1)
    }

    /// The text of a key.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(TomlValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The table of a key.
    pub(crate) fn table(&self, key: &str) -> Option<&Self> {
        match self.get(key) {
            Some(TomlValue::Table(table)) => Some(table),
            _ => None,
        }
    }

    /// Whether the key is set.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// Removes a key.
    pub(crate) fn remove(&mut self, key: &str) {
        if self.has(key) {
            self.entries.retain(|(name, _)| name != key);
            let places = self.entries.iter().enumerate();
            self.places = places.map(|(at, (name, _))| (name.clone(), at)).collect();
        }
    }

    /// Whether no key is set.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &TomlValue)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }
}

impl From<&str> for TomlValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for TomlValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for TomlValue {
    fn from(number: u64) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for TomlValue {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<TomlTable> for TomlValue {
    fn from(table: TomlTable) -> Self {
        Self::Table(table)
    }
}

impl<T: Into<Self>> From<Vec<T>> for TomlValue {
    fn from(items: Vec<T>) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

impl fmt::Display for TomlValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&quote(text)),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::List(items) => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Self::Table(table) => {
                let items = table
                    .iter()
                    .map(|(key, value)| format!("{} = {value}", quote_key(key)));
                let items: Vec<String> = items.collect();
                match items.is_empty() {
                    true => f.write_str("{}"),
                    false => write!(f, "{{ {} }}", items.join(", ")),
                }
            }
        }
    }
}

/// A key, in quotes where it needs them.
pub(crate) fn quote_key(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !key.is_empty() && key.chars().all(is_bare) {
        key.to_owned()
    } else {
        quote(key)
    }
}

/// A text in quotes: literal where it has backslashes or double quotes, else basic.
pub(crate) fn quote(text: &str) -> String {
    let needs_escapes = text.contains(['\\', '"']);
    let may_be_literal = !text.contains('\'') && !text.chars().any(char::is_control);
    if needs_escapes && may_be_literal {
        return format!("'{text}'");
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_values_on_one_line() {
        let mut table = TomlTable::with("root", "/srv");
        table.set_in(&["cache_control", "*.css"], "max-age=1");
        table.push("try", "{path}");
        table.push("try", "{path}");
        table.push("try", "=404");
        let shown = TomlValue::from(table).to_string();
        let expected = r#"{ root = "/srv", cache_control = { "*.css" = "max-age=1" }, try = ["{path}", "=404"] }"#;
        assert_eq!(shown, expected);
    }

    #[test]
    fn quotes_texts() {
        let rows = [
            ("plain", r#""plain""#),
            (r"^/a\.b$", r"'^/a\.b$'"),
            ("it's \\", r#""it's \\""#),
            ("a\nb\u{1}", r#""a\nb\u0001""#),
            (r#"{"a":1}"#, r#"'{"a":1}'"#),
        ];
        for (text, expected) in rows {
            assert_eq!(quote(text), expected);
        }
        assert_eq!(quote_key("X-Site"), "X-Site");
        assert_eq!(quote_key("*.js"), "\"*.js\"");
        assert_eq!(quote_key(""), "\"\"");
    }
}
