//! The table of every option: the one place where a key, its type, its range and its meaning stand.
//!
//! `section` uses it to know keys and ranges while reading, `describe`, `example` and `schema` print
//! it. What must stay true, and is tested: every option is read by the parser and the parser reads no other, and the defaults written here are those of the types in `model`.
//! The rows are in `options/table.rs`, of back ends in `options/upstreams.rs`, of caches in
//! `options/caches.rs` and of held streams in `options/hub.rs`; what is said about each table of the file
//! is in `options/sections.rs`.

mod caches;
mod hub;
mod sections;
mod table;
mod upstreams;

pub(crate) use sections::SECTIONS;

/// One option.
#[derive(Debug)]
pub(crate) struct OptionRow {
    /// The table it stands in, such as `apps.NAME`; empty is the top.
    pub(crate) section: &'static str,
    /// Its key.
    pub(crate) key: &'static str,
    /// Its type and range.
    pub(crate) kind: OptionKind,
    /// What leaving it out means.
    pub(crate) default: OptionDefault,
    /// A value for the example file, in TOML.
    pub(crate) example: &'static str,
    /// Beside what it may be written, as in "only for ..."; empty is beside anything.
    pub(crate) only_for: &'static str,
    /// One sentence.
    pub(crate) description: &'static str,
    /// The first version that has it.
    pub(crate) since: &'static str,
}

/// The type of an option.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OptionKind {
    /// Text with a grammar that its reader checks; the words say which.
    Text(&'static str),
    /// A list of such texts.
    Texts(&'static str),
    /// One such text, or a list of texts.
    TextOrTexts(&'static str),
    /// A list of such texts, or of tables in their place.
    TextsOrTables(&'static str, &'static str),
    /// A list of such texts, or a table that has one.
    ListOrTable(&'static str, &'static str),
    /// `true` or `false`.
    Bool,
    /// `true` for all of these words, `false` for none, or a list of some.
    FlagOrChoices(&'static [&'static str]),
    /// `true`, `false`, or one of these words.
    FlagOrChoice(&'static [&'static str]),
    /// `true`, `false`, or a table.
    FlagOrTable(&'static str),
    /// `true`, `false`, or a list of paths, relative to the file's folder.
    FlagOrPaths,
    /// `true`, `false`, a list of such texts, or a table.
    FlagListOrTable(&'static str, &'static str),
    /// A number from 0 to 1.
    Fraction,
    /// A number within bounds, which may have digits after the point.
    Decimal(f64, f64),
    /// A path, relative to the file's folder.
    Path,
    /// A number within bounds.
    Number(u64, u64),
    /// A number within bounds, or a list of such numbers.
    NumberOrNumbers(u64, u64),
    /// A number of bytes, at least this.
    Size(u64),
    /// A number of bytes, at least this, or a table.
    SizeOrTable(u64, &'static str),
    /// A duration of at least so many milliseconds.
    Duration(u64),
    /// Bytes a second.
    Rate,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A table of texts under free keys.
    StringMap,
    /// A table; its options stand under the section of this name.
    Table(&'static str),
    /// A number within bounds, or a table.
    NumberOrTable(u64, u64, &'static str),
    /// A text (the words say which), or a table.
    TextOrTable(&'static str, &'static str),
    /// Tables under free names.
    NamedTables(&'static str),
    /// A list of tables.
    Tables(&'static str),
}

/// What an option is when it is left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum OptionDefault {
    /// This value, in TOML.
    Value(&'static str),
    /// Something found out at start, in words.
    Described(&'static str),
    /// An error.
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
    /// The table whose keys it has; none when it has rows of its own.
    pub(crate) shared_keys: Option<SharedKeys>,
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

    /// What it means, and beside what.
    pub(crate) fn meaning(&self) -> String {
        match self.only_for {
            "" => self.description.to_owned(),
            only => format!("{} Only for {only}.", self.description),
        }
    }
}

impl OptionKind {
    /// What a message says was expected of an item of a list, or of the value if it is no list.
    pub(crate) fn expected_item(&self) -> String {
        match *self {
            Self::Texts(each)
            | Self::TextsOrTables(each, _)
            | Self::ListOrTable(each, _)
            | Self::FlagListOrTable(each, _) => each.to_owned(),
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
            Self::TextsOrTables(what, _) => format!("a list, each {what}, or a table"),
            Self::ListOrTable(what, _) => format!("a list, each {what}, or a table"),
            Self::Bool => "true or false".to_owned(),
            Self::FlagOrChoices(words) => {
                format!("true, false, or a list, each {}", join_alternatives(words))
            }
            Self::FlagOrChoice(words) => format!("true, false or {}", join_alternatives(words)),
            Self::FlagListOrTable(what, _) => {
                format!("true, false, a list, each {what}, or a table")
            }
            Self::FlagOrTable(_) => "true, false, or a table".to_owned(),
            Self::FlagOrPaths => "true, false, or a list of paths".to_owned(),
            Self::Fraction => "a number from 0 to 1".to_owned(),
            Self::Decimal(min, max) => format!("a number from {min} to {max}, such as 1.5"),
            Self::Path => "a path".to_owned(),
            Self::Number(min, max) => format!("a number from {min} to {max}"),
            Self::NumberOrNumbers(min, max) => {
                format!("a number from {min} to {max}, or a list of such numbers")
            }
            Self::SizeOrTable(_, _) => format!("{}, or a table", crate::units::SIZE_EXPECTED),
            Self::Size(_) => crate::units::SIZE_EXPECTED.to_owned(),
            Self::Duration(_) => crate::units::TIME_EXPECTED.to_owned(),
            Self::Rate => crate::units::RATE_EXPECTED.to_owned(),
            Self::Choice(words) => join_alternatives(words),
            Self::StringMap => "a table of strings".to_owned(),
            Self::Table(_) => "a table".to_owned(),
            Self::NumberOrTable(min, max, _) => format!("a number from {min} to {max}, or a table"),
            Self::TextOrTable(what, _) => format!("{what}, or a table"),
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
    let others = upstreams::OPTIONS.iter().chain(caches::OPTIONS);
    table::OPTIONS.iter().chain(others).chain(hub::OPTIONS)
}

/// The option of a section by its key.
pub(crate) fn find_option(section: &str, key: &str) -> Option<&'static OptionRow> {
    options_in(section).find(|option| option.key == key)
}

/// The options of a section in the order of the table.
pub(crate) fn options_in(section: &str) -> impl Iterator<Item = &'static OptionRow> {
    let like = shared_keys_of(section);
    let home = like.map_or(section, |like| like.section);
    let but = like.map_or(&[][..], |like| like.except);
    all_options().filter(move |option| {
        option.section == home && !but.iter().any(|(key, _)| *key == option.key)
    })
}

/// Whose keys a section has, when they are another's.
pub(crate) fn shared_keys_of(section: &str) -> Option<SharedKeys> {
    let doc = SECTIONS.iter().find(|doc| doc.name == section)?;
    doc.shared_keys
}

#[cfg(test)]
mod tests;
