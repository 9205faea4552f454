//! One WebSocket from the 101 to its end: frames on the client's side, events on the back end's, messages
//! from the hub.
//!
//! Takes the connection over from edge and stays on its loop. See the head of `sockets`.

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_exchange::{Fault, Takeover, TakeoverFuture};
use penstock_http::websocket::{
    MessageDecoder, Opcode, WebSocketError, WebSocketEvent, code, encode_close_frame,
    encode_control_frame, message_frame_head,
};
use penstock_runtime::{Stream, buffers, clock};

use super::control::Beat;
use super::dialog::{Answer, Answered, Dialog, Meta};
use super::events::Event;
use crate::hub::{Heard, Listener};
use crate::{Publication, SlowPolicy, SocketPart, StreamPart};

/// Bytes of a client's messages that wait while the back end works; then it is not read.
const WAITING_BYTES: usize = 256 << 10;
/// And events of it.
const WAITING_EVENTS: usize = 256;
/// A client of which nothing is heard for so long is asked whether it is there, and after as long gone.
const SILENCE: Duration = Duration::from_secs(30);
/// For the client's close after ours, and for the back end to hear of an end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The close of one that may come back and then gets what it missed (IANA's WebSocket Close Code Registry).
const TRY_AGAIN_LATER: u16 = 1013;

/// An agreed WebSocket until edge hands its connection over.
pub(super) struct Agreed(Box<Session>);

impl Agreed {
    pub(super) fn new(dialog: Dialog, listener: Listener, answer: Answer) -> Self {
        let settings = dialog.shared.hub.settings();
        Self(Box::new(Session {
            decoder: MessageDecoder::new(settings.message_bytes),
            patience: settings.stall_timeout,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            meta: Meta::new(),
            prefix: answer.prefix.clone(),
            again: None,
            beat: None,
            is_detached: false,
            heard: (clock::now(), false),
            said: None,
            out: Vec::new(),
            opened: Some(answer),
            listener,
            dialog: Arc::new(dialog),
        }))
    }
}

impl std::fmt::Debug for Agreed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Agreed")
    }
}

impl Takeover for Agreed {
    fn take_over(self: Box<Self>, client: Arc<Stream>, early: Vec<u8>) -> TakeoverFuture {
        Box::pin(self.0.run(client, early))
    }
}

/// A request to the back end that is under way.
type Asking = Pin<Box<dyn Future<Output = Result<Answered, Fault>> + Send>>;

pub(super) struct Session {
    pub(super) dialog: Arc<Dialog>,
    pub(super) listener: Listener,
    decoder: MessageDecoder,
    /// For the client to take what is written to it.
    patience: Duration,
    /// Events that the back end has not heard of.
    pub(super) waiting: VecDeque<Event>,
    waiting_bytes: usize,
    pub(super) meta: Meta,
    pub(super) prefix: Option<Box<str>>,
    /// When the back end wants to hear something, and how often.
    pub(super) again: Option<(Instant, Duration)>,
    /// What the client gets while nothing else is sent to it.
    pub(super) beat: Option<(Instant, Beat)>,
    pub(super) is_detached: bool,
    /// When the client was heard last, and whether it was asked since.
    heard: (Instant, bool),
    /// The close that the client said, to be answered when the back end has heard of it.
    said: Option<u16>,
    /// Frames to be written.
    pub(super) out: Vec<u8>,
    /// What the back end answered to the opening.
    opened: Option<Answer>,
}

/// Why a WebSocket ends.
pub(super) enum End {
    /// The client's connection is gone, or of no use.
    Broken,
    /// The client is told so; the back end knows, or has failed.
    Close(u16, Box<str>),
    /// The client is told so, and then the back end.
    Cut(u16, Box<str>),
}

/// What happens next.
enum Next {
    Read(usize),
    Answered(Result<Answered, Fault>),
    Heard(Heard),
    Again,
    Beat,
    Silence,
}

impl Session {
    async fn run(mut self: Box<Self>, client: Arc<Stream>, early: Vec<u8>) {
        let mut asking = None;
        let end = match self.begin(&early).await {
            Ok(()) => self.go_on(&client, &mut asking).await,
            Err(end) => end,
        };
        let is_known = matches!(end, End::Close(..));
        if let End::Close(with, reason) | End::Cut(with, reason) = end {
            encode_close_frame(&mut self.out, with, &reason);
            if self.flush(&client).await.is_ok() && self.said.is_none() {
                self.await_close(&client).await;
            }
        }
        drop(client);
        if !is_known && !self.is_detached {
            // What it said before comes first; nobody waits for more than that the back end knows.
            let mut events: Vec<_> = self.waiting.drain(..).collect();
            events.push(Event::Disconnect);
            let told = async {
                if let Some(asking) = asking {
                    // Whatever comes of it.
                    let _ = asking.await;
                }
                self.dialog.tell(&self.meta, &events).await
            };
            let told = clock::timeout(CLOSE_TIMEOUT, told).await;
            if let Some(Err(fault)) = told {
                let cause = fault.cause;
                log::info!("grip: a back end is not told of a lost WebSocket: {cause}");
            }
        }
    }

    async fn begin(&mut self, early: &[u8]) -> Result<(), End> {
        if let Some(answer) = self.opened.take() {
            self.obey(answer, true).await?;
        }
        self.receive(early)
    }

    /// Until its end.
    async fn go_on(&mut self, client: &Stream, asking: &mut Option<Asking>) -> End {
        loop {
            if let Err(end) = self.flush(client).await {
                return end;
            }
            if asking.is_none() && !self.waiting.is_empty() {
                *asking = Some(self.ask());
            }
            let next = self.next(client, asking).await;
            let done = match next {
                Next::Read(0) => Err(End::Broken),
                Next::Read(count) => {
                    buffers::with_receive_buffer(|buffer| self.receive(&buffer[..count]))
                }
                Next::Answered(answered) => {
                    *asking = None;
                    self.answered(answered).await
                }
                Next::Heard(heard) => self.heard(heard),
                Next::Again => {
                    *asking = Some(self.ask());
                    Ok(())
                }
                Next::Beat => {
                    self.beat_once();
                    Ok(())
                }
                Next::Silence => self.ask_client(),
            };
            if let Err(end) = done {
                return end;
            }
        }
    }

    async fn next(&self, client: &Stream, asking: &mut Option<Asking>) -> Next {
        let is_free = asking.is_none();
        let has_room = self.waiting_bytes < WAITING_BYTES && self.waiting.len() < WAITING_EVENTS;
        // Behind a close there is nothing more to read.
        let reads = has_room && self.said.is_none();
        let again = self.again.map(|(at, _)| at).filter(|_| is_free);
        let beat = self.beat.as_ref().map(|(at, _)| *at);
        tokio::select! {
            biased;
            answered = asked(asking) => Next::Answered(answered),
            // What was read is in the loop's own buffer, and taken before anything is awaited.
            count = read(client), if reads => Next::Read(count),
            heard = self.listener.next() => Next::Heard(heard),
            () = at(again) => Next::Again,
            () = at(beat) => Next::Beat,
            // Who is not read cannot be heard.
            () = at(Some(self.heard.0 + SILENCE)), if reads => Next::Silence,
        }
    }

    /// Begins to tell what waits.
    fn ask(&mut self) -> Asking {
        let events: Vec<_> = self.waiting.drain(..).collect();
        self.waiting_bytes = 0;
        let (dialog, meta) = (Arc::clone(&self.dialog), self.meta.clone());
        Box::pin(async move { dialog.tell(&meta, &events).await })
    }

    /// Takes what the client sent.
    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), End> {
        self.heard = (clock::now(), false);
        loop {
            let event = self
                .decoder
                .decode(&mut bytes)
                .map_err(|error: WebSocketError| {
                    End::Cut(error.code(), error.to_string().into())
                })?;
            let event = match event {
                None => return Ok(()),
                Some(WebSocketEvent::Pong) => continue,
                Some(WebSocketEvent::Ping(payload)) => {
                    encode_control_frame(&mut self.out, Opcode::Pong, &payload);
                    continue;
                }
                Some(WebSocketEvent::Message {
                    is_text: true,
                    payload,
                }) => Event::Text(payload.into()),
                Some(WebSocketEvent::Message { payload, .. }) => Event::Binary(payload.into()),
                Some(WebSocketEvent::Close { code: with, reason }) => {
                    self.said = Some(with);
                    let with = (with != code::NO_STATUS).then_some(with);
                    Event::Close(with, reason.into())
                }
            };
            if self.is_detached {
                match self.said {
                    Some(with) => return Err(End::Close(with, "".into())),
                    None => continue,
                }
            }
            self.waiting_bytes += event.len();
            self.waiting.push_back(event);
        }
    }

    /// Takes what the back end answered.
    async fn answered(&mut self, answered: Result<Answered, Fault>) -> Result<(), End> {
        let failed = |cause: &str| {
            log::warn!("grip: a WebSocket is closed: {cause}");
            Err(End::Close(code::INTERNAL_ERROR, "".into()))
        };
        match answered {
            Ok(Answered::Events(answer)) => self.obey(*answer, false).await?,
            Ok(Answered::Other(response)) => {
                return failed(&format!("its back end answers {}", response.status));
            }
            Err(fault) => return failed(&fault.cause),
        }
        // The back end knows of the client's close, and said nothing of its own.
        match self.said {
            Some(with) if self.waiting.is_empty() => Err(End::Close(with, "".into())),
            _ => Ok(()),
        }
    }

    /// Takes what was published.
    fn heard(&mut self, heard: Heard) -> Result<(), End> {
        match heard {
            Heard::Message(message) => self.published(&message.publication),
            Heard::Missed(count) => {
                log::debug!("grip: a WebSocket takes messages too slowly: it has lost {count}");
                self.missed()
            }
            Heard::Draining => Err(End::Cut(code::GOING_AWAY, "".into())),
        }
    }

    /// A WebSocket has no place where a gap could be told: it is closed, or goes on without.
    fn missed(&self) -> Result<(), End> {
        match self.dialog.shared.hub.settings().slow {
            SlowPolicy::Disconnect => Err(End::Cut(TRY_AGAIN_LATER, "messages are missing".into())),
            SlowPolicy::DropOldest => Ok(()),
        }
    }

    fn published(&mut self, publication: &Publication) -> Result<(), End> {
        if matches!(publication.stream, Some(StreamPart::Gap)) {
            return self.missed();
        }
        let Some(part) = &publication.websocket else {
            return Ok(());
        };
        match part {
            SocketPart::Text(content) => {
                // A filter may have made something else of it.
                let bytes = self.listener.content(publication, content);
                let bytes = bytes.filter(|bytes| std::str::from_utf8(bytes).is_ok());
                bytes.iter().for_each(|bytes| self.frame(true, bytes));
            }
            SocketPart::Binary(content) => {
                let bytes = self.listener.content(publication, content);
                bytes.iter().for_each(|bytes| self.frame(false, bytes));
            }
            SocketPart::Ping(bytes) => encode_control_frame(&mut self.out, Opcode::Ping, bytes),
            SocketPart::Pong(bytes) => encode_control_frame(&mut self.out, Opcode::Pong, bytes),
            SocketPart::Close { code, reason } => {
                return Err(End::Cut(*code, reason.clone()));
            }
        }
        Ok(())
    }

    pub(super) fn frame(&mut self, is_text: bool, bytes: &Bytes) {
        let head = message_frame_head(is_text, bytes.len());
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(bytes);
    }

    /// Nothing was heard of the client for long.
    fn ask_client(&mut self) -> Result<(), End> {
        if self.heard.1 {
            return Err(End::Broken);
        }
        self.heard = (clock::now(), true);
        encode_control_frame(&mut self.out, Opcode::Ping, b"");
        Ok(())
    }

    fn beat_once(&mut self) {
        if let Some((at, beat)) = self.beat.take() {
            match &beat.event {
                Event::Text(bytes) => self.frame(true, bytes),
                Event::Binary(bytes) => self.frame(false, bytes),
                Event::Ping(bytes) => encode_control_frame(&mut self.out, Opcode::Ping, bytes),
                Event::Pong(bytes) => encode_control_frame(&mut self.out, Opcode::Pong, bytes),
                // No other can be asked for.
                Event::Open | Event::Close(..) | Event::Disconnect => {}
            }
            self.beat = Some((at, beat));
        }
    }

    /// Writes what there is to write. A client that does not take it is gone.
    async fn flush(&mut self, client: &Stream) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = mem::take(&mut self.out);
        let now = clock::now();
        let written = clock::timeout_at(now + self.patience, client.write_all(&out)).await;
        if let Some((at, beat)) = &mut self.beat {
            *at = now + beat.every;
        }
        match written {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(End::Broken),
        }
    }

    /// Waits for the client's own close, so that nothing that is on its way resets the connection before our
    /// close has arrived (RFC 6455 §7.1.1).
    async fn await_close(&mut self, client: &Stream) {
        client.shutdown_write();
        let ended = async {
            while read(client).await > 0 {
                // What it says now is not listened to.
            }
        };
        let _ = clock::timeout(CLOSE_TIMEOUT, ended).await;
    }
}

/// Reads into the loop's own buffer; 0 at the end of the connection, however it came.
async fn read(client: &Stream) -> usize {
    std::future::poll_fn(|cx| {
        buffers::with_receive_buffer(|buffer| client.poll_read(cx, buffer))
            .map(|read| read.unwrap_or(0))
    })
    .await
}

async fn asked(asking: &mut Option<Asking>) -> Result<Answered, Fault> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => {
            let _ = clock::timeout_at(moment, std::future::pending::<()>()).await;
        }
        None => std::future::pending().await,
    }
}
