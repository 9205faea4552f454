//! What libraries publish, and what does not fit.

use penstock_hub::Namespaces;

use super::*;

/// Publications of an operator, where there are two namespaces besides the one that is meant.
fn read_all(body: &[u8]) -> Result<Vec<Publication>, PublishError> {
    parse_publications(body, |name| match name {
        None => Ok(Namespace::default()),
        name => Namespaces::new(["a".to_owned(), "b".to_owned()]).resolve(name),
    })
}

#[test]
fn an_item_may_name_its_namespace() {
    let body = |namespace: &str| {
        format!(
            r#"{{"items": [{{"channel": "x", "namespace": {namespace}, "event": {{"data": "1"}}}}]}}"#
        )
    };
    let key = |namespace: &str| {
        let read = read_all(body(namespace).as_bytes());
        read.map(|all| all[0].channel.to_string())
            .map_err(|error| error.to_string())
    };
    assert_eq!(key(r#""a""#).unwrap(), "a\u{1f}x");
    assert_eq!(key("null").unwrap(), "x");
    let unknown = key(r#""c""#).unwrap_err();
    assert!(unknown.starts_with("items[0]: no application"), "{unknown}");
    assert!(key("1").unwrap_err().contains("namespace"));
}

fn one(item: &str) -> Publication {
    let body = format!(r#"{{"items": [{item}]}}"#);
    let mut all = read_all(body.as_bytes()).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn error(item: &str) -> String {
    let body = format!(r#"{{"items": [{{"channel": "a", "event": {{"data": ""}}}}, {item}]}}"#);
    read_all(body.as_bytes()).unwrap_err().to_string()
}

fn sent(part: Option<StreamAction>) -> Content {
    match part {
        Some(StreamAction::Send(content)) => content,
        other => panic!("content, not {other:?}"),
    }
}

fn held(part: Option<LongPollAction>) -> LongPollResponse {
    match part {
        Some(LongPollAction::Send(response)) => *response,
        other => panic!("a response, not {other:?}"),
    }
}

#[test]
fn reads_an_item_with_all_there_is() {
    let item = one(r#"{
            "channel": "room",
            "id": "2",
            "prev-id": "1",
            "no-seq": true,
            "size": 3,
            "meta": {"sender": "alice", "skip_users": "b,c"},
            "formats": {
                "http-stream": {"content": "data: hi\n\n", "content-filters": ["var-subst"]},
                "http-response": {
                    "code": 201,
                    "reason": "Made",
                    "headers": [["Content-Type", "text/plain"], ["Content-Length", "9"], ["Grip-X", "1"],
                        ["X-Accel-Redirect", "/a"], ["x-accel-expires", "9"], ["X-Sendfile-Type", "b"]],
                    "body": "hi"
                },
                "ws-message": {"content": "hi"},
                "event": {"event": "said", "data": "hi", "retry": 1000}
            }
        }"#);
    assert_eq!(&*item.channel, "room");
    assert_eq!(
        (item.id.as_deref(), item.prev_id.as_deref()),
        (Some("2"), Some("1"))
    );
    assert!(item.allows_any_order);
    let meta: Vec<_> = item
        .meta
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    assert_eq!(meta, [("sender", "alice"), ("skip_users", "b,c")]);
    let content = sent(item.stream);
    assert_eq!(&content.bytes[..], b"data: hi\n\n");
    assert_eq!(content.filters.len(), 1);
    assert_eq!(&*content.filters[0], "var-subst");
    let response = held(item.response);
    assert_eq!(response.status, Status::CREATED);
    assert_eq!(response.fields.as_bytes(), b"Content-Type: text/plain\r\n");
    assert_eq!(
        (&response.body.bytes[..], response.is_patch),
        (&b"hi"[..], false)
    );
    assert!(
        matches!(item.websocket, Some(WebSocketAction::Text(content)) if content.bytes == "hi")
    );
    let event = item.event.unwrap();
    assert_eq!(
        (event.event.as_deref(), &*event.data, event.retry),
        (Some("said"), "hi", Some(1000))
    );
}

#[test]
fn an_empty_id_is_none() {
    let item = one(r#"{"channel": "a", "id": "", "prev-id": "", "event": {"data": ""}}"#);
    assert_eq!((item.id, item.prev_id), (None, None));
}

#[test]
fn formats_may_stand_beside_the_channel() {
    let item = one(r#"{"channel": "a", "http-stream": {"content-bin": "AP8="}}"#);
    assert_eq!(&sent(item.stream).bytes[..], b"\x00\xff");
    assert!(item.id.is_none() && item.response.is_none() && !item.allows_any_order);
    // Null counts as absent.
    let item = one(r#"{"channel": "a", "id": null, "formats": null, "event": {"data": "x"}}"#);
    assert_eq!(&*item.event.unwrap().data, "x");
}

#[test]
fn actions_need_no_content() {
    for (action, stream, response) in [
        ("hint", "Hint", "Hint"),
        ("refresh", "Hint", "Hint"),
        ("close", "Close", "Close"),
    ] {
        let item = one(&format!(
            r#"{{"channel": "a", "formats": {{"http-stream": {{"action": "{action}"}},
               "http-response": {{"action": "{action}"}}}}}}"#
        ));
        assert_eq!(format!("{:?}", item.stream.unwrap()), stream);
        assert_eq!(format!("{:?}", item.response.unwrap()), response);
    }
    // An empty body is one.
    let item = one(r#"{"channel": "a", "http-response": {"body": "", "action": "send"}}"#);
    let response = held(item.response);
    assert!(response.body.bytes.is_empty() && response.fields.is_empty());
    assert_eq!(response.status, Status::OK);
}

#[test]
fn a_body_may_be_a_patch() {
    let patch = r#"[{"op": "replace", "path": "/a", "value": 2}]"#;
    let item = one(&format!(
        r#"{{"channel": "a", "http-response": {{"body-patch": {patch}}}}}"#
    ));
    let response = held(item.response);
    assert!(response.is_patch);
    let value: Value = serde_json::from_slice(&response.body.bytes).unwrap();
    assert_eq!(value, serde_json::from_str::<Value>(patch).unwrap());
    let copies = r#"{"op": "copy", "from": "", "path": "/a"},"#.repeat(5);
    for patch in [
        "{}",
        r#"[{"op": "burn", "path": "/a"}]"#,
        "[1]",
        &format!("[{}]", copies.trim_end_matches(',')),
    ] {
        let text = error(&format!(
            r#"{{"channel": "a", "http-response": {{"body-patch": {patch}}}}}"#
        ));
        assert!(
            text.starts_with("`items[1].http-response.body-patch`: a JSON Patch"),
            "{text}"
        );
    }
}

#[test]
fn websockets_get_messages_of_their_kinds() {
    let part =
        |inner: &str| one(&format!(r#"{{"channel": "a", "ws-message": {{{inner}}}}}"#)).websocket;
    for (inner, expected) in [
        (r#""content": "é""#, "Text"),
        (r#""content-bin": "w6k=", "type": "text""#, "Text"),
        (r#""content-bin": "AP8=""#, "Binary"),
        (r#""content": "a", "type": "binary""#, "Binary"),
        (r#""type": "ping""#, "Ping"),
        (r#""type": "pong", "content": "a""#, "Pong"),
        (r#""action": "close""#, "Close { code: 1000, reason: \"\" }"),
        (
            r#""action": "close", "code": 4001, "reason": "bye""#,
            "Close { code: 4001, reason: \"bye\" }",
        ),
    ] {
        let shown = format!("{:?}", part(inner).unwrap());
        assert!(shown.starts_with(expected), "{inner}: {shown}");
    }
    // There is nothing that a WebSocket could fetch.
    assert!(part(r#""action": "refresh""#).is_none());
}

#[test]
fn an_invalid_item_is_reported_with_its_path() {
    let long = "a".repeat(126);
    for (item, expected) in [
        ("1", "`items[1]`: an object is expected"),
        ("{}", "`items[1].channel`: a channel's name is expected"),
        (
            r#"{"channel": ""}"#,
            "`items[1].channel`: a channel's name is expected",
        ),
        (
            r#"{"channel": 1}"#,
            "`items[1].channel`: a text is expected",
        ),
        (
            r#"{"channel": "a"}"#,
            "`items[1].formats`: at least one of http-stream, http-response, ws-message and event \
             is expected",
        ),
        (
            r#"{"channel": "a", "formats": {}}"#,
            "`items[1].formats`: at least one of http-stream, http-response, ws-message and event \
             is expected",
        ),
        (
            r#"{"channel": "a", "formats": []}"#,
            "`items[1].formats`: an object is expected",
        ),
        (
            r#"{"channel": "a", "formats": {"http-stream": "x"}}"#,
            "`items[1].formats.http-stream`: an object is expected",
        ),
        (
            r#"{"channel": "a", "formats": {"http-stream": {}}}"#,
            "`items[1].formats.http-stream.content`: a text (or content-bin) is expected",
        ),
        (
            r#"{"channel": "a", "http-stream": {"action": "burn"}}"#,
            "`items[1].http-stream.action`: `send`, `hint`, `refresh` or `close` is expected",
        ),
        (
            r#"{"channel": "a", "http-stream": {"content-bin": "a"}}"#,
            "`items[1].http-stream.content-bin`: base64 is expected",
        ),
        (
            r#"{"channel": "a", "http-response": {"code": 200}}"#,
            "`items[1].http-response.body`: a text (or body-bin, or body-patch) is expected",
        ),
        (
            r#"{"channel": "a", "http-response": {"code": 100, "body": ""}}"#,
            "`items[1].http-response.code`: a code from 200 to 599 is expected",
        ),
        (
            r#"{"channel": "a", "http-response": {"body": "", "headers": [["a b", "c"]]}}"#,
            "`items[1].http-response.headers[0]`: a valid field is expected",
        ),
        (
            r#"{"channel": "a", "ws-message": {"content-bin": "AP8=", "type": "text"}}"#,
            "`items[1].ws-message.content-bin`: UTF-8 in a message of text is expected",
        ),
        (
            &format!(
                r#"{{"channel": "a", "ws-message": {{"type": "ping", "content": "{long}"}}}}"#
            ),
            "`items[1].ws-message.content`: at most 125 bytes is expected",
        ),
        (
            r#"{"channel": "a", "ws-message": {"action": "close", "code": 1005}}"#,
            "`items[1].ws-message.code`: a code that may be sent is expected",
        ),
        (
            r#"{"channel": "a", "event": {}}"#,
            "`items[1].event.data`: a text is expected",
        ),
        (
            r#"{"channel": "a", "id": 7}"#,
            "`items[1].id`: a text is expected",
        ),
        (
            r#"{"channel": "a", "id": "1\n2", "event": {"data": ""}}"#,
            "`items[1].id`: an id of at most 1024 bytes without control characters, and without \
             blanks around it is expected",
        ),
        (
            r#"{"channel": "a", "prev-id": "\u0000", "event": {"data": ""}}"#,
            "`items[1].prev-id`: an id of at most 1024 bytes without control characters, and \
             without blanks around it is expected",
        ),
        (
            r#"{"channel": "a", "no-seq": 1}"#,
            "`items[1].no-seq`: true or false is expected",
        ),
        (
            r#"{"channel": "a", "size": -1}"#,
            "`items[1].size`: a whole number, 0 or more is expected",
        ),
        (
            r#"{"channel": "a", "meta": {"b": 1}}"#,
            "`items[1].meta.b`: a text is expected",
        ),
    ] {
        assert_eq!(error(item), expected, "{item}");
    }
}

#[test]
fn a_body_is_json_with_a_bounded_list() {
    let error = |body: &[u8]| read_all(body).unwrap_err().to_string();
    assert!(error(b"{\"items\": [").starts_with("the body is no JSON: EOF"));
    assert!(error(b"\xff").starts_with("the body is no JSON"));
    assert_eq!(error(b"[]"), "an object is expected");
    assert_eq!(error(b"{}"), "`items`: a list is expected");
    assert_eq!(error(b"{\"items\": {}}"), "`items`: a list is expected");
    let deep = format!("{{\"items\": {}", "[".repeat(100_000));
    assert!(error(deep.as_bytes()).contains("recursion limit"));
    let many = |count: usize| {
        let items = vec![r#"{"channel":"a","event":{"data":""}}"#; count];
        format!(r#"{{"items":[{}]}}"#, items.join(","))
    };
    assert_eq!(
        read_all(many(MAX_ITEMS).as_bytes()).unwrap().len(),
        MAX_ITEMS
    );
    assert_eq!(
        error(many(MAX_ITEMS + 1).as_bytes()),
        "`items` may have 10000 items at once, not 10001"
    );
    assert!(read_all(b"{\"items\": []}").unwrap().is_empty());
}
