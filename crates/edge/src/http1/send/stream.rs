//! Sending a body that is made while it is sent.
//!
//! # Invariants
//! - A declared length is kept to the byte, or the response is cut.
//! - A client that leaves while the next piece is awaited is noticed.

use std::borrow::Cow;
use std::io::IoSlice;
use std::task::Poll;

use bytes::Bytes;
use penstock_exchange::field_policy::is_internal_field;
use penstock_exchange::{BodyStream, Fault, FaultKind};
use penstock_http::{FieldBlock, ResponseFraming, h1, is_forbidden_trailer};

use super::SendError;
use super::writer::{ProbeBytes, ResponseWriter};

impl ResponseWriter<'_> {
    pub(super) async fn send_stream(
        &mut self,
        head: Vec<u8>,
        mut body: Box<dyn BodyStream>,
        framing: ResponseFraming,
    ) -> Result<(), SendError> {
        let mut head = head;
        let mut left = match framing {
            ResponseFraming::Length(length) => Some(length),
            _ => None,
        };
        let chunked = matches!(framing, ResponseFraming::Chunked);
        let mut size_line = Vec::with_capacity(16);
        loop {
            // A body that is not ready yet must not hold back its head.
            let ready = try_next_piece(&mut *body).await;
            let piece = match ready {
                Some(piece) => piece,
                None => {
                    self.write(&mut [IoSlice::new(&head)]).await?;
                    head.clear();
                    self.next_piece(&mut *body, chunked).await?
                }
            };
            let Some(piece) = piece.transpose().map_err(SendError::Body)? else {
                break;
            };
            if let Some(left) = &mut left {
                *left = left
                    .checked_sub(piece.len() as u64)
                    .ok_or_else(|| SendError::Body(length_mismatch("longer")))?;
            }
            size_line.clear();
            size_line.extend_from_slice(self.take_owed_zero());
            let mut tail: &[u8] = b"";
            if chunked {
                h1::encode_chunk_head(piece.len(), &mut size_line);
                tail = b"\r\n";
            }
            let slices = &mut [
                IoSlice::new(&head),
                IoSlice::new(&size_line),
                IoSlice::new(&piece),
                IoSlice::new(tail),
            ];
            self.write(slices).await?;
            head.clear();
        }
        if left.is_some_and(|left| left > 0) {
            return Err(SendError::Body(length_mismatch("shorter")));
        }
        let last = match chunked {
            true => encode_last_chunk(body.take_trailers().as_ref()),
            false => Cow::Borrowed(&b""[..]),
        };
        let zero = self.take_owed_zero();
        let slices = &mut [IoSlice::new(&head), IoSlice::new(zero), IoSlice::new(&last)];
        self.write(slices).await?;
        let ends_with_stream = matches!(framing, ResponseFraming::UntilClose);
        match ends_with_stream && self.stream.layer().is_some() {
            true => self.announce_end().await,
            false => Ok(()),
        }
    }

    /// Waits for the next piece, and notices a client that leaves meanwhile. One that only closed
    /// its sending side gets all of the body.
    async fn next_piece(
        &mut self,
        body: &mut dyn BodyStream,
        is_chunked: bool,
    ) -> Result<StreamPiece, SendError> {
        let mut ahead = match is_chunked {
            true => ProbeBytes::Zeros,
            false => ProbeBytes::Nothing,
        };
        std::future::poll_fn(|cx| {
            if let Poll::Ready(piece) = body.poll_chunk(cx) {
                return Poll::Ready(Ok(piece));
            }
            self.poll_disconnected(cx, &mut ahead)
                .map(|()| Err(SendError::ClientDisconnected))
        })
        .await
    }
}

/// The end of a chunked body, with the trailer fields that may be sent (RFC 9112 §7.1.2).
fn encode_last_chunk(trailers: Option<&FieldBlock>) -> Cow<'static, [u8]> {
    let Some(trailers) = trailers.filter(|fields| !fields.is_empty()) else {
        return Cow::Borrowed(h1::LAST_CHUNK);
    };
    let mut last = b"0\r\n".to_vec();
    for (name, value) in trailers.iter() {
        if !is_forbidden_trailer(name.as_bytes()) && !is_internal_field(name.as_bytes()) {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                last.extend_from_slice(part);
            }
        }
    }
    last.extend_from_slice(b"\r\n");
    Cow::Owned(last)
}

fn length_mismatch(how: &str) -> Fault {
    Fault::new(
        FaultKind::AppProtocolError,
        format!("the response body is {how} than its declared Content-Length"),
    )
}

type StreamPiece = Option<Result<Bytes, Fault>>;

async fn try_next_piece(body: &mut dyn BodyStream) -> Option<StreamPiece> {
    std::future::poll_fn(|cx| match body.poll_chunk(cx) {
        Poll::Ready(piece) => Poll::Ready(Some(piece)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_for_the_front_end_and_the_hub_are_not_sent() {
        let mut trailers = FieldBlock::new();
        for name in [
            "X-Lighttpd-Send-File",
            "X-Sendfile-Type",
            "X-Sendfile",
            "x-accel-redirect",
            "Grip-Hold",
            "X-Checksum",
        ] {
            trailers.push(name, b"a").unwrap();
        }
        assert_eq!(
            encode_last_chunk(Some(&trailers)).as_ref(),
            b"0\r\nX-Checksum: a\r\n\r\n"
        );
    }
}
