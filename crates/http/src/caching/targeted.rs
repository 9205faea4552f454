//! Which field of a response directs this cache: `X-Accel-Expires`, else `CDN-Cache-Control`
//! (RFC 9213), else `Surrogate-Control` (Edge Architecture Specification), else `Cache-Control` with `Expires`.
//!
//! `storing` asks. A targeted field is a structured dictionary (RFC 9651), which is strict where
//! `Cache-Control` is lenient, so the `sfv` library reads it.
//!
//! What must stay true: a targeted field that cannot be parsed counts as absent, as a whole
//! (RFC 9213 §2.2); one that can makes `Cache-Control` and `Expires` count as absent.

use std::{borrow::Cow, convert::Infallible, time::Duration};

use sfv::{
    BareItemFromInput, KeyRef, Parser,
    visitor::{
        DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor, ParameterVisitor,
    },
};

use super::{
    cache_control::{Argument, Directive, ResponseDirectives, delta_seconds},
    storing::all,
};
use crate::FieldBlock;

/// What a response says to this cache.
pub(super) struct Directed {
    pub(super) directives: ResponseDirectives,
    /// Whether `Cache-Control` and `Expires` are overridden.
    pub(super) is_targeted: bool,
    /// The lifetime from now that `X-Accel-Expires` gives.
    pub(super) accel_ttl: Option<Duration>,
    /// `X-Accel-Expires: 0` or `off`.
    pub(super) is_off: bool,
}

impl Directed {
    /// Reads the fields of a response that came at `response_time`.
    pub(super) fn read(fields: &FieldBlock, response_time: Duration) -> Self {
        let untargeted = || ResponseDirectives::read(all(fields, "cache-control"));
        let accel = all(fields, "x-accel-expires").find_map(|value| accel(value, response_time));
        if let Some(ttl) = accel {
            // The lifetime is all it says; who may see which field is not its subject.
            let directives = ResponseDirectives {
                withheld: untargeted().withheld,
                ..ResponseDirectives::default()
            };
            return Self {
                directives,
                is_targeted: true,
                accel_ttl: (!ttl.is_zero()).then_some(ttl),
                is_off: ttl.is_zero(),
            };
        }
        let targeted = targeted(fields).or_else(|| surrogate(fields));
        Self {
            is_targeted: targeted.is_some(),
            directives: targeted.unwrap_or_else(untargeted),
            accel_ttl: None,
            is_off: false,
        }
    }
}

/// Seconds, or `@` and seconds since the epoch; zero for `off`, for `0` and for what is past.
/// `None` for anything else, which counts as absent.
fn accel(value: &[u8], response_time: Duration) -> Option<Duration> {
    match value {
        b"off" => Some(Duration::ZERO),
        [b'@', epoch @ ..] => {
            let epoch = crate::grammar::parse_u64(epoch)?;
            Some(Duration::from_secs(epoch).saturating_sub(response_time))
        }
        seconds => delta_seconds(seconds).map(Duration::from_secs),
    }
}

/// The directives of `CDN-Cache-Control`; `None` when it is absent, empty or malformed.
fn targeted(fields: &FieldBlock) -> Option<ResponseDirectives> {
    let mut lines = all(fields, "cdn-cache-control");
    let mut value = Cow::Borrowed(lines.next()?);
    for line in lines {
        // The lines of one field are one list (RFC 9651 §4.2).
        value.to_mut().extend_from_slice(b", ");
        value.to_mut().extend_from_slice(line);
    }
    let members = Parser::new(&*value)
        .parse_dictionary_with_visitor(Members::default())
        .ok()?;
    if members.is_empty() {
        return None;
    }
    let mut directives = ResponseDirectives::default();
    for (name, argument) in members {
        if let Some(argument) = argument {
            directives.add(&Directive {
                name: name.as_bytes(),
                argument,
            });
        }
    }
    Some(directives)
}

/// The directives of `Surrogate-Control`, as Fastly, Akamai and Varnish's users write it: `max-age=60`,
/// `max-age=60+30` (stale for 30 s more), `no-store`; `None` when none of them is there. It speaks to every
/// cache in front of an origin, this one among them; `content` and whatever names a device is ignored.
fn surrogate(fields: &FieldBlock) -> Option<ResponseDirectives> {
    let mut directives = ResponseDirectives::default();
    let mut is_said = false;
    let values = all(fields, "surrogate-control");
    for member in values.flat_map(|value| value.split(|&byte| byte == b',')) {
        let member = crate::grammar::trim_blanks(member);
        let (name, value) = match memchr::memchr(b'=', member) {
            Some(at) => (&member[..at], Some(&member[at + 1..])),
            None => (member, None),
        };
        let name = name.to_ascii_lowercase();
        if !SURROGATE.contains(&name.as_slice()) || value.is_some_and(|it| it.contains(&b';')) {
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
                Some(value) => Argument::Text(Cow::Owned(value.to_vec())),
                None => Argument::None,
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

const SURROGATE: &[&[u8]] = &[
    b"max-age",
    b"no-store",
    b"stale-while-revalidate",
    b"stale-if-error",
];

/// A member's directive and its argument; no argument at all for a flag that is false.
type Member<'a> = (&'a str, Option<Argument<'a>>);

/// The members of a dictionary so far, the last of each name.
#[derive(Default)]
struct Members<'a>(Vec<Member<'a>>);

impl<'a> DictionaryVisitor<'a> for Members<'a> {
    type Out = Vec<Member<'a>>;
    type Error = Infallible;

    fn entry(&mut self, key: &'a KeyRef) -> Result<impl EntryVisitor<'a>, Infallible> {
        let name = key.as_str();
        // Unknown ones show no more than that the field is not empty.
        let name = if KNOWN.contains(&name) { name } else { "" };
        let at = self.0.iter().position(|(found, _)| *found == name);
        let at = at.unwrap_or(self.0.len());
        if at == self.0.len() {
            self.0.push((name, None));
        }
        Ok(Value {
            argument: &mut self.0[at].1,
            is_list: matches!(name, "no-cache" | "private"),
        })
    }

    fn finish(self) -> Result<Vec<Member<'a>>, Infallible> {
        Ok(self.0)
    }
}

struct Value<'s, 'a> {
    argument: &'s mut Option<Argument<'a>>,
    /// Whether the directive takes field names.
    is_list: bool,
}

impl<'a> EntryVisitor<'a> for Value<'_, 'a> {
    type Error = Infallible;

    fn item(self) -> Result<impl ItemVisitor<'a>, Infallible> {
        Ok(self)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'a>, Infallible> {
        *self.argument = Some(Argument::Malformed);
        Ok(Ignored)
    }
}

impl<'a> ItemVisitor<'a> for Value<'_, 'a> {
    type Out = ();
    type Error = Infallible;

    fn bare_item(
        self,
        item: BareItemFromInput<'a>,
    ) -> Result<impl ParameterVisitor<'a, Out = ()>, Infallible> {
        *self.argument = match item {
            BareItemFromInput::Boolean(is_set) => is_set.then_some(Argument::None),
            BareItemFromInput::Integer(number) => {
                // A negative one is no delta-seconds, and so malformed like any other type.
                let digits = i64::from(number).to_string().into_bytes();
                Some(Argument::Text(Cow::Owned(digits)))
            }
            // Only field names come as a string (RFC 9213 §2.1).
            BareItemFromInput::String(text) if self.is_list => {
                let text = text.as_ref().as_str().as_bytes().to_vec();
                Some(Argument::Text(Cow::Owned(text)))
            }
            _ => Some(Argument::Malformed),
        };
        Ok(Ignored)
    }
}

/// The directives that mean something here; names are lower case in structured fields.
const KNOWN: &[&str] = &[
    "max-age",
    "must-revalidate",
    "must-understand",
    "no-cache",
    "no-store",
    "no-transform",
    "private",
    "proxy-revalidate",
    "public",
    "s-maxage",
    "stale-if-error",
    "stale-while-revalidate",
];
