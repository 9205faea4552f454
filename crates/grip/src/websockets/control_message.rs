//! Control messages of a back end about its WebSocket: text with `c:` in front, in JSON.
//!
//! Pure. Only where the back end has agreed to the `grip` extension.

use std::time::Duration;

use bytes::Bytes;
use penstock_hub::Subscription;
use serde_json::Value;

use super::websocket_events::SocketEvent;
use crate::instructions::parse_filter;
use crate::json::{self, JsonShapeError, Object};

/// One of them.
#[derive(Debug)]
pub(super) enum ControlMessage {
    Subscribe(Subscription),
    Unsubscribe(Box<str>),
    /// The back end hears no more of this client; only the hub speaks to it from now on.
    Detach,
    /// A word that filters know; none takes it back.
    SetMeta(Box<str>, Option<Box<str>>),
    /// Sent to the client while nothing else is; none ends that.
    KeepAlive(Option<KeepAliveEvent>),
    /// A type that this server does not know, by its name.
    Unknown(Box<str>),
}

/// The heartbeat of a WebSocket.
#[derive(Debug)]
pub(super) struct KeepAliveEvent {
    pub(super) event: SocketEvent,
    pub(super) interval: Duration,
}

const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Reads one, without its `c:`.
///
/// # Errors
/// What does not fit.
pub(super) fn parse_control(text: &[u8]) -> Result<ControlMessage, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let object = json::as_object(&value).map_err(|misfit| misfit.to_string())?;
    parse_object(object)
}

fn parse_object(object: &Object) -> Result<ControlMessage, String> {
    let told = |misfit: JsonShapeError| misfit.to_string();
    let name = |key: &'static str| {
        let found = json::text(object, key).map_err(told)?;
        let found = found.filter(|name| !name.is_empty());
        found.ok_or_else(|| told(JsonShapeError::new(key, "a name")))
    };
    Ok(match name("type")? {
        "subscribe" => {
            let channel = name("channel")?;
            let filters = json::texts(object, "filters").map_err(told)?;
            let filters = filters.iter().map(|asked| parse_filter(channel, asked));
            let filters = filters.collect::<Result<_, _>>();
            ControlMessage::Subscribe(Subscription {
                channel: channel.into(),
                prev_id: json::text(object, "prev-id").map_err(told)?.map(Into::into),
                filters: filters.map_err(|error| error.to_string())?,
            })
        }
        "unsubscribe" => ControlMessage::Unsubscribe(name("channel")?.into()),
        "detach" => ControlMessage::Detach,
        "set-meta" => {
            let value = json::text(object, "value").map_err(told)?;
            ControlMessage::SetMeta(name("name")?.into(), value.map(Into::into))
        }
        "keep-alive" => ControlMessage::KeepAlive(parse_keep_alive(object).map_err(told)?),
        other => ControlMessage::Unknown(other.into()),
    })
}

fn parse_keep_alive(object: &Object) -> Result<Option<KeepAliveEvent>, JsonShapeError> {
    let Some(content) = json::bytes(object, "content")? else {
        return Ok(None);
    };
    let seconds = json::number(object, "timeout")?;
    let every = seconds.map_or(Duration::from_secs(55), Duration::from_secs);
    let event = match json::text(object, "message-type")? {
        None | Some("text") if std::str::from_utf8(&content).is_ok() => SocketEvent::Text(content),
        None | Some("text") => {
            return Err(JsonShapeError::new("content", "UTF-8 in a message of text"));
        }
        Some("binary") => SocketEvent::Binary(content),
        Some("ping") => SocketEvent::Ping(check_control_payload(content)?),
        Some("pong") => SocketEvent::Pong(check_control_payload(content)?),
        Some(_) => {
            let expected = "`text`, `binary`, `ping` or `pong`";
            return Err(JsonShapeError::new("message-type", expected));
        }
    };
    Ok(Some(KeepAliveEvent {
        event,
        interval: every.clamp(MIN_INTERVAL, MAX_INTERVAL),
    }))
}

/// RFC 6455 §5.5.
fn check_control_payload(content: Bytes) -> Result<Bytes, JsonShapeError> {
    match content.len() > 125 {
        true => Err(JsonShapeError::new("content", "at most 125 bytes")),
        false => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse_control(text.as_bytes()) {
            Ok(control) => format!("{control:?}"),
            Err(error) => error,
        }
    }

    #[test]
    fn parses_the_messages_of_grip_libraries() {
        for (text, expected) in [
            (
                r#"{"type": "subscribe", "channel": "a", "filters": ["skip-self"]}"#,
                r#"Subscribe(Subscription { channel: "a", prev_id: None, filters: [SkipSelf] })"#,
            ),
            (
                r#"{"channel": "a", "type": "unsubscribe"}"#,
                r#"Unsubscribe("a")"#,
            ),
            (r#"{"type": "detach"}"#, "Detach"),
            (
                r#"{"type": "set-meta", "name": "user", "value": "alice"}"#,
                r#"SetMeta("user", Some("alice"))"#,
            ),
            (
                r#"{"type": "set-meta", "name": "user"}"#,
                r#"SetMeta("user", None)"#,
            ),
            (
                r#"{"type": "keep-alive", "content": "hi", "timeout": 0}"#,
                r#"KeepAlive(Some(KeepAliveEvent { event: Text(b"hi"), interval: 1s }))"#,
            ),
            (
                r#"{"type": "keep-alive", "content": "", "message-type": "ping"}"#,
                r#"KeepAlive(Some(KeepAliveEvent { event: Ping(b""), interval: 55s }))"#,
            ),
            (r#"{"type": "keep-alive"}"#, "KeepAlive(None)"),
            (r#"{"type": "session", "id": "x"}"#, r#"Unknown("session")"#),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_control_messages_are_reported() {
        let long = format!(
            r#"{{"type": "keep-alive", "message-type": "ping", "content": "{}"}}"#,
            "a".repeat(126)
        );
        for (text, expected) in [
            ("{", "EOF while parsing an object at line 1 column 1"),
            ("1", "an object is expected"),
            ("{}", "`type`: a name is expected"),
            (r#"{"type": "subscribe"}"#, "`channel`: a name is expected"),
            (
                r#"{"type": "subscribe", "channel": "a", "filters": ["x"]}"#,
                "channel `a`: no filter is called `x`",
            ),
            (
                r#"{"type": "keep-alive", "content-bin": "/w=="}"#,
                "`content`: UTF-8 in a message of text is expected",
            ),
            (&long, "`content`: at most 125 bytes is expected"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }
}
