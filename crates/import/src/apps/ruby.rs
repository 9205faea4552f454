//! Ruby settings: calls with literal arguments, such as those of `config/puma.rb`. No code is run.
//!
//! # Invariants
//! - Each statement is one directive. Those within a condition are left to a person.

use std::collections::BTreeMap;
use std::path::Path;

use super::AppSetting;
use super::value::{ScriptValue, variable};
use crate::directives::DirectiveLog;
use crate::report::Coverage;
use crate::{ImportError, limits};

/// Words that open a block which `end` closes.
const OPENERS: [&str; 8] = [
    "if", "unless", "case", "def", "begin", "while", "until", "class",
];

/// The settings of a file.
pub(super) fn read(
    file: &Path,
    text: &str,
    log: &mut DirectiveLog,
) -> Result<Vec<AppSetting>, ImportError> {
    let name = file.display().to_string();
    let mut settings = Vec::new();
    let mut known: BTreeMap<String, ScriptValue> = BTreeMap::new();
    // The openers of the blocks around a line, and whether each is the body of a setting.
    let mut blocks: Vec<bool> = Vec::new();
    for (line, statement) in statements(text) {
        let word: String = statement
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        let opens = opens_block(&statement, &word);
        if ["end", "else", "elsif", "when", "rescue", "ensure"].contains(&word.as_str()) {
            if word == "end" {
                blocks.pop();
            }
            continue;
        }
        let is_in_body = blocks.iter().any(|is_body| *is_body);
        let is_condition = OPENERS.contains(&word.as_str());
        if is_in_body {
            if opens {
                blocks.push(true);
            }
            continue;
        }
        if log.len() >= limits::MAX_DIRECTIVES || blocks.len() > limits::MAX_DIRECTIVES {
            let problem = "too many statements".to_owned();
            return Err(ImportError::Syntax {
                file: name,
                line,
                column: 1,
                problem,
            });
        }
        let id = log.add(&name, line, &word, &statement);
        if opens {
            blocks.push(!is_condition);
        }
        if is_condition {
            log.note(
                id,
                Coverage::ByHand,
                "code is not run: write the settings that hold",
            );
        } else if blocks.len() > usize::from(opens) {
            log.note(
                id,
                Coverage::ByHand,
                "it stands in a condition, and code is not run",
            );
        } else if let Some((target, value)) = assignment(&statement) {
            let value = evaluate(value, &known);
            let (coverage, why) = match value {
                ScriptValue::Code => (
                    Coverage::ByHand,
                    "code is not run: write the value that it gives",
                ),
                _ => (Coverage::Translated, "its value stands where it is used"),
            };
            log.note(id, coverage, why);
            known.insert(target, value);
        } else if ["require", "require_relative", "puts", "warn"].contains(&word.as_str()) {
            log.note(
                id,
                Coverage::NotNeeded,
                "the file is read, and no code is run",
            );
        } else {
            let rest = statement[word.len()..].trim_start_matches(['!', '?']);
            let values = match has_modifier(rest) || opens {
                true => vec![ScriptValue::Code],
                false => arguments(rest, &known),
            };
            settings.push(AppSetting {
                id,
                name: word,
                values,
            });
        }
    }
    Ok(settings)
}

/// Whether `do` or an opener begins a block that a later line ends.
fn opens_block(statement: &str, word: &str) -> bool {
    let last = statement.split_whitespace().next_back().unwrap_or_default();
    let has_do = last == "do" || statement.trim_end().ends_with('|') && statement.contains(" do |");
    let ends_here = last == "end";
    let assigned_if = statement.contains("= if ")
        || statement.contains("= case ")
        || statement.contains("= begin");
    (has_do || OPENERS.contains(&word) || assigned_if) && !ends_here
}

/// Whether a condition stands behind a call.
fn has_modifier(rest: &str) -> bool {
    rest.contains(" if ") || rest.contains(" unless ")
}

/// Lines without comments; a line that ends with a comma, an operator or an open bracket goes on.
fn statements(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut is_open = false;
    let mut is_comment = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("=begin") {
            is_comment = true;
        }
        if line.starts_with("=end") {
            is_comment = false;
            continue;
        }
        let line = without_comment(line);
        let line = line.trim();
        if line.is_empty() || is_comment {
            continue;
        }
        match all.last_mut().filter(|_| is_open) {
            Some((_, last)) if last.len() < 64 << 10 => {
                last.push(' ');
                last.push_str(line);
            }
            _ => all.push((index + 1, line.to_owned())),
        }
        let last = all.last().map_or("", |(_, text)| text);
        is_open = last.ends_with([',', '(', '[', '{', '\\'])
            || last.ends_with("||")
            || last.ends_with("&&");
    }
    all
}

fn without_comment(line: &str) -> &str {
    let mut quote: Option<char> = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open && before != '\\' => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '#') => return &line[..at],
            _ => {}
        }
        before = c;
    }
    line
}

/// Name and expression of `name = expression`.
fn assignment(statement: &str) -> Option<(String, &str)> {
    let (name, value) = statement.split_once('=')?;
    let name = name.trim().trim_end_matches("||").trim();
    let is_name = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "_@$".contains(c))
        && !name.is_empty();
    let is_assignment = is_name && !value.starts_with(['=', '>', '~']);
    is_assignment.then(|| (name.to_owned(), value.trim()))
}

/// The arguments of a call, with or without brackets.
fn arguments(rest: &str, known: &BTreeMap<String, ScriptValue>) -> Vec<ScriptValue> {
    let rest = rest.trim();
    let is_wrapped = rest.starts_with('(') && rest.ends_with(')');
    let rest = if is_wrapped {
        &rest[1..rest.len() - 1]
    } else {
        rest
    };
    split_items(rest)
        .into_iter()
        .map(|item| evaluate(item, known))
        .collect()
}

/// The value of an expression; `Code` where it needs to be run.
fn evaluate(text: &str, known: &BTreeMap<String, ScriptValue>) -> ScriptValue {
    evaluate_at(text.trim(), known, 0)
}

fn evaluate_at(text: &str, known: &BTreeMap<String, ScriptValue>, depth: usize) -> ScriptValue {
    if depth > limits::MAX_DEPTH {
        return ScriptValue::Code;
    }
    for cast in [".to_i", ".to_s", ".to_sym"] {
        if let Some(inner) = text.strip_suffix(cast) {
            return evaluate_at(inner.trim(), known, depth + 1);
        }
    }
    for cast in ["Integer(", "String(", "("] {
        if let Some(inner) = text.strip_prefix(cast).and_then(|it| it.strip_suffix(')')) {
            return evaluate_at(inner.trim(), known, depth + 1);
        }
    }
    match text {
        "true" => return ScriptValue::Bool(true),
        "false" => return ScriptValue::Bool(false),
        "nil" => return ScriptValue::Nothing,
        _ => {}
    }
    let digits = text.replace('_', "");
    if let Some(octal) = digits.strip_prefix('0').filter(|it| it.len() > 1) {
        return i64::from_str_radix(octal, 8).map_or(ScriptValue::Code, ScriptValue::Number);
    }
    if let Ok(number) = digits.parse::<i64>() {
        return ScriptValue::Number(number);
    }
    if let Some(symbol) = text
        .strip_prefix(':')
        .filter(|it| it.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
    {
        return ScriptValue::Text(symbol.to_owned());
    }
    if let Some(value) = environment(text, known, depth) {
        return value;
    }
    if let Some(text) = string(text, known, depth) {
        return text;
    }
    if let Some(items) = text.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        let items = split_items(items)
            .into_iter()
            .map(|it| evaluate_at(it, known, depth + 1));
        return ScriptValue::List(items.collect());
    }
    known.get(text).cloned().unwrap_or(ScriptValue::Code)
}

/// `ENV["X"]`, `ENV["X"] || 5`, `ENV.fetch("X", 5)` and `ENV.fetch("X") { 5 }`.
fn environment(
    text: &str,
    known: &BTreeMap<String, ScriptValue>,
    depth: usize,
) -> Option<ScriptValue> {
    let rest = text.strip_prefix("ENV")?;
    if let Some(inner) = rest.strip_prefix('[') {
        let (name, behind) = inner.split_once(']')?;
        let name = name.trim_matches(['"', '\'', ' ']);
        let default = behind
            .trim()
            .strip_prefix("||")
            .map(|it| evaluate_at(it.trim(), known, depth + 1));
        let is_alone = behind.trim().is_empty();
        return Some(match (default, is_alone) {
            (None, false) => ScriptValue::Code,
            (default, _) => variable(name, default.as_ref()),
        });
    }
    let inner = rest.strip_prefix(".fetch(")?;
    let (arguments, behind) = inner.split_once(')')?;
    let parts = split_items(arguments);
    let name = parts.first().map_or("", |it| it.trim_matches(['"', '\'']));
    let block = behind
        .trim()
        .strip_prefix('{')
        .and_then(|it| it.strip_suffix('}'));
    let default = parts
        .get(1)
        .copied()
        .or(block)
        .map(|it| evaluate_at(it.trim(), known, depth + 1));
    Some(variable(name, default.as_ref()))
}

/// A text, with variables of the environment in it.
fn string(text: &str, known: &BTreeMap<String, ScriptValue>, depth: usize) -> Option<ScriptValue> {
    let quote = text.chars().next().filter(|c| *c == '"' || *c == '\'')?;
    let inner = text.get(1..)?.strip_suffix(quote)?;
    if quote == '\'' || !inner.contains("#{") {
        return (!inner.contains(quote)).then(|| ScriptValue::Text(inner.replace("${", "$${")));
    }
    let mut made = String::new();
    let mut rest = inner;
    while let Some(at) = rest.find("#{") {
        made.push_str(&rest[..at]);
        let code = &rest[at + 2..];
        let mut braces = 1_usize;
        let end = code.char_indices().find_map(|(at, c)| {
            braces = match c {
                '{' => braces + 1,
                '}' => braces - 1,
                _ => braces,
            };
            (braces == 0).then_some(at)
        })?;
        match evaluate_at(code[..end].trim(), known, depth + 1).as_text() {
            Some(text) => made.push_str(&text),
            None => return Some(ScriptValue::Code),
        }
        rest = &code[end + 1..];
    }
    Some(ScriptValue::Text(made + rest))
}

/// Items between commas, outside of brackets and quotes.
fn split_items(text: &str) -> Vec<&str> {
    let (mut items, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    let mut quote: Option<char> = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, ',') if depth == 0 => {
                items.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        items.push(text[start..].trim());
    }
    items
}
