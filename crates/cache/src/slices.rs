//! Contents that are stored in slices: what players of films and downloads that go on ask for by `Range`.
//!
//! A part that begins far into what is not stored is not worth fetching the whole for. The slices it lies in
//! are: each is [`SLICE_BYTES`] of the content, an object of its own, asked for by a range and stored whole or
//! not. An object without a body under the request's own key, the *index* of the content, says what belongs
//! together: its validator, its length, and a number that is in the keys of its slices (RFC 9111 §3.3, §3.4).
//! `handler/journey/sliced` decides when; `fetch/slice` stores; here a client's part is put together.
//!
//! What must stay true: the bytes of one answer are of one content, by a strong validator and its length, or
//! the connection is cut; freshness, variants and purges are the index's, so slices without one are never
//! found again; one slice is asked for once however many want it, and only as far as clients have read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use penstock_exchange::{
    Body, BodyStream, Fault, FaultKind, FaultSide, FileBody, HandlerProgress, Reply, Response,
};
use penstock_http::caching::{RevalidationFields, variant_key};
use penstock_http::{ByteRange, FieldBlock, RequestHead, Status, parse_content_range};
use penstock_runtime::clock;

use crate::backend_request::{self, ClientRequest};
use crate::coalesced_fetch::{FetchOutcome, JoinOutcome};
use crate::fetch::Fetch;
use crate::handler::SharedCache;
use crate::store::{HitBody, MemoryBody, ObjectKey, ObjectMeta, SliceSet, Store};

/// Bytes of a slice: what a back end sends in one go without a client noticing that it began earlier than asked,
/// and what goes to a disk in one write.
pub(crate) const SLICE_BYTES: u64 = 1 << 20;

/// Bytes of a file that are read at a time.
const READ_BYTES: u64 = 128 * 1024;

/// One slice to be fetched.
#[derive(Debug)]
pub(crate) struct SliceFetch {
    /// Which, counted from 0.
    pub(crate) number: u64,
    /// The index of the content that it must be of; none: of whatever is current.
    pub(crate) index: Option<Arc<ObjectMeta>>,
}

impl SliceFetch {
    /// What is asked for. The last slice ends with the content.
    pub(crate) fn span(&self) -> ByteRange {
        ByteRange {
            start: self.number.saturating_mul(SLICE_BYTES),
            len: SLICE_BYTES,
        }
    }

    /// What tells its flight from others for the same key. Whether what is stored is still current is asked once,
    /// whichever slice is wanted.
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

/// The key of a slice of the content with that index under `key`. Purges by URL know it as well.
pub(crate) fn slice_key(key: &ObjectKey, sliced: SliceSet, number: u64) -> ObjectKey {
    let mut text = key.text.to_vec();
    text.extend_from_slice(format!("\0slice {:032x} {number}", sliced.id).as_bytes());
    ObjectKey::new(&text)
}

/// Under which a content is remembered as not to be had in slices.
pub(crate) fn slicing_key(key: &ObjectKey) -> ObjectKey {
    let mut text = key.text.to_vec();
    text.extend_from_slice(b"\0slices");
    ObjectKey::new(&text)
}

/// The strong validator of a response (RFC 9110 §8.8.3): what slices are put together by.
pub(crate) fn strong_tag(fields: &FieldBlock) -> Option<&[u8]> {
    let tag = fields.get("etag")?;
    (tag.first() == Some(&b'"')).then_some(tag)
}

/// The part that a response has and the length of the whole, if it is a part, and the one that was asked for as
/// far as the content goes.
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

/// Where the slices of one content come from: the store, or the back end.
#[derive(Debug)]
pub(crate) struct SlicedContent {
    pub(crate) shared: Arc<SharedCache>,
    pub(crate) store: Arc<Store>,
    pub(crate) key: ObjectKey,
    pub(crate) client: ClientRequest,
    /// What belongs together.
    pub(crate) index: Arc<ObjectMeta>,
    pub(crate) slice_set: SliceSet,
}

/// Some bytes of the content, from where a reader is up to `end`.
pub(crate) struct OpenedPart {
    source: PartSource,
    end: u64,
    /// They were stored before.
    pub(crate) is_hit: bool,
}

enum PartSource {
    Bytes(Bytes),
    File(FileBody),
    Stream(Box<dyn BodyStream>),
}

impl SlicedContent {
    /// What is there at `at`, at most up to `end`, wherever it has to come from.
    ///
    /// # Errors
    /// The back end's, when it has to be asked; [`FaultKind::BackendBroken`] when it has another content by now.
    async fn open_at(&self, at: u64, end: u64) -> Result<OpenedPart, Fault> {
        match self.open_slice(at, end).await? {
            Some(opened) => Ok(opened),
            None => self.fetch_directly(at, end).await,
        }
    }

    /// What is there at `at` of the slice that this is in, at most up to `end`: as it is stored, or as it comes in to
    /// be stored. None if it is not to be had so.
    ///
    /// # Errors
    /// The back end's, when it has to be asked.
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
        // Twice: what is found may be gone when it is opened.
        for _ in 0..2 {
            let Some(hit) = self.store.find(&key, &mut |_| true) else {
                break;
            };
            let is_growing = matches!(hit.body, HitBody::Partial(_));
            if !is_growing && hit.meta.length < skip + len {
                break;
            }
            let found = match hit.body {
                HitBody::Memory(MemoryBody::Bytes(bytes)) => {
                    subslice(&bytes, skip, len).map(PartSource::Bytes)
                }
                HitBody::Memory(MemoryBody::Arena(body)) => Some(file_part(body, skip, len)),
                HitBody::Disk(object) => {
                    let body = object.open().await.ok();
                    body.map(|body| file_part(body, skip, len))
                }
                HitBody::Partial(growing) => {
                    let reader = growing.reader_from(skip, Some(len));
                    reader.map(|reader| PartSource::Stream(Box::new(reader)))
                }
            };
            if let Some(source) = found {
                return Ok(Some(opened(source, !is_growing)));
            }
        }
        let fetched = self.fetch_slice(number, &key, skip, len).await?;
        Ok(fetched.map(|source| opened(source, false)))
    }

    /// The slice as it comes in, for this reader or for another one that asked first. None if it is not stored.
    async fn fetch_slice(
        &self,
        number: u64,
        key: &ObjectKey,
        skip: u64,
        len: u64,
    ) -> Result<Option<PartSource>, Fault> {
        let is_index = |meta: &ObjectMeta| meta.slice_set == Some(self.slice_set);
        let index = self.store.find(&self.key, &mut |meta| is_index(meta));
        if index.is_none() {
            // Without its index nobody would find it.
            return Ok(None);
        }
        let slice = SliceFetch {
            number,
            index: Some(Arc::clone(&self.index)),
        };
        let flights = &self.shared.fetches;
        let guess = slice.variant_hint(&self.client.head, None);
        let (ticket, leads) = match flights.join(&self.key, guess, None) {
            JoinOutcome::Waiter(ticket) => (ticket, false),
            JoinOutcome::Leader(ticket, landing) => {
                let fetch = Fetch {
                    shared: Arc::clone(&self.shared),
                    store: Arc::clone(&self.store),
                    key: self.key.clone(),
                    client: self.client.with_current_time(),
                    stale_hit: None,
                    slice: Some(slice),
                };
                fetch.start(landing);
                (ticket, true)
            }
        };
        let outcome = match leads {
            true => Some(ticket.wait().await),
            false => {
                let deadline = clock::now() + self.shared.rules.lock_timeout;
                clock::timeout_at(deadline, ticket.wait()).await
            }
        };
        Ok(match outcome {
            Some(FetchOutcome::Stored {
                partial: growing, ..
            }) if growing.meta().key == key.text => {
                let reader = growing.reader_from(skip, Some(len));
                reader.map(|reader| PartSource::Stream(Box::new(reader) as _))
            }
            // What was wrong with another client's request is not wrong with this one.
            Some(FetchOutcome::Failed(kind, _)) if !leads && kind.side() == FaultSide::Client => {
                None
            }
            Some(FetchOutcome::Failed(kind, cause)) => return Err(Fault::new(kind, cause)),
            _ => None,
        })
    }

    /// All that is wanted, from the back end for this reader alone: its store does not take it.
    async fn fetch_directly(&self, at: u64, end: u64) -> Result<OpenedPart, Fault> {
        let span = ByteRange {
            start: at,
            len: end.saturating_sub(at),
        };
        let client = self.client.with_current_time();
        let none = RevalidationFields::default();
        let question =
            backend_request::build_request(&self.shared.rules, &client, none, Some(span))?;
        let answered = match self.shared.backend.handle(question) {
            HandlerProgress::Ready(answered) => answered?,
            HandlerProgress::Pending(work) => work.await?,
        };
        let Reply::Response(response) = answered else {
            return Err(content_changed());
        };
        let is_same = strong_tag(&response.fields) == strong_tag(&self.index.fields);
        if returned_part(&response, span) != Some((span, self.slice_set.total_length)) || !is_same {
            return Err(content_changed());
        }
        let source = match response.body {
            Body::Bytes(bytes) => PartSource::Bytes(bytes),
            Body::Stream(stream) => PartSource::Stream(stream),
            Body::File(file) => PartSource::File(file),
            Body::Empty | Body::Omitted(_) | Body::Takeover(_) | Body::Hold(_) => {
                return Err(content_changed());
            }
        };
        Ok(OpenedPart {
            source,
            end,
            is_hit: false,
        })
    }
}

fn content_changed() -> Fault {
    let cause = "the back end has another content than the one that is being sent";
    Fault::new(FaultKind::BackendProtocolError, cause)
}

fn subslice(bytes: &Bytes, skip: u64, len: u64) -> Option<Bytes> {
    let start = usize::try_from(skip).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    (end <= bytes.len()).then(|| bytes.slice(start..end))
}

fn file_part(body: FileBody, skip: u64, len: u64) -> PartSource {
    PartSource::File(FileBody {
        start: body.start + skip,
        len,
        file: body.file,
    })
}

type PendingOpen = Pin<Box<dyn Future<Output = Result<OpenedPart, Fault>> + Send>>;
type PendingSliceRead = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

/// A part of a content, slice by slice.
pub(crate) struct SliceReader {
    slices: Arc<SlicedContent>,
    /// The next byte.
    position: u64,
    /// The first that is not wanted.
    end: u64,
    length: u64,
    opened: Option<OpenedPart>,
    pending_open: Option<PendingOpen>,
    pending_read: Option<PendingSliceRead>,
    /// A store failed this reader: the rest comes from the back end.
    is_direct: bool,
}

impl SliceReader {
    /// The part `span` of the content, which begins with what was `opened` at its start.
    pub(crate) fn new(slices: Arc<SlicedContent>, span: ByteRange, opened: OpenedPart) -> Self {
        Self {
            slices,
            position: span.start,
            end: span.start + span.len,
            length: span.len,
            opened: Some(opened),
            pending_open: None,
            pending_read: None,
            is_direct: false,
        }
    }

    fn begin_open(&self) -> PendingOpen {
        let (slices, at, end) = (Arc::clone(&self.slices), self.position, self.end);
        match self.is_direct {
            true => Box::pin(async move { slices.fetch_directly(at, end).await }),
            false => Box::pin(async move { slices.open_at(at, end).await }),
        }
    }

    /// Bytes that came: no more than are wanted of this source.
    fn advance(&mut self, mut bytes: Bytes, end: u64) -> Bytes {
        let left = usize::try_from(end.saturating_sub(self.position)).unwrap_or(usize::MAX);
        bytes.truncate(left);
        self.position += bytes.len() as u64;
        if self.position >= end {
            self.opened = None;
        }
        bytes
    }
}

impl BodyStream for SliceReader {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            if let Some(reading) = &mut self.pending_read {
                let read = std::task::ready!(reading.as_mut().poll(cx));
                self.pending_read = None;
                if let (Some(bytes), Some(opened)) = (read, &mut self.opened) {
                    if let PartSource::File(file) = &mut opened.source {
                        file.start += bytes.len() as u64;
                        file.len = file.len.saturating_sub(bytes.len() as u64);
                    }
                    let end = opened.end;
                    return Poll::Ready(Some(Ok(self.advance(bytes, end))));
                }
                // Its disk failed, or somebody made the file shorter.
                self.is_direct = true;
                self.opened = None;
            }
            if self.position >= self.end {
                return Poll::Ready(None);
            }
            let Some(opened) = &mut self.opened else {
                if self.pending_open.is_none() {
                    self.pending_open = Some(self.begin_open());
                }
                let Some(opening) = &mut self.pending_open else {
                    continue;
                };
                let ready = std::task::ready!(opening.as_mut().poll(cx));
                self.pending_open = None;
                match ready {
                    Ok(opened) => self.opened = Some(opened),
                    Err(fault) => return Poll::Ready(Some(Err(fault))),
                }
                continue;
            };
            let end = opened.end;
            match &mut opened.source {
                PartSource::Bytes(bytes) => {
                    let bytes = std::mem::take(bytes);
                    if bytes.is_empty() {
                        return Poll::Ready(Some(Err(slice_too_short())));
                    }
                    return Poll::Ready(Some(Ok(self.advance(bytes, end))));
                }
                PartSource::Stream(stream) => {
                    let next = std::task::ready!(stream.poll_chunk(cx));
                    return Poll::Ready(Some(match next {
                        Some(Ok(bytes)) => Ok(self.advance(bytes, end)),
                        Some(Err(fault)) => Err(fault),
                        None => Err(slice_too_short()),
                    }));
                }
                PartSource::File(body) => {
                    let (file, start) = (Arc::clone(&body.file), body.start);
                    let len = body.len.min(READ_BYTES);
                    self.pending_read = Some(Box::pin(async move {
                        let read = file.read(start, len).await.ok();
                        read.filter(|bytes| !bytes.is_empty())
                    }));
                }
            }
        }
    }

    fn length(&self) -> Option<u64> {
        Some(self.length)
    }
}

fn slice_too_short() -> Fault {
    let cause = "a slice of the content ended too early";
    Fault::new(FaultKind::BackendProtocolError, cause)
}
