//! Reads one response as it arrives: finds its end and counts its content bytes.
//!
//! A connection has one [`ResponseReader`], restarts it for each request and feeds it received
//! bytes in any pieces. No clock and no socket here.
//!
//! # Invariants
//!
//! - A response is complete only by its own framing.
//! - Excess bytes are reported.

use penstock_http::{
    BodyDecoder, ParseProgress, ResponseHead, ResponseHeadError, ResponseHeadLimits,
    ResponseHeadScanner,
};

/// Why a request has no complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResponseFailure {
    #[error("no connection")]
    ConnectFailed,
    #[error("TLS handshake failed, or an invalid record")]
    Tls,
    #[error("not in time")]
    Timeout,
    #[error("connection reset")]
    Reset,
    #[error("closed before the response was complete")]
    Closed,
    #[error("not an http/1 response")]
    Malformed,
    #[error("more bytes than the response announced")]
    ExcessBytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeedResult {
    /// More bytes are needed.
    More,
    Complete,
}

/// The properties of the request and connection that affect the response.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestContext {
    /// Whether the request was a `HEAD`, which gets no body.
    pub(crate) is_head: bool,
    /// Whether the connection has brought a response before.
    pub(crate) is_reused_connection: bool,
}

#[derive(Debug)]
pub(crate) struct ResponseReader {
    request: RequestContext,
    scanner: ResponseHeadScanner,
    stage: ReaderStage,
    partial: Vec<u8>,
    /// The last head and its meaning: a server's heads change once a second, if at all, and
    /// comparing costs a twentieth of parsing.
    last_head: Option<LastHead>,
    pub(crate) status: u16,
    /// Whether the server accepts another request.
    pub(crate) keep_alive: bool,
    pub(crate) bytes: u64,
    pub(crate) body_bytes: u64,
}

#[derive(Debug)]
struct LastHead {
    bytes: Vec<u8>,
    is_head: bool,
    head: ResponseHead,
}

#[derive(Debug)]
enum ReaderStage {
    Head,
    Body(BodyDecoder),
    UntilClose,
}

impl ResponseReader {
    pub(crate) fn new() -> Self {
        Self {
            request: RequestContext::default(),
            scanner: ResponseHeadScanner::new(),
            stage: ReaderStage::Head,
            partial: Vec::new(),
            last_head: None,
            status: 0,
            keep_alive: false,
            bytes: 0,
            body_bytes: 0,
        }
    }

    /// Begins a new response.
    pub(crate) fn begin(&mut self, asked: RequestContext) {
        self.request = asked;
        self.scanner = ResponseHeadScanner::new();
        self.stage = ReaderStage::Head;
        self.partial.clear();
        self.bytes = 0;
        self.body_bytes = 0;
    }

    /// Decodes received bytes.
    pub(crate) fn feed(&mut self, received: &[u8]) -> Result<FeedResult, ResponseFailure> {
        self.bytes += received.len() as u64;
        if !matches!(self.stage, ReaderStage::Head) {
            return self.feed_body(received);
        }
        if self.partial.is_empty()
            && let Some(head) = self.match_last_head(received)
        {
            self.begin_body(&head);
            return self.feed_body(&received[head.len..]);
        }
        let mut partial = std::mem::take(&mut self.partial);
        let bytes = if partial.is_empty() {
            received
        } else {
            partial.extend_from_slice(received);
            &partial
        };
        let (taken, is_final) = self.read_heads(bytes)?;
        if is_final {
            return self.feed_body(&bytes[taken..]);
        }
        self.partial = bytes[taken..].to_vec();
        Ok(FeedResult::More)
    }

    /// Decodes interim heads (RFC 9110 §15.2) and the final one; returns the bytes consumed and
    /// whether the final one was among them.
    fn read_heads(&mut self, bytes: &[u8]) -> Result<(usize, bool), ResponseFailure> {
        let mut taken = 0;
        loop {
            let rest = &bytes[taken..];
            let head = match self
                .scanner
                .scan(rest, self.request.is_head, &RESPONSE_LIMITS)
            {
                Ok(ParseProgress::Partial) => return Ok((taken, false)),
                Ok(ParseProgress::Complete(head)) => head,
                // After a valid response, invalid bytes are excess bytes of that one.
                Err(ResponseHeadError::NotHttp) if self.request.is_reused_connection => {
                    return Err(ResponseFailure::ExcessBytes);
                }
                Err(_) => return Err(ResponseFailure::Malformed),
            };
            taken += head.len;
            // An unsolicited switch of protocols ends HTTP here (RFC 9110 §15.2.2).
            if matches!(head.status, 100 | 102..=199) {
                continue;
            }
            // A longer one is not remembered, as each of a thousand connections would store it.
            if head.len <= MAX_REMEMBERED_HEAD {
                self.last_head = Some(LastHead {
                    bytes: rest[..head.len].to_vec(),
                    is_head: self.request.is_head,
                    head,
                });
            }
            self.begin_body(&head);
            return Ok((taken, true));
        }
    }

    fn begin_body(&mut self, head: &ResponseHead) {
        self.status = head.status;
        self.keep_alive = head.keep_alive;
        self.stage = match BodyDecoder::for_response(head.framing) {
            Some(decoder) => ReaderStage::Body(decoder),
            None => ReaderStage::UntilClose,
        };
    }

    /// The parsed head if `received` begins with the same head as last time.
    fn match_last_head(&self, received: &[u8]) -> Option<ResponseHead> {
        let known = self.last_head.as_ref()?;
        let is_same = known.is_head == self.request.is_head && received.starts_with(&known.bytes);
        is_same.then_some(known.head)
    }

    fn feed_body(&mut self, bytes: &[u8]) -> Result<FeedResult, ResponseFailure> {
        match &mut self.stage {
            ReaderStage::Head => Ok(FeedResult::More),
            ReaderStage::UntilClose => {
                self.body_bytes += bytes.len() as u64;
                Ok(FeedResult::More)
            }
            ReaderStage::Body(decoder) => {
                let mut taken = 0;
                while taken < bytes.len() {
                    if decoder.is_done() {
                        return Err(ResponseFailure::ExcessBytes);
                    }
                    let decoded = decoder
                        .decode(&bytes[taken..])
                        .map_err(|_| ResponseFailure::Malformed)?;
                    taken += decoded.consumed;
                    self.body_bytes += decoded.content.len() as u64;
                }
                Ok(if decoder.is_done() {
                    FeedResult::Complete
                } else {
                    FeedResult::More
                })
            }
        }
    }

    /// Handles the end of the connection: valid only if it ends the response.
    pub(crate) fn handle_end_of_stream(&self) -> Result<FeedResult, ResponseFailure> {
        match self.stage {
            ReaderStage::UntilClose => Ok(FeedResult::Complete),
            _ => Err(ResponseFailure::Closed),
        }
    }
}

/// Limits of a response: 64 kB and 256 fields are more than any server sends.
const RESPONSE_LIMITS: ResponseHeadLimits = ResponseHeadLimits {
    max_head_bytes: 64 << 10,
    max_fields: 256,
};

const MAX_REMEMBERED_HEAD: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of the bytes followed by the end of the connection, in one piece and in all
    /// splits in two.
    fn outcome(text: &str, asked: RequestContext) -> (Result<FeedResult, ResponseFailure>, u64) {
        let bytes = text.as_bytes();
        let whole = pieces(&[bytes], asked);
        for at in 1..bytes.len() {
            let two = pieces(&[&bytes[..at], &bytes[at..]], asked);
            assert_eq!(two, whole, "{text:?} cut at {at}");
        }
        whole
    }

    fn pieces(
        pieces: &[&[u8]],
        asked: RequestContext,
    ) -> (Result<FeedResult, ResponseFailure>, u64) {
        let mut incoming = ResponseReader::new();
        incoming.begin(asked);
        let mut fed = Ok(FeedResult::More);
        for piece in pieces {
            fed = match fed {
                // Bytes behind the end belong to the next read, as in the connection.
                Ok(_) => incoming.feed(piece),
                failed => failed,
            };
        }
        if fed == Ok(FeedResult::More) {
            fed = incoming.handle_end_of_stream();
        }
        (fed, incoming.body_bytes)
    }

    #[test]
    fn knows_the_end_of_every_framing() {
        for (name, text, expected) in [
            (
                "length",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
                (Ok(FeedResult::Complete), 5),
            ),
            (
                "chunked",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n",
                (Ok(FeedResult::Complete), 8),
            ),
            (
                "until close",
                "HTTP/1.0 200 OK\r\n\r\nhello",
                (Ok(FeedResult::Complete), 5),
            ),
            (
                "204",
                "HTTP/1.1 204 No\r\n\r\n",
                (Ok(FeedResult::Complete), 0),
            ),
            (
                "interim",
                "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
                (Ok(FeedResult::Complete), 0),
            ),
            (
                "short",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
                (Err(ResponseFailure::Closed), 4),
            ),
            (
                "cut head",
                "HTTP/1.1 200 OK\r\nContent-",
                (Err(ResponseFailure::Closed), 0),
            ),
            (
                "cut chunk",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
                (Err(ResponseFailure::Closed), 5),
            ),
            (
                "long",
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello!",
                (Err(ResponseFailure::ExcessBytes), 5),
            ),
            (
                "bad chunk",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                (Err(ResponseFailure::Malformed), 0),
            ),
            ("garbage", "nonsense", (Err(ResponseFailure::Malformed), 0)),
        ] {
            assert_eq!(outcome(text, RequestContext::default()), expected, "{name}");
        }
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let asked = RequestContext {
            is_head: true,
            is_reused_connection: false,
        };
        assert_eq!(outcome(head, asked), (Ok(FeedResult::Complete), 0));
    }

    #[test]
    fn a_head_seen_before_means_the_same_again() {
        let with_body: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        let without: &[u8] =
            b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let mut incoming = ResponseReader::new();
        for (is_head, head, body) in [
            (false, with_body, &b"ok"[..]),
            (false, with_body, b"ok"),
            (true, with_body, b""),
            (true, with_body, b""),
            (false, with_body, b"ok"),
            (false, without, b""),
            (false, without, b""),
            (false, with_body, b"ok"),
        ] {
            incoming.begin(RequestContext {
                is_head,
                is_reused_connection: false,
            });
            assert_eq!(
                incoming.feed(&[head, body].concat()),
                Ok(FeedResult::Complete)
            );
            let is_found = head == with_body;
            let expected = (
                if is_found { 200 } else { 404 },
                is_found,
                body.len() as u64,
            );
            let found = (incoming.status, incoming.keep_alive, incoming.body_bytes);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn garbage_behind_a_response_is_its_overhang() {
        let asked = RequestContext {
            is_head: false,
            is_reused_connection: true,
        };
        assert_eq!(outcome("ello", asked).0, Err(ResponseFailure::ExcessBytes));
    }
}
