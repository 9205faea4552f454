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
    Body, BodyStream, Fault, FaultKind, FileBody, Handling, Reply, Response, Side,
};
use penstock_http::caching::{RevalidationFields, variant_key};
use penstock_http::{ByteRange, FieldBlock, RequestHead, Status, parse_content_range};
use penstock_runtime::clock;

use crate::ask::{self, Client};
use crate::fetch::Fetch;
use crate::flight::{Joined, Outcome};
use crate::handler::Shared;
use crate::store::{Held, HitBody, Key, Meta, Sliced, Store};

/// Bytes of a slice: what a back end sends in one go without a client noticing that it began earlier than asked,
/// and what goes to a disk in one write.
pub(crate) const SLICE_BYTES: u64 = 1 << 20;

/// Bytes of a file that are read at a time.
const READ_BYTES: u64 = 128 * 1024;

/// One slice to be fetched.
#[derive(Debug)]
pub(crate) struct Slice {
    /// Which, counted from 0.
    pub(crate) number: u64,
    /// The index of the content that it must be of; none: of whatever is current.
    pub(crate) of: Option<Arc<Meta>>,
}

impl Slice {
    /// What is asked for. The last slice ends with the content.
    pub(crate) fn span(&self) -> ByteRange {
        ByteRange {
            start: self.number.saturating_mul(SLICE_BYTES),
            len: SLICE_BYTES,
        }
    }

    /// What tells its flight from others for the same key. Whether what is stored is still current is asked once,
    /// whichever slice is wanted.
    pub(crate) fn guess(&self, head: &RequestHead, base: Option<&Meta>) -> Vec<u8> {
        let index = base.or(self.of.as_deref());
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
pub(crate) fn key_of(key: &Key, sliced: Sliced, number: u64) -> Key {
    let mut text = key.text.to_vec();
    text.extend_from_slice(format!("\0slice {:032x} {number}", sliced.id).as_bytes());
    Key::new(&text)
}

/// Under which a content is remembered as not to be had in slices.
pub(crate) fn mark_of(key: &Key) -> Key {
    let mut text = key.text.to_vec();
    text.extend_from_slice(b"\0slices");
    Key::new(&text)
}

/// The strong validator of a response (RFC 9110 §8.8.3): what slices are put together by.
pub(crate) fn strong_tag(fields: &FieldBlock) -> Option<&[u8]> {
    let tag = fields.get("etag")?;
    (tag.first() == Some(&b'"')).then_some(tag)
}

/// The part that a response has and the length of the whole, if it is a part, and the one that was asked for as
/// far as the content goes.
pub(crate) fn told(response: &Response, asked: ByteRange) -> Option<(ByteRange, u64)> {
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
pub(crate) struct Slices {
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Arc<Store>,
    pub(crate) key: Key,
    pub(crate) client: Client,
    /// What belongs together.
    pub(crate) index: Arc<Meta>,
    pub(crate) sliced: Sliced,
}

/// Some bytes of the content, from where a reader is up to `end`.
pub(crate) struct Opened {
    source: Source,
    end: u64,
    /// They were stored before.
    pub(crate) is_hit: bool,
}

enum Source {
    Bytes(Bytes),
    File(FileBody),
    Stream(Box<dyn BodyStream>),
}

impl Slices {
    /// What is there at `at`, at most up to `end`, wherever it has to come from.
    ///
    /// # Errors
    /// The back end's, when it has to be asked; [`FaultKind::BackendBroken`] when it has another content by now.
    async fn open(&self, at: u64, end: u64) -> Result<Opened, Fault> {
        match self.open_slice(at, end).await? {
            Some(opened) => Ok(opened),
            None => self.straight(at, end).await,
        }
    }

    /// What is there at `at` of the slice that this is in, at most up to `end`: as it is stored, or as it comes in to
    /// be stored. None if it is not to be had so.
    ///
    /// # Errors
    /// The back end's, when it has to be asked.
    pub(crate) async fn open_slice(&self, at: u64, end: u64) -> Result<Option<Opened>, Fault> {
        let number = at / SLICE_BYTES;
        let slice_end = (number + 1).saturating_mul(SLICE_BYTES).min(end);
        let len = slice_end.saturating_sub(at);
        let key = key_of(&self.key, self.sliced, number);
        let opened = |source, is_hit| Opened {
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
            let is_growing = matches!(hit.body, HitBody::Growing(_));
            if !is_growing && hit.meta.length < skip + len {
                break;
            }
            let found = match hit.body {
                HitBody::Memory(Held::Bytes(bytes)) => {
                    slice_of(&bytes, skip, len).map(Source::Bytes)
                }
                HitBody::Memory(Held::Pages(body)) => Some(part_of(body, skip, len)),
                HitBody::Disk(object) => {
                    let body = object.open().await.ok();
                    body.map(|body| part_of(body, skip, len))
                }
                HitBody::Growing(growing) => {
                    let reader = growing.reader_of(skip, Some(len));
                    reader.map(|reader| Source::Stream(Box::new(reader)))
                }
            };
            if let Some(source) = found {
                return Ok(Some(opened(source, !is_growing)));
            }
        }
        let fetched = self.fetched(number, &key, skip, len).await?;
        Ok(fetched.map(|source| opened(source, false)))
    }

    /// The slice as it comes in, for this reader or for another one that asked first. None if it is not stored.
    async fn fetched(
        &self,
        number: u64,
        key: &Key,
        skip: u64,
        len: u64,
    ) -> Result<Option<Source>, Fault> {
        let is_index = |meta: &Meta| meta.sliced == Some(self.sliced);
        let index = self.store.find(&self.key, &mut |meta| is_index(meta));
        if index.is_none() {
            // Without its index nobody would find it.
            return Ok(None);
        }
        let slice = Slice {
            number,
            of: Some(Arc::clone(&self.index)),
        };
        let flights = &self.shared.flights;
        let guess = slice.guess(&self.client.head, None);
        let (ticket, leads) = match flights.join(&self.key, guess, None) {
            Joined::Waits(ticket) => (ticket, false),
            Joined::Leads(ticket, landing) => {
                let fetch = Fetch {
                    shared: Arc::clone(&self.shared),
                    store: Arc::clone(&self.store),
                    key: self.key.clone(),
                    client: self.client.anew(),
                    base: None,
                    slice: Some(slice),
                };
                fetch.start(landing);
                (ticket, true)
            }
        };
        let outcome = match leads {
            true => Some(ticket.outcome().await),
            false => {
                let deadline = clock::now() + self.shared.rules.lock_timeout;
                clock::timeout_at(deadline, ticket.outcome()).await
            }
        };
        Ok(match outcome {
            Some(Outcome::Stored { growing, .. }) if growing.meta().key == key.text => {
                let reader = growing.reader_of(skip, Some(len));
                reader.map(|reader| Source::Stream(Box::new(reader) as _))
            }
            // What was wrong with another client's request is not wrong with this one.
            Some(Outcome::Failed(kind, _)) if !leads && kind.side() == Side::Client => None,
            Some(Outcome::Failed(kind, cause)) => return Err(Fault::new(kind, cause)),
            _ => None,
        })
    }

    /// All that is wanted, from the back end for this reader alone: its store does not take it.
    async fn straight(&self, at: u64, end: u64) -> Result<Opened, Fault> {
        let span = ByteRange {
            start: at,
            len: end.saturating_sub(at),
        };
        let client = self.client.anew();
        let none = RevalidationFields::default();
        let question = ask::question(&self.shared.rules, &client, none, Some(span))?;
        let answered = match self.shared.inner.handle(question) {
            Handling::Now(answered) => answered?,
            Handling::Later(work) => work.await?,
        };
        let Reply::Response(response) = answered else {
            return Err(changed());
        };
        let is_same = strong_tag(&response.fields) == strong_tag(&self.index.fields);
        if told(&response, span) != Some((span, self.sliced.total)) || !is_same {
            return Err(changed());
        }
        let source = match response.body {
            Body::Bytes(bytes) => Source::Bytes(bytes),
            Body::Stream(stream) => Source::Stream(stream),
            Body::File(file) => Source::File(file),
            Body::Empty | Body::Omitted(_) | Body::Takeover(_) | Body::Hold(_) => {
                return Err(changed());
            }
        };
        Ok(Opened {
            source,
            end,
            is_hit: false,
        })
    }
}

fn changed() -> Fault {
    let cause = "the back end has another content than the one that is being sent";
    Fault::new(FaultKind::BackendBroken, cause)
}

fn slice_of(bytes: &Bytes, skip: u64, len: u64) -> Option<Bytes> {
    let start = usize::try_from(skip).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    (end <= bytes.len()).then(|| bytes.slice(start..end))
}

fn part_of(body: FileBody, skip: u64, len: u64) -> Source {
    Source::File(FileBody {
        start: body.start + skip,
        len,
        file: body.file,
    })
}

type Opening = Pin<Box<dyn Future<Output = Result<Opened, Fault>> + Send>>;
type Reading = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

/// A part of a content, slice by slice.
pub(crate) struct SliceReader {
    slices: Arc<Slices>,
    /// The next byte.
    at: u64,
    /// The first that is not wanted.
    end: u64,
    length: u64,
    opened: Option<Opened>,
    opening: Option<Opening>,
    reading: Option<Reading>,
    /// A store failed this reader: the rest comes from the back end.
    is_straight: bool,
}

impl SliceReader {
    /// The part `span` of the content, which begins with what was `opened` at its start.
    pub(crate) fn new(slices: Arc<Slices>, span: ByteRange, opened: Opened) -> Self {
        Self {
            slices,
            at: span.start,
            end: span.start + span.len,
            length: span.len,
            opened: Some(opened),
            opening: None,
            reading: None,
            is_straight: false,
        }
    }

    fn open(&self) -> Opening {
        let (slices, at, end) = (Arc::clone(&self.slices), self.at, self.end);
        match self.is_straight {
            true => Box::pin(async move { slices.straight(at, end).await }),
            false => Box::pin(async move { slices.open(at, end).await }),
        }
    }

    /// Bytes that came: no more than are wanted of this source.
    fn took(&mut self, mut bytes: Bytes, end: u64) -> Bytes {
        let left = usize::try_from(end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        bytes.truncate(left);
        self.at += bytes.len() as u64;
        if self.at >= end {
            self.opened = None;
        }
        bytes
    }
}

impl BodyStream for SliceReader {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            if let Some(reading) = &mut self.reading {
                let read = std::task::ready!(reading.as_mut().poll(cx));
                self.reading = None;
                if let (Some(bytes), Some(opened)) = (read, &mut self.opened) {
                    if let Source::File(file) = &mut opened.source {
                        file.start += bytes.len() as u64;
                        file.len = file.len.saturating_sub(bytes.len() as u64);
                    }
                    let end = opened.end;
                    return Poll::Ready(Some(Ok(self.took(bytes, end))));
                }
                // Its disk failed, or somebody made the file shorter.
                self.is_straight = true;
                self.opened = None;
            }
            if self.at >= self.end {
                return Poll::Ready(None);
            }
            let Some(opened) = &mut self.opened else {
                if self.opening.is_none() {
                    self.opening = Some(self.open());
                }
                let Some(opening) = &mut self.opening else {
                    continue;
                };
                let ready = std::task::ready!(opening.as_mut().poll(cx));
                self.opening = None;
                match ready {
                    Ok(opened) => self.opened = Some(opened),
                    Err(fault) => return Poll::Ready(Some(Err(fault))),
                }
                continue;
            };
            let end = opened.end;
            match &mut opened.source {
                Source::Bytes(bytes) => {
                    let bytes = std::mem::take(bytes);
                    if bytes.is_empty() {
                        return Poll::Ready(Some(Err(short())));
                    }
                    return Poll::Ready(Some(Ok(self.took(bytes, end))));
                }
                Source::Stream(stream) => {
                    let next = std::task::ready!(stream.poll_chunk(cx));
                    return Poll::Ready(Some(match next {
                        Some(Ok(bytes)) => Ok(self.took(bytes, end)),
                        Some(Err(fault)) => Err(fault),
                        None => Err(short()),
                    }));
                }
                Source::File(body) => {
                    let (file, start) = (Arc::clone(&body.file), body.start);
                    let len = body.len.min(READ_BYTES);
                    self.reading = Some(Box::pin(async move {
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

fn short() -> Fault {
    let cause = "a slice of the content ended too early";
    Fault::new(FaultKind::BackendBroken, cause)
}
