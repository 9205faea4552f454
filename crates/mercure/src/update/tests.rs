//! Forms that are updates, forms that are none, and the events they become.

use std::collections::HashSet;

use super::*;

const MESSAGE_BYTES: usize = 1000;

fn event(form: &str) -> String {
    let draft = UpdateDraft::parse(form.as_bytes()).expect(form);
    let update = Update::new(draft, MESSAGE_BYTES).expect(form);
    String::from_utf8(update.encoded_event.to_vec()).unwrap()
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
fn topics_keep_their_order_and_private_needs_no_value() {
    let draft = UpdateDraft::parse(b"topic=b&topic=a%2F1&private=&data=1").unwrap();
    assert_eq!(draft.topics, ["b".into(), "a/1".into()] as [Box<str>; 2]);
    assert!(draft.is_private);
    let draft = UpdateDraft::parse(b"topic=b").unwrap();
    assert!(!draft.is_private);
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let many = "topic=a&".repeat(MAX_TOPICS + 1);
    let thousand = "topic=a&".repeat(1000);
    let long_topic = format!("topic={}", "a".repeat(100_000));
    let long_id = format!("topic=a&id={}", "a".repeat(MAX_ID_BYTES + 1));
    for (form, expected) in [
        ("", UpdateDraftError::NoTopic),
        ("data=1", UpdateDraftError::NoTopic),
        ("{\"topic\":\"a\"}", UpdateDraftError::NoTopic),
        (
            "topic=",
            UpdateDraftError::InvalidTopic(SelectorError::Empty),
        ),
        (&*many, UpdateDraftError::TooManyTopics),
        (&*thousand, UpdateDraftError::TooManyTopics),
        (
            &*long_topic,
            UpdateDraftError::InvalidTopic(SelectorError::TooLong),
        ),
        (&*long_id, UpdateDraftError::InvalidLine("id")),
        (
            "topic=a&id=1%0Adata:+forged",
            UpdateDraftError::InvalidLine("id"),
        ),
        (
            "topic=a&id=1%0D%0ASet-Cookie:+a",
            UpdateDraftError::InvalidLine("id"),
        ),
        ("topic=a&id=1%00", UpdateDraftError::InvalidLine("id")),
        ("topic=a&id=%C2%85", UpdateDraftError::InvalidLine("id")),
        (
            "topic=a&type=x%0Adata:+forged",
            UpdateDraftError::InvalidLine("type"),
        ),
        ("topic=a&type=x%0D", UpdateDraftError::InvalidLine("type")),
        ("topic=a&id=earliest", UpdateDraftError::ReservedId),
        ("topic=a&id=%23x", UpdateDraftError::ReservedId),
        ("topic=a&retry=soon", UpdateDraftError::InvalidRetry),
        ("topic=a&retry=-1", UpdateDraftError::InvalidRetry),
        ("topic=a&retry=%2B1", UpdateDraftError::InvalidRetry),
        ("topic=a&retry=1.5", UpdateDraftError::InvalidRetry),
        (
            "topic=a&retry=99999999999999999999",
            UpdateDraftError::InvalidRetry,
        ),
        ("topic=a&id=1&id=2", UpdateDraftError::RepeatedField("id")),
        (
            "topic=a&data=1&data=2",
            UpdateDraftError::RepeatedField("data"),
        ),
    ] {
        let head: String = form.chars().take(60).collect();
        assert_eq!(UpdateDraft::parse(form.as_bytes()), Err(expected), "{head}");
    }
    let topics = "topic=a&".repeat(MAX_TOPICS);
    assert!(UpdateDraft::parse(topics.as_bytes()).is_ok());
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
        let draft = UpdateDraft {
            topics: vec!["a".into()],
            id: Some("1".to_owned()),
            data,
            ..UpdateDraft::default()
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
    let ids: HashSet<String> = (0..100).map(|_| generate_urn()).collect();
    assert_eq!(ids.len(), 100);
    for id in ids {
        let uuid = id.strip_prefix("urn:uuid:").unwrap();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(uuid.as_bytes()[14], b'4', "{id}");
        assert!(b"89ab".contains(&uuid.as_bytes()[19]), "{id}");
    }
}
