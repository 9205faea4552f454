//! What back ends and publishers say: see `crate::fuzzing`.

use penstock_exchange::field_policy::{FieldClass, classify_field, is_internal};
use penstock_exchange::grip::is_grip_field;
use penstock_http::{FieldBlock, Status};

use super::instructions::{GripInstructions, HoldInstruction, has_instruction_body};
use super::{parse_publications, websockets};
use crate::{Namespace, Publication, ResponsePart, StreamPart, WebSocketPart};

/// See [`crate::fuzzing::read_instruct`].
pub(crate) fn read_instruct(answer: &[u8]) {
    let head_end = answer.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = match head_end {
        Some(at) => (&answer[..at], &answer[at + 2..]),
        None => (answer, &b""[..]),
    };
    let mut block = FieldBlock::new();
    for line in head.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        if let Ok(name) = std::str::from_utf8(&line[..colon]) {
            // What is no field cannot be in an answer.
            let _ = block.push(name, line[colon + 1..].trim_ascii());
        }
    }
    let Ok(instruct) = GripInstructions::from_fields(Status::OK, &block) else {
        return;
    };
    for (name, value) in instruct.fields.iter() {
        assert!(!is_grip_field(name.as_bytes()), "{name}");
        assert!(block.iter().any(|field| field == (name, value)), "{name}");
    }
    check_instruct(&instruct, head.len());
    let is_spoken = has_instruction_body(&block);
    if let Some(hold) = &instruct.hold {
        assert!(is_spoken || !hold.subscriptions.is_empty());
    }
    if instruct.hold.is_none() || !is_spoken {
        return;
    }
    let Ok(instruct) = instruct.with_body(Status::OK, body) else {
        return;
    };
    check_instruct(&instruct, answer.len());
    check_fields(&instruct.fields);
    let hold = instruct.hold.expect("it was said in the fields");
    assert!(!hold.subscriptions.is_empty());
    assert!(instruct.body.is_none_or(|text| text.len() <= body.len()));
}

fn check_instruct(instruct: &GripInstructions, sent: usize) {
    assert!(!instruct.status.is_informational());
    assert!(instruct.fields.as_bytes().len() <= 2 * sent + 4);
    if let Some(next) = &instruct.links.next {
        assert!(!next.target.is_empty() && next.target.len() <= sent);
        assert!(next.timeout.as_secs() <= 24 * 3600);
    }
    if let Some(hold) = &instruct.hold {
        check_hold(hold, sent);
    }
}

fn check_hold(hold: &HoldInstruction, sent: usize) {
    assert!((5..=24 * 3600).contains(&hold.timeout.as_secs()));
    let mut kept = 0;
    for subscription in &hold.subscriptions {
        assert!(!subscription.channel.is_empty());
        kept += subscription.channel.len();
        kept += subscription.prev_id.as_ref().map_or(0, |id| id.len());
        // `filter=build-id`
        kept += 8 * subscription.filters.len();
    }
    for (name, value) in &hold.meta {
        kept += name.len() + value.len();
    }
    if let Some(beat) = &hold.keep_alive {
        assert!(!beat.bytes.is_empty());
        assert!((1..=24 * 3600).contains(&beat.interval.as_secs()));
        kept += beat.bytes.len();
    }
    assert!(kept <= sent, "{kept} bytes of {sent}: {hold:?}");
}

/// That no publisher and no body of instructions says what only a front end may.
fn check_fields(fields: &FieldBlock) {
    for (name, value) in fields.iter() {
        assert!(classify_field(name) != FieldClass::HopByHop, "{name}");
        assert!(!is_internal(name.as_bytes()), "{name}");
        assert!(!value.iter().any(|byte| b"\r\n\0".contains(byte)), "{name}");
    }
}

/// See [`crate::fuzzing::read_events`].
pub(crate) fn read_events(body: &[u8]) {
    websockets::fuzzing::read_events(body);
}

/// See [`crate::fuzzing::read_publications`].
pub(crate) fn read_publications(body: &[u8]) {
    let namespace = Namespace::new("shop");
    let read = parse_publications(body, |_| Ok(namespace.clone()));
    for publication in read.unwrap_or_default() {
        assert!(publication.channel.starts_with("shop\u{1f}"));
        check_publication(&publication, body.len());
    }
}

/// That a publication is one that can be sent, and is made of at most `sent` bytes.
pub(crate) fn check_publication(publication: &Publication, sent: usize) {
    let Publication {
        stream,
        response,
        websocket,
        event,
        ..
    } = publication;
    let mut kept = 0;
    if let Some(StreamPart::Send(content)) = stream {
        kept += content.bytes.len();
    }
    if let Some(ResponsePart::Send(response)) = response {
        assert!(!response.status.is_informational());
        check_fields(&response.fields);
        kept += response.body.bytes.len();
    }
    match websocket {
        Some(WebSocketPart::Text(content)) => {
            assert!(std::str::from_utf8(&content.bytes).is_ok());
            kept += content.bytes.len();
        }
        Some(WebSocketPart::Binary(content)) => kept += content.bytes.len(),
        Some(WebSocketPart::Ping(bytes) | WebSocketPart::Pong(bytes)) => {
            assert!(bytes.len() <= 125);
        }
        Some(WebSocketPart::Close { code, reason }) => {
            assert!(penstock_http::websocket::code::is_sendable(*code), "{code}");
            assert!(reason.len() <= 123);
        }
        None => {}
    }
    kept += event.as_ref().map_or(0, |event| event.data.len());
    assert!(kept <= sent, "{kept} bytes of {sent}");
}
