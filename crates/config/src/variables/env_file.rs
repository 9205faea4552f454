//! Files of variables, as dotenv reads them: `NAME=value` a line.
//!
//! Read for `env_file` in `[server]` and in `[apps.NAME]`.
//!
//! # Invariants
//! - Each line is a variable, a comment or empty; anything else is an error with its place.
//! - No message shows a value.

use std::collections::BTreeMap;

use super::{VariableError, Variables, is_variable_name};

/// The variables of a file's text. Values in double quotes and without quotes may name variables
/// above them and those of `outer`.
///
/// # Errors
/// Everything that is wrong, each with its byte in the text.
pub(crate) fn parse_env_file(
    text: &str,
    outer: &Variables,
) -> Result<BTreeMap<String, String>, Vec<VariableError>> {
    let mut reader = Reader {
        text,
        offset: text.len() - text.trim_start_matches('\u{feff}').len(),
        variables: Variables::from_environment(outer.environment),
    };
    reader
        .variables
        .add_file(outer.from_file.clone(), outer.file_overrides);
    let (mut found, mut errors) = (BTreeMap::new(), Vec::new());
    while reader.offset < text.len() {
        match reader.read_line() {
            Ok(Some((name, value))) => {
                reader
                    .variables
                    .from_file
                    .insert(name.clone(), value.clone());
                found.insert(name, value);
            }
            Ok(None) => {}
            Err(error) => {
                errors.push(error);
                reader.skip_line();
            }
        }
    }
    match errors.is_empty() {
        true => Ok(found),
        false => Err(errors),
    }
}

struct Reader<'t> {
    text: &'t str,
    offset: usize,
    variables: Variables,
}

impl<'t> Reader<'t> {
    /// A variable; none in a line that is empty or a comment.
    fn read_line(&mut self) -> Result<Option<(String, String)>, VariableError> {
        self.skip_blanks();
        let line = self.line();
        if line.is_empty() || line.starts_with('#') {
            self.skip_line();
            return Ok(None);
        }
        let named = line.split_once('=').map(|(name, _)| name);
        let exported = named.and_then(|name| name.strip_prefix("export "));
        let name = exported.or(named).map(str::trim);
        let name = name.filter(|name| is_variable_name(name));
        let (Some(name), Some(named)) = (name, named) else {
            return Err(self.error(LINE_EXPECTED));
        };
        self.offset += named.len() + "=".len();
        self.skip_blanks();
        let value = match self.rest().chars().next() {
            Some(quote @ ('"' | '\'' | '`')) => self.read_quoted(quote)?,
            _ => self.read_plain()?,
        };
        Ok(Some((name.to_owned(), value)))
    }

    /// A value without quotes: up to a comment or the end of the line.
    fn read_plain(&mut self) -> Result<String, VariableError> {
        let line = self.line();
        let is_comment = |at: &usize| *at == 0 || line[..*at].ends_with([' ', '\t']);
        let end = line.match_indices('#').map(|(at, _)| at).find(is_comment);
        let value = line[..end.unwrap_or(line.len())].trim_end();
        let value = self.expand(value, self.offset)?;
        self.skip_line();
        Ok(value)
    }

    /// A value in quotes, which may have several lines.
    fn read_quoted(&mut self, quote: char) -> Result<String, VariableError> {
        let start = self.offset + quote.len_utf8();
        let is_double = quote == '"';
        let mut end = None;
        let mut is_escaped = false;
        for (at, c) in self.text[start..].char_indices() {
            match c {
                _ if is_escaped => is_escaped = false,
                '\\' if is_double => is_escaped = true,
                _ if c == quote => {
                    end = Some(start + at);
                    break;
                }
                _ => {}
            }
        }
        let end = end.ok_or_else(|| self.error(&format!("the quote {quote} has no end")))?;
        let inner = &self.text[start..end];
        let value = match is_double {
            // `\${` is no variable; both forms have three bytes.
            true => unescape(&self.expand(&inner.replace("\\${", "$${"), start)?),
            false => inner.to_owned(),
        };
        self.offset = end + quote.len_utf8();
        self.skip_blanks();
        let line = self.line();
        if !line.is_empty() && !line.starts_with('#') {
            return Err(self.error("expected the end of the line or a comment behind the quote"));
        }
        self.skip_line();
        Ok(value)
    }

    fn expand(&self, value: &str, offset: usize) -> Result<String, VariableError> {
        let expanded = self.variables.expand(value).map_err(|error| VariableError {
            offset: offset + error.offset,
            ..error
        });
        Ok(expanded?.into_owned())
    }

    fn rest(&self) -> &'t str {
        &self.text[self.offset..]
    }

    /// The line from here on, without its end.
    fn line(&self) -> &'t str {
        let line = self.rest().split('\n').next().unwrap_or_default();
        line.strip_suffix('\r').unwrap_or(line)
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.offset += rest.len() - rest.trim_start_matches([' ', '\t']).len();
    }

    fn skip_line(&mut self) {
        let rest = self.rest();
        self.offset += rest.find('\n').map_or(rest.len(), |end| end + 1);
    }

    fn error(&self, problem: &str) -> VariableError {
        VariableError {
            offset: self.offset,
            problem: problem.to_owned(),
        }
    }
}

/// The text with its escapes replaced; an unknown one stays as it is.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => plain.push('\n'),
            Some('r') => plain.push('\r'),
            Some('t') => plain.push('\t'),
            Some(c @ ('"' | '\\' | '$' | '\'' | '`')) => plain.push(c),
            Some(c) => plain.extend(['\\', c]),
            None => plain.push('\\'),
        }
    }
    plain
}

const LINE_EXPECTED: &str = "expected `NAME=value`, with a name of letters, digits and `_`, or a \
     comment behind `#`";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<BTreeMap<String, String>, Vec<VariableError>> {
        let outer = Variables::from_environment(|name| (name == "OUTER").then(|| "out".into()));
        parse_env_file(text, &outer)
    }

    #[test]
    fn reads_lines_as_dotenv_does() {
        let rows = [
            ("", None),
            ("# a comment\n\n  # another\n", None),
            ("A=b", Some("b")),
            ("\u{feff}A=b\r\n", Some("b")),
            ("  export A = b c  # comment\n", Some("b c")),
            ("A=", Some("")),
            ("A=#x", Some("")),
            ("A=a#b", Some("a#b")),
            ("A=a=b", Some("a=b")),
            ("A='b # $c ${OUTER}\\n'", Some("b # $c ${OUTER}\\n")),
            (
                "A=\"b\\n\\\"c\\\" \\$ \\x\" # comment",
                Some("b\n\"c\" $ \\x"),
            ),
            (
                "A=\"-----BEGIN\nkey\n-----END\"\n",
                Some("-----BEGIN\nkey\n-----END"),
            ),
            ("A=`it's \"b\"`", Some("it's \"b\"")),
            ("A=1\nA=2", Some("2")),
            ("B=b\nA=${B}-${OUTER}-${C:-c}", Some("b-out-c")),
            (
                "A=\"$${OUTER} \\${OUTER} ${OUTER}\"",
                Some("${OUTER} ${OUTER} out"),
            ),
        ];
        for (text, expected) in rows {
            let found = parse(text).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
            assert_eq!(found.get("A").map(String::as_str), expected, "{text}");
        }
    }

    #[test]
    fn reports_every_line_that_is_none() {
        let rows: [(&str, &[(usize, &str)]); 6] = [
            ("A", &[(0, LINE_EXPECTED)]),
            (
                "A=1\n  B-C=2\n=3",
                &[(6, LINE_EXPECTED), (12, LINE_EXPECTED)],
            ),
            ("A=\"b", &[(2, "the quote \" has no end")]),
            (
                "A='b' c",
                &[(
                    6,
                    "expected the end of the line or a comment behind the quote",
                )],
            ),
            ("A=x${NONE}", &[(3, "the variable `NONE` is not set")]),
            ("A=\"\\", &[(2, "the quote \" has no end")]),
        ];
        for (text, expected) in rows {
            let errors = parse(text).unwrap_err();
            assert_eq!(errors.len(), expected.len(), "{text}: {errors:?}");
            for (error, (offset, problem)) in errors.iter().zip(expected) {
                assert_eq!(error.offset, *offset, "{text}");
                assert!(
                    error.problem.starts_with(problem),
                    "{text}: {}",
                    error.problem
                );
            }
        }
    }
}
