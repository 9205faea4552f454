//! The types of the options: what a key is, what its table is, and how to find one.
//!
//! The options themselves are declared in `model`, by the macros of `declare`. `section` knows
//! keys and ranges by them; `describe`, `example` and `schema` print them.
//!
//! # Invariants
//! - Every option is read and no other key is: tested.
//! - The defaults that are written as TOML are those of the types: tested.

pub(crate) mod expected;
mod sections;

pub(crate) use sections::SECTIONS;

use crate::model::TOP;

/// One option.
#[derive(Debug)]
pub(crate) struct OptionRow {
    /// Its table, such as `apps.NAME`; empty at the top level.
    pub(crate) section: &'static str,
    /// Its key.
    pub(crate) key: &'static str,
    /// Its type and range.
    pub(crate) kind: OptionKind,
    /// Its value when the key is absent.
    pub(crate) default: OptionDefault,
    /// A value for the example file, in TOML; `None` for the default, or the other value of a flag.
    pub(crate) example: Option<&'static str>,
    /// Beside what it may be set, as in "only for ..."; empty for anything.
    pub(crate) only_for: &'static str,
    /// One sentence or more.
    pub(crate) description: &'static str,
}

/// The first version that has the options.
pub(crate) const SINCE_VERSION: &str = "0.1";

/// The type of an option.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OptionKind {
    /// Text with a grammar that its reader checks; the words say which.
    Text(&'static str),
    /// A list of such texts.
    Texts(&'static str),
    /// One such text, or a list of texts.
    TextOrTexts(&'static str),
    /// One such text, or a table in its place, or a list of these.
    TextsOrTables(&'static str, &'static str),
    /// `true` or `false`.
    Bool,
    /// `true` for all of these words, `false` for none, or a list of some.
    FlagOrChoices(&'static [&'static str]),
    /// `true`, `false`, or this word.
    FlagOrWord(&'static str),
    /// `true`, `false`, or a list of such texts.
    FlagOrTexts(&'static str),
    /// `true`, `false`, or a list of paths, relative to the file's directory.
    FlagOrPaths,
    /// A number from 0 to 1.
    Fraction,
    /// A number within bounds, which may have digits after the point.
    Decimal(f64, f64),
    /// A path, relative to the file's directory.
    Path,
    /// A number within bounds.
    Number(u64, u64),
    /// A number within bounds, or a list of such numbers.
    NumberOrNumbers(u64, u64),
    /// A number of bytes, at least this.
    Size(u64),
    /// A duration of at least so many milliseconds.
    Time(u64),
    /// A duration that clients count, of up to ten years.
    Age,
    /// Bytes a second.
    Rate,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A table of texts under free keys.
    StringMap,
    /// A table; its options stand under the section of this name.
    Table(&'static str),
    /// A table, or a list of such tables.
    TableOrTables(&'static str),
    /// A value of this kind, or a table.
    OrTable(&'static Self, &'static str),
    /// Tables under free names.
    NamedTables(&'static str),
    /// A list of tables.
    Tables(&'static str),
}

/// The value of an option that is not set.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OptionDefault {
    /// The default of the field, as TOML.
    Of(fn() -> String),
    /// This value, as TOML, of a key without a field.
    Toml(&'static str),
    /// A value found at start, in words.
    Described(&'static str),
    /// None: the key is required.
    Required,
}

/// One table of the file.
#[derive(Debug)]
pub(crate) struct SectionDoc {
    /// Its name in `OptionRow::section`.
    pub(crate) name: &'static str,
    /// How it is written, such as `[apps.NAME]`.
    pub(crate) heading: &'static str,
    /// How it is written in the example file; empty when its tables are written inline.
    pub(crate) example: &'static str,
    /// One sentence or two.
    pub(crate) description: &'static str,
    /// The table that it shares keys with; `None` when it has options of its own.
    pub(crate) shared_keys: Option<SharedKeys>,
    /// Its options, in the order in which they are printed.
    pub(crate) options: &'static [OptionRow],
}

/// The keys of another table, without some.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedKeys {
    /// The other table's name in `OptionRow::section`.
    pub(crate) section: &'static str,
    /// The keys it does not have, each with the reason.
    pub(crate) except: &'static [(&'static str, &'static str)],
}

impl OptionRow {
    /// Its whole name, such as `apps.NAME.dir`.
    pub(crate) fn name(&self) -> String {
        self.name_in(self.section)
    }

    /// Its whole name in a table that has it.
    pub(crate) fn name_in(&self, section: &str) -> String {
        if section.is_empty() {
            return self.key.to_owned();
        }
        format!("{section}.{}", self.key)
    }

    /// The default as TOML, if it has such a form.
    pub(crate) fn default_toml(&self) -> Option<String> {
        match self.default {
            OptionDefault::Of(value) => Some(value()),
            OptionDefault::Toml(value) => Some(value.to_owned()),
            OptionDefault::Described(_) | OptionDefault::Required => None,
        }
    }

    /// A value for the example file; empty for a table of tables.
    pub(crate) fn example(&self) -> String {
        match (self.example, self.default_toml()) {
            (Some(example), _) => example.to_owned(),
            (None, Some(value)) if value == "false" => "true".to_owned(),
            (None, Some(value)) if value == "true" => "false".to_owned(),
            (None, None) if matches!(self.kind, OptionKind::Bool) => "false".to_owned(),
            (None, value) => value.unwrap_or_default(),
        }
    }

    /// The description, and beside what the key may be set.
    pub(crate) fn full_description(&self) -> String {
        match self.only_for {
            "" => self.description.to_owned(),
            only => format!("{} Only for {only}.", self.description),
        }
    }
}

impl OptionKind {
    /// The kind of a value that is not a table, where both are possible.
    pub(crate) fn without_table(self) -> Self {
        match self {
            Self::OrTable(kind, _) => *kind,
            kind => kind,
        }
    }

    /// The table that a value is or may be.
    pub(crate) fn inline_table(self) -> Option<&'static str> {
        match self {
            Self::Table(table)
            | Self::TableOrTables(table)
            | Self::OrTable(_, table)
            | Self::TextsOrTables(_, table) => Some(table),
            _ => None,
        }
    }

    /// What a message says was expected of an item of a list, or of the value if it is no list.
    pub(crate) fn expected_item(&self) -> String {
        match self.without_table() {
            Self::Texts(each) | Self::TextsOrTables(each, _) | Self::FlagOrTexts(each) => {
                each.to_owned()
            }
            Self::FlagOrChoices(words) => join_alternatives(words),
            Self::FlagOrPaths => "a path".to_owned(),
            _ => self.expected(),
        }
    }

    /// What a message says was expected.
    pub(crate) fn expected(&self) -> String {
        match *self {
            Self::Text(what) => what.to_owned(),
            Self::Texts(what) => format!("a list, each {what}"),
            Self::TextOrTexts(what) => format!("{what}, or a list of texts"),
            Self::TextsOrTables(what, _) => format!("{what}, or a table, or a list of these"),
            Self::Bool => "true or false".to_owned(),
            Self::FlagOrChoices(words) => {
                format!("true, false, or a list, each {}", join_alternatives(words))
            }
            Self::FlagOrWord(word) => format!("true, false or {word:?}"),
            Self::FlagOrTexts(what) => format!("true, false, or a list, each {what}"),
            Self::FlagOrPaths => "true, false, or a list of paths".to_owned(),
            Self::Fraction => "a number from 0 to 1".to_owned(),
            Self::Decimal(min, max) => format!("a number from {min} to {max}, such as 1.5"),
            Self::Path => "a path".to_owned(),
            Self::Number(min, max) => format!("a number from {min} to {max}"),
            Self::NumberOrNumbers(min, max) => {
                format!("a number from {min} to {max}, or a list of such numbers")
            }
            Self::Size(_) => crate::units::SIZE_EXPECTED.to_owned(),
            Self::Time(_) => crate::units::TIME_EXPECTED.to_owned(),
            Self::Age => crate::units::AGE_EXPECTED.to_owned(),
            Self::Rate => crate::units::RATE_EXPECTED.to_owned(),
            Self::Choice(words) => join_alternatives(words),
            Self::StringMap => "a table of strings".to_owned(),
            Self::Table(_) => "a table".to_owned(),
            Self::TableOrTables(_) => "a table, or a list of tables".to_owned(),
            Self::OrTable(Self::Bool, _) => "true, false, or a table".to_owned(),
            Self::OrTable(kind, _) => format!("{}, or a table", kind.expected()),
            Self::NamedTables(_) => "a table of named tables".to_owned(),
            Self::Tables(_) => "a list of tables".to_owned(),
        }
    }
}

fn join_alternatives(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    quoted.join(" or ")
}

/// Every option, by section in the order of the tables.
pub(crate) fn all_options() -> impl Iterator<Item = &'static OptionRow> {
    let sections = SECTIONS.iter().flat_map(|section| section.options);
    TOP.options.iter().chain(sections)
}

/// The option of a section by its key.
pub(crate) fn find_option(section: &str, key: &str) -> Option<&'static OptionRow> {
    options_in(section).find(|option| option.key == key)
}

/// The options of a section in the order of its declaration.
pub(crate) fn options_in(section: &str) -> impl Iterator<Item = &'static OptionRow> {
    let shared = shared_keys_of(section);
    let origin = find_section(shared.map_or(section, |shared| shared.section));
    let except = shared.map_or(&[][..], |shared| shared.except);
    let options = origin.map_or(&[][..], |origin| origin.options).iter();
    options.filter(move |option| !except.iter().any(|(key, _)| *key == option.key))
}

/// The table that a section shares keys with.
pub(crate) fn shared_keys_of(section: &str) -> Option<SharedKeys> {
    find_section(section)?.shared_keys
}

fn find_section(name: &str) -> Option<&'static SectionDoc> {
    if name.is_empty() {
        return Some(&TOP);
    }
    SECTIONS.iter().copied().find(|doc| doc.name == name)
}

#[cfg(test)]
mod tests;
