//! Requests of clients against a split of two parts.

use std::time::Duration;

use penstock_config::{Conditions, SplitCookie, ValuePattern};
use penstock_exchange::Body;
use penstock_exchange::metrics::RuleCountTable;

use super::*;
use crate::conditions::ConditionSet;
use crate::testing::{NamedBackEnd, request_of};

const OUTCOMES: [&str; 3] = ["app old", "app new", "app test"];

/// A split over three back ends, the last of which testers alone reach, with these weights.
struct Fixture {
    split: SplitHandler,
    back_ends: [Arc<NamedBackEnd>; 3],
}

impl Fixture {
    fn new(weights: [u32; 2], by: SplitBy, has_cache: bool) -> Self {
        let back_ends = ["old", "new", "test"].map(NamedBackEnd::new);
        let mut table = Conditions::default();
        let value = ValuePattern::parse("1").unwrap();
        table.headers.insert("X-Tester".to_owned(), value);
        let named = ConditionSet::default();
        let forced = RequestConditions::compile(&table, &named).unwrap();
        let mut targets: Vec<SplitTarget> = (OUTCOMES.iter().zip(&back_ends))
            .zip(weights.into_iter().chain([0]))
            .map(|((name, back_end), weight)| SplitTarget {
                handler: Arc::clone(back_end) as Arc<dyn Handler>,
                name: (*name).to_owned(),
                weight,
                conditions: None,
                has_cache,
            })
            .collect();
        targets[2].conditions = Some(forced);
        let counts = RuleCountTable::default().counts("* /*", "split", &OUTCOMES);
        Self {
            split: SplitHandler::new(targets, by, counts),
            back_ends,
        }
    }

    fn ask(&self, fields: &str, client: &str, scheme: &'static str) -> (String, Option<String>) {
        let request = request_of("GET /a", fields, client, scheme);
        let HandlerProgress::Ready(Ok(Reply::Response(response))) = self.split.handle(request)
        else {
            panic!("the back ends answer at once");
        };
        let Body::Bytes(body) = &response.body else {
            panic!("the back ends answer with their names");
        };
        let cookie = response.fields.get("Set-Cookie");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (text(body), cookie.map(text))
    }

    fn request_counts(&self) -> [usize; 3] {
        self.back_ends.each_ref().map(|it| it.request_count())
    }
}

fn by_cookie(max_age: Option<Duration>) -> SplitBy {
    SplitBy::Cookie(SplitCookie {
        name: "part".to_owned(),
        max_age,
    })
}

const CLIENT: &str = "192.0.2.7:1234";

#[test]
fn requests_go_to_parts_by_weight() {
    fastrand::seed(7);
    let fixture = Fixture::new([90, 10], SplitBy::Request, false);
    for _ in 0..2000 {
        assert_eq!(fixture.ask("", CLIENT, "http").1, None);
    }
    let [old, new, test] = fixture.request_counts();
    assert!((140..260).contains(&new), "{old} {new}");
    assert_eq!((old + new, test), (2000, 0));
    assert_eq!(fixture.split.counts.value(1), new as u64);
}

#[test]
fn a_client_stays_by_its_cookie() {
    let fixture = Fixture::new([50, 50], by_cookie(None), false);
    let (part, cookie) = fixture.ask("", CLIENT, "http");
    let cookie = cookie.expect("a new client gets a cookie");
    let (pair, attributes) = cookie.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Lax");
    for _ in 0..20 {
        let fields = format!("Cookie: a=1; {pair}\r\n");
        assert_eq!(fixture.ask(&fields, CLIENT, "http"), (part.clone(), None));
    }
    let (_, other) = fixture.ask("Cookie: part=11111111\r\n", CLIENT, "https");
    let other = other.expect("an unknown part is none");
    assert!(other.ends_with("; SameSite=Lax; Secure"), "{other}");
    let fixture = Fixture::new([1, 0], by_cookie(Some(Duration::from_secs(60))), false);
    let (_, kept) = fixture.ask("", CLIENT, "http");
    let kept = kept.unwrap();
    assert!(kept.contains("; Path=/; Max-Age=60; HttpOnly"), "{kept}");
}

#[test]
fn a_part_without_weight_is_for_those_that_conditions_force() {
    let fixture = Fixture::new([1, 0], by_cookie(None), false);
    let [_, new, test] = OUTCOMES.map(|name| String::from_utf8(part_id(name).to_vec()).unwrap());
    for (fields, expected, has_cookie) in [
        (String::new(), "old", true),
        (format!("Cookie: part={new}\r\n"), "old", true),
        (format!("Cookie: part={test}\r\n"), "old", true),
        ("X-Tester: 1\r\n".to_owned(), "test", false),
        (
            format!("X-Tester: 1\r\nCookie: part={new}\r\n"),
            "test",
            false,
        ),
    ] {
        let (part, cookie) = fixture.ask(&fields, CLIENT, "http");
        assert_eq!(
            (&*part, cookie.is_some()),
            (expected, has_cookie),
            "{fields}"
        );
    }
}

#[test]
fn a_hash_keeps_a_client_and_moves_few_when_weights_change() {
    for (by, is_of_field) in [
        (SplitBy::Client, false),
        (SplitBy::Header("X-User".to_owned()), true),
        (SplitBy::CookieValue("sid".to_owned()), true),
    ] {
        let before = Fixture::new([95, 5], by.clone(), false);
        let after = Fixture::new([900, 100], by, false);
        let (mut moved, mut new) = (0, 0);
        for number in 0..2000 {
            let (fields, client) = match is_of_field {
                true => (
                    format!("X-User: {number}\r\nCookie: sid={number}\r\n"),
                    CLIENT.to_owned(),
                ),
                false => (
                    String::new(),
                    format!("10.0.{}.{}:1", number / 250, number % 250),
                ),
            };
            let [old, next] = [&before, &after].map(|it| it.ask(&fields, &client, "http").0);
            assert_eq!(before.ask(&fields, &client, "http").0, old);
            new += usize::from(next == "new");
            moved += usize::from(old != next);
            assert!(
                old == "old" || next == "new",
                "a part that grows loses no client"
            );
        }
        assert!((140..260).contains(&new), "{new}");
        assert!((60..150).contains(&moved), "{moved}");
    }
}

#[test]
fn a_part_with_a_cache_does_not_see_the_cookie() {
    for (has_cache, fields, expected) in [
        (true, "Cookie: a=1; part=x; b=2\r\n", vec!["a=1; b=2"]),
        (true, "Cookie: part=x\r\n", vec![]),
        (
            true,
            "Cookie: a=1\r\nCookie: part=x;c=3\r\n",
            vec!["a=1", "c=3"],
        ),
        (true, "Cookie: apart=x\r\n", vec!["apart=x"]),
        (false, "Cookie: a=1; part=x\r\n", vec!["a=1; part=x"]),
    ] {
        let fixture = Fixture::new([1, 0], by_cookie(None), has_cache);
        fixture.ask(fields, CLIENT, "http");
        let heads = fixture.back_ends[0].heads.lock().unwrap();
        let cookies: Vec<_> = heads[0].field_values("cookie").collect();
        let expected: Vec<_> = expected.iter().map(|text| text.as_bytes()).collect();
        assert_eq!(cookies, expected, "{fields}");
        assert_eq!(heads[0].target_path_query(), "/a");
    }
}
