//! The audiences of topics, by hand and against a search without an index.

use super::selector_index::MAX_VARIABLES_IN_USE;
use penstock_sys::net::PeerAddress;

use super::*;
use crate::selector::TopicSelector;
use crate::update::UpdateDraft;

fn set(texts: &[&str]) -> SelectorSet {
    let selectors = texts.iter().map(|text| TopicSelector::new(text).unwrap());
    SelectorSet::new(selectors.collect())
}

fn audience_key(topics: &[&str], grants: &[&str]) -> AudienceKey {
    AudienceKey {
        topics: set(topics),
        grants: set(grants),
    }
}

fn join(audiences: &mut Audiences, audience_key: AudienceKey) -> u64 {
    let channel = |number: u64| number.to_string().into();
    audiences
        .join((audience_key, None), 0, channel)
        .unwrap()
        .number
}

fn topics(texts: &[&str]) -> Vec<Box<str>> {
    texts.iter().map(|text| (*text).into()).collect()
}

fn update(texts: &[&str], is_private: bool) -> Update {
    let draft = UpdateDraft {
        topics: topics(texts),
        is_private,
        ..UpdateDraft::default()
    };
    Update::new(draft, 1000).unwrap()
}

#[test]
fn the_same_wish_is_the_same_audience() {
    let mut audiences = Audiences::default();
    let first = join(&mut audiences, audience_key(&["a", "b"], &["x"]));
    let second = join(&mut audiences, audience_key(&["b", "a", "a"], &["x"]));
    let other = join(&mut audiences, audience_key(&["a", "b"], &[]));
    assert_eq!(first, second);
    assert_ne!(first, other);
    assert_eq!(&*audiences.audience_mut(first).unwrap().channel, "0");
    assert_eq!(audiences.count(), 2);
    audiences.leave(first);
    assert!(audiences.audience_mut(first).is_some());
    audiences.leave(second);
    assert!(audiences.audience_mut(first).is_none());
    let again = join(&mut audiences, audience_key(&["a", "b"], &["x"]));
    assert_ne!(again, first, "a number is not used twice");
}

#[test]
fn an_audience_is_found_once_whatever_selects_it() {
    let mut audiences = Audiences::default();
    let exact = join(&mut audiences, audience_key(&["/a/1", "/a/2"], &[]));
    let template = join(&mut audiences, audience_key(&["/a/{id}", "/{+all}"], &[]));
    let everything = join(&mut audiences, audience_key(&["*"], &[]));
    let both = join(&mut audiences, audience_key(&["/a/1", "/a/{id}"], &[]));
    let spelled = join(&mut audiences, audience_key(&["/é/{id}"], &[]));
    for (list, expected) in [
        (&["/a/1"][..], vec![exact, template, everything, both]),
        (
            &["/a/1", "/a/2", "/a/3"],
            vec![exact, template, everything, both],
        ),
        (&["/a/3"], vec![template, everything, both]),
        (&["/é/1"], vec![everything, spelled]),
        (&["/é/{id}"], vec![everything, spelled]),
        (&["b"], vec![everything]),
        (&["/"], vec![template, everything]),
    ] {
        assert_eq!(
            audiences.audiences_for_topics(&topics(list)),
            expected,
            "{list:?}"
        );
    }
}

#[test]
fn private_updates_need_a_grant_for_one_of_their_topics() {
    for (wants, grants, list, is_private, expected) in [
        (&["a"][..], &[][..], &["a"][..], false, true),
        (&["a"], &[], &["a"], true, false),
        (&["a"], &["a"], &["a"], true, true),
        (&["*"], &["/u/{id}"], &["/u/1"], true, true),
        (&["*"], &["/u/{id}"], &["/v/1"], true, false),
        (&["a"], &["*"], &["a"], true, true),
        // One of its topics is wanted, another one allowed.
        (&["a"], &["b"], &["a", "b"], true, true),
        // A right is no subscription.
        (&["a"], &["b"], &["b"], true, false),
        (&["a"], &["*"], &["b"], false, false),
    ] {
        let takes = audience_key(wants, grants).receives(&update(list, is_private));
        assert_eq!(
            takes, expected,
            "{wants:?} {grants:?} {list:?} {is_private}"
        );
    }
}

#[test]
fn the_variables_of_different_templates_are_bounded_and_strings_are_not() {
    let mut audiences = Audiences::default();
    for number in 0..MAX_VARIABLES_IN_USE / 4 {
        let template = format!("/{number}/{{a}}/{{b,c,d}}");
        join(&mut audiences, audience_key(&[&template], &[]));
    }
    let full = |audiences: &mut Audiences, text: &str| {
        audiences
            .join((audience_key(&[text], &["x"]), None), 0, |_| "".into())
            .is_none()
    };
    assert!(full(&mut audiences, "/new/{id}"));
    assert!(!full(&mut audiences, "/new"));
    assert!(!full(&mut audiences, "/7/{a}/{b,c,d}"));
    audiences.leave(3);
    assert!(full(&mut audiences, "/new/{a,b,c,d,e}"));
    assert!(!full(&mut audiences, "/new/{a,b,c}"));
    assert!(full(&mut audiences, "/newer/{a,b}"));
    assert!(!full(&mut audiences, "/newer/{a}"));
}

#[test]
fn one_client_has_a_share_of_the_variables() {
    let mut audiences = Audiences::default();
    let client = |last| {
        let address = std::net::SocketAddr::from(([192, 0, 2, last], 0));
        Some(AddressPrefix::from_address(PeerAddress::tcp(address)))
    };
    let join = |audiences: &mut Audiences, number: usize, client| {
        let audience_key = audience_key(&[&format!("/{number}/{{a}}/{{b,c,d}}")], &[]);
        let joined = audiences.join((audience_key, client), 0, |_| "".into());
        joined.map(|audience| audience.number)
    };
    let taken = (0..).map_while(|number| join(&mut audiences, number, client(1)));
    assert_eq!(taken.count(), MAX_VARIABLES_IN_USE / 8 / 4);
    // A known template costs no more, and others have a share of their own.
    assert!(join(&mut audiences, 7, client(1)).is_some());
    assert!(join(&mut audiences, 100_000, client(2)).is_some());
    assert!(join(&mut audiences, 100_001, None).is_some());
    audiences.leave(0);
    assert!(join(&mut audiences, 100_002, client(1)).is_some());
    assert!(join(&mut audiences, 100_003, client(1)).is_none());
}

/// Subscribers come and go; the index must find what a look at every audience finds, and be empty
/// in the end.
#[test]
fn the_index_agrees_with_a_linear_search() {
    const SELECTORS: &[&str] = &[
        "*", "/a", "/a/b", "/b", "/{x}", "/a/{x}", "{x}", "/a{/x}", "{+x}/b", "/{x}/b", "é{x}",
    ];
    const TOPICS: &[&str] = &["/a", "/b", "/a/b", "/a/c", "é", "éa", "x", "/{x}", "/"];
    for seed in 1..=20_u64 {
        let mut dice = Rng(seed);
        let mut audiences = Audiences::default();
        let mut members: Vec<(u64, AudienceKey)> = Vec::new();
        for _ in 0..300 {
            if dice.roll(3) == 0 && !members.is_empty() {
                let at = dice.roll(members.len());
                audiences.leave(members.swap_remove(at).0);
            } else {
                let list: Vec<&str> = (0..=dice.roll(3)).map(|_| dice.pick(SELECTORS)).collect();
                let audience_key = audience_key(&list, &[]);
                members.push((join(&mut audiences, audience_key.clone()), audience_key));
            }
            let list: Vec<&str> = (0..=dice.roll(2)).map(|_| dice.pick(TOPICS)).collect();
            let list = topics(&list);
            let mut expected: Vec<u64> = members
                .iter()
                .filter(|(_, audience_key)| audience_key.topics.matches_any(&list))
                .map(|(number, _)| *number)
                .collect();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(
                audiences.audiences_for_topics(&list),
                expected,
                "seed {seed}: {list:?}"
            );
        }
        for (number, _) in members {
            audiences.leave(number);
        }
        assert_eq!(audiences.count(), 0, "seed {seed}");
        let empty = format!("{:?}", SelectorIndex::default());
        assert_eq!(format!("{:?}", audiences.index), empty, "seed {seed}");
    }
}

/// A small generator, so that a failure's seed repeats it (xorshift).
struct Rng(u64);

impl Rng {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.roll(from.len())]
    }
}
