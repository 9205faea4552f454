//! One request and its response on one connection: the one loop that relays, for every protocol.
//!
//! [`Talk::begin`] writes the head (and a small body with it) in one system call; [`Talk::poll_read`]
//! goes on sending, reads what the server says and gives it out as [`Said`]. `call` drives it to the
//! head, `relay` from there to the end. What must stay true: a server that answers before it has the
//! whole request is heard; a connection is reusable only when the whole request is out, the response is
//! complete, and nothing is behind it.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};
use std::time::Instant;

use penstock_exchange::{ClientState, Request};
use penstock_http::{FieldBlock, LAST_CHUNK, encode_chunk_head};
use penstock_runtime::{buffers, clock};
use penstock_wire::ajp::BodyCredit;
use penstock_wire::fastcgi;

use crate::codec::{BodyForm, Codec, Decoded, Event, stage};
use crate::connection::Connection;
use crate::failure::{Failure, Stage};
use crate::head::ReplyHead;
use crate::source::{Framing, PIECE_BYTES, Source};
use crate::upstream::Shared;

/// Bodies up to this size go out with their head.
const WITH_HEAD_BYTES: usize = 16 * 1024;

/// A connection at work.
#[derive(Debug)]
pub(crate) struct Talk {
    connection: Connection,
    codec: Codec,
    form: BodyForm,
    /// Encoded and not with the kernel yet: from `out_sent` on.
    out: Vec<u8>,
    out_sent: usize,
    /// What the source still has to give.
    sending: Sending,
    /// Received and not decoded: part of a head or a record.
    partial: Vec<u8>,
    has_heard: bool,
    /// Something of a body has come.
    has_data: bool,
    has_head: bool,
    /// Bytes behind the end of the response.
    has_more: bool,
    /// It was answered before it was sent.
    is_early: bool,
    /// The server took something since it was last asked.
    progress_at: Option<Instant>,
    /// The rest of the request is not here yet.
    waits_for_client: bool,
}

/// How far the request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// There may be more of the body.
    Body,
    /// The server asks before it takes more (AJP).
    Asked { flow: BodyCredit, is_ended: bool },
    /// All of it is encoded, or as much as the server asks for.
    Encoded,
    /// The server takes no more; it may still answer.
    Refused,
}

/// What a response has brought since the last look.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The final head, once.
    pub(crate) head: Option<ReplyHead>,
    /// The head switched protocols.
    pub(crate) is_switched: bool,
    /// The response is complete.
    pub(crate) end: Option<End>,
}

/// The end of a response.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) reusable: bool,
    pub(crate) trailers: Option<FieldBlock>,
}

impl Talk {
    /// Begins `request` on `connection`, and hands what came of it to `keep`: it is large, and so is made
    /// where it stays.
    ///
    /// # Errors
    /// A head that the protocol has no room for, or a connection that takes nothing.
    pub(crate) fn begin(
        shared: &Shared,
        connection: Connection,
        request: &Request,
        source: &mut Source,
        keep: impl FnOnce(Self),
    ) -> Result<(), Failure> {
        let framing = source.framing();
        buffers::with_output_buffer(|out| {
            let name = &connection.server().authority;
            let (codec, form) = Codec::begin(&shared.config, request, framing, name, out)?;
            let mut sending = Sending::Body;
            if form == BodyForm::Ajp {
                // The first packet goes unasked, the rest as it is asked for.
                let length = match framing {
                    Framing::Length(length) => length,
                    Framing::None | Framing::Chunked => 0,
                };
                sending = Sending::Asked {
                    flow: BodyCredit::new(length),
                    is_ended: length == 0,
                };
            } else if let Some(body) = source.take_small(WITH_HEAD_BYTES) {
                encode_piece(form, body, out);
                encode_end(form, out);
                sending = Sending::Encoded;
            }
            let out = send_first(&connection, out)?;
            keep(Self {
                connection,
                codec,
                form,
                out,
                out_sent: 0,
                sending,
                partial: Vec::new(),
                has_heard: false,
                has_data: false,
                has_head: false,
                has_more: false,
                is_early: false,
                progress_at: None,
                waits_for_client: false,
            });
            Ok(())
        })
    }

    /// Whether all of the request that the server waits for is with the kernel.
    pub(crate) fn is_sent(&self) -> bool {
        let is_encoded = match &self.sending {
            Sending::Body => false,
            Sending::Asked { flow, .. } => flow.credit() == 0,
            Sending::Encoded | Sending::Refused => true,
        };
        is_encoded && self.out_sent == self.out.len()
    }

    /// When the server last took something, if it did since this was last asked.
    pub(crate) fn take_progress(&mut self) -> Option<Instant> {
        self.progress_at.take()
    }

    /// Whether the server has all that there is of the request, and more is to come.
    pub(crate) fn waits_for_client(&self) -> bool {
        self.waits_for_client
    }

    /// Whether the server has said nothing at all.
    pub(crate) fn is_unanswered(&self) -> bool {
        !self.has_heard
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// The connection, if it may carry another request after `end`.
    pub(crate) fn into_connection(mut self, end: &End) -> Option<Connection> {
        let is_asked = matches!(self.form, BodyForm::Ajp);
        let is_in_order = is_asked || !self.is_early;
        let is_clean = end.reusable && is_in_order && !self.has_more && self.partial.is_empty();
        let is_whole = self.is_sent() && self.sending == Sending::Encoded;
        self.connection.served = self.connection.served.saturating_add(1);
        self.connection.is_doubtful = !self.has_data;
        if !is_whole {
            self.cut();
        }
        (is_clean && is_whole).then_some(self.connection)
    }

    /// Makes the close a reset where the server has not taken the whole request: it might never read
    /// on, and so never see the end of the stream behind what it did not read.
    pub(crate) fn cut(&self) {
        if self.is_early || !self.is_sent() || self.sending == Sending::Refused {
            self.connection.stream.abort();
        }
    }

    /// The connection as a tunnel, and what came behind the switch.
    pub(crate) fn into_tunnel(self) -> (Connection, Vec<u8>) {
        (self.connection, self.partial)
    }

    /// Sends what can be sent and reads what is there; ready when something of the final response is, or
    /// a piece of its body. `body` gets the pieces.
    ///
    /// # Errors
    /// When the server closes, resets, or breaks its protocol, or the request's own body fails.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Source,
        client: Option<&ClientState>,
        server: &str,
        body: &mut impl FnMut(&[u8]),
    ) -> Poll<Result<Said, Failure>> {
        loop {
            if !self.is_sent() {
                self.poll_send(cx, source)?;
            }
            let mut hearer = Hearer {
                said: Said::default(),
                client,
                server,
                body,
                has_data: false,
            };
            let read = buffers::with_receive_buffer(|buffer| {
                match self.connection.stream.poll_read(cx, buffer) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(0)) => Poll::Ready(self.take_eof(&mut hearer)),
                    Poll::Ready(Ok(count)) => {
                        Poll::Ready(self.take_bytes(&buffer[..count], &mut hearer))
                    }
                    Poll::Ready(Err(error)) => Poll::Ready(Err(Failure::died(
                        stage(self.has_head),
                        format!("the connection to the server broke: {error}"),
                    ))),
                }
            });
            match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(self.as_far(failure))),
                Poll::Ready(Ok(())) => {}
            }
            let Hearer { said, has_data, .. } = hearer;
            if said.head.is_some() || said.end.is_some() || has_data {
                return Poll::Ready(Ok(said));
            }
        }
    }

    /// A failure says how far the request was, which only this knows.
    fn as_far(&self, mut failure: Failure) -> Failure {
        if self.has_head && failure.stage == Stage::Sent {
            failure.stage = Stage::Answered;
        }
        failure
    }

    /// Sends as much as the connection takes and the source gives.
    fn poll_send(&mut self, cx: &mut Context<'_>, source: &mut Source) -> Result<(), Failure> {
        loop {
            while self.out_sent < self.out.len() {
                let rest = IoSlice::new(&self.out[self.out_sent..]);
                match self.connection.stream.poll_write(cx, &[rest]) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Ok(count)) => {
                        self.out_sent += count;
                        self.progress_at = Some(clock::now());
                    }
                    Poll::Ready(Err(_)) => {
                        // Whatever the server said before is still to be read.
                        self.sending = Sending::Refused;
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

    /// Encodes the next piece of the body; `false` when there is none now.
    fn poll_encode(&mut self, cx: &mut Context<'_>, source: &mut Source) -> Result<bool, Failure> {
        let most = match self.sending {
            Sending::Encoded | Sending::Refused => return Ok(false),
            Sending::Asked { flow, .. } if flow.credit() == 0 => return Ok(false),
            Sending::Asked { flow, .. } => flow.credit(),
            Sending::Body => PIECE_BYTES,
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
        match &mut self.sending {
            Sending::Asked { flow, is_ended } => {
                *is_ended |= !is_more;
                let sent = flow.encode(out, piece);
                debug_assert_eq!(sent, piece.len(), "no more was taken than is wanted");
            }
            _ if is_more => encode_piece(self.form, piece, out),
            _ => {
                encode_end(self.form, out);
                self.sending = Sending::Encoded;
            }
        }
    }

    /// An answer before the whole request is out: the server may read the rest, or take it for another
    /// request. One that succeeds may still want it, a refusal does not.
    fn note_early(&mut self, status: u16) {
        if self.is_sent() {
            return;
        }
        self.is_early = true;
        if status >= 300 && !matches!(self.sending, Sending::Asked { .. }) {
            self.sending = Sending::Refused;
            self.out_sent = self.out.len();
        }
    }

    fn take_bytes(
        &mut self,
        received: &[u8],
        hearer: &mut Hearer<'_, impl FnMut(&[u8])>,
    ) -> Result<(), Failure> {
        self.has_heard = true;
        if self.partial.is_empty() {
            let used = self.decode(received, hearer)?;
            self.partial.extend_from_slice(&received[used..]);
            return Ok(());
        }
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(received);
        let used = self.decode(&whole, hearer)?;
        whole.drain(..used);
        self.partial = whole;
        Ok(())
    }

    fn take_eof(&mut self, hearer: &mut Hearer<'_, impl FnMut(&[u8])>) -> Result<(), Failure> {
        let event = self.codec.eof()?;
        self.has_more = true;
        self.hear(event, hearer)
    }

    /// Decodes what it can; gives how many bytes that took.
    fn decode(
        &mut self,
        input: &[u8],
        hearer: &mut Hearer<'_, impl FnMut(&[u8])>,
    ) -> Result<usize, Failure> {
        let mut used = 0;
        loop {
            let Decoded { consumed, event } = self.codec.decode(&input[used..])?;
            used += consumed;
            let Some(event) = event else {
                return Ok(used);
            };
            let is_over = matches!(event, Event::End { .. } | Event::Switched(_));
            self.hear(event, hearer)?;
            if is_over {
                self.has_more |= !hearer.said.is_switched && used < input.len();
                return Ok(used);
            }
        }
    }

    fn hear(
        &mut self,
        event: Event<'_>,
        hearer: &mut Hearer<'_, impl FnMut(&[u8])>,
    ) -> Result<(), Failure> {
        match event {
            Event::Interim(status, fields) => {
                // 100 and 102 are about this hop; 103 speaks to the client.
                if status.code() == EARLY_HINTS
                    && let Some(client) = hearer.client
                {
                    let _ = client.push_interim(status, &fields);
                }
            }
            Event::Head(head) => {
                self.has_head = true;
                self.note_early(head.status.code());
                hearer.said.head = Some(head);
            }
            Event::Switched(_) if !self.is_sent() => {
                // Nobody could say where the other protocol begins.
                let cause = "a switch of protocols before the whole request was sent";
                return Err(Failure::broken(Stage::Sent, cause));
            }
            Event::Switched(head) => {
                self.has_head = true;
                hearer.said.is_switched = true;
                hearer.said.head = Some(head);
            }
            Event::Data(piece) => {
                hearer.has_data = true;
                self.has_data = true;
                (hearer.body)(piece);
            }
            Event::Log(lines) => {
                for line in lines.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii) {
                    if !line.is_empty() {
                        let line = String::from_utf8_lossy(line);
                        log::warn!("{}: {}", hearer.server, line.escape_debug());
                    }
                }
            }
            Event::BodyWanted(count) => {
                if let Sending::Asked { flow, is_ended } = &mut self.sending {
                    flow.grant(count)
                        .map_err(|error| Failure::broken(Stage::Sent, error.to_string()))?;
                    if *is_ended {
                        // Asked again behind the end: an empty packet says so once more.
                        flow.encode(&mut self.out, b"");
                    }
                }
            }
            Event::End { reusable, trailers } => {
                if let Sending::Asked { flow, .. } = &self.sending {
                    // It took what it wanted of the body; one that still waits for more cannot be used.
                    self.sending = match flow.credit() {
                        0 => Sending::Encoded,
                        _ => Sending::Refused,
                    };
                }
                hearer.said.end = Some(End { reusable, trailers });
            }
        }
        Ok(())
    }
}

/// Sends what the connection takes at once; gives the rest.
fn send_first(connection: &Connection, out: &[u8]) -> Result<Vec<u8>, Failure> {
    match connection.stream.try_write(&[IoSlice::new(out)]) {
        Ok(count) => Ok(out[count..].to_vec()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(out.to_vec()),
        Err(error) => Err(Failure::died(
            Stage::Unsent,
            format!("the server takes no request: {error}"),
        )),
    }
}

fn encode_piece(form: BodyForm, piece: &[u8], out: &mut Vec<u8>) {
    if piece.is_empty() {
        return;
    }
    match form {
        BodyForm::Plain | BodyForm::Ajp => out.extend_from_slice(piece),
        BodyForm::Chunked => {
            encode_chunk_head(piece.len(), out);
            out.extend_from_slice(piece);
            out.extend_from_slice(b"\r\n");
        }
        BodyForm::FastCgi => fastcgi::encode_stdin(out, piece),
    }
}

fn encode_end(form: BodyForm, out: &mut Vec<u8>) {
    match form {
        BodyForm::Plain | BodyForm::Ajp => {}
        BodyForm::Chunked => out.extend_from_slice(LAST_CHUNK),
        BodyForm::FastCgi => fastcgi::encode_stdin_end(out),
    }
}

/// RFC 8297 §2.
const EARLY_HINTS: u16 = 103;

/// Where the parts of a response go.
struct Hearer<'a, B> {
    said: Said,
    client: Option<&'a ClientState>,
    server: &'a str,
    body: &'a mut B,
    has_data: bool,
}
