//! Forms that are updates, forms that are none, and the events they become.

use std::collections::HashSet;

use super::*;

const MESSAGE_BYTES: usize = 1000;

fn event(form: &str) -> String {
    let draft = Draft::parse(form.as_bytes()).expect(form);
    let update = Update::new(draft, MESSAGE_BYTES).expect(form);
    String::from_utf8(update.event.to_vec()).unwrap()
}

#[test]
fn a_form_becomes_an_event() {
    for (form, expected) in [
        ("topic=a&id=1&data=hi", "id: 1\ndata: hi\n\n"),
        ("id=1&topic=a", "id: 1\ndata: \n\n"),
        (
            "topic=a&id=1&data=two%0Alines%0D%0Aand+%26",
            "id: 1\ndata: two\ndata: lines\ndata: and &\n\n",
        ),
        (
            "topic=a&id=urn%3Ax&type=changed&retry=1500&data=%7B%7D&private=on&other=1",
            "retry: 1500\nevent: changed\nid: urn:x\ndata: {}\n\n",
        ),
        (
            "topic=a&id=1&type=&retry=&data=x%0A%0Aid:+2",
            "id: 1\ndata: x\ndata: \ndata: id: 2\n\n",
        ),
        (
            "topic=a&id=%C3%A9&data=%C3%A9%FF",
            "id: é\ndata: é\u{fffd}\n\n",
        ),
    ] {
        assert_eq!(event(form), expected, "{form}");
    }
}

#[test]
fn topics_keep_their_order_and_private_is_said_by_its_name() {
    let draft = Draft::parse(b"topic=b&topic=a%2F1&private=&data=1").unwrap();
    assert_eq!(draft.topics, ["b".into(), "a/1".into()] as [Box<str>; 2]);
    assert!(draft.is_private);
    let draft = Draft::parse(b"topic=b").unwrap();
    assert!(!draft.is_private);
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let many = "topic=a&".repeat(TOPICS_MAX + 1);
    let thousand = "topic=a&".repeat(1000);
    let long_topic = format!("topic={}", "a".repeat(100_000));
    let long_id = format!("topic=a&id={}", "a".repeat(LINE_BYTES_MAX + 1));
    for (form, expected) in [
        ("", DraftError::NoTopic),
        ("data=1", DraftError::NoTopic),
        ("{\"topic\":\"a\"}", DraftError::NoTopic),
        ("topic=", DraftError::Topic(SelectorError::Empty)),
        (&*many, DraftError::TooManyTopics),
        (&*thousand, DraftError::TooManyTopics),
        (&*long_topic, DraftError::Topic(SelectorError::TooLong)),
        (&*long_id, DraftError::Line("id")),
        ("topic=a&id=1%0Adata:+forged", DraftError::Line("id")),
        ("topic=a&id=1%0D%0ASet-Cookie:+a", DraftError::Line("id")),
        ("topic=a&id=1%00", DraftError::Line("id")),
        ("topic=a&id=%C2%85", DraftError::Line("id")),
        ("topic=a&type=x%0Adata:+forged", DraftError::Line("type")),
        ("topic=a&type=x%0D", DraftError::Line("type")),
        ("topic=a&id=earliest", DraftError::ReservedId),
        ("topic=a&id=%23x", DraftError::ReservedId),
        ("topic=a&retry=soon", DraftError::Retry),
        ("topic=a&retry=-1", DraftError::Retry),
        ("topic=a&retry=%2B1", DraftError::Retry),
        ("topic=a&retry=1.5", DraftError::Retry),
        ("topic=a&retry=99999999999999999999", DraftError::Retry),
        ("topic=a&id=1&id=2", DraftError::Twice("id")),
        ("topic=a&data=1&data=2", DraftError::Twice("data")),
    ] {
        let head: String = form.chars().take(60).collect();
        assert_eq!(Draft::parse(form.as_bytes()), Err(expected), "{head}");
    }
    let topics = "topic=a&".repeat(TOPICS_MAX);
    assert!(Draft::parse(topics.as_bytes()).is_ok());
}

#[test]
fn an_event_is_bounded_with_all_its_lines() {
    for (data, is_small) in [
        ("a".repeat(MESSAGE_BYTES - 15), true),
        ("a".repeat(MESSAGE_BYTES), false),
        // Each line costs seven bytes.
        ("\n".repeat(MESSAGE_BYTES / 8), true),
        ("\n".repeat(MESSAGE_BYTES / 7), false),
    ] {
        let draft = Draft {
            topics: vec!["a".into()],
            id: Some("1".to_owned()),
            data,
            ..Draft::default()
        };
        let bytes = draft.data.len();
        assert_eq!(
            Update::new(draft, MESSAGE_BYTES).is_ok(),
            is_small,
            "{bytes}"
        );
    }
}

#[test]
fn ids_of_our_own_are_random_uuids() {
    let ids: HashSet<String> = (0..100).map(|_| new_id()).collect();
    assert_eq!(ids.len(), 100);
    for id in ids {
        let uuid = id.strip_prefix("urn:uuid:").unwrap();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(uuid.as_bytes()[14], b'4', "{id}");
        assert!(b"89ab".contains(&uuid.as_bytes()[19]), "{id}");
    }
}
