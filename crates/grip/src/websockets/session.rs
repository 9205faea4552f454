//! One WebSocket from the 101 to its end: frames with the client, events with the back end,
//! messages from the hub.
//!
//! Takes the connection over from edge and stays on its event loop. See the head of `websockets`.

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use penstock_exchange::{Fault, Takeover, TakeoverFuture};
use penstock_http::websocket::{
    MessageDecoder, Opcode, WebSocketError, WebSocketEvent, close_code, encode_close_frame,
    encode_control_frame, message_frame_head,
};
use penstock_hub::{
    ListenerEvent, MessageListener, Publication, SlowPolicy, StreamAction, WebSocketAction,
};
use penstock_runtime::{ByteStream, buffers, clock, write_all};

use super::backend_client::{
    ConnectionMeta, WebSocketBackendClient, WebSocketEventsReply, WebSocketEventsResponse,
};
use super::control_message::WebSocketKeepAlive;
use super::websocket_events::SocketEvent;

/// Bytes of a client's messages that wait while the back end works; then it is not read.
const MAX_PENDING_BYTES: usize = 256 << 10;
/// And events of it.
const MAX_PENDING_EVENTS: usize = 256;
/// A client of which nothing is heard for so long is asked whether it is there, and after as long
/// gone.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// For the client's close after ours, and for the back end to hear of an end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The close of one that may come back and then gets what it missed (IANA's WebSocket Close Code
/// Registry).
const TRY_AGAIN_LATER: u16 = 1013;

/// A request to the back end that is under way.
type EventsRequest = Pin<Box<dyn Future<Output = Result<WebSocketEventsReply, Fault>> + Send>>;

pub(super) struct WebSocketOverHttpSession {
    pub(super) backend_client: Arc<WebSocketBackendClient>,
    pub(super) listener: MessageListener,
    decoder: MessageDecoder,
    /// The deadline for the client to read the bytes written to it.
    write_timeout: Duration,
    /// Events not yet sent to the back end.
    pub(super) pending_events: VecDeque<SocketEvent>,
    pending_bytes: usize,
    pub(super) connection_meta: ConnectionMeta,
    pub(super) message_prefix: Option<Box<str>>,
    /// When and how often the back end wants a request without events.
    pub(super) poll_schedule: Option<(Instant, Duration)>,
    /// Sent to the client while nothing else is.
    pub(super) keep_alive: Option<(Instant, WebSocketKeepAlive)>,
    pub(super) is_detached: bool,
    /// When the client last sent something, and whether it was pinged since.
    last_heard: (Instant, bool),
    /// The client's close, answered once the back end has been notified.
    client_close_code: Option<u16>,
    pub(super) write_buffer: Vec<u8>,
    /// The response to the opening.
    open_response: Option<WebSocketEventsResponse>,
}

pub(super) enum WebSocketSessionEnd {
    /// The client's connection is gone, or of no use.
    ConnectionLost,
    /// A close goes to the client; the back end knows, or has failed.
    Close(u16, Box<str>),
    /// A close goes to the client, then to the back end.
    CloseAndNotify(u16, Box<str>),
}

enum SessionInput {
    Read(usize),
    Reply(Result<WebSocketEventsReply, Fault>),
    HubEvent(ListenerEvent),
    PollDue,
    KeepAliveDue,
    PingDue,
}

impl std::fmt::Debug for WebSocketOverHttpSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebSocketSession").finish_non_exhaustive()
    }
}

impl Takeover for WebSocketOverHttpSession {
    fn take_over(self: Box<Self>, client: Arc<dyn ByteStream>, early: Vec<u8>) -> TakeoverFuture {
        Box::pin(self.run(client, early))
    }
}

impl WebSocketOverHttpSession {
    /// One that is agreed, for edge to hand its connection over.
    pub(super) fn new(
        events_client: WebSocketBackendClient,
        listener: MessageListener,
        response: WebSocketEventsResponse,
    ) -> Self {
        let settings = events_client.shared.hub.settings();
        Self {
            decoder: MessageDecoder::new(settings.max_message_size),
            write_timeout: settings.send_timeout,
            pending_events: VecDeque::new(),
            pending_bytes: 0,
            connection_meta: ConnectionMeta::new(),
            message_prefix: response.message_prefix.clone(),
            poll_schedule: None,
            keep_alive: None,
            is_detached: false,
            last_heard: (clock::now(), false),
            client_close_code: None,
            write_buffer: Vec::new(),
            open_response: Some(response),
            listener,
            backend_client: Arc::new(events_client),
        }
    }

    async fn run(mut self: Box<Self>, client: Arc<dyn ByteStream>, early: Vec<u8>) {
        let mut asking = None;
        let end = match self.start(&early).await {
            Ok(()) => self.serve(&*client, &mut asking).await,
            Err(end) => end,
        };
        let is_known = matches!(end, WebSocketSessionEnd::Close(..));
        if let WebSocketSessionEnd::Close(with, reason)
        | WebSocketSessionEnd::CloseAndNotify(with, reason) = end
        {
            encode_close_frame(&mut self.write_buffer, with, &reason);
            if self.flush(&*client).await.is_ok() && self.client_close_code.is_none() {
                self.await_close(&*client).await;
            }
        }
        drop(client);
        if !is_known && !self.is_detached {
            // Its earlier events go first; the end waits only until the back end knows.
            let mut events: Vec<_> = self.pending_events.drain(..).collect();
            events.push(SocketEvent::Disconnect);
            let sent = async {
                if let Some(asking) = asking {
                    // Whatever comes of it.
                    let _ = asking.await;
                }
                self.backend_client
                    .send_events(&self.connection_meta, &events)
                    .await
            };
            let sent = clock::timeout(CLOSE_TIMEOUT, sent).await;
            if let Some(Err(fault)) = sent {
                let cause = fault.cause;
                log::info!("grip: a back end is not told of a lost WebSocket: {cause}");
            }
        }
    }

    async fn start(&mut self, early: &[u8]) -> Result<(), WebSocketSessionEnd> {
        if let Some(response) = self.open_response.take() {
            self.apply_response(response, true).await?;
        }
        self.receive(early)
    }

    async fn serve(
        &mut self,
        client: &dyn ByteStream,
        asking: &mut Option<EventsRequest>,
    ) -> WebSocketSessionEnd {
        loop {
            if let Err(end) = self.flush(client).await {
                return end;
            }
            if asking.is_none() && !self.pending_events.is_empty() {
                *asking = Some(self.start_request());
            }
            let next = self.next_input(client, asking).await;
            let done = match next {
                SessionInput::Read(0) => Err(WebSocketSessionEnd::ConnectionLost),
                SessionInput::Read(count) => {
                    buffers::with_receive_buffer(|buffer| self.receive(&buffer[..count]))
                }
                SessionInput::Reply(answered) => {
                    *asking = None;
                    self.handle_reply(answered).await
                }
                SessionInput::HubEvent(event) => self.handle_hub_event(event),
                SessionInput::PollDue => {
                    *asking = Some(self.start_request());
                    Ok(())
                }
                SessionInput::KeepAliveDue => {
                    self.send_keep_alive();
                    Ok(())
                }
                SessionInput::PingDue => self.ping_client(),
            };
            if let Err(end) = done {
                return end;
            }
        }
    }

    async fn next_input(
        &self,
        client: &dyn ByteStream,
        asking: &mut Option<EventsRequest>,
    ) -> SessionInput {
        let is_free = asking.is_none();
        let has_room = self.pending_bytes < MAX_PENDING_BYTES
            && self.pending_events.len() < MAX_PENDING_EVENTS;
        // Behind a close there is nothing more to read.
        let reads = has_room && self.client_close_code.is_none();
        let again = self.poll_schedule.map(|(at, _)| at).filter(|_| is_free);
        let beat = self.keep_alive.as_ref().map(|(at, _)| *at);
        tokio::select! {
            biased;
            answered = await_reply(asking) => SessionInput::Reply(answered),
            // What was read is in the loop's own buffer, and taken before anything is awaited.
            count = read_client(client), if reads => SessionInput::Read(count),
            event = self.listener.next_event() => SessionInput::HubEvent(event),
            () = sleep_until(again) => SessionInput::PollDue,
            () = sleep_until(beat) => SessionInput::KeepAliveDue,
            // A close cannot arrive from a client that is not read.
            () = sleep_until(Some(self.last_heard.0 + PING_INTERVAL)), if reads => SessionInput::PingDue,
        }
    }

    /// Starts a request with the waiting events.
    fn start_request(&mut self) -> EventsRequest {
        let events: Vec<_> = self.pending_events.drain(..).collect();
        self.pending_bytes = 0;
        let (dialog, meta) = (
            Arc::clone(&self.backend_client),
            self.connection_meta.clone(),
        );
        Box::pin(async move { dialog.send_events(&meta, &events).await })
    }

    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), WebSocketSessionEnd> {
        self.last_heard = (clock::now(), false);
        loop {
            let event = self
                .decoder
                .decode(&mut bytes)
                .map_err(|error: WebSocketError| {
                    WebSocketSessionEnd::CloseAndNotify(
                        error.close_code(),
                        error.to_string().into(),
                    )
                })?;
            let event = match event {
                None => return Ok(()),
                Some(WebSocketEvent::Pong) => continue,
                Some(WebSocketEvent::Ping(payload)) => {
                    self.queue_control_frame(Opcode::Pong, &payload);
                    continue;
                }
                Some(WebSocketEvent::Message {
                    is_text: true,
                    payload,
                }) => SocketEvent::Text(payload.into()),
                Some(WebSocketEvent::Message { payload, .. }) => {
                    SocketEvent::Binary(payload.into())
                }
                Some(WebSocketEvent::Close { code: with, reason }) => {
                    self.client_close_code = Some(with);
                    let with = (with != close_code::NO_STATUS).then_some(with);
                    SocketEvent::Close(with, reason.into())
                }
            };
            if self.is_detached {
                match self.client_close_code {
                    Some(with) => return Err(WebSocketSessionEnd::Close(with, "".into())),
                    None => continue,
                }
            }
            self.pending_bytes += event.payload_len();
            self.pending_events.push_back(event);
        }
    }

    async fn handle_reply(
        &mut self,
        answered: Result<WebSocketEventsReply, Fault>,
    ) -> Result<(), WebSocketSessionEnd> {
        let failed = |cause: &str| {
            log::warn!("grip: a WebSocket is closed: {cause}");
            Err(WebSocketSessionEnd::Close(
                close_code::INTERNAL_ERROR,
                "".into(),
            ))
        };
        match answered {
            Ok(WebSocketEventsReply::Events(response)) => {
                self.apply_response(*response, false).await?;
            }
            Ok(WebSocketEventsReply::Refusal(response)) => {
                return failed(&format!("its back end answers {}", response.status));
            }
            Err(fault) => return failed(&fault.cause),
        }
        // The back end knows of the client's close, and said nothing of its own.
        match self.client_close_code {
            Some(with) if self.pending_events.is_empty() => {
                Err(WebSocketSessionEnd::Close(with, "".into()))
            }
            _ => Ok(()),
        }
    }

    fn handle_hub_event(&mut self, event: ListenerEvent) -> Result<(), WebSocketSessionEnd> {
        match event {
            ListenerEvent::Message(message) => self.forward_publication(&message.publication),
            ListenerEvent::Missed(count) => {
                log::debug!("grip: a WebSocket takes messages too slowly: it has lost {count}");
                self.handle_gap()
            }
            ListenerEvent::Draining => Err(WebSocketSessionEnd::CloseAndNotify(
                close_code::GOING_AWAY,
                "".into(),
            )),
        }
    }

    /// A WebSocket has no form for a gap: it is closed, or continues without.
    fn handle_gap(&self) -> Result<(), WebSocketSessionEnd> {
        match self.backend_client.shared.hub.settings().slow_policy {
            SlowPolicy::Disconnect => Err(WebSocketSessionEnd::CloseAndNotify(
                TRY_AGAIN_LATER,
                "messages are missing".into(),
            )),
            SlowPolicy::DropOldest => Ok(()),
        }
    }

    fn forward_publication(
        &mut self,
        publication: &Publication,
    ) -> Result<(), WebSocketSessionEnd> {
        if matches!(publication.stream, Some(StreamAction::Gap)) {
            return self.handle_gap();
        }
        let Some(part) = &publication.websocket else {
            return Ok(());
        };
        match part {
            WebSocketAction::Text(content) => {
                // A filter may have made something else of it.
                let bytes = self.listener.render(publication, content);
                let bytes = bytes.filter(|bytes| std::str::from_utf8(bytes).is_ok());
                bytes
                    .iter()
                    .for_each(|bytes| self.queue_message(true, bytes));
            }
            WebSocketAction::Binary(content) => {
                let bytes = self.listener.render(publication, content);
                bytes
                    .iter()
                    .for_each(|bytes| self.queue_message(false, bytes));
            }
            WebSocketAction::Ping(bytes) => self.queue_control_frame(Opcode::Ping, bytes),
            WebSocketAction::Pong(bytes) => self.queue_control_frame(Opcode::Pong, bytes),
            WebSocketAction::Close { code, reason } => {
                return Err(WebSocketSessionEnd::CloseAndNotify(*code, reason.clone()));
            }
        }
        Ok(())
    }

    pub(super) fn queue_message(&mut self, is_text: bool, bytes: &Bytes) {
        let head = message_frame_head(is_text, bytes.len());
        self.write_buffer.extend_from_slice(head.as_bytes());
        self.write_buffer.extend_from_slice(bytes);
    }

    pub(super) fn queue_control_frame(&mut self, opcode: Opcode, payload: &[u8]) {
        encode_control_frame(&mut self.write_buffer, opcode, payload);
    }

    /// Handles a client that has been silent for long.
    fn ping_client(&mut self) -> Result<(), WebSocketSessionEnd> {
        if self.last_heard.1 {
            return Err(WebSocketSessionEnd::ConnectionLost);
        }
        self.last_heard = (clock::now(), true);
        self.queue_control_frame(Opcode::Ping, b"");
        Ok(())
    }

    fn send_keep_alive(&mut self) {
        if let Some((at, beat)) = self.keep_alive.take() {
            match &beat.event {
                SocketEvent::Text(bytes) => self.queue_message(true, bytes),
                SocketEvent::Binary(bytes) => self.queue_message(false, bytes),
                SocketEvent::Ping(bytes) => self.queue_control_frame(Opcode::Ping, bytes),
                SocketEvent::Pong(bytes) => self.queue_control_frame(Opcode::Pong, bytes),
                // No other can be asked for.
                SocketEvent::Open | SocketEvent::Close(..) | SocketEvent::Disconnect => {}
            }
            self.keep_alive = Some((at, beat));
        }
    }

    /// Writes what there is to write. A client that does not take it is gone.
    async fn flush(&mut self, client: &dyn ByteStream) -> Result<(), WebSocketSessionEnd> {
        if self.write_buffer.is_empty() {
            return Ok(());
        }
        let out = mem::take(&mut self.write_buffer);
        let now = clock::now();
        let written = clock::timeout_at(now + self.write_timeout, write_all(client, &out)).await;
        if let Some((at, beat)) = &mut self.keep_alive {
            *at = now + beat.interval;
        }
        match written {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(WebSocketSessionEnd::ConnectionLost),
        }
    }

    /// Waits for the client's own close, so that nothing that is on its way resets the connection
    /// before our close has arrived (RFC 6455 §7.1.1).
    async fn await_close(&mut self, client: &dyn ByteStream) {
        client.shutdown_write();
        let ended = async {
            while read_client(client).await > 0 {
                // What it says now is not listened to.
            }
        };
        let _ = clock::timeout(CLOSE_TIMEOUT, ended).await;
    }
}

/// Reads into the loop's own buffer; 0 at the end of the connection, however it came.
async fn read_client(client: &dyn ByteStream) -> usize {
    std::future::poll_fn(|cx| {
        buffers::with_receive_buffer(|buffer| client.poll_read(cx, buffer))
            .map(|read| read.unwrap_or(0))
    })
    .await
}

async fn await_reply(asking: &mut Option<EventsRequest>) -> Result<WebSocketEventsReply, Fault> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => {
            let _ = clock::timeout_at(moment, std::future::pending::<()>()).await;
        }
        None => std::future::pending().await,
    }
}
