//! One message in its place: its number, its id, and the bytes that streams get of it.
//!
//! Made under its channel's lock, then shared by the history, by every shard and by what waits for slow
//! subscribers. What must stay true: each form is encoded at most once, and none is empty, since an empty
//! chunk would end a chunked body (RFC 9112 §7.1).

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use penstock_exchange::HeldFraming;
use penstock_http::{h1, sse};

use crate::route::GAP;
use crate::{Content, HeldResponse, Publication, ResponsePart, SocketPart, StreamForm, StreamPart};

/// A message that has its place in its channel.
#[derive(Debug)]
pub(crate) struct Message {
    /// Larger than that of every message which came before it, in all channels.
    pub(crate) order: u64,
    pub(crate) id: Arc<str>,
    pub(crate) publication: Publication,
    /// When it came.
    pub(crate) at: Instant,
    /// What it counts for where bytes are bounded.
    pub(crate) cost: usize,
    forms: [OnceLock<Bytes>; FORMS],
    /// What all long polls get that have no filters.
    response: OnceLock<Arc<HeldResponse>>,
}

/// What held streams do about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concern {
    /// All get the same bytes.
    Same,
    /// Each gets bytes of its own: the content has filters.
    Each,
    /// Those of events get the same bytes, whatever their filters; all others end.
    Gap,
    /// They end.
    End,
    /// None of their business.
    None,
}

/// A stream's form and framing as one number below [`FORMS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape(u8);

/// Two forms in two framings.
pub(crate) const FORMS: usize = 4;

impl Shape {
    /// Events in chunks.
    pub(crate) const CHUNKED: Self = Self(2);

    pub(crate) fn new(form: StreamForm, framing: HeldFraming) -> Self {
        let bytes = u8::from(form == StreamForm::Bytes);
        let chunked = u8::from(framing == HeldFraming::Chunked);
        Self(bytes | chunked << 1)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn form(self) -> StreamForm {
        if self.0 & 1 == 0 {
            StreamForm::Events
        } else {
            StreamForm::Bytes
        }
    }

    pub(crate) fn is_chunked(self) -> bool {
        self.0 & 2 != 0
    }

    /// `payload` as this shape's streams get it.
    pub(crate) fn frame(self, payload: Bytes) -> Bytes {
        if !self.is_chunked() || payload.is_empty() {
            return payload;
        }
        let mut out = Vec::with_capacity(payload.len() + 12);
        h1::encode_chunk_head(payload.len(), &mut out);
        out.extend_from_slice(&payload);
        out.extend_from_slice(b"\r\n");
        out.into()
    }
}

impl Message {
    pub(crate) fn new(order: u64, id: Arc<str>, publication: Publication, at: Instant) -> Self {
        Self {
            cost: bytes_of(&publication) + id.len() + OWN_BYTES,
            order,
            id,
            publication,
            at,
            forms: Default::default(),
            response: OnceLock::new(),
        }
    }

    /// The response of this message, shared by all that get it as it is.
    pub(crate) fn response(&self, response: &HeldResponse) -> Arc<HeldResponse> {
        let shared = self.response.get_or_init(|| Arc::new(response.clone()));
        shared.clone()
    }

    /// What held streams do about it.
    pub(crate) fn concern(&self) -> Concern {
        match &self.publication.stream {
            Some(StreamPart::Send(content)) if content.filters.is_empty() => Concern::Same,
            Some(StreamPart::Send(_)) => Concern::Each,
            Some(StreamPart::Gap) => Concern::Gap,
            Some(StreamPart::Close) => Concern::End,
            Some(StreamPart::Hint) => Concern::None,
            None if self.publication.event.is_some() => Concern::Same,
            None => Concern::None,
        }
    }

    /// The bytes for streams of this shape, framed; empty is nothing to send.
    pub(crate) fn framed(&self, shape: Shape) -> &Bytes {
        let form = &self.forms[shape.index()];
        form.get_or_init(|| shape.frame(self.payload(shape.form())))
    }

    /// The bytes for streams of this form, without framing.
    pub(crate) fn payload(&self, form: StreamForm) -> Bytes {
        match (&self.publication.stream, &self.publication.event) {
            (Some(StreamPart::Send(content)), _) => content.bytes.clone(),
            (None, Some(event)) => match form {
                StreamForm::Events => {
                    let mut out = Vec::with_capacity(event.data.len() + self.id.len() + 32);
                    if let Some(milliseconds) = event.retry {
                        sse::encode_retry(&mut out, milliseconds);
                    }
                    sse::encode_event(
                        &mut out,
                        event.event.as_deref(),
                        Some(&self.id),
                        &event.data,
                    );
                    out.into()
                }
                StreamForm::Bytes => [event.data.as_bytes(), b"\n"].concat().into(),
            },
            (Some(StreamPart::Gap), _) if form == StreamForm::Events => GAP,
            (Some(StreamPart::Hint | StreamPart::Gap | StreamPart::Close) | None, _) => {
                Bytes::new()
            }
        }
    }
}

/// The bytes of a publication in all its forms.
pub(crate) fn bytes_of(publication: &Publication) -> usize {
    let content = |content: &Content| content.bytes.len();
    let stream = match &publication.stream {
        Some(StreamPart::Send(sent)) => content(sent),
        Some(StreamPart::Hint | StreamPart::Gap | StreamPart::Close) | None => 0,
    };
    let response = match &publication.response {
        Some(ResponsePart::Send(response)) => {
            let fields = response.fields.iter();
            let fields = fields.map(|(name, value)| name.len() + value.len() + 4);
            content(&response.body) + fields.sum::<usize>()
        }
        Some(ResponsePart::Hint | ResponsePart::Close) | None => 0,
    };
    let websocket = match &publication.websocket {
        Some(SocketPart::Text(sent) | SocketPart::Binary(sent)) => content(sent),
        Some(SocketPart::Ping(bytes) | SocketPart::Pong(bytes)) => bytes.len(),
        Some(SocketPart::Close { reason, .. }) => reason.len(),
        None => 0,
    };
    let event = publication.event.as_ref().map_or(0, |event| {
        event.data.len() + event.event.as_ref().map_or(0, |name| name.len())
    });
    let meta = publication.meta.iter();
    let meta = meta.map(|(name, value)| name.len() + value.len());
    stream + response + websocket + event + meta.sum::<usize>()
}

/// What a message costs beside its content: itself, its id's and its name's allocations.
const OWN_BYTES: usize = size_of::<Message>() + 64;

#[cfg(test)]
mod tests;
