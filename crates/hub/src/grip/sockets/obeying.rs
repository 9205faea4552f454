//! What a back end says about its WebSocket, done: messages to the client, words to the hub, its end.
//!
//! Part of `session`, behind each answer.

use penstock_http::websocket::{Opcode, code, encode_control_frame};
use penstock_runtime::clock;

use super::control::{self, Control};
use super::dialog::{Answer, META_MAX};
use super::events::Event;
use super::session::{End, Session};
use crate::Subscription;

impl Session {
    /// Does what an answer says. Waits only where there are other nodes, whose messages of its channels are
    /// to come here first.
    pub(super) async fn obey(&mut self, answer: Answer, is_first: bool) -> Result<(), End> {
        let Answer {
            events,
            again,
            set_meta,
            ..
        } = answer;
        self.again = again.map(|every| (clock::now() + every, every));
        for (name, value) in set_meta {
            self.remember(name, value);
        }
        self.dialog
            .shared
            .prepare(&self.subscriptions(&events))
            .await;
        let skipped = usize::from(is_first);
        for event in events.into_iter().skip(skipped) {
            self.say(event)?;
        }
        Ok(())
    }

    /// The channels that these events subscribe to.
    fn subscriptions(&self, events: &[Event]) -> Vec<Subscription> {
        let said = events.iter().filter_map(|event| match event {
            Event::Text(bytes) => control::read(self.said_to_hub(bytes)?).ok(),
            _ => None,
        });
        let subscriptions = said.filter_map(|control| match control {
            Control::Subscribe(subscription) => Some(subscription),
            _ => None,
        });
        self.dialog.shared.keyed(subscriptions.collect())
    }

    /// A text's control message, if it is one.
    fn said_to_hub<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let prefix = self.prefix.as_ref()?;
        match bytes.starts_with(prefix.as_bytes()) {
            true => None,
            false => bytes.strip_prefix(b"c:"),
        }
    }

    /// Does what an event of the back end says.
    fn say(&mut self, event: Event) -> Result<(), End> {
        match event {
            Event::Text(bytes) => match &self.prefix {
                None => self.frame(true, &bytes),
                Some(prefix) => match bytes.strip_prefix(prefix.as_bytes()) {
                    Some(_) => {
                        let bytes = bytes.slice(prefix.len()..);
                        self.frame(true, &bytes);
                    }
                    None => {
                        if let Some(text) = self.said_to_hub(&bytes) {
                            return self.control(text);
                        }
                    }
                },
            },
            Event::Binary(bytes) => {
                let prefix = self.prefix.as_ref().map_or(0, |prefix| {
                    let is_there = bytes.starts_with(prefix.as_bytes());
                    if is_there { prefix.len() } else { 0 }
                });
                self.frame(false, &bytes.slice(prefix..));
            }
            Event::Ping(bytes) => encode_control_frame(&mut self.out, Opcode::Ping, &bytes),
            Event::Pong(bytes) => encode_control_frame(&mut self.out, Opcode::Pong, &bytes),
            Event::Close(with, reason) => {
                return Err(End::Close(with.unwrap_or(code::NORMAL_CLOSURE), reason));
            }
            Event::Disconnect => {
                // It is not told: it has ended this.
                self.is_detached = true;
                return Err(End::Broken);
            }
            Event::Open => {}
        }
        Ok(())
    }

    fn control(&mut self, text: &[u8]) -> Result<(), End> {
        let failed = |cause: String| {
            log::warn!("grip: a WebSocket is closed: a control message does not fit: {cause}");
            End::Close(code::INTERNAL_ERROR, "".into())
        };
        match control::read(text).map_err(failed)? {
            Control::Subscribe(mut subscription) => {
                subscription.channel = self.dialog.shared.key(&subscription.channel);
                let subscribed = self.listener.subscribe(subscription);
                subscribed.map_err(|refused| failed(refused.to_string()))?;
            }
            Control::Unsubscribe(channel) => {
                let key = self.dialog.shared.key(&channel);
                self.listener.unsubscribe(&key);
            }
            Control::Detach => {
                self.is_detached = true;
                self.waiting.clear();
                self.again = None;
            }
            Control::SetMeta(name, value) => {
                self.remember(name.to_ascii_lowercase().into(), value);
            }
            Control::KeepAlive(beat) => {
                self.beat = beat.map(|beat| (clock::now() + beat.every, beat));
            }
            Control::Unknown(name) => log::debug!("grip: no control message is called `{name}`"),
        }
        Ok(())
    }

    /// Keeps a word for later; of too many the new ones are left out.
    fn remember(&mut self, name: Box<str>, value: Option<Box<str>>) {
        match value {
            None => drop(self.meta.remove(&name)),
            Some(value) if self.meta.len() < META_MAX || self.meta.contains_key(&name) => {
                self.meta.insert(name, value);
            }
            Some(_) => log::warn!("grip: a WebSocket has {META_MAX} words already: not `{name}`"),
        }
        let meta = self.meta.iter();
        let meta = meta.map(|(name, value)| (name.clone(), value.clone()));
        self.listener.set_meta(meta.collect());
    }
}
