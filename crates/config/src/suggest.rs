//! The word that was probably meant.
//!
//! Used wherever a key, a choice or a name is unknown.
//!
//! # Invariants
//! - A suggestion is near enough that a reader sees why it was made, and a long stranger's word
//!   costs no more than a short one.

/// The nearest of `words` to `word`, none when all are too far.
pub(crate) fn nearest_word<'a>(
    word: &str,
    words: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    if word.len() > MAX_WORD_BYTES {
        return None;
    }
    let word = word.to_ascii_lowercase().replace('-', "_");
    let allowed = (word.chars().count() / 3).max(1);
    words
        .into_iter()
        .map(|candidate| {
            let far = strsim::osa_distance(&word, &candidate.to_ascii_lowercase());
            (far, candidate)
        })
        .filter(|(far, _)| *far <= allowed)
        .min_by_key(|(far, _)| *far)
        .map(|(_, candidate)| candidate.to_owned())
}

/// Longer than any word we know: nothing could be near.
const MAX_WORD_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_word_that_was_meant() {
        let words = ["threads", "listen", "admin", "access_log"];
        let rows = [
            ("theads", Some("threads")),
            ("thraeds", Some("threads")),
            ("Listen", Some("listen")),
            ("access-log", Some("access_log")),
            ("acces_logs", Some("access_log")),
            ("banana", None),
            ("", None),
        ];
        for (word, expected) in rows {
            assert_eq!(nearest_word(word, words).as_deref(), expected, "{word}");
        }
    }

    #[test]
    fn gives_no_suggestion_for_an_endless_word() {
        assert_eq!(nearest_word(&"x".repeat(1_000_000), ["x"]), None);
    }
}
