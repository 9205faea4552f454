//! Publications there and back, and what else may stand in Redis.

use std::sync::Arc;

use bytes::Bytes;
use penstock_http::{FieldBlock, Status};
use penstock_hub::{
    Content, LongPollAction, LongPollResponse, PublishedEvent, StreamAction, WebSocketAction,
};

use super::*;

fn channel() -> ChannelName {
    Arc::from("news/é")
}

fn content(bytes: &'static [u8]) -> Content {
    Content {
        bytes: Bytes::from_static(bytes),
        filters: vec!["build-id".into(), "var-subst".into()],
    }
}

fn full(websocket: WebSocketAction) -> Publication {
    let mut fields = FieldBlock::new();
    fields.push("Content-Type", b"text/plain").unwrap();
    fields.push("X-Latin", b"caf\xe9").unwrap();
    Publication {
        channel: channel(),
        id: Some("b\"2\n".into()),
        prev_id: Some("b1".into()),
        allows_any_order: true,
        stream: Some(StreamAction::Send(content(b"\xff\x00raw"))),
        response: Some(LongPollAction::Send(Box::new(LongPollResponse {
            status: Status::new(202).unwrap(),
            fields,
            body: content(b"{\"a\":1}"),
            is_patch: true,
        }))),
        websocket: Some(websocket),
        event: Some(PublishedEvent {
            event: Some("tick".into()),
            data: "one\ntwo \u{1f980}".into(),
            retry: Some(3000),
        }),
        meta: vec![("user".into(), "ann".into()), ("empty".into(), "".into())],
    }
}

fn back(what: &EntryContent) -> EntryContent {
    decode(&channel(), &encode(what)).unwrap()
}

#[test]
fn a_publication_comes_back_as_it_was() {
    let close = WebSocketAction::Close {
        code: 1001,
        reason: "bye".into(),
    };
    for websocket in [
        WebSocketAction::Text(content("né".as_bytes())),
        WebSocketAction::Binary(content(b"\xfe\xff")),
        WebSocketAction::Ping(Bytes::from_static(b"p")),
        WebSocketAction::Pong(Bytes::from_static(b"\x80")),
        close,
    ] {
        let publication = full(websocket);
        let EntryContent::Message(came) =
            back(&EntryContent::Message(Box::new(publication.clone())))
        else {
            panic!("not a message");
        };
        // Its parts have no equality of their own; how they are shown has all that is in them, but
        // for whether the lines of a block of fields are shared.
        let shown = |publication: &Publication| {
            let shown = format!("{publication:?}");
            shown.replace("Shared", "Owned")
        };
        let fields = |publication: &Publication| match &publication.response {
            Some(LongPollAction::Send(response)) => response.fields.as_bytes().to_vec(),
            _ => Vec::new(),
        };
        assert_eq!(fields(&came), fields(&publication));
        let bare = |mut publication: Publication| {
            if let Some(LongPollAction::Send(response)) = &mut publication.response {
                response.fields = FieldBlock::new();
            }
            shown(&publication)
        };
        assert_eq!(bare(*came), bare(publication));
    }
}

#[test]
fn an_empty_publication_and_the_short_parts_come_back() {
    for (stream, response) in [
        (None, None),
        (Some(StreamAction::Hint), Some(LongPollAction::Hint)),
        (Some(StreamAction::Close), Some(LongPollAction::Close)),
    ] {
        let publication = Publication {
            channel: channel(),
            stream,
            response,
            ..Publication::default()
        };
        let EntryContent::Message(came) =
            back(&EntryContent::Message(Box::new(publication.clone())))
        else {
            panic!("not a message");
        };
        assert_eq!(format!("{came:?}"), format!("{publication:?}"));
    }
}

#[test]
fn gaps_come_back() {
    assert!(matches!(back(&EntryContent::Gap), EntryContent::Gap));
    assert!(matches!(
        back(&EntryContent::HistoryInvalidated),
        EntryContent::HistoryInvalidated
    ));
    assert!(matches!(
        back(&EntryContent::AllHistoriesInvalidated),
        EntryContent::AllHistoriesInvalidated
    ));
    assert!(matches!(
        back(&EntryContent::GapInAllChannels),
        EntryContent::GapInAllChannels
    ));
}

#[test]
fn text_stays_readable() {
    let publication = Publication {
        event: Some(PublishedEvent {
            data: "hello".into(),
            ..PublishedEvent::default()
        }),
        ..Publication::default()
    };
    let text = String::from_utf8(encode(&EntryContent::Message(Box::new(publication)))).unwrap();
    assert_eq!(text, r#"{"v":1,"message":{"event":{"data":"hello"}}}"#);
}

#[test]
fn undecodable_messages_say_why() {
    let no = |text: &str, why: &str| {
        let error = decode(&channel(), text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    };
    no("", "not what a node writes");
    no("{}", "missing field `v`");
    no(r#"{"v":1}"#, "says nothing");
    no(r#"{"v":2,"message":{"new":true}}"#, "version 2");
    no(r#"{"v":1,"message":{"stream":"jump"}}"#, "unknown variant");
    no(
        r#"{"v":1,"message":{"stream":{"send":{"bytes":{"base64":"%"}}}}}"#,
        "bad base64",
    );
    no(
        r#"{"v":1,"message":{"websocket":{"text":{"bytes":{"base64":"/w=="}}}}}"#,
        "not text",
    );
    let held = |status: u16, field: &str| {
        format!(
            r#"{{"v":1,"message":{{"response":{{"send":{{"status":{status},"fields":[["A",{{"text":"{field}"}}]],"body":{{"bytes":{{"text":""}}}}}}}}}}}}"#
        )
    };
    no(&held(99, "a"), "status 99");
    no(&held(101, "a"), "status 101");
    no(&held(200, r"a\r\nB: c"), "control byte");
    let ping = format!(
        r#"{{"v":1,"message":{{"websocket":{{"ping":{{"text":"{}"}}}}}}}}"#,
        "x".repeat(126)
    );
    no(&ping, "too long");
    for code in [0, 999, 1005, 1006, 1015, 5000] {
        let text = format!(
            r#"{{"v":1,"message":{{"websocket":{{"close":{{"code":{code},"reason":""}}}}}}}}"#
        );
        no(&text, &format!("with code {code}"));
    }
}

#[test]
fn fields_that_no_publisher_may_set_come_from_no_other_node_either() {
    let names = [
        "A",
        "Content-Length",
        "transfer-encoding",
        "Connection",
        "Grip-Hold",
    ];
    let names = names.iter().chain(&["X-Accel-Redirect", "X-Sendfile", "B"]);
    let fields: Vec<String> = names
        .map(|name| format!(r#"["{name}",{{"text":"1"}}]"#))
        .collect();
    let text = format!(
        r#"{{"v":1,"message":{{"response":{{"send":{{"status":200,"fields":[{}],"body":{{"bytes":{{"text":""}}}}}}}}}}}}"#,
        fields.join(",")
    );
    let EntryContent::Message(came) = decode(&channel(), text.as_bytes()).unwrap() else {
        panic!("not a message");
    };
    let Some(LongPollAction::Send(response)) = came.response else {
        panic!("no response");
    };
    let names: Vec<&str> = response.fields.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["A", "B"]);
}

#[test]
fn fields_of_a_later_version_are_ignored() {
    let text =
        r#"{"v":1,"later":1,"message":{"id":"7","later":{},"event":{"data":"d","later":[]}}}"#;
    let EntryContent::Message(came) = decode(&channel(), text.as_bytes()).unwrap() else {
        panic!("not a message");
    };
    assert_eq!(came.id.as_deref(), Some("7"));
}
