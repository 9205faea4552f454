//! Variables of nginx in values, and its regular expressions, as Penstock writes them.

use std::collections::BTreeMap;

use penstock_config::{PathRegex, Template};

/// Values of `set` with a constant, by name without the dollar sign.
pub(super) type Constants = BTreeMap<String, String>;

/// A value with placeholders for variables. `captures` tells whether `$1` and named groups stand
/// for groups of the route's expression.
///
/// # Errors
/// The variable that has no placeholder.
pub(super) fn template(
    text: &str,
    constants: &Constants,
    captures: bool,
) -> Result<String, String> {
    let text = text
        .replace("$uri$is_args$args", "$request_uri")
        .replace("$is_args$args", "?$args");
    let mut made = String::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find('$') {
        made.push_str(&rest[..start]);
        let (name, behind) = variable_name(&rest[start + 1..]);
        if name.is_empty() {
            made.push('$');
        } else if let Some(value) = constants.get(name) {
            made.push_str(value);
        } else {
            made.push_str(&placeholder(name, captures).ok_or_else(|| format!("${name}"))?);
        }
        rest = behind;
    }
    made.push_str(rest);
    // `${` would be a variable of the configuration.
    let made = made.replace("${", "$${");
    made.parse::<Template>()
        .map_err(|problem| problem.split(' ').next().unwrap_or("").to_owned())?;
    Ok(made)
}

/// The name behind a dollar sign, and the text behind the name.
fn variable_name(text: &str) -> (&str, &str) {
    if let Some(inner) = text.strip_prefix('{')
        && let Some((name, behind)) = inner.split_once('}')
    {
        return (name, behind);
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    // A number is one digit: `$10` is `$1` and a zero.
    let end = match text.bytes().next() {
        Some(byte) if byte.is_ascii_digit() => 1,
        _ => text.find(|c| !is_word(c)).unwrap_or(text.len()),
    };
    text.split_at(end)
}

fn placeholder(name: &str, captures: bool) -> Option<String> {
    let plain = match name {
        "request_uri" => "{uri}",
        "uri" | "document_uri" => "{path}",
        "args" | "query_string" => "{query}",
        "host" => "{hostname}",
        "http_host" => "{host}",
        "scheme" => "{scheme}",
        "request_method" => "{method}",
        "remote_addr" | "binary_remote_addr" | "realip_remote_addr" => "{client}",
        _ => "",
    };
    if !plain.is_empty() {
        return Some(plain.to_owned());
    }
    if let Some(argument) = name.strip_prefix("arg_") {
        return Some(format!("{{query.{argument}}}"));
    }
    if let Some(field) = name.strip_prefix("http_") {
        return Some(format!("{{header.{}}}", field_name(field)));
    }
    if let Some(cookie) = name.strip_prefix("cookie_") {
        return Some(format!("{{cookie.{cookie}}}"));
    }
    let is_group = captures && (name.len() == 1 && name.as_bytes()[0].is_ascii_digit());
    is_group.then(|| format!("{{re.{name}}}"))
}

/// A template in which named groups of an expression are placeholders, too.
pub(super) fn template_of_regex(
    text: &str,
    constants: &Constants,
    regex: &str,
) -> Result<String, String> {
    let mut with_groups = constants.clone();
    for part in regex.split("(?P<").skip(1) {
        if let Some((name, _)) = part.split_once('>') {
            with_groups.insert(name.to_owned(), format!("{{re.{name}}}"));
        }
    }
    template(text, &with_groups, true)
}

/// The field of a variable's end: `x_forwarded_for` is `X-Forwarded-For`.
pub(super) fn field_name(variable: &str) -> String {
    let parts = variable.split('_').map(|part| {
        let mut letters = part.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    });
    parts.collect::<Vec<_>>().join("-")
}

/// An expression of nginx in the dialect of RE2.
///
/// # Errors
/// The reason why it has no counterpart.
pub(super) fn regex(pattern: &str, ignores_case: bool) -> Result<String, String> {
    let mut made = pattern
        .replace("(?<", "(?P<")
        .replace("(?P<=", "(?<=")
        .replace("(?P<!", "(?<!");
    if made.contains("(?'") {
        made = made.replace("(?'", "(?P<");
    }
    let made = made.replace("\\/", "/").replace("${", "$${");
    let made = if ignores_case {
        format!("(?i){made}")
    } else {
        made
    };
    let checked = made.replace("$${", "${");
    match PathRegex::new(&checked) {
        Ok(_) => Ok(made),
        Err(reason) => Err(format!("the expression is none of RE2: {reason}")),
    }
}

/// A text in which no sign has a meaning for expressions.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if "\\.+*?()|[]{}^$".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// A value with the variables that `set` gives a fixed text.
pub(super) fn with_constants(value: &str, constants: &Constants) -> String {
    let mut made = value.to_owned();
    // Longer names first: `$public_dir` before `$public`.
    for (name, constant) in constants.iter().rev() {
        made = made
            .replace(&format!("${{{name}}}"), constant)
            .replace(&format!("${name}"), constant);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_become_placeholders() {
        let constants = Constants::from([("base".to_owned(), "/x".to_owned())]);
        let rows = [
            ("https://$host$request_uri", Ok("https://{hostname}{uri}")),
            ("$uri$is_args$args", Ok("{uri}")),
            ("$base/$1", Ok("/x/{re.1}")),
            ("${http_x_api_key}!", Ok("{header.X-Api-Key}!")),
            ("$arg_q-$cookie_s", Ok("{query.q}-{cookie.s}")),
            ("$upstream_addr", Err("$upstream_addr")),
            ("{\"a\":1}", Ok("{\"a\":1}")),
            ("5$", Ok("5$")),
        ];
        for (text, expected) in rows {
            let made = template(text, &constants, true);
            assert_eq!(made.as_deref().map_err(String::as_str), expected, "{text}");
        }
        let made = template_of_regex("/a/$id", &constants, "(?P<id>x)");
        assert_eq!(made.as_deref(), Ok("/a/{re.id}"));
    }

    #[test]
    fn expressions_are_checked() {
        assert_eq!(
            regex(r"^/a/(?<id>\d+)\.html$", false).as_deref(),
            Ok(r"^/a/(?P<id>\d+)\.html$")
        );
        assert_eq!(regex("x", true).as_deref(), Ok("(?i)x"));
        assert!(regex("^/(?!admin)", false).unwrap_err().contains("RE2"));
    }
}
