//! The manual page of the file, penstock.toml(5), made from the option table.
//!
//! Called by the binary's `man`.
//!
//! # Invariants
//! - It has every table and every option, like the reference page.

use std::fmt::Write as _;

use roff::{Inline, Roff, bold, italic, roman};

use crate::describe::{describe_default, describe_shared_keys, describe_type};
use crate::options::{self, OptionRow, SECTIONS, SectionDoc};

/// The manual page penstock.toml(5), for `man`; `version` stands in its last line.
pub fn man_page(version: &str) -> String {
    let mut page = Roff::new();
    let source = format!("penstock {version}");
    page.control("TH", ["penstock.toml", "5", NO_DATE, &source]);
    page.control("SH", ["NAME"]);
    page.text([roman("penstock.toml - configuration file of penstock(1)")]);
    page.control("SH", ["DESCRIPTION"]);
    for (number, paragraph) in INTRODUCTION.iter().enumerate() {
        if number > 0 {
            page.control("PP", []);
        }
        page.text(inlines(paragraph));
    }
    page.control("SH", ["TABLES"]);
    for section in SECTIONS {
        write_section(&mut page, section);
    }
    page.control("SH", ["FILES"]);
    page.control("TP", []);
    page.text([italic("/etc/penstock/penstock.toml")]);
    page.text([roman("The file of the service that packages install.")]);
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("penstock"), roman("(1)")]);
    page.render()
}

/// An empty argument would let the next one take its place.
const NO_DATE: &str = " ";

const INTRODUCTION: [&str; 3] = [
    "Penstock reads one TOML file, `penstock.toml` in the folder where it starts or the one named \
     by `-c`. `penstock check` reads it as a start would and reports everything that is wrong at \
     once, with line and column. Unknown keys are errors.",
    "Relative paths start from the folder of the file. `${NAME}` in a text is a variable, and \
     `include` in `[server]` names more files. Sizes are written `8KiB`, `10MB` or as a number of \
     bytes, durations `500ms`, `10s`, `5m`, `1h` or `1d`, rates `500B/s`.",
    "`penstock config explain KEY` prints one of the entries below, and `penstock config example` \
     a whole file.",
];

fn write_section(page: &mut Roff, section: &SectionDoc) {
    page.control("SS", [section.heading]);
    page.text(inlines(section.description));
    if let Some(like) = section.shared_keys {
        page.control("PP", []);
        page.text(inlines(&describe_shared_keys(&like)));
        return;
    }
    for option in options::options_in(section.name) {
        write_option(page, option);
    }
}

fn write_option(page: &mut Roff, option: &OptionRow) {
    page.control("TP", []);
    page.text([bold(option.key)]);
    let mut text = option.full_description();
    let _ = write!(
        text,
        " Type: {}. Default: {}.",
        describe_type(option).trim_end_matches('.'),
        describe_default(option)
    );
    page.text(inlines(&text));
}

/// Splits text at its backticks: code is bold.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    let styled = parts.filter(|(_, part)| !part.is_empty());
    let styled = styled.map(|(number, part)| {
        if number % 2 == 1 {
            bold(part)
        } else {
            roman(part)
        }
    });
    styled.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_every_table_and_every_option() {
        let page = man_page("1.2.3");
        assert!(
            page.contains("\n.TH penstock.toml 5 \" \" \"penstock 1.2.3\""),
            "{page:.300}"
        );
        for section in SECTIONS {
            let heading = section.heading.split(' ').next().unwrap();
            assert!(page.contains(heading), "{heading}");
        }
        let keys = page.matches("\n.TP\n").count() - 1;
        let own = SECTIONS
            .iter()
            .filter(|section| section.shared_keys.is_none());
        let expected: usize = own
            .map(|section| options::options_in(section.name).count())
            .sum();
        assert_eq!(keys, expected);
    }

    #[test]
    fn makes_code_bold_and_nothing_a_request() {
        let mut page = Roff::new();
        page.text(inlines(".env and `a\\b`"));
        let text = page.render();
        let line = text.lines().last().unwrap();
        assert_eq!(line, "\\&.env and \\fBa\\\\b\\fR");
    }
}
