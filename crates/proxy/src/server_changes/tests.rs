//! Changes at run time, as the admin API and applications make them.

use config::Protocol;
use penstock_config as config;

use super::{ServerChange, ServerChangeError};
use crate::maintenance::tests::{
    claim, first_server_snapshot, release, run_on_loop, server, server_states, start,
    upstream_config,
};

const A: &str = "127.0.0.1:81";
const B: &str = "127.0.0.1:82";

fn named(name: &str) -> String {
    name.to_owned()
}

#[test]
fn each_change_is_applied_and_described() {
    run_on_loop(async {
        let upstream = start(upstream_config(Protocol::Http, &[A]));
        let rows = [
            (
                ServerChange::Add(server(B)),
                "127.0.0.1:82 was added",
                vec![(A, "up"), (B, "up")],
            ),
            (
                ServerChange::Drain(named(A)),
                "127.0.0.1:81 is draining, 0 requests in progress",
                vec![(A, "draining"), (B, "up")],
            ),
            (
                ServerChange::Enable(named(A)),
                "127.0.0.1:81 is enabled, 0 requests in progress",
                vec![(A, "up"), (B, "up")],
            ),
            (
                ServerChange::Disable(named(B)),
                "127.0.0.1:82 is disabled, 0 requests in progress",
                vec![(A, "up"), (B, "disabled")],
            ),
            (
                ServerChange::SetWeight(named(A), 5),
                "127.0.0.1:81 has weight 5",
                vec![(A, "up"), (B, "disabled")],
            ),
            (
                ServerChange::SetMaxActive(named(A), Some(3)),
                "127.0.0.1:81 may have 3 requests in progress",
                vec![(A, "up"), (B, "disabled")],
            ),
            (
                ServerChange::Remove(named(B)),
                "127.0.0.1:82 was removed, 0 requests in progress",
                vec![(A, "up")],
            ),
        ];
        for (change, want, servers) in rows {
            let name = format!("{change:?}");
            assert_eq!(upstream.apply_change(change).as_deref(), Ok(want), "{name}");
            let servers: Vec<_> = servers
                .iter()
                .map(|&(it, state)| (named(it), state))
                .collect();
            assert_eq!(server_states(&upstream), servers, "{name}");
        }
        let first = first_server_snapshot(&upstream);
        assert_eq!((first.weight, first.max_active), (5, Some(3)));
    });
}

#[test]
fn an_invalid_change_changes_nothing() {
    run_on_loop(async {
        let upstream = start(upstream_config(Protocol::Http, &[A]));
        let mut weightless = server(B);
        weightless.weight = 0;
        let rows = [
            (
                ServerChange::Add(server(A)),
                ServerChangeError::AlreadyExists(named(A)),
            ),
            (
                ServerChange::Add(weightless),
                ServerChangeError::ZeroValue("weight"),
            ),
            (
                ServerChange::Remove(named(B)),
                ServerChangeError::NoSuchServer(named(B)),
            ),
            (
                ServerChange::Drain(named("127.0.0.1")),
                ServerChangeError::NoSuchServer(named("127.0.0.1")),
            ),
            (
                ServerChange::SetWeight(named(A), 0),
                ServerChangeError::ZeroValue("weight"),
            ),
            (
                ServerChange::SetMaxActive(named(A), Some(0)),
                ServerChangeError::ZeroValue("max_active"),
            ),
        ];
        let before = upstream.snapshot().servers;
        for (change, want) in rows {
            let name = format!("{change:?}");
            assert_eq!(upstream.apply_change(change), Err(want), "{name}");
            assert_eq!(upstream.snapshot().servers, before, "{name}");
        }
    });
}

#[test]
fn a_server_that_leaves_finishes_what_it_has() {
    run_on_loop(async {
        let upstream = start(upstream_config(Protocol::Http, &[A]));
        let address = A.parse().unwrap();
        let slot = claim(&upstream);
        let message = upstream.apply_change(ServerChange::Remove(named(A)));
        assert_eq!(
            message.as_deref(),
            Ok("127.0.0.1:81 was removed, 1 request in progress")
        );
        assert_eq!(server_states(&upstream), [(named(A), "leaving")]);
        assert_eq!(upstream.active_requests(&address), 1);
        // It is no server any more: it can be added, and not be changed.
        let again = upstream.apply_change(ServerChange::Drain(named(A)));
        assert_eq!(again, Err(ServerChangeError::NoSuchServer(named(A))));
        upstream.apply_change(ServerChange::Add(server(A))).unwrap();
        assert_eq!(
            server_states(&upstream),
            [(named(A), "leaving"), (named(A), "up")]
        );
        release(&upstream, &slot);
        assert_eq!(server_states(&upstream), [(named(A), "up")]);
        assert_eq!(upstream.active_requests(&address), 0);
    });
}

#[test]
fn a_draining_server_gets_nothing_new() {
    run_on_loop(async {
        let upstream = start(upstream_config(Protocol::Http, &[A, B]));
        upstream
            .apply_change(ServerChange::Drain(named(A)))
            .unwrap();
        for _ in 0..4 {
            let slot = claim(&upstream);
            assert_eq!(&*slot.server.name, B);
        }
    });
}

#[test]
fn a_smaller_bound_holds_from_now_on() {
    run_on_loop(async {
        let upstream = start(upstream_config(Protocol::Http, &[A]));
        upstream
            .apply_change(ServerChange::SetMaxActive(named(A), Some(1)))
            .unwrap();
        let slot = claim(&upstream);
        assert_eq!(first_server_snapshot(&upstream).active, 1);
        let mut pool = upstream.shared.server_pool.lock();
        let waiter = || crate::server_pool::SlotWaiter {
            grant_sender: tokio::sync::oneshot::channel().0,
            client: None,
        };
        let now = penstock_runtime::clock::now();
        let want = crate::server_pool::SelectionCriteria::default();
        let second = pool.claim(now, 0, &want, waiter);
        assert!(
            matches!(second, crate::server_pool::ClaimOutcome::Queued { .. }),
            "{second:?}"
        );
        drop(pool);
        drop(slot);
    });
}

#[test]
fn waiting_requests_of_a_client_can_be_refused_and_a_draining_server_has_none() {
    use penstock_exchange::buffering::{CapacityDemand, ResponseProducer};

    run_on_loop(async {
        let upstream = start(upstream_config(Protocol::Http, &[A]));
        upstream
            .apply_change(ServerChange::SetMaxActive(named(A), Some(1)))
            .unwrap();
        let slot = claim(&upstream);
        let producer = crate::upstream::ServerProducer {
            shared: std::sync::Arc::clone(&upstream.shared),
            server: slot.server_id,
        };
        let client = penstock_exchange::ClientState::default().counted_address_prefix();
        let now = penstock_runtime::clock::now();
        let wait = |client| {
            let (grant, granted) = tokio::sync::oneshot::channel();
            let want = crate::server_pool::SelectionCriteria::default();
            let waiter = || crate::server_pool::SlotWaiter {
                grant_sender: grant,
                client,
            };
            let mut pool = upstream.shared.server_pool.lock();
            let claimed = pool.claim(now, 0, &want, waiter);
            assert!(
                matches!(claimed, crate::server_pool::ClaimOutcome::Queued { .. }),
                "{claimed:?}"
            );
            granted
        };
        let (refused, _kept) = (wait(client), wait(None));
        let demand = producer.capacity_demand(now);
        assert_eq!(
            (demand.waiting_requests, demand.max_active_requests),
            (2, 1)
        );
        let clients: Vec<_> = client.into_iter().collect();
        producer.refuse_waiting(&clients, "too slow");
        assert_eq!(refused.await.unwrap().unwrap_err(), "too slow");
        assert_eq!(producer.waiting_clients(), [None]);
        upstream
            .apply_change(ServerChange::Drain(named(A)))
            .unwrap();
        assert_eq!(producer.capacity_demand(now), CapacityDemand::default());
        release(&upstream, &slot);
    });
}

#[test]
fn a_process_of_an_application_is_replaced_by_the_next_at_its_address() {
    run_on_loop(async {
        let upstream = start(upstream_config(Protocol::Http, &[]));
        let address = A.parse().unwrap();
        upstream.add_server(server(A), 1);
        let old = claim(&upstream);
        upstream.add_server(server(A), 2);
        assert_eq!(
            server_states(&upstream),
            [(named(A), "leaving"), (named(A), "up")]
        );
        let new = claim(&upstream);
        assert_ne!(old.server_id, new.server_id);
        assert_eq!(upstream.active_requests(&address), 2);
        upstream.remove_server(&address);
        release(&upstream, &old);
        release(&upstream, &new);
        assert!(server_states(&upstream).is_empty());
    });
}
