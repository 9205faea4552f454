//! Python settings: assignments of literals, and the arguments of `uvicorn.run`. No code is run.
//!
//! # Invariants
//! - Each statement at the top of the file is one directive. The lines of a block belong to the
//!   statement that opens it.

use std::collections::BTreeMap;
use std::path::Path;

use super::AppSetting;
use super::value::{ScriptValue, variable};
use crate::answers::{Product, is_hook};
use crate::directives::DirectiveLog;
use crate::report::Coverage;
use crate::{ImportError, ServerKind, limits};

/// The settings of a file.
pub(super) fn read(
    kind: ServerKind,
    file: &Path,
    text: &str,
    log: &mut DirectiveLog,
) -> Result<Vec<AppSetting>, ImportError> {
    let name = file.display().to_string();
    let statements = statements(&name, text)?;
    let mut settings = Vec::new();
    let mut known: BTreeMap<String, ScriptValue> = BTreeMap::new();
    for statement in &statements {
        if log.len() >= limits::MAX_DIRECTIVES {
            return Err(error(&name, statement.line, 1, "too many statements"));
        }
        let text = statement.text.as_str();
        if kind == ServerKind::Uvicorn
            && let Some(call) = call_arguments(text)
        {
            run_call(&name, statement, call, &known, log, &mut settings);
            continue;
        }
        let assignment = split_assignment(text);
        let word = assignment.map_or_else(|| first_word(text), |(target, _)| target);
        let shown = text.lines().next().unwrap_or_default();
        let id = log.add(&name, statement.line, &word, shown);
        match assignment_value(text, &known) {
            Some((target, value)) => {
                known.insert(target.clone(), value.clone());
                settings.push(AppSetting {
                    id,
                    name: target,
                    values: vec![value],
                });
            }
            None if text.starts_with(['"', '\'']) => {
                log.note(id, Coverage::NotNeeded, "a text without use");
            }
            None if text.starts_with("import ") || text.starts_with("from ") => {
                log.note(
                    id,
                    Coverage::NotNeeded,
                    "the file is read, and no code is run",
                );
            }
            None if text.starts_with("def ") || text.starts_with("async def ") => {
                if kind == ServerKind::Gunicorn && is_hook(Product::Gunicorn, &word) {
                    settings.push(AppSetting {
                        id,
                        name: word,
                        values: vec![ScriptValue::Code],
                    });
                }
            }
            None => log.note(
                id,
                Coverage::ByHand,
                "code is not run: write the values that it gives",
            ),
        }
    }
    Ok(settings)
}

fn assignment_value(
    text: &str,
    known: &BTreeMap<String, ScriptValue>,
) -> Option<(String, ScriptValue)> {
    let (target, value) = split_assignment(text)?;
    Some((target, evaluate(value, known)))
}

/// Name and expression of `name = expression` and `name: type = expression`.
fn split_assignment(text: &str) -> Option<(String, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))?;
    let (name, rest) = text.split_at(end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let rest = rest.trim_start();
    let rest = match rest.strip_prefix(':') {
        Some(annotation) => &annotation[annotation.find('=')?..],
        None => rest,
    };
    let value = rest.strip_prefix('=')?;
    (!value.starts_with('=')).then(|| (name.to_owned(), value.trim()))
}

fn first_word(text: &str) -> String {
    let text = text.trim_start_matches("async ").trim_start_matches("def ");
    text.chars()
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
        .collect()
}

fn error(file: &str, line: usize, column: usize, problem: &str) -> ImportError {
    ImportError::Syntax {
        file: file.to_owned(),
        line,
        column,
        problem: problem.to_owned(),
    }
}

/// A statement with the lines of its block.
struct PythonStatement {
    line: usize,
    text: String,
}

/// The statements at the top of a file, without comments.
fn statements(file: &str, text: &str) -> Result<Vec<PythonStatement>, ImportError> {
    let mut all: Vec<PythonStatement> = Vec::new();
    let mut chars = text.chars().peekable();
    let (mut line, mut depth) = (1, 0_usize);
    let mut current = String::new();
    let mut start = 1;
    let mut open_quote: Option<(String, usize)> = None;
    let mut is_continued = false;
    while let Some(c) = chars.next() {
        if let Some((quote, _)) = &open_quote {
            current.push(c);
            if c == '\\' {
                current.extend(
                    chars
                        .next()
                        .inspect(|next| line += usize::from(*next == '\n')),
                );
            } else if c == '\n' {
                line += 1;
                if quote.len() == 1 {
                    return Err(error(file, line - 1, 1, "a quote that is not closed"));
                }
            } else if current.ends_with(quote.as_str()) {
                open_quote = None;
            }
            continue;
        }
        match c {
            '#' => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            '"' | '\'' => {
                current.push(c);
                let mut quote = c.to_string();
                let mut ahead = chars.clone();
                if ahead.next() == Some(c) {
                    chars.next();
                    current.push(c);
                    if chars.peek() == Some(&c) {
                        chars.next();
                        current.push(c);
                        quote = c.to_string().repeat(3);
                    } else {
                        continue;
                    }
                }
                open_quote = Some((quote, line));
            }
            '\\' if chars.peek() == Some(&'\n') => is_continued = true,
            '\n' => {
                line += 1;
                if depth > 0 || std::mem::take(&mut is_continued) {
                    current.push(' ');
                    continue;
                }
                let next_is_inside = chars.peek().is_some_and(|c| {
                    *c == ' ' || *c == '\t' || *c == '\n' || *c == '\r' || *c == '#'
                });
                if next_is_inside && !current.trim().is_empty() {
                    // Lines of a block, and blank ones.
                    current.push('\n');
                    continue;
                }
                push_statement(&mut all, &mut current, start);
                start = line;
            }
            c => {
                depth = match c {
                    '(' | '[' | '{' => depth + 1,
                    ')' | ']' | '}' => depth.saturating_sub(1),
                    _ => depth,
                };
                if current.trim().is_empty() {
                    start = line;
                }
                current.push(c);
            }
        }
    }
    if let Some((_, line)) = open_quote {
        return Err(error(file, line, 1, "a quote that is not closed"));
    }
    if depth > 0 {
        return Err(error(file, start, 1, "a bracket that is not closed"));
    }
    push_statement(&mut all, &mut current, start);
    Ok(all)
}

fn push_statement(all: &mut Vec<PythonStatement>, current: &mut String, line: usize) {
    let text = std::mem::take(current);
    let text = text.trim_end();
    if !text.trim().is_empty() {
        // `else:` and its like belong to the statement before.
        let is_clause = ["else:", "elif ", "except", "finally:"]
            .iter()
            .any(|it| text.starts_with(it));
        match all.last_mut().filter(|_| is_clause) {
            Some(last) => last.text.push_str(text),
            None => all.push(PythonStatement {
                line,
                text: text.to_owned(),
            }),
        }
    }
}

/// The value of an expression; `Code` where it needs to be run.
pub(super) fn evaluate(text: &str, known: &BTreeMap<String, ScriptValue>) -> ScriptValue {
    evaluate_at(text.trim(), known, 0)
}

fn evaluate_at(text: &str, known: &BTreeMap<String, ScriptValue>, depth: usize) -> ScriptValue {
    if depth > limits::MAX_DEPTH {
        return ScriptValue::Code;
    }
    let inner = |open: char, close: char| {
        text.strip_prefix(open)
            .and_then(|it| it.strip_suffix(close))
    };
    match text {
        "True" => return ScriptValue::Bool(true),
        "False" => return ScriptValue::Bool(false),
        "None" => return ScriptValue::Nothing,
        _ => {}
    }
    if let Ok(number) = text.replace('_', "").parse::<i64>() {
        return ScriptValue::Number(number);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return i64::from_str_radix(digits, 8).map_or(ScriptValue::Code, ScriptValue::Number);
    }
    if let Some(text) = string(text) {
        return ScriptValue::Text(text.replace("${", "$${"));
    }
    if let Some(inner) = format_string(text) {
        return formatted(inner, known, depth);
    }
    if let Some(items) = inner('[', ']') {
        let items = split_items(items)
            .into_iter()
            .map(|it| evaluate_at(it, known, depth + 1));
        return ScriptValue::List(items.collect());
    }
    if let Some(items) = inner('{', '}') {
        let mut pairs = Vec::new();
        for item in split_items(items) {
            let Some((key, value)) = split_outside(item, ':') else {
                return ScriptValue::Code;
            };
            let Some(key) = string(key.trim()) else {
                return ScriptValue::Code;
            };
            pairs.push((key, evaluate_at(value.trim(), known, depth + 1)));
        }
        return ScriptValue::Map(pairs);
    }
    if let Some(items) = inner('(', ')') {
        let parts = split_items(items);
        return match parts.as_slice() {
            [one] if !items.trim_end().ends_with(',') => evaluate_at(one, known, depth + 1),
            parts => ScriptValue::List(
                parts
                    .iter()
                    .map(|it| evaluate_at(it, known, depth + 1))
                    .collect(),
            ),
        };
    }
    if let Some(value) = known.get(text) {
        return value.clone();
    }
    call(text, known, depth)
}

/// `os.environ.get("X", "5")`, `os.getenv("X")`, `os.environ["X"]`, and `int(...)` around them.
fn call(text: &str, known: &BTreeMap<String, ScriptValue>, depth: usize) -> ScriptValue {
    let argument = |name: &str| text.strip_prefix(name)?.strip_suffix(')');
    for cast in ["int(", "str(", "float("] {
        if let Some(inner) = argument(cast) {
            return evaluate_at(inner.trim(), known, depth + 1);
        }
    }
    for name in ["os.environ.get(", "os.getenv(", "environ.get(", "getenv("] {
        let Some(inner) = argument(name) else {
            continue;
        };
        let parts = split_items(inner);
        let variable_name = parts.first().and_then(|it| string(it)).unwrap_or_default();
        let default = parts.get(1).map(|it| evaluate_at(it, known, depth + 1));
        return variable(&variable_name, default.as_ref());
    }
    if let Some(inner) = text
        .strip_prefix("os.environ[")
        .and_then(|it| it.strip_suffix(']'))
    {
        return variable(&string(inner.trim()).unwrap_or_default(), None);
    }
    ScriptValue::Code
}

/// The text of a literal.
fn string(text: &str) -> Option<String> {
    let text = text.trim();
    let start = text.find(['"', '\''])?;
    let prefix = text[..start].to_ascii_lowercase();
    if !["", "r", "b", "u", "rb", "br"].contains(&prefix.as_str()) {
        return None;
    }
    let quoted = &text[start..];
    let quote = if quoted.starts_with("\"\"\"") || quoted.starts_with("'''") {
        &quoted[..3]
    } else {
        &quoted[..1]
    };
    let inner = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
    if inner.contains(quote) && !inner.contains('\\') {
        return None;
    }
    if prefix.contains('r') {
        return Some(inner.to_owned());
    }
    let mut made = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => made.push('\n'),
                Some('t') => made.push('\t'),
                Some('\n') => {}
                Some(other) => made.push(other),
                None => return None,
            },
            c => made.push(c),
        }
    }
    Some(made)
}

/// The text between the quotes of `f"..."`.
fn format_string(text: &str) -> Option<&str> {
    let quoted = text.strip_prefix(['f', 'F'])?;
    let quote = quoted.chars().next().filter(|c| *c == '"' || *c == '\'')?;
    let inner = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
    (!inner.contains(quote) && !inner.contains('\\')).then_some(inner)
}

/// The value of such a text: each `{expression}` in it is evaluated.
fn formatted(text: &str, known: &BTreeMap<String, ScriptValue>, depth: usize) -> ScriptValue {
    let mut made = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        made.push_str(&rest[..at]);
        let inner = rest[at..]
            .strip_prefix('{')
            .and_then(|it| it.split_once('}'));
        let Some((expression, behind)) = inner else {
            return ScriptValue::Code;
        };
        // Not `{{`, and no format behind a colon.
        let value = match expression.contains(['{', '}', '!']) {
            true => ScriptValue::Code,
            false => evaluate_at(expression.trim(), known, depth + 1),
        };
        match value.as_text() {
            Some(text) => made.push_str(&text),
            None => return ScriptValue::Code,
        }
        rest = behind;
    }
    ScriptValue::Text(made + rest)
}

/// Items between commas, outside of brackets and quotes.
fn split_items(text: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut rest = text;
    while let Some((item, behind)) = split_outside(rest, ',') {
        items.push(item.trim());
        rest = behind;
    }
    if !rest.trim().is_empty() {
        items.push(rest.trim());
    }
    items
}

/// The text around a sign that stands outside of brackets and quotes.
fn split_outside(text: &str, sign: char) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    let mut quote: Option<char> = None;
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, c) if c == sign && depth == 0 => {
                return Some((&text[..at], &text[at + c.len_utf8()..]));
            }
            _ => {}
        }
    }
    None
}

/// The text between the brackets of `uvicorn.run(...)`.
fn call_arguments(text: &str) -> Option<&str> {
    let at = ["uvicorn.run(", "uvicorn.Config("]
        .iter()
        .find_map(|it| Some(text.find(it)? + it.len()))?;
    let rest = &text[at..];
    let mut depth = 1_usize;
    for (at, c) in rest.char_indices() {
        depth = match c {
            '(' | '[' | '{' => depth + 1,
            ')' | ']' | '}' => depth - 1,
            _ => depth,
        };
        if depth == 0 {
            return Some(&rest[..at]);
        }
    }
    None
}

fn run_call(
    file: &str,
    statement: &PythonStatement,
    arguments: &str,
    known: &BTreeMap<String, ScriptValue>,
    log: &mut DirectiveLog,
    settings: &mut Vec<AppSetting>,
) {
    for (index, item) in split_items(arguments).into_iter().enumerate() {
        let at = item.as_ptr() as usize - statement.text.as_ptr() as usize;
        let before = statement.text.get(..at).unwrap_or_default();
        let line = statement.line + before.matches('\n').count();
        let (name, value) = match split_assignment(item) {
            Some((name, value)) => (name, evaluate(value, known)),
            None if index == 0 => ("app".to_owned(), evaluate(item, known)),
            None => (item.to_owned(), ScriptValue::Code),
        };
        let id = log.add(file, line, &name, item);
        settings.push(AppSetting {
            id,
            name,
            values: vec![value],
        });
    }
}
