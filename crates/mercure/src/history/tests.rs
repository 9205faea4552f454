//! Which updates are kept, for how long, and how they are found.

use std::time::Duration;

use super::*;
use crate::update::UpdateDraft;

const ROOMY: Bounds = Bounds {
    max_messages: 100,
    max_age: Duration::from_secs(60),
    max_size: 1 << 20,
    max_size_total: 1 << 20,
};

fn update(id: &str) -> Arc<Update> {
    let draft = UpdateDraft {
        topics: vec!["a".into()],
        id: Some(id.to_owned()),
        ..UpdateDraft::default()
    };
    Arc::new(Update::new(draft, 1000).unwrap())
}

fn ids(history: &UpdateHistory, from: u64, until: u64) -> Vec<&str> {
    history
        .range(from, until)
        .map(|update| &*update.id)
        .collect()
}

#[test]
fn finds_what_follows_an_id() {
    let (mut history, now) = (UpdateHistory::default(), Instant::now());
    assert_eq!(history.next_position(), 0);
    for id in ["a", "b", "c"] {
        history.push(&update(id), now, &ROOMY);
    }
    let (position, found) = history.find("b").unwrap();
    assert_eq!((position, &*found.id), (1, "b"));
    assert_eq!(ids(&history, position + 1, history.next_position()), ["c"]);
    assert_eq!(ids(&history, 0, u64::MAX), ["a", "b", "c"]);
    assert_eq!(ids(&history, 0, 2), ["a", "b"]);
    assert_eq!(ids(&history, 2, 1), [""; 0]);
    assert_eq!(ids(&history, 7, 9), [""; 0]);
    assert!(history.find("x").is_none());
    assert_eq!(history.last_id().map(|id| &**id), Some("c"));
}

#[test]
fn the_nearest_bound_counts() {
    let start = Instant::now();
    let bytes = update("0").memory_bytes();
    for (bounds, left) in [
        (
            Bounds {
                max_messages: 3,
                ..ROOMY
            },
            vec!["7", "8", "9"],
        ),
        (
            Bounds {
                max_messages: 0,
                ..ROOMY
            },
            vec![],
        ),
        (
            Bounds {
                max_size: 2 * bytes,
                ..ROOMY
            },
            vec!["8", "9"],
        ),
        (
            Bounds {
                max_size: bytes - 1,
                ..ROOMY
            },
            vec![],
        ),
        (
            Bounds {
                max_age: Duration::from_secs(1),
                ..ROOMY
            },
            vec!["8", "9"],
        ),
    ] {
        let mut history = UpdateHistory::default();
        for second in 0..10_u64 {
            let position = history.push(
                &update(&second.to_string()),
                start + Duration::from_secs(second),
                &bounds,
            );
            assert_eq!(position, second);
        }
        assert_eq!(ids(&history, 0, u64::MAX), left, "{bounds:?}");
        assert_eq!(history.next_position(), 10);
        assert_eq!(history.bytes, left.len() * bytes);
        assert!(history.find("6").is_none());
        assert_eq!(history.last_id().map(|id| &**id), Some("9"));
        history.drop_expired(start + Duration::from_secs(1000), &bounds);
        assert_eq!(ids(&history, 0, u64::MAX), [""; 0]);
        assert_eq!((history.bytes, history.next_position()), (0, 10));
        assert!(history.find("9").is_none());
    }
}

#[test]
fn an_id_that_comes_again_is_the_last_one_of_its_name() {
    let (mut history, now) = (UpdateHistory::default(), Instant::now());
    let bounds = Bounds {
        max_messages: 2,
        ..ROOMY
    };
    for id in ["a", "b", "a"] {
        history.push(&update(id), now, &bounds);
    }
    assert_eq!(history.find("a").unwrap().0, 2);
    history.push(&update("c"), now, &bounds);
    assert_eq!(history.find("a").unwrap().0, 2);
    history.push(&update("d"), now, &bounds);
    assert!(history.find("a").is_none());
}
