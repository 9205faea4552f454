//! Variants: RFC 9111 §4.1.

use super::*;

fn names(text: &[&str]) -> Vec<String> {
    text.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn reads_the_names_of_vary() {
    for (fields, expected) in [
        ("", VaryFields::Names(vec![])),
        ("Vary: ", VaryFields::Names(vec![])),
        ("Vary: Accept", VaryFields::Names(names(&["accept"]))),
        (
            "Vary: B, a,,A | vary: c",
            VaryFields::Names(names(&["a", "b", "c"])),
        ),
        ("Vary: *", VaryFields::Any),
        ("Vary: a, *, b", VaryFields::Any),
        ("Vary: a | Vary: *", VaryFields::Any),
        ("Vary: \"a\"", VaryFields::Any),
    ] {
        assert_eq!(parse_vary(&block(fields)), expected, "{fields}");
    }
}

#[test]
fn requests_match_when_they_send_the_named_fields_alike() {
    for (name, one, other, expected) in [
        ("x", "X: 1", "x: 1", true),
        ("x", "X: 1 | Y: 1", "X: 1 | Y: 2", true),
        ("x", "X: 1", "X: 2", false),
        ("x", "X: a", "X: A", false),
        ("x", "", "", true),
        ("x", "", "X: 1", false),
        ("x", "", "X: ", false),
        ("x", "X: a | X: b", "X: a,b", true),
        ("x", "X: a, b", "X: a,b", false),
        ("cookie", "Cookie: a=1; b=2", "Cookie: b=2; a=1", false),
        ("accept", "Accept: a/b , c/d", "Accept: a/b,c/d", true),
        (
            "accept",
            "Accept: a/b | Accept: c/d",
            "Accept: a/b, c/d",
            true,
        ),
        ("accept", "Accept: a/b", "Accept: A/B", false),
        ("accept", "Accept: a/b, c/d", "Accept: c/d, a/b", false),
        (
            "accept-language",
            "Accept-Language: de, EN",
            "Accept-Language: DE,en",
            true,
        ),
        (
            "accept-language",
            "Accept-Language: de",
            "Accept-Language: en",
            false,
        ),
    ] {
        let key = |fields: &str| variant_key(&get(fields), &names(&[name]));
        assert_eq!(key(one) == key(other), expected, "{one} / {other}");
    }
}

#[test]
fn codings_are_a_set() {
    for (one, other, expected) in [
        ("gzip, br", "br,gzip", true),
        ("gzip;q=0.5, br", "br;q=0.1, GZIP", true),
        ("gzip, br, br", "br, gzip", true),
        ("x-gzip", "gzip", true),
        ("gzip, identity", "gzip", true),
        ("gzip", "gzip, zstd;q=0", true),
        ("gzip", "gzip, zstd;q=0.000", true),
        ("gzip", "gzip, zstd;q=0.001", false),
        ("gzip", "br", false),
        ("gzip", "gzip, deflate", false),
        ("gzip", "gzip, identity;q=0", false),
        ("*", "*, br;q=0", false),
        ("*", "gzip", false),
        ("gzip", "gzip, *;q=0", false),
        ("", "identity", true),
    ] {
        let key = |value: &str| {
            variant_key(
                &get(&format!("Accept-Encoding: {value}")),
                &names(&["accept-encoding"]),
            )
        };
        assert_eq!(key(one) == key(other), expected, "{one} / {other}");
        let absent = variant_key(&get(""), &names(&["accept-encoding"]));
        assert_ne!(key(one), absent, "{one}");
    }
}

#[test]
fn one_field_cannot_pass_for_two() {
    let both = names(&["a", "b"]);
    let key = |fields: &str| variant_key(&get(fields), &both);
    let keys = [
        key(""),
        key("A: 1"),
        key("B: 1"),
        key("A: 1 | B: 1"),
        key("A: 1b:1"),
        key("A: :1 | B: "),
        key("A: 1b:"),
        key("A: 1 | B: b"),
        key("A: , | B: 1"),
    ];
    for (at, one) in keys.iter().enumerate() {
        assert!(keys[at + 1..].iter().all(|other| one != other), "{at}");
    }
}
