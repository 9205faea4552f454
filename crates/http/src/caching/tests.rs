//! Helpers of the caching tests: heads and fields from one line of text.
//!
//! Each section of RFC 9111 has its own file of tests. `table` checks `docs/caching-rfc9111.md`
//! against them.

mod cache_control;
mod cache_status;
mod freshness;
mod invalidation;
mod reuse;
mod storing;
mod table;
mod targeted;
mod validation;
mod vary;

use std::time::Duration;

use super::*;
use crate::h1::{HeadLimits, ParseProgress, parse_head};

/// The arrival time of responses: `Sun, 06 Nov 1994 08:49:37 GMT`.
const T: u64 = 784_111_777;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A date `offset` seconds from `T`.
fn date(offset: i64) -> String {
    let at = T.checked_add_signed(offset).unwrap();
    String::from_utf8(crate::imf_fixdate(at).to_vec()).unwrap()
}

/// A request from its line without the version, and fields separated by ` | `.
fn request(line: &str, fields: &str) -> RequestHead {
    let lines: String = pairs(fields)
        .map(|(n, v)| format!("{n}: {v}\r\n"))
        .collect();
    let text = format!("{line} HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n");
    match parse_head(text.as_bytes(), &HeadLimits::default()).unwrap() {
        ParseProgress::Complete((head, _)) => head,
        ParseProgress::Partial => panic!("the head is whole"),
    }
}

fn get(fields: &str) -> RequestHead {
    request("GET /", fields)
}

/// A block from fields separated by ` | `; `{n}` in a value is the date n seconds from `T`.
fn block(fields: &str) -> FieldBlock {
    let mut block = FieldBlock::new();
    for (name, value) in pairs(fields) {
        let value = match value.split_once('{').zip(value.split_once('}')) {
            Some(((before, rest), (_, after))) => {
                let offset = rest.split('}').next().unwrap().parse().unwrap();
                format!("{before}{}{after}", date(offset))
            }
            None => value.to_owned(),
        };
        block.push(name, value.as_bytes()).unwrap();
    }
    block
}

fn pairs(fields: &str) -> impl Iterator<Item = (&str, &str)> {
    fields
        .split(" | ")
        .filter(|field| !field.is_empty())
        .map(|field| field.split_once(": ").unwrap_or((field, "")))
}

/// Checks whether a response to `GET /` that arrived at `T` is storable with heuristics allowed.
fn store(code: u16, fields: &str) -> Result<Lifetime, StoreRefusal> {
    store_for(&get(""), code, fields, &guessing())
}

fn guessing() -> CachePolicy {
    CachePolicy {
        heuristic_freshness: true,
        ..CachePolicy::default()
    }
}

fn store_for(
    request: &RequestHead,
    code: u16,
    fields: &str,
    policy: &CachePolicy,
) -> Result<Lifetime, StoreRefusal> {
    let exchange = OriginExchange {
        request,
        is_authenticated: request.field("authorization").is_some(),
        status: Status::new(code).unwrap(),
        fields: &block(fields),
        request_time: secs(T),
        response_time: secs(T),
    };
    check_storable(&exchange, policy)
}

/// A lifetime of ten seconds without further directives.
fn ten_seconds() -> Lifetime {
    store(200, "Cache-Control: max-age=10").unwrap()
}
