//! A whole example file, made from the option table.
//!
//! Called by the binary's `config example`. What must stay true, and is tested: it parses in a
//! folder that has the application and the files it names, and it mentions every option.

use std::fmt::Write as _;

use crate::options::{self, Kind, Opt, SECTIONS, Unset};

/// A commented example of a whole file: what is a default stands behind `#`.
pub fn example() -> String {
    let mut file = INTRODUCTION.to_owned();
    for section in SECTIONS.iter().filter(|section| !section.sample.is_empty()) {
        let _ = write!(file, "\n{}\n{}\n", comment(section.doc), section.sample);
        for option in options::in_section(section.name) {
            if !matches!(option.kind, Kind::List(_) | Kind::Named(_)) {
                write_option(&mut file, option);
            }
        }
    }
    file
}

const INTRODUCTION: &str = "\
# An example of penstock.toml with every option. Lines behind `#` say the default, or what could stand
# there; the others are what a small site sets. Relative paths start from this file's folder.
";

fn write_option(file: &mut String, option: &Opt) {
    let is_set = SET.contains(&(option.section, option.key));
    let (mark, value) = match option.default {
        _ if is_set => ("", option.sample),
        Unset::Is(value) if value != "{}" => ("# ", value),
        _ => ("# ", option.sample),
    };
    let default = match option.default {
        Unset::Means(words) => format!(" Default: {words}."),
        Unset::Is(value) if mark.is_empty() => format!(" Default: {value}."),
        _ => String::new(),
    };
    let _ = writeln!(
        file,
        "{}",
        comment(&format!("{}{default}", option.meaning()))
    );
    if let Some(inner) = inner_keys(option) {
        let _ = writeln!(file, "{}", comment(&inner));
    }
    let _ = writeln!(file, "{mark}{} = {value}", option.key);
}

/// The keys of a table that is written inline.
fn inner_keys(option: &Opt) -> Option<String> {
    let section = inline_section(option)?;
    Some(format!("Keys: {}.", keys_in(section)))
}

fn inline_section(option: &Opt) -> Option<&'static str> {
    match option.kind {
        Kind::Table(section)
        | Kind::CountOrTable(_, _, section)
        | Kind::SizeOrTable(_, section)
        | Kind::TextOrTable(_, section)
        | Kind::ListOrTable(_, section)
        | Kind::FlagOrTable(section)
        | Kind::FlagListOrTable(_, section)
        | Kind::TextsOrTables(_, section) => Some(section),
        _ => None,
    }
}

/// Keys with their defaults, and with what is in them where that is a table again.
fn keys_in(section: &str) -> String {
    let keys = options::in_section(section).map(|inner| {
        let default = match inner.default {
            Unset::Is(value) => format!(" = {value}"),
            _ => String::new(),
        };
        let within = inline_section(inner).map(|section| format!(" ({})", keys_in(section)));
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
const SET: [(&str, &str); 8] = [
    ("server", "listen"),
    ("apps.NAME", "dir"),
    ("apps.NAME", "kind"),
    ("apps.NAME", "entry"),
    ("apps.NAME", "processes"),
    ("sites.routes", "path"),
    ("sites.routes", "files"),
    ("sites.routes", "app"),
];
