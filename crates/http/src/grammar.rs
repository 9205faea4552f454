//! Byte classes of RFC 9110, and small parsers and writers for the rest of the crate.
//!
//! Classes are tables: the class of a byte is one load, and the table can be compared with the RFC.
//! Every function accepts any byte.

/// Whether `byte` may occur in a token (RFC 9110 §5.6.2).
pub(crate) const fn is_token_byte(byte: u8) -> bool {
    TOKEN_BYTES[byte as usize]
}

/// Whether a token equals `known`, ignoring case. `known` has lower-case letters, digits and
/// hyphens only. Its length is known at compile time, so whole words are compared at once.
#[must_use]
pub fn token_eq_ignore_case<const N: usize>(token: &[u8], known: &[u8; N]) -> bool {
    // With this bit set, the token's bytes equal those of `known` exactly if they differ in case
    // only.
    <&[u8; N]>::try_from(token).is_ok_and(|token| {
        let bytes = token.iter().zip(known);
        bytes.fold(0, |differs, (byte, known)| {
            differs | ((byte | 0x20) ^ known)
        }) == 0
    })
}

/// Whether `bytes` starts with `start`, ignoring ASCII case.
#[must_use]
pub fn starts_with_ignore_case(bytes: impl AsRef<[u8]>, start: impl AsRef<[u8]>) -> bool {
    let (bytes, start) = (bytes.as_ref(), start.as_ref());
    let found = bytes.get(..start.len());
    found.is_some_and(|found| found.eq_ignore_ascii_case(start))
}

/// Whether `bytes` is a token: not empty and token bytes only (RFC 9110 §5.6.2).
#[must_use]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))
}

/// Whether `byte` may occur in a field value: HTAB, SP, VCHAR, obs-text (RFC 9110 §5.5).
pub(crate) const fn is_field_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// Whether all of `bytes` may occur in a field value.
#[must_use]
pub fn is_field_value(bytes: &[u8]) -> bool {
    valid_value_prefix_len(bytes) == bytes.len()
}

/// Length of the prefix of `bytes` that may occur in a field value.
pub(crate) fn valid_value_prefix_len(bytes: &[u8]) -> usize {
    let first_bad = |bytes: &[u8]| bytes.iter().position(|&byte| !is_field_value_byte(byte));
    let (words, rest) = bytes.as_chunks::<8>();
    let mut len = 0;
    for word in words {
        // Eight bytes at a time. A word with possible invalid bytes (a tab is one) is checked byte
        // by byte.
        let doubts = invalid_byte_mask(u64::from_le_bytes(*word));
        if doubts != 0 {
            let first = doubts.trailing_zeros() as usize / 8;
            if let Some(bad) = first_bad(&word[first..]) {
                return len + first + bad;
            }
        }
        len += 8;
    }
    len + first_bad(rest).unwrap_or(rest.len())
}

/// Marks bytes below the space, and DEL, by their highest bits. Uses the common test for a zero
/// byte: the lowest mark is exact, higher ones may result from its borrow, and none is missing.
const fn invalid_byte_mask(word: u64) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    let below_space = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
    let without_del = word ^ (ONES * 0x7f);
    let del = without_del.wrapping_sub(ONES) & !without_del & HIGH;
    below_space | del
}

/// `bytes` without blanks (SP, HTAB) at either end (RFC 9110 §5.6.3, OWS).
#[must_use]
pub fn trim_blanks(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The elements of a comma-separated list without quoted strings, trimmed, without empty ones.
pub fn list_elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(trim_blanks)
        .filter(|element| !element.is_empty())
}

/// Parses a number of digits only. `None` if empty, with any other byte, or above `u64`.
pub(crate) fn parse_u64(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses a length: 1*DIGIT (RFC 9110 §8.6), at most a signed 64-bit offset, since parsers differ
/// beyond that. The only parser of `Content-Length` in the workspace.
#[must_use]
pub fn parse_content_length(digits: &[u8]) -> Option<u64> {
    parse_u64(digits).filter(|&length| i64::try_from(length).is_ok())
}

/// Appends `number` in decimal, without the formatting machinery.
pub(crate) fn push_decimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Digits up to base sixteen, lower case.
pub(crate) const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

const TOKEN_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let punctuation = b"!#$%&'*+-.^_`|~";
    let mut at = 0;
    while at < punctuation.len() {
        table[punctuation[at] as usize] = true;
        at += 1;
    }
    let mut byte = 0;
    while byte < 256 {
        #[allow(clippy::cast_possible_truncation, reason = "the loop ends at 255")]
        if (byte as u8).is_ascii_alphanumeric() {
            table[byte] = true;
        }
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_decimals_of_every_length() {
        for number in [0, 7, 10, 99, 1234567890, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(&mut out, number);
            assert_eq!(out, number.to_string().as_bytes());
        }
    }

    #[test]
    fn reads_digits_only() {
        for (text, expected) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("+5", None),
            ("5 ", None),
        ] {
            assert_eq!(parse_u64(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_length_fits_a_signed_offset() {
        for (text, expected) in [
            ("0", Some(0)),
            ("9223372036854775807", Some(i64::MAX as u64)),
            ("9223372036854775808", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1 ", None),
        ] {
            assert_eq!(parse_content_length(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn tokens_are_the_seventy_seven_bytes_of_the_rfc() {
        let count = (0..=255u8).filter(|&byte| is_token_byte(byte)).count();
        assert_eq!(count, 10 + 26 + 26 + 15);
        assert!(!is_token(b"") && !is_token(b"a b") && is_token(b"x-a"));
    }

    #[test]
    fn a_value_is_judged_by_each_of_its_bytes() {
        for byte in 0..=255_u8 {
            for len in [1, 7, 8, 9, 16, 21] {
                for at in [0, len / 2, len - 1] {
                    let mut value = vec![b'a'; len];
                    value[at] = byte;
                    let good = if is_field_value_byte(byte) { len } else { at };
                    assert_eq!(
                        valid_value_prefix_len(&value),
                        good,
                        "{byte} at {at} of {len}"
                    );
                    assert_eq!(is_field_value(&value), good == len);
                }
            }
        }
        assert!(is_field_value(b"") && is_field_value(b"a\tb c\xff d e f g h"));
        assert_eq!(valid_value_prefix_len(b"a\tb\rc d e f g h"), 3);
        assert_eq!(valid_value_prefix_len(b"a\tb \x7f\x01d e f g h"), 4);
    }

    #[test]
    fn splits_lists_and_drops_empty_elements() {
        let elements: Vec<_> = list_elements(b" a ,, b\t,").collect();
        assert_eq!(elements, [b"a", b"b"]);
    }
}
