//! The `split` and the `mirror` of a route: requests that several back ends get.
//!
//! Called by `route`.
//!
//! # Invariants
//! - Each part, and a mirror, has one back end, which exists.
//! - Some part of a `split` has a weight, and no two parts have the same back end.

use crate::findings::LocatedValue;
use crate::headers::is_token;
use crate::model::{Mirror, SplitBy, SplitCookie, SplitPart};
use crate::options::OptionKind;
use crate::options::expected::SPLIT_KEY;
use crate::section::{Keys as _, OptionValue, Section};
use crate::site::RouteContext;
use crate::{conditions, route};

/// A share of requests, in millionths: exact, and equal to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// All requests.
    pub const ALL: Self = Self(Self::WHOLE);

    /// The number of millionths of all requests.
    pub const WHOLE: u32 = 1_000_000;

    /// The number of millionths.
    #[must_use]
    pub fn millionths(self) -> u32 {
        self.0
    }
}

impl OptionValue for Share {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a fraction is from 0 to 1"
    )]
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
        let fraction = f64::from_key(table, key)?;
        Some(Self((fraction * f64::from(Self::WHOLE)).round() as u32))
    }

    fn to_toml(&self, kind: &OptionKind) -> String {
        (f64::from(self.0) / f64::from(Self::WHOLE)).to_toml(kind)
    }
}

/// A back end by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BackEnd {
    app: Option<String>,
    upstream: Option<String>,
}

/// Reads the parts of a route.
pub(crate) fn read_split(table: &Section<'_>, known: &RouteContext<'_>) -> Vec<SplitPart> {
    if !table.has("split") {
        return Vec::new();
    }
    table.check_not_empty("split");
    let mut parts: Vec<LocatedValue<SplitPart>> = Vec::new();
    for item in table.tables("split") {
        // A weight that is missing is reported once.
        let mut part = SplitPart::new(1);
        part.read_keys(&item);
        part.conditions = conditions::read(&item, "match", known.conditions);
        let Some(back_end) = read_back_end(&item, known) else {
            continue;
        };
        BackEnd {
            app: part.app,
            upstream: part.upstream,
        } = back_end;
        let is_same = |other: &&LocatedValue<SplitPart>| {
            other.value.app == part.app && other.value.upstream == part.upstream
        };
        if let Some(first) = parts.iter().find(is_same) {
            let place = item.findings.place_suffix(first.offset, item.offset);
            let problem = format!("the split already has that back end{place}");
            item.report(item.offset, problem);
        }
        if part.weight == 0 && part.conditions.is_empty() {
            let problem = "a part with `weight` 0 and without `match` gets no request";
            item.report_key("weight", problem);
        }
        parts.push(LocatedValue::new(part, item.offset));
    }
    if !parts.is_empty() && parts.iter().all(|part| part.value.weight == 0) {
        table.report_key("split", "every `weight` is 0: give one part a weight");
    }
    parts.into_iter().map(|part| part.value).collect()
}

/// Reads how clients stay at their parts.
pub(crate) fn read_split_by(route: &Section<'_>) -> SplitBy {
    if route.is_table("split_by") {
        let mut cookie = SplitCookie::default();
        if let Some(table) = route.table("split_by") {
            cookie.read_keys(&table);
        }
        return SplitBy::Cookie(cookie);
    }
    let text = route.text("split_by");
    let read = text.map(|text| {
        let by = parse_split_by(text.value);
        if by.is_none() {
            route.report_invalid_item("split_by", text.value, text.offset, SPLIT_KEY);
        }
        by
    });
    let by = read.flatten();
    by.unwrap_or_else(|| SplitBy::Cookie(SplitCookie::default()))
}

fn parse_split_by(text: &str) -> Option<SplitBy> {
    let named = |prefix: &str| {
        let name = text.strip_prefix(prefix)?;
        is_token(name).then(|| name.to_owned())
    };
    match text {
        "request" => Some(SplitBy::Request),
        "cookie" => Some(SplitBy::Cookie(SplitCookie::default())),
        "client" => Some(SplitBy::Client),
        _ => named("header:")
            .map(SplitBy::Header)
            .or_else(|| named("cookie:").map(SplitBy::CookieValue)),
    }
}

/// Reads the mirror of a route.
pub(crate) fn read_mirror(route: &Section<'_>, known: &RouteContext<'_>) -> Option<Mirror> {
    let table = route.table("mirror")?;
    let mut mirror = Mirror::default();
    mirror.read_keys(&table);
    BackEnd {
        app: mirror.app,
        upstream: mirror.upstream,
    } = read_back_end(&table, known)?;
    Some(mirror)
}

/// The one back end of a table.
fn read_back_end(table: &Section<'_>, known: &RouteContext<'_>) -> Option<BackEnd> {
    let back_end = BackEnd {
        app: route::read_name(table, "app", known.app_names),
        upstream: route::read_name(table, "upstream", known.upstream_names),
    };
    match (table.has("app"), table.has("upstream")) {
        (true, true) => table.report_not_applicable("upstream"),
        (false, false) => table.report(table.offset, "give it an `app` or an `upstream`"),
        _ => {}
    }
    (back_end.app.is_some() || back_end.upstream.is_some()).then_some(back_end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, parse_in_dir, parse_valid};

    const HEAD: &str = "[apps.hello]\n[upstreams.next]\nservers = [\"127.0.0.1:3\"]\n";

    fn route(keys: &str) -> String {
        format!("{HEAD}[[sites]]\n[[sites.routes]]\n{keys}\n")
    }

    #[test]
    fn a_split_has_parts_and_a_way_to_stay() {
        let folder = TestDir::with_sample_site();
        let cookie = |name: &str, max_age: Option<u64>| {
            SplitBy::Cookie(SplitCookie {
                name: name.to_owned(),
                max_age: max_age.map(std::time::Duration::from_secs),
            })
        };
        for (by, expected) in [
            ("", cookie("penstock_split", None)),
            ("split_by = \"cookie\"", cookie("penstock_split", None)),
            (
                "split_by = { name = \"group\", max_age = \"2d\" }",
                cookie("group", Some(172_800)),
            ),
            ("split_by = \"request\"", SplitBy::Request),
            ("split_by = \"client\"", SplitBy::Client),
            (
                "split_by = \"header:X-User\"",
                SplitBy::Header("X-User".to_owned()),
            ),
            (
                "split_by = \"cookie:session\"",
                SplitBy::CookieValue("session".to_owned()),
            ),
        ] {
            let text = route(&format!(
                "split = [{{ app = \"hello\", weight = 95 }}, {{ upstream = \"next\", weight = 5, \
                 match = {{ cookie = {{ group = \"next\" }} }} }}]\n{by}"
            ));
            let config = parse_valid(&folder, &text);
            let route = &config.sites[0].routes[0];
            assert_eq!(route.split_by, expected, "{by}");
            let weights: Vec<u32> = route.split.iter().map(|part| part.weight).collect();
            assert_eq!(weights, [95, 5]);
            let parts = route.parts();
            assert_eq!(parts[0].app.as_deref(), Some("hello"));
            assert_eq!(parts[1].upstream.as_deref(), Some("next"));
            assert!(parts.iter().all(|part| part.split.is_empty()));
        }
    }

    #[test]
    fn a_mirror_has_a_share_and_bounds() {
        let folder = TestDir::with_sample_site();
        let text = route("app = \"hello\"\nmirror = { upstream = \"next\", share = 0.01 }");
        let config = parse_valid(&folder, &text);
        let mirror = config.sites[0].routes[0].mirror.clone().unwrap();
        assert_eq!(mirror.share.millionths(), 10_000);
        assert_eq!(mirror.upstream.as_deref(), Some("next"));
        assert_eq!((mirror.max_active, mirror.max_body_size), (64, 1 << 20));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let texts = [
            ("no back end", "split = [{ weight = 1 }]"),
            (
                "two back ends",
                "split = [{ app = \"hello\", upstream = \"next\", weight = 1 }]",
            ),
            ("no weight", "split = [{ app = \"hello\" }]"),
            (
                "the same twice",
                "split = [{ app = \"hello\", weight = 1 }, { app = \"hello\", weight = 2 }]",
            ),
            (
                "all weights 0",
                "split = [{ app = \"hello\", weight = 0, match = { method = [\"GET\"] } }]",
            ),
            (
                "never",
                "split = [{ app = \"hello\", weight = 1 }, { upstream = \"next\", weight = 0 }]",
            ),
            (
                "beside app",
                "app = \"hello\"\nsplit = [{ upstream = \"next\", weight = 1 }]",
            ),
            (
                "by what",
                "split = [{ app = \"hello\", weight = 1 }]\nsplit_by = \"host\"",
            ),
            ("by alone", "app = \"hello\"\nsplit_by = \"client\""),
            (
                "a mirror of nothing",
                "respond = {}\nmirror = { upstream = \"next\" }",
            ),
            (
                "an unknown mirror",
                "app = \"hello\"\nmirror = { upstream = \"nxt\" }",
            ),
        ];
        let expected = [
            "give it an `app` or an `upstream`",
            "`upstream` is only for a part without `app`",
            "`weight` is missing in [[sites.routes.split]]: expected a number from 0 to 1000000",
            "the split already has that back end on line 6",
            "every `weight` is 0: give one part a weight",
            "a part with `weight` 0 and without `match` gets no request",
            "`split` is only for a route without `app` and `upstream`",
            "`split_by` cannot be \"host\": expected \"cookie\", \"request\", \"client\", \
             \"header:NAME\" or \"cookie:NAME\"",
            "`split_by` is only for a route with `split`",
            "`mirror` is only for a route with an `app`, `upstream` or `split`",
            "there is no upstream `nxt`; did you mean `next`?",
        ];
        let folder = TestDir::with_sample_site();
        for ((name, keys), expected) in texts.into_iter().zip(expected) {
            let errors = parse_in_dir(&folder, &route(keys)).expect_err(name);
            let lines = folder.error_lines(&errors);
            let is_it = lines.len() == 1 && lines[0].ends_with(&format!(": {expected}"));
            assert!(is_it, "{name}: {lines:?}");
        }
    }
}
