//! Content negotiation: `Accept` and `Accept-Encoding` (RFC 9110 §12.4, §12.5).
//!
//! `edge` asks whether an error page should be HTML, `files` which coding of a file to send. Lists
//! of any length take one pass without allocation. A malformed element is ignored.

use crate::grammar::{list_elements, starts_with_ignore_case, trim_blanks};

/// Whether a media type such as `text/html` is acceptable. Without the field every type is.
pub fn accepts_media_type(list: Option<&[u8]>, media: &str) -> bool {
    list.is_none_or(|list| media_type_weight(list, media) > 0)
}

/// Whether the client prefers `media` to `other`. False without the field, and for a client that
/// accepts anything.
pub fn prefers_media_type(list: Option<&[u8]>, media: &str, other: &str) -> bool {
    list.is_some_and(|list| media_type_weight(list, media) > media_type_weight(list, other))
}

/// Whether the value of a `Content-Type` names this media type, whatever its parameters.
pub fn is_media_type(value: &[u8], media: &str) -> bool {
    let essence = value.split(|&byte| byte == b';').next().unwrap_or_default();
    trim_blanks(essence).eq_ignore_ascii_case(media.as_bytes())
}

/// The result of negotiating a coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodingChoice {
    /// The content without a coding.
    Identity,
    /// The coding with that index.
    Coding(usize),
    /// The client refuses every option.
    NotAcceptable,
}

/// Chooses between identity and `codings`, in the server's order of preference, by the values of
/// `Accept-Encoding`, which are iterated several times (RFC 9110 §12.5.3).
///
/// The highest weight wins, and the earlier of two equal ones. Identity wins without the field, or
/// if the client names it with the highest weight. A client that names no coding but sends `*` gets
/// a coding only if it prefers that to identity: few such clients can decode them all.
pub fn negotiate_coding<'a, 'c, I>(
    lists: impl Fn() -> I,
    codings: impl IntoIterator<Item = &'c str>,
) -> CodingChoice
where
    I: Iterator<Item = &'a [u8]>,
{
    let weight = |coding: &[u8]| {
        let found = lists().map(|list| {
            find_preference(list, |range| match range {
                b"*" => Some(1),
                _ => range.eq_ignore_ascii_case(coding).then_some(2),
            })
        });
        found.max().unwrap_or_default()
    };
    // Acceptable unless refused, but last if it is not named.
    let identity = weight(b"identity");
    let mut best = (CodingChoice::Identity, identity.weight);
    match identity {
        Preference { specificity: 0, .. } => best.1 = 0,
        Preference { weight: 0, .. } => best = (CodingChoice::NotAcceptable, 0),
        Preference { .. } => {}
    }
    for (number, coding) in codings.into_iter().enumerate() {
        let found = weight(coding.as_bytes());
        // A named coding beats identity of equal weight if identity is not named.
        let is_favoured =
            best.0 == CodingChoice::Identity && found.specificity > identity.specificity;
        if found.weight > best.1 || (is_favoured && found.weight > 0 && found.weight == best.1) {
            best = (CodingChoice::Coding(number), found.weight);
        }
    }
    best.0
}

/// The weight in thousandths of the most specific matching element, 0 without one.
fn media_type_weight(list: &[u8], media: &str) -> u16 {
    find_preference(list, |range| {
        media_type_specificity(range, media.as_bytes())
    })
    .weight
}

/// How closely a list matches (0 for no match), and the weight in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Preference {
    specificity: u8,
    weight: u16,
}

/// The best match; `specificity` rates that of an element.
fn find_preference(list: &[u8], specificity: impl Fn(&[u8]) -> Option<u8>) -> Preference {
    let mut best = Preference::default();
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
            best = best.max(Preference {
                specificity: rank,
                weight,
            });
        }
    }
    best
}

fn media_type_specificity(range: &[u8], media: &[u8]) -> Option<u8> {
    if range == b"*/*" {
        return Some(1);
    }
    if let Some(kind) = range.strip_suffix(b"/*") {
        let is_kind = media.get(kind.len()) == Some(&b'/') && starts_with_ignore_case(media, kind);
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
            assert_eq!(
                accepts_media_type(list, "text/html"),
                accepts_html,
                "{what}"
            );
            assert_eq!(
                prefers_media_type(list, "text/html", "text/plain"),
                prefers_html,
                "{what}"
            );
        }
    }

    #[test]
    fn the_heaviest_coding_wins_and_the_favourite_of_equals() {
        use CodingChoice::{Coding, Identity, NotAcceptable};
        const ALL: &[&str] = &["zstd", "br", "gzip"];
        for (what, lists, codings, expected) in [
            ("nothing said", &[][..], ALL, Identity),
            ("empty", &[""], ALL, Identity),
            ("a browser", &["gzip, deflate, br, zstd"], ALL, Coding(0)),
            ("an older one", &["gzip, deflate, br"], ALL, Coding(1)),
            ("two fields", &["gzip", "br"], ALL, Coding(1)),
            ("the only one", &["gzip"], ALL, Coding(2)),
            ("not there", &["gzip"], &["br"], Identity),
            ("no codings", &["gzip"], &[], Identity),
            ("unknown ones", &["deflate, compress"], ALL, Identity),
            (
                "weights",
                &["zstd;q=0.1, br;q=0.3, gzip;q=0.2"],
                ALL,
                Coding(1),
            ),
            ("upper case", &["GZIP;Q=0.5"], ALL, Coding(2)),
            ("all but one", &["gzip;q=0, br;q=0, zstd"], ALL, Coding(0)),
            ("none", &["gzip;q=0, br;q=0, zstd;q=0"], ALL, Identity),
            ("as it is", &["identity"], ALL, Identity),
            ("rather as it is", &["identity, gzip;q=0.5"], ALL, Identity),
            (
                "as it is named too",
                &["gzip, identity;q=0.5"],
                ALL,
                Coding(2),
            ),
            ("both named alike", &["gzip, identity"], ALL, Identity),
            ("anything", &["*"], ALL, Identity),
            ("anything rather", &["*, identity;q=0.5"], ALL, Coding(0)),
            ("named and anything", &["gzip, *"], ALL, Coding(2)),
            ("named and nothing else", &["gzip, *;q=0"], ALL, Coding(2)),
            ("not as it is", &["identity;q=0"], ALL, NotAcceptable),
            (
                "not as it is, but so",
                &["identity;q=0, br;q=0.001"],
                ALL,
                Coding(1),
            ),
            ("anything else", &["identity;q=0, *;q=0.1"], ALL, Coding(0)),
            ("nothing at all", &["*;q=0"], ALL, NotAcceptable),
            ("bad weight", &["gzip;q=2, br;q=-1"], ALL, Identity),
            ("control", &["gzip;q=0.0001"], ALL, Identity),
        ] {
            let lists = || lists.iter().map(|list| list.as_bytes());
            assert_eq!(
                negotiate_coding(lists, codings.iter().copied()),
                expected,
                "{what}"
            );
        }
    }
}
