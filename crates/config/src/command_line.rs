//! A command line to words, and the places in them that say where a process listens.
//!
//! Used by `app` for `command`. The words are given to the program as they are: no shell runs, so
//! nothing is expanded.
//!
//! # Invariants
//! - A quote that is not closed is no command, and a word that was quoted is a word even when it
//!   is empty.

/// What stands for the place where a process listens.
pub(crate) const PLACEHOLDERS: [&str; 3] = ["{port}", "{socket}", "{fd}"];

/// Splits at blanks; `'...'` is taken as it is, in `"..."` a backslash goes before `"` and `\`,
/// outside of both before anything. None when a quote or backslash is left open.
pub fn split_command(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            c if c.is_ascii_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                copy_quoted(&mut rest, word)?;
            }
            '"' => {
                let word = word.get_or_insert_default();
                copy_double_quoted(&mut rest, word)?;
            }
            '\\' => word.get_or_insert_default().push(rest.next()?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Those of the placeholders that occur.
pub(crate) fn placeholders(words: &[String]) -> Vec<&'static str> {
    let occurs = |place: &&str| words.iter().any(|word| word.contains(place));
    PLACEHOLDERS.into_iter().filter(occurs).collect()
}

fn copy_quoted(rest: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    loop {
        match rest.next()? {
            '\'' => return Some(()),
            c => word.push(c),
        }
    }
}

fn copy_double_quoted(rest: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    loop {
        match rest.next()? {
            '"' => return Some(()),
            '\\' => match rest.next()? {
                c @ ('"' | '\\') => word.push(c),
                c => word.extend(['\\', c]),
            },
            c => word.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_like_a_shell_without_expanding() {
        let rows: &[(&str, Option<&[&str]>)] = &[
            (
                "thin -p {port} start",
                Some(&["thin", "-p", "{port}", "start"]),
            ),
            ("  a \t b\n", Some(&["a", "b"])),
            ("", Some(&[])),
            ("a 'b c' d", Some(&["a", "b c", "d"])),
            ("a \"b c\" d", Some(&["a", "b c", "d"])),
            ("a'b'\"c\"d", Some(&["abcd"])),
            ("a '' \"\"", Some(&["a", "", ""])),
            (
                r#"a\ b "c\"d\\e\f" 'g\h'"#,
                Some(&["a b", r#"c"d\e\f"#, r"g\h"]),
            ),
            ("$HOME *.rb ~ # x", Some(&["$HOME", "*.rb", "~", "#", "x"])),
            ("a 'b", None),
            ("a \"b", None),
            ("a \"b\\", None),
            ("a\\", None),
        ];
        for (text, expected) in rows {
            let words = split_command(text);
            let expected = expected.map(|words| words.iter().map(ToString::to_string).collect());
            assert_eq!(words, expected, "{text:?}");
        }
    }

    #[test]
    fn finds_the_placeholders() {
        let rows: &[(&[&str], &[&str])] = &[
            (&["a"], &[]),
            (&["a", "--bind=127.0.0.1:{port}"], &["{port}"]),
            (&["{fd}", "{fd}"], &["{fd}"]),
            (&["{socket}", "{port}"], &["{port}", "{socket}"]),
        ];
        for (words, expected) in rows {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            assert_eq!(placeholders(&words), *expected, "{words:?}");
        }
    }
}
