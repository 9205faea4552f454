//! Encodes response heads (RFC 9112 §4–§6).
//!
//! `edge` calls this once per response. The handler provides status and fields; `edge` decides
//! framing and persistence, and only this function writes them. A `Content-Length` or `Connection`
//! among the fields is dropped, so that they cannot disagree.

use crate::{
    fields::{FieldBlock, is_framing_name, split_line},
    grammar::push_decimal,
    status::Status,
};

/// How the client finds the end of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// No body and no length: 1xx, 204, 304.
    None,
    /// `Content-Length`, for HEAD too.
    Length(u64),
    /// `Transfer-Encoding: chunked`; never to an HTTP/1.0 client.
    Chunked,
    /// No header: the body ends with the connection.
    UntilClose,
}

/// The connection after this response (RFC 9112 §9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPersistence {
    /// Kept open; the default of HTTP/1.1.
    KeepAlive,
    /// Kept open, announced to an HTTP/1.0 client.
    KeepAliveHttp10,
    Close,
}

/// The parts of a response head.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHeadParts<'a> {
    pub status: Status,
    /// The handler's fields.
    pub fields: &'a FieldBlock,
    /// How the body ends.
    pub framing: ResponseFraming,
    /// Whether the connection stays open.
    pub persistence: ConnectionPersistence,
    /// The current date, dropped if the fields have a `Date`.
    pub date: Option<&'a [u8; 29]>,
}

/// Appends the whole head with its blank line.
pub fn encode_head(out: &mut Vec<u8>, head: &ResponseHeadParts<'_>) {
    // The longest lines written below total less than 192 bytes.
    out.reserve(head.fields.as_bytes().len() + 192);
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&head.status.digits());
    out.push(b' ');
    out.extend_from_slice(head.status.reason().as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Some(date) = head.date.filter(|_| !head.fields.has_date()) {
        out.extend_from_slice(b"Date: ");
        out.extend_from_slice(date);
        out.extend_from_slice(b"\r\n");
    }
    encode_fields(out, head);
    match head.framing {
        ResponseFraming::Length(length) => {
            out.extend_from_slice(b"Content-Length: ");
            push_decimal(out, length);
            out.extend_from_slice(b"\r\n");
        }
        ResponseFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        ResponseFraming::None | ResponseFraming::UntilClose => {}
    }
    out.extend_from_slice(match head.persistence {
        ConnectionPersistence::KeepAlive => b"\r\n".as_slice(),
        ConnectionPersistence::KeepAliveHttp10 => b"Connection: keep-alive\r\n\r\n",
        ConnectionPersistence::Close => b"Connection: close\r\n\r\n",
    });
}

fn encode_fields(out: &mut Vec<u8>, head: &ResponseHeadParts<'_>) {
    if !head.fields.has_framing() {
        out.extend_from_slice(head.fields.as_bytes());
        return;
    }
    // RFC 9110 §7.8: a 101 names the new protocol in `Upgrade`, and `Connection` lists that field.
    let is_switch = head.status == Status::SWITCHING_PROTOCOLS;
    for line in head.fields.lines() {
        let (name, _) = split_line(line);
        let is_kept = is_switch && name.eq_ignore_ascii_case("connection");
        if is_kept || !is_framing_name(name.as_bytes()) {
            out.extend_from_slice(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";

    fn encoded(
        status: Status,
        fields: &[(&str, &str)],
        framing: ResponseFraming,
        persist: ConnectionPersistence,
        date: Option<&[u8; 29]>,
    ) -> String {
        let mut block = FieldBlock::new();
        for (name, value) in fields {
            block.push(name, value.as_bytes()).unwrap();
        }
        let mut out = Vec::new();
        encode_head(
            &mut out,
            &ResponseHeadParts {
                status,
                fields: &block,
                framing,
                persistence: persist,
                date,
            },
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn writes_each_framing_and_each_persistence() {
        let fields = [("Content-Type", "text/plain")];
        for (framing, persist, expected) in [
            (
                ResponseFraming::Length(0),
                ConnectionPersistence::KeepAlive,
                "Content-Length: 0\r\n\r\n",
            ),
            (
                ResponseFraming::Length(u64::MAX),
                ConnectionPersistence::KeepAliveHttp10,
                "Content-Length: 18446744073709551615\r\nConnection: keep-alive\r\n\r\n",
            ),
            (
                ResponseFraming::Chunked,
                ConnectionPersistence::KeepAlive,
                "Transfer-Encoding: chunked\r\n\r\n",
            ),
            (
                ResponseFraming::UntilClose,
                ConnectionPersistence::Close,
                "Connection: close\r\n\r\n",
            ),
            (
                ResponseFraming::None,
                ConnectionPersistence::KeepAlive,
                "\r\n",
            ),
        ] {
            let start = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                         Content-Type: text/plain\r\n";
            let head = encoded(Status::OK, &fields, framing, persist, Some(DATE));
            assert_eq!(head, format!("{start}{expected}"), "{framing:?}");
        }
    }

    #[test]
    fn framing_fields_of_the_response_are_dropped() {
        let fields = [
            ("content-length", "5"),
            ("A", "1"),
            ("Transfer-Encoding", "chunked"),
            ("Connection", "close, A"),
            ("Keep-Alive", "timeout=5"),
            ("B", "2"),
        ];
        let head = encoded(
            Status::OK,
            &fields,
            ResponseFraming::Length(3),
            ConnectionPersistence::KeepAlive,
            None,
        );
        assert_eq!(
            head,
            "HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\nContent-Length: 3\r\n\r\n"
        );
    }

    #[test]
    fn a_switch_of_protocols_keeps_its_connection_field() {
        let fields = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Content-Length", "0"),
        ];
        let head = encoded(
            Status::SWITCHING_PROTOCOLS,
            &fields,
            ResponseFraming::None,
            ConnectionPersistence::KeepAlive,
            None,
        );
        assert_eq!(
            head,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
    }

    #[test]
    fn a_date_of_the_response_wins() {
        let head = encoded(
            Status::new(299).unwrap(),
            &[("date", "Mon, 07 Nov 1994 08:49:37 GMT")],
            ResponseFraming::None,
            ConnectionPersistence::KeepAlive,
            Some(DATE),
        );
        assert_eq!(
            head,
            "HTTP/1.1 299 \r\ndate: Mon, 07 Nov 1994 08:49:37 GMT\r\n\r\n"
        );
    }
}
