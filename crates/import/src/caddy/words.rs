//! The word of the table for a directive in its blocks: `reverse_proxy lb_policy`, `global email`.

use crate::answers::{self, Product};

/// Blocks whose directives are those of a site.
const TRANSPARENT: [&str; 6] = [
    "handle",
    "handle_path",
    "handle_errors",
    "route",
    "handle_response",
    "replace_status",
];

/// The word for a directive with these words, in these blocks. Each block is its first two words.
pub(super) fn table_word(outer: &[String], words: &[String]) -> String {
    let name = words.first().map(String::as_str).unwrap_or_default();
    let known = |word: &str| answers::answer(Product::Caddy, word).is_some();
    if let Some(kind) = words.get(1).filter(|_| name.starts_with('@')) {
        // A matcher on one line names its kind; one with a path alone is a path.
        return if kind.starts_with('/') {
            "matcher path".to_owned()
        } else {
            format!("matcher {kind}")
        };
    }
    if name.starts_with('@') {
        return "matcher path".to_owned();
    }
    let mut candidates: Vec<String> = Vec::new();
    // The nearest blocks, with one argument and without.
    for block in outer.iter().rev().take(2) {
        let (own, argument) = block.split_once(' ').unwrap_or((block.as_str(), ""));
        if own.starts_with('@') {
            candidates.push(format!("matcher {name}"));
        }
        if TRANSPARENT.contains(&own) {
            break;
        }
        if !argument.is_empty() {
            candidates.push(format!("{own} {argument} {name}"));
        }
        candidates.push(format!("{own} {name}"));
    }
    if let [.., above, block] = outer {
        let own = block.split(' ').next().unwrap_or_default();
        let above = above.split(' ').next().unwrap_or_default();
        candidates.insert(0, format!("{above} {own} {name}"));
    }
    candidates.push(name.to_owned());
    let found = candidates.iter().find(|word| known(word)).cloned();
    found.unwrap_or_else(|| candidates.swap_remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_words_of_the_table() {
        let rows: [(&[&str], &[&str], &str); 9] = [
            (&[], &["root", "*", "/srv"], "root"),
            (
                &["reverse_proxy 1:2"],
                &["lb_policy", "first"],
                "reverse_proxy lb_policy",
            ),
            (
                &["reverse_proxy 1:2", "transport http"],
                &["dial_timeout", "1s"],
                "transport http dial_timeout",
            ),
            (&["global"], &["email", "a@b"], "global email"),
            (
                &["global", "servers", "timeouts"],
                &["idle", "1m"],
                "servers timeouts idle",
            ),
            (&["@a"], &["path", "/x"], "matcher path"),
            (&[], &["@a", "method", "GET"], "matcher method"),
            (&["handle /x"], &["respond", "hi"], "respond"),
            (
                &["tls", "issuer acme"],
                &["email", "x"],
                "issuer acme email",
            ),
        ];
        for (outer, words, expected) in rows {
            let outer: Vec<String> = outer.iter().map(|it| (*it).to_owned()).collect();
            let words: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(table_word(&outer, &words), expected);
        }
    }
}
