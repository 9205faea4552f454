//! Placeholders of Caddy, as Penstock writes them.

use penstock_config::Template;

/// A value with Penstock's placeholders.
///
/// # Errors
/// The placeholder that has no counterpart.
pub(super) fn template(text: &str) -> Result<String, String> {
    let mut made = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        made.push_str(&rest[..start]);
        let word = rest[start + 1..]
            .split_once('}')
            .filter(|(word, _)| is_placeholder(word));
        let Some((word, behind)) = word else {
            made.push('{');
            rest = &rest[start + 1..];
            continue;
        };
        made.push_str(&placeholder(word).ok_or_else(|| format!("{{{word}}}"))?);
        rest = behind;
    }
    made.push_str(rest);
    // Variables of the configuration are texts to the parser of templates.
    made.parse::<Template>()
        .map_err(|problem| problem.split(' ').next().unwrap_or_default().to_owned())?;
    Ok(made)
}

fn is_placeholder(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "$._-:[]*/".contains(c);
    !word.is_empty()
        && word.chars().all(is_plain)
        && word.starts_with(|c: char| c.is_ascii_lowercase() || c == '$')
}

/// Texts of the file that are variables of the environment, as Penstock writes them.
pub(super) fn environment(text: &str) -> String {
    let mut made = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("{$") {
        let Some((name, behind)) = rest[start + 2..].split_once('}') else {
            break;
        };
        made.push_str(&rest[..start]);
        made.push_str(&variable(name));
        rest = behind;
    }
    made + rest
}

fn variable(name: &str) -> String {
    match name.split_once(':') {
        Some((name, default)) => format!("${{{name}:-{default}}}"),
        None => format!("${{{name}}}"),
    }
}

fn placeholder(word: &str) -> Option<String> {
    if let Some(name) = word.strip_prefix('$') {
        return Some(variable(name));
    }
    if let Some(name) = word.strip_prefix("env.") {
        return Some(format!("${{{name}}}"));
    }
    let plain = match word {
        "uri" | "http.request.uri" | "http.request.orig_uri" => "{uri}",
        "path" | "http.request.uri.path" | "http.request.orig_uri.path" => "{path}",
        "query" | "http.request.uri.query" => "{query}",
        "host" | "http.request.host" => "{hostname}",
        "hostport" | "http.request.hostport" => "{host}",
        "scheme" | "http.request.scheme" => "{scheme}",
        "method" | "http.request.method" => "{method}",
        "remote_host" | "client_ip" | "http.request.remote.host" | "http.vars.client_ip" => {
            "{client}"
        }
        _ => "",
    };
    if !plain.is_empty() {
        return Some(plain.to_owned());
    }
    for (theirs, ours) in [
        ("http.request.header.", "header"),
        ("header.", "header"),
        ("http.request.uri.query.", "query"),
        ("query.", "query"),
        ("http.request.cookie.", "cookie"),
        ("cookie.", "cookie"),
    ] {
        if let Some(name) = word.strip_prefix(theirs) {
            return Some(format!("{{{ours}.{name}}}"));
        }
    }
    let segment = word
        .strip_prefix("path.")
        .or_else(|| word.strip_prefix("http.request.uri.path."));
    if let Some(number) = segment.and_then(|it| it.parse::<usize>().ok()) {
        return Some(format!("{{path.{}}}", number.checked_add(1)?));
    }
    let group = word
        .strip_prefix("re.")
        .or_else(|| word.strip_prefix("http.regexp."))?;
    let group = group.rsplit('.').next().unwrap_or(group);
    Some(format!("{{re.{group}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_translated() {
        let rows = [
            ("https://{host}{uri}", Ok("https://{hostname}{uri}")),
            ("/p/{re.product.1}", Ok("/p/{re.1}")),
            ("{http.request.header.X-A}", Ok("{header.X-A}")),
            ("{path.0}/{query.a}", Ok("{path.1}/{query.a}")),
            ("{$HOME:/x}", Ok("${HOME:-/x}")),
            ("{\"a\": 1}", Ok("{\"a\": 1}")),
            ("{err.status_code}", Err("{err.status_code}")),
            ("{", Ok("{")),
        ];
        for (text, expected) in rows {
            let made = template(text);
            assert_eq!(made.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }
}
