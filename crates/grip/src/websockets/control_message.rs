//! Control messages of a back end about its WebSocket: text with `c:` in front, in JSON.
//!
//! Pure. Only where the back end has agreed to the `grip` extension.

use std::time::Duration;

use penstock_hub::Subscription;
use serde_json::Value;

use super::websocket_events::SocketEvent;
use crate::instructions::parse_filter;
use crate::json::{JsonNode, JsonObject, JsonShapeError};
use crate::publish_format::check_control_payload;

#[derive(Debug)]
pub(super) enum WebSocketControlMessage {
    Subscribe(Subscription),
    Unsubscribe(Box<str>),
    /// Ends the requests to the back end; from now on only the hub sends to the client.
    Detach,
    /// Metadata for filters; `None` removes it.
    SetMeta(Box<str>, Option<Box<str>>),
    /// Sent to the client while nothing else is; `None` ends that.
    KeepAlive(Option<WebSocketKeepAlive>),
    /// A type that this server does not know, by its name.
    Unknown(Box<str>),
}

#[derive(Debug)]
pub(super) struct WebSocketKeepAlive {
    pub(super) event: SocketEvent,
    pub(super) interval: Duration,
}

const MIN_INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Parses a control message without its prefix `c:`.
pub(super) fn parse_control_message(text: &[u8]) -> Result<WebSocketControlMessage, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let object = JsonNode::new(&value).as_object()?;
    let name = |key: &'static str| {
        let found = object.get_text(key)?.filter(|name| !name.is_empty());
        found.ok_or_else(|| object.shape_error_at(key, "a name"))
    };
    Ok(match name("type")? {
        "subscribe" => {
            let channel = name("channel")?;
            let filters = object.get_text_list("filters")?;
            let filters = filters.iter().map(|filter| parse_filter(channel, filter));
            let filters = filters.collect::<Result<_, _>>();
            WebSocketControlMessage::Subscribe(Subscription {
                channel: channel.into(),
                prev_id: object.get_text("prev-id")?.map(Into::into),
                filters: filters.map_err(|error| error.to_string())?,
            })
        }
        "unsubscribe" => WebSocketControlMessage::Unsubscribe(name("channel")?.into()),
        "detach" => WebSocketControlMessage::Detach,
        "set-meta" => {
            let value = object.get_text("value")?;
            WebSocketControlMessage::SetMeta(name("name")?.into(), value.map(Into::into))
        }
        "keep-alive" => WebSocketControlMessage::KeepAlive(parse_keep_alive(&object)?),
        other => WebSocketControlMessage::Unknown(other.into()),
    })
}

impl From<JsonShapeError> for String {
    fn from(error: JsonShapeError) -> Self {
        error.to_string()
    }
}

fn parse_keep_alive(object: &JsonObject<'_>) -> Result<Option<WebSocketKeepAlive>, JsonShapeError> {
    let Some(content) = object.get_bytes("content")? else {
        return Ok(None);
    };
    let seconds = object.get_number("timeout")?;
    let every = seconds.map_or(Duration::from_secs(55), Duration::from_secs);
    let event = match object.get_text("message-type")? {
        None | Some("text") if std::str::from_utf8(&content).is_ok() => SocketEvent::Text(content),
        None | Some("text") => {
            return Err(object.shape_error_at("content", "UTF-8 in a message of text"));
        }
        Some("binary") => SocketEvent::Binary(content),
        Some("ping") => SocketEvent::Ping(check_control_payload(object, Some(content))?),
        Some("pong") => SocketEvent::Pong(check_control_payload(object, Some(content))?),
        Some(_) => {
            let expected = "`text`, `binary`, `ping` or `pong`";
            return Err(object.shape_error_at("message-type", expected));
        }
    };
    Ok(Some(WebSocketKeepAlive {
        event,
        interval: every.clamp(MIN_INTERVAL, MAX_INTERVAL),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse_control_message(text.as_bytes()) {
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
                r#"KeepAlive(Some(WebSocketKeepAlive { event: Text(b"hi"), interval: 1s }))"#,
            ),
            (
                r#"{"type": "keep-alive", "content": "", "message-type": "ping"}"#,
                r#"KeepAlive(Some(WebSocketKeepAlive { event: Ping(b""), interval: 55s }))"#,
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
