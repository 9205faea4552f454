//! Passengerfile.json: one object.

use std::path::Path;

use super::AppSetting;
use super::value::ScriptValue;
use crate::ImportError;
use crate::directives::DirectiveLog;

/// The settings of a file.
pub(super) fn read(
    file: &Path,
    text: &str,
    log: &mut DirectiveLog,
) -> Result<Vec<AppSetting>, ImportError> {
    let name = file.display().to_string();
    let syntax = |line: usize, column: usize, problem: String| ImportError::Syntax {
        file: name.clone(),
        line: line.max(1),
        column: column.max(1),
        problem,
    };
    let text = &without_comments(text);
    let parsed: serde_json::Value = serde_json::from_str(text).map_err(|error| {
        syntax(
            error.line(),
            error.column(),
            "no JSON: a comma, quote or brace is wrong".to_owned(),
        )
    })?;
    let Some(object) = parsed.as_object() else {
        return Err(syntax(1, 1, "expected an object of settings".to_owned()));
    };
    let mut settings = Vec::new();
    for (key, value) in object {
        let quoted = format!("\"{key}\"");
        let line = text
            .lines()
            .position(|line| line.contains(&quoted))
            .map_or(1, |at| at + 1);
        let id = log.add(&name, line, key, &format!("{key}: {value}"));
        settings.push(AppSetting {
            id,
            name: key.clone(),
            values: vec![script_value(value)],
        });
    }
    Ok(settings)
}

/// The text with spaces in place of its comments, which Passenger skips, too.
fn without_comments(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_quoted = false;
    while let Some(c) = rest.chars().next() {
        let length = match (is_quoted, c) {
            (true, '\\') => rest.chars().take(2).map(char::len_utf8).sum(),
            (_, '"') => {
                is_quoted = !is_quoted;
                1
            }
            (false, '/') if rest.starts_with("//") || rest.starts_with("/*") => {
                let end = match rest.starts_with("//") {
                    true => rest.find('\n'),
                    false => rest[2..].find("*/").map(|at| at + 4),
                };
                let (comment, behind) = rest.split_at(end.unwrap_or(rest.len()));
                made.extend(comment.chars().map(|c| if c == '\n' { c } else { ' ' }));
                rest = behind;
                continue;
            }
            (_, c) => c.len_utf8(),
        };
        let (kept, behind) = rest.split_at(length);
        made.push_str(kept);
        rest = behind;
    }
    made
}

fn script_value(value: &serde_json::Value) -> ScriptValue {
    use serde_json::Value;
    match value {
        Value::Null => ScriptValue::Nothing,
        Value::Bool(flag) => ScriptValue::Bool(*flag),
        Value::Number(number) => number
            .as_i64()
            .map_or(ScriptValue::Code, ScriptValue::Number),
        Value::String(text) => ScriptValue::Text(text.replace("${", "$${")),
        Value::Array(items) => ScriptValue::List(items.iter().map(script_value).collect()),
        Value::Object(object) => ScriptValue::Map(
            object
                .iter()
                .map(|(key, value)| (key.clone(), script_value(value)))
                .collect(),
        ),
    }
}
