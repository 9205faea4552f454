//! `Cache-Control` in requests and responses (RFC 9111 §5.2), and `Pragma` (§5.4).
//!
//! Reads the field lines in one pass and keeps the directives that a shared cache follows. Unknown
//! directives are ignored (§5.2.3). Used by `storage` and `reuse`.
//!
//! # Invariants
//!
//! - An argument that is not a number reads as zero, which is stale.
//! - The first of several equal directives wins (§4.2.1).
//! - A directive with an unreadable qualification counts as unqualified.

use std::{borrow::Cow, time::Duration};

use crate::{
    RequestHead,
    grammar::{is_token, list_elements, parse_u64, trim_blanks},
};

/// The `Cache-Control` of a request (§5.2.1). The default has no directives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    /// `no-cache`: only responses validated for this request.
    pub no_cache: bool,
    /// `no-store`: store nothing of this exchange.
    pub no_store: bool,
    /// `only-if-cached`: never ask the back end.
    pub only_if_cached: bool,
    /// `no-transform`: the content unchanged from the origin.
    pub no_transform: bool,
    /// `max-age`: nothing older.
    pub max_age: Option<Duration>,
    /// `max-stale`: stale by no more than this; `Duration::MAX` without an argument.
    pub max_stale: Option<Duration>,
    /// `min-fresh`: fresh for this much longer.
    pub min_fresh: Option<Duration>,
    /// `stale-if-error`: stale by no more than this when the back end fails (RFC 5861 §4).
    pub stale_if_error: Option<Duration>,
}

impl RequestDirectives {
    /// Reads the directives of a request; `Pragma: no-cache` counts without any `Cache-Control`.
    #[must_use]
    pub fn from_request(request: &RequestHead) -> Self {
        let mut found = Self::default();
        let mut has_field = false;
        for value in request.field_values("cache-control") {
            has_field = true;
            for directive in (Directives { rest: value }) {
                found.add(&directive);
            }
        }
        if !has_field {
            found.no_cache = request
                .field_values("pragma")
                .flat_map(list_elements)
                .any(|pragma| pragma.eq_ignore_ascii_case(b"no-cache"));
        }
        found
    }

    fn add(&mut self, directive: &Directive<'_>) {
        let first = |slot: &mut Option<Duration>| {
            slot.get_or_insert(Duration::from_secs(directive.delta_seconds()));
        };
        match directive.name.to_ascii_lowercase().as_slice() {
            b"no-cache" => self.no_cache = true,
            b"no-store" => self.no_store = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"no-transform" => self.no_transform = true,
            b"max-age" => first(&mut self.max_age),
            b"min-fresh" => first(&mut self.min_fresh),
            b"stale-if-error" => first(&mut self.stale_if_error),
            b"max-stale" if matches!(directive.argument, DirectiveArgument::None) => {
                self.max_stale.get_or_insert(Duration::MAX);
            }
            b"max-stale" => first(&mut self.max_stale),
            _ => {}
        }
    }
}

/// The cache directives of a response, from `Cache-Control` or a field that overrides it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResponseDirectives {
    pub(super) no_store: bool,
    /// Without field names.
    pub(super) no_cache: bool,
    /// Without field names.
    pub(super) private: bool,
    pub(super) public: bool,
    pub(super) must_revalidate: bool,
    pub(super) proxy_revalidate: bool,
    pub(super) must_understand: bool,
    pub(super) no_transform: bool,
    /// In seconds, like the following fields.
    pub(super) max_age: Option<u64>,
    pub(super) s_maxage: Option<u64>,
    pub(super) stale_while_revalidate: Option<u64>,
    pub(super) stale_if_error: Option<u64>,
    /// Fields named by `no-cache="…"` and `private="…"`, which a shared cache does not store.
    pub(super) withheld_fields: Vec<String>,
}

impl ResponseDirectives {
    /// Reads the values of all `Cache-Control` lines of a response.
    pub(super) fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut found = Self::default();
        for value in values {
            for directive in (Directives { rest: value }) {
                found.add(&directive);
            }
        }
        found
    }

    /// Adds one directive. Also used for targeted fields.
    pub(super) fn add(&mut self, directive: &Directive<'_>) {
        let first = |slot: &mut Option<u64>| {
            slot.get_or_insert(directive.delta_seconds());
        };
        match directive.name.to_ascii_lowercase().as_slice() {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache |= !self.withhold(&directive.argument),
            b"private" => self.private |= !self.withhold(&directive.argument),
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"no-transform" => self.no_transform = true,
            b"max-age" => first(&mut self.max_age),
            b"s-maxage" => first(&mut self.s_maxage),
            b"stale-while-revalidate" => first(&mut self.stale_while_revalidate),
            b"stale-if-error" => first(&mut self.stale_if_error),
            _ => {}
        }
    }

    // Whether the argument consists of field names only.
    fn withhold(&mut self, argument: &DirectiveArgument<'_>) -> bool {
        let DirectiveArgument::Text(names) = argument else {
            return false;
        };
        let is_readable = list_elements(names).all(is_token) && list_elements(names).count() > 0;
        if is_readable {
            let names = list_elements(names).map(|name| String::from_utf8_lossy(name).into_owned());
            self.withheld_fields.extend(names);
        }
        is_readable
    }
}

pub(super) struct Directive<'a> {
    pub(super) name: &'a [u8],
    pub(super) argument: DirectiveArgument<'a>,
}

pub(super) enum DirectiveArgument<'a> {
    None,
    /// A token, or a quoted string without its quotes.
    Text(Cow<'a, [u8]>),
    Malformed,
}

impl Directive<'_> {
    // Token and quoted forms are equivalent (§5.2). An argument that is no number is stale
    // (§4.2.1).
    fn delta_seconds(&self) -> u64 {
        match &self.argument {
            DirectiveArgument::Text(digits) => parse_delta_seconds(digits).unwrap_or(0),
            DirectiveArgument::None | DirectiveArgument::Malformed => 0,
        }
    }
}

/// Parses 1*DIGIT; a larger value becomes the largest (§1.2.2). `None` for anything but digits.
pub(super) fn parse_delta_seconds(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| parse_u64(digits).map_or(MAX_DELTA_SECONDS, |n| n.min(MAX_DELTA_SECONDS)))
}

/// 2^31, the value of a delta-seconds that is too large (§1.2.2).
pub(super) const MAX_DELTA_SECONDS: u64 = 1 << 31;

/// The directives of one field line. A malformed element ends at the next comma outside quotes.
struct Directives<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Directives<'a> {
    type Item = Directive<'a>;

    fn next(&mut self) -> Option<Directive<'a>> {
        while let [b' ' | b'\t' | b',', rest @ ..] = self.rest {
            self.rest = rest;
        }
        if self.rest.is_empty() {
            return None;
        }
        let (element, rest) = self.rest.split_at(element_len(self.rest));
        self.rest = rest;
        let element = trim_blanks(element);
        let Some(equals) = memchr::memchr(b'=', element) else {
            return Some(Directive {
                name: element,
                argument: DirectiveArgument::None,
            });
        };
        let (name, value) = (&element[..equals], &element[equals + 1..]);
        let argument = match value {
            // Blanks around the equals sign are outside the grammar and ambiguous.
            _ if name.ends_with(b" ") || name.ends_with(b"\t") => DirectiveArgument::Malformed,
            [b'"', inner @ .., b'"'] => unquote(inner),
            _ if is_token(value) => DirectiveArgument::Text(Cow::Borrowed(value)),
            _ => DirectiveArgument::Malformed,
        };
        Some(Directive {
            name: trim_blanks(name),
            argument,
        })
    }
}

/// Length up to the next comma outside a quoted string (RFC 9110 §5.6.4).
fn element_len(bytes: &[u8]) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => return at,
            _ => {}
        }
    }
    bytes.len()
}

fn unquote(inner: &[u8]) -> DirectiveArgument<'_> {
    if memchr::memchr2(b'\\', b'"', inner).is_none() {
        return DirectiveArgument::Text(Cow::Borrowed(inner));
    }
    let mut text = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'"' => return DirectiveArgument::Malformed,
            b'\\' => match bytes.next() {
                Some(&escaped) => text.push(escaped),
                None => return DirectiveArgument::Malformed,
            },
            plain => text.push(plain),
        }
    }
    DirectiveArgument::Text(Cow::Owned(text))
}
