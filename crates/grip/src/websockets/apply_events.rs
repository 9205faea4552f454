//! Applies the events of a back end to its WebSocket: messages to the client, control messages,
//! its end.
//!
//! Part of `session`, after each response.

use penstock_http::websocket::{Opcode, close_code};
use penstock_hub::Subscription;
use penstock_runtime::clock;

use super::backend_client::{MAX_META_ENTRIES, WebSocketEventsResponse};
use super::control_message::{self, WebSocketControlMessage};
use super::session::{WebSocketOverHttpSession, WebSocketSessionEnd};
use super::websocket_events::SocketEvent;

impl WebSocketOverHttpSession {
    /// Applies a response. Waits only if there are other servers, until messages of its channels
    /// arrive from them.
    pub(super) async fn apply_response(
        &mut self,
        response: WebSocketEventsResponse,
        is_first: bool,
    ) -> Result<(), WebSocketSessionEnd> {
        let WebSocketEventsResponse {
            events,
            poll_interval: again,
            set_meta,
            ..
        } = response;
        self.poll_schedule = again.map(|every| (clock::now() + every, every));
        for (name, value) in set_meta {
            self.set_meta(name, value);
        }
        self.backend_client
            .shared
            .prepare_channels(&self.requested_subscriptions(&events))
            .await;
        let skipped = usize::from(is_first);
        for event in events.into_iter().skip(skipped) {
            self.apply_event(event)?;
        }
        Ok(())
    }

    /// The channels that these events subscribe to.
    fn requested_subscriptions(&self, events: &[SocketEvent]) -> Vec<Subscription> {
        let control_messages = events.iter().filter_map(|event| match event {
            SocketEvent::Text(bytes) => {
                control_message::parse_control_message(self.control_text(bytes)?).ok()
            }
            _ => None,
        });
        let subscriptions = control_messages.filter_map(|control| match control {
            WebSocketControlMessage::Subscribe(subscription) => Some(subscription),
            _ => None,
        });
        self.backend_client
            .shared
            .with_channel_keys(subscriptions.collect())
    }

    /// A text's control message, if it is one.
    fn control_text<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let prefix = self.message_prefix.as_ref()?;
        match bytes.starts_with(prefix.as_bytes()) {
            true => None,
            false => bytes.strip_prefix(b"c:"),
        }
    }

    /// Applies an event of the back end.
    fn apply_event(&mut self, event: SocketEvent) -> Result<(), WebSocketSessionEnd> {
        match event {
            SocketEvent::Text(bytes) => match &self.message_prefix {
                None => self.queue_message(true, &bytes),
                Some(prefix) => match bytes.strip_prefix(prefix.as_bytes()) {
                    Some(_) => {
                        let bytes = bytes.slice(prefix.len()..);
                        self.queue_message(true, &bytes);
                    }
                    None => {
                        if let Some(text) = self.control_text(&bytes) {
                            return self.apply_control(text);
                        }
                    }
                },
            },
            SocketEvent::Binary(bytes) => {
                let prefix = self.message_prefix.as_ref().map_or(0, |prefix| {
                    let is_there = bytes.starts_with(prefix.as_bytes());
                    if is_there { prefix.len() } else { 0 }
                });
                self.queue_message(false, &bytes.slice(prefix..));
            }
            SocketEvent::Ping(bytes) => self.queue_control_frame(Opcode::Ping, &bytes),
            SocketEvent::Pong(bytes) => self.queue_control_frame(Opcode::Pong, &bytes),
            SocketEvent::Close(with, reason) => {
                return Err(WebSocketSessionEnd::Close(
                    with.unwrap_or(close_code::NORMAL_CLOSURE),
                    reason,
                ));
            }
            SocketEvent::Disconnect => {
                // It is not notified: it has ended this.
                self.is_detached = true;
                return Err(WebSocketSessionEnd::ConnectionLost);
            }
            SocketEvent::Open => {}
        }
        Ok(())
    }

    fn apply_control(&mut self, text: &[u8]) -> Result<(), WebSocketSessionEnd> {
        let failed = |cause: String| {
            log::warn!("grip: a WebSocket is closed: a control message does not fit: {cause}");
            WebSocketSessionEnd::Close(close_code::INTERNAL_ERROR, "".into())
        };
        match control_message::parse_control_message(text).map_err(failed)? {
            WebSocketControlMessage::Subscribe(mut subscription) => {
                subscription.channel = self
                    .backend_client
                    .shared
                    .channel_key(&subscription.channel);
                let subscribed = self.listener.subscribe(subscription);
                subscribed.map_err(|refused| failed(refused.to_string()))?;
            }
            WebSocketControlMessage::Unsubscribe(channel) => {
                let key = self.backend_client.shared.channel_key(&channel);
                self.listener.unsubscribe(&key);
            }
            WebSocketControlMessage::Detach => {
                self.is_detached = true;
                self.pending_events.clear();
                self.poll_schedule = None;
            }
            WebSocketControlMessage::SetMeta(name, value) => {
                self.set_meta(name.to_ascii_lowercase().into(), value);
            }
            WebSocketControlMessage::KeepAlive(beat) => {
                self.keep_alive = beat.map(|beat| (clock::now() + beat.interval, beat));
            }
            WebSocketControlMessage::Unknown(name) => {
                log::debug!("grip: no control message is called `{name}`");
            }
        }
        Ok(())
    }

    /// Sets or removes metadata; above the limit new entries are dropped.
    fn set_meta(&mut self, name: Box<str>, value: Option<Box<str>>) {
        match value {
            None => drop(self.connection_meta.remove(&name)),
            Some(value)
                if self.connection_meta.len() < MAX_META_ENTRIES
                    || self.connection_meta.contains_key(&name) =>
            {
                self.connection_meta.insert(name, value);
            }
            Some(_) => {
                log::warn!("grip: a WebSocket has {MAX_META_ENTRIES} words already: not `{name}`");
            }
        }
        let meta = self.connection_meta.iter();
        let meta = meta.map(|(name, value)| (name.clone(), value.clone()));
        self.listener.set_subscriber_meta(meta.collect());
    }
}
