//! Times, and values in the log format of HAProxy.

use penstock_config::Template;

use super::conditions::canonical;
use crate::units;

/// A time; a bare number is milliseconds. Zero is none.
pub(super) fn time(text: &str) -> Option<String> {
    units::duration(text, "ms").filter(|it| !it.starts_with('0'))
}

/// A value with Penstock's placeholders.
///
/// # Errors
/// The part that has no counterpart.
pub(super) fn template(text: &str) -> Result<String, String> {
    let mut made = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('%') {
        made.push_str(&rest[..start]);
        let behind = &rest[start + 1..];
        if let Some(after) = behind.strip_prefix('%') {
            made.push('%');
            rest = after;
        } else if let Some(inner) = behind.strip_prefix('[') {
            let (sample, after) = inner.split_once(']').ok_or_else(|| "%[".to_owned())?;
            made.push_str(&placeholder(sample).ok_or_else(|| format!("%[{sample}]"))?);
            rest = after;
        } else if let Some(after) = behind.strip_prefix("ci") {
            made.push_str("{client}");
            rest = after;
        } else if behind.starts_with(|c: char| c.is_ascii_alphabetic() || c == '{') {
            return Err(format!("%{}", behind.chars().take(8).collect::<String>()));
        } else {
            made.push('%');
            rest = behind;
        }
    }
    made.push_str(rest);
    let made = made.replace("${", "$${");
    made.parse::<Template>()
        .map_err(|problem| problem.split(' ').next().unwrap_or_default().to_owned())?;
    Ok(made)
}

/// The placeholder of a sample such as `req.hdr(host)`.
fn placeholder(sample: &str) -> Option<String> {
    let argument = |names: &[&str]| {
        let (name, rest) = sample.split_once('(')?;
        let argument = rest.strip_suffix(')')?.split(',').next()?;
        names.contains(&name).then_some(argument)
    };
    if let Some(name) = argument(&["hdr", "req.hdr", "req.fhdr"]) {
        return Some(match name.eq_ignore_ascii_case("host") {
            true => "{host}".to_owned(),
            false => format!("{{header.{}}}", canonical(name)),
        });
    }
    if let Some(name) = argument(&["cook", "req.cook"]) {
        return Some(format!("{{cookie.{name}}}"));
    }
    if let Some(name) = argument(&["url_param", "urlp", "req.urlp"]) {
        return Some(format!("{{query.{name}}}"));
    }
    let plain = match sample {
        "src" => "{client}",
        "path" => "{path}",
        "query" => "{query}",
        "url" | "pathq" | "capture.req.uri" => "{uri}",
        "method" | "capture.req.method" => "{method}",
        _ => return None,
    };
    Some(plain.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_translated() {
        let rows = [
            ("https://%[hdr(host)]%[path]", Ok("https://{host}{path}")),
            ("%[src] 100%%", Ok("{client} 100%")),
            ("%ci", Ok("{client}")),
            ("%[req.hdr(x-a)]", Ok("{header.X-A}")),
            ("%[ssl_c_s_dn]", Err("%[ssl_c_s_dn]")),
            ("%T", Err("%T")),
        ];
        for (text, expected) in rows {
            let made = template(text);
            assert_eq!(made.as_deref().map_err(String::as_str), expected, "{text}");
        }
        assert_eq!(time("500").as_deref(), Some("500ms"));
        assert_eq!(time("0"), None);
    }
}
