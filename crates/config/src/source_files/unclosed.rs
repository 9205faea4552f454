//! Where a list begins that is never closed: the parser of TOML goes on to the next table, and reports
//! what it finds there.

/// The place of the bracket of a list without an end, if the text has one.
///
/// A list ends where a line begins with `key =`, which no list may hold outside of an inline table,
/// and where the text ends.
pub(super) fn find_unclosed_list(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut open: Vec<(usize, u8)> = Vec::new();
    let (mut at, mut is_line_start, mut is_value) = (0, true, false);
    while at < bytes.len() {
        if is_line_start
            && open.last().is_some_and(|(_, bracket)| *bracket == b'[')
            && begins_with_key(&text[at..])
        {
            return open.first().map(|(place, _)| *place);
        }
        is_line_start = false;
        match bytes[at] {
            b'\n' => {
                is_line_start = true;
                is_value &= !open.is_empty();
            }
            b'#' => {
                at += text[at..].find('\n').unwrap_or(text.len() - at);
                continue;
            }
            quote @ (b'"' | b'\'') => {
                at = skip_string(text, at, quote)?;
                continue;
            }
            b'=' => is_value = true,
            bracket @ (b'[' | b'{') if is_value => open.push((at, bracket)),
            b']' | b'}' => {
                open.pop();
            }
            _ => {}
        }
        at += 1;
    }
    let first = open.first().copied();
    first
        .filter(|(_, bracket)| *bracket == b'[')
        .map(|(place, _)| place)
}

/// Whether a line begins with a bare or quoted key and `=`.
fn begins_with_key(line: &str) -> bool {
    let line = line.split('\n').next().unwrap_or_default();
    let Some((key, _)) = line.split_once('=') else {
        return false;
    };
    let key = key.trim().trim_matches('"');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !key.is_empty() && key.chars().all(is_plain)
}

/// The place behind a string; `None` if it has no end.
fn skip_string(text: &str, start: usize, quote: u8) -> Option<usize> {
    let bytes = text.as_bytes();
    let is_long = bytes[start..].starts_with(&[quote; 3]);
    let end: &[u8] = if is_long { &[quote; 3] } else { &[quote] };
    let mut at = start + end.len();
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quote == b'"' => at += 2,
            b'\n' if !is_long => return None,
            _ if bytes[at..].starts_with(end) => return Some(at + end.len()),
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_an_end_is_found_where_it_begins() {
        for (text, expected) in [
            ("[a]\nb = [\"x\"\n[c]\nd = 1\n", Some(8)),
            ("b = [1, 2\nc = 3\n", Some(4)),
            ("b = [\n  1,\n  2\n", Some(4)),
            ("b = [\n  [1, 2],\n  [3]\n]\nc = [4\nd = 5\n", Some(28)),
            ("b = [ # ]\n 1\nc = 2", Some(4)),
            ("b = [\"]\", ']'\nc = 2\n", Some(4)),
            ("b = [1, 2]\n[t]\nc = 2\n", None),
            ("b = [\n  { x = 1 },\n  { y =\n 2 },\n]\nc = 2\n", None),
            ("b = \"\"\"\n[ x = 1\n\"\"\"\nc = [1]\n", None),
            ("[t\nc = 1\n", None),
            ("b = \"[\nc = 1\n", None),
            ("b = { x = 1\nc = 1\n", None),
        ] {
            assert_eq!(find_unclosed_list(text), expected, "{text:?}");
        }
    }
}
