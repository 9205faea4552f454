//! uwsgi.ini: keys of the section `[uwsgi]`.

use std::path::Path;

use super::AppSetting;
use super::value::ScriptValue;
use crate::directives::DirectiveLog;
use crate::report::Coverage;
use crate::{ImportError, limits};

/// The settings of a file.
pub(super) fn read(
    file: &Path,
    text: &str,
    log: &mut DirectiveLog,
) -> Result<Vec<AppSetting>, ImportError> {
    let name = file.display().to_string();
    let first = text.trim_start();
    let is_other = first.starts_with('<') || first.starts_with('{') || first.starts_with("uwsgi:");
    if is_other {
        return Err(ImportError::Unsupported {
            file: name,
            problem: "only the ini form of uWSGI is read: write `key = value` lines below [uwsgi]"
                .to_owned(),
        });
    }
    let mut settings = Vec::new();
    let mut section = "uwsgi".to_owned();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(inner) = line.strip_prefix('[') {
            let Some(title) = inner.strip_suffix(']') else {
                let problem = "a bracket that is not closed".to_owned();
                return Err(ImportError::Syntax {
                    file: name,
                    line: number,
                    column: 1,
                    problem,
                });
            };
            section = title.trim().to_owned();
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, "true"));
        let (key, value) = (
            key.trim().replace('_', "-"),
            value.trim().trim_matches(['"', '\'']),
        );
        if log.len() >= limits::MAX_DIRECTIVES {
            let problem = format!("more than {} directives", limits::MAX_DIRECTIVES);
            return Err(ImportError::Syntax {
                file: name,
                line: number,
                column: 1,
                problem,
            });
        }
        let id = log.add(&name, number, &key, line);
        if section != "uwsgi" {
            log.note(id, Coverage::NotNeeded, "another section than [uwsgi]");
            continue;
        }
        let value = match value.contains("$(") || value.contains('%') || value.starts_with("@(") {
            true => environment(value),
            false => ScriptValue::Text(value.to_owned()),
        };
        settings.push(AppSetting {
            id,
            name: key,
            values: vec![value],
        });
    }
    Ok(settings)
}

/// `$(NAME)` as a variable; other placeholders of uWSGI are code.
fn environment(value: &str) -> ScriptValue {
    let made = value.replace("$(", "${").replace(')', "}");
    match made.contains('%') || made.contains("@(") {
        true => ScriptValue::Code,
        false => ScriptValue::Text(made),
    }
}
