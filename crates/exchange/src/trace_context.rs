//! The place of a request in a trace, by the fields of W3C Trace Context.
//!
//! `edge` makes it once a request where tracing is on: it continues a trace that it trusts, or
//! starts one. `apps` and `proxy` pass it on, with this server's span as the parent.
//!
//! # Invariants
//! - Whatever breaks the grammar of `traceparent` starts a new trace; nothing of it is passed on.
//! - `tracestate` is passed on only with the `traceparent` that it came with.

use std::fmt;

use penstock_http::RequestHead;

use crate::correlation::random_words;

/// The field with the ids and flags.
pub const TRACEPARENT_FIELD: &str = "traceparent";
/// The field with what tracing systems add.
pub const TRACESTATE_FIELD: &str = "tracestate";

/// Bytes of `tracestate` that are passed on: what every system must (W3C Trace Context §3.3.1.5).
const MAX_STATE_BYTES: usize = 512;

/// A request's place in a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span of this server.
    pub span_id: [u8; 8],
    /// The span that has caused it, where a client has sent one.
    pub parent_id: Option<[u8; 8]>,
    /// Whether its spans are recorded.
    pub is_sampled: bool,
    /// What tracing systems have added.
    pub state: Option<Box<str>>,
}

impl TraceContext {
    /// The beginning of a new trace.
    #[must_use]
    pub fn start(is_sampled: bool) -> Self {
        let [high, low] = random_words();
        let mut trace_id = [0; 16];
        trace_id[..8].copy_from_slice(&high.to_be_bytes());
        // An id of zeros means none (W3C Trace Context §3.2.2.3).
        trace_id[8..].copy_from_slice(&(low | 1).to_be_bytes());
        Self {
            trace_id,
            span_id: new_span_id(),
            parent_id: None,
            is_sampled,
            state: None,
        }
    }

    /// The trace that a request continues, with a new span; `None` if it has no valid one.
    #[must_use]
    pub fn continue_from(head: &RequestHead) -> Option<Self> {
        let mut parents = head.field_values(TRACEPARENT_FIELD);
        let parent = parents.next()?;
        if parents.next().is_some() {
            return None;
        }
        let (trace_id, parent_id, is_sampled) = parse_parent(parent)?;
        Some(Self {
            trace_id,
            span_id: new_span_id(),
            parent_id: Some(parent_id),
            is_sampled,
            state: read_state(head),
        })
    }

    /// The value of `traceparent` for the servers behind: 55 bytes.
    #[must_use]
    pub fn to_parent(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace, span) = (HexId(&self.trace_id), HexId(&self.span_id));
        write!(f, "00-{trace}-{span}-{:02x}", u8::from(self.is_sampled))
    }
}

/// An id in hex.
#[derive(Debug, Clone, Copy)]
pub struct HexId<'a>(pub &'a [u8]);

impl fmt::Display for HexId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn new_span_id() -> [u8; 8] {
    (random_words()[0] | 1).to_be_bytes()
}

/// The ids and the sampled flag of `traceparent` (W3C Trace Context §3.2). Later versions begin
/// as this one does.
fn parse_parent(value: &[u8]) -> Option<([u8; 16], [u8; 8], bool)> {
    let (first, rest) = value.split_at_checked(55)?;
    let [version] = parse_hex(&first[..2])?;
    let is_whole = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.first().is_none_or(|&byte| byte == b'-'),
    };
    let has_dashes = [2, 35, 52].iter().all(|&at| first[at] == b'-');
    let trace_id: [u8; 16] = parse_hex(&first[3..35])?;
    let parent_id: [u8; 8] = parse_hex(&first[36..52])?;
    let [flags] = parse_hex(&first[53..55])?;
    let is_valid = is_whole && has_dashes && trace_id != [0; 16] && parent_id != [0; 8];
    is_valid.then_some((trace_id, parent_id, flags & 1 == 1))
}

/// Bytes of small hex digits.
fn parse_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

/// The lines of `tracestate` as one; `None` if there is none, or it is too long or no plain text.
fn read_state(head: &RequestHead) -> Option<Box<str>> {
    let lines: Vec<&[u8]> = head.field_values(TRACESTATE_FIELD).collect();
    let state = lines.join(&b","[..]);
    let is_plain = state.iter().all(|byte| matches!(byte, 0x20..=0x7e));
    let is_passed = !state.is_empty() && state.len() <= MAX_STATE_BYTES && is_plain;
    let text = String::from_utf8(state).ok()?;
    is_passed.then(|| text.into_boxed_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &str) -> RequestHead {
        let raw = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let limits = penstock_http::HeadLimits::default();
        match penstock_http::parse_head(raw.as_bytes(), &limits).unwrap() {
            penstock_http::ParseProgress::Complete((head, _)) => head,
            penstock_http::ParseProgress::Partial => panic!("the head is whole"),
        }
    }

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_valid_trace_goes_on_with_a_new_span() {
        let fields = format!(
            "Traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\ntracestate: a=1\r\ntracestate: b=2\r\n"
        );
        let context = TraceContext::continue_from(&head(&fields)).unwrap();
        assert_eq!(HexId(&context.trace_id).to_string(), TRACE);
        let parent = context.parent_id.unwrap();
        assert_eq!(HexId(&parent).to_string(), "b7ad6b7169203331");
        assert!(context.is_sampled && context.span_id != parent);
        assert_eq!(context.state.as_deref(), Some("a=1,b=2"));
        let sent = context.to_parent();
        let again = head(&format!("traceparent: {sent}\r\n"));
        let behind = TraceContext::continue_from(&again).unwrap();
        assert_eq!(
            (behind.trace_id, behind.parent_id),
            (context.trace_id, Some(context.span_id))
        );
        assert_eq!(behind.state, None);
        // A later version may have more behind it; other flags mean nothing here.
        for (fields, is_sampled) in [
            (
                format!("traceparent: cc-{TRACE}-b7ad6b7169203331-03-more\r\n"),
                true,
            ),
            (
                format!("traceparent: 00-{TRACE}-b7ad6b7169203331-02\r\n"),
                false,
            ),
        ] {
            let context = TraceContext::continue_from(&head(&fields)).unwrap();
            assert_eq!(context.is_sampled, is_sampled, "{fields}");
        }
    }

    #[test]
    fn what_breaks_the_grammar_is_no_trace() {
        let upper = TRACE.to_uppercase();
        let zeros = "0".repeat(32);
        for value in [
            String::new(),
            format!("00-{TRACE}-b7ad6b7169203331"),
            format!("00-{TRACE}-b7ad6b7169203331-01-more"),
            format!("00-{TRACE}-b7ad6b7169203331-1"),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            format!("0-0{TRACE}-b7ad6b7169203331-01"),
            format!("cc-{TRACE}-b7ad6b7169203331-01more"),
            format!("00-{upper}-b7ad6b7169203331-01"),
            format!("00-{zeros}-b7ad6b7169203331-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}-b7ad6b716920333x-01"),
            format!("00_{TRACE}-b7ad6b7169203331-01"),
            format!(
                "00-{TRACE}-b7ad6b7169203331-01\r\ntraceparent: 00-{TRACE}-b7ad6b7169203331-01"
            ),
        ] {
            let head = head(&format!("traceparent: {value}\r\n"));
            assert_eq!(TraceContext::continue_from(&head), None, "{value:?}");
        }
        assert_eq!(
            TraceContext::continue_from(&head("tracestate: a=1\r\n")),
            None
        );
        let parent = format!("traceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n");
        for state in ["a".repeat(513), "\u{e9}=1".to_owned()] {
            let head = head(&format!("{parent}tracestate: {state}\r\n"));
            assert_eq!(TraceContext::continue_from(&head).unwrap().state, None);
        }
        let (one, other) = (TraceContext::start(true), TraceContext::start(false));
        assert_ne!(one.trace_id, other.trace_id);
        assert!(one.to_parent().ends_with("-01") && other.to_parent().ends_with("-00"));
    }
}
