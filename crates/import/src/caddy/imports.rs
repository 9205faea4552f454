//! `import`: directives of snippets and files in place of it.

use std::path::Path;

use super::lexer::read_lines;
use super::syntax::{CaddyDirective, CaddyParser, LineReader};
use crate::report::Coverage;
use crate::{ImportError, limits};

impl CaddyParser<'_> {
    /// Directives with those of snippets and files in place of `import`.
    pub(super) fn expand(
        &mut self,
        directives: Vec<CaddyDirective>,
        base: &Path,
        depth: usize,
    ) -> Result<Vec<CaddyDirective>, ImportError> {
        let mut expanded = Vec::new();
        for mut directive in directives {
            if directive.name != "import" {
                if let Some(block) = directive.block.take() {
                    directive.block = Some(self.expand(block, base, depth)?);
                }
                expanded.push(directive);
                continue;
            }
            self.copies += 1;
            if depth >= limits::MAX_DEPTH || self.copies > limits::MAX_DIRECTIVES {
                self.log.note(
                    directive.id,
                    Coverage::ByHand,
                    "imports within imports go too deep",
                );
                continue;
            }
            let body = self.imported(&directive, base)?;
            let body: Vec<CaddyDirective> = body
                .into_iter()
                .map(|it| self.with_arguments(it, directive.args.get(1..).unwrap_or_default()))
                .collect();
            if !body.is_empty() {
                self.log.note(
                    directive.id,
                    Coverage::BuiltIn,
                    "its directives are read in its place",
                );
            }
            expanded.extend(self.expand(body, base, depth + 1)?);
        }
        Ok(expanded)
    }

    fn imported(
        &mut self,
        directive: &CaddyDirective,
        base: &Path,
    ) -> Result<Vec<CaddyDirective>, ImportError> {
        let name = directive.arg(0);
        if directive.args.is_empty() {
            self.log.note(
                directive.id,
                Coverage::ByHand,
                "it names no file and no snippet",
            );
            return Ok(Vec::new());
        }
        if let Some(snippet) = self.snippets.get(name) {
            return Ok(snippet.children().to_vec());
        }
        let mut body = Vec::new();
        let paths = self.paths(base, name);
        if paths.is_empty() {
            self.note_absent(directive.id, name);
        }
        for path in paths {
            self.files += 1;
            let Ok(text) = self.reader.read(&path) else {
                continue;
            };
            if self.files > limits::MAX_FILES {
                break;
            }
            let file = path.display().to_string();
            limits::check_size(&file, &text)?;
            let mut lines = LineReader {
                lines: read_lines(&file, &text)?,
                file,
                at: 0,
            };
            let (children, _) = self.block(&mut lines, &[], 1)?;
            body.extend(children);
        }
        Ok(body)
    }

    /// A copy with the arguments of an import in place of `{args[0]}`.
    fn with_arguments(&mut self, mut directive: CaddyDirective, args: &[String]) -> CaddyDirective {
        self.copies += 1;
        directive.name = filled(&directive.name, args);
        directive.args = directive.args.iter().map(|it| filled(it, args)).collect();
        if let Some(block) = directive.block.take() {
            directive.block = Some(
                block
                    .into_iter()
                    .map(|it| self.with_arguments(it, args))
                    .collect(),
            );
        }
        directive
    }
}

/// A word with the arguments of an import in it.
fn filled(text: &str, args: &[String]) -> String {
    let mut text = text.to_owned();
    if text.contains("{args") {
        text = text.replace("{args[:]}", &args.join(" "));
        for (index, argument) in args.iter().enumerate() {
            text = text.replace(&format!("{{args[{index}]}}"), argument);
            text = text.replace(&format!("{{args.{index}}}"), argument);
        }
        text.truncate(floor_boundary(&text, MAX_FILLED));
    }
    text
}

/// Longest word that arguments of an import make, in bytes.
const MAX_FILLED: usize = 4096;

fn floor_boundary(text: &str, most: usize) -> usize {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    end
}
