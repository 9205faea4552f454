//! The readers of responses, events and publications, for `fuzz/fuzz_targets`: they are private to
//! this crate, and each is reached here with any bytes.
//!
//! # Invariants
//! - No bytes panic, and no more is kept than was sent.
//! - Accepted input is within the bounds that the hub relies on.

use penstock_exchange::grip::is_grip_field;
use penstock_http::{FieldBlock, Status};
use penstock_hub::Namespace;
use penstock_hub::fuzzing::{check_fields, check_publication};

use crate::instructions::{GripInstructions, HoldInstruction, has_instruction_body};
use crate::{parse_publications, websockets};

/// Reads `response` as that of a back end: a field a line, an empty line, and a body of
/// instructions.
pub fn read_instructions(response: &[u8]) {
    let head_end = response.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = match head_end {
        Some(at) => (&response[..at], &response[at + 2..]),
        None => (response, &b""[..]),
    };
    let mut block = FieldBlock::new();
    for line in head.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        if let Ok(name) = std::str::from_utf8(&line[..colon]) {
            // Only a valid field can be in a response.
            let _ = block.push(name, line[colon + 1..].trim_ascii());
        }
    }
    let Ok(instructions) = GripInstructions::from_fields(Status::OK, &block) else {
        return;
    };
    for (name, value) in instructions.fields.iter() {
        assert!(!is_grip_field(name.as_bytes()), "{name}");
        assert!(block.iter().any(|field| field == (name, value)), "{name}");
    }
    check_instructions(&instructions, head.len());
    let is_spoken = has_instruction_body(&block);
    if let Some(hold) = &instructions.hold {
        assert!(is_spoken || !hold.subscriptions.is_empty());
    }
    if instructions.hold.is_none() || !is_spoken {
        return;
    }
    let Ok(instructions) = instructions.apply_instruction_body(Status::OK, body) else {
        return;
    };
    check_instructions(&instructions, response.len());
    check_fields(&instructions.fields);
    let hold = instructions.hold.expect("it was said in the fields");
    assert!(!hold.subscriptions.is_empty());
    assert!(
        instructions
            .body
            .is_none_or(|text| text.len() <= body.len())
    );
}

fn check_instructions(instructions: &GripInstructions, sent: usize) {
    assert!(!instructions.status.is_informational());
    assert!(instructions.fields.as_bytes().len() <= 2 * sent + 4);
    if let Some(next) = &instructions.links.next {
        assert!(!next.target.is_empty() && next.target.len() <= sent);
        assert!(next.timeout.as_secs() <= 24 * 3600);
    }
    if let Some(hold) = &instructions.hold {
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
    for (name, value) in &hold.subscriber_meta {
        kept += name.len() + value.len();
    }
    if let Some(beat) = &hold.keep_alive {
        assert!(!beat.bytes.is_empty());
        assert!((1..=24 * 3600).contains(&beat.interval.as_secs()));
        kept += beat.bytes.len();
    }
    assert!(kept <= sent, "{kept} bytes of {sent}: {hold:?}");
}

/// Reads `body` as events of a WebSocket, and each text message of them as a control message.
pub fn read_events(body: &[u8]) {
    websockets::fuzzing::read_events(body);
}

/// Reads `body` as the body of a request to publish.
pub fn read_publications(body: &[u8]) {
    let namespace = Namespace::new("shop");
    let read = parse_publications(body, |_| Ok(namespace.clone()));
    for publication in read.unwrap_or_default() {
        assert!(publication.channel.starts_with("shop\u{1f}"));
        check_publication(&publication, body.len());
    }
}

#[cfg(test)]
mod tests {
    use penstock_hub::fuzzing::read_mutated_inputs;

    use super::*;

    #[test]
    fn instructions_of_any_bytes_keep_their_bounds() {
        read_mutated_inputs(
            &[
                "Grip-Hold: stream\nGrip-Channel: a; prev-id=1; filter=skip-self, \"b, c\"\n\
                 Grip-Keep-Alive: x\\n; format=cstring; timeout=5\nGrip-Set-Meta: user=\"al\"\n\
                 Grip-Link: </n>; rel=next; timeout=3\nX-A: 1\nGrip-Expose-Headers: x-a\n",
                "Content-Type: application/grip-instruct\nGrip-Hold: response\nGrip-Timeout: 9\n\n\
                 {\"hold\": {\"mode\": \"response\", \"channels\": [{\"name\": \"a\", \"filters\": []}], \
                 \"timeout\": 8, \"keep-alive\": {\"content\": \"x\"}}, \"response\": {\"code\": 200, \
                 \"headers\": {\"X-Accel-Redirect\": \"/a\", \"Connection\": \"close\"}, \"body\": \"b\"}}",
            ],
            read_instructions,
        );
    }

    #[test]
    fn events_of_any_bytes_are_written_again_as_they_were() {
        read_mutated_inputs(
            &[
                "OPEN\r\nTEXT 5\r\nhello\r\nBINARY 2\r\n\0\0\r\nPING\r\nCLOSE 5\r\n\x03\x7fbye\r\nDISCONNECT\r\n",
                "TEXT 40\r\nc:{\"type\": \"subscribe\", \"channel\": \"a\", \"filters\": [\"skip-self\"]}\r\n",
                "TEXT 49\r\nc:{\"type\": \"keep-alive\", \"content\": \"hi\", \"timeout\": 900000000000}       \r\n",
            ],
            read_events,
        );
    }

    #[test]
    fn publications_of_any_bytes_keep_their_bounds() {
        read_mutated_inputs(
            &[
                "{\"items\": [{\"channel\": \"a\", \"id\": \"1\", \"formats\": {\"http-stream\": {\"content\": \
               \"b\"}, \"ws-message\": {\"type\": \"close\", \"code\": 1000, \"reason\": \"r\"}, \
               \"http-response\": {\"code\": 200, \"headers\": [[\"A\", \"b\"]], \"body-bin\": \"Yg==\"}, \
               \"event\": {\"data\": \"a\\nb\", \"retry\": 5}}}]}",
            ],
            read_publications,
        );
    }
}
