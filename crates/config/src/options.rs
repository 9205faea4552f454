//! The table of every option: the one place where a key, its type, its range and its meaning stand.
//!
//! `section` uses it to know keys and ranges while reading, `describe`, `example` and `schema` print
//! it. What must stay true, and is tested: every built option is read by the parser and the parser
//! reads no other, and the defaults written here are those of the types in `model`.
//! The rows are in `options/table.rs`.

mod table;

pub(crate) use table::{OPTIONS, SECTIONS};

/// One option.
#[derive(Debug)]
pub(crate) struct Opt {
    /// The table it stands in, such as `apps.NAME`; empty is the top.
    pub(crate) section: &'static str,
    /// Its key.
    pub(crate) key: &'static str,
    /// Its type and range.
    pub(crate) kind: Kind,
    /// What leaving it out means.
    pub(crate) default: Unset,
    /// A value for the example file, in TOML.
    pub(crate) sample: &'static str,
    /// One sentence.
    pub(crate) doc: &'static str,
    /// The first version that has it; `PLANNED` when none does.
    pub(crate) since: &'static str,
}

/// `since` of what is decided but not built: an error that says so, never ignored.
pub(crate) const PLANNED: &str = "planned";

/// The type of an option.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Text with a grammar that its reader checks; the words say which.
    Text(&'static str),
    /// A list of such texts.
    Texts(&'static str),
    /// A path, relative to the file's folder.
    Path,
    /// A number within bounds.
    Count(u64, u64),
    /// A number of bytes, at least this.
    Size(u64),
    /// A duration of at least so many milliseconds.
    Time(u64),
    /// Bytes a second.
    Rate,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A table of texts under free keys.
    Map,
    /// A table; its options stand under the section of this name.
    Table(&'static str),
    /// A number within bounds, or a table.
    CountOrTable(u64, u64, &'static str),
    /// A text (the words say which), or a table.
    TextOrTable(&'static str, &'static str),
    /// Tables under free names.
    Named(&'static str),
    /// A list of tables.
    List(&'static str),
}

/// What an option is when it is left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Unset {
    /// This value, in TOML.
    Is(&'static str),
    /// Something found out at start, in words.
    Means(&'static str),
    /// An error.
    Required,
}

/// One table of the file.
#[derive(Debug)]
pub(crate) struct SectionDoc {
    /// Its name in `Opt::section`.
    pub(crate) name: &'static str,
    /// How it is written, such as `[apps.NAME]`.
    pub(crate) heading: &'static str,
    /// How it is written in the example file; empty when its tables are written inline.
    pub(crate) sample: &'static str,
    /// One sentence or two.
    pub(crate) doc: &'static str,
}

impl Opt {
    /// Whether this version reads it.
    pub(crate) fn is_built(&self) -> bool {
        self.since != PLANNED
    }

    /// Its whole name, such as `apps.NAME.dir`.
    pub(crate) fn name(&self) -> String {
        if self.section.is_empty() {
            return self.key.to_owned();
        }
        format!("{}.{}", self.section, self.key)
    }
}

impl Kind {
    /// What a message says was expected of an item of a list, or of the value if it is no list.
    pub(crate) fn expected_item(&self) -> String {
        match *self {
            Self::Texts(each) => each.to_owned(),
            _ => self.expected(),
        }
    }

    /// What a message says was expected.
    pub(crate) fn expected(&self) -> String {
        match *self {
            Self::Text(what) => what.to_owned(),
            Self::Texts(what) => format!("a list, each {what}"),
            Self::Path => "a path".to_owned(),
            Self::Count(min, max) => format!("a number from {min} to {max}"),
            Self::Size(_) => crate::units::SIZE_EXPECTED.to_owned(),
            Self::Time(_) => crate::units::TIME_EXPECTED.to_owned(),
            Self::Rate => crate::units::RATE_EXPECTED.to_owned(),
            Self::OneOf(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
                quoted.join(" or ")
            }
            Self::Map => "a table of strings".to_owned(),
            Self::Table(_) => "a table".to_owned(),
            Self::CountOrTable(min, max, _) => format!("a number from {min} to {max}, or a table"),
            Self::TextOrTable(what, _) => format!("{what}, or a table"),
            Self::Named(_) => "a table of named tables".to_owned(),
            Self::List(_) => "a list of tables".to_owned(),
        }
    }
}

/// The option of a section by its key.
pub(crate) fn find(section: &str, key: &str) -> Option<&'static Opt> {
    in_section(section).find(|option| option.key == key)
}

/// The options of a section in the order of the table.
pub(crate) fn in_section(section: &str) -> impl Iterator<Item = &'static Opt> {
    OPTIONS
        .iter()
        .filter(move |option| option.section == section)
}

#[cfg(test)]
mod tests;
