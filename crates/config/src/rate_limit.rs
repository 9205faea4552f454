//! The `rate_limit` of a route: rates of requests, and what they count.
//!
//! Called by `route`.

use std::time::Duration;

use crate::headers::is_token;
use crate::model::{RateLimitRule, Route, Site};
use crate::section::{Keys as _, Section, TextOrList};

/// So many requests in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate {
    /// The number; not zero.
    pub count: u32,
    /// The time.
    pub per: Duration,
}

/// What a rate counts by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RateKey {
    /// The client's address; of IPv6 the first 64 bits.
    Client,
    /// The host that was asked for.
    Host,
    /// The path.
    Path,
    /// The user that a rule of the route has verified.
    User,
    /// All requests of the route.
    Route,
    /// The value of a field.
    Header(String),
    /// The value of a cookie.
    Cookie(String),
}

impl RequestRate {
    /// Parses `10/s`, `100/m`, `1000/h` or `5000/d`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (count, unit) = text.split_once('/')?;
        let is_plain = !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit());
        let count: u32 = count.parse().ok().filter(|count| is_plain && *count > 0)?;
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return None,
        };
        Some(Self {
            count,
            per: Duration::from_secs(seconds),
        })
    }
}

impl RateKey {
    fn parse(text: &str) -> Option<Self> {
        let named = |prefix: &str| {
            let name = text.strip_prefix(prefix)?;
            is_token(name).then(|| name.to_owned())
        };
        match text {
            "client" => Some(Self::Client),
            "host" => Some(Self::Host),
            "path" => Some(Self::Path),
            "route" => Some(Self::Route),
            "user" => Some(Self::User),
            _ => named("header:")
                .map(Self::Header)
                .or_else(|| named("cookie:").map(Self::Cookie)),
        }
    }
}

/// Reads the limit of a route.
pub(crate) fn read(route: &Section<'_>) -> Option<RateLimitRule> {
    if !route.is_table("rate_limit") {
        let rate = route.parse_text("rate_limit", RequestRate::parse)?;
        return Some(RateLimitRule::new(rate.value));
    }
    let table = route.table("rate_limit")?;
    let rate = table.parse_text("rate", RequestRate::parse);
    let mut rule = RateLimitRule::new(RequestRate {
        count: 1,
        per: Duration::from_secs(1),
    });
    rule.read_keys(&table);
    if let Some(keys) = read_keys(&table) {
        rule.keys = keys;
    }
    rule.rate = rate?.value;
    Some(rule)
}

/// Reports limits that are to be shared where there is no Redis.
pub(crate) fn check_shared(top: &Section<'_>, sites: &[Site], has_redis: bool) {
    let mut routes = sites.iter().flat_map(|site| &site.routes);
    let is_shared = |route: &&Route| {
        let limit = route.rate_limit.as_ref();
        limit.and_then(|limit| limit.shared) == Some(true)
    };
    if !has_redis && let Some(route) = routes.find(is_shared) {
        let problem = format!(
            "route {}: `rate_limit` is to be shared, and there is no `server.redis` to share it by",
            route.path
        );
        top.report(top.offset, problem);
    }
}

/// What is counted: a key, or a list of keys.
pub(crate) fn read_keys(table: &Section<'_>) -> Option<Vec<RateKey>> {
    let (texts, offset) = match table.text_or_texts("key")? {
        TextOrList::One(text) => (vec![text.value], text.offset),
        TextOrList::List(texts) => (texts.value, texts.offset),
    };
    table.check_not_empty("key");
    let keys = texts.into_iter().filter_map(|text| {
        let key = RateKey::parse(text);
        if key.is_none() {
            let expected = crate::options::expected::RATE_KEY;
            table.report_invalid_item("key", text, offset, expected);
        }
        key
    });
    Some(keys.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, check_error_table, parse_valid};

    #[test]
    fn rates_are_a_number_and_a_time() {
        for (text, expected) in [
            ("10/s", Some((10, 1))),
            ("1/m", Some((1, 60))),
            ("1000/h", Some((1000, 3600))),
            ("5000/d", Some((5000, 86_400))),
            ("0/s", None),
            ("10", None),
            ("10/", None),
            ("+1/s", None),
            ("1.5/s", None),
            ("99999999999/s", None),
            ("10/w", None),
        ] {
            let rate = RequestRate::parse(text).map(|rate| (rate.count, rate.per.as_secs()));
            assert_eq!(rate, expected, "{text}");
        }
    }

    fn route(limit: &str) -> String {
        format!("[[sites]]\n[[sites.routes]]\nrespond = {{}}\nrate_limit = {limit}\n")
    }

    #[test]
    fn reads_every_key() {
        let folder = TestDir::with_files(&[]);
        let of = |limit: &str| {
            let config = parse_valid(&folder, &route(limit));
            config.sites[0].routes[0].rate_limit.clone().unwrap()
        };
        let short = of("\"10/s\"");
        assert_eq!((short.rate.count, short.burst), (10, None));
        assert_eq!(short.keys, [RateKey::Client]);
        let limit = of(
            r#"{ rate = "1/m", burst = 5, key = ["client", "header:X-Key"], max_delay = "2s" }"#,
        );
        let named = RateKey::Header("X-Key".to_owned());
        assert_eq!(limit.keys, [RateKey::Client, named]);
        assert_eq!(
            (limit.burst, limit.max_delay),
            (Some(5), Duration::from_secs(2))
        );
        assert_eq!(
            of(r#"{ rate = "1/m", key = "route" }"#).keys,
            [RateKey::Route]
        );
    }

    #[test]
    fn limits_that_cannot_be_meant_are_refused() {
        let rate =
            "expected a rate of requests such as \"10/s\", \"100/m\", \"1000/h\" or \"5000/d\"";
        let key = "expected \"client\", \"user\", \"host\", \"path\", \"route\", \"header:NAME\" or \"cookie:NAME\"";
        for (limit, expected) in [
            (
                "\"ten\"",
                format!("penstock.toml:4:14: `rate_limit` cannot be \"ten\": {rate}, or a table"),
            ),
            (
                "{ rate = \"0/s\" }",
                format!("penstock.toml:4:23: `rate` cannot be \"0/s\": {rate}"),
            ),
            (
                "{ rate = \"1/s\", key = \"ip\" }",
                format!("penstock.toml:4:36: `key` cannot be \"ip\": {key}"),
            ),
        ] {
            check_error_table(&[(limit, &route(limit), &[&expected])]);
        }
    }
}
