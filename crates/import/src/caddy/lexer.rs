//! The words of a Caddyfile, line by line.
//!
//! # Invariants
//! - A quoted word and a heredoc may have several lines. A backslash at the end of a line joins it
//!   to the next one.

use crate::ImportError;

/// A word with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CaddyToken {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) text: String,
    /// Whether it stood in quotes: a brace in quotes opens no block.
    pub(super) is_quoted: bool,
}

/// The words of each logical line that has some.
pub(super) fn read_lines(file: &str, text: &str) -> Result<Vec<Vec<CaddyToken>>, ImportError> {
    let mut lexer = CaddyLexer {
        file,
        chars: text
            .strip_prefix('\u{feff}')
            .unwrap_or(text)
            .chars()
            .peekable(),
        line: 1,
        column: 1,
    };
    let mut lines = Vec::new();
    let mut words: Vec<CaddyToken> = Vec::new();
    while let Some(c) = lexer.chars.peek().copied() {
        match c {
            '\n' => {
                lexer.advance();
                if !words.is_empty() {
                    lines.push(std::mem::take(&mut words));
                }
            }
            c if c.is_whitespace() => lexer.advance(),
            '#' => lexer.skip_line(),
            '\\' if lexer.is_continued() => {}
            _ => words.push(lexer.token()?),
        }
    }
    if !words.is_empty() {
        lines.push(words);
    }
    Ok(lines)
}

struct CaddyLexer<'t> {
    file: &'t str,
    chars: std::iter::Peekable<std::str::Chars<'t>>,
    line: usize,
    column: usize,
}

impl CaddyLexer<'_> {
    fn advance(&mut self) {
        if self.chars.next() == Some('\n') {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
    }

    fn skip_line(&mut self) {
        while self.chars.peek().is_some_and(|c| *c != '\n') {
            self.advance();
        }
    }

    /// Skips a backslash that ends its line.
    fn is_continued(&mut self) -> bool {
        let mut ahead = self.chars.clone();
        ahead.next();
        if ahead.peek() == Some(&'\r') {
            ahead.next();
        }
        if ahead.next() != Some('\n') {
            return false;
        }
        while self.chars.peek().is_some_and(|c| *c != '\n') {
            self.advance();
        }
        self.advance();
        true
    }

    fn error(&self, line: usize, column: usize, problem: &str) -> ImportError {
        ImportError::Syntax {
            file: self.file.to_owned(),
            line,
            column,
            problem: problem.to_owned(),
        }
    }

    fn token(&mut self) -> Result<CaddyToken, ImportError> {
        let (line, column) = (self.line, self.column);
        let first = self.chars.peek().copied().unwrap_or(' ');
        let is_quoted = first == '"' || first == '`';
        let text = match is_quoted {
            true => self.quoted(first, line, column)?,
            false => self.word(line, column)?,
        };
        Ok(CaddyToken {
            line,
            column,
            text,
            is_quoted,
        })
    }

    fn quoted(&mut self, quote: char, line: usize, column: usize) -> Result<String, ImportError> {
        self.advance();
        let mut text = String::new();
        while let Some(c) = self.chars.peek().copied() {
            self.advance();
            if c == quote {
                return Ok(text);
            }
            let escaped = self.chars.peek().copied();
            if c == '\\' && quote == '"' && escaped == Some('"') {
                self.advance();
                text.push('"');
            } else {
                text.push(c);
            }
        }
        Err(self.error(line, column, "a quote that is not closed"))
    }

    fn word(&mut self, line: usize, column: usize) -> Result<String, ImportError> {
        let mut text = String::new();
        while let Some(c) = self.chars.peek().copied() {
            if c.is_whitespace() {
                break;
            }
            self.advance();
            text.push(c);
        }
        let opening = text.clone();
        let marker = opening.strip_prefix("<<").filter(|marker| {
            !marker.is_empty()
                && marker
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        });
        match marker {
            Some(marker) => self.heredoc(marker, line, column),
            None => Ok(text),
        }
    }

    /// The lines up to one that has the marker.
    fn heredoc(&mut self, marker: &str, line: usize, column: usize) -> Result<String, ImportError> {
        self.skip_line();
        self.advance();
        let mut lines: Vec<String> = Vec::new();
        let mut current = String::new();
        loop {
            match self.chars.peek().copied() {
                None => return Err(self.error(line, column, "a heredoc without its end")),
                Some('\n') => {
                    self.advance();
                    lines.push(std::mem::take(&mut current));
                }
                Some(c) => {
                    self.advance();
                    current.push(c);
                    let ends = current.trim_start() == marker
                        && self.chars.peek().is_none_or(|c| c.is_whitespace());
                    if ends {
                        let indent = current.len() - current.trim_start().len();
                        let cut = |line: &String| {
                            line.get(indent..)
                                .unwrap_or_else(|| line.trim_start())
                                .to_owned()
                        };
                        return Ok(lines.iter().map(cut).collect::<Vec<_>>().join("\n"));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_words_line_by_line() {
        let text = "a.com {\n\troot * /srv # no\n\trespond \"x \\\"y\\\"\nz\" `{q}`\n\tb \\\n c\n\td <<END\n\t  one\n\t two\n\t END\n}\n";
        let lines = read_lines("Caddyfile", text).unwrap();
        let words: Vec<Vec<&str>> = lines
            .iter()
            .map(|line| line.iter().map(|it| it.text.as_str()).collect())
            .collect();
        let expected: [&[&str]; 6] = [
            &["a.com", "{"],
            &["root", "*", "/srv"],
            &["respond", "x \"y\"\nz", "{q}"],
            &["b", "c"],
            &["d", " one\ntwo"],
            &["}"],
        ];
        assert_eq!(words, expected);
        assert!(lines[2][2].is_quoted);
    }

    #[test]
    fn reports_what_is_not_closed() {
        let error = read_lines("Caddyfile", "a\n b \"c")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "Caddyfile:2:4: a quote that is not closed");
        assert!(read_lines("C", "a <<END\nx").is_err());
    }
}
