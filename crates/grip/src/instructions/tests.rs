//! Instructions as applications and their libraries write them, and invalid ones.

use super::*;

fn block(lines: &[&str]) -> FieldBlock {
    let mut block = FieldBlock::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        block.push(name, value.as_bytes()).unwrap();
    }
    block
}

fn of(lines: &[&str]) -> Result<GripInstructions, InstructionError> {
    GripInstructions::from_fields(Status::OK, &block(lines))
}

fn hold(lines: &[&str]) -> HoldInstruction {
    let mut all = vec!["Grip-Hold: stream", "Grip-Channel: a"];
    all.extend(lines);
    of(&all).unwrap().hold.unwrap()
}

fn shown(subscriptions: &[Subscription]) -> Vec<String> {
    let show = |one: &Subscription| {
        let prev_id = one.prev_id.as_deref().unwrap_or("-");
        format!("{} {prev_id} {:?}", one.channel, one.filters)
    };
    subscriptions.iter().map(show).collect()
}

#[test]
fn reads_a_stream_as_a_library_writes_it() {
    let instruct = of(&[
        "Content-Type: text/event-stream",
        "Grip-Hold: stream",
        "Grip-Channel: room-1; prev-id=7; filter=skip-self; filter=var-subst, room-2",
        "grip-channel: room 3",
        r#"Grip-Keep-Alive: event: ping\ndata: \n\n; format=cstring; timeout=20"#,
        r#"Grip-Set-Meta: user="al\"ice, b", id=5"#,
        "Grip-Session-Id: x",
    ])
    .unwrap();
    let hold = instruct.hold.unwrap();
    assert_eq!(hold.mode, HoldMode::Stream);
    assert_eq!(
        shown(&hold.subscriptions),
        [
            "room-1 7 [SkipSelf, VarSubst]",
            "room-2 - []",
            "room 3 - []"
        ]
    );
    let beat = hold.keep_alive.unwrap();
    assert_eq!(&beat.bytes[..], b"event: ping\ndata: \n\n");
    assert_eq!(
        (beat.interval.as_secs(), beat.is_unconditional),
        (20, false)
    );
    let meta: Vec<_> = hold
        .subscriber_meta
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    assert_eq!(meta, [("user", r#"al"ice, b"#), ("id", "5")]);
    assert_eq!(instruct.fields, block(&["Content-Type: text/event-stream"]));
    assert_eq!((instruct.status, instruct.body), (Status::OK, None));
}

#[test]
fn times_have_defaults_and_bounds() {
    for (line, expected) in [
        (None, 55),
        (Some("Grip-Timeout: 30"), 30),
        (Some("Grip-Timeout: 0"), 5),
        (Some("Grip-Timeout: 99999999999"), 24 * 3600),
    ] {
        let mut lines = vec!["Grip-Hold: response", "Grip-Channel: a"];
        lines.extend(line);
        let hold = of(&lines).unwrap().hold.unwrap();
        assert_eq!(hold.mode, HoldMode::LongPoll);
        assert_eq!(hold.timeout.as_secs(), expected, "{line:?}");
    }
}

#[test]
fn heart_beats_come_in_three_formats() {
    for (value, bytes, seconds, regardless) in [
        ("x", &b"x"[..], 55, false),
        ("x; timeout=0", b"x", 1, false),
        ("x; timeout=5; mode=interval", b"x", 5, true),
        ("x; mode=idle; format=raw", b"x", 55, false),
        (r#""a b"; format=raw"#, b"a b", 55, false),
        (
            r"\\\r\n\x00\xfF; format=cstring",
            b"\\\r\n\x00\xff",
            55,
            false,
        ),
        ("Ogo=; format=base64; timeout=7", b":\n", 7, false),
        (
            r#"data: {"a": 1, "b": "x; y"}\n\n; format=cstring"#,
            b"data: {\"a\": 1, \"b\": \"x; y\"}\n\n",
            55,
            false,
        ),
        ("a; b=c; timeout=9", b"a; b=c", 9, false),
    ] {
        let beat = hold(&[&format!("Grip-Keep-Alive: {value}")])
            .keep_alive
            .unwrap();
        assert_eq!(beat.bytes, bytes, "{value}");
        assert_eq!(
            (beat.interval.as_secs(), beat.is_unconditional),
            (seconds, regardless),
            "{value}"
        );
    }
    assert_eq!(
        hold(&["Grip-Keep-Alive: ; format=base64"][..0]).keep_alive,
        None
    );
}

#[test]
fn clients_see_the_status_and_the_fields_they_should() {
    let instruct = of(&[
        "A: 1",
        "GRIP-Status: 304 Not Modified",
        "B: 2",
        "Grip-Expose-Headers: b, Grip-Status",
        "grip-expose-headers: C",
        "C: 3",
        "Grip-Foo: 4",
    ])
    .unwrap();
    assert!(instruct.hold.is_none());
    assert_eq!(instruct.status, Status::NOT_MODIFIED);
    assert_eq!(instruct.fields, block(&["B: 2", "C: 3"]));
}

#[test]
fn links_lead_on_and_away() {
    let instruct = of(&[
        "Grip-Link: </next?a=1,2;x>; rel=next; timeout=30, </gone>; rel=gone",
        "Grip-Link: </other>; rel=other",
    ])
    .unwrap();
    let next = instruct.links.next.unwrap();
    assert_eq!(
        (&*next.target, next.timeout.as_secs()),
        ("/next?a=1,2;x", 30)
    );
    assert_eq!(instruct.links.gone.as_deref(), Some("/gone"));
    let next = of(&["Grip-Link: <b>; rel=next"])
        .unwrap()
        .links
        .next
        .unwrap();
    assert_eq!(next.timeout, NEXT_LINK_TIMEOUT);
}

#[test]
fn invalid_instructions_hold_no_client() {
    let held = |line: &'static str| vec!["Grip-Hold: stream", "Grip-Channel: a", line];
    for (lines, expected) in [
        (
            vec!["Grip-Hold: forever"],
            "Grip-Hold: `response` or `stream` is expected",
        ),
        (
            vec!["Grip-Hold: Stream"],
            "Grip-Hold: `response` or `stream` is expected",
        ),
        (
            vec!["Grip-Hold: stream"],
            "a hold needs a channel (Grip-Channel)",
        ),
        (
            vec!["Grip-Hold: stream", "Grip-Channel: ,"],
            "a hold needs a channel (Grip-Channel)",
        ),
        (
            vec!["Grip-Hold: stream", "Grip-Channel: ; prev-id=1"],
            "Grip-Channel: a channel's name is expected",
        ),
        (
            vec![
                "Grip-Hold: stream",
                "Grip-Channel: a; filter=skip-everything",
            ],
            "channel `a`: no filter is called `skip-everything`",
        ),
        (
            held("Grip-Timeout: soon"),
            "Grip-Timeout: a whole number of seconds, 0 or more is expected",
        ),
        (
            held("Grip-Timeout: -1"),
            "Grip-Timeout: a whole number of seconds, 0 or more is expected",
        ),
        (
            held("Grip-Keep-Alive"),
            "Grip-Keep-Alive: something to send is expected",
        ),
        (
            held("Grip-Keep-Alive: ; timeout=5"),
            "Grip-Keep-Alive: something to send is expected",
        ),
        (
            held("Grip-Keep-Alive: x; format=hex"),
            "Grip-Keep-Alive: format `raw`, `cstring` or `base64` is expected",
        ),
        (
            held("Grip-Keep-Alive: x; mode=often"),
            "Grip-Keep-Alive: mode `idle` or `interval` is expected",
        ),
        (
            held(r"Grip-Keep-Alive: \x1; format=cstring"),
            r"Grip-Keep-Alive: `\\`, `\r`, `\n` or `\xHH` is expected",
        ),
        (
            held("Grip-Keep-Alive: ?; format=base64"),
            "Grip-Keep-Alive: base64 is expected",
        ),
        (
            held("Grip-Set-Meta: user"),
            "Grip-Set-Meta: `name=value` is expected",
        ),
        (
            vec!["Grip-Status: 99"],
            "Grip-Status: a code from 200 to 599 is expected",
        ),
        (
            vec!["Grip-Status: 101 x"],
            "Grip-Status: a code from 200 to 599 is expected",
        ),
        (
            vec!["Grip-Status: 99999"],
            "Grip-Status: a code from 200 to 599 is expected",
        ),
        (
            vec!["Grip-Link: /a; rel=next"],
            "Grip-Link: `<URI>; rel=next` or `rel=gone` is expected",
        ),
        (
            vec!["Grip-Link: <>; rel=gone"],
            "Grip-Link: `<URI>; rel=next` or `rel=gone` is expected",
        ),
    ] {
        let error = of(&lines).unwrap_err();
        assert_eq!(error.to_string(), expected, "{lines:?}");
    }
    let mut odd = block(&["Grip-Hold: stream"]);
    odd.push("Grip-Channel", b"\xff").unwrap();
    assert_eq!(
        GripInstructions::from_fields(Status::OK, &odd).unwrap_err(),
        InstructionError::InvalidField("Grip-Channel", "a text")
    );
}

fn said(text: &str) -> Result<GripInstructions, InstructionError> {
    let fields = of(&[
        "Content-Type: application/grip-instruct",
        "Grip-Hold: response",
        "A: 1",
    ]);
    let fields = fields.unwrap();
    fields.apply_instruction_body(Status::OK, text.as_bytes())
}

#[test]
fn reads_instructions_in_a_body() {
    let instruct = said(
        r#"{
            "hold": {
                "mode": "stream",
                "channels": [
                    {"name": "a, b", "prev-id": "7", "filters": ["skip-users", "require-sub"]},
                    {"name": "c"}
                ],
                "keep-alive": {"content-bin": "OgoK", "timeout": 20},
                "meta": {"user": "alice"}
            },
            "response": {
                "code": 201,
                "reason": "Made",
                "headers": [["Content-Type", "text/plain"], ["B", "1"], ["b", "2"], ["grip-x", "3"]],
                "body": "hello"
            }
        }"#,
    )
    .unwrap();
    let hold = instruct.hold.unwrap();
    assert_eq!(hold.mode, HoldMode::Stream);
    assert_eq!(
        shown(&hold.subscriptions),
        ["a, b 7 [SkipUsers, RequireSubscription]", "c - []"]
    );
    let beat = hold.keep_alive.unwrap();
    assert_eq!(
        (&beat.bytes[..], beat.interval.as_secs()),
        (&b":\n\n"[..], 20)
    );
    assert_eq!(hold.subscriber_meta, [("user".into(), "alice".into())]);
    assert_eq!(instruct.status, Status::CREATED);
    assert_eq!(
        instruct.fields,
        block(&["Content-Type: text/plain", "B: 1", "b: 2"])
    );
    assert_eq!(instruct.body.as_deref(), Some(&b"hello"[..]));
}

#[test]
fn a_body_needs_only_channels() {
    let instruct = said(r#"{"hold": {"channels": [{"name": "a"}], "timeout": 2}}"#).unwrap();
    let hold = instruct.hold.unwrap();
    assert_eq!(hold.mode, HoldMode::LongPoll);
    assert_eq!(hold.timeout, MIN_LONG_POLL_TIMEOUT);
    assert!(hold.keep_alive.is_none());
    assert_eq!(instruct.status, Status::OK);
    assert!(instruct.fields.is_empty());
    assert_eq!(instruct.body.as_deref(), Some(&b""[..]));
    let response = r#"{"response": {"headers": {"A": "1"}, "body-bin": "AP8="}}"#;
    assert_eq!(said(response).unwrap_err(), InstructionError::NoChannel);
    let fields = of(&[
        "Content-Type: application/grip-instruct",
        "Grip-Hold: stream",
        "Grip-Channel: b",
    ]);
    let plain = fields
        .unwrap()
        .apply_instruction_body(Status::OK, response.as_bytes());
    let plain = plain.unwrap();
    assert_eq!(shown(&plain.hold.unwrap().subscriptions), ["b - []"]);
    assert_eq!(plain.fields, block(&["A: 1"]));
    assert_eq!(plain.body.as_deref(), Some(&b"\x00\xff"[..]));
}

#[test]
fn an_invalid_instruction_body_is_reported_with_its_path() {
    for (text, expected) in [
        (
            "{",
            "the instructions are no JSON: EOF while parsing an object at line 1 column 1",
        ),
        ("[]", "the instructions do not fit: an object is expected"),
        (
            r#"{"hold": 1}"#,
            "the instructions do not fit: `hold`: an object is expected",
        ),
        (r#"{"hold": {}}"#, "a hold needs a channel (Grip-Channel)"),
        (
            r#"{"hold": {"mode": "x", "channels": []}}"#,
            "the instructions do not fit: `hold.mode`: `response` or `stream` is expected",
        ),
        (
            r#"{"hold": {"channels": {"name": "a"}}}"#,
            "the instructions do not fit: `hold.channels`: a list is expected",
        ),
        (
            r#"{"hold": {"channels": [{"name": "a"}, {"name": ""}]}}"#,
            "the instructions do not fit: `hold.channels[1].name`: a channel's name is expected",
        ),
        (
            r#"{"hold": {"channels": [{"name": "a", "filters": [1]}]}}"#,
            "the instructions do not fit: `hold.channels[0].filters[0]`: a text is expected",
        ),
        (
            r#"{"hold": {"channels": [{"name": "a"}], "keep-alive": {"content": 1}}}"#,
            "the instructions do not fit: `hold.keep-alive.content`: a text is expected",
        ),
        (
            r#"{"hold": {"channels": [{"name": "a"}], "meta": {"user": 1}}}"#,
            "the instructions do not fit: `hold.meta.user`: a text is expected",
        ),
        (
            r#"{"response": {"code": 1000}}"#,
            "the instructions do not fit: `response.code`: a code from 200 to 599 is expected",
        ),
        (
            r#"{"response": {"headers": [["A"]]}}"#,
            "the instructions do not fit: `response.headers[0]`: a pair of texts is expected",
        ),
        (
            r#"{"response": {"headers": {"A": "b\r\nSet-Cookie: c"}}}"#,
            "the instructions do not fit: `response.headers.A`: a valid field is expected",
        ),
    ] {
        assert_eq!(said(text).unwrap_err().to_string(), expected, "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(matches!(said(&deep), Err(InstructionError::InvalidJson(_))));
    let fields = of(&[]).unwrap();
    assert_eq!(
        fields
            .apply_instruction_body(Status::CREATED, b"{}")
            .unwrap_err(),
        InstructionError::UnexpectedStatus(201)
    );
}

#[test]
fn knows_a_body_of_instructions() {
    for (value, expected) in [
        ("application/grip-instruct", true),
        ("Application/GRIP-Instruct; charset=utf-8", true),
        ("application/grip-instructions", false),
        ("application/json", false),
    ] {
        let fields = block(&[&format!("content-type: {value}")]);
        assert_eq!(has_instruction_body(&fields), expected, "{value}");
    }
    assert!(!has_instruction_body(&FieldBlock::new()));
}
