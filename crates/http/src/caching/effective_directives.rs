//! Selects the field that directs this cache: `X-Accel-Expires`, else `CDN-Cache-Control` (RFC
//! 9213), else `Surrogate-Control` (Edge Architecture Specification), else `Cache-Control` with
//! `Expires`.
//!
//! Used by `storage`. `CDN-Cache-Control` is a structured dictionary (RFC 9651), stricter than
//! `Cache-Control`, and parsed by the `sfv` library.
//!
//! # Invariants
//!
//! - A targeted field that cannot be parsed counts as absent as a whole (RFC 9213 §2.2).
//! - A valid targeted field makes `Cache-Control` and `Expires` count as absent.

use std::{borrow::Cow, time::Duration};

use sfv::{BareItem, Dictionary, ListEntry, Parser};

use super::{
    cache_control::{Directive, DirectiveArgument, ResponseDirectives, parse_delta_seconds},
    storage::field_values,
};
use crate::FieldBlock;

/// The effective cache directives of a response.
pub(super) struct EffectiveDirectives {
    pub(super) directives: ResponseDirectives,
    /// Whether `Cache-Control` and `Expires` are overridden.
    pub(super) is_targeted: bool,
    /// The lifetime from now set by `X-Accel-Expires`.
    pub(super) accel_ttl: Option<Duration>,
    /// `X-Accel-Expires: 0` or `off`.
    pub(super) is_accel_off: bool,
}

impl EffectiveDirectives {
    /// Reads the fields of a response that arrived at `response_time`.
    pub(super) fn from_fields(fields: &FieldBlock, response_time: Duration) -> Self {
        let untargeted = || ResponseDirectives::parse(field_values(fields, "cache-control"));
        let accel = field_values(fields, "x-accel-expires")
            .find_map(|value| parse_accel_expires(value, response_time));
        if let Some(ttl) = accel {
            // The field sets the lifetime only, not which fields are withheld.
            let directives = ResponseDirectives {
                withheld_fields: untargeted().withheld_fields,
                ..ResponseDirectives::default()
            };
            return Self {
                directives,
                is_targeted: true,
                accel_ttl: (!ttl.is_zero()).then_some(ttl),
                is_accel_off: ttl.is_zero(),
            };
        }
        let targeted = parse_cdn_cache_control(fields).or_else(|| parse_surrogate_control(fields));
        Self {
            is_targeted: targeted.is_some(),
            directives: targeted.unwrap_or_else(untargeted),
            accel_ttl: None,
            is_accel_off: false,
        }
    }
}

/// Parses seconds, or `@` and seconds since the epoch. Zero for `off`, `0` and times in the past.
/// `None` for anything else, which counts as absent.
fn parse_accel_expires(value: &[u8], response_time: Duration) -> Option<Duration> {
    match value {
        b"off" => Some(Duration::ZERO),
        [b'@', epoch @ ..] => {
            let epoch = crate::grammar::parse_u64(epoch)?;
            Some(Duration::from_secs(epoch).saturating_sub(response_time))
        }
        seconds => parse_delta_seconds(seconds).map(Duration::from_secs),
    }
}

/// The directives of `CDN-Cache-Control`; `None` when it is absent, empty or malformed.
fn parse_cdn_cache_control(fields: &FieldBlock) -> Option<ResponseDirectives> {
    let mut lines = field_values(fields, "cdn-cache-control");
    let mut value = Cow::Borrowed(lines.next()?);
    for line in lines {
        // The lines of one field are one list (RFC 9651 §4.2).
        value.to_mut().extend_from_slice(b", ");
        value.to_mut().extend_from_slice(line);
    }
    let members = Parser::new(&*value).parse::<Dictionary>().ok()?;
    if members.is_empty() {
        return None;
    }
    let mut directives = ResponseDirectives::default();
    for (name, member) in &members {
        let takes_field_names = matches!(name.as_str(), "no-cache" | "private");
        let argument = match member {
            ListEntry::Item(item) => match &item.bare_item {
                BareItem::Boolean(false) => continue,
                BareItem::Boolean(true) => DirectiveArgument::None,
                // A negative number is no delta-seconds, and malformed like any other type.
                BareItem::Integer(number) => {
                    let digits = i64::from(*number).to_string().into_bytes();
                    DirectiveArgument::Text(Cow::Owned(digits))
                }
                // Only field names are strings (RFC 9213 §2.1).
                BareItem::String(text) if takes_field_names => {
                    DirectiveArgument::Text(Cow::Borrowed(text.as_str().as_bytes()))
                }
                _ => DirectiveArgument::Malformed,
            },
            ListEntry::InnerList(_) => DirectiveArgument::Malformed,
        };
        let name = name.as_str().as_bytes();
        directives.add(&Directive { name, argument });
    }
    Some(directives)
}

/// The directives of `Surrogate-Control` as used with Fastly, Akamai and Varnish: `max-age=60`,
/// `max-age=60+30` (stale for 30 s more), `no-store`. `None` if it has none of these. The field
/// addresses every cache in front of an origin, including this one. `content` and members for a
/// named device are ignored.
fn parse_surrogate_control(fields: &FieldBlock) -> Option<ResponseDirectives> {
    let mut directives = ResponseDirectives::default();
    let mut is_said = false;
    let values = field_values(fields, "surrogate-control");
    for member in values.flat_map(|value| value.split(|&byte| byte == b',')) {
        let member = crate::grammar::trim_blanks(member);
        let (name, value) = match memchr::memchr(b'=', member) {
            Some(at) => (&member[..at], Some(&member[at + 1..])),
            None => (member, None),
        };
        let name = name.to_ascii_lowercase();
        if !SURROGATE_DIRECTIVES.contains(&name.as_slice())
            || value.is_some_and(|it| it.contains(&b';'))
        {
            continue;
        }
        is_said = true;
        let (value, stale) = match value.map(|value| (value, memchr::memchr(b'+', value))) {
            Some((value, Some(at))) if name == b"max-age" => {
                (Some(&value[..at]), Some(&value[at + 1..]))
            }
            Some((value, _)) => (Some(value), None),
            None => (None, None),
        };
        let mut add = |name: &[u8], value: Option<&[u8]>| {
            let argument = match value {
                Some(value) => DirectiveArgument::Text(Cow::Owned(value.to_vec())),
                None => DirectiveArgument::None,
            };
            directives.add(&Directive { name, argument });
        };
        add(&name, value);
        if stale.is_some() {
            add(b"stale-while-revalidate", stale);
            add(b"stale-if-error", stale);
        }
    }
    is_said.then_some(directives)
}

const SURROGATE_DIRECTIVES: &[&[u8]] = &[
    b"max-age",
    b"no-store",
    b"stale-while-revalidate",
    b"stale-if-error",
];
