//! Contents stored in slices, for media players and resumed downloads that request parts by
//! `Range`.
//!
//! A part that begins far into a content that is not stored is not worth fetching the whole. The
//! cache fetches the slices that it touches instead. Each slice is [`SLICE_BYTES`] of the content
//! and an object of its own, fetched by a range and stored complete or not at all. An object
//! without a body under the request's own key, the *index* of the content, ties its slices
//! together: it has the validator, the length and a number that is part of the slices' keys (RFC
//! 9111 §3.3, §3.4). `handler/lookup/slice_lookup` decides when to use slices, `fetch/slice` stores
//! them, and this module assembles a client's part.
//!
//! # Invariants
//!
//! - The bytes of one response are of one content, by its strong validator and length, or the
//!   connection is cut.
//! - Freshness, variants and purges are the index's: slices without an index are never found again.
//! - Each slice is fetched once for all its readers, and only as far as clients have read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use penstock_exchange::{Body, BodyStream, Fault, FaultKind, FaultSide, Reply, Response};
use penstock_http::caching::{RevalidationFields, variant_key};
use penstock_http::{ByteRange, FieldBlock, RequestHead, Status, parse_content_range};
use penstock_runtime::clock;

use crate::backend_request::{self, ClientRequest};
use crate::coalesced_fetch::FetchOutcome;
use crate::fetch::Fetch;
use crate::handler::SharedCache;
use crate::serve::StoredBody;
use crate::store::{HitBody, ObjectKey, ObjectMeta, SliceSet, Store};

/// Size of a slice: small enough that a client does not notice the earlier start, and one write to
/// a disk.
pub(crate) const SLICE_BYTES: u64 = 1 << 20;

const READ_BYTES: u64 = 128 * 1024;

#[derive(Debug)]
pub(crate) struct SliceFetch {
    /// The slice's number, from 0.
    pub(crate) number: u64,
    /// The index of the content that the slice must belong to; `None` accepts the current content.
    pub(crate) index: Option<Arc<ObjectMeta>>,
}

impl SliceFetch {
    /// The range to request. The last slice ends with the content.
    pub(crate) fn byte_range(&self) -> ByteRange {
        ByteRange {
            start: self.number.saturating_mul(SLICE_BYTES),
            len: SLICE_BYTES,
        }
    }

    /// Distinguishes this fetch from others for the same key. A revalidation has the same hint for
    /// every slice, so it is sent once.
    pub(crate) fn variant_hint(&self, head: &RequestHead, base: Option<&ObjectMeta>) -> Vec<u8> {
        let index = base.or(self.index.as_deref());
        let names = index.map_or(&[] as &[String], |index| &index.vary_names);
        let mut guess = variant_key(head, names);
        guess.extend_from_slice(b"\0slice ");
        if base.is_none() {
            guess.extend_from_slice(&self.number.to_le_bytes());
        }
        guess
    }
}

/// The key of a slice of the content with that index under `key`. Purges by URL match it as well.
pub(crate) fn slice_key(key: &ObjectKey, sliced: SliceSet, number: u64) -> ObjectKey {
    let mut text = key.text.to_vec();
    text.extend_from_slice(format!("\0slice {:032x} {number}", sliced.id).as_bytes());
    ObjectKey::new(&text)
}

/// The key under which a content is marked as not available in slices.
pub(crate) fn unsliceable_key(key: &ObjectKey) -> ObjectKey {
    let mut text = key.text.to_vec();
    text.extend_from_slice(b"\0slices");
    ObjectKey::new(&text)
}

/// The strong validator of a response (RFC 9110 §8.8.3), which slices must share.
pub(crate) fn strong_etag(fields: &FieldBlock) -> Option<&[u8]> {
    let tag = fields.get("etag")?;
    (tag.first() == Some(&b'"')).then_some(tag)
}

/// The response's part and total length, if it is the requested part, limited to the content's end.
pub(crate) fn returned_part(response: &Response, asked: ByteRange) -> Option<(ByteRange, u64)> {
    if response.status != Status::PARTIAL_CONTENT {
        return None;
    }
    let (span, total) = parse_content_range(response.fields.get("content-range")?)?;
    let end = asked.start.saturating_add(asked.len).min(total);
    let is_it = span.start == asked.start && span.start.saturating_add(span.len) == end;
    let length = response.body.length();
    (is_it && length.is_none_or(|length| length == span.len)).then_some((span, total))
}

/// The slices of one content, from the store or the back end.
#[derive(Debug)]
pub(crate) struct SlicedContent {
    pub(crate) shared: Arc<SharedCache>,
    pub(crate) store: Arc<Store>,
    pub(crate) key: ObjectKey,
    pub(crate) client: ClientRequest,
    /// The index that ties the slices together.
    pub(crate) index: Arc<ObjectMeta>,
    pub(crate) slice_set: SliceSet,
}

/// Opened bytes of the content, from the reader's position to `end`.
pub(crate) struct OpenedPart {
    /// In memory, in a file, or a stream.
    source: Body,
    end: u64,
    /// The bytes were stored before this request.
    pub(crate) is_hit: bool,
}

impl SlicedContent {
    /// Opens the content at `at`, up to at most `end`, from any source.
    ///
    /// # Errors
    /// Returns the back end's fault if it is asked, and [`FaultKind::BackendProtocolError`] if it
    /// has another content by now.
    async fn open_at(&self, at: u64, end: u64) -> Result<OpenedPart, Fault> {
        match self.open_slice(at, end).await? {
            Some(opened) => Ok(opened),
            None => self.fetch_directly(at, end).await,
        }
    }

    /// Opens the slice that contains `at`, up to at most `end`, from the store or while it is
    /// fetched. `None` if the slice cannot be stored.
    ///
    /// # Errors
    /// Returns the back end's fault if it is asked.
    pub(crate) async fn open_slice(&self, at: u64, end: u64) -> Result<Option<OpenedPart>, Fault> {
        let number = at / SLICE_BYTES;
        let slice_end = (number + 1).saturating_mul(SLICE_BYTES).min(end);
        let len = slice_end.saturating_sub(at);
        let key = slice_key(&self.key, self.slice_set, number);
        let opened = |source, is_hit| OpenedPart {
            source,
            end: slice_end,
            is_hit,
        };
        let skip = at % SLICE_BYTES;
        // Twice: the object found may be removed before it is opened.
        for _ in 0..2 {
            let Some(hit) = self.store.find(&key, &mut |_| true) else {
                break;
            };
            let is_growing = matches!(hit.body, HitBody::Partial(_));
            if !is_growing && hit.meta.length < skip + len {
                break;
            }
            let body = StoredBody::open(&hit.body).await.ok();
            if let Some(source) = body.and_then(|body| body.into_part(skip, Some(len))) {
                return Ok(Some(opened(source, !is_growing)));
            }
        }
        let fetched = self.fetch_slice(number, &key, skip, len).await?;
        Ok(fetched.map(|source| opened(source, false)))
    }

    /// Fetches a slice to be stored, or joins another reader's fetch. `None` if it is not stored.
    async fn fetch_slice(
        &self,
        number: u64,
        key: &ObjectKey,
        skip: u64,
        len: u64,
    ) -> Result<Option<Body>, Fault> {
        let mut is_index = |meta: &ObjectMeta| meta.slice_set == Some(self.slice_set);
        if self.store.find(&self.key, &mut is_index).is_none() {
            // Without its index the slice would never be found.
            return Ok(None);
        }
        let slice = SliceFetch {
            number,
            index: Some(Arc::clone(&self.index)),
        };
        let hint = slice.variant_hint(&self.client.head, None);
        let (waiter, completer) = self.shared.fetches.join_or_begin(&self.key, hint, None);
        if let Some(completer) = completer {
            let fetch = Fetch {
                shared: Arc::clone(&self.shared),
                store: Arc::clone(&self.store),
                key: self.key.clone(),
                client: self.client.with_current_time(),
                stale_hit: None,
                slice: Some(slice),
            };
            fetch.start(completer);
        }
        let deadline = clock::now() + self.shared.rules.config.lock_timeout;
        let outcome = waiter.wait(deadline).await;
        Ok(match outcome {
            Some(FetchOutcome::Stored { partial, .. }) if partial.meta.key == key.text => {
                StoredBody::Partial(partial).into_part(skip, Some(len))
            }
            // Another client's failure is not this client's.
            Some(FetchOutcome::Failed(kind, cause))
                if waiter.is_leader || kind.side() != FaultSide::Client =>
            {
                return Err(Fault::new(kind, cause));
            }
            _ => None,
        })
    }

    /// Fetches the rest for this reader only, without storing it.
    async fn fetch_directly(&self, at: u64, end: u64) -> Result<OpenedPart, Fault> {
        let span = ByteRange {
            start: at,
            len: end.saturating_sub(at),
        };
        let client = self.client.with_current_time();
        let none = RevalidationFields::default();
        let request =
            backend_request::build_request(&self.shared.rules, &client, none, Some(span))?;
        let answered = self.shared.backend.handle(request).wait_for_reply().await?;
        let Reply::Response(response) = answered else {
            return Err(content_changed());
        };
        let is_same = strong_etag(&response.fields) == strong_etag(&self.index.fields);
        if returned_part(&response, span) != Some((span, self.slice_set.total_length)) || !is_same {
            return Err(content_changed());
        }
        let source = response.body;
        if !matches!(source, Body::Bytes(_) | Body::Stream(_) | Body::File(_)) {
            return Err(content_changed());
        }
        Ok(OpenedPart {
            source,
            end,
            is_hit: false,
        })
    }
}

fn content_changed() -> Fault {
    let cause = "the content changed at the back end";
    Fault::new(FaultKind::BackendProtocolError, cause)
}

/// Reads a part of a content slice by slice.
pub(crate) struct SliceReader {
    length: u64,
    /// Reads the next chunk once it is polled.
    next: PendingChunk,
}

type PendingChunk =
    Pin<Box<dyn Future<Output = (SliceCursor, Result<Option<Bytes>, Fault>)> + Send>>;

struct SliceCursor {
    content: Arc<SlicedContent>,
    position: u64,
    /// Position after the last wanted byte.
    end: u64,
    opened: Option<OpenedPart>,
    /// The store failed this reader: the rest comes from the back end.
    is_direct: bool,
}

impl SliceReader {
    /// Reads `span` of the content. `opened` is at the start of the span.
    pub(crate) fn new(content: Arc<SlicedContent>, span: ByteRange, opened: OpenedPart) -> Self {
        let cursor = SliceCursor {
            content,
            position: span.start,
            end: span.start + span.len,
            opened: Some(opened),
            is_direct: false,
        };
        Self {
            length: span.len,
            next: cursor.read_next(),
        }
    }
}

impl SliceCursor {
    fn read_next(mut self) -> PendingChunk {
        Box::pin(async move {
            let chunk = self.next_chunk().await;
            (self, chunk)
        })
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>, Fault> {
        while self.position < self.end {
            let opened = match &mut self.opened {
                Some(opened) => opened,
                None => {
                    let opened = match self.is_direct {
                        true => self.content.fetch_directly(self.position, self.end).await?,
                        false => self.content.open_at(self.position, self.end).await?,
                    };
                    self.opened.insert(opened)
                }
            };
            let mut bytes = match &mut opened.source {
                Body::Bytes(bytes) => std::mem::take(bytes),
                Body::Stream(stream) => {
                    let next = std::future::poll_fn(|cx| stream.poll_chunk(cx)).await;
                    next.transpose()?.unwrap_or_default()
                }
                Body::File(body) => {
                    let read = body.file.read(body.start, body.len.min(READ_BYTES)).await;
                    let bytes = read.unwrap_or_default();
                    if bytes.is_empty() {
                        // The disk failed, or the file was truncated.
                        (self.is_direct, self.opened) = (true, None);
                        continue;
                    }
                    body.start += bytes.len() as u64;
                    body.len = body.len.saturating_sub(bytes.len() as u64);
                    bytes
                }
                _ => Bytes::new(),
            };
            if bytes.is_empty() {
                let cause = "a slice of the content ended too early";
                return Err(Fault::new(FaultKind::BackendProtocolError, cause));
            }
            let left = opened.end.saturating_sub(self.position);
            bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            self.position += bytes.len() as u64;
            if self.position >= opened.end {
                self.opened = None;
            }
            return Ok(Some(bytes));
        }
        Ok(None)
    }
}

impl BodyStream for SliceReader {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        let (cursor, chunk) = ready!(self.next.as_mut().poll(cx));
        self.next = cursor.read_next();
        Poll::Ready(chunk.transpose())
    }

    fn length(&self) -> Option<u64> {
        Some(self.length)
    }
}
