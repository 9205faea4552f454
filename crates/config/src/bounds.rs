//! The `max_concurrent` and `response_rate` of a route.
//!
//! Called by `route`.

use crate::model::{ConcurrencyRule, ResponseRate};
use crate::rate_limit::read_keys;
use crate::section::{Keys as _, Section};

/// Reads how many requests may be in progress: a number, or a table.
pub(crate) fn read_max_concurrent(route: &Section<'_>) -> Option<ConcurrencyRule> {
    if !route.is_table("max_concurrent") {
        return route.get("max_concurrent").map(ConcurrencyRule::new);
    }
    let table = route.table("max_concurrent")?;
    let max = table.get("max");
    let mut rule = ConcurrencyRule::new(max.unwrap_or(1));
    rule.read_keys(&table);
    if let Some(keys) = read_keys(&table) {
        rule.keys = keys;
    }
    max.map(|_| rule)
}

/// Reads how fast responses are sent: a rate, or a table.
pub(crate) fn read_response_rate(route: &Section<'_>) -> Option<ResponseRate> {
    if !route.is_table("response_rate") {
        let rate = read_rate(route, "response_rate")?;
        return Some(ResponseRate {
            rate: Some(rate),
            ..ResponseRate::default()
        });
    }
    let table = route.table("response_rate")?;
    let mut rule = ResponseRate::default();
    rule.read_keys(&table);
    rule.rate = read_rate(&table, "rate");
    rule.client_rate = read_rate(&table, "client_rate");
    if !table.has("rate") && !table.has("client_rate") {
        route.report_key(
            "response_rate",
            "`response_rate` needs `rate` or `client_rate`",
        );
        return None;
    }
    (rule.rate.is_some() || rule.client_rate.is_some()).then_some(rule)
}

/// A rate at which something is sent at all.
fn read_rate(table: &Section<'_>, key: &'static str) -> Option<u64> {
    let rate = table.get(key)?;
    if rate == 0 {
        table.report_key(
            key,
            format!("`{key}` sends nothing: expected at least \"1B/s\""),
        );
        return None;
    }
    Some(rate)
}

#[cfg(test)]
mod tests {
    use crate::rate_limit::RateKey;
    use crate::testing::{TestDir, parse_valid};

    fn route(keys: &str) -> String {
        format!("[[sites]]\n[[sites.routes]]\nrespond = {{}}\n{keys}\n")
    }

    #[test]
    fn reads_the_short_and_the_long_form() {
        let folder = TestDir::with_files(&[]);
        let of = |keys: &str| parse_valid(&folder, &route(keys)).sites[0].routes[0].clone();
        let short = of("max_concurrent = 10\nresponse_rate = \"1MiB/s\"");
        let bound = short.max_concurrent.unwrap();
        assert_eq!((bound.max, bound.keys), (10, vec![RateKey::Client]));
        let rate = short.response_rate.unwrap();
        assert_eq!(
            (rate.rate, rate.client_rate, rate.after),
            (Some(1 << 20), None, 0)
        );
        let long = of("max_concurrent = { max = 3, key = [\"user\", \"path\"] }\n\
             response_rate = { rate = \"10KiB/s\", client_rate = \"2MiB/s\", after = \"1MiB\" }");
        let bound = long.max_concurrent.unwrap();
        assert_eq!(
            (bound.max, bound.keys),
            (3, vec![RateKey::User, RateKey::Path])
        );
        let rate = long.response_rate.unwrap();
        let rates = (rate.rate, rate.client_rate, rate.after);
        assert_eq!(rates, (Some(10 << 10), Some(2 << 20), 1 << 20));
    }

    #[test]
    fn bounds_that_cannot_be_meant_are_refused() {
        let folder = TestDir::with_files(&[]);
        for (keys, expected) in [
            ("max_concurrent = 0", "`max_concurrent` cannot be 0"),
            ("max_concurrent = {}", "`max` is missing"),
            (
                "max_concurrent = { max = 1, key = \"ip\" }",
                "`key` cannot be \"ip\"",
            ),
            (
                "response_rate = \"fast\"",
                "`response_rate` cannot be \"fast\"",
            ),
            ("response_rate = \"0B/s\"", "`response_rate` sends nothing"),
            (
                "response_rate = { after = \"1MiB\" }",
                "needs `rate` or `client_rate`",
            ),
            (
                "response_rate = { client_rate = \"0B/s\" }",
                "`client_rate` sends nothing",
            ),
        ] {
            let found = crate::parse(&route(keys), &folder.path().join("penstock.toml"));
            let found = found.expect_err(keys).to_string();
            assert!(found.contains(expected), "{keys}: {found}");
        }
    }
}
