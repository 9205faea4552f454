//! A route that holds streams itself, without an application: `hub = { channel = "{path.1}" }`.
//!
//! `penstock`'s wiring makes a [`HubRouteHandler`] for each such route. GET responds with a stream
//! of server-sent events of the channels that the request names; POST, where the route allows it,
//! publishes its body as the data of an event. OPTIONS tells a browser what pages of other origins
//! may do.
//!
//! # Invariants
//! - A request names no channel that the route's pattern does not, and none with a control
//!   character.
//! - A message goes to one channel, so no subscriber gets it twice: the first that the request
//!   names a part of, else the first.
//! - A body is read no further than the maximum size of a message.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_config::{ChannelPart, ChannelPattern, MAX_CHANNEL_BYTES, RouteHub};
use penstock_exchange::{
    AddressPrefix, Body, Fault, FaultKind, Handler, HandlerName, HandlerProgress, Reply, Request,
    Response,
};
use penstock_http::{Method, RequestHead, Status, sse};

use crate::message_id::query_parameter;
use crate::{
    AllowedOrigins, HeldStream, Hub, HubError, Namespace, Publication, PublishedEvent, StreamForm,
    StreamKeepAlive, Subscription, forbid_buffering, last_event_id,
};

/// Answers a route from the hub.
#[derive(Debug)]
pub struct HubRouteHandler {
    hub: Hub,
    namespace: Namespace,
    channels: Box<[ChannelPattern]>,
    heartbeat_interval: Option<Duration>,
    heartbeat_event: Option<Box<str>>,
    /// The index of the channel that a POST publishes to, where the route allows it.
    published_channel: Option<usize>,
    cors: RouteCors,
}

/// What pages of other origins may do at a route.
#[derive(Debug, Clone)]
struct RouteCors {
    allowed_origins: Arc<AllowedOrigins>,
    methods: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum ChannelNameError {
    #[error("the request names no channel: a part of it is missing")]
    MissingPart,
    #[error("a channel's name is longer than {MAX_CHANNEL_BYTES} bytes")]
    TooLong,
    #[error("a channel's name is not text, or has a control character")]
    NotText,
}

/// The event for a stream where messages are missing, and no id says after which: one text for all
/// streams, so that none has its own. Not empty, since some clients leave out events without data.
pub const GAP_EVENT: Bytes = Bytes::from_static(b"event: gap\ndata: {}\n\n");

/// The event for a stream where messages after the one with this id are missing.
pub(crate) fn gap_event_after(id: &str) -> Vec<u8> {
    let mut event = Vec::new();
    sse::encode_event(&mut event, Some("gap"), None, id);
    event
}

impl HubRouteHandler {
    /// The handler of a route.
    ///
    /// # Errors
    /// A pattern that is none, which a checked configuration does not have.
    pub fn new(hub: Hub, settings: &RouteHub) -> Result<Self, String> {
        let parse = |text: &String| {
            let parsed = text.parse::<ChannelPattern>();
            parsed.map_err(|error| format!("hub: {error}"))
        };
        let channels = settings.channels.iter().map(parse);
        let channels: Box<[ChannelPattern]> = channels.collect::<Result<_, _>>()?;
        // A message to one room is not for the channels that all rooms have in common.
        let named_by_request = channels.iter().position(ChannelPattern::has_placeholder);
        Ok(Self {
            hub,
            namespace: Namespace::new(&settings.namespace),
            published_channel: settings.publish.then(|| named_by_request.unwrap_or(0)),
            channels,
            heartbeat_interval: settings.heartbeat_interval,
            heartbeat_event: settings.heartbeat_event.as_deref().map(Box::from),
            cors: RouteCors {
                allowed_origins: Arc::new(AllowedOrigins::new(&settings.origins)),
                methods: match settings.publish {
                    true => "GET, HEAD, POST",
                    false => "GET, HEAD",
                },
            },
        })
    }

    /// The keys of the channels that a request names, each once.
    fn channel_keys(&self, request: &Request) -> Result<Vec<Arc<str>>, ChannelNameError> {
        let mut names: Vec<Arc<str>> = Vec::with_capacity(self.channels.len());
        for pattern in &self.channels {
            let name = expand_pattern(pattern, request.path(), request.query())?;
            let key = self.namespace.channel_key(&name);
            if !names.contains(&key) {
                names.push(key);
            }
        }
        Ok(names)
    }

    fn subscribe(&self, request: &Request) -> HandlerProgress {
        let names = match self.channel_keys(request) {
            Ok(names) => names,
            Err(bad) => return HandlerProgress::Ready(Err(bad.into())),
        };
        if request.head.method() == Method::Head {
            let response = event_stream_response(Body::Omitted(None));
            return HandlerProgress::Ready(Ok(self.cors.finish_response(&request.head, response)));
        }
        let after = last_event_id(&request.head);
        let client = request.client_state.counted_address_prefix();
        let head = Arc::clone(&request.head);
        let (hub, cors) = (self.hub.clone(), self.cors.clone());
        let keep_alive =
            hub.event_heartbeat(self.heartbeat_event.as_deref(), self.heartbeat_interval);
        let prepared = hub.prepare_channels(&names);
        let hold = move || {
            hold_stream(&hub, names, after, &head, client, keep_alive)
                .map(|response| cors.finish_response(&head, response))
        };
        match prepared {
            None => HandlerProgress::Ready(hold()),
            Some(prepared) => HandlerProgress::Pending(Box::pin(async move {
                prepared.await;
                hold()
            })),
        }
    }

    fn publish(&self, request: Request, channel: usize) -> HandlerProgress {
        let pattern = &self.channels[channel];
        let channel = match expand_pattern(pattern, request.path(), request.query()) {
            Ok(name) => self.namespace.channel_key(&name),
            Err(bad) => return HandlerProgress::Ready(Err(bad.into())),
        };
        let (hub, cors) = (self.hub.clone(), self.cors.clone());
        HandlerProgress::Pending(Box::pin(async move {
            let head = Arc::clone(&request.head);
            let max_bytes = hub.settings().max_message_size;
            let data = request.body.read_limited(max_bytes).await?;
            let data = data.ok_or(HubError::MessageTooLarge(max_bytes))?;
            let data = String::from_utf8(data)
                .map_err(|_| Fault::new(FaultKind::BadRequest, "the message is not UTF-8"))?;
            let event = PublishedEvent {
                data: data.into(),
                ..PublishedEvent::default()
            };
            hub.publish(Publication {
                channel,
                event: Some(event),
                ..Publication::default()
            })?;
            Ok(cors.finish_response(&head, plain_text(Status::OK, "Published\n")))
        }))
    }

    /// The response to OPTIONS, which a browser sends before a page of another origin may use the
    /// route, and to a method that means nothing here.
    fn respond_with_methods(&self, head: &RequestHead) -> Response {
        let mut response = match head.method() {
            Method::Options => Response::new(Status::NO_CONTENT, Body::Empty),
            _ => plain_text(
                Status::METHOD_NOT_ALLOWED,
                "this address does not take that method\n",
            ),
        };
        let allowed = match self.published_channel {
            Some(_) => "GET, HEAD, POST, OPTIONS",
            None => "GET, HEAD, OPTIONS",
        };
        response.fields.push_static("Allow", allowed);
        response
    }
}

impl RouteCors {
    fn finish_response(&self, head: &RequestHead, mut response: Response) -> Reply {
        self.allowed_origins
            .add_cors_headers(head, self.methods, &mut response.fields);
        response.timing.handler = Some(HandlerName::Component("hub"));
        response.into()
    }
}

impl Handler for HubRouteHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        match (request.head.method(), self.published_channel) {
            (Method::Get | Method::Head, _) => self.subscribe(&request),
            (Method::Post, Some(channel)) => self.publish(request, channel),
            _ => {
                let response = self.respond_with_methods(&request.head);
                HandlerProgress::Ready(Ok(self.cors.finish_response(&request.head, response)))
            }
        }
    }
}

/// The channel that a pattern comes to.
fn expand_pattern(
    pattern: &ChannelPattern,
    path: &[u8],
    query: Option<&str>,
) -> Result<String, ChannelNameError> {
    let mut name = Vec::new();
    for part in pattern.parts() {
        let filled = match part {
            ChannelPart::Text(text) => Cow::Borrowed(text.as_bytes()),
            ChannelPart::Path => Cow::Borrowed(path),
            ChannelPart::PathSegment(number) => {
                // Before the first slash is nothing.
                let segment = path.split(|&byte| byte == b'/').nth(*number);
                Cow::Borrowed(segment.unwrap_or_default())
            }
            ChannelPart::QueryParameter(key) => query_parameter(query, |name| name == key)
                .map_or(Cow::Borrowed(b"".as_slice()), |value| {
                    Cow::Owned(value.into_owned().into_bytes())
                }),
        };
        if filled.is_empty() {
            return Err(ChannelNameError::MissingPart);
        }
        if name.len() + filled.len() > MAX_CHANNEL_BYTES {
            return Err(ChannelNameError::TooLong);
        }
        name.extend_from_slice(&filled);
    }
    let name = String::from_utf8(name).map_err(|_| ChannelNameError::NotText)?;
    match name.chars().any(char::is_control) {
        true => Err(ChannelNameError::NotText),
        false => Ok(name),
    }
}

fn hold_stream(
    hub: &Hub,
    names: Vec<Arc<str>>,
    after: Option<Arc<str>>,
    head: &RequestHead,
    client: Option<AddressPrefix>,
    keep_alive: StreamKeepAlive,
) -> Result<Response, Fault> {
    let subscriptions = names.into_iter().map(|channel| Subscription {
        channel,
        ..Subscription::default()
    });
    let stream = HeldStream {
        subscriptions: subscriptions.collect(),
        message_format: StreamForm::Events,
        keep_alive: Some(keep_alive),
        gap_notice: Some(GAP_EVENT),
        resume_after: after,
        client,
        ..HeldStream::default()
    };
    match hub.stream_body(stream) {
        Ok(body) => Ok(event_stream_response(body)),
        Err(error) => match hub.refused_stream_body(head, client, &error) {
            Some(body) => Ok(event_stream_response(body)),
            None => Err(error.into()),
        },
    }
}

pub(crate) fn event_stream_response(body: Body) -> Response {
    let mut response = Response::new(Status::OK, body);
    let fields = &mut response.fields;
    fields.push_static("Content-Type", "text/event-stream");
    fields.push_static("Cache-Control", "no-store");
    forbid_buffering(fields);
    response
}

fn plain_text(status: Status, text: &'static str) -> Response {
    let mut response = Response::with_text(status, "text/plain; charset=utf-8", text);
    response.fields.push_static("Cache-Control", "no-store");
    response
}

impl From<ChannelNameError> for Fault {
    fn from(bad: ChannelNameError) -> Self {
        let kind = match bad {
            ChannelNameError::MissingPart => FaultKind::NotFound,
            ChannelNameError::TooLong | ChannelNameError::NotText => FaultKind::BadRequest,
        };
        Self::new(kind, bad.to_string())
    }
}

#[cfg(test)]
mod tests;
