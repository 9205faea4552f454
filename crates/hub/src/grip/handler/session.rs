//! One answer that speaks to the hub, until the client has its own.
//!
//! Made by `handler`. An answer without a hold is stripped and sent; a stream is given to the hub with its
//! head; a long poll waits here for what is published, and may ask the back end again, which may say
//! something else then. When the client leaves, the wait ends and the hub forgets it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_exchange::{Body, Fault, FaultKind, HandlerProgress, Reply, RequestTiming, Response};
use penstock_http::{FieldBlock, Method};

use super::follower::Follower;
use super::origin::{LastIds, Origin};
use super::whole::{self, Bound};
use super::{Shared, notices};
use crate::grip::instruct::{HoldPart, Instruct, Mode, is_spoken_in_body};
use crate::route::GAP;
use crate::{HeldResponse, HeldStream, KeepAlive, LongPoll, PollOutcome, Refused, StreamForm};

/// Instructions, and what is sent when a long poll comes to nothing.
const SMALL_BODY: usize = 100_000;

/// Times that a back end is asked again for one request: one that always names a last id that is not the
/// last would be asked for ever.
const ROUNDS_MAX: usize = 5;

/// A comment of server-sent events.
const COMMENT: &[u8] = b":\n\n";

/// An answer that speaks to the hub, and the request it is for.
#[derive(Debug)]
pub(super) struct Session {
    shared: Arc<Shared>,
    origin: Arc<Origin>,
}

/// What one answer came to.
enum Step {
    /// This is sent.
    Answer(Response),
    /// The back end is asked again; if that may not be, `otherwise` is sent.
    Again {
        last: Box<LastIds>,
        otherwise: Response,
        /// Told if it is not, or has the client leave meanwhile.
        notice: Notice,
    },
}

/// What is left of an answer when its instruction is read.
struct Rest {
    timing: RequestTiming,
    speaks_to_cache: bool,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, origin: Origin) -> Self {
        let origin = Arc::new(origin);
        Self { shared, origin }
    }

    /// The client's answer.
    pub(super) async fn conclude(self, mut response: Response) -> Result<Reply, Fault> {
        let mut rounds = 0;
        loop {
            let timing = response.timing.clone();
            let step = self
                .step(response)
                .await
                .map_err(|fault| fault.with_timing(timing));
            let (last, otherwise, mut notice) = match step? {
                Step::Answer(response) => return Ok(response.into()),
                Step::Again {
                    last,
                    otherwise,
                    notice,
                } => (last, otherwise, notice),
            };
            if rounds == ROUNDS_MAX || !self.origin.is_repeatable {
                return Ok(otherwise.into());
            }
            rounds += 1;
            let request = self.origin.again(&self.shared, &last)?;
            let answered = match self.shared.inner.handle(request) {
                HandlerProgress::Ready(answered) => answered,
                HandlerProgress::Pending(work) => work.await,
            };
            response = match answered? {
                // The first time it was the back end's, so now it is nobody else's.
                Reply::Pass(_) => return Ok(otherwise.into()),
                answered => {
                    // The client is still there, and the back end has just heard of it.
                    notice.disarm();
                    match answered {
                        Reply::Response(next) if next.has_grip => *next,
                        answered => return Ok(answered),
                    }
                }
            };
        }
    }

    async fn step(&self, response: Response) -> Result<Step, Fault> {
        let Response {
            status,
            fields,
            mut body,
            timing,
            max_rate: rate_max,
            has_accel_expires: speaks_to_cache,
            ..
        } = response;
        let mut instruct = Instruct::of_fields(status, &fields).map_err(not_understood)?;
        if instruct.hold.is_some()
            && is_spoken_in_body(&fields)
            && !matches!(body, Body::Omitted(_))
        {
            let text = whole::read(body, small("the body of instructions")).await?;
            instruct = instruct.said_in(status, &text).map_err(not_understood)?;
            body = Body::Bytes(instruct.body.take().unwrap_or_default());
        }
        let rest = Rest {
            timing,
            speaks_to_cache,
        };
        let has_no_body = self.origin.head.method() == Method::Head
            || matches!(body, Body::Omitted(_) | Body::Takeover(_) | Body::Hold(_));
        let mut hold = instruct.hold.take();
        if let Some(hold) = &mut hold {
            hold.subscriptions = self.shared.keyed(std::mem::take(&mut hold.subscriptions));
        }
        match hold {
            Some(hold) if hold.mode == Mode::Response && !has_no_body => {
                self.poll(instruct, hold, body, rest).await
            }
            Some(hold) if !has_no_body && !instruct.status.forbids_body() => self
                .stream(instruct, hold, body, rest)
                .await
                .map(Step::Answer),
            // Who gets no body cannot be held.
            _ => {
                let mut answer = rest.answer(instruct, body);
                answer.max_rate = rate_max;
                Ok(Step::Answer(answer))
            }
        }
    }

    async fn stream(
        &self,
        mut instruct: Instruct,
        hold: HoldPart,
        body: Body,
        rest: Rest,
    ) -> Result<Response, Fault> {
        let coding = instruct.fields.get("content-encoding");
        if coding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
            let cause = "a held stream has a Content-Encoding, and what is published has none";
            return Err(Fault::new(FaultKind::BackendProtocolError, cause));
        }
        let settings = self.shared.hub.settings();
        let initial = Bound {
            what: "the body that a held stream begins with",
            bytes: settings.message_bytes,
            limit: "hub.message_bytes",
        };
        let initial = whole::read(body, initial).await?;
        let form = form(&instruct.fields);
        let links = std::mem::take(&mut instruct.links);
        // A link that leads nowhere is told now, while somebody sees it.
        for link in [
            links.next.as_ref().map(|next| &next.target),
            links.gone.as_ref(),
        ] {
            link.map(|link| self.origin.resolve(link)).transpose()?;
        }
        let keep_alive = hold.keep_alive.or_else(|| usual(form, settings.keep_alive));
        self.shared.prepare(&hold.subscriptions).await;
        let mut stream = HeldStream {
            form,
            keep_alive,
            initial,
            gap: (form == StreamForm::Events).then_some(GAP),
            client: self.origin.client.limit_prefix(),
            ..HeldStream::default()
        };
        let mut told = Vec::new();
        match links.next {
            None => {
                stream.subscriptions = hold.subscriptions;
                stream.meta = hold.meta;
            }
            Some(next) => {
                let (shared, origin) = (Arc::clone(&self.shared), Arc::clone(&self.origin));
                let follower = Follower::new(shared, origin, hold.subscriptions, hold.meta, next);
                let follower = match follower {
                    Ok(follower) => follower,
                    Err(refused) => return self.send_away(&refused, form, instruct, rest),
                };
                stream.subscriptions = vec![follower.subscription()];
                told.push(follower.begin());
            }
        }
        told.extend(links.gone.map(|link| self.notice(link)));
        stream.ended = (!told.is_empty()).then(|| {
            let tell = move || told.into_iter().for_each(|each| (each.0)());
            crate::Ended(Box::new(tell))
        });
        match self.shared.hub.body(stream) {
            Ok(body) => Ok(rest.answer(instruct, body)),
            Err(refused) => self.send_away(&refused, form, instruct, rest),
        }
    }

    /// The answer to a stream that is not held. A browser's `EventSource` gets the fields of the back
    /// end, which may let other origins in, and comes back later, as on routes with `hub`.
    fn send_away(
        &self,
        refused: &Refused,
        form: StreamForm,
        instruct: Instruct,
        rest: Rest,
    ) -> Result<Response, Fault> {
        let body = match (form, refused) {
            (StreamForm::Events, Refused::Draining) => Some(Body::Empty),
            (StreamForm::Events, refused) => {
                let come_back = self.shared.hub.come_back(&self.origin.head, refused);
                come_back.map(Body::Bytes)
            }
            (StreamForm::Bytes, _) => None,
        };
        match body {
            Some(body) => {
                let mut response = rest.answer(instruct, body);
                forbid_storing(&mut response.fields);
                Ok(response)
            }
            None => Err(full(refused)),
        }
    }

    async fn poll(
        &self,
        mut instruct: Instruct,
        hold: HoldPart,
        body: Body,
        rest: Rest,
    ) -> Result<Step, Fault> {
        let own = whole::read(body, small("the body of a long poll")).await?;
        let gone = instruct.links.gone.take();
        if let Some(link) = &gone {
            self.origin.resolve(link)?;
        }
        let poll = LongPoll {
            client: self.origin.client.limit_prefix(),
            subscriptions: hold.subscriptions,
            timeout: hold.timeout,
            meta: hold.meta,
        };
        self.shared.prepare(&poll.subscriptions).await;
        let waiting = self.shared.hub.wait(poll);
        let waiting = waiting.map_err(|refused| full(&refused))?;
        // Told also when this future is dropped.
        let notice = Notice(gone.map(|link| self.notice(link)));
        let outcome = self.origin.client.run_while_connected(waiting).await;
        let left = || {
            Fault::new(
                FaultKind::ClientDisconnected,
                "the client left its long poll",
            )
        };
        match outcome.ok_or_else(left)? {
            PollOutcome::Message(message) => {
                let body = message_body(&message, &own)?;
                lay_over(&mut instruct.fields, &message.fields);
                instruct.status = message.status;
                Ok(Step::Answer(rest.answer(instruct, Body::Bytes(body))))
            }
            PollOutcome::TimedOut => Ok(Step::Answer(rest.answer(instruct, Body::Bytes(own)))),
            PollOutcome::AskAgain(last) => Ok(Step::Again {
                last: last.into(),
                otherwise: rest.answer(instruct, Body::Bytes(own)),
                notice,
            }),
            // Its connection is closed without an answer, as of one that left.
            PollOutcome::Close => Err(Fault::new(
                FaultKind::ClientDisconnected,
                "what a long poll waited for was closed",
            )),
        }
    }

    fn notice(&self, link: Box<str>) -> crate::Ended {
        let (shared, origin) = (Arc::clone(&self.shared), Arc::clone(&self.origin));
        notices::when_ended(shared, origin, link)
    }
}

/// Tells that a client is gone when it is dropped.
struct Notice(Option<crate::Ended>);

impl Notice {
    /// Nobody is told.
    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if let Some(ended) = self.0.take() {
            (ended.0)();
        }
    }
}

impl Rest {
    fn answer(self, instruct: Instruct, body: Body) -> Response {
        let mut response = Response::new(instruct.status, body);
        response.fields = instruct.fields;
        response.timing = self.timing;
        response.has_accel_expires = self.speaks_to_cache;
        response
    }
}

/// Has no cache keep a response: what its back end says of that is meant for the stream that it is
/// not.
fn forbid_storing(fields: &mut FieldBlock) {
    let directives = [
        "cache-control",
        "expires",
        "cdn-cache-control",
        "surrogate-control",
        "x-accel-expires",
    ];
    for name in directives {
        fields.remove(name);
    }
    fields.push_static("Cache-Control", "no-store");
}

fn form(fields: &FieldBlock) -> StreamForm {
    let essence = fields
        .get("content-type")
        .and_then(|value| value.split(|&byte| byte == b';').next())
        .unwrap_or_default();
    match essence
        .trim_ascii()
        .eq_ignore_ascii_case(b"text/event-stream")
    {
        true => StreamForm::Events,
        false => StreamForm::Bytes,
    }
}

/// The heart-beat of a stream whose back end gave it none: a comment, where there are comments.
fn usual(form: StreamForm, every: Duration) -> Option<KeepAlive> {
    (form == StreamForm::Events).then(|| KeepAlive {
        bytes: Bytes::from_static(COMMENT),
        every,
        regardless: false,
    })
}

/// The body that a message brings for one who would have got `own`.
fn message_body(message: &HeldResponse, own: &[u8]) -> Result<Bytes, Fault> {
    let bytes = &message.body.bytes;
    if !message.is_patch {
        return Ok(bytes.clone());
    }
    let unfit = |cause: String| {
        let cause = format!("what was published is a patch that does not fit: {cause}");
        Fault::new(FaultKind::BackendProtocolError, cause)
    };
    let mut document: serde_json::Value =
        serde_json::from_slice(own).map_err(|error| unfit(error.to_string()))?;
    let patch: json_patch::Patch =
        serde_json::from_slice(bytes).map_err(|error| unfit(error.to_string()))?;
    json_patch::patch(&mut document, &patch).map_err(|error| unfit(error.to_string()))?;
    let mut text = document.to_string().into_bytes();
    // What ended with a line break still does.
    if own.ends_with(b"\n") {
        text.push(b'\n');
    }
    Ok(text.into())
}

/// The fields of a message take the place of those by the same names.
fn lay_over(fields: &mut FieldBlock, above: &FieldBlock) {
    for (name, _) in above.iter() {
        fields.remove(name);
    }
    fields.append(above);
}

fn small(what: &'static str) -> Bound {
    Bound {
        what,
        bytes: SMALL_BODY,
        limit: "fixed",
    }
}

fn not_understood(error: crate::grip::instruct::InstructError) -> Fault {
    let cause = format!("an instruction to the hub is not understood: {error}");
    Fault::new(FaultKind::BackendProtocolError, cause)
}

/// The hub does not take any more, or not this.
fn full(refused: &Refused) -> Fault {
    let kind = match refused {
        // The back end asks for more than anybody may.
        Refused::ChannelsOfStream(_) | Refused::Message(_) => FaultKind::BackendProtocolError,
        _ => FaultKind::Overloaded,
    };
    Fault::new(kind, refused.to_string())
}
