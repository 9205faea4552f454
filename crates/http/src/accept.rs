//! What a client would like to get: `Accept` and `Accept-Encoding` (RFC 9110 §12.4, §12.5).
//!
//! `edge` asks whether an error page should be HTML, `files` whether a compressed variant will do.
//! Lists of any length cost one pass and nothing is kept; a malformed element counts for nothing.

use crate::grammar::{list_elements, trim_blanks};

/// Whether a media type such as `text/html` is acceptable; everything is without the field.
pub fn accepts(list: Option<&[u8]>, media: &str) -> bool {
    list.is_none_or(|list| quality(list, |range| media_match(range, media.as_bytes())) > 0)
}

/// Whether the client asks for `media` rather than for `other`; false without the field and for a
/// client that takes anything.
pub fn prefers(list: Option<&[u8]>, media: &str, other: &str) -> bool {
    list.is_some_and(|list| {
        quality(list, |range| media_match(range, media.as_bytes()))
            > quality(list, |range| media_match(range, other.as_bytes()))
    })
}

/// Whether a content coding such as `br` may be sent; none may without the field.
pub fn accepts_coding(list: Option<&[u8]>, coding: &str) -> bool {
    list.is_some_and(|list| {
        quality(list, |range| match range {
            b"*" => Some(1),
            _ => range.eq_ignore_ascii_case(coding.as_bytes()).then_some(2),
        }) > 0
    })
}

/// The weight in thousandths given by the most specific element that matches, 0 when none does.
/// `specificity` says how closely an element matches.
fn quality(list: &[u8], specificity: impl Fn(&[u8]) -> Option<u8>) -> u16 {
    let mut best = (0, 0);
    for element in list_elements(list) {
        let mut parts = element.split(|&byte| byte == b';').map(trim_blanks);
        let range = parts.next().unwrap_or_default();
        let weight = parts
            .find_map(|part| {
                part.strip_prefix(b"q=")
                    .or_else(|| part.strip_prefix(b"Q="))
            })
            .map_or(Some(1000), parse_weight);
        if let (Some(rank), Some(weight)) = (specificity(range), weight) {
            best = best.max((rank, weight));
        }
    }
    best.1
}

fn media_match(range: &[u8], media: &[u8]) -> Option<u8> {
    if range == b"*/*" {
        return Some(1);
    }
    if let Some(kind) = range.strip_suffix(b"/*") {
        let is_kind = media.get(kind.len()) == Some(&b'/')
            && media
                .get(..kind.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(kind));
        return is_kind.then_some(2);
    }
    range.eq_ignore_ascii_case(media).then_some(3)
}

// RFC 9110 §12.4.2: 0 to 1 with at most three decimals.
fn parse_weight(text: &[u8]) -> Option<u16> {
    let (whole, decimals) = match text {
        [whole] => (whole, b"".as_slice()),
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return None,
    };
    let digits = [*whole]
        .into_iter()
        .chain(decimals.iter().copied())
        .chain(*b"000")
        .take(4);
    let mut weight = 0u16;
    for digit in digits {
        weight = weight * 10 + digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
    }
    (weight <= 1000).then_some(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROWSER: &[u8] =
        b"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";

    #[test]
    fn tells_browsers_from_tools() {
        for (what, list, accepts_html, prefers_html) in [
            ("browser", Some(BROWSER), true, true),
            ("curl", Some(b"*/*".as_slice()), true, false),
            ("nothing said", None, true, false),
            ("json only", Some(b"application/json"), false, false),
            ("any text", Some(b"text/*"), true, false),
            ("html refused", Some(b"text/html;q=0, */*"), false, false),
            (
                "plain first",
                Some(b"text/html;q=0.5, text/plain"),
                true,
                false,
            ),
            (
                "html first",
                Some(b"text/plain; q=0.5, TEXT/HTML ; level=1;q=0.501"),
                true,
                true,
            ),
            ("empty", Some(b""), false, false),
            (
                "bad weight",
                Some(b"text/html;q=2, text/plain;q=x"),
                false,
                false,
            ),
        ] {
            assert_eq!(accepts(list, "text/html"), accepts_html, "{what}");
            assert_eq!(
                prefers(list, "text/html", "text/plain"),
                prefers_html,
                "{what}"
            );
        }
    }

    #[test]
    fn codings_must_be_offered() {
        let many = "x,".repeat(1000) + "br";
        for (list, expected) in [
            (None, false),
            (Some("gzip, deflate, br"), true),
            (Some("gzip"), false),
            (Some("br;q=0"), false),
            (Some("BR;q=0.001"), true),
            (Some("*"), true),
            (Some("*;q=0.5, br;q=0"), false),
            (Some("*;q=0"), false),
            (Some(many.as_str()), true),
        ] {
            assert_eq!(
                accepts_coding(list.map(str::as_bytes), "br"),
                expected,
                "{list:?}"
            );
        }
    }
}
