//! The directives of an nginx file and of the files that it includes.
//!
//! # Invariants
//! - Directives of included files stand in place of `include`.
//! - A file that includes itself is an error of the directive, not a loop.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::lexer::{NginxLexer, NginxSign, NginxToken};
use crate::directives::{DirectiveId, DirectiveLog};
use crate::include::{self, IncludeReader};
use crate::report::Coverage;
use crate::{ImportError, limits};

/// A directive with its arguments and its block.
#[derive(Debug)]
pub(super) struct NginxDirective {
    pub(super) id: DirectiveId,
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) block: Option<Vec<Self>>,
}

impl NginxDirective {
    /// An argument, empty where there is none.
    pub(super) fn arg(&self, index: usize) -> &str {
        self.args.get(index).map_or("", String::as_str)
    }

    /// The directives of its block.
    pub(super) fn children(&self) -> &[Self] {
        self.block.as_deref().unwrap_or_default()
    }
}

/// Reads directives into a log.
pub(super) struct NginxParser<'r> {
    reader: &'r dyn IncludeReader,
    log: &'r mut DirectiveLog,
    main_dir: PathBuf,
    open_files: Vec<PathBuf>,
    total_bytes: usize,
    files: usize,
    /// Directives of a file that is included again are the same ones: by file and place.
    known: BTreeMap<(String, usize, usize), DirectiveId>,
}

/// Files that distributions deliver with nginx, and what takes their place.
const STANDARD_FILES: [(&str, &str); 7] = [
    (
        "mime.types",
        "media types are known by the ending; `files.types` adds some",
    ),
    ("fastcgi_params", "the usual variables are there"),
    ("fastcgi.conf", "the usual variables are there"),
    ("uwsgi_params", "the usual variables are there"),
    ("scgi_params", "the usual variables are there"),
    ("proxy_params", "`Host` and `X-Forwarded-*` are sent"),
    (
        "fastcgi-php.conf",
        "the script is found by the path; `index` of the upstream",
    ),
];

impl<'r> NginxParser<'r> {
    pub(super) fn new(
        file: &Path,
        reader: &'r dyn IncludeReader,
        log: &'r mut DirectiveLog,
    ) -> Self {
        Self {
            reader,
            log,
            main_dir: file.parent().map(Path::to_owned).unwrap_or_default(),
            open_files: vec![file.to_owned()],
            total_bytes: 0,
            files: 0,
            known: BTreeMap::new(),
        }
    }

    /// The directives of the main file.
    pub(super) fn parse(
        &mut self,
        file: &Path,
        text: &str,
    ) -> Result<Vec<NginxDirective>, ImportError> {
        self.parse_file(&file.display().to_string(), text, 0)
    }

    fn parse_file(
        &mut self,
        file: &str,
        text: &str,
        depth: usize,
    ) -> Result<Vec<NginxDirective>, ImportError> {
        self.total_bytes += text.len();
        let mut lexer = NginxLexer::new(file, text);
        if self.total_bytes > limits::MAX_TOTAL_BYTES {
            let problem = format!(
                "all files together have more than {} bytes",
                limits::MAX_TOTAL_BYTES
            );
            return Err(lexer.error(problem));
        }
        let (directives, close) = self.block(file, &mut lexer, depth)?;
        match close {
            None => Ok(directives),
            Some(token) => {
                Err(lexer.error_at(token.line, token.column, "a brace that closes no block"))
            }
        }
    }

    /// The directives up to a closing brace, which is returned, or to the end.
    fn block(
        &mut self,
        file: &str,
        lexer: &mut NginxLexer<'_>,
        depth: usize,
    ) -> Result<(Vec<NginxDirective>, Option<NginxToken>), ImportError> {
        let mut directives = Vec::new();
        loop {
            let Some(token) = lexer.next_token()? else {
                return Ok((directives, None));
            };
            let name = match token.sign {
                NginxSign::Close => return Ok((directives, Some(token))),
                NginxSign::Word(name) => name,
                NginxSign::Semicolon => continue,
                NginxSign::Open => {
                    let problem = "a block without a directive in front of it";
                    return Err(lexer.error_at(token.line, token.column, problem));
                }
            };
            let place = (token.line, token.column);
            self.directive(file, lexer, name, place, depth, &mut directives)?;
        }
    }

    fn directive(
        &mut self,
        file: &str,
        lexer: &mut NginxLexer<'_>,
        name: String,
        (line, column): (usize, usize),
        depth: usize,
        into: &mut Vec<NginxDirective>,
    ) -> Result<(), ImportError> {
        let mut args = Vec::new();
        let has_block = loop {
            let Some(token) = lexer.next_token()? else {
                let problem = format!("`{name}` has neither a semicolon nor a block behind it");
                return Err(lexer.error_at(line, column, problem));
            };
            match token.sign {
                NginxSign::Word(word) => args.push(word),
                NginxSign::Semicolon => break false,
                NginxSign::Open => break true,
                NginxSign::Close => {
                    let problem = format!("a semicolon is missing behind `{name}`");
                    return Err(lexer.error_at(token.line, token.column, problem));
                }
            }
        };
        if self.log.len() >= limits::MAX_DIRECTIVES {
            let problem = format!("more than {} directives", limits::MAX_DIRECTIVES);
            return Err(lexer.error_at(line, column, problem));
        }
        let text = std::iter::once(&name)
            .chain(&args)
            .map(|word| show_word(word));
        let text = text.collect::<Vec<_>>().join(" ");
        let key = (file.to_owned(), line, column);
        let log = &mut self.log;
        let add = || log.add(file, line, &name, &text);
        let id = *self.known.entry(key).or_insert_with(add);
        if !has_block && name == "include" {
            return self.include(file, lexer, id, &args, depth, into);
        }
        let block = match has_block {
            false => None,
            true if name.ends_with("_by_lua_block") => {
                lexer.lua_block()?;
                self.log.note(
                    id,
                    Coverage::NotOffered,
                    "the server runs no scripts. Use an application",
                );
                None
            }
            true if depth >= limits::MAX_DEPTH => {
                let problem = format!("more than {} blocks within blocks", limits::MAX_DEPTH);
                return Err(lexer.error_at(line, column, problem));
            }
            true => {
                let (children, close) = self.block(file, lexer, depth + 1)?;
                if close.is_none() {
                    let problem = format!("the block of `{name}` is not closed");
                    return Err(lexer.error_at(line, column, problem));
                }
                Some(children)
            }
        };
        into.push(NginxDirective {
            id,
            name,
            args,
            block,
        });
        Ok(())
    }

    fn include(
        &mut self,
        file: &str,
        lexer: &NginxLexer<'_>,
        id: DirectiveId,
        args: &[String],
        depth: usize,
        into: &mut Vec<NginxDirective>,
    ) -> Result<(), ImportError> {
        let pattern = args.first().map(String::as_str).unwrap_or_default();
        if depth >= limits::MAX_DEPTH {
            return Err(lexer.error(format!(
                "more than {} files within files",
                limits::MAX_DEPTH
            )));
        }
        let mut found = false;
        for path in self.candidates(Path::new(file), pattern) {
            if self.open_files.contains(&path) {
                self.log
                    .note(id, Coverage::ByHand, "the file includes itself");
                return Ok(());
            }
            let Ok(text) = self.reader.read(&path) else {
                continue;
            };
            self.files += 1;
            if self.files > limits::MAX_FILES {
                return Err(lexer.error(format!("more than {} included files", limits::MAX_FILES)));
            }
            let name = path.display().to_string();
            limits::check_size(&name, &text)?;
            found = true;
            self.open_files.push(path);
            let inner = self.parse_file(&name, &text, depth + 1);
            self.open_files.pop();
            into.extend(inner?);
        }
        let (coverage, detail) = match found {
            true => (
                Coverage::BuiltIn,
                "the directives of the file are read in its place",
            ),
            false => absent_file(pattern),
        };
        self.log.note(id, coverage, detail);
        Ok(())
    }

    /// The files that a pattern stands for: below the folder of the main file, as nginx finds them,
    /// else beside the file that includes them.
    fn candidates(&self, file: &Path, pattern: &str) -> Vec<PathBuf> {
        let beside = file.parent().unwrap_or_else(|| Path::new(""));
        let below = pattern.strip_prefix("/etc/nginx/").unwrap_or(pattern);
        let places = [
            self.main_dir.join(below),
            beside.join(below),
            PathBuf::from(pattern),
        ];
        for place in places {
            let paths = match include::is_pattern(pattern) {
                true => include::expand(self.reader, &place),
                false if self.reader.read(&place).is_ok() => vec![place],
                false => Vec::new(),
            };
            if !paths.is_empty() {
                return paths;
            }
        }
        Vec::new()
    }
}

fn absent_file(pattern: &str) -> (Coverage, &'static str) {
    let name = pattern.rsplit('/').next().unwrap_or_default();
    let standard = STANDARD_FILES.into_iter().find(|(file, _)| *file == name);
    match standard {
        Some((_, why)) => (Coverage::BuiltIn, why),
        None if include::is_pattern(pattern) => (Coverage::NotNeeded, "no file fits the pattern"),
        None => (
            Coverage::ByHand,
            "the file cannot be read: import it together with this one",
        ),
    }
}

/// A word as it can be written.
fn show_word(word: &str) -> String {
    let needs_quotes = word.is_empty() || word.contains([' ', ';', '{', '}', '\n', '\t']);
    match needs_quotes && !word.contains("${") {
        true => format!("\"{word}\""),
        false => word.to_owned(),
    }
}
