//! Lookup of a part far into a response that is not stored: answered from slices (`slices`).
//!
//! `lookup` tries this before it bypasses the cache.
//!
//! # Invariants
//!
//! - A request that slices cannot answer goes to the back end unchanged.
//! - The client gets a failure as a status until the first slice is available. After that, the body
//!   is cut.

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::{Fault, FaultSide, Reply};
use penstock_http::caching::{CacheStatus, ForwardReason};
use penstock_http::{Method, RangeOutcome, Status, select_range};
use penstock_runtime::clock;

use super::{
    CacheLookup, LookupResult, LookupStep, StaleHit, client_disconnected, hit_status, judge_hit,
    selects_variant,
};
use crate::coalesced_fetch::{FetchOutcome, LeaderResult};
use crate::fetch::Fetch;
use crate::serve::{self, CacheHeaders, StoredBody};
use crate::slices::{self, SLICE_BYTES, SliceFetch, SlicedContent};
use crate::store::{Hit, ObjectMeta};

/// Look-ups of the index: a second one after this request's fetch, a third after another request's.
const MAX_LOOKUPS: u32 = 3;

/// The index of a sliced content that answers this request.
struct FoundIndex {
    meta: Arc<ObjectMeta>,
    cache_headers: CacheHeaders<'static>,
    /// The result of the fetch that this request led.
    leader_result: Option<LeaderResult>,
}

/// The result of a request for a part.
pub(super) enum SliceLookupOutcome {
    /// The response, and whether it was a hit.
    Answered(Result<(Reply, bool), Fault>),
    /// Send the request to the back end unchanged.
    NotApplicable,
    /// Another client's request, for which this one waited, failed.
    LeaderFailed,
}

impl From<Option<Result<Reply, Fault>>> for SliceLookupOutcome {
    fn from(answered: Option<Result<Reply, Fault>>) -> Self {
        let answered = answered.map(|answered| answered.map(|reply| (reply, false)));
        answered.map_or(Self::NotApplicable, Self::Answered)
    }
}

/// The back end was asked and did not answer with a slice.
struct NoSlice {
    fallback: SliceLookupOutcome,
    /// The back end failed (RFC 5861 §4).
    is_failure: bool,
}

impl From<SliceLookupOutcome> for NoSlice {
    fn from(otherwise: SliceLookupOutcome) -> Self {
        Self {
            fallback: otherwise,
            is_failure: false,
        }
    }
}

impl CacheLookup {
    /// Answers with a part of a sliced content, and stores the missing slices. With `whole`, a
    /// partial object, the slices must be of the same content.
    pub(super) async fn answer_from_slices(
        &self,
        whole: Option<&ObjectMeta>,
    ) -> SliceLookupOutcome {
        let Some(start) = self.start_in_slices() else {
            return SliceLookupOutcome::NotApplicable;
        };
        match self.fresh_index(start / SLICE_BYTES, whole).await {
            Ok(index) => {
                let answered = self.answer_from_index(index).await;
                answered.map_or(
                    SliceLookupOutcome::NotApplicable,
                    SliceLookupOutcome::Answered,
                )
            }
            Err(otherwise) => otherwise,
        }
    }

    /// Answers from the slices of this index. Returns whether it was a hit, or `None` if slices
    /// cannot answer this request.
    async fn answer_from_index(&self, index: FoundIndex) -> Option<Result<(Reply, bool), Fault>> {
        let head = &self.client.head;
        let slice_set = index.meta.slice_set?;
        let content = Arc::new(SlicedContent {
            shared: Arc::clone(&self.shared),
            store: Arc::clone(&self.store),
            key: self.key.clone(),
            client: self.client.clone(),
            index: Arc::clone(&index.meta),
            slice_set,
        });
        let mut headers = index.cache_headers;
        // Conditions and unsatisfiable ranges need no content.
        let opened = match serve::requested_part(head, &index.meta, slice_set.total_length)? {
            Some(span) => {
                let open = content.open_slice(span.start, span.start + span.len);
                match self.client_state.run_while_connected(open).await {
                    Some(Ok(opened)) => Some((span, opened?)),
                    Some(Err(fault)) => return Some(Err(fault)),
                    None => return Some(Err(client_disconnected())),
                }
            }
            None => None,
        };
        let is_hit =
            index.leader_result.is_none() && opened.as_ref().is_none_or(|(_, one)| one.is_hit);
        if !is_hit && let Some(status) = &mut headers.status {
            status.hit = false;
            status.stored = true;
            status.fwd = status.fwd.or(Some(ForwardReason::Partial));
        }
        let body = StoredBody::Sliced(content, opened);
        let mut response = serve::respond_from_body(head, &index.meta, body, &headers).ok()?;
        let counters = &self.shared.counters;
        let counter = match is_hit {
            true => &counters.hits,
            false => &counters.misses,
        };
        match index.leader_result {
            Some(lead) => {
                counter.increment();
                response.timing = lead.timing;
            }
            None => self.shared.count_served(counter, &response),
        }
        Some(Ok((response.into(), is_hit)))
    }

    /// Where the part begins, if slices can answer: a single range of a GET that may be stored for
    /// all. The start of a suffix range is unknown before the length is, and counts as very far.
    fn start_in_slices(&self) -> Option<u64> {
        let head = &self.client.head;
        let is_plain = head.method() == Method::Get
            && self.directives.may_store
            && !self.directives.directives.only_if_cached
            && !self.is_reload()
            && !self.client.is_authenticated();
        let range = serve::single_field_value(head, "range")?;
        let RangeOutcome::Part(part) = select_range(Some(range), None, u64::MAX, b"", None) else {
            return None;
        };
        is_plain.then_some(part.start)
    }

    /// Whether to begin slicing for this key: not if slices lately did not work, and only after
    /// `min_uses` requests.
    fn may_begin_slicing(&self) -> bool {
        let rules = &self.shared.rules;
        let mark = slices::unsliceable_key(&self.key);
        !self.shared.fetches.is_uncacheable(&mark, clock::now())
            && (rules.config.min_uses <= 1
                || self.store.count_request(&mark) >= rules.config.min_uses)
    }

    /// The index that this request selects, fresh or not.
    fn find_index(&self, whole: Option<&ObjectMeta>) -> Option<Hit> {
        let head = &self.client.head;
        let tag = whole.map(|whole| slices::strong_etag(&whole.fields));
        self.store.find(&self.key, &mut |meta| {
            let is_of_whole = tag.is_none_or(|tag| slices::strong_etag(&meta.fields) == tag);
            meta.slice_set.is_some() && selects_variant(head, meta) && is_of_whole
        })
    }

    /// Returns a fresh index: the stored one, or one fetched with slice `number`.
    async fn fresh_index(
        &self,
        number: u64,
        whole: Option<&ObjectMeta>,
    ) -> Result<FoundIndex, SliceLookupOutcome> {
        let mut lead = None;
        let mut fwd = None;
        for asks_left in (0..MAX_LOOKUPS).rev() {
            let found = self.find_index(whole);
            if let (Some(whole), None) = (whole, &found)
                && (slices::strong_etag(&whole.fields).is_none() || self.find_index(None).is_some())
            {
                // The partial object has no strong validator, or is another content than the
                // slices.
                return Err(SliceLookupOutcome::NotApplicable);
            }
            let mut for_errors = None;
            let base = match found.map(|hit| judge_hit(hit, &self.directives, clock::wall_time())) {
                Some(LookupResult::Usable(usable)) => {
                    if usable.needs_revalidation && lead.is_none() {
                        self.revalidate_index(number, &usable.hit);
                    }
                    let meta = usable.hit.meta;
                    return Ok(self.found_index(meta, usable.age, usable.ttl, fwd, lead));
                }
                // The back end has just confirmed it.
                Some(LookupResult::Stale(stale)) if lead.is_some() => {
                    let meta = stale.hit.meta;
                    return Ok(self.found_index(meta, stale.age, stale.ttl, fwd, lead));
                }
                Some(LookupResult::Stale(stale)) => {
                    if stale.may_serve_on_error {
                        let status = CacheStatus {
                            detail: Some("stale-if-error"),
                            ..hit_status(stale.ttl)
                        };
                        for_errors = Some(FoundIndex {
                            meta: Arc::clone(&stale.hit.meta),
                            cache_headers: self.shared.cache_headers(Some(stale.age), status),
                            leader_result: None,
                        });
                    }
                    Some(stale)
                }
                _ => None,
            };
            if asks_left == 0
                || is_beyond_any_content(number)
                || base.is_none() && !self.may_begin_slicing()
            {
                return Err(SliceLookupOutcome::NotApplicable);
            }
            fwd = Some(match base {
                Some(_) => ForwardReason::Stale,
                None => ForwardReason::UriMiss,
            });
            match self.fetch_or_wait_for_slice(number, base).await {
                Ok(leader_result) => lead = leader_result,
                Err(NoSlice {
                    fallback,
                    is_failure,
                }) => {
                    return for_errors.filter(|_| is_failure).ok_or(fallback);
                }
            }
        }
        Err(SliceLookupOutcome::NotApplicable)
    }

    fn found_index(
        &self,
        meta: Arc<ObjectMeta>,
        age: Duration,
        ttl: i64,
        fwd: Option<ForwardReason>,
        leader_result: Option<LeaderResult>,
    ) -> FoundIndex {
        let lead = leader_result.as_ref();
        let status = CacheStatus {
            hit: fwd.is_none(),
            fwd,
            fwd_status: lead.and_then(|lead| lead.status),
            ..hit_status(ttl)
        };
        let age = Some(age).filter(|age| lead.is_none() || age.as_secs() > 0);
        FoundIndex {
            meta,
            cache_headers: self.shared.cache_headers(age, status),
            leader_result,
        }
    }

    /// Fetches a slice of the current content, or waits for another request's fetch.
    async fn fetch_or_wait_for_slice(
        &self,
        number: u64,
        base: Option<StaleHit>,
    ) -> Result<Option<LeaderResult>, NoSlice> {
        let slice = SliceFetch {
            number,
            index: None,
        };
        let fetches = &self.shared.fetches;
        // Otherwise other requests could not use the response without revalidating it again.
        let is_shared = base.as_ref().is_none_or(|base| base.is_shareable);
        let base = base.map(|base| base.hit);
        let meta = base.as_ref().map(|base| &*base.meta);
        let hint = slice.variant_hint(&self.client.head, meta);
        let (waiter, completer) = match is_shared {
            true => fetches.join_or_begin(&self.key, hint, None),
            false => fetches.begin_exclusive(&self.key),
        };
        if let Some(completer) = completer {
            self.new_slice_fetch(slice, base).start(completer);
        }
        let outcome = waiter.wait(self.deadline);
        let Some(outcome) = self.client_state.run_while_connected(outcome).await else {
            return Err(SliceLookupOutcome::Answered(Err(client_disconnected())).into());
        };
        let (lead, is_leader) = (waiter.take_leader_result(), waiter.is_leader);
        drop(waiter);
        match outcome {
            Some(FetchOutcome::Stored { .. } | FetchOutcome::Revalidated(_)) => Ok(lead),
            // The whole is stored.
            Some(FetchOutcome::RetryLookup) => Err(SliceLookupOutcome::NotApplicable.into()),
            Some(FetchOutcome::Failed(kind, cause)) => {
                let is_failure = kind.side() != FaultSide::Client;
                let fallback = match lead.and_then(|lead| lead.reply) {
                    Some(answered) => Some(answered).into(),
                    None if kind.is_before_sending() => {
                        SliceLookupOutcome::Answered(Err(Fault::new(kind, cause)))
                    }
                    None if is_leader => SliceLookupOutcome::NotApplicable,
                    // The leader's request may have provoked it.
                    None => SliceLookupOutcome::LeaderFailed,
                };
                Err(NoSlice {
                    fallback,
                    is_failure,
                })
            }
            Some(FetchOutcome::NotStored { is_error }) => Err(NoSlice {
                fallback: self.unstored_reply(lead).into(),
                is_failure: is_error,
            }),
            None => Err(SliceLookupOutcome::NotApplicable.into()),
        }
    }

    fn new_slice_fetch(&self, slice: SliceFetch, base: Option<Hit>) -> Fetch {
        Fetch {
            slice: Some(slice),
            ..self.new_fetch(base.as_ref())
        }
    }

    fn revalidate_index(&self, number: u64, hit: &Hit) {
        let slice = SliceFetch {
            number: if is_beyond_any_content(number) {
                0
            } else {
                number
            },
            index: None,
        };
        let hint = slice.variant_hint(&self.client.head, Some(&hit.meta));
        if let Some(completer) = self.shared.fetches.begin_background(&self.key, hint) {
            self.new_slice_fetch(slice, Some(hit.clone()))
                .start(completer);
        }
    }

    /// Answers with a response that is no slice, where it answers the leader's request. Others send
    /// their own request.
    fn unstored_reply(&self, lead: Option<LeaderResult>) -> Option<Result<Reply, Fault>> {
        let lead = lead?;
        let is_for_another = match lead.status {
            // The fetch requested more than the wanted part.
            None | Some(Status::OK | Status::PARTIAL_CONTENT) => true,
            // The slice begins beyond the end; but with `If-Range` the client may want the whole of
            // another content.
            Some(Status::RANGE_NOT_SATISFIABLE) => self.client.head.field("if-range").is_some(),
            Some(_) => false,
        };
        if is_for_another {
            return None;
        }
        match self.respond_unstored(lead, ForwardReason::UriMiss) {
            LookupStep::Done(answered) => Some(answered),
            LookupStep::RetryLookup | LookupStep::LeaderFailed | LookupStep::Bypass(_) => None,
        }
    }
}

/// Whether no content can be long enough to have a slice of that number.
fn is_beyond_any_content(number: u64) -> bool {
    number > u64::MAX / 2 / SLICE_BYTES
}
