//! Events of a WebSocket as text: `TYPE[ SP hexlen CRLF content] CRLF`, one after the other.
//!
//! Pure. The body of every request and response of `application/websocket-events`.

use bytes::Bytes;
use thiserror::Error;

pub(super) const EVENTS_MEDIA_TYPE: &str = "application/websocket-events";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SocketEvent {
    /// The client asks for it, or the back end takes it.
    Open,
    Text(Bytes),
    Binary(Bytes),
    Ping(Bytes),
    Pong(Bytes),
    /// With a code, if one was said, and a reason.
    Close(Option<u16>, Box<str>),
    /// The connection broke.
    Disconnect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum WebSocketEventsError {
    #[error("an event's first line does not end")]
    NoLine,
    #[error("an event's length is no hexadecimal number")]
    BadLength,
    #[error("an event's content ends too early")]
    CutShort,
    #[error("an event is of an unknown type")]
    UnknownType,
    #[error("an event of text is not UTF-8")]
    NotUtf8,
    #[error("a close has a code of one byte")]
    BadClose,
}

const LINE_END: &[u8] = b"\r\n";

/// The longest first line: the longest name and a length.
const MAX_LINE_BYTES: usize = 64;

impl SocketEvent {
    /// The bytes that it carries.
    pub(super) fn payload_len(&self) -> usize {
        match self {
            Self::Open | Self::Disconnect => 0,
            Self::Text(bytes) | Self::Binary(bytes) | Self::Ping(bytes) | Self::Pong(bytes) => {
                bytes.len()
            }
            Self::Close(_, reason) => 2 + reason.len(),
        }
    }
}

pub(super) fn encode_event(out: &mut Vec<u8>, event: &SocketEvent) {
    match event {
        SocketEvent::Open => out.extend_from_slice(b"OPEN\r\n"),
        SocketEvent::Disconnect => out.extend_from_slice(b"DISCONNECT\r\n"),
        SocketEvent::Text(bytes) => encode_with_content(out, "TEXT", bytes),
        SocketEvent::Binary(bytes) => encode_with_content(out, "BINARY", bytes),
        SocketEvent::Ping(bytes) => encode_with_content(out, "PING", bytes),
        SocketEvent::Pong(bytes) => encode_with_content(out, "PONG", bytes),
        SocketEvent::Close(None, _) => out.extend_from_slice(b"CLOSE\r\n"),
        SocketEvent::Close(Some(code), reason) => {
            let mut bytes = code.to_be_bytes().to_vec();
            bytes.extend_from_slice(reason.as_bytes());
            encode_with_content(out, "CLOSE", &bytes);
        }
    }
}

fn encode_with_content(out: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    let line = format!("{name} {:x}\r\n", bytes.len());
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(LINE_END);
}

/// All events of a body.
pub(super) fn decode_events(body: &Bytes) -> Result<Vec<SocketEvent>, WebSocketEventsError> {
    let mut events = Vec::new();
    let mut rest = body.clone();
    while !rest.is_empty() {
        let line = &rest[..rest.len().min(MAX_LINE_BYTES)];
        let end = line.windows(2).position(|pair| pair == LINE_END);
        let line = rest.split_to(end.ok_or(WebSocketEventsError::NoLine)?);
        let _ = rest.split_to(LINE_END.len());
        let blank = line.iter().position(|&byte| byte == b' ');
        let (name, content) = match blank {
            None => (&line[..], Bytes::new()),
            Some(at) => {
                let len = parse_hex_length(&line[at + 1..])?;
                // Behind the content comes a line's end.
                if rest.len() < len.saturating_add(LINE_END.len()) {
                    return Err(WebSocketEventsError::CutShort);
                }
                let content = rest.split_to(len);
                if rest.split_to(LINE_END.len()) != LINE_END {
                    return Err(WebSocketEventsError::CutShort);
                }
                (&line[..at], content)
            }
        };
        events.push(decode_event(name, content)?);
    }
    Ok(events)
}

fn parse_hex_length(digits: &[u8]) -> Result<usize, WebSocketEventsError> {
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let text = std::str::from_utf8(digits).ok().filter(|_| is_hex);
    let number = text.and_then(|text| usize::from_str_radix(text, 16).ok());
    number.ok_or(WebSocketEventsError::BadLength)
}

fn decode_event(name: &[u8], content: Bytes) -> Result<SocketEvent, WebSocketEventsError> {
    Ok(match name {
        b"OPEN" => SocketEvent::Open,
        b"TEXT" if std::str::from_utf8(&content).is_err() => {
            return Err(WebSocketEventsError::NotUtf8);
        }
        b"TEXT" => SocketEvent::Text(content),
        b"BINARY" => SocketEvent::Binary(content),
        b"PING" => SocketEvent::Ping(content),
        b"PONG" => SocketEvent::Pong(content),
        b"CLOSE" => match content.split_first_chunk::<2>() {
            // No code is zero: libraries write it where none was said.
            Some(([0, 0], _)) => SocketEvent::Close(None, "".into()),
            Some((code, reason)) => {
                let reason =
                    std::str::from_utf8(reason).map_err(|_| WebSocketEventsError::NotUtf8)?;
                SocketEvent::Close(Some(u16::from_be_bytes(*code)), reason.into())
            }
            None if content.is_empty() => SocketEvent::Close(None, "".into()),
            None => return Err(WebSocketEventsError::BadClose),
        },
        b"DISCONNECT" => SocketEvent::Disconnect,
        _ => return Err(WebSocketEventsError::UnknownType),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(body: &[u8]) -> Result<Vec<SocketEvent>, WebSocketEventsError> {
        decode_events(&Bytes::copy_from_slice(body))
    }

    #[test]
    fn events_come_back_as_they_went() {
        let events = [
            SocketEvent::Open,
            SocketEvent::Text("m:h\u{e9}\r\nTEXT 3\r\n".into()),
            SocketEvent::Text(Bytes::new()),
            SocketEvent::Binary(Bytes::from_static(b"\x00\xff\r\n")),
            SocketEvent::Ping("a".into()),
            SocketEvent::Pong(Bytes::from(vec![b'x'; 300])),
            SocketEvent::Close(Some(4001), "bye".into()),
            SocketEvent::Close(None, "".into()),
            SocketEvent::Disconnect,
        ];
        let mut body = Vec::new();
        events
            .iter()
            .for_each(|event| encode_event(&mut body, event));
        assert_eq!(decoded(&body).unwrap(), events);
        // Cut anywhere it is fewer events or an error, and nothing panics.
        for end in 0..body.len() {
            let cut = decoded(&body[..end]);
            assert!(cut.is_err() || cut.unwrap().len() < events.len(), "{end}");
        }
    }

    #[test]
    fn what_is_no_event_is_refused() {
        for (body, expected) in [
            (&b"OPEN"[..], WebSocketEventsError::NoLine),
            (b"OPEN\n", WebSocketEventsError::NoLine),
            (b"open\r\n", WebSocketEventsError::UnknownType),
            (b"\r\n", WebSocketEventsError::UnknownType),
            (b"TEXT \r\n\r\n", WebSocketEventsError::BadLength),
            (b"TEXT +1\r\na\r\n", WebSocketEventsError::BadLength),
            (b"TEXT 1g\r\na\r\n", WebSocketEventsError::BadLength),
            (b"TEXT ffffffffffffffff\r\n", WebSocketEventsError::CutShort),
            (
                b"TEXT fffffffffffffffff\r\n",
                WebSocketEventsError::BadLength,
            ),
            (b"TEXT 2\r\na\r\n", WebSocketEventsError::CutShort),
            (b"TEXT 1\r\nab\r\n", WebSocketEventsError::CutShort),
            (b"TEXT 1\r\n\xff\r\n", WebSocketEventsError::NotUtf8),
            (b"CLOSE 1\r\na\r\n", WebSocketEventsError::BadClose),
            (
                b"CLOSE 3\r\n\x03\xe8\xff\r\n",
                WebSocketEventsError::NotUtf8,
            ),
        ] {
            let shown = String::from_utf8_lossy(body);
            assert_eq!(decoded(body), Err(expected), "{shown:?}");
        }
        let long = [&[b'a'; 100][..], b"\r\n"].concat();
        assert_eq!(decoded(&long), Err(WebSocketEventsError::NoLine));
        assert_eq!(
            decoded(b"CLOSE 2\r\n\0\0\r\n"),
            Ok(vec![SocketEvent::Close(None, "".into())])
        );
        assert_eq!(decoded(b""), Ok(Vec::new()));
    }
}
