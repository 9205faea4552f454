//! What the text of a Python module defines: the names of its top level.
//!
//! Used by `detect`. Pure: text in, names out.

/// The lines of a source that are no comments.
pub(super) fn code_lines(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    let lines = text.lines();
    lines.filter(|line| !line.trim_start().starts_with('#'))
}

/// Whether a module defines `name` as a coroutine function.
pub(super) fn is_async_function(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let rest = line
            .strip_prefix("async def ")
            .and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.trim_start().starts_with('('))
    })
}

/// Whether a module defines `name` as a function with parameters that have no defaults.
pub(super) fn needs_arguments(text: &str, name: &str) -> bool {
    optional_parameters(text, name) == Some(false)
}

/// Whether all parameters of the function `name` have defaults; `None` where the module defines no
/// such function.
pub(super) fn optional_parameters(text: &str, name: &str) -> Option<bool> {
    let definitions = text.match_indices("def ").filter_map(|(at, _)| {
        let is_line = at == 0 || text[..at].ends_with('\n');
        let rest = text[at + "def ".len()..].strip_prefix(name)?;
        rest.trim_start().strip_prefix('(').filter(|_| is_line)
    });
    let rest = definitions.last()?;
    Some(split_parameters(rest).iter().all(|parameter| {
        let parameter = parameter.trim();
        parameter.is_empty()
            || parameter.starts_with("**")
            || ["*", "/"].contains(&parameter)
            || parameter.contains('=')
    }))
}

/// The parameters up to the closing bracket, split at commas that stand in no bracket.
fn split_parameters(rest: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in rest.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => {
                parts.push(&rest[start..at]);
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&rest[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts
}

/// Names that lines without indentation assign, define or import.
pub(super) fn top_level_names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("from ") {
            let Some((_, imported)) = line.split_once(" import ") else {
                continue;
            };
            names.extend(imported_names(imported));
            if imported.contains('(') && !imported.contains(')') {
                let inner = lines.by_ref().take_while(|line| !line.starts_with(')'));
                names.extend(inner.flat_map(imported_names));
            }
        } else {
            names.extend(defined_name(line));
            names.extend(chained_names(line));
            names.extend(unpacked_names(line));
        }
    }
    names
}

/// `a, b as c` without brackets and comments.
fn imported_names(list: &str) -> impl Iterator<Item = &str> {
    let list = list.split('#').next().unwrap_or_default();
    list.split(',').map(|item| {
        let item = item.trim_matches(|c: char| c.is_whitespace() || "()\\".contains(c));
        item.rsplit_once(" as ")
            .map_or(item, |(_, alias)| alias.trim())
    })
}

/// `name = ...`, `name: Type = ...`, `def name(` and `async def name(`.
pub(super) fn defined_name(line: &str) -> Option<&str> {
    let plain = line.strip_prefix("async ").unwrap_or(line);
    let (is_def, rest) = plain
        .strip_prefix("def ")
        .map_or((false, line), |rest| (true, rest));
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    let after = rest[end..].trim_start();
    let assigns = after.starts_with('=') && !after.starts_with("==");
    let annotates = after.starts_with(':') && after.contains('=');
    let matches = if is_def {
        after.starts_with('(')
    } else {
        assigns || annotates
    };
    matches.then_some(&rest[..end])
}

/// `second` of `first = second = ...`.
pub(super) fn chained_names(line: &str) -> Option<&str> {
    let (_, rest) = line
        .split_once(" = ")
        .filter(|_| !line.starts_with([' ', '\t', '#']))?;
    defined_name(rest)
}

/// The names of `first, second = ...`.
pub(super) fn unpacked_names(line: &str) -> Vec<&str> {
    let Some((targets, value)) = line.split_once('=') else {
        return Vec::new();
    };
    let names = targets.trim_end().trim_matches(['(', ')', '[', ']']);
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    let is_name =
        |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_unpacking = !value.starts_with('=') && !line.starts_with([' ', '\t']) && names.len() > 1;
    match is_unpacking && names.iter().all(is_name) {
        true => names,
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_which_functions_need_arguments() {
        let rows = [
            ("def make():\n", Some(true)),
            (
                "def make(a=1, *, b: dict[str, int] = {}, **more):\n",
                Some(true),
            ),
            ("def make(\n    config=None,\n) -> Flask:\n", Some(true)),
            ("def make(config):\n", Some(false)),
            ("def make(a=1, *, b):\n", Some(false)),
            ("def make(*arguments):\n", Some(false)),
            ("make = 1\n", None),
            ("    def make():\n", None),
            ("def make_other():\n", None),
        ];
        for (text, expected) in rows {
            assert_eq!(optional_parameters(text, "make"), expected, "{text}");
        }
    }
}
