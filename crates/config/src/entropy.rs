//! Whether a secret can be guessed: a low estimate of the guesses that it takes.
//!
//! Asked for keys and tokens that are all that stands before a listener; `join` and the admin
//! token.
//!
//! # Invariants
//! - The estimate is low: a text counts only for what does not follow from what stands before it,
//!   and words count for little. A text from a generator of random bytes with a fourth more than
//!   [`MIN_BITS`] passes all the same.

/// What a secret that guards a listener must have (as much as a key of AES-128).
const MIN_BITS: f64 = 128.0;

/// How much a letter of a word tells: six words of a list of 7,776 have 78 bits in about 30
/// letters.
const BITS_PER_WORD_LETTER: f64 = 2.2;

/// Letters in a row of which one is asked whether they are a word.
const MIN_WORD_LETTERS: usize = 4;

/// Whether a text has so many different characters in so irregular an order that it cannot be
/// guessed.
#[must_use]
pub fn is_hard_to_guess(text: &str) -> bool {
    estimate_bits(text) >= MIN_BITS
}

/// A low estimate of the entropy of a text, in bits.
fn estimate_bits(text: &str) -> f64 {
    let characters: Vec<char> = text.chars().collect();
    let each = bits_per_character(&characters);
    let words = mark_words(&characters);
    let counted =
        characters
            .iter()
            .enumerate()
            .map(|(at, _)| match is_predictable(&characters, at) {
                true => 0.0,
                false if words[at] => each.min(BITS_PER_WORD_LETTER),
                false => each,
            });
    counted.sum()
}

/// What one character tells, by how often each occurs (Shannon).
fn bits_per_character(characters: &[char]) -> f64 {
    let mut sorted = characters.to_vec();
    sorted.sort_unstable();
    let count = characters.len() as f64;
    let share = |same: &[char]| same.len() as f64 / count;
    let parts = sorted.chunk_by(|one, other| one == other).map(share);
    parts.map(|share| -share * share.log2()).sum()
}

/// Whether a character follows from those before it: it repeats or continues a row (`aaa`, `123`,
/// `fed`), or it ends three that stood before.
fn is_predictable(characters: &[char], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).and_then(|at| characters.get(at)) else {
        return false;
    };
    let step = i64::from(u32::from(characters[at])) - i64::from(u32::from(*before));
    if (-1..=1).contains(&step) {
        return true;
    }
    let Some(start) = at.checked_sub(2) else {
        return false;
    };
    let last = &characters[start..=at];
    characters[..at].windows(3).any(|earlier| earlier == last)
}

/// Which characters belong to words: letters in a row, but for the first in one case, with as many
/// vowels as languages have.
fn mark_words(characters: &[char]) -> Vec<bool> {
    let mut found = vec![false; characters.len()];
    let mut at = 0;
    while at < characters.len() {
        let letters = characters[at..].iter().take_while(|c| c.is_alphabetic());
        let mut length = letters.count();
        // A word begins anew where a small letter is followed by a large one.
        let run = &characters[at..at + length];
        let end = run
            .windows(2)
            .position(|two| two[0].is_lowercase() && two[1].is_uppercase());
        length = end.map_or(length, |end| end + 1);
        let run = &characters[at..at + length];
        let rest = run.get(1..).unwrap_or_default();
        let is_one_case =
            rest.iter().all(|c| c.is_lowercase()) || run.iter().all(|c| c.is_uppercase());
        let is_vowel = |c: &&char| "aeiouyAEIOUY".contains(**c) || !c.is_ascii();
        let vowels = run.iter().filter(is_vowel).count();
        if length >= MIN_WORD_LETTERS && is_one_case && vowels * 10 >= length * 3 {
            found[at..at + length].fill(true);
        }
        at += length.max(1);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_somebody_has_thought_of() {
        for text in [
            "",
            "secret",
            "0123456789abcdef0123456789abcdef",
            "0123456789abcdefghijklmnopqrstuvwxyz0123456789",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "abababababababababababababababababababababababab",
            "32 bytes or more that nobody else knows",
            "another key, of which nobody here knows",
            "correct horse battery staple correct horse",
            "correct horse battery staple wonderful morning",
            "ThisIsTheSecretKeyOfOurJoinedMachines2026",
            "!ChangeThisMercureHubJWTSecretKey!",
            "changeme-changeme-changeme-changeme-changeme",
            "passwordpasswordpasswordpasswordpassword1",
            "qwertyuiopasdfghjklzxcvbnm",
            "d41d8cd9",
            "550e8400-e29b-41d4-a716",
            "J8nC2vQm0dT5yWkX",
        ] {
            assert!(
                !is_hard_to_guess(text),
                "{text:?} has {} bits",
                estimate_bits(text)
            );
        }
    }

    /// Numbers that look drawn (splitmix64).
    fn drawn(seed: u64, count: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)).to_le_bytes()[0]
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn takes_what_a_generator_makes() {
        const BASE64: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for seed in 0..2000 {
            let bytes = drawn(seed, 64);
            let hex: String = bytes[..32]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert!(
                is_hard_to_guess(&hex),
                "{hex} has {} bits",
                estimate_bits(&hex)
            );
            let of = |byte: &u8| char::from(BASE64[usize::from(byte & 63)]);
            let base64: String = bytes[..43].iter().map(of).collect();
            assert!(
                is_hard_to_guess(&base64),
                "{base64} has {} bits",
                estimate_bits(&base64)
            );
            let of = |byte: &u8| char::from(BASE64[usize::from(byte % 62)]);
            let plain: String = bytes[..40].iter().map(of).collect();
            assert!(
                is_hard_to_guess(&plain),
                "{plain} has {} bits",
                estimate_bits(&plain)
            );
        }
    }
}
