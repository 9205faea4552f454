//! The directives of a Caddyfile: blocks, snippets, imports.
//!
//! # Invariants
//! - A snippet's directives are logged once. Each `import` gets copies with its arguments.
//! - Imports within imports end at [`limits::MAX_DEPTH`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::lexer::{CaddyToken, read_lines};
use super::words::table_word;
use crate::directives::{DirectiveId, DirectiveLog};
use crate::include::{self, IncludeReader};
use crate::report::Coverage;
use crate::{ImportError, limits};

/// A directive with its arguments and its block.
#[derive(Debug, Clone)]
pub(super) struct CaddyDirective {
    pub(super) id: DirectiveId,
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) block: Option<Vec<Self>>,
}

impl CaddyDirective {
    /// An argument, empty where there is none.
    pub(super) fn arg(&self, index: usize) -> &str {
        self.args.get(index).map_or("", String::as_str)
    }

    /// The directives of its block.
    pub(super) fn children(&self) -> &[Self] {
        self.block.as_deref().unwrap_or_default()
    }

    /// The directive of its block with this name.
    pub(super) fn child(&self, name: &str) -> Option<&Self> {
        self.children().iter().find(|it| it.name == name)
    }
}

/// A whole file.
#[derive(Debug, Default)]
pub(super) struct CaddyFile {
    /// The block of global options.
    pub(super) global: Vec<CaddyDirective>,
    /// Sites: the name is the first address, the arguments are the others.
    pub(super) sites: Vec<CaddyDirective>,
    snippets: BTreeMap<String, CaddyDirective>,
}

/// Reads files into a log.
pub(super) struct CaddyParser<'r> {
    pub(super) reader: &'r dyn IncludeReader,
    pub(super) log: &'r mut DirectiveLog,
    pub(super) snippets: BTreeMap<String, CaddyDirective>,
    open: Vec<PathBuf>,
    pub(super) files: usize,
    /// Directives that imports have copied.
    pub(super) copies: usize,
}

impl<'r> CaddyParser<'r> {
    pub(super) fn new(reader: &'r dyn IncludeReader, log: &'r mut DirectiveLog) -> Self {
        Self {
            reader,
            log,
            snippets: BTreeMap::new(),
            open: Vec::new(),
            files: 0,
            copies: 0,
        }
    }

    /// The directives of the main file.
    pub(super) fn parse(&mut self, file: &Path, text: &str) -> Result<CaddyFile, ImportError> {
        self.open.push(file.to_owned());
        let mut parsed = self.parse_top(file, text, 0)?;
        self.open.pop();
        let snippets = std::mem::take(&mut parsed.snippets);
        for snippet in snippets.values() {
            self.log.note(
                snippet.id,
                Coverage::Translated,
                "its directives stand where it is imported",
            );
        }
        self.snippets.extend(snippets);
        let base = file.parent().map(Path::to_owned).unwrap_or_default();
        for site in parsed.sites.iter_mut() {
            let block = site.block.take().unwrap_or_default();
            site.block = Some(self.expand(block, &base, 0)?);
        }
        let global = std::mem::take(&mut parsed.global);
        parsed.global = self.expand(global, &base, 0)?;
        Ok(parsed)
    }

    fn parse_top(
        &mut self,
        file: &Path,
        text: &str,
        depth: usize,
    ) -> Result<CaddyFile, ImportError> {
        let name = file.display().to_string();
        let mut lines = LineReader {
            file: name.clone(),
            lines: read_lines(&name, text)?,
            at: 0,
        };
        let mut parsed = CaddyFile::default();
        while let Some(mut line) = lines.next_line() {
            // Addresses may go on in the next line, behind a comma.
            while line.last().is_some_and(|word| word.text.ends_with(',')) {
                match lines.next_line() {
                    Some(more) => line.extend(more),
                    None => break,
                }
            }
            let first = line[0].clone();
            if first.text == "import" && !first.is_quoted {
                self.import_top(file, &lines, &line, depth, &mut parsed)?;
                continue;
            }
            let opens = line
                .last()
                .is_some_and(|word| word.text == "{" && !word.is_quoted);
            if first.text == "{" && line.len() == 1 {
                let (children, _) = self.block(&mut lines, &["global".to_owned()], 1)?;
                parsed.global.extend(children);
                continue;
            }
            if first.text == "}" {
                return Err(lines.error(&first, "a brace that closes no block"));
            }
            let is_text = !opens && line.iter().all(|word| is_variable(&word.text));
            let is_first = parsed.sites.is_empty() && parsed.global.is_empty();
            if is_text && !(is_first && lines.is_single_site()) {
                let words: Vec<String> = line.iter().map(|word| word.text.clone()).collect();
                let id = self.add(&lines, &first, "import", &words)?;
                let why = "the variable has a part of the file: write its directives here";
                self.log.note(id, Coverage::ByHand, why);
                continue;
            }
            if !opens {
                // A file with a single site needs no braces.
                let site = self.single_site(&mut lines, &line)?;
                parsed.sites.push(site);
                return Ok(parsed);
            }
            let words: Vec<String> = line[..line.len() - 1]
                .iter()
                .map(|word| word.text.trim_end_matches(',').to_owned())
                .collect();
            let Some((own, others)) = words.split_first() else {
                continue;
            };
            let is_snippet = own.starts_with('(') && own.ends_with(')');
            let word = if is_snippet || own.starts_with("&(") {
                "snippet"
            } else {
                "site address"
            };
            let id = self.add(&lines, &first, word, &words)?;
            let (children, _) = self.block(&mut lines, &[], 1)?;
            let directive = CaddyDirective {
                id,
                name: own.clone(),
                args: others.to_vec(),
                block: Some(children),
            };
            match is_snippet {
                true => {
                    let name = own.trim_matches(['(', ')']).to_owned();
                    parsed.snippets.insert(name, directive);
                }
                false => parsed.sites.push(directive),
            }
        }
        Ok(parsed)
    }

    fn single_site(
        &mut self,
        lines: &mut LineReader,
        line: &[CaddyToken],
    ) -> Result<CaddyDirective, ImportError> {
        let words: Vec<String> = line
            .iter()
            .map(|word| word.text.trim_end_matches(',').to_owned())
            .collect();
        let is_address = words
            .iter()
            .all(|word| word.contains(['.', ':']) || word == "localhost" || is_variable(word));
        if !is_address {
            return Err(lines.error(
                &line[0],
                "a line outside of a site: expected an address and a block",
            ));
        }
        let id = self.add(lines, &line[0], "site address", &words)?;
        let mut children = Vec::new();
        while lines.at < lines.lines.len() {
            let (more, closed) = self.block(lines, &[], 1)?;
            children.extend(more);
            if closed {
                let last = lines.lines[lines.at - 1][0].clone();
                return Err(lines.error(&last, "a brace that closes no block"));
            }
        }
        Ok(CaddyDirective {
            id,
            name: words[0].clone(),
            args: words[1..].to_vec(),
            block: Some(children),
        })
    }

    fn add(
        &mut self,
        lines: &LineReader,
        token: &CaddyToken,
        word: &str,
        words: &[String],
    ) -> Result<DirectiveId, ImportError> {
        if self.log.len() >= limits::MAX_DIRECTIVES {
            let problem = format!("more than {} directives", limits::MAX_DIRECTIVES);
            return Err(lines.error(token, &problem));
        }
        Ok(self
            .log
            .add(&lines.file, token.line, word, &words.join(" ")))
    }

    /// The directives up to the brace that closes the block, and whether there was one.
    pub(super) fn block(
        &mut self,
        lines: &mut LineReader,
        outer: &[String],
        depth: usize,
    ) -> Result<(Vec<CaddyDirective>, bool), ImportError> {
        let mut directives = Vec::new();
        while let Some(mut line) = lines.next_line() {
            let first = line[0].clone();
            if first.text == "}" && !first.is_quoted {
                return Ok((directives, true));
            }
            if depth > limits::MAX_DEPTH {
                let problem = format!("more than {} blocks within blocks", limits::MAX_DEPTH);
                return Err(lines.error(&first, &problem));
            }
            let opens = line.len() > 1
                && line
                    .last()
                    .is_some_and(|word| word.text == "{" && !word.is_quoted);
            let closes = line.len() > 1
                && line
                    .last()
                    .is_some_and(|word| word.text == "}" && !word.is_quoted);
            if opens || closes {
                line.pop();
            }
            let words: Vec<String> = line.iter().map(|word| word.text.clone()).collect();
            let word = table_word(outer, &words);
            let id = self.add(lines, &first, &word, &words)?;
            let block = match opens {
                false => None,
                true => {
                    let mut inner: Vec<String> = outer.to_vec();
                    inner.push(words.iter().take(2).cloned().collect::<Vec<_>>().join(" "));
                    let (children, closed) = self.block(lines, &inner, depth + 1)?;
                    if !closed {
                        let problem = format!("the block of `{}` is not closed", words[0]);
                        return Err(lines.error(&first, &problem));
                    }
                    Some(children)
                }
            };
            directives.push(CaddyDirective {
                id,
                name: words[0].clone(),
                args: words[1..].to_vec(),
                block,
            });
            if closes {
                return Ok((directives, true));
            }
        }
        let is_site = outer.is_empty();
        match is_site && lines.is_whole_file() {
            true => Ok((directives, false)),
            false => Err(lines.end_error("a block that is not closed")),
        }
    }

    fn import_top(
        &mut self,
        file: &Path,
        lines: &LineReader,
        line: &[CaddyToken],
        depth: usize,
        parsed: &mut CaddyFile,
    ) -> Result<(), ImportError> {
        let words: Vec<String> = line.iter().map(|word| word.text.clone()).collect();
        let id = self.add(lines, &line[0], "import", &words)?;
        let base = file.parent().map(Path::to_owned).unwrap_or_default();
        let pattern = words.get(1).cloned().unwrap_or_default();
        let paths = self.paths(&base, &pattern);
        if paths.is_empty() {
            self.note_absent(id, &pattern);
        }
        for path in paths {
            let Some(text) = self.open_file(lines, &line[0], &path, depth)? else {
                self.log.note(
                    id,
                    Coverage::ByHand,
                    "the file includes itself, or cannot be read",
                );
                continue;
            };
            self.open.push(path.clone());
            let inner = self.parse_top(&path, &text, depth + 1);
            self.open.pop();
            let inner = inner?;
            parsed.global.extend(inner.global);
            parsed.sites.extend(inner.sites);
            parsed.snippets.extend(inner.snippets);
            self.log.note(
                id,
                Coverage::BuiltIn,
                "the directives of the file are read in its place",
            );
        }
        Ok(())
    }

    pub(super) fn note_absent(&mut self, id: DirectiveId, pattern: &str) {
        match include::is_pattern(pattern) {
            true => self
                .log
                .note(id, Coverage::NotNeeded, "no file fits the pattern"),
            false => self.log.note(
                id,
                Coverage::ByHand,
                "the file cannot be read: import it together with this one",
            ),
        }
    }

    pub(super) fn paths(&self, base: &Path, pattern: &str) -> Vec<PathBuf> {
        let path = base.join(pattern);
        match include::is_pattern(pattern) {
            true => include::expand(self.reader, &path),
            false if self.reader.read(&path).is_ok() => vec![path],
            false => Vec::new(),
        }
    }

    fn open_file(
        &mut self,
        lines: &LineReader,
        token: &CaddyToken,
        path: &Path,
        depth: usize,
    ) -> Result<Option<String>, ImportError> {
        self.files += 1;
        if self.files > limits::MAX_FILES || depth >= limits::MAX_DEPTH {
            return Err(lines.error(token, "too many files within files"));
        }
        if self.open.iter().any(|open| open == path) {
            return Ok(None);
        }
        let Ok(text) = self.reader.read(path) else {
            return Ok(None);
        };
        limits::check_size(&path.display().to_string(), &text)?;
        Ok(Some(text))
    }
}

/// Whether a word is one variable of the environment: `{$NAME}`.
fn is_variable(word: &str) -> bool {
    let inner = word.strip_prefix("{$").and_then(|it| it.strip_suffix('}'));
    inner.is_some_and(|name| !name.contains(['{', '}']))
}

/// Lines of words, one after the other.
pub(super) struct LineReader {
    pub(super) file: String,
    pub(super) lines: Vec<Vec<CaddyToken>>,
    pub(super) at: usize,
}

impl LineReader {
    fn next_line(&mut self) -> Option<Vec<CaddyToken>> {
        let line = self.lines.get(self.at).cloned();
        self.at += 1;
        line
    }

    /// Whether the next line is a directive, and no other site.
    fn is_single_site(&self) -> bool {
        let next = self.lines.get(self.at);
        let is_address = |word: &CaddyToken| word.text.contains(['.', ':', '$', '(']);
        next.is_some_and(|line| line.len() > 1 && !is_address(&line[0]) && line[0].text != "{")
    }

    /// Whether the first line opens no block: a site without braces, or an imported file.
    fn is_whole_file(&self) -> bool {
        let closes = self.lines.iter().filter(|line| line[0].text == "}").count();
        let opens = self
            .lines
            .iter()
            .filter(|line| line.last().is_some_and(|it| it.text == "{"));
        opens.count() == closes
    }

    fn error(&self, token: &CaddyToken, problem: &str) -> ImportError {
        ImportError::Syntax {
            file: self.file.clone(),
            line: token.line,
            column: token.column,
            problem: problem.to_owned(),
        }
    }

    fn end_error(&self, problem: &str) -> ImportError {
        let last = self.lines.last().and_then(|line| line.last());
        ImportError::Syntax {
            file: self.file.clone(),
            line: last.map_or(1, |token| token.line),
            column: last.map_or(1, |token| token.column),
            problem: problem.to_owned(),
        }
    }
}
