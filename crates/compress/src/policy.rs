//! Decides whether a response is compressed, and with which coding (RFC 9110 §12.5.3). Pure.
//!
//! # Invariants
//! - Nothing is decided from the body: a HEAD gets the decision of its GET.
//! - A response that the client's `Accept-Encoding` could change is never [`Decision::Unchanged`].

use penstock_config::{Compression, ContentCoding, MediaTypes};
use penstock_http::{
    CodingChoice, FieldBlock, Method, RequestHead, Status, list_elements, negotiate_coding,
    token_eq_ignore_case,
};

use crate::encoder::{EncoderSettings, EncoderSize};

/// The rules of a route.
#[derive(Debug)]
pub(crate) struct Policy {
    codings: Vec<ContentCoding>,
    types: MediaTypes,
    min_bytes: u64,
    settings: Vec<EncoderSettings>,
    /// Whether requests that a page of another site sends with a user's credentials are refused a
    /// coding.
    guards_secrets: bool,
}

/// What happens to a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// No client gets it compressed.
    Unchanged,
    /// This request gets it as it is, others may not.
    Identity(IdentityCause),
    /// It is compressed with these settings.
    Compress(EncoderSettings),
}

/// Why a response that could be compressed is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdentityCause {
    /// The client's codings, or a range.
    Negotiation,
    /// Another field of the request, which a cache must tell apart: else it would send every client
    /// the response without a coding that one asked for.
    Field(&'static str),
}

/// What a decision needs to know of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseMeta<'a> {
    pub(crate) status: Status,
    pub(crate) fields: &'a FieldBlock,
    /// `None` if it is not known before the body is sent.
    pub(crate) length: Option<u64>,
}

impl Policy {
    /// Reads the rules. `has_secrets` is false for bodies that are the same for every user.
    pub(crate) fn new(config: &Compression, has_secrets: bool) -> Self {
        let settings = config.algorithms.iter().map(|&coding| EncoderSettings {
            coding,
            level: match coding {
                ContentCoding::Zstd => config.zstd_level,
                ContentCoding::Brotli => config.br_level,
                ContentCoding::Gzip => config.gzip_level,
            },
            size: EncoderSize::Full,
        });
        Self {
            codings: config.algorithms.clone(),
            types: MediaTypes::new(&config.types),
            min_bytes: config.min_size,
            settings: settings.collect(),
            guards_secrets: has_secrets && !config.cross_site,
        }
    }

    pub(crate) fn decide(&self, request: &RequestHead, response: ResponseMeta<'_>) -> Decision {
        if !self.is_compressible(response) {
            return Decision::Unchanged;
        }
        let is_part = response.status == Status::PARTIAL_CONTENT
            || (request.method() == Method::Get && request.field("range").is_some());
        if is_part {
            return Decision::Identity(IdentityCause::Negotiation);
        }
        if has_no_transform(request.field_values("cache-control")) {
            return Decision::Identity(IdentityCause::Field("Cache-Control"));
        }
        if self.guards_secrets && may_probe_secrets(request) {
            return Decision::Identity(IdentityCause::Field("Sec-Fetch-Site"));
        }
        let names = self.codings.iter().map(|coding| coding.as_str());
        match negotiate_coding(|| request.field_values("accept-encoding"), names) {
            CodingChoice::Coding(number) => match self.settings.get(number) {
                Some(settings) => Decision::Compress(*settings),
                None => Decision::Identity(IdentityCause::Negotiation),
            },
            // RFC 9110 §12.5.3 leaves this to the server: a body that may be useful is better than
            // none.
            CodingChoice::Identity | CodingChoice::NotAcceptable => {
                Decision::Identity(IdentityCause::Negotiation)
            }
        }
    }

    /// Whether some client would get the response compressed.
    fn is_compressible(&self, response: ResponseMeta<'_>) -> bool {
        let ResponseMeta {
            status,
            fields,
            length,
        } = response;
        let has_body = !status.forbids_body() && status != Status::RESET_CONTENT;
        let is_large_enough = length.is_none_or(|length| length > 0 && length >= self.min_bytes);
        // A part of a whole stays a part of it, and is not compressed.
        let is_part = status == Status::PARTIAL_CONTENT;
        has_body
            && (is_large_enough || is_part)
            && (fields.get("content-type")).is_some_and(|value| self.types.contains(value))
            && !UNCHANGEABLE_WITH.iter().any(|name| fields.contains(name))
            && !has_no_transform(values_of(fields, "cache-control"))
    }
}

/// Fields of a response whose body stays as it is: it has a coding already, or a checksum of it is
/// sent (RFC 9530, RFC 1864).
const UNCHANGEABLE_WITH: [&str; 5] = [
    "content-encoding",
    "content-digest",
    "repr-digest",
    "digest",
    "content-md5",
];

/// All values of a field of a response.
pub(crate) fn values_of<'a>(
    fields: &'a FieldBlock,
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> {
    let is_it = move |found: &str| found.eq_ignore_ascii_case(name);
    fields
        .iter()
        .filter_map(move |(found, value)| is_it(found).then_some(value))
}

/// Whether `Cache-Control` has `no-transform` (RFC 9111 §5.2.1.6, §5.2.2.6).
fn has_no_transform<'a>(values: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut directives = values.flat_map(list_elements);
    directives.any(|directive| token_eq_ignore_case(directive, b"no-transform"))
}

/// Whether a page of another site sent the request with the user's own cookies or password. Such a
/// page can repeat it with guesses in it. An observer of the network sees the lengths of the compressed
/// responses and learns their secrets (BREACH). Browsers write the field themselves
/// (Fetch Metadata Request Headers).
fn may_probe_secrets(request: &RequestHead) -> bool {
    request
        .field("sec-fetch-site")
        .is_some_and(|site| site.eq_ignore_ascii_case(b"cross-site"))
        && (request.field("cookie").is_some() || request.field("authorization").is_some())
}

#[cfg(test)]
mod tests;
