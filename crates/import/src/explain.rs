//! Words of other servers, explained: `penstock config explain client_max_body_size`.

use crate::answers::{self, Product, known_words, without_links};

/// The answer for a word of another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The server.
    pub product: Product,
    /// The word, as the table has it.
    pub word: &'static str,
    /// The answer of the table, without links.
    pub answer: String,
    /// Keys of Penstock that the answer names, the most important first.
    pub keys: Vec<String>,
}

/// Explains a word in each server that has it. Case, and `-` for `_`, make no difference. A word
/// such as `maxconn` also finds `server maxconn`.
#[must_use]
pub fn explain_word(word: &str) -> Vec<Explanation> {
    let asked = normalize(word);
    if asked.is_empty() || asked.len() > MAX_WORD_BYTES {
        return Vec::new();
    }
    let mut found = Vec::new();
    for product in Product::ALL {
        let exact = known_words(product).filter(|known| normalize(known) == asked);
        let last_word = known_words(product).filter(|known| {
            let known = normalize(known);
            known
                .rsplit_once(' ')
                .is_some_and(|(_, last)| last == asked)
        });
        let words: Vec<_> = exact.chain(last_word.take(MAX_COMPOUNDS)).collect();
        found.extend(
            words
                .into_iter()
                .filter_map(|word| explanation(product, word)),
        );
    }
    found
}

/// Known words that are near, with their servers, the nearest first.
#[must_use]
pub fn similar_words(word: &str) -> Vec<(&'static str, Product)> {
    let asked = normalize(word);
    if asked.is_empty() || asked.len() > MAX_WORD_BYTES {
        return Vec::new();
    }
    let allowed = (asked.chars().count() / 4).max(1);
    let mut near: Vec<(usize, &'static str, Product)> = Vec::new();
    for product in Product::ALL {
        let distances = known_words(product).map(|known| {
            let distance = strsim::osa_distance(&asked, &normalize(known));
            (distance, known, product)
        });
        near.extend(distances.filter(|(distance, ..)| *distance <= allowed));
    }
    near.sort_unstable();
    near.dedup_by_key(|(_, word, _)| *word);
    near.truncate(MAX_SUGGESTIONS);
    near.into_iter()
        .map(|(_, word, product)| (word, product))
        .collect()
}

/// Longer than any word of a table.
const MAX_WORD_BYTES: usize = 80;
const MAX_COMPOUNDS: usize = 4;
const MAX_SUGGESTIONS: usize = 5;

fn explanation(product: Product, word: &'static str) -> Option<Explanation> {
    let answer = answers::answer(product, word)?;
    Some(Explanation {
        product,
        word,
        answer: without_links(answer),
        keys: keys_of(answer),
    })
}

/// The keys in backticks. Those behind `not offered` are of a way around.
fn keys_of(answer: &str) -> Vec<String> {
    let is_key = |name: &&str| {
        name.starts_with(|c: char| c.is_ascii_lowercase() || c == '[')
            && !name.starts_with("penstock ")
    };
    let names = answer.split('`').skip(1).step_by(2).filter(is_key);
    let names = names.map(|name| name.split(" = ").next().unwrap_or(name).to_owned());
    let mut keys: Vec<String> = Vec::new();
    for name in names {
        if !keys.contains(&name) {
            keys.push(name);
        }
    }
    keys
}

fn normalize(word: &str) -> String {
    word.trim().to_ascii_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explains_words_of_several_servers() {
        let found = explain_word("client_max_body_size");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].product, Product::Nginx);
        assert_eq!(found[0].keys, ["limits.body_bytes", "max_body_size"]);
        let maxconn: Vec<_> = explain_word("maxconn")
            .into_iter()
            .map(|it| it.word)
            .collect();
        assert!(
            maxconn.contains(&"maxconn") && maxconn.contains(&"server maxconn"),
            "{maxconn:?}"
        );
        assert!(
            explain_word("Proxy-Read-Timeout")[0]
                .answer
                .contains("response_timeout")
        );
        assert_eq!(explain_word(""), []);
        assert_eq!(explain_word(&"x".repeat(1_000_000)), []);
    }

    #[test]
    fn suggests_near_words() {
        let near = similar_words("client_max_body_sice");
        assert_eq!(near[0], ("client_max_body_size", Product::Nginx));
        assert_eq!(similar_words("zzzzzzzz"), []);
        assert!(similar_words("proxy_pas").len() <= MAX_SUGGESTIONS);
    }
}
