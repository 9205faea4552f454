//! Server-sent events as text (WHATWG HTML, "Server-sent events").
//!
//! The status page and the hub encode events here, and send and pace them themselves. A line break
//! in the data starts another `data` line, so that no message can forge a field or end its event
//! early.

/// Appends one event with its closing blank line. Line breaks in `event` and `id` cannot be encoded
/// and are removed.
pub fn encode_event(out: &mut Vec<u8>, event: Option<&str>, id: Option<&str>, data: &str) {
    out.reserve(data.len() + 32);
    if let Some(event) = event {
        push_field(out, "event: ", event);
    }
    if let Some(id) = id {
        push_field(out, "id: ", id);
    }
    let mut rest = data;
    loop {
        let end = rest.find(['\r', '\n']);
        let (line, after) = rest.split_at(end.unwrap_or(rest.len()));
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
        if end.is_none() {
            break;
        }
        rest = after.strip_prefix("\r\n").unwrap_or_else(|| &after[1..]);
    }
    out.push(b'\n');
}

/// Appends the delay after which clients reconnect, in milliseconds. The event that it belongs to
/// follows.
pub fn encode_retry(out: &mut Vec<u8>, milliseconds: u64) {
    push_field(out, "retry: ", &milliseconds.to_string());
}

/// Appends a comment, which keeps the connection alive and has no effect.
pub fn encode_comment(out: &mut Vec<u8>, text: &str) {
    push_field(out, ": ", text);
    out.push(b'\n');
}

/// The id that a client returns with after these whole events: that of the last `id` field. Browsers
/// ignore one with a NUL.
pub fn last_event_id(events: &[u8]) -> Option<&[u8]> {
    let lines = events.rsplit(|byte| matches!(byte, b'\r' | b'\n'));
    let mut ids = lines.filter_map(|line| line.strip_prefix(b"id:"));
    ids.find(|id| !id.contains(&0)).map(<[u8]>::trim_ascii)
}

fn push_field(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend(
        value
            .bytes()
            .filter(|byte| !matches!(byte, b'\r' | b'\n' | 0)),
    );
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_events_that_cannot_break_out() {
        for (event, id, data, expected) in [
            (None, None, "hi", "data: hi\n\n"),
            (None, None, "", "data: \n\n"),
            (
                Some("tick"),
                Some("7"),
                "{}",
                "event: tick\nid: 7\ndata: {}\n\n",
            ),
            (
                None,
                None,
                "a\nb\r\nc\rd",
                "data: a\ndata: b\ndata: c\ndata: d\n\n",
            ),
            (
                None,
                None,
                "a\n\nevent: x",
                "data: a\ndata: \ndata: event: x\n\n",
            ),
            (None, None, "a\n", "data: a\ndata: \n\n"),
            (
                Some("a\nb"),
                Some("c\r\nd\0"),
                "x",
                "event: ab\nid: cd\ndata: x\n\n",
            ),
        ] {
            let mut out = Vec::new();
            encode_event(&mut out, event, id, data);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn the_time_to_come_back_is_part_of_the_event() {
        let mut out = Vec::new();
        encode_retry(&mut out, 1500);
        encode_event(&mut out, None, Some("1"), "x");
        assert_eq!(out, b"retry: 1500\nid: 1\ndata: x\n\n");
    }

    #[test]
    fn the_last_id_is_that_of_the_last_field() {
        for (events, expected) in [
            ("", None),
            ("data: id: 1\n\n", None),
            ("id: 1\ndata: x\n\n", Some("1")),
            ("data: x\r\nid:1\r\n\r\n", Some("1")),
            ("id: 1\ndata: x\n\nid: 2 \rdata: y\n\n:\n\n", Some("2")),
            ("id: 1\ndata: x\n\nid: \0\n\n", Some("1")),
            ("id: 1\n\nid:\n\n", Some("")),
            ("identity: 1\n\n", None),
        ] {
            let found = last_event_id(events.as_bytes());
            assert_eq!(found, expected.map(str::as_bytes), "{events:?}");
        }
    }

    #[test]
    fn a_comment_is_one_line() {
        let mut out = Vec::new();
        encode_comment(&mut out, "still\nhere");
        assert_eq!(out, b": stillhere\n\n");
    }
}
