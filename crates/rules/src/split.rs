//! Several back ends of one route, each with a part of its requests: `split`.
//!
//! Stands where a route's one back end would: each part is the whole handler of a route of its own,
//! with its caches and GRIP. The part of a request is that which its conditions force, else that of
//! its client, else one by weight.
//!
//! # Invariants
//! - A part with weight 0 gets only requests that its conditions force there: an older cookie
//!   keeps no client at a part that is to be empty.
//! - The ids of parts depend on their names alone: they mean the same after a reload, a restart and
//!   on another server.
//! - A part's caches and back end see no difference to a route of its own: where it has a cache the
//!   cookie of the split is removed.

use std::sync::Arc;

use aws_lc_rs::digest;
use penstock_config::SplitBy;
use penstock_exchange::metrics::RuleCounts;
use penstock_exchange::{
    AddressPrefix, Fault, FaultKind, Handler, HandlerProgress, Reply, Request,
};
use penstock_http::{HeadWriter, RequestHead};

use crate::conditions::{RequestConditions, RequestFacts};

/// One part of a split.
#[derive(Debug)]
pub struct SplitTarget {
    /// Its back end, with all that stands around it.
    pub handler: Arc<dyn Handler>,
    /// The name of its back end, such as `app shop`.
    pub name: String,
    /// Its share, in proportion to all weights.
    pub weight: u32,
    /// Requests that always get it.
    pub conditions: Option<RequestConditions>,
    /// Whether it has a cache, which takes requests with a cookie for those of one client.
    pub has_cache: bool,
}

/// Gives each request to its part.
#[derive(Debug)]
pub struct SplitHandler {
    targets: Box<[SplitTarget]>,
    ids: Box<[PartId]>,
    total_weight: u64,
    has_conditions: bool,
    by: SplitBy,
    counts: Arc<RuleCounts>,
}

/// A part in a cookie: tells apart, and tells nothing.
type PartId = [u8; 8];

/// How the part of a request was found.
enum Choice {
    /// As its client had it before, or for this request alone.
    Known(usize),
    /// Its client is to keep it by a cookie.
    New(usize),
}

impl SplitHandler {
    /// The handler of parts, at least one of which has a weight. `counts` has an outcome for each
    /// part, in their order.
    #[must_use]
    pub fn new(targets: Vec<SplitTarget>, by: SplitBy, counts: Arc<RuleCounts>) -> Self {
        Self {
            ids: targets.iter().map(|target| part_id(&target.name)).collect(),
            total_weight: targets.iter().map(|target| u64::from(target.weight)).sum(),
            has_conditions: targets.iter().any(|target| target.conditions.is_some()),
            targets: targets.into(),
            by,
            counts,
        }
    }

    fn choose(&self, request: &Request) -> Choice {
        if let Some(forced) = self.forced(request) {
            return Choice::Known(forced);
        }
        let named = match &self.by {
            SplitBy::Request => return Choice::Known(self.at_random()),
            SplitBy::Cookie(cookie) => {
                let value = request.head.cookie(&cookie.name);
                let known = value.and_then(|value| self.part_of_cookie(value));
                return known.map_or_else(|| Choice::New(self.at_random()), Choice::Known);
            }
            SplitBy::Client => None,
            SplitBy::Header(name) => request.head.field(name),
            SplitBy::CookieValue(name) => request.head.cookie(name),
        };
        Choice::Known(match named {
            Some(value) => self.by_hash(value),
            None => {
                let prefix = AddressPrefix::from_address(request.client_address());
                self.by_hash(&prefix.to_bits().to_le_bytes())
            }
        })
    }

    /// The first part whose conditions fit.
    fn forced(&self, request: &Request) -> Option<usize> {
        if !self.has_conditions {
            return None;
        }
        let facts = RequestFacts {
            head: &request.head,
            client: request.client_address(),
            scheme: request.scheme(),
            listener: &request.listener,
            tls: request.client_state.tls().map(|tls| &**tls),
        };
        self.targets.iter().position(|target| {
            let conditions = target.conditions.as_ref();
            conditions.is_some_and(|it| it.match_request(&facts, request.path()))
        })
    }

    fn part_of_cookie(&self, value: &[u8]) -> Option<usize> {
        let part = self.ids.iter().position(|id| id == value)?;
        (self.targets[part].weight > 0).then_some(part)
    }

    fn at_random(&self) -> usize {
        self.at_point(fastrand::u64(..self.total_weight.max(1)))
    }

    /// The part of a value, for ever the same while the weights are. When they change, only as many
    /// values change their part as the weights say.
    fn by_hash(&self, value: &[u8]) -> usize {
        let hash = digest::digest(&digest::SHA256, value);
        let mut number = [0; 8];
        number.copy_from_slice(&hash.as_ref()[..8]);
        // The fraction of the hash's range, so that a change of all weights by a factor moves none.
        let share = u128::from(u64::from_le_bytes(number)) * u128::from(self.total_weight);
        self.at_point(u64::try_from(share >> 64).unwrap_or(0))
    }

    /// The part at a point of all weights in a row.
    fn at_point(&self, point: u64) -> usize {
        let mut end = 0;
        let found = self.targets.iter().position(|target| {
            end += u64::from(target.weight);
            point < end
        });
        found.unwrap_or(0)
    }

    /// The request without the cookie of the split, where the part has a cache.
    fn prepare(&self, mut request: Request, part: usize) -> Result<Request, Fault> {
        let SplitBy::Cookie(cookie) = &self.by else {
            return Ok(request);
        };
        if !self.targets[part].has_cache || request.head.cookie(&cookie.name).is_none() {
            return Ok(request);
        }
        let head = without_cookie(&request.head, &cookie.name)?;
        request.replace_head(Arc::new(head), []);
        Ok(request)
    }

    /// The value of `Set-Cookie` that keeps a client at a part.
    fn set_cookie(&self, part: usize, request: &Request) -> Option<String> {
        let SplitBy::Cookie(cookie) = &self.by else {
            return None;
        };
        let id = String::from_utf8_lossy(&self.ids[part]);
        let secure = match request.scheme() {
            "https" => "; Secure",
            _ => "",
        };
        let age = match cookie.max_age {
            Some(age) => format!("; Max-Age={}", age.as_secs()),
            None => String::new(),
        };
        let name = &cookie.name;
        Some(format!(
            "{name}={id}; Path=/{age}; HttpOnly; SameSite=Lax{secure}"
        ))
    }
}

impl Handler for SplitHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let (part, cookie) = match self.choose(&request) {
            Choice::Known(part) => (part, None),
            Choice::New(part) => (part, self.set_cookie(part, &request)),
        };
        self.counts.increment(part);
        let request = match self.prepare(request, part) {
            Ok(request) => request,
            Err(fault) => return HandlerProgress::Ready(Err(fault)),
        };
        let progress = self.targets[part].handler.handle(request);
        let Some(cookie) = cookie else {
            return progress;
        };
        match progress {
            HandlerProgress::Ready(reply) => {
                HandlerProgress::Ready(reply.map(|reply| with_cookie(reply, &cookie)))
            }
            HandlerProgress::Pending(work) => HandlerProgress::Pending(Box::pin(async move {
                work.await.map(|reply| with_cookie(reply, &cookie))
            })),
        }
    }
}

fn with_cookie(mut reply: Reply, cookie: &str) -> Reply {
    let fields = match &mut reply {
        Reply::Response(response) => &mut response.fields,
        Reply::Redirect(redirect) => &mut redirect.fields,
        Reply::Pass(_) => return reply,
    };
    // Name and id are valid in a field.
    let _ = fields.push("Set-Cookie", cookie.as_bytes());
    reply
}

/// The name of a pair of `Cookie`.
fn cookie_name(pair: &[u8]) -> &[u8] {
    let name = pair.split(|byte| *byte == b'=').next();
    name.unwrap_or_default().trim_ascii()
}

/// A head without one cookie.
fn without_cookie(head: &RequestHead, name: &str) -> Result<RequestHead, Fault> {
    let target = head.target_path_query();
    let is_kept = |field: &str| !field.eq_ignore_ascii_case("cookie");
    let mut writer = HeadWriter::with_kept_fields(head, head.method_str(), target, is_kept);
    for field in head.field_values("cookie") {
        let pairs = field.split(|byte| *byte == b';');
        let others: Vec<&[u8]> = pairs
            .map(<[u8]>::trim_ascii)
            .filter(|pair| !pair.is_empty() && cookie_name(pair) != name.as_bytes())
            .collect();
        if !others.is_empty() {
            writer.push_field("Cookie", &others.join(&b"; "[..]));
        }
    }
    writer.finish().map_err(|error| {
        let cause = format!("split makes the request invalid: {error}");
        Fault::new(FaultKind::Internal, cause)
    })
}

fn part_id(name: &str) -> PartId {
    let hash = digest::digest(&digest::SHA256, name.as_bytes());
    let mut id = PartId::default();
    for (digit, byte) in id.iter_mut().zip(hash.as_ref()) {
        *digit = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    id
}

#[cfg(test)]
mod tests;
