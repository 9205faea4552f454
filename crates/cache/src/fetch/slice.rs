//! What becomes of a response to a question for one slice.
//!
//! Called by `fetch` in place of what it does with a whole one. What must stay true: a slice is stored under the
//! index of the content that it is of, and under no other; the index is found as soon as its first slice is.

use std::sync::Arc;

use penstock_exchange::{Response, parts};
use penstock_http::caching::Lifetime;
use penstock_http::{ByteRange, FieldBlock, Status};
use penstock_runtime::clock;

use super::{Fetch, Times, is_failure, land_stored, refuse_response, unstorable};
use crate::flight::{Landing, Lead, Outcome};
use crate::handler::selects;
use crate::slices::{self, Slice};
use crate::store::{Filler, Growing, HitBody, Meta, Sliced};

/// Where the index of a content is.
enum Index {
    /// In the store already.
    Known(Arc<Meta>),
    /// On its way there.
    New(Filler, Arc<Meta>),
}

/// A slice that may be stored.
struct Storable {
    lifetime: Lifetime,
    span: ByteRange,
    total: u64,
}

impl Slice {
    /// Stores a slice, or leaves the response to the one who led.
    pub(super) async fn take(
        self,
        fetch: Fetch,
        response: Response,
        times: Times,
        purges: u64,
        landing: Landing,
    ) {
        let storable = match self.judge(&fetch, &response, times) {
            Ok(storable) => storable,
            Err(reason) => return self.refuse(&fetch, landing, response, reason),
        };
        if self.of.is_none() && fetch.has_newer_whole(&response, times) {
            // It came while this was asked for, and answers better.
            return landing.land(Outcome::Again, Lead::default());
        }
        let Some((index, filler, growing)) = self.begin(&fetch, &response, &storable, times) else {
            if storable.span.len > fetch.store.config().object_max {
                let mark = slices::mark_of(&fetch.key);
                fetch.shared.flights.mark(&mark, clock::now());
            }
            return refuse_response(landing, response, "store");
        };
        // Asked behind `begin`, as of a whole response: what is taken out from then on is found on its way in.
        if landing.is_outdated() || (fetch.store).is_purged_since(purges, index.meta()) {
            return refuse_response(landing, response, "outdated");
        }
        if let Index::New(_, meta) = &index {
            fetch.replace(meta);
        }
        let body = land_stored(landing, response, growing).await;
        match index {
            Index::Known(_) => fetch.fill(body, filler).await,
            Index::New(of_index, _) => {
                tokio::join!(fetch.fill(body, filler), of_index.finish());
            }
        }
    }

    /// Whether it is the slice that was asked for, of the right content, and may be stored.
    fn judge(
        &self,
        fetch: &Fetch,
        response: &Response,
        times: Times,
    ) -> Result<Storable, &'static str> {
        let (span, total) = slices::told(response, self.span()).ok_or("range")?;
        let tag = slices::strong_tag(&response.fields).ok_or("no-strong-etag")?;
        if let Some(of) = &self.of
            && !is_of(of, tag, total)
        {
            return Err("changed");
        }
        // What may be stored of a part is what may be stored of the whole (RFC 9111 §3.3).
        let judged = fetch.judge(Status::OK, &response.fields, times);
        let lifetime = judged.map_err(|reason| reason.as_str())?;
        match unstorable(response) {
            Some(reason) => Err(reason),
            None => Ok(Storable {
                lifetime,
                span,
                total,
            }),
        }
    }

    /// Begins the slice, and its index if that is new.
    fn begin(
        &self,
        fetch: &Fetch,
        response: &Response,
        storable: &Storable,
        times: Times,
    ) -> Option<(Index, Filler, Arc<Growing>)> {
        let store = &fetch.store;
        let index = match &self.of {
            Some(of) => Index::Known(Arc::clone(of)),
            None => self.index(fetch, response, storable, times)?,
        };
        let meta = index.meta();
        let key = slices::key_of(&fetch.key, meta.sliced?, self.number);
        let of_slice = Meta {
            key: Arc::clone(&key.text),
            status: Status::PARTIAL_CONTENT,
            fields: FieldBlock::new().freeze(),
            vary_names: Vec::new(),
            variant: Vec::new(),
            sliced: None,
            ..Meta::clone(meta)
        };
        let (filler, growing) = store.begin(&key, of_slice, Some(storable.span.len))?;
        Some((index, filler, growing))
    }

    /// The index that a first slice brings: what was there is current again if it is about the same content.
    fn index(
        &self,
        fetch: &Fetch,
        response: &Response,
        storable: &Storable,
        times: Times,
    ) -> Option<Index> {
        let mut meta = fetch.meta(response, &storable.lifetime, times);
        let mut fields = meta.fields.clone();
        // These are about the bytes of the slice.
        for name in ["content-range", "content-digest", "content-md5"] {
            fields.remove(name);
        }
        if !fields.contains("accept-ranges") {
            fields.push_static("Accept-Ranges", "bytes");
        }
        meta.fields = fields.freeze();
        meta.status = Status::OK;
        let tag = slices::strong_tag(&response.fields)?;
        let total = storable.total;
        if let Some(base) = &fetch.base
            && base.meta.is_same_variant(&meta)
            && is_of(&base.meta, tag, total)
            && !matches!(base.body, HitBody::Growing(_))
        {
            meta.sliced = base.meta.sliced;
            return Some(Index::Known(fetch.store.freshen(base, meta)));
        }
        // Who asked for another slice of it at the same time may have brought one.
        let is_it = |other: &Meta| other.is_same_variant(&meta) && is_of(other, tag, total);
        if let Some(hit) = (fetch.store).find(&fetch.key, &mut |other| is_it(other)) {
            return Some(Index::Known(hit.meta));
        }
        let id = parts::random();
        meta.sliced = Some(Sliced { id, total });
        let (filler, growing) = fetch.store.begin(&fetch.key, meta, Some(0))?;
        Some(Index::New(filler, Arc::clone(growing.meta())))
    }

    /// Leaves the response to the one who led, and remembers what it says about those to come.
    fn refuse(&self, fetch: &Fetch, landing: Landing, response: Response, reason: &'static str) {
        let is_out = match &self.of {
            // About the one client whose slice it is, most of what may be said.
            Some(of) => {
                let told = slices::told(&response, self.span());
                let tag = slices::strong_tag(&response.fields).unwrap_or_default();
                let is_same = told.is_some_and(|(_, total)| is_of(of, tag, total));
                let is_personal = matches!(
                    reason,
                    "set-cookie" | "authorization" | "hub" | "limit-rate"
                );
                let is_word = matches!(response.status.code(), 200 | 206 | 403 | 404 | 410 | 416);
                is_word && !(is_same && is_personal)
            }
            // A back end that failed says nothing about the resource.
            None => !is_failure(response.status) && response.status.code() != 429,
        };
        let index = self
            .of
            .as_ref()
            .or_else(|| fetch.base.as_ref().map(|base| &base.meta));
        if let Some(index) = index.filter(|_| is_out) {
            let is_it = |meta: &Meta| meta.sliced.is_some() && meta.sliced == index.sliced;
            if let Some(hit) = fetch.store.find(&fetch.key, &mut |meta| is_it(meta)) {
                match &hit.body {
                    HitBody::Growing(growing) => growing.doom(),
                    HitBody::Memory(_) | HitBody::Disk(_) => fetch.store.forget_hit(&hit),
                }
            }
        }
        let is_of_others =
            self.of.is_none() && matches!(response.status, Status::OK | Status::PARTIAL_CONTENT);
        if is_of_others {
            let mark = slices::mark_of(&fetch.key);
            fetch.shared.flights.mark(&mark, clock::now());
        }
        refuse_response(landing, response, reason);
    }
}

impl Fetch {
    /// Whether a whole response is stored that is newer than the question, or of the same content.
    fn has_newer_whole(&self, response: &Response, times: Times) -> bool {
        let head = &self.client.head;
        let tag = slices::strong_tag(&response.fields);
        let is_it = |meta: &Meta| {
            let is_same = slices::strong_tag(&meta.fields) == tag;
            let is_newer = meta.response_time >= times.request;
            meta.sliced.is_none() && (is_same || is_newer) && selects(head, meta)
        };
        let found = self.store.find(&self.key, &mut |meta| is_it(meta));
        found.is_some_and(|hit| !matches!(hit.body, HitBody::Growing(_)))
    }
}

impl Index {
    fn meta(&self) -> &Arc<Meta> {
        match self {
            Self::Known(meta) | Self::New(_, meta) => meta,
        }
    }
}

/// Whether a part with this validator, of so many bytes, is of the content with that index.
fn is_of(index: &Meta, tag: &[u8], total: u64) -> bool {
    let is_as_long = index.sliced.is_some_and(|sliced| sliced.total == total);
    is_as_long && slices::strong_tag(&index.fields) == Some(tag)
}
