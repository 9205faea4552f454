//! Files in the manner of public ones: each directive is in the report, and the output is loadable.
//!
//! The directives are counted here by simple means of their own, apart from the parsers.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::io;
use std::path::{Path, PathBuf};

use penstock_import::{Coverage, IncludeReader, import};

struct NoFiles;

impl IncludeReader for NoFiles {
    fn read(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn names(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// The first word of each statement of nginx: behind `;`, `{` and `}`.
fn nginx_words(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut quote: Option<char> = None;
    for line in text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
    {
        for c in line.chars() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (Some(_), _) => plain.push('_'),
                (None, '"' | '\'') => quote = Some(c),
                (None, c) => plain.push(c),
            }
        }
        plain.push(' ');
    }
    let statements = plain.split([';', '{', '}']).map(str::trim);
    let words = statements.filter_map(|it| it.split_whitespace().next());
    words.map(str::to_owned).collect()
}

/// The first word of each line.
fn line_words(text: &str, comments: &[char]) -> Vec<String> {
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(comments));
    let words = lines.filter_map(|line| line.split([' ', '=', '\t']).next());
    words.map(str::to_owned).collect()
}

fn expected_words(name: &str, text: &str) -> Vec<String> {
    match name {
        name if name.contains("nginx") => nginx_words(text),
        name if name.ends_with(".cfg") => line_words(text, &['#']),
        name if name.ends_with(".ini") => line_words(text, &['#', ';', '[']),
        name if name.ends_with("Caddyfile") => {
            let words = line_words(text, &['#']);
            words
                .into_iter()
                .filter(|word| word != "}" && word != "{")
                .collect()
        }
        // Lines of blocks belong to the statement that opens them.
        name if name.ends_with(".rb") => {
            let outer: Vec<&str> = text
                .lines()
                .filter(|line| !line.starts_with([' ', '#']))
                .collect();
            line_words(&outer.join("\n"), &['#'])
                .into_iter()
                .filter(|word| word != "end")
                .collect()
        }
        _ => {
            let outer: Vec<&str> = text
                .lines()
                .filter(|line| !line.starts_with([' ', '#']))
                .collect();
            line_words(&outer.join("\n"), &['#'])
        }
    }
}

fn fixtures() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

#[test]
fn each_directive_of_a_file_is_in_its_report() {
    let all = fixtures();
    assert!(all.len() >= 7);
    for (path, text) in all {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let made = import(&path, &text, None, &NoFiles).unwrap_or_else(|error| panic!("{error}"));
        let mut expected = expected_words(&name, &text);
        let word = |text: &str| {
            text.split([' ', '='])
                .next()
                .unwrap_or_default()
                .trim_matches('"')
                .to_owned()
        };
        let mut found: Vec<String> = made
            .report
            .directives
            .iter()
            .map(|it| word(&it.text))
            .collect();
        for words in [&mut expected, &mut found] {
            words
                .iter_mut()
                .for_each(|word| *word = word.trim_matches('"').replace('_', "-"));
            words.sort();
        }
        assert_eq!(
            found.len(),
            expected.len(),
            "{name}:\n{found:?}\n{expected:?}"
        );
        for directive in &made.report.directives {
            assert!(!directive.detail.is_empty(), "{name}: {directive:?}");
        }
    }
}

#[test]
fn the_output_of_a_file_is_loadable() {
    let excused = [
        "does not exist",
        "No such file",
        "no application was recognised",
        "was not found",
        "is not set",
        "needs `error_pages`",
    ];
    for (path, text) in fixtures() {
        let made = import(&path, &text, None, &NoFiles).unwrap_or_else(|error| panic!("{error}"));
        let errors =
            penstock_config::parse(&made.toml, Path::new("/nonexistent/penstock.toml")).err();
        let errors = errors.map(|it| it.to_string()).unwrap_or_default();
        let wrong: Vec<&str> = errors
            .lines()
            .filter(|line| !excused.iter().any(|it| line.contains(it)))
            .collect();
        assert!(
            wrong.is_empty(),
            "{}: {wrong:?}\n{}",
            path.display(),
            made.toml
        );
        let translated =
            made.report.count(Coverage::Translated) + made.report.count(Coverage::BuiltIn);
        assert!(
            translated * 2 > made.report.directives.len(),
            "{}",
            made.report.to_text()
        );
    }
}
