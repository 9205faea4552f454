//! Selectors and sets of them.

use super::*;

fn set(texts: &[&str]) -> SelectorSet {
    let selectors = texts
        .iter()
        .map(|text| TopicSelector::new(text).expect(text));
    SelectorSet::new(selectors.collect())
}

fn topics(texts: &[&str]) -> Vec<Box<str>> {
    texts.iter().map(|text| (*text).into()).collect()
}

#[test]
fn a_selector_is_everything_a_string_or_a_template() {
    for (selector, yes, no) in [
        ("*", &["a", "https://example.com/{id}"][..], &[][..]),
        ("/a", &["/a"], &["/a/", "/A", "/a?"]),
        // Spelled as it is, and expanded.
        ("/a/{id}", &["/a/{id}", "/a/1"], &["/a/1/2"]),
        ("/a/{id", &["/a/{id"], &["/a/1"]),
        ("*x", &["*x"], &["ax"]),
    ] {
        let selector = TopicSelector::new(selector).unwrap();
        for topic in yes {
            assert!(selector.matches(topic), "{selector:?} {topic}");
        }
        for topic in no {
            assert!(!selector.matches(topic), "{selector:?} {topic}");
        }
    }
}

#[test]
fn selectors_have_bounds() {
    let complex = "{a}".repeat(MAX_TEMPLATE_VARIABLES + 1);
    let huge = "a".repeat(100_000);
    for (text, error) in [
        ("", SelectorError::Empty),
        (&*huge, SelectorError::TooLong),
        (&*complex, SelectorError::TooComplex),
    ] {
        assert_eq!(TopicSelector::new(text).unwrap_err(), error);
    }
    assert!(TopicSelector::new(&"a".repeat(MAX_TOPIC_BYTES)).is_ok());
}

#[test]
fn sets_of_the_same_words_are_equal() {
    assert_eq!(set(&["b", "a", "b"]), set(&["a", "b"]));
    assert_eq!(set(&["b", "*", "a"]), set(&["*"]));
    assert_ne!(set(&["a"]), set(&["a", "b"]));
    assert_eq!(set(&["b", "a", "a"]).iter().count(), 2);
}

#[test]
fn a_set_selects_what_one_of_it_selects() {
    let some = set(&["/a", "/b/{id}"]);
    for (list, any, all) in [
        (&["/a"][..], true, true),
        (&["/a", "/b/1"], true, true),
        (&["/a", "/c"], true, false),
        (&["/c"], false, false),
    ] {
        assert_eq!(some.matches_any(&topics(list)), any, "{list:?}");
        assert_eq!(some.matches_all(&topics(list)), all, "{list:?}");
    }
    assert!(!SelectorSet::default().matches("a"));
    assert!(SelectorSet::default().is_empty());
}
