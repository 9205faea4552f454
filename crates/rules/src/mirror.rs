//! Copies of a share of a route's requests for another back end: `mirror`, as nginx has it.
//!
//! Stands around the back end of a route, outside its caches. The copy of a request without a body
//! starts beside it. That of one with a body starts once the back end has read all of it: the bytes
//! are copied as they pass.
//!
//! # Invariants
//! - Nothing of a copy delays, changes or fails the request: it has its own client state, timeout
//!   and bound.
//! - The memory of copies is bounded: `max_active` times `max_body_size`.
//! - A field `X-Mirror` is Penstock's: that of a client reaches no back end of the route.

mod body;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock_config::{Mirror, Share};
use penstock_exchange::field_policy::is_same_cgi_variable;
use penstock_exchange::metrics::{RuleCountTable, RuleCounts, RuleUsage};
use penstock_exchange::request::RequestPath;
use penstock_exchange::{
    Body, BodyStream, ClientState, Fault, FaultKind, Handler, HandlerProgress, Reply, Request,
    RequestBody,
};
use penstock_http::{HeadWriter, RequestHead, RequestHeadError};
use penstock_runtime::{clock, loops};

use self::body::{CopiedBody, CopyingBody};

/// The field that marks a copy.
const MIRROR_FIELD: &str = "X-Mirror";

/// Sends copies of some requests to another back end.
#[derive(Debug)]
pub struct MirrorHandler {
    inner: Arc<dyn Handler>,
    share: u32,
    max_body_bytes: u64,
    target: Arc<MirrorTarget>,
}

/// Where the copies go, and how many are on their way.
#[derive(Debug)]
struct MirrorTarget {
    handler: Arc<dyn Handler>,
    timeout: Duration,
    max_active: usize,
    active: AtomicUsize,
    counts: Arc<RuleCounts>,
}

/// What becomes of a copy.
#[derive(Debug, Clone, Copy)]
enum CopyOutcome {
    /// It was answered, whatever the response.
    Sent,
    /// It was not, or not in time.
    Failed,
    /// Too many copies were in progress.
    Dropped,
    /// The body was longer than `max_body_size`.
    TooLarge,
    /// The body was not read to its end.
    Incomplete,
}

/// The outcomes in the order of [`CopyOutcome`].
const OUTCOMES: [&str; 5] = ["sent", "failed", "dropped", "too_large", "incomplete"];

/// Counts one copy as in progress until it is dropped.
#[derive(Debug)]
struct CopyPermit(Arc<MirrorTarget>);

/// A copy whose body is not complete yet.
#[derive(Debug)]
struct PendingCopy {
    permit: CopyPermit,
    request: Box<Request>,
}

impl MirrorHandler {
    /// Copies requests to `inner` for `target`, which is the back end of the rule.
    #[must_use]
    pub fn new(
        inner: Arc<dyn Handler>,
        rule: &Mirror,
        target: Arc<dyn Handler>,
        (table, route): (&RuleCountTable, &str),
    ) -> Self {
        let counts = table.counts(route, "mirror", &OUTCOMES);
        let target = Arc::new(MirrorTarget {
            handler: target,
            timeout: rule.timeout,
            max_active: usize::try_from(rule.max_active).unwrap_or(usize::MAX),
            active: AtomicUsize::new(0),
            counts,
        });
        let usage: Arc<dyn RuleUsage> = Arc::clone(&target) as _;
        target.counts.set_usage(&usage);
        Self {
            inner,
            share: rule.share.millionths(),
            max_body_bytes: rule.max_body_size,
            target,
        }
    }

    fn is_chosen(&self, request: &Request) -> bool {
        // A connection that changes its protocol has no copy.
        request.head.field("upgrade").is_none()
            && (self.share == Share::WHOLE || fastrand::u32(..Share::WHOLE) < self.share)
    }

    /// Begins the copy of a request; `None` if it is not to be copied now.
    fn begin_copy(&self, request: &Request) -> Option<PendingCopy> {
        let length = match &request.body {
            RequestBody::Empty => Some(0),
            RequestBody::Incoming(body) => body.length(),
        };
        if length.is_some_and(|length| length > self.max_body_bytes) {
            self.target.count(CopyOutcome::TooLarge);
            return None;
        }
        let Some(permit) = CopyPermit::acquire(&self.target) else {
            self.target.count(CopyOutcome::Dropped);
            return None;
        };
        match copy_of(request) {
            Ok(copy) => Some(PendingCopy {
                permit,
                request: Box::new(copy),
            }),
            Err(error) => {
                log::debug!("mirror: a request has no copy: {error}");
                self.target.count(CopyOutcome::Failed);
                None
            }
        }
    }
}

impl Handler for MirrorHandler {
    fn handle(&self, mut request: Request) -> HandlerProgress {
        // An application behind CGI's names could not tell `X_Mirror` from it.
        let is_mark = |(name, _): (&str, _)| is_same_cgi_variable(name, MIRROR_FIELD);
        if request.head.fields().any(is_mark) {
            match unmarked_head(&request.head) {
                Ok(head) => request.replace_head(Arc::new(head), []),
                Err(error) => {
                    let cause = format!("mirror makes the request invalid: {error}");
                    return HandlerProgress::Ready(Err(Fault::new(FaultKind::Internal, cause)));
                }
            }
        }
        let copy = match self.is_chosen(&request) {
            true => self.begin_copy(&request),
            false => None,
        };
        let Some(copy) = copy else {
            return self.inner.handle(request);
        };
        match std::mem::replace(&mut request.body, RequestBody::Empty) {
            RequestBody::Empty => {
                let progress = self.inner.handle(request);
                copy.start(Vec::new());
                progress
            }
            RequestBody::Incoming(body) => {
                let copying = CopyingBody::new(body, copy, self.max_body_bytes);
                request.body = RequestBody::Incoming(Box::new(copying));
                self.inner.handle(request)
            }
        }
    }
}

impl MirrorTarget {
    fn count(&self, outcome: CopyOutcome) {
        self.counts.increment(outcome as usize);
    }
}

impl RuleUsage for MirrorTarget {
    fn in_use(&self) -> u64 {
        self.active.load(Ordering::Relaxed) as u64
    }
}

impl CopyPermit {
    /// `None` if too many copies are in progress.
    fn acquire(target: &Arc<MirrorTarget>) -> Option<Self> {
        // Counted by the guard, which takes back one that is too many.
        let before = target.active.fetch_add(1, Ordering::Relaxed);
        let permit = Self(Arc::clone(target));
        (before < target.max_active).then_some(permit)
    }
}

impl Drop for CopyPermit {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PendingCopy {
    /// Sends the copy with this body, in a task of its own.
    fn start(self, body: Vec<u8>) {
        let Self {
            permit,
            mut request,
        } = self;
        if !body.is_empty() {
            request.body = RequestBody::Incoming(Box::new(CopiedBody::new(body)));
        }
        let work = async move {
            let target = &permit.0;
            let sending = send(&*target.handler, *request);
            let is_answered = clock::timeout(target.timeout, sending).await;
            target.count(match is_answered {
                Some(true) => CopyOutcome::Sent,
                Some(false) | None => CopyOutcome::Failed,
            });
        };
        loops::spawn_here(work);
    }

    /// Gives the copy up.
    fn abandon(self, outcome: CopyOutcome) {
        self.permit.0.count(outcome);
    }
}

/// Sends a copy and reads its response to the end, so that the connection is kept; `false` if there
/// is none.
async fn send(handler: &dyn Handler, copy: Request) -> bool {
    match handler.handle(copy).wait_for_reply().await {
        Ok(Reply::Response(response)) => match response.body {
            Body::Stream(body) => discard(body).await,
            _ => true,
        },
        // Its body is elsewhere and is not needed.
        Ok(Reply::Redirect(_)) => true,
        Ok(Reply::Pass(_)) | Err(_) => false,
    }
}

async fn discard(mut body: Box<dyn BodyStream>) -> bool {
    loop {
        match std::future::poll_fn(|cx| body.poll_chunk(cx)).await {
            None => return true,
            Some(Ok(_)) => {}
            Some(Err(_)) => return false,
        }
    }
}

/// Another request of the same client with the mark of a copy and no body yet.
fn copy_of(request: &Request) -> Result<Request, String> {
    let head = &request.head;
    let is_kept = |name: &str| {
        !name.eq_ignore_ascii_case(MIRROR_FIELD) && !name.eq_ignore_ascii_case("expect")
    };
    let (method, target) = (head.method_str(), head.target_path_query());
    let mut writer = HeadWriter::with_kept_fields(head, method, target, is_kept);
    writer.push_field(MIRROR_FIELD, b"1");
    let head = writer.finish().map_err(|error| error.to_string())?;
    let path = RequestPath::from_head(&head).map_err(|error| error.to_string())?;
    let client_state = ClientState::new(request.client_state.tls().cloned());
    client_state.set_user(request.client_state.user());
    let mut environment = request.environment(Arc::new(client_state));
    environment.arrived_at = clock::now();
    let mut copy = Request::new(Arc::new(head), path, RequestBody::Empty, environment);
    let names = std::iter::once(MIRROR_FIELD.to_owned());
    copy.trusted_headers = request.trusted_headers.with_names(names);
    Ok(copy)
}

fn unmarked_head(head: &RequestHead) -> Result<RequestHead, RequestHeadError> {
    let is_kept = |name: &str| !is_same_cgi_variable(name, MIRROR_FIELD);
    let (method, target) = (head.method_str(), head.target_path_query());
    HeadWriter::with_kept_fields(head, method, target, is_kept).finish()
}

#[cfg(test)]
mod tests;
