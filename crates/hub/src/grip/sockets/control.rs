//! What a back end says about its WebSocket rather than to its client: text with `c:` in front, in JSON.
//!
//! Pure. Only where the back end has agreed to the `grip` extension.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::events::Event;
use crate::Subscription;
use crate::grip::instruct::filter;
use crate::grip::json::{self, Misfit, Object};

/// One of them.
#[derive(Debug)]
pub(super) enum Control {
    Subscribe(Subscription),
    Unsubscribe(Box<str>),
    /// The back end hears no more of this client; only the hub speaks to it from now on.
    Detach,
    /// A word that filters know; none takes it back.
    SetMeta(Box<str>, Option<Box<str>>),
    /// Sent to the client while nothing else is; none ends that.
    KeepAlive(Option<Beat>),
    /// Something that this house does not know, by its name.
    Unknown(Box<str>),
}

/// What is sent to a client so that its connection stays alive.
#[derive(Debug)]
pub(super) struct Beat {
    pub(super) event: Event,
    pub(super) every: Duration,
}

const EVERY_MIN: Duration = Duration::from_secs(1);
const EVERY_MAX: Duration = Duration::from_secs(24 * 3600);

/// Reads one, without its `c:`.
///
/// # Errors
/// What does not fit.
pub(super) fn read(text: &[u8]) -> Result<Control, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let object = json::as_object(&value).map_err(|misfit| misfit.to_string())?;
    control(object)
}

fn control(object: &Object) -> Result<Control, String> {
    let told = |misfit: Misfit| misfit.to_string();
    let name = |key: &'static str| {
        let found = json::text(object, key).map_err(told)?;
        let found = found.filter(|name| !name.is_empty());
        found.ok_or_else(|| told(Misfit::new(key, "a name")))
    };
    Ok(match name("type")? {
        "subscribe" => {
            let channel = name("channel")?;
            let filters = json::texts(object, "filters").map_err(told)?;
            let filters = filters.iter().map(|asked| filter(channel, asked));
            let filters = filters.collect::<Result<_, _>>();
            Control::Subscribe(Subscription {
                channel: channel.into(),
                prev_id: json::text(object, "prev-id").map_err(told)?.map(Into::into),
                filters: filters.map_err(|error| error.to_string())?,
            })
        }
        "unsubscribe" => Control::Unsubscribe(name("channel")?.into()),
        "detach" => Control::Detach,
        "set-meta" => {
            let value = json::text(object, "value").map_err(told)?;
            Control::SetMeta(name("name")?.into(), value.map(Into::into))
        }
        "keep-alive" => Control::KeepAlive(beat(object).map_err(told)?),
        other => Control::Unknown(other.into()),
    })
}

fn beat(object: &Object) -> Result<Option<Beat>, Misfit> {
    let Some(content) = json::bytes(object, "content")? else {
        return Ok(None);
    };
    let seconds = json::number(object, "timeout")?;
    let every = seconds.map_or(Duration::from_secs(55), Duration::from_secs);
    let event = match json::text(object, "message-type")? {
        None | Some("text") if std::str::from_utf8(&content).is_ok() => Event::Text(content),
        None | Some("text") => return Err(Misfit::new("content", "UTF-8 in a message of text")),
        Some("binary") => Event::Binary(content),
        Some("ping") => Event::Ping(short(content)?),
        Some("pong") => Event::Pong(short(content)?),
        Some(_) => {
            let expected = "`text`, `binary`, `ping` or `pong`";
            return Err(Misfit::new("message-type", expected));
        }
    };
    Ok(Some(Beat {
        event,
        every: every.clamp(EVERY_MIN, EVERY_MAX),
    }))
}

/// RFC 6455 §5.5.
fn short(content: Bytes) -> Result<Bytes, Misfit> {
    match content.len() > 125 {
        true => Err(Misfit::new("content", "at most 125 bytes")),
        false => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match read(text.as_bytes()) {
            Ok(control) => format!("{control:?}"),
            Err(error) => error,
        }
    }

    #[test]
    fn reads_what_libraries_write() {
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
                r#"KeepAlive(Some(Beat { event: Text(b"hi"), every: 1s }))"#,
            ),
            (
                r#"{"type": "keep-alive", "content": "", "message-type": "ping"}"#,
                r#"KeepAlive(Some(Beat { event: Ping(b""), every: 55s }))"#,
            ),
            (r#"{"type": "keep-alive"}"#, "KeepAlive(None)"),
            (r#"{"type": "session", "id": "x"}"#, r#"Unknown("session")"#),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told() {
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
