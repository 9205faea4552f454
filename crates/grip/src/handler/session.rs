//! One response with instructions, until the client has its own.
//!
//! Made by `handler`. A response without a hold is stripped and sent. A stream is given to the hub
//! with its head. A long poll waits here for a message, and may repeat the request: the
//! response to that may have other instructions. When the client leaves, the wait ends.

use std::sync::Arc;

use bytes::Bytes;
use penstock_exchange::field_policy::remove_internal_fields;
use penstock_exchange::{
    Body, Fault, FaultKind, FrontEndInstructions, Reply, RequestTiming, Response,
};
use penstock_http::{FieldBlock, Method, is_media_type};
use penstock_hub::{
    EndCallback, GAP_EVENT, HeldStream, HubError, LongPoll, LongPollOutcome, LongPollResponse,
    StreamForm, forbid_buffering, last_event_id,
};

use super::body_reader::{self, BodyLimit};
use super::link_follower::LinkFollower;
use super::original_request::{LastMessageIds, OriginalRequest};
use super::stream_owner::GripStreamOwner;
use super::{GripShared, disconnect_notices};
use crate::instructions::{GripInstructions, HoldInstruction, HoldMode, has_instruction_body};

/// Times that a back end is asked again for one request: one that always names a last id that is
/// not the last would be asked for ever.
const MAX_REPEATS: usize = 5;

#[derive(Debug)]
pub(super) struct GripSession {
    shared: Arc<GripShared>,
    original_request: Arc<OriginalRequest>,
}

/// What one answer came to.
enum SessionStep {
    Respond(Response),
    /// The back end is asked again; if that may not be, `otherwise` is sent.
    Repeat {
        last_ids: Box<LastMessageIds>,
        fallback: Response,
        /// Called if it is not held, or the client leaves meanwhile.
        notice: Option<EndCallback>,
    },
}

impl GripSession {
    pub(super) fn new(shared: Arc<GripShared>, origin: OriginalRequest) -> Self {
        let origin = Arc::new(origin);
        Self {
            shared,
            original_request: origin,
        }
    }

    /// The response for the client.
    pub(super) async fn run(self, mut response: Response) -> Result<Reply, Fault> {
        let mut rounds = 0;
        loop {
            let timing = response.timing.clone();
            let step = self
                .apply_response(response)
                .await
                .map_err(|fault| fault.with_timing(timing));
            let (last_ids, fallback, notice) = match step? {
                SessionStep::Respond(response) => return Ok(response.into()),
                SessionStep::Repeat {
                    last_ids,
                    fallback,
                    notice,
                } => (last_ids, fallback, notice),
            };
            if rounds == MAX_REPEATS || !self.original_request.is_repeatable {
                return Ok(fallback.into());
            }
            rounds += 1;
            let request = self
                .original_request
                .build_repeated_request(&self.shared, &last_ids)?;
            response = match self.shared.backend.handle(request).wait_for_reply().await? {
                // The first time the back end answered, so now no other handler may.
                Reply::Pass(_) => return Ok(fallback.into()),
                answered => {
                    // The client is still there, and the back end has just heard of it.
                    if let Some(notice) = notice {
                        notice.disarm();
                    }
                    match answered {
                        Reply::Response(next) if next.has_grip() => *next,
                        answered => return Ok(answered),
                    }
                }
            };
        }
    }

    async fn apply_response(&self, response: Response) -> Result<SessionStep, Fault> {
        let Response {
            status,
            fields,
            mut body,
            timing,
            max_rate: rate_max,
            ..
        } = response;
        let mut instructions =
            GripInstructions::from_fields(status, &fields).map_err(instruction_fault)?;
        if instructions.hold.is_some()
            && has_instruction_body(&fields)
            && !matches!(body, Body::Omitted(_))
        {
            let bound = BodyLimit::for_small_body("the body of instructions");
            let text = body_reader::read_whole_body(body, bound).await?;
            instructions = instructions
                .apply_instruction_body(status, &text)
                .map_err(instruction_fault)?;
            body = Body::Bytes(instructions.body.take().unwrap_or_default());
        }
        let has_no_body = self.original_request.head.method() == Method::Head
            || matches!(body, Body::Omitted(_) | Body::Takeover(_) | Body::Hold(_));
        let mut hold = instructions.hold.take();
        if let Some(hold) = &mut hold {
            hold.subscriptions = self
                .shared
                .with_channel_keys(std::mem::take(&mut hold.subscriptions));
        }
        match hold {
            Some(hold) if hold.mode == HoldMode::LongPoll && !has_no_body => {
                self.hold_long_poll(instructions, hold, body, timing).await
            }
            Some(hold) if !has_no_body && !instructions.status.forbids_body() => self
                .hold_stream(instructions, hold, body, timing)
                .await
                .map(SessionStep::Respond),
            // A client that gets no body (HEAD) cannot be held.
            _ => {
                let mut response = build_response(instructions, body, timing);
                response.max_rate = rate_max;
                Ok(SessionStep::Respond(response))
            }
        }
    }

    async fn hold_stream(
        &self,
        mut instructions: GripInstructions,
        mut hold: HoldInstruction,
        body: Body,
        timing: RequestTiming,
    ) -> Result<Response, Fault> {
        let coding = instructions.fields.get("content-encoding");
        if coding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
            let cause = "a held stream has a Content-Encoding, and what is published has none";
            return Err(Fault::new(FaultKind::BackendProtocolError, cause));
        }
        let settings = self.shared.hub.settings();
        let initial = BodyLimit {
            body_name: "the body that a held stream begins with",
            max_bytes: settings.max_message_size,
            limit_name: "hub.max_message_size",
        };
        let initial = body_reader::read_whole_body(body, initial).await?;
        let form = stream_form(&instructions.fields);
        let links = std::mem::take(&mut instructions.links);
        // A link that cannot be resolved is an error now, while a client sees it.
        for link in [
            links.next.as_ref().map(|next| &next.target),
            links.gone.as_ref(),
        ] {
            link.map(|link| self.original_request.resolve_link(link))
                .transpose()?;
        }
        let keep_alive = hold.keep_alive.take().or_else(|| {
            (form == StreamForm::Events).then(|| self.shared.hub.event_heartbeat(None, None))
        });
        self.shared.prepare_channels(&hold.subscriptions).await;
        // A back end that names the last message itself has decided what its client missed.
        let names_prev_id = hold.subscriptions.iter().any(|each| each.prev_id.is_some());
        let resume_after = (form == StreamForm::Events && !names_prev_id)
            .then(|| last_event_id(&self.original_request.head))
            .flatten();
        let mut stream = HeldStream {
            message_format: form,
            keep_alive,
            initial_bytes: initial,
            gap_notice: (form == StreamForm::Events).then_some(GAP_EVENT),
            client: self
                .original_request
                .environment
                .client_state
                .counted_address_prefix(),
            ..HeldStream::default()
        };
        let mut link_follower = None;
        match links.next {
            None => {
                stream.subscriptions = hold.subscriptions;
                stream.subscriber_meta = hold.subscriber_meta;
                stream.resume_after = resume_after;
            }
            Some(next) => {
                let (shared, origin) =
                    (Arc::clone(&self.shared), Arc::clone(&self.original_request));
                let follower =
                    LinkFollower::new(shared, origin, hold, next, resume_after.as_deref());
                let (follower, missed) = match follower {
                    Ok(started) => started,
                    Err(refused) => return self.send_away(&refused, form, instructions, timing),
                };
                if !missed.is_empty() {
                    stream.initial_bytes = [stream.initial_bytes, missed].concat().into();
                }
                stream.subscriptions = vec![follower.stream_subscription()];
                link_follower = Some(follower.spawn());
            }
        }
        if link_follower.is_some() || links.gone.is_some() {
            stream.on_end = Some(EndCallback::for_owner(GripStreamOwner {
                shared: Arc::clone(&self.shared),
                original_request: Arc::clone(&self.original_request),
                follower: link_follower,
                gone_link: links.gone,
            }));
        }
        match self.shared.hub.stream_body(stream) {
            Ok(body) => Ok(build_stream_response(instructions, body, timing)),
            Err(refused) => self.send_away(&refused, form, instructions, timing),
        }
    }

    /// The response for a stream that is not held. A browser's `EventSource` gets the fields of the
    /// back end, which may let other origins in, and comes back later, as on routes with `hub`.
    fn send_away(
        &self,
        refused: &HubError,
        form: StreamForm,
        instructions: GripInstructions,
        timing: RequestTiming,
    ) -> Result<Response, Fault> {
        let OriginalRequest {
            head, environment, ..
        } = &*self.original_request;
        let client = environment.client_state.counted_address_prefix();
        let body = match form {
            StreamForm::Events => self.shared.hub.refused_stream_body(head, client, refused),
            StreamForm::Bytes => None,
        };
        match body {
            Some(body) => {
                let mut response = build_response(instructions, body, timing);
                forbid_storing(&mut response.fields);
                Ok(response)
            }
            None => Err(refused.clone().into()),
        }
    }

    async fn hold_long_poll(
        &self,
        mut instructions: GripInstructions,
        hold: HoldInstruction,
        body: Body,
        timing: RequestTiming,
    ) -> Result<SessionStep, Fault> {
        let bound = BodyLimit::for_small_body("the body of a long poll");
        let own = body_reader::read_whole_body(body, bound).await?;
        let gone = instructions.links.gone.take();
        if let Some(link) = &gone {
            self.original_request.resolve_link(link)?;
        }
        let poll = LongPoll {
            client: self
                .original_request
                .environment
                .client_state
                .counted_address_prefix(),
            subscriptions: hold.subscriptions,
            timeout: hold.timeout,
            subscriber_meta: hold.subscriber_meta,
        };
        self.shared.prepare_channels(&poll.subscriptions).await;
        let waiting = self.shared.hub.long_poll(poll)?;
        // Called also when this future is dropped.
        let notice = gone.map(|link| self.disconnect_notice(link));
        let outcome = self
            .original_request
            .environment
            .client_state
            .run_while_connected(waiting)
            .await;
        let left = || {
            Fault::new(
                FaultKind::ClientDisconnected,
                "the client left its long poll",
            )
        };
        match outcome.ok_or_else(left)? {
            LongPollOutcome::Message(message) => {
                let body = message_body(&message, &own)?;
                override_fields(&mut instructions.fields, &message.fields);
                instructions.status = message.status;
                Ok(SessionStep::Respond(build_response(
                    instructions,
                    Body::Bytes(body),
                    timing,
                )))
            }
            LongPollOutcome::TimedOut => Ok(SessionStep::Respond(build_response(
                instructions,
                Body::Bytes(own),
                timing,
            ))),
            LongPollOutcome::RepeatRequest(last) => Ok(SessionStep::Repeat {
                last_ids: last.into(),
                fallback: build_response(instructions, Body::Bytes(own), timing),
                notice,
            }),
            // Its connection is closed without an answer, as of one that left.
            LongPollOutcome::Close => Err(Fault::new(
                FaultKind::ClientDisconnected,
                "what a long poll waited for was closed",
            )),
        }
    }

    fn disconnect_notice(&self, link: Box<str>) -> EndCallback {
        let (shared, origin) = (Arc::clone(&self.shared), Arc::clone(&self.original_request));
        EndCallback::new(move || disconnect_notices::send_disconnect_notice(&shared, origin, link))
    }
}

fn build_response(instructions: GripInstructions, body: Body, timing: RequestTiming) -> Response {
    let mut response = Response::new(instructions.status, body);
    response.fields = instructions.fields;
    response.timing = timing;
    // Those of its cache, if any.
    response.instructions = FrontEndInstructions::ForThisServer;
    response
}

/// The response that becomes a held stream. Of the back end's instructions to a cache and a front
/// end none is left: what stands in front gets those of a stream.
fn build_stream_response(
    instructions: GripInstructions,
    body: Body,
    timing: RequestTiming,
) -> Response {
    let mut response = build_response(instructions, body, timing);
    remove_internal_fields(&mut response.fields);
    response.instructions = FrontEndInstructions::None;
    forbid_buffering(&mut response.fields);
    response
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

fn stream_form(fields: &FieldBlock) -> StreamForm {
    let media_type = fields.get("content-type").unwrap_or_default();
    match is_media_type(media_type, "text/event-stream") {
        true => StreamForm::Events,
        false => StreamForm::Bytes,
    }
}

/// The body of a message for a poll with the body `own` in its own response.
fn message_body(message: &LongPollResponse, own: &[u8]) -> Result<Bytes, Fault> {
    let bytes = &message.body.bytes;
    if !message.is_patch {
        return Ok(bytes.clone());
    }
    let patched = apply_patch(own, bytes).map_err(|cause| {
        let cause = format!("what was published is a patch that does not fit: {cause}");
        Fault::new(FaultKind::BackendProtocolError, cause)
    })?;
    let mut text = patched.to_string().into_bytes();
    // What ended with a line break still does.
    if own.ends_with(b"\n") {
        text.push(b'\n');
    }
    Ok(text.into())
}

fn apply_patch(own: &[u8], patch: &[u8]) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let mut document = serde_json::from_slice(own)?;
    json_patch::patch(
        &mut document,
        &serde_json::from_slice::<json_patch::Patch>(patch)?,
    )?;
    Ok(document)
}

/// The fields of a message take the place of those by the same names.
fn override_fields(fields: &mut FieldBlock, above: &FieldBlock) {
    for (name, _) in above.iter() {
        fields.remove(name);
    }
    fields.append(above);
}

fn instruction_fault(error: crate::instructions::InstructionError) -> Fault {
    let cause = format!("an instruction to the hub is not understood: {error}");
    Fault::new(FaultKind::BackendProtocolError, cause)
}
