//! One request and its response on one connection: the relay loop of all protocols.
//!
//! [`UpstreamExchange::begin`] writes the head, with a small body, in one system call.
//! [`UpstreamExchange::poll_exchange`] continues sending, reads from the server and returns
//! [`ResponseProgress`]. `proxied_request` drives it to the head, `relay` from there to the end.
//!
//! # Invariants
//!
//! - A response that arrives before the whole request was sent is read.
//! - A connection is reusable only if the whole request was sent, the response is complete, and no
//!   bytes follow it.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use penstock_exchange::{ClientState, Request};
use penstock_http::{LAST_CHUNK, encode_chunk_head};
use penstock_runtime::{buffers, clock};
use penstock_wire::ajp::BodyCredit;
use penstock_wire::fastcgi;

use crate::body_source::{BodySource, MAX_PIECE_BYTES, RequestBodyFraming};
use crate::codec::{BodyEncoding, Codec, DecodedEvent, ResponseEnd, ResponseEvent, attempt_stage};
use crate::connection::UpstreamConnection;
use crate::failure::{AttemptFailure, AttemptStage};
use crate::response_head::UpstreamResponseHead;
use crate::upstream::SharedUpstream;
use crate::upstream_tls::explain_io_error;

/// Bodies up to this size are written together with their head.
const MAX_BODY_WITH_HEAD: usize = 16 * 1024;

/// A connection with an active request.
#[derive(Debug)]
pub(crate) struct UpstreamExchange {
    pub(crate) connection: UpstreamConnection,
    codec: Codec,
    body_encoding: BodyEncoding,
    /// Encoded bytes; those from `out_sent` on are not written yet.
    out: Vec<u8>,
    out_sent: usize,
    /// What remains to be encoded.
    send_state: SendState,
    /// Received but not decoded: part of a head or a record.
    partial: Vec<u8>,
    /// The server has sent anything at all.
    pub(crate) has_received: bool,
    /// Part of a body has arrived.
    has_data: bool,
    has_head: bool,
    /// Bytes follow the end of the response.
    has_trailing_bytes: bool,
    /// The response came before the whole request was sent.
    was_answered_early: bool,
    /// When the server last read something, since the value was last taken.
    pub(crate) last_send_progress_at: Option<Instant>,
    /// The server has all of the request that has arrived, and more is to come.
    pub(crate) waits_for_client: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendState {
    /// The body may have more.
    Body,
    /// The server requests each part of the body (AJP).
    OnDemand { flow: BodyCredit, is_ended: bool },
    /// All of it is encoded, or as much as the server asks for.
    Encoded,
    /// The server reads no more; it may still respond.
    Refused,
}

/// The progress of a response since the last poll.
#[derive(Debug, Default)]
pub(crate) struct ResponseProgress {
    /// The final head, once.
    pub(crate) head: Option<UpstreamResponseHead>,
    /// The head switched protocols.
    pub(crate) is_upgraded: bool,
    pub(crate) end: Option<ResponseEnd>,
}

impl UpstreamExchange {
    /// Begins `request` on `connection` and passes the exchange to `keep`, so that this large value
    /// is constructed in place.
    ///
    /// # Errors
    /// A head that does not fit the protocol, or a connection that accepts no bytes.
    pub(crate) fn begin(
        shared: &SharedUpstream,
        connection: UpstreamConnection,
        request: &Request,
        source: &mut BodySource,
        keep: impl FnOnce(Self),
    ) -> Result<(), AttemptFailure> {
        let framing = source.framing();
        buffers::with_output_buffer(|out| {
            let name = &connection.count_guard.server.authority;
            let (codec, body_encoding) =
                Codec::encode_request(&shared.config, request, framing, name, out)?;
            let mut send_state = SendState::Body;
            if body_encoding == BodyEncoding::Ajp {
                // The first packet is sent unrequested, the rest on request.
                let length = match framing {
                    RequestBodyFraming::Length(length) => length,
                    RequestBodyFraming::None | RequestBodyFraming::Chunked => 0,
                };
                send_state = SendState::OnDemand {
                    flow: BodyCredit::new(length),
                    is_ended: length == 0,
                };
            } else if let Some(body) = source.take_rest_if_small(MAX_BODY_WITH_HEAD) {
                encode_piece(body_encoding, body, out);
                encode_end(body_encoding, out);
                send_state = SendState::Encoded;
            }
            let out = send_first(&connection, out)?;
            keep(Self {
                connection,
                codec,
                body_encoding,
                out,
                out_sent: 0,
                send_state,
                partial: Vec::new(),
                has_received: false,
                has_data: false,
                has_head: false,
                has_trailing_bytes: false,
                was_answered_early: false,
                last_send_progress_at: None,
                waits_for_client: false,
            });
            Ok(())
        })
    }

    /// Whether every part of the request that the server waits for is written.
    pub(crate) fn is_request_sent(&self) -> bool {
        let is_encoded = match &self.send_state {
            SendState::Body => false,
            SendState::OnDemand { flow, .. } => flow.available_bytes() == 0,
            SendState::Encoded | SendState::Refused => true,
        };
        is_encoded && self.out_sent == self.out.len()
    }

    /// Returns the connection, if it may carry another request after `end`.
    pub(crate) fn into_reusable_connection(
        mut self,
        end: &ResponseEnd,
    ) -> Option<UpstreamConnection> {
        let is_in_order = self.body_encoding == BodyEncoding::Ajp || !self.was_answered_early;
        let is_clean =
            end.is_reusable && is_in_order && !self.has_trailing_bytes && self.partial.is_empty();
        let is_whole = self.is_request_sent() && self.send_state == SendState::Encoded;
        self.connection.requests_served = self.connection.requests_served.saturating_add(1);
        self.connection.needs_liveness_check = !self.has_data;
        if !is_whole {
            self.abort_if_incomplete();
        }
        (is_clean && is_whole).then_some(self.connection)
    }

    /// Makes the close a reset if the server has not read the whole request: it might never read
    /// on, and so never see the end of the stream behind the unread bytes.
    pub(crate) fn abort_if_incomplete(&self) {
        if self.was_answered_early
            || !self.is_request_sent()
            || self.send_state == SendState::Refused
        {
            self.connection.stream.abort();
        }
    }

    /// Returns the connection as a tunnel, and the bytes behind the switch.
    pub(crate) fn into_tunnel_parts(self) -> (UpstreamConnection, Vec<u8>) {
        (self.connection, self.partial)
    }

    /// Sends as much as possible and reads the available bytes; ready when part of the final
    /// response or of its body has arrived. `body` receives the pieces.
    ///
    /// # Errors
    /// The server closes, resets, or violates its protocol, or the request body fails.
    pub(crate) fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BodySource,
        client: Option<&ClientState>,
        server: &str,
        body: &mut impl FnMut(&[u8]),
    ) -> Poll<Result<ResponseProgress, AttemptFailure>> {
        loop {
            if !self.is_request_sent() {
                self.poll_send(cx, source)?;
            }
            let mut sink = ResponseSink {
                progress: ResponseProgress::default(),
                client,
                server,
                body,
                has_data: false,
            };
            let read = buffers::with_receive_buffer(|buffer| {
                Poll::Ready(match ready!(self.connection.stream.poll_read(cx, buffer)) {
                    Ok(0) => self.handle_eof(&mut sink),
                    Ok(count) => self.handle_bytes(&buffer[..count], &mut sink),
                    Err(error) => Err(AttemptFailure::server_disconnected(
                        attempt_stage(self.has_head),
                        format!(
                            "the connection to the server broke: {}",
                            explain_io_error(&error)
                        ),
                    )),
                })
            });
            if let Err(mut failure) = ready!(read) {
                // Only the exchange knows how far the request was.
                if self.has_head && failure.stage == AttemptStage::Sent {
                    failure.stage = AttemptStage::ResponseStarted;
                }
                return Poll::Ready(Err(failure));
            }
            let ResponseSink {
                progress, has_data, ..
            } = sink;
            if progress.head.is_some() || progress.end.is_some() || has_data {
                return Poll::Ready(Ok(progress));
            }
        }
    }

    /// Sends as much as the connection accepts and the source has.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BodySource,
    ) -> Result<(), AttemptFailure> {
        loop {
            while self.out_sent < self.out.len() {
                let rest = IoSlice::new(&self.out[self.out_sent..]);
                match self.connection.stream.poll_write(cx, &[rest]) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Ok(count)) => {
                        self.out_sent += count;
                        self.last_send_progress_at = Some(clock::now());
                    }
                    Poll::Ready(Err(_)) => {
                        // Bytes that the server sent before are still read.
                        self.send_state = SendState::Refused;
                        self.out_sent = self.out.len();
                        return Ok(());
                    }
                }
            }
            self.out.clear();
            self.out_sent = 0;
            if !self.poll_encode(cx, source)? {
                return Ok(());
            }
        }
    }

    /// Encodes the next piece of the body; `false` when none is available.
    fn poll_encode(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BodySource,
    ) -> Result<bool, AttemptFailure> {
        let most = match self.send_state {
            SendState::Encoded | SendState::Refused => return Ok(false),
            SendState::OnDemand { flow, .. } if flow.available_bytes() == 0 => return Ok(false),
            SendState::OnDemand { flow, .. } => flow.available_bytes(),
            SendState::Body => MAX_PIECE_BYTES,
        };
        let mut piece = Vec::new();
        let polled = source.poll_piece(cx, most, &mut piece);
        self.waits_for_client = polled.is_pending();
        match polled {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(fault)) => return Err(fault.into()),
            Poll::Ready(Ok(is_more)) => {
                let mut out = std::mem::take(&mut self.out);
                self.encode_next(&piece, is_more, &mut out);
                self.out = out;
            }
        }
        Ok(!self.out.is_empty())
    }

    fn encode_next(&mut self, piece: &[u8], is_more: bool, out: &mut Vec<u8>) {
        match &mut self.send_state {
            SendState::OnDemand { flow, is_ended } => {
                *is_ended |= !is_more;
                let sent = flow.encode(out, piece);
                debug_assert_eq!(sent, piece.len(), "no more was taken than is wanted");
            }
            _ if is_more => encode_piece(self.body_encoding, piece, out),
            _ => {
                encode_end(self.body_encoding, out);
                self.send_state = SendState::Encoded;
            }
        }
    }

    /// Handles a response before the whole request was sent: the server may read the rest, or take
    /// it for another request. After a success it may still want the rest; after a refusal it does
    /// not.
    fn record_early_response(&mut self, status: u16) {
        if self.is_request_sent() {
            return;
        }
        self.was_answered_early = true;
        if status >= 300 && !matches!(self.send_state, SendState::OnDemand { .. }) {
            self.send_state = SendState::Refused;
            self.out_sent = self.out.len();
        }
    }

    fn handle_bytes(
        &mut self,
        received: &[u8],
        sink: &mut ResponseSink<'_, impl FnMut(&[u8])>,
    ) -> Result<(), AttemptFailure> {
        self.has_received = true;
        if self.partial.is_empty() {
            let used = self.decode(received, sink)?;
            self.partial.extend_from_slice(&received[used..]);
            return Ok(());
        }
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(received);
        let used = self.decode(&whole, sink)?;
        whole.drain(..used);
        self.partial = whole;
        Ok(())
    }

    fn handle_eof(
        &mut self,
        sink: &mut ResponseSink<'_, impl FnMut(&[u8])>,
    ) -> Result<(), AttemptFailure> {
        let event = self.codec.finish_at_eof()?;
        self.has_trailing_bytes = true;
        self.handle_event(event, sink)
    }

    /// Decodes as much as possible; returns the bytes consumed.
    fn decode(
        &mut self,
        input: &[u8],
        sink: &mut ResponseSink<'_, impl FnMut(&[u8])>,
    ) -> Result<usize, AttemptFailure> {
        let mut used = 0;
        loop {
            let DecodedEvent { consumed, event } = self.codec.decode(&input[used..])?;
            used += consumed;
            let Some(event) = event else {
                return Ok(used);
            };
            let is_over = matches!(
                event,
                ResponseEvent::End(_) | ResponseEvent::SwitchedProtocols(_)
            );
            self.handle_event(event, sink)?;
            if is_over {
                self.has_trailing_bytes |= !sink.progress.is_upgraded && used < input.len();
                return Ok(used);
            }
        }
    }

    fn handle_event(
        &mut self,
        event: ResponseEvent<'_>,
        sink: &mut ResponseSink<'_, impl FnMut(&[u8])>,
    ) -> Result<(), AttemptFailure> {
        match event {
            ResponseEvent::Interim(status, fields) => {
                // 100 and 102 apply to this hop; 103 is for the client.
                if status.code() == EARLY_HINTS
                    && let Some(client) = sink.client
                {
                    let _ = client.push_interim(status, fields);
                }
            }
            ResponseEvent::Head(head) => {
                self.has_head = true;
                self.record_early_response(head.status.code());
                sink.progress.head = Some(head);
            }
            ResponseEvent::SwitchedProtocols(_) if !self.is_request_sent() => {
                // The start of the other protocol would be unknown.
                let cause = "a switch of protocols before the whole request was sent";
                return Err(AttemptFailure::protocol_error(AttemptStage::Sent, cause));
            }
            ResponseEvent::SwitchedProtocols(head) => {
                self.has_head = true;
                sink.progress.is_upgraded = true;
                sink.progress.head = Some(head);
            }
            ResponseEvent::Data(piece) => {
                sink.has_data = true;
                self.has_data = true;
                (sink.body)(piece);
            }
            ResponseEvent::LogLines(lines) => {
                for line in lines.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii) {
                    if !line.is_empty() {
                        let line = String::from_utf8_lossy(line);
                        log::warn!("{}: {}", sink.server, line.escape_debug());
                    }
                }
            }
            ResponseEvent::BodyRequested(count) => {
                if let SendState::OnDemand { flow, is_ended } = &mut self.send_state {
                    flow.grant(count).map_err(|error| {
                        AttemptFailure::protocol_error(AttemptStage::Sent, error.to_string())
                    })?;
                    if *is_ended {
                        // Requested again after the end: an empty packet repeats it.
                        flow.encode(&mut self.out, b"");
                    }
                }
            }
            ResponseEvent::End(end) => {
                if let SendState::OnDemand { flow, .. } = &self.send_state {
                    // It has read what it wanted of the body; a connection that still waits for
                    // more cannot be reused.
                    self.send_state = match flow.available_bytes() {
                        0 => SendState::Encoded,
                        _ => SendState::Refused,
                    };
                }
                sink.progress.end = Some(end);
            }
        }
        Ok(())
    }
}

/// Writes what the connection accepts at once; returns the rest.
fn send_first(connection: &UpstreamConnection, out: &[u8]) -> Result<Vec<u8>, AttemptFailure> {
    match connection.stream.try_write(&[IoSlice::new(out)]) {
        Ok(count) => Ok(out[count..].to_vec()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(out.to_vec()),
        Err(error) => Err(AttemptFailure::server_disconnected(
            AttemptStage::Unsent,
            format!("cannot send the request: {error}"),
        )),
    }
}

fn encode_piece(form: BodyEncoding, piece: &[u8], out: &mut Vec<u8>) {
    if piece.is_empty() {
        return;
    }
    match form {
        BodyEncoding::Plain | BodyEncoding::Ajp => out.extend_from_slice(piece),
        BodyEncoding::Chunked => {
            encode_chunk_head(piece.len(), out);
            out.extend_from_slice(piece);
            out.extend_from_slice(b"\r\n");
        }
        BodyEncoding::FastCgi => fastcgi::encode_stdin(out, piece),
    }
}

fn encode_end(form: BodyEncoding, out: &mut Vec<u8>) {
    match form {
        BodyEncoding::Plain | BodyEncoding::Ajp => {}
        BodyEncoding::Chunked => out.extend_from_slice(LAST_CHUNK),
        BodyEncoding::FastCgi => fastcgi::encode_stdin_end(out),
    }
}

/// RFC 8297 §2.
const EARLY_HINTS: u16 = 103;

/// Receives the parts of a response.
struct ResponseSink<'a, B> {
    progress: ResponseProgress,
    client: Option<&'a ClientState>,
    server: &'a str,
    body: &'a mut B,
    has_data: bool,
}
