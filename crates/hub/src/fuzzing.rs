//! What back ends, publishers, subscribers and other nodes say, for the fuzzer: `fuzz/fuzz_targets`.
//!
//! The readers are private to this crate; here each is reached with any bytes, and what it makes of
//! them is checked.
//!
//! # Invariants
//! - No bytes panic, and what is read is no larger than what was sent.
//! - What is read is within the bounds that the rest of the hub relies on.

use crate::{cluster, grip, mercure};

/// Reads `answer` as a back end's: fields a line each, an empty line, and a body of instructions.
pub fn read_instruct(answer: &[u8]) {
    grip::fuzzing::read_instruct(answer);
}

/// Reads `body` as events of a WebSocket, and each text of them as a word to the hub.
pub fn read_events(body: &[u8]) {
    grip::fuzzing::read_events(body);
}

/// Reads `body` as what is published to a hub's interface.
pub fn read_publications(body: &[u8]) {
    grip::fuzzing::read_publications(body);
}

/// Whether `topic` is selected by `template`; none when that is no template, or too complex a one.
#[must_use]
pub fn matches_template(template: &str, topic: &str) -> Option<bool> {
    mercure::fuzzing::matches_template(template, topic)
}

/// Reads `form` as an update of a Mercure hub, and as the query of a subscriber.
pub fn read_update(form: &[u8]) {
    mercure::fuzzing::read_update(form);
}

/// Reads `entry` as what another node wrote to Redis.
pub fn read_entry(entry: &[u8]) {
    cluster::fuzzing::read_entry(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts with some bytes changed, cut or said twice: the fuzzer finds more, and is not always there.
    fn changed(seeds: &[&str], read: impl Fn(&[u8])) {
        let mut state = 11_u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize
        };
        for seed in seeds {
            read(seed.as_bytes());
            for _ in 0..1000 {
                let mut bytes = seed.as_bytes().to_vec();
                for _ in 0..1 + next() % 4 {
                    let at = next() % bytes.len();
                    match next() % 5 {
                        0 => bytes.truncate(at.max(1)),
                        1 => bytes[at] = b"\"\\{},;:=\r\n\0"[next() % 11],
                        2 => bytes[at] ^= 1 << (next() % 8),
                        3 => drop(bytes.splice(at..at, *b"9")),
                        _ => drop(bytes.splice(at..at, seed.bytes().take(next() % 40))),
                    }
                }
                read(&bytes);
            }
        }
    }

    #[test]
    fn instructions_of_any_bytes_keep_their_bounds() {
        changed(
            &[
                "Grip-Hold: stream\nGrip-Channel: a; prev-id=1; filter=skip-self, \"b, c\"\n\
                 Grip-Keep-Alive: x\\n; format=cstring; timeout=5\nGrip-Set-Meta: user=\"al\"\n\
                 Grip-Link: </n>; rel=next; timeout=3\nX-A: 1\nGrip-Expose-Headers: x-a\n",
                "Content-Type: application/grip-instruct\nGrip-Hold: response\nGrip-Timeout: 9\n\n\
                 {\"hold\": {\"mode\": \"response\", \"channels\": [{\"name\": \"a\", \"filters\": []}], \
                 \"timeout\": 8, \"keep-alive\": {\"content\": \"x\"}}, \"response\": {\"code\": 200, \
                 \"headers\": {\"X-Accel-Redirect\": \"/a\", \"Connection\": \"close\"}, \"body\": \"b\"}}",
            ],
            read_instruct,
        );
    }

    #[test]
    fn events_of_any_bytes_are_written_again_as_they_were() {
        changed(
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
        changed(
            &[
                "{\"items\": [{\"channel\": \"a\", \"id\": \"1\", \"formats\": {\"http-stream\": {\"content\": \
               \"b\"}, \"ws-message\": {\"type\": \"close\", \"code\": 1000, \"reason\": \"r\"}, \
               \"http-response\": {\"code\": 200, \"headers\": [[\"A\", \"b\"]], \"body-bin\": \"Yg==\"}, \
               \"event\": {\"data\": \"a\\nb\", \"retry\": 5}}}]}",
            ],
            read_publications,
        );
    }

    #[test]
    fn updates_of_any_bytes_keep_their_bounds() {
        changed(
            &["topic=https%3A%2F%2Fa%2F1&topic=b&data=x%0Ay&id=1&type=t&retry=10&private=on"],
            read_update,
        );
    }

    #[test]
    fn entries_of_any_bytes_are_written_again_as_they_were() {
        changed(
            &[
                "{\"v\":1,\"message\":{\"id\":\"a\",\"stream\":{\"send\":{\"bytes\":{\"text\":\"x\"}}},\
                 \"response\":{\"send\":{\"status\":200,\"fields\":[[\"A\",{\"base64\":\"Yg==\"}]],\
                 \"body\":{\"bytes\":{\"text\":\"\"}}}},\"event\":{\"data\":\"d\"},\"meta\":[[\"a\",\"b\"]]}}",
                "{\"v\":1,\"message\":{\"websocket\":{\"close\":{\"code\":1000,\"reason\":\"bye\"}}}}",
                "{\"v\":1,\"gap\":\"everywhere\"}",
            ],
            read_entry,
        );
    }
}
