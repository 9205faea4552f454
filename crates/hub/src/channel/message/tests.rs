//! Each format of a message, in both framings.

use super::*;
use crate::{Content, PublishedEvent, WebSocketAction};

const EVENTS: StreamFormat = StreamFormat {
    message_format: StreamForm::Events,
    is_chunked: false,
};
const BYTES: StreamFormat = StreamFormat {
    message_format: StreamForm::Bytes,
    is_chunked: false,
};
const CHUNKED_EVENTS: StreamFormat = StreamFormat {
    message_format: StreamForm::Events,
    is_chunked: true,
};
const CHUNKED_BYTES: StreamFormat = StreamFormat {
    message_format: StreamForm::Bytes,
    is_chunked: true,
};

fn message(publication: Publication) -> Message {
    Message::new(7, "seven".into(), publication, Instant::now())
}

fn send(text: &'static str) -> Option<StreamAction> {
    Some(StreamAction::Send(Content {
        bytes: Bytes::from_static(text.as_bytes()),
        filters: Vec::new(),
    }))
}

#[test]
fn each_shape_gets_its_own_bytes() {
    for message_format in [StreamForm::Events, StreamForm::Bytes] {
        for framing in [HeldFraming::Chunked, HeldFraming::UntilClose] {
            let format = StreamFormat::new(message_format, framing);
            assert_eq!(format.message_format, message_format);
            assert_eq!(format.is_chunked, framing == HeldFraming::Chunked);
        }
    }
    let event = Some(PublishedEvent {
        event: Some("tick".into()),
        data: "a\nb".into(),
        retry: Some(9),
    });
    let text = "retry: 9\nevent: tick\nid: seven\ndata: a\ndata: b\n\n";
    for (name, stream, event, format, expected) in [
        ("event", None, event.clone(), EVENTS, text.to_owned()),
        (
            "event in chunks",
            None,
            event.clone(),
            CHUNKED_EVENTS,
            format!("{:x}\r\n{text}\r\n", text.len()),
        ),
        ("its data", None, event.clone(), BYTES, "a\nb\n".to_owned()),
        (
            "its data in chunks",
            None,
            event.clone(),
            CHUNKED_BYTES,
            "4\r\na\nb\n\r\n".to_owned(),
        ),
        (
            "bytes come first",
            send("raw"),
            event.clone(),
            CHUNKED_EVENTS,
            "3\r\nraw\r\n".to_owned(),
        ),
        ("none", None, None, CHUNKED_EVENTS, String::new()),
        (
            "an empty chunk would be the end",
            send(""),
            None,
            CHUNKED_BYTES,
            String::new(),
        ),
        (
            "a gap, without an id",
            Some(StreamAction::Gap),
            None,
            EVENTS,
            "event: gap\ndata: {}\n\n".to_owned(),
        ),
        (
            "a gap is nothing that bytes could say",
            Some(StreamAction::Gap),
            None,
            CHUNKED_BYTES,
            String::new(),
        ),
        (
            "an end has no bytes",
            Some(StreamAction::Close),
            event,
            CHUNKED_EVENTS,
            String::new(),
        ),
    ] {
        let message = message(Publication {
            stream,
            event,
            ..Publication::default()
        });
        assert_eq!(
            message.framed_payload(format),
            expected.as_bytes(),
            "{name}"
        );
    }
}

#[test]
fn the_delivery_kind_follows_from_the_parts() {
    let filtered = Some(StreamAction::Send(Content {
        bytes: Bytes::new(),
        filters: vec!["var-subst".into()],
    }));
    let event = || Some(PublishedEvent::default());
    for (stream, event, expected) in [
        (send("x"), None, DeliveryKind::Shared),
        (None, event(), DeliveryKind::Shared),
        (filtered, event(), DeliveryKind::PerStream),
        (Some(StreamAction::Close), event(), DeliveryKind::Close),
        (Some(StreamAction::Hint), event(), DeliveryKind::Ignored),
        (Some(StreamAction::Gap), None, DeliveryKind::Gap),
        (None, None, DeliveryKind::Ignored),
    ] {
        let publication = Publication {
            stream,
            event,
            ..Publication::default()
        };
        assert_eq!(message(publication).delivery_kind(), expected);
    }
}

#[test]
fn a_message_costs_what_its_parts_have() {
    let empty = message(Publication::default()).memory_bytes;
    let full = message(Publication {
        stream: send("12345"),
        websocket: Some(WebSocketAction::Text(Content {
            bytes: Bytes::from_static(b"123"),
            filters: Vec::new(),
        })),
        meta: vec![("a".into(), "b".into())],
        ..Publication::default()
    });
    assert_eq!(full.memory_bytes, empty + 5 + 3 + 2);
}
