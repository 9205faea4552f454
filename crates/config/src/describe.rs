//! The option table in words: the reference page and the answer to `config explain_key`.
//!
//! The binary's `config` verb calls it; `docs/configuration.md` is the reference page, and a test
//! fails when that is stale (`PENSTOCK_BLESS=1` writes it anew).
//!
//! # Invariants
//! - Everything printed comes from the table, so that it cannot differ from what the parser does.

use std::fmt::Write as _;

use crate::options::{
    self, OptionDefault, OptionKind, OptionRow, SECTIONS, SectionDoc, SharedKeys,
};
use crate::units;

/// The reference page of every option, in Markdown.
pub fn reference_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for section in SECTIONS {
        let _ = write!(
            page,
            "\n## `{}`\n\n{}\n\n",
            section.heading, section.description
        );
        if let Some(like) = section.shared_keys {
            let _ = writeln!(page, "{}", describe_shared_keys(&like));
            continue;
        }
        page.push_str("| key | type | default | meaning |\n|---|---|---|---|\n");
        for option in options::options_in(section.name) {
            let (kind, default) = (
                escape_table_cell(&describe_type(option)),
                escape_table_cell(&describe_default(option)),
            );
            let (key, doc) = (option.key, escape_table_cell(&option.full_description()));
            let _ = writeln!(
                page,
                "| `{key}` | {kind} | {default} | {doc} Since {}. |",
                options::SINCE_VERSION
            );
        }
    }
    page
}

const INTRODUCTION: &str = "# Configuration\n\n\
Penstock reads one TOML file, `penstock.toml` in the folder where it starts or the one named by `-c`. \
`penstock check` reads it as a start would and reports everything that is wrong at once, with line and column. \
Unknown keys are errors. Relative paths start from the folder of the file. \
`${NAME}` in a text is a variable, and `include` in `[server]` names more files \
([running.md](running.md#several-files-variables-and-secrets)). \
Sizes are written `8KiB`, `10MB` or as a number of bytes, durations `500ms`, `10s`, `5m`, `1h` or `1d`, rates `500B/s`.\n\n\
This page is generated from the table of options that the program itself uses; `penstock config explain KEY` \
prints a row of it, `penstock config example` a whole file.\n";

/// What one option means, by its key alone (`header_timeout`) or with its section
/// (`limits.header_timeout`, `apps.NAME.queue.max`); none when there is no such option.
pub fn explain_key(key: &str) -> Option<String> {
    let key = key.trim_matches(['[', ']', ' ']);
    let sections = || [""].into_iter().chain(SECTIONS.iter().map(|doc| doc.name));
    let named = sections()
        .flat_map(|section| options::options_in(section).map(move |option| (section, option)))
        .filter(|(section, option)| matches_option_name(&option.name_in(section), key))
        .map(|(section, option)| explain_option(option, &option.name_in(section)));
    let section = SECTIONS
        .iter()
        .filter(|section| matches_option_name(section.name, key));
    let mut answers: Vec<String> = named
        .chain(section.map(|section| explain_section(section)))
        .collect();
    if answers.is_empty() {
        answers = options::all_options()
            .filter(|o| o.key == key)
            .map(|option| explain_option(option, &option.name()))
            .collect();
    }
    (!answers.is_empty()).then(|| answers.join("\n"))
}

/// Which keys a table shares with another.
pub(crate) fn describe_shared_keys(like: &SharedKeys) -> String {
    let other = SECTIONS.iter().find(|doc| doc.name == like.section);
    let other = other.map(|doc| doc.heading).unwrap_or_default();
    let but = like
        .except
        .iter()
        .map(|(key, reason)| format!("`{key}` ({reason})"));
    let but = but.collect::<Vec<_>>().join(", ");
    let but = if but.is_empty() {
        but
    } else {
        format!(", without {but}")
    };
    format!("It has the keys of `{other}`{but}.")
}

/// Whether `written` is the name, with anything where the name says NAME.
fn matches_option_name(name: &str, written: &str) -> bool {
    name.split('.').count() == written.split('.').count()
        && name
            .split('.')
            .zip(written.split('.'))
            .all(|(n, w)| n == w || n == "NAME" && !w.is_empty())
}

fn explain_option(option: &OptionRow, name: &str) -> String {
    let (kind, default) = (
        describe_type(option),
        describe_default(option).replace('`', ""),
    );
    let mut text = format!(
        "{name}\n  {}\n  type: {kind}\n  default: {default}\n",
        option.full_description()
    );
    let example = option.example();
    if !example.is_empty() {
        let _ = writeln!(text, "  example: {} = {example}", option.key);
    }
    let _ = writeln!(text, "  since: {}", options::SINCE_VERSION);
    text
}

fn explain_section(section: &SectionDoc) -> String {
    let keys: Vec<_> = options::options_in(section.name).map(|o| o.key).collect();
    format!(
        "{}\n  {}\n  keys: {}\n",
        section.heading,
        section.description,
        keys.join(", ")
    )
}

/// The type with its unit and range.
pub(crate) fn describe_type(option: &OptionRow) -> String {
    let expected = option.kind.expected();
    match option.kind.without_table() {
        OptionKind::Size(min) if min > 0 => {
            format!("{expected}; at least {}", units::format_size(min))
        }
        OptionKind::Time(min) if min > 1 => {
            format!("{expected}; at least {}", units::format_duration(min))
        }
        OptionKind::Time(1) => format!("{expected}; not zero"),
        _ => expected,
    }
}

pub(crate) fn describe_default(option: &OptionRow) -> String {
    match option.default {
        OptionDefault::Of(_) | OptionDefault::Toml(_) => {
            format!("`{}`", option.default_toml().unwrap_or_default())
        }
        OptionDefault::Described(words) => words.to_owned(),
        OptionDefault::Required => "required".to_owned(),
    }
}

/// A bar would end the cell.
fn escape_table_cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explains_by_key_by_whole_name_and_by_section() {
        let rows = [
            ("limits.header_timeout", "408"),
            ("header_timeout", "408"),
            ("apps.NAME.queue.max", "503 at once"),
            ("apps.guestbook.queue.max", "503 at once"),
            ("[limits]", "connections"),
            ("apps.guestbook", "response_timeout"),
            ("redis", "several servers share"),
            ("hub.history.max_messages", "0 keeps none"),
            ("sites.routes.hub", "`{path.1}` for its first segment"),
            ("sites.routes.mercure.subscriber_key.algorithm", "RFC 7518"),
            ("[hub]", "max_streams"),
            ("caches.disk1.max_size", "Bytes it may hold"),
            ("sites.routes.cache.key", "every default"),
            ("min_uses", "1 is the first"),
            ("upstreams.legacy.retry.budget", "stormed"),
            ("apps.x.upstream.health", "Probes of each server"),
            ("apps.NAME.upstream", "connect_timeout"),
            ("secret", "Only for the protocol \"ajp\"."),
            (
                "sites.routes.response_headers.set",
                "sites.routes.response_headers.set",
            ),
        ];
        for (key, expected) in rows {
            let text = explain_key(key).unwrap();
            assert!(text.contains(expected), "{key}: {text}");
        }
        assert_eq!(explain_key("apps.x.upstream.servers"), None);
        assert_eq!(explain_key("nothing_such"), None);
        assert_eq!(explain_key(""), None);
    }

    #[test]
    fn explains_a_key_of_several_sections_in_each() {
        let text = explain_key("threads").unwrap();
        for name in [
            "server.threads",
            "blocking.NAME.threads",
            "apps.NAME.threads",
        ] {
            assert!(text.contains(name), "{name}: {text}");
        }
    }
}
