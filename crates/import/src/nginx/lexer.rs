//! The words of an nginx file.
//!
//! # Invariants
//! - Quotes, escapes and comments are those of `ngx_conf_read_token`: a quote counts at the
//!   beginning of a word, and a backslash before anything but a quote, a backslash, `t`, `r` or `n`
//!   stays, since it belongs to a regular expression.

use crate::ImportError;

/// A word or a sign, with its place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NginxToken {
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) sign: NginxSign,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum NginxSign {
    Word(String),
    Semicolon,
    Open,
    Close,
}

/// Reads a text from its beginning to its end.
#[derive(Debug)]
pub(super) struct NginxLexer<'t> {
    file: &'t str,
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    line: usize,
    column: usize,
}

impl<'t> NginxLexer<'t> {
    pub(super) fn new(file: &'t str, text: &'t str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self {
            file,
            rest: text.chars().peekable(),
            line: 1,
            column: 1,
        }
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> ImportError {
        self.error_at(self.line, self.column, problem)
    }

    pub(super) fn error_at(
        &self,
        line: usize,
        column: usize,
        problem: impl Into<String>,
    ) -> ImportError {
        ImportError::Syntax {
            file: self.file.to_owned(),
            line,
            column,
            problem: problem.into(),
        }
    }

    fn advance(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
        Some(c)
    }

    fn skip_blanks(&mut self) {
        while let Some(c) = self.rest.peek() {
            if c.is_whitespace() {
                self.advance();
            } else if *c == '#' {
                while self.rest.peek().is_some_and(|c| *c != '\n') {
                    self.advance();
                }
            } else {
                return;
            }
        }
    }

    /// The next token; `None` at the end of the text.
    pub(super) fn next_token(&mut self) -> Result<Option<NginxToken>, ImportError> {
        self.skip_blanks();
        let (line, column) = (self.line, self.column);
        let Some(first) = self.rest.peek().copied() else {
            return Ok(None);
        };
        let sign = match first {
            ';' => NginxSign::Semicolon,
            '{' => NginxSign::Open,
            '}' => NginxSign::Close,
            '"' | '\'' => {
                self.advance();
                NginxSign::Word(self.quoted(first, line, column)?)
            }
            _ => NginxSign::Word(self.word()),
        };
        if !matches!(sign, NginxSign::Word(_)) {
            self.advance();
        }
        Ok(Some(NginxToken { line, column, sign }))
    }

    fn quoted(&mut self, quote: char, line: usize, column: usize) -> Result<String, ImportError> {
        let mut word = String::new();
        while let Some(c) = self.advance() {
            match c {
                c if c == quote => return Ok(word),
                '\\' => self.push_escaped(&mut word),
                c => word.push(c),
            }
        }
        Err(self.error_at(line, column, "a quote that is not closed"))
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(c) = self.rest.peek().copied() {
            let ends = match c {
                ';' => true,
                // `${name}` is a variable, not the beginning of a block.
                '{' => !word.ends_with('$'),
                c => c.is_whitespace(),
            };
            if ends {
                break;
            }
            self.advance();
            match c {
                '\\' => self.push_escaped(&mut word),
                c => word.push(c),
            }
        }
        word
    }

    fn push_escaped(&mut self, word: &mut String) {
        let plain = match self.rest.peek() {
            Some('"') => '"',
            Some('\'') => '\'',
            Some('\\') => '\\',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('n') => '\n',
            other => {
                let is_blank = other.is_none_or(|c| c.is_whitespace());
                word.push('\\');
                // A blank after a backslash belongs to the word.
                if is_blank && let Some(c) = self.advance() {
                    word.push(c);
                } else if let Some(c) = self.advance() {
                    word.push(c);
                }
                return;
            }
        };
        self.advance();
        word.push(plain);
    }

    /// The text of a block of Lua, up to the brace that closes it, which is consumed.
    pub(super) fn lua_block(&mut self) -> Result<String, ImportError> {
        let (line, column) = (self.line, self.column);
        let mut depth = 0_usize;
        let mut text = String::new();
        while let Some(c) = self.advance() {
            match c {
                '}' if depth == 0 => return Ok(text),
                '}' => depth -= 1,
                '{' => depth += 1,
                '"' | '\'' => {
                    text.push(c);
                    self.lua_string(c, &mut text);
                    continue;
                }
                '-' if self.rest.peek() == Some(&'-') => {
                    while self.rest.peek().is_some_and(|c| *c != '\n') {
                        self.advance();
                    }
                    continue;
                }
                _ => {}
            }
            text.push(c);
        }
        Err(self.error_at(line, column, "a block of Lua that is not closed"))
    }

    fn lua_string(&mut self, quote: char, text: &mut String) {
        while let Some(c) = self.advance() {
            text.push(c);
            match c {
                '\\' => text.extend(self.advance()),
                '\n' => return,
                c if c == quote => return,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut lexer = NginxLexer::new("t", text);
        let mut words = Vec::new();
        while let Some(token) = lexer.next_token().unwrap() {
            words.push(match token.sign {
                NginxSign::Word(word) => word,
                NginxSign::Semicolon => ";".to_owned(),
                NginxSign::Open => "{".to_owned(),
                NginxSign::Close => "}".to_owned(),
            });
        }
        words
    }

    #[test]
    fn reads_words_as_nginx_does() {
        let rows: [(&str, &[&str]); 8] = [
            ("a b;", &["a", "b", ";"]),
            ("a 'b; {c}' \"d\\\"e\";", &["a", "b; {c}", "d\"e", ";"]),
            ("a # b\nc;", &["a", "c", ";"]),
            ("a b#c;", &["a", "b#c", ";"]),
            (
                r"location ~ \.php$ {}",
                &["location", "~", r"\.php$", "{", "}"],
            ),
            ("a ${b}c;", &["a", "${b}c", ";"]),
            (r"a '\n\d\\';", &["a", "\n\\d\\", ";"]),
            ("a it's;", &["a", "it's", ";"]),
        ];
        for (text, expected) in rows {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn reports_the_place_of_an_open_quote() {
        let mut lexer = NginxLexer::new("n.conf", "a\n  'b");
        lexer.next_token().unwrap();
        let error = lexer.next_token().unwrap_err().to_string();
        assert_eq!(error, "n.conf:2:3: a quote that is not closed");
    }
}
