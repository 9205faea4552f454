//! What servers write, and what else may come.

use super::*;
use crate::entry::NodeId;

const MESSAGE: &str = r#"{"v":1,"message":{"id":"7"}}"#;

fn answers() -> ReplyDecoder {
    ReplyDecoder::new(RedisKeys::for_database(0), "mark".into())
}

fn pushed(topic: &str, payload: &str) -> PushMessage {
    PushMessage {
        topic: topic.into(),
        payload: payload.into(),
    }
}

fn raw(position: &str, fields: &[(&str, &str)]) -> RawEntry {
    let fields = fields.iter().flat_map(|(name, value)| [*name, *value]);
    let fields = fields.map(|text| text.as_bytes().to_vec()).collect();
    (position.to_owned(), fields)
}

fn ours(position: &str) -> RawEntry {
    let fields = [
        ("before", "1-0"),
        ("origin", "ab:7"),
        ("way", "shared"),
        ("later", "ignored"),
        ("message", MESSAGE),
    ];
    raw(position, &fields)
}

fn read(from: Option<StreamPosition>) -> StreamReadRequest {
    StreamReadRequest {
        channel: "news".into(),
        from,
        read_id: 1,
    }
}

#[test]
fn what_a_server_publishes_is_understood() {
    let payload = format!("2-1 1-0 ab:7 ahead mark\n{MESSAGE}");
    let entry = answers().decode_push(&pushed("penstock:0:topic:news", &payload));
    let entry = entry.unwrap().unwrap();
    assert_eq!(&*entry.channel, "news");
    assert_eq!(
        (entry.position, entry.previous),
        (StreamPosition::new(2, 1), StreamPosition::new(1, 0))
    );
    let node = NodeId(0xab);
    assert_eq!(entry.origin, EntryOrigin { node, number: 7 });
    assert!(entry.was_delivered_early);
    let EntryContent::Message(message) = entry.content else {
        panic!("not a message");
    };
    assert_eq!(message.id.as_deref(), Some("7"));
}

#[test]
fn other_data_is_noticed() {
    let payload = format!("2-1 1-0 ab:7 shared other\n{MESSAGE}");
    let entry = answers().decode_push(&pushed("penstock:0:topic:news", &payload));
    assert_eq!(entry.err(), Some(DatasetChangedError));
}

#[test]
fn what_is_not_ours_is_left_out() {
    let topic = "penstock:0:topic:news";
    for (topic, payload) in [
        (
            "penstock:1:topic:news",
            format!("2-1 1-0 ab:7 shared mark\n{MESSAGE}"),
        ),
        (topic, String::new()),
        (topic, "hello".to_owned()),
        (topic, "hello\n".to_owned()),
        (topic, format!("2-1 1-0 ab:7 mark\n{MESSAGE}")),
        (topic, format!("x 1-0 ab:7 shared mark\n{MESSAGE}")),
        (topic, format!("2-1 x ab:7 shared mark\n{MESSAGE}")),
        (topic, format!("2-1 1-0 x shared mark\n{MESSAGE}")),
    ] {
        let entry = answers().decode_push(&pushed(topic, &payload));
        assert!(matches!(entry, Ok(None)), "{payload:?}");
    }
    let bytes = PushMessage {
        topic: vec![0xff],
        payload: vec![0xff, b'\n'],
    };
    assert!(matches!(answers().decode_push(&bytes), Ok(None)));
}

#[test]
fn a_message_of_another_version_is_a_gap() {
    for message in [r#"{"v":9}"#, "", "\0"] {
        let payload = format!("2-1 1-0 ab:7 shared mark\n{message}");
        let entry = answers().decode_push(&pushed("penstock:0:topic:news", &payload));
        assert!(
            matches!(entry.unwrap().unwrap().content, EntryContent::Gap),
            "{message:?}"
        );
    }
}

#[test]
fn foreign_stream_entries_are_skipped() {
    let entries = vec![
        ours("3-0"),
        raw("4-0", &[("hello", "world")]),
        raw("5-0", &[]),
        ours("6-0"),
    ];
    let positions = |part: StreamPage| -> Vec<String> {
        let entries = part.entries.iter();
        entries.map(|entry| entry.position.to_string()).collect()
    };
    let part = answers().decode_page(read(Some(StreamPosition::new(3, 0))), entries.clone());
    assert!(part.is_last);
    assert_eq!(positions(part), ["3-0", "6-0"]);
    // The newest come first.
    let part = answers().decode_page(read(None), entries);
    assert_eq!(positions(part), ["6-0", "3-0"]);
}

#[test]
fn a_full_page_is_followed_by_another_unless_none_of_it_is_ours() {
    let from = Some(StreamPosition::new(3, 0));
    let page = |entry: fn(usize) -> RawEntry| (0..PAGE_ENTRIES).map(entry).collect::<Vec<_>>();
    let full = answers().decode_page(read(from), page(|n| ours(&format!("3-{n}"))));
    assert!(!full.is_last);
    let strange = answers().decode_page(read(from), page(|n| raw(&format!("3-{n}"), &[])));
    assert!(strange.is_last && strange.entries.is_empty());
}
