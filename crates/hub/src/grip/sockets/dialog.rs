//! One WebSocket's requests to its back end, and what it answers.
//!
//! Used by `opening` for the first one and by `session` for all others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{Fault, FaultKind, HandlerProgress, Reply, Response};
use penstock_http::{FieldBlock, Status};
use penstock_runtime::clock;

use super::events::{EVENTS_TYPE, Event, decode, encode};
use crate::grip::handler::origin::Origin;
use crate::grip::handler::whole::{self, Bound};
use crate::grip::handler::{Shared, unguessable};

/// Who asks: what all requests of a WebSocket have in common.
#[derive(Debug)]
pub(super) struct Dialog {
    pub(super) shared: Arc<Shared>,
    pub(super) origin: Arc<Origin>,
    /// The back end's name for the connection.
    id: String,
}

/// What a back end said about a WebSocket for later, sent to it with each request.
pub(super) type Meta = BTreeMap<Box<str>, Box<str>>;

/// What a back end answers with events.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) fields: FieldBlock,
    pub(super) events: Vec<Event>,
    /// It wants to be asked again after so long, also when nothing has happened.
    pub(super) again: Option<Duration>,
    /// What it said for later; none takes a word back.
    pub(super) set_meta: Vec<(Box<str>, Option<Box<str>>)>,
    /// What is in front of a message that is for the client, if the `grip` extension is agreed.
    pub(super) prefix: Option<Box<str>>,
    pub(super) timing: penstock_exchange::RequestTiming,
}

/// What came of a request.
#[derive(Debug)]
pub(super) enum Answered {
    Events(Box<Answer>),
    /// The back end said something else.
    Other(Box<Response>),
}

/// Words for later, of one WebSocket.
pub(super) const META_MAX: usize = 64;

/// Bytes of a back end's events at once.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A back end that had nothing of a request is asked again so often.
const TRIES_MAX: u32 = 5;

/// And sooner than this never.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

impl Dialog {
    pub(super) fn new(shared: Arc<Shared>, origin: Arc<Origin>) -> Self {
        Self {
            shared,
            origin,
            id: unguessable(),
        }
    }

    /// Tells events and waits for the answer.
    ///
    /// # Errors
    /// When the back end fails, or answers with what is no answer.
    pub(super) async fn tell(&self, meta: &Meta, events: &[Event]) -> Result<Answered, Fault> {
        let mut tries = 1;
        loop {
            let answered = self.ask(meta, events).await;
            match answered {
                Err(fault) if tries < TRIES_MAX && has_had_nothing(fault.kind) => {
                    clock::sleep(Duration::from_secs(u64::from(tries))).await;
                    tries += 1;
                }
                Err(fault) => return Err(fault),
                Ok(response) => return read(response).await,
            }
        }
    }

    async fn ask(&self, meta: &Meta, events: &[Event]) -> Result<Response, Fault> {
        let mut body = Vec::new();
        events.iter().for_each(|event| encode(&mut body, event));
        let meta: Vec<_> = meta
            .iter()
            .map(|(name, value)| (format!("Meta-{name}"), value))
            .collect();
        let mut fields: Vec<(&str, &[u8])> = vec![
            ("Content-Type", EVENTS_TYPE.as_bytes()),
            ("Accept", EVENTS_TYPE.as_bytes()),
            ("Connection-Id", self.id.as_bytes()),
        ];
        if events.contains(&Event::Open) {
            fields.push(("Sec-WebSocket-Extensions", b"grip"));
        }
        fields.extend(meta.iter().map(|(name, value)| (&**name, value.as_bytes())));
        let request = self.origin.post(&self.shared, &fields, body)?;
        let answered = match self.shared.inner.handle(request) {
            HandlerProgress::Ready(answered) => answered,
            HandlerProgress::Pending(work) => work.await,
        };
        match answered? {
            Reply::Response(response) => Ok(*response),
            Reply::Pass(_) => Err(Fault::new(
                FaultKind::NotFound,
                "nobody takes a WebSocket here",
            )),
            Reply::Redirect(_) => Err(broken("a redirect inside".to_owned())),
        }
    }
}

/// Whether a request failed before the back end had any of it.
fn has_had_nothing(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::QueueFull
            | FaultKind::QueueTimeout
            | FaultKind::Unavailable
            | FaultKind::ConnectFailed
            | FaultKind::Overloaded
    )
}

async fn read(response: Response) -> Result<Answered, Fault> {
    let essence = response.fields.get("content-type").unwrap_or_default();
    let essence = essence
        .split(|&byte| byte == b';')
        .next()
        .unwrap_or_default();
    let is_events = essence
        .trim_ascii()
        .eq_ignore_ascii_case(EVENTS_TYPE.as_bytes());
    if response.status != Status::OK || !is_events {
        return Ok(Answered::Other(Box::new(response)));
    }
    let Response {
        fields,
        body,
        timing,
        ..
    } = response;
    let bound = Bound {
        what: "the answer with a WebSocket's events",
        bytes: ANSWER_BYTES_MAX,
        limit: "fixed",
    };
    let body = whole::read(body, bound).await?;
    let events = decode(&body).map_err(|error| broken(error.to_string()))?;
    if fields.contains("content-bytes-accepted") {
        // The rest would have to be told again; no library for back ends asks for that.
        return Err(broken("Content-Bytes-Accepted is not supported".to_owned()));
    }
    let again = fields.get("keep-alive-interval").map(|value| {
        let seconds = penstock_http::parse_length(value);
        seconds.ok_or_else(|| broken("Keep-Alive-Interval is no number".to_owned()))
    });
    let again = again.transpose()?.filter(|seconds| *seconds > 0);
    Ok(Answered::Events(Box::new(Answer {
        events,
        again: again.map(|seconds| Duration::from_secs(seconds).max(INTERVAL_MIN)),
        set_meta: set_meta(&fields),
        prefix: prefix(&fields),
        fields,
        timing,
    })))
}

fn set_meta(fields: &FieldBlock) -> Vec<(Box<str>, Option<Box<str>>)> {
    const START: &str = "set-meta-";
    let mut found = Vec::new();
    for (name, value) in fields.iter() {
        let Some((start, rest)) = name.split_at_checked(START.len()) else {
            continue;
        };
        if start.eq_ignore_ascii_case(START) && !rest.is_empty() {
            let value = String::from_utf8_lossy(value);
            let value = (!value.is_empty()).then(|| value.into());
            found.push((rest.to_ascii_lowercase().into(), value));
        }
    }
    found
}

/// `grip`, with `message-prefix` if it is not the usual one.
fn prefix(fields: &FieldBlock) -> Option<Box<str>> {
    const USUAL: &str = "m:";
    let value = fields.get("sec-websocket-extensions")?;
    let elements = crate::grip::parameters::elements(value)?;
    let grip = elements.iter().find(|element| element.value == "grip")?;
    Some(grip.parameter("message-prefix").unwrap_or(USUAL).into())
}

pub(super) fn broken(cause: String) -> Fault {
    let cause = format!("a WebSocket's back end answers with what is no answer: {cause}");
    Fault::new(FaultKind::BackendProtocolError, cause)
}
