//! Changes at run time, as the admin API and applications make them.

use config::Protocol;
use penstock_config as config;

use super::{Change, ManageError};
use crate::maintain::tests::{claim, configured, first, on_a_loop, release, server, start, states};

const A: &str = "127.0.0.1:81";
const B: &str = "127.0.0.1:82";

fn named(name: &str) -> String {
    name.to_owned()
}

#[test]
fn a_change_does_what_it_says_and_says_what_it_did() {
    on_a_loop(async {
        let upstream = start(configured(Protocol::Http, &[A]));
        let rows = [
            (
                Change::Add(server(B)),
                "127.0.0.1:82 was added",
                vec![(A, "up"), (B, "up")],
            ),
            (
                Change::Drain(named(A)),
                "127.0.0.1:81 is draining, 0 requests in progress",
                vec![(A, "draining"), (B, "up")],
            ),
            (
                Change::Enable(named(A)),
                "127.0.0.1:81 is enabled, 0 requests in progress",
                vec![(A, "up"), (B, "up")],
            ),
            (
                Change::Disable(named(B)),
                "127.0.0.1:82 is disabled, 0 requests in progress",
                vec![(A, "up"), (B, "disabled")],
            ),
            (
                Change::Weight(named(A), 5),
                "127.0.0.1:81 has weight 5",
                vec![(A, "up"), (B, "disabled")],
            ),
            (
                Change::MaxActive(named(A), Some(3)),
                "127.0.0.1:81 may have 3 requests in progress",
                vec![(A, "up"), (B, "disabled")],
            ),
            (
                Change::Remove(named(B)),
                "127.0.0.1:82 was removed, 0 requests in progress",
                vec![(A, "up")],
            ),
        ];
        for (change, want, servers) in rows {
            let name = format!("{change:?}");
            assert_eq!(upstream.manage(change).as_deref(), Ok(want), "{name}");
            let servers: Vec<_> = servers
                .iter()
                .map(|&(it, state)| (named(it), state))
                .collect();
            assert_eq!(states(&upstream), servers, "{name}");
        }
        let first = first(&upstream);
        assert_eq!((first.weight, first.active_max), (5, Some(3)));
    });
}

#[test]
fn a_change_that_makes_no_sense_changes_nothing() {
    on_a_loop(async {
        let upstream = start(configured(Protocol::Http, &[A]));
        let mut weightless = server(B);
        weightless.weight = 0;
        let rows = [
            (Change::Add(server(A)), ManageError::AlreadyThere(named(A))),
            (Change::Add(weightless), ManageError::Zero("weight")),
            (
                Change::Remove(named(B)),
                ManageError::NoSuchServer(named(B)),
            ),
            (
                Change::Drain(named("127.0.0.1")),
                ManageError::NoSuchServer(named("127.0.0.1")),
            ),
            (Change::Weight(named(A), 0), ManageError::Zero("weight")),
            (
                Change::MaxActive(named(A), Some(0)),
                ManageError::Zero("max_active"),
            ),
        ];
        let before = upstream.snapshot().servers;
        for (change, want) in rows {
            let name = format!("{change:?}");
            assert_eq!(upstream.manage(change), Err(want), "{name}");
            assert_eq!(upstream.snapshot().servers, before, "{name}");
        }
    });
}

#[test]
fn a_server_that_leaves_finishes_what_it_has() {
    on_a_loop(async {
        let upstream = start(configured(Protocol::Http, &[A]));
        let address = A.parse().unwrap();
        let place = claim(&upstream);
        let said = upstream.manage(Change::Remove(named(A)));
        assert_eq!(
            said.as_deref(),
            Ok("127.0.0.1:81 was removed, 1 request in progress")
        );
        assert_eq!(states(&upstream), [(named(A), "leaving")]);
        assert_eq!(upstream.in_progress(&address), 1);
        // It is no server any more: it can be added, and not be changed.
        let again = upstream.manage(Change::Drain(named(A)));
        assert_eq!(again, Err(ManageError::NoSuchServer(named(A))));
        upstream.manage(Change::Add(server(A))).unwrap();
        assert_eq!(states(&upstream), [(named(A), "leaving"), (named(A), "up")]);
        release(&upstream, &place);
        assert_eq!(states(&upstream), [(named(A), "up")]);
        assert_eq!(upstream.in_progress(&address), 0);
    });
}

#[test]
fn a_draining_server_gets_nothing_new() {
    on_a_loop(async {
        let upstream = start(configured(Protocol::Http, &[A, B]));
        upstream.manage(Change::Drain(named(A))).unwrap();
        for _ in 0..4 {
            let place = claim(&upstream);
            assert_eq!(&*place.server.name, B);
        }
    });
}

#[test]
fn a_smaller_bound_holds_from_now_on() {
    on_a_loop(async {
        let upstream = start(configured(Protocol::Http, &[A]));
        upstream
            .manage(Change::MaxActive(named(A), Some(1)))
            .unwrap();
        let place = claim(&upstream);
        assert_eq!(first(&upstream).active, 1);
        let mut roster = upstream.shared.roster();
        let waiter = || crate::roster::Waiter {
            grant: tokio::sync::oneshot::channel().0,
            client: None,
        };
        let now = penstock_runtime::clock::now();
        let (want, mut after) = (crate::roster::Want::default(), Default::default());
        let second = roster.claim(now, 0, &want, waiter, &mut after);
        assert!(
            matches!(second, crate::roster::Claimed::Waiting { .. }),
            "{second:?}"
        );
        drop(roster);
        drop(place);
    });
}

#[test]
fn waiting_requests_of_a_client_can_be_refused_and_a_draining_server_has_none() {
    use penstock_exchange::buffering::{Demand, Producer};

    on_a_loop(async {
        let upstream = start(configured(Protocol::Http, &[A]));
        upstream
            .manage(Change::MaxActive(named(A), Some(1)))
            .unwrap();
        let held = claim(&upstream);
        let place = crate::upstream::ServerPlace::new(&upstream.shared, held.key);
        let client = penstock_exchange::ClientState::default().limit_prefix();
        let now = penstock_runtime::clock::now();
        let wait = |client| {
            let (grant, granted) = tokio::sync::oneshot::channel();
            let (want, mut after) = (crate::roster::Want::default(), Default::default());
            let waiter = || crate::roster::Waiter { grant, client };
            let mut roster = upstream.shared.roster();
            let claimed = roster.claim(now, 0, &want, waiter, &mut after);
            assert!(
                matches!(claimed, crate::roster::Claimed::Waiting { .. }),
                "{claimed:?}"
            );
            granted
        };
        let (refused, _kept) = (wait(client), wait(None));
        let demand = place.demand(now);
        assert_eq!((demand.waiting, demand.places), (2, 1));
        let clients: Vec<_> = client.into_iter().collect();
        place.refuse_waiting(&clients, "too slow");
        assert_eq!(refused.await.unwrap().unwrap_err(), "too slow");
        assert_eq!(place.waiting_clients(), [None]);
        upstream.manage(Change::Drain(named(A))).unwrap();
        assert_eq!(place.demand(now), Demand::default());
        release(&upstream, &held);
    });
}

#[test]
fn a_process_of_an_application_is_replaced_by_the_next_at_its_address() {
    on_a_loop(async {
        let upstream = start(configured(Protocol::Http, &[]));
        let address = A.parse().unwrap();
        upstream.add_server(server(A), 1);
        let old = claim(&upstream);
        upstream.add_server(server(A), 2);
        assert_eq!(states(&upstream), [(named(A), "leaving"), (named(A), "up")]);
        let new = claim(&upstream);
        assert_ne!(old.key, new.key);
        assert_eq!(upstream.in_progress(&address), 2);
        upstream.remove_server(&address);
        release(&upstream, &old);
        release(&upstream, &new);
        assert!(states(&upstream).is_empty());
    });
}
