//! Server pool without sockets or clocks: granting slots, queueing, and counting every slot from
//! the moment it is granted.

use std::time::Duration;

use penstock_config::{Protocol, ServerAddr, Upstream, UpstreamServer};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A server pool with servers of these limits, some of them backups, and a clock to move.
struct PoolTest {
    pool: ServerPool,
    now: Instant,
    keys: Vec<ServerId>,
    waiting: Vec<oneshot::Receiver<Result<SlotId, String>>>,
}

#[derive(Debug, PartialEq)]
enum ClaimResult {
    Slot(usize),
    Queued,
    QueueFull,
    Unavailable,
}

impl PoolTest {
    fn new(servers: &[(u32, bool)], change: impl FnOnce(&mut Upstream)) -> Self {
        let address = |at: usize| format!("127.0.0.1:{}", 1000 + at).parse().unwrap();
        let configured = |at| UpstreamServer::new(ServerAddr::Tcp(address(at)));
        let mut config = Upstream::new(
            "u",
            Protocol::Http,
            (0..servers.len()).map(configured).collect(),
        );
        config.eject.max_failures = 1;
        config.eject.duration = SECOND;
        change(&mut config);
        let now = Instant::now();
        let mut play = Self {
            pool: ServerPool::new(&Arc::new(config), 2, now),
            now,
            keys: Vec::new(),
            waiting: Vec::new(),
        };
        for (at, &(max_active, backup)) in servers.iter().enumerate() {
            let spec = ServerSpec {
                address: ServerAddr::Tcp(address(at)),
                weight: 1,
                max_active,
                backup,
                generation: 0,
            };
            let name = format!("server {at}").into();
            let resolved = ResolvedAddress::Tcp(address(at));
            let key = play.pool.add(now, resolved, name, spec);
            play.keys.push(key);
        }
        play
    }

    fn claim(&mut self, tried: &[usize], sticky: Option<usize>) -> ClaimResult {
        let tried: Vec<ServerId> = tried.iter().map(|&at| self.keys[at]).collect();
        let want = SelectionCriteria {
            sticky_name_hash: sticky.map(|at| server_name_hash(&format!("server {at}"))),
            tried_servers: &tried,
            is_first_attempt: tried.is_empty(),
            ..SelectionCriteria::default()
        };
        let mut made = None;
        let waiter = || {
            let (grant, granted) = oneshot::channel();
            made = Some(granted);
            SlotWaiter {
                grant_sender: grant,
                client: None,
            }
        };
        let claimed = self.pool.claim(self.now, 0, &want, waiter);
        self.waiting.extend(made);
        match claimed {
            ClaimOutcome::Slot(slot) => ClaimResult::Slot(self.index_of_key(slot.server_id)),
            ClaimOutcome::Queued { .. } => ClaimResult::Queued,
            ClaimOutcome::QueueFull { .. } => ClaimResult::QueueFull,
            ClaimOutcome::Unavailable { .. } => ClaimResult::Unavailable,
        }
    }

    /// Ends a request at a server; returns the servers of the waiting requests that start.
    fn end(&mut self, at: usize, outcome: AttemptOutcome) -> Vec<usize> {
        let slot = self.entry(at).slot;
        let ended = AttemptReport {
            outcome,
            ..AttemptReport::default()
        };
        self.update(|pool, now| pool.release(now, slot, None, &ended))
    }

    fn fail(&mut self, at: usize) -> Vec<usize> {
        self.end(at, AttemptOutcome::Failure { is_timeout: false })
    }

    fn update(&mut self, act: impl FnOnce(&mut ServerPool, Instant)) -> Vec<usize> {
        act(&mut self.pool, self.now);
        let after = self.pool.take_deferred();
        let index =
            |start: &DispatchedJob<SlotWaiter>| self.pool.index_by_slot(start.slot_id).unwrap();
        let granted = after.grants.iter().map(index);
        granted
            .map(|at| self.index_of_key(self.pool.servers[at].id))
            .collect()
    }

    fn advance(&mut self, time: Duration) -> Vec<usize> {
        self.now += time;
        self.update(|pool, now| pool.tick(now))
    }

    fn index_of_key(&self, key: ServerId) -> usize {
        self.keys.iter().position(|known| *known == key).unwrap()
    }

    fn entry(&self, at: usize) -> &ServerEntry {
        let index = self.pool.index_by_id(self.keys[at]).unwrap();
        &self.pool.servers[index]
    }

    fn active(&self, at: usize) -> u32 {
        self.entry(at).active
    }
}

#[test]
fn capacities_hold_and_a_freed_slot_goes_to_the_oldest_waiter() {
    let mut play = PoolTest::new(&[(1, false), (1, false)], |_| {});
    let mut first = [play.claim(&[], None), play.claim(&[], None)];
    first.sort_by_key(|got| format!("{got:?}"));
    assert_eq!(first, [ClaimResult::Slot(0), ClaimResult::Slot(1)]);
    assert_eq!(play.claim(&[], None), ClaimResult::Queued);
    assert_eq!(play.end(1, AttemptOutcome::Success), [1]);
    assert_eq!((play.active(0), play.active(1)), (1, 1));
}

#[test]
fn a_granted_slot_counts_as_active_before_it_is_accepted() {
    let mut play = PoolTest::new(&[(1, false)], |_| {});
    assert_eq!(play.claim(&[], None), ClaimResult::Slot(0));
    assert_eq!(play.claim(&[], None), ClaimResult::Queued);
    assert_eq!(play.end(0, AttemptOutcome::Success), [0]);
    assert_eq!(play.active(0), 1, "granted, not accepted");
    let (key, slot) = (play.keys[0], play.entry(0).slot);
    play.update(|pool, now| pool.remove(now, key));
    let accepted = play.pool.accept_grant(play.now, slot, 0, ReusePolicy::Any);
    assert!(accepted.is_some(), "it is leaving, and has that one yet");
    play.end(0, AttemptOutcome::Success);
    assert!(play.pool.servers.is_empty());
}

#[test]
fn a_retry_waits_for_a_server_that_it_has_not_tried() {
    let mut play = PoolTest::new(&[(1, false), (1, false)], |config| {
        config.eject.max_failures = 0;
    });
    assert_eq!(play.claim(&[], Some(1)), ClaimResult::Slot(1));
    assert_eq!(play.claim(&[], Some(0)), ClaimResult::Slot(0));
    assert_eq!(play.fail(0), [] as [usize; 0]);
    assert_eq!(
        play.claim(&[0], None),
        ClaimResult::Queued,
        "server 0 is free, and was tried"
    );
    assert_eq!(play.end(1, AttemptOutcome::Success), [1]);
}

#[test]
fn backups_take_requests_only_while_no_other_server_does() {
    let mut play = PoolTest::new(&[(1, false), (9, true)], |_| {});
    assert_eq!(play.claim(&[], None), ClaimResult::Slot(0));
    assert_eq!(
        play.claim(&[], None),
        ClaimResult::Queued,
        "the other is busy, not down"
    );
    assert_eq!(play.fail(0), [1], "the waiting request goes to the backup");
    assert_eq!(play.claim(&[], None), ClaimResult::Slot(1));
}

#[test]
fn backups_stay_in_use_while_a_server_is_on_trial() {
    let mut play = PoolTest::new(&[(9, false), (9, true)], |_| {});
    assert_eq!(play.claim(&[], None), ClaimResult::Slot(0));
    play.fail(0);
    play.advance(2 * SECOND);
    let mut places = [
        play.claim(&[], None),
        play.claim(&[], None),
        play.claim(&[], None),
    ];
    places.sort_by_key(|got| format!("{got:?}"));
    assert_eq!(
        places,
        [
            ClaimResult::Slot(0),
            ClaimResult::Slot(1),
            ClaimResult::Slot(1)
        ],
        "one for the trial"
    );
    play.end(0, AttemptOutcome::Success);
    assert_eq!(play.claim(&[], None), ClaimResult::Slot(0));
    assert_eq!(play.claim(&[], None), ClaimResult::Slot(0));
}

#[test]
fn a_backup_slot_for_a_retry_is_not_given_to_a_queued_request() {
    let mut play = PoolTest::new(&[(1, false), (1, true)], |config| {
        config.eject.max_failures = 0;
    });
    assert_eq!(play.claim(&[], None), ClaimResult::Slot(0));
    assert_eq!(play.claim(&[], None), ClaimResult::Queued);
    assert_eq!(play.fail(0), [0], "the next in line");
    assert_eq!(play.claim(&[0], None), ClaimResult::Slot(1));
    assert_eq!(
        play.claim(&[0], None),
        ClaimResult::Unavailable,
        "its one place is taken"
    );
    assert_eq!(play.end(1, AttemptOutcome::Success), [] as [usize; 0]);
}

#[test]
fn a_client_with_a_cookie_waits_for_its_server_and_only_while_it_is_up() {
    let mut play = PoolTest::new(&[(1, false), (1, false)], |_| {});
    assert_eq!(play.claim(&[], Some(0)), ClaimResult::Slot(0));
    assert_eq!(
        play.claim(&[], Some(0)),
        ClaimResult::Queued,
        "the other is free"
    );
    assert_eq!(play.fail(0), [1], "it is not up any more");
}

#[test]
fn a_sticky_request_queued_at_a_backup_is_released_with_the_backup() {
    let mut play = PoolTest::new(&[(1, false), (1, true)], |_| {});
    assert_eq!(play.claim(&[], None), ClaimResult::Slot(0));
    play.fail(0);
    assert_eq!(play.claim(&[], Some(1)), ClaimResult::Slot(1));
    assert_eq!(play.claim(&[], Some(1)), ClaimResult::Queued);
    assert_eq!(
        play.advance(2 * SECOND),
        [] as [usize; 0],
        "the other is on trial"
    );
    assert_eq!(play.claim(&[], Some(0)), ClaimResult::Slot(0));
    assert_eq!(play.end(0, AttemptOutcome::Success), [0]);
}

#[test]
fn requests_wait_for_the_first_process_of_an_application() {
    let mut play = PoolTest::new(&[], |_| {});
    assert_eq!(play.claim(&[], None), ClaimResult::Queued);
    let mut play = PoolTest::new(&[(1, false)], |_| {});
    let key = play.keys[0];
    play.update(|pool, now| pool.remove(now, key));
    assert_eq!(
        play.claim(&[], None),
        ClaimResult::Unavailable,
        "these were configured"
    );
}

#[test]
fn the_last_server_is_never_ejected() {
    let mut play = PoolTest::new(&[(9, false), (9, false)], |_| {});
    for at in [0, 1] {
        assert_eq!(play.claim(&[], Some(at)), ClaimResult::Slot(at));
    }
    play.fail(0);
    play.fail(1);
    assert_eq!(play.claim(&[], None), ClaimResult::Slot(1));
}
