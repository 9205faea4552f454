//! A whole example file, made from the option table.
//!
//! Called by the binary's `config example`.
//!
//! # Invariants
//! - It parses in a directory that has the application and the files it names, and it mentions
//!   every option.

use std::fmt::Write as _;

use crate::options::{self, OptionDefault, OptionKind, OptionRow, SECTIONS};

/// A commented example of a whole file: defaults are behind `#`.
pub fn example_file() -> String {
    let mut file = INTRODUCTION.to_owned();
    for section in SECTIONS
        .iter()
        .filter(|section| !section.example.is_empty())
    {
        let _ = write!(
            file,
            "\n{}\n{}\n",
            comment(section.description),
            section.example
        );
        for option in options::options_in(section.name) {
            if !matches!(
                option.kind,
                OptionKind::Tables(_) | OptionKind::NamedTables(_)
            ) {
                write_option(&mut file, option);
            }
        }
    }
    file
}

/// The first line names the schema in the way of TOML editors.
const INTRODUCTION: &str = "\
#:schema ./penstock.schema.json
#
# For an editor that completes and checks: penstock config schema > penstock.schema.json
#
# An example of penstock.toml with every option. Lines behind `#` say the default, or what could stand
# there; the others are what a small site sets. Relative paths start from this file's folder.
";

fn write_option(file: &mut String, option: &OptionRow) {
    let is_set = UNCOMMENTED.contains(&(option.section, option.key));
    let value = option.default_toml();
    let default = match option.default {
        OptionDefault::Described(words) => format!(" Default: {words}."),
        _ => match &value {
            Some(value) if is_set => format!(" Default: {value}."),
            _ => String::new(),
        },
    };
    let mark = if is_set { "" } else { "# " };
    let value = value.filter(|value| !is_set && value != "{}");
    let value = value.unwrap_or_else(|| option.example());
    let _ = writeln!(
        file,
        "{}",
        comment(&format!("{}{default}", option.full_description()))
    );
    if let Some(section) = option.kind.inline_table() {
        let keys = format!("Keys: {}.", keys_with_defaults(section));
        let _ = writeln!(file, "{}", comment(&keys));
    }
    let _ = writeln!(file, "{mark}{} = {value}", option.key);
}

/// Keys with their defaults, and with the keys of inner tables.
fn keys_with_defaults(section: &str) -> String {
    let keys = options::options_in(section).map(|inner| {
        let default = inner.default_toml().map(|value| format!(" = {value}"));
        let default = default.unwrap_or_default();
        let table = inner.kind.inline_table();
        let within = table.map(|section| format!(" ({})", keys_with_defaults(section)));
        format!("{}{default}{}", inner.key, within.unwrap_or_default())
    });
    keys.collect::<Vec<_>>().join(", ")
}

/// Text behind `#`, in lines that fit a terminal.
fn comment(text: &str) -> String {
    let mut lines = vec!["#".to_owned()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].len() + word.len() >= 100 {
            lines.push("#".to_owned());
        }
        let last = lines.len() - 1;
        lines[last].push(' ');
        lines[last].push_str(word);
    }
    lines.join("\n")
}

/// What a small site would set.
const UNCOMMENTED: [(&str, &str); 9] = [
    ("server", "listen"),
    ("apps.NAME", "dir"),
    ("apps.NAME", "kind"),
    ("jobs.NAME", "command"),
    ("apps.NAME", "entry"),
    ("apps.NAME", "processes"),
    ("sites.routes", "path"),
    ("sites.routes", "files"),
    ("sites.routes", "app"),
];
