//! Storing the response to a request for one slice. `fetch` calls this in place of its own storing.
//!
//! # Invariants
//!
//! - A slice is stored only under the index of its own content.
//! - The index can be found as soon as its first slice can.

use std::sync::Arc;

use penstock_exchange::{Response, multipart};
use penstock_http::caching::Lifetime;
use penstock_http::{ByteRange, FieldBlock, Status};

use super::{
    Fetch, FetchTimes, complete_stored, complete_unstored_response, is_backend_failure,
    unstorable_reason,
};
use crate::coalesced_fetch::{FetchCompleter, FetchOutcome, LeaderResult};
use crate::handler::selects_variant;
use crate::slices::{self, SliceFetch};
use crate::store::{HitBody, ObjectMeta, ObjectWriter, PartialObject, SliceSet};

/// Where the index of a slice is.
enum SliceIndex {
    /// In the store already.
    Known(Arc<ObjectMeta>),
    /// Being written.
    New(ObjectWriter, Arc<ObjectMeta>),
}

/// A slice that may be stored.
struct StorableSlice {
    lifetime: Lifetime,
    span: ByteRange,
    total_length: u64,
}

impl SliceFetch {
    /// Stores the slice, or leaves the response to the leader.
    pub(super) async fn store_or_refuse(
        self,
        fetch: Fetch,
        response: Response,
        times: FetchTimes,
        purges: u64,
        completer: FetchCompleter,
    ) {
        let storable = match self.judge_storing(&fetch, &response, times) {
            Ok(storable) => storable,
            Err(reason) => return self.complete_unstored(&fetch, completer, response, reason),
        };
        if self.index.is_none() && fetch.has_newer_whole(&response, times) {
            // It arrived during this request and is the better answer.
            return completer.complete(FetchOutcome::RetryLookup, LeaderResult::default());
        }
        let Some((index, writer, partial)) =
            self.begin_writing(&fetch, &response, &storable, times)
        else {
            if storable.span.len > fetch.store.config().max_object_size {
                fetch.mark_uncacheable(&slices::unsliceable_key(&fetch.key));
            }
            return complete_unstored_response(completer, response, "store");
        };
        // Checked after `begin_object`, as for a whole response: later purges find the partial
        // object.
        if completer.is_outdated() || (fetch.store).is_purged_since(purges, index.meta()) {
            return complete_unstored_response(completer, response, "outdated");
        }
        if let SliceIndex::New(_, meta) = &index {
            fetch.evict_replaced(meta);
        }
        let body = complete_stored(completer, response, partial).await;
        match index {
            SliceIndex::Known(_) => fetch.write_body(body, writer).await,
            SliceIndex::New(index_writer, _) => {
                tokio::join!(fetch.write_body(body, writer), index_writer.finish());
            }
        }
    }

    /// Checks that the response is the requested slice, of the right content, and storable.
    fn judge_storing(
        &self,
        fetch: &Fetch,
        response: &Response,
        times: FetchTimes,
    ) -> Result<StorableSlice, &'static str> {
        let (span, total_length) =
            slices::returned_part(response, self.byte_range()).ok_or("range")?;
        let tag = slices::strong_etag(&response.fields).ok_or("no-strong-etag")?;
        if let Some(of) = &self.index
            && !belongs_to(of, tag, total_length)
        {
            return Err("changed");
        }
        // A partial response is storable if the whole is (RFC 9111 §3.3).
        let judged = fetch.judge_storing(Status::OK, &response.fields, times);
        let lifetime = judged.map_err(|reason| reason.as_str())?;
        match unstorable_reason(response) {
            Some(reason) => Err(reason),
            None => Ok(StorableSlice {
                lifetime,
                span,
                total_length,
            }),
        }
    }

    /// Begins the slice's object, and the index if it is new.
    fn begin_writing(
        &self,
        fetch: &Fetch,
        response: &Response,
        storable: &StorableSlice,
        times: FetchTimes,
    ) -> Option<(SliceIndex, ObjectWriter, Arc<PartialObject>)> {
        let store = &fetch.store;
        let index = match &self.index {
            Some(of) => SliceIndex::Known(Arc::clone(of)),
            None => self.find_or_begin_index(fetch, response, storable, times)?,
        };
        let meta = index.meta();
        let key = slices::slice_key(&fetch.key, meta.slice_set?, self.number);
        let of_slice = ObjectMeta {
            key: Arc::clone(&key.text),
            status: Status::PARTIAL_CONTENT,
            fields: FieldBlock::new().freeze(),
            vary_names: Vec::new(),
            variant: Vec::new(),
            slice_set: None,
            ..ObjectMeta::clone(meta)
        };
        let (writer, partial) = store.begin_object(&key, of_slice, Some(storable.span.len))?;
        Some((index, writer, partial))
    }

    /// Finds or begins the index for a first slice. A stale index of the same content becomes
    /// current again.
    fn find_or_begin_index(
        &self,
        fetch: &Fetch,
        response: &Response,
        storable: &StorableSlice,
        times: FetchTimes,
    ) -> Option<SliceIndex> {
        let mut meta = fetch.object_meta(response, &storable.lifetime, times);
        let mut fields = meta.fields.clone();
        // These fields describe the slice's bytes.
        for name in ["content-range", "content-digest", "content-md5"] {
            fields.remove(name);
        }
        if !fields.contains("accept-ranges") {
            fields.push_static("Accept-Ranges", "bytes");
        }
        meta.fields = fields.freeze();
        meta.status = Status::OK;
        let tag = slices::strong_etag(&response.fields)?;
        let total = storable.total_length;
        if let Some(base) = &fetch.stale_hit
            && base.meta.is_same_variant(&meta)
            && belongs_to(&base.meta, tag, total)
            && !matches!(base.body, HitBody::Partial(_))
        {
            meta.slice_set = base.meta.slice_set;
            return Some(SliceIndex::Known(fetch.store.freshen(base, meta)));
        }
        // A concurrent request for another slice may have stored the index.
        let mut is_it =
            |other: &ObjectMeta| other.is_same_variant(&meta) && belongs_to(other, tag, total);
        if let Some(hit) = (fetch.store).find(&fetch.key, &mut is_it) {
            return Some(SliceIndex::Known(hit.meta));
        }
        meta.slice_set = Some(SliceSet {
            id: multipart::random_boundary(),
            total_length: total,
        });
        let (writer, partial) = fetch.store.begin_object(&fetch.key, meta, Some(0))?;
        Some(SliceIndex::New(writer, Arc::clone(&partial.meta)))
    }

    /// Leaves the response to the leader, and removes or marks what it proves wrong.
    fn complete_unstored(
        &self,
        fetch: &Fetch,
        completer: FetchCompleter,
        response: Response,
        reason: &'static str,
    ) {
        let is_out = match &self.index {
            // A refusal of the same content that concerns one client only does not invalidate the
            // index.
            Some(of) => {
                let told = slices::returned_part(&response, self.byte_range());
                let tag = slices::strong_etag(&response.fields).unwrap_or_default();
                let is_same = told.is_some_and(|(_, total)| belongs_to(of, tag, total));
                let is_personal = matches!(
                    reason,
                    "set-cookie" | "authorization" | "hub" | "limit-rate"
                );
                let is_word = matches!(response.status.code(), 200 | 206 | 403 | 404 | 410 | 416);
                is_word && !(is_same && is_personal)
            }
            // A failure of the back end tells nothing about the resource.
            None => !is_backend_failure(response.status) && response.status.code() != 429,
        };
        let stale_index = fetch.stale_hit.as_ref().map(|base| &base.meta);
        if let Some(index) = self.index.as_ref().or(stale_index).filter(|_| is_out) {
            let mut is_it =
                |meta: &ObjectMeta| meta.slice_set.is_some() && meta.slice_set == index.slice_set;
            if let Some(hit) = fetch.store.find(&fetch.key, &mut is_it) {
                fetch.discard_hit(&hit);
            }
        }
        if self.index.is_none() && matches!(response.status, Status::OK | Status::PARTIAL_CONTENT) {
            fetch.mark_uncacheable(&slices::unsliceable_key(&fetch.key));
        }
        complete_unstored_response(completer, response, reason);
    }
}

impl Fetch {
    /// Whether a whole response is stored that is newer than the request or has the same content.
    fn has_newer_whole(&self, response: &Response, times: FetchTimes) -> bool {
        let head = &self.client.head;
        let tag = slices::strong_etag(&response.fields);
        let mut is_it = |meta: &ObjectMeta| {
            let is_same = slices::strong_etag(&meta.fields) == tag;
            let is_newer = meta.response_time >= times.request_time;
            meta.slice_set.is_none() && (is_same || is_newer) && selects_variant(head, meta)
        };
        let found = self.store.find(&self.key, &mut is_it);
        found.is_some_and(|hit| !matches!(hit.body, HitBody::Partial(_)))
    }
}

impl SliceIndex {
    fn meta(&self) -> &Arc<ObjectMeta> {
        match self {
            Self::Known(meta) | Self::New(_, meta) => meta,
        }
    }
}

/// Whether a part with this validator and total length belongs to the content of `index`.
fn belongs_to(index: &ObjectMeta, tag: &[u8], total: u64) -> bool {
    index.slice_set.is_some_and(|set| set.total_length == total)
        && slices::strong_etag(&index.fields) == Some(tag)
}
