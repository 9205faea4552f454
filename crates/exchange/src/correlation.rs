//! What ties together the records of one request in several programs: its id, and its place in a
//! trace.
//!
//! `edge` makes them once a request, or keeps those of a trusted proxy. They go into the access
//! log, to error pages, and as `X-Request-Id` to applications and servers: `apps` and `proxy` write
//! the fields of [`Request::for_each_correlation_field`].
//!
//! # Invariants
//! - An id of a proxy is short and has no byte that a log, a field or a page would have to escape.
//! - A client's own field of these names never stands beside the one that is made here.
//! - No id costs a system call or an allocation, but for a thread's first one, and one that is kept.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use crate::field_policy::is_same_cgi_variable;
use crate::trace_context::{TRACEPARENT_FIELD, TRACESTATE_FIELD};
use crate::{Request, TraceContext};

/// The field that has the id of a request.
pub const REQUEST_ID_FIELD: &str = "X-Request-Id";

/// The longest id that is kept.
const MAX_GIVEN_BYTES: usize = 128;

/// What ties the records of one request together. Empty where nothing does, and then free.
#[derive(Debug, Clone, Default)]
pub struct Correlation {
    /// Its id.
    pub request_id: Option<RequestId>,
    /// Its place in a trace; `None` where tracing is off.
    pub trace: Option<Arc<TraceContext>>,
}

/// The id of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(IdSource);

#[derive(Debug, Clone, PartialEq, Eq)]
enum IdSource {
    /// A UUID of version 7: its first and last 64 bits, which align as a pointer does.
    Made([u64; 2]),
    /// From a trusted proxy.
    Given(Arc<str>),
}

/// Room for the text of an id that was made here.
pub type RequestIdBuffer = [u8; 36];

impl RequestId {
    /// A new id: a UUID of version 7 (RFC 9562 §5.7) for this wall-clock time, with 74 random bits.
    #[must_use]
    pub fn generate(now: Duration) -> Self {
        // 48 bits of milliseconds are enough for 8900 years.
        #[expect(clippy::cast_possible_truncation, reason = "masked to 48 bits")]
        let millis = now.as_millis() as u64 & ((1 << 48) - 1);
        let [high, low] = random_words();
        let first = (millis << 16) | (7 << 12) | (high & 0xfff);
        let last = (0b10 << 62) | (low >> 2);
        Self(IdSource::Made([first, last]))
    }

    /// The id that a proxy has given; `None` if it is empty, longer than 128 bytes, or has another
    /// byte than letters, digits and `-_.:/+=@~`.
    #[must_use]
    pub fn from_field(value: &[u8]) -> Option<Self> {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@~".contains(byte);
        if value.is_empty() || value.len() > MAX_GIVEN_BYTES || !value.iter().all(is_plain) {
            return None;
        }
        let text = std::str::from_utf8(value).ok()?;
        Some(Self(IdSource::Given(text.into())))
    }

    /// Its text, in `buffer` if it was made here.
    #[must_use]
    pub fn as_str<'b>(&'b self, buffer: &'b mut RequestIdBuffer) -> &'b str {
        let [first, last] = match &self.0 {
            IdSource::Given(text) => return text,
            IdSource::Made(halves) => halves,
        };
        let (first, last) = (hex_digits(*first), hex_digits(*last));
        *buffer = [b'-'; 36];
        buffer[..8].copy_from_slice(&first[..8]);
        buffer[9..13].copy_from_slice(&first[8..12]);
        buffer[14..18].copy_from_slice(&first[12..]);
        buffer[19..23].copy_from_slice(&last[..4]);
        buffer[24..].copy_from_slice(&last[4..]);
        std::str::from_utf8(buffer).unwrap_or_default()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str(&mut [0; 36]))
    }
}

impl Correlation {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.request_id.is_none() && self.trace.is_none()
    }

    /// Whether a field of this name, with hyphens or underscores, is written anew here.
    fn replaces_field(&self, name: &[u8]) -> bool {
        let is = |field: &str| is_same_cgi_variable(name, field);
        self.request_id.is_some() && is(REQUEST_ID_FIELD)
            || self.trace.is_some() && (is(TRACEPARENT_FIELD) || is(TRACESTATE_FIELD))
    }
}

impl Request {
    /// Passes each field that ties the request to its records elsewhere, but for those that a rule
    /// of its route sets.
    pub fn for_each_correlation_field(&self, mut push: impl FnMut(&'static str, &[u8])) {
        let correlation = self.client_state.correlation();
        if let Some(id) = &correlation.request_id
            && !self.trusted_headers.covers(REQUEST_ID_FIELD)
        {
            push(REQUEST_ID_FIELD, id.as_str(&mut [0; 36]).as_bytes());
        }
        if let Some(trace) = &correlation.trace
            && !self.trusted_headers.covers(TRACEPARENT_FIELD)
        {
            push(TRACEPARENT_FIELD, trace.to_parent().as_bytes());
            if let Some(state) = &trace.state {
                push(TRACESTATE_FIELD, state.as_bytes());
            }
        }
    }

    /// Whether the client's field of this name, with hyphens or underscores, gives way to one of
    /// [`Request::for_each_correlation_field`].
    #[must_use]
    pub fn replaces_correlation_field(&self, name: &[u8]) -> bool {
        is_correlation_field(name)
            && !self.trusted_headers.covers(name)
            && self.client_state.correlation().replaces_field(name)
    }
}

/// Whether a field could be one of [`Request::for_each_correlation_field`]. Asked of every field:
/// its length decides nearly always.
fn is_correlation_field(name: &[u8]) -> bool {
    [REQUEST_ID_FIELD, TRACEPARENT_FIELD, TRACESTATE_FIELD]
        .iter()
        .any(|field| is_same_cgi_variable(name, field))
}

/// 64 random bits, without a system call.
#[must_use]
pub fn random_word() -> u64 {
    random_words()[0]
}

/// A number as 16 hexadecimal digits. Each byte of two words is a digit, so that eight are made at
/// once.
fn hex_digits(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (half, out) in [number >> 32, number & 0xffff_ffff]
        .into_iter()
        .zip(digits.chunks_exact_mut(8))
    {
        // Two bytes apart, then one, then half a byte.
        let spread = (half | half << 16) & 0x0000_ffff_0000_ffff;
        let spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff;
        let nibbles = (spread | spread << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        // 1 for each digit above 9: adding 6 carries into its high half.
        let letters = (nibbles + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
        let text = nibbles + 0x3030_3030_3030_3030 + letters * u64::from(b'a' - b'0' - 10);
        out.copy_from_slice(&text.to_be_bytes());
    }
    digits
}

/// 128 random bits that differ at each call: a thread's counter under two secret keys, which its
/// first call gets from the kernel.
pub(crate) fn random_words() -> [u64; 2] {
    thread_local! {
        static KEYS: [RandomState; 2] = [RandomState::new(), RandomState::new()];
        static COUNTER: Cell<u64> = const { Cell::new(0) };
    }
    let count = COUNTER.get().wrapping_add(1);
    COUNTER.set(count);
    KEYS.with(|keys| [0, 1].map(|at| keys[at].hash_one(count)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [
            0,
            1,
            0x0123_4567_89ab_cdef,
            0xfedc_ba98_7654_3210,
            u64::MAX,
            0x9a9a_a9a9_0990_0aa0,
        ] {
            let digits = hex_digits(number);
            assert_eq!(
                std::str::from_utf8(&digits).unwrap(),
                format!("{number:016x}")
            );
        }
    }

    #[test]
    fn ids_are_uuids_in_the_order_of_time() {
        let at = |millis: u64| RequestId::generate(Duration::from_millis(millis)).to_string();
        let id = at(0x0123_4567_89ab);
        assert!(id.starts_with("01234567-89ab-7"), "{id}");
        assert!(
            matches!(id.as_bytes()[19], b'8' | b'9' | b'a' | b'b'),
            "{id}"
        );
        assert_eq!(id.len(), 36);
        assert!(at(1) < at(2));
        let many = move || (0..1000).map(|_| at(7)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(many)).collect();
        let of_threads = threads.into_iter().flat_map(|it| it.join().unwrap());
        let all: Vec<String> = of_threads.chain(many()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }

    #[test]
    fn only_short_and_plain_ids_of_proxies_are_kept() {
        let longest = "a".repeat(MAX_GIVEN_BYTES);
        for good in ["1", "7b2d-A_b.c:d/e+f=@~", &longest] {
            let id = RequestId::from_field(good.as_bytes()).unwrap();
            assert_eq!(id.to_string(), good);
        }
        let too_long = "a".repeat(MAX_GIVEN_BYTES + 1);
        for bad in [
            "", "a b", "a\"", "a\\", "a\n", "a,b", "<b>", "\u{e9}", &too_long,
        ] {
            assert_eq!(RequestId::from_field(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn a_clients_field_gives_way_in_every_spelling() {
        let none = Correlation::default();
        let made = Correlation {
            request_id: Some(RequestId::generate(Duration::ZERO)),
            trace: None,
        };
        for name in ["X-Request-Id", "x-request-id", "X_Request-ID"] {
            assert!(made.replaces_field(name.as_bytes()), "{name}");
            assert!(!none.replaces_field(name.as_bytes()), "{name}");
        }
        let traced = Correlation {
            request_id: None,
            trace: Some(Arc::new(TraceContext::start(true))),
        };
        for name in ["Traceparent", "tracestate"] {
            assert!(traced.replaces_field(name.as_bytes()), "{name}");
            assert!(!made.replaces_field(name.as_bytes()), "{name}");
        }
        assert!(!made.replaces_field(b"X-Request-Start"));
    }
}
