//! The roster's promises, without sockets or clocks: who gets a place, who waits for whom, and that every
//! place is counted from the moment it is given.

use std::time::Duration;

use penstock_config::{Protocol, ServerAddr, Upstream, UpstreamServer};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A roster with servers of these bounds, the backups marked, and a clock to move.
struct Play {
    roster: Roster,
    now: Instant,
    keys: Vec<MemberKey>,
    waiting: Vec<oneshot::Receiver<Result<Grant, String>>>,
}

#[derive(Debug, PartialEq)]
enum Got {
    Place(usize),
    Waits,
    Full,
    Nobody,
}

impl Play {
    fn new(servers: &[(u32, bool)], change: impl FnOnce(&mut Upstream)) -> Self {
        let address = |at: usize| format!("127.0.0.1:{}", 1000 + at).parse().unwrap();
        let configured = |at| UpstreamServer::new(ServerAddr::Tcp(address(at)));
        let mut config = Upstream::new(
            "u",
            Protocol::Http,
            (0..servers.len()).map(configured).collect(),
        );
        config.eject.failures = 1;
        config.eject.time = SECOND;
        change(&mut config);
        let now = Instant::now();
        let mut play = Self {
            roster: Roster::new(&Arc::new(config), 2, now),
            now,
            keys: Vec::new(),
            waiting: Vec::new(),
        };
        for (at, &(capacity, backup)) in servers.iter().enumerate() {
            let spec = MemberSpec {
                address: ServerAddr::Tcp(address(at)),
                weight: 1,
                capacity,
                backup,
                generation: 0,
            };
            let name = format!("server {at}").into();
            let mut after = Aftermath::default();
            let place = Address::Tcp(address(at));
            let key = play.roster.add(now, place, name, spec, &mut after);
            play.keys.push(key);
        }
        play
    }

    fn claim(&mut self, tried: &[usize], sticky: Option<usize>) -> Got {
        let tried: Vec<MemberKey> = tried.iter().map(|&at| self.keys[at]).collect();
        let want = Want {
            sticky: sticky.map(|at| number(&format!("server {at}"))),
            tried: &tried,
            is_new: tried.is_empty(),
            ..Want::default()
        };
        let mut made = None;
        let waiter = || {
            let (grant, granted) = oneshot::channel();
            made = Some(granted);
            Waiter {
                grant,
                client: None,
            }
        };
        let mut after = Aftermath::default();
        let claimed = self.roster.claim(self.now, 0, &want, waiter, &mut after);
        self.waiting.extend(made);
        match claimed {
            Claimed::Place(place) => Got::Place(self.at(place.key)),
            Claimed::Waiting { .. } => Got::Waits,
            Claimed::Full { .. } => Got::Full,
            Claimed::Nobody { .. } => Got::Nobody,
        }
    }

    /// Ends a request at a server; gives to which servers those who waited were sent.
    fn end(&mut self, at: usize, outcome: Outcome) -> Vec<usize> {
        let slot = self.member(at).slot;
        let ended = Ended {
            outcome,
            queue: None,
            connect: None,
            answer: None,
        };
        self.act(|roster, now, after| roster.release(now, slot, None, &ended, after))
    }

    fn fail(&mut self, at: usize) -> Vec<usize> {
        self.end(at, Outcome::Failure { timeout: false })
    }

    fn act(&mut self, act: impl FnOnce(&mut Roster, Instant, &mut Aftermath)) -> Vec<usize> {
        let mut after = Aftermath::default();
        act(&mut self.roster, self.now, &mut after);
        let index = |start: &DispatchedJob<Waiter>| self.roster.index_of(start.slot_id).unwrap();
        let granted = after.starts.iter().map(index);
        granted
            .map(|at| self.at(self.roster.members[at].key))
            .collect()
    }

    fn pass(&mut self, time: Duration) -> Vec<usize> {
        self.now += time;
        self.act(|roster, now, after| roster.tick(now, after))
    }

    fn at(&self, key: MemberKey) -> usize {
        self.keys.iter().position(|known| *known == key).unwrap()
    }

    fn member(&self, at: usize) -> &Member {
        let index = self.roster.find(self.keys[at]).unwrap();
        &self.roster.members[index]
    }

    fn active(&self, at: usize) -> u32 {
        self.member(at).active
    }
}

#[test]
fn no_server_has_more_than_its_bound_and_a_freed_place_goes_to_the_oldest() {
    let mut play = Play::new(&[(1, false), (1, false)], |_| {});
    let mut first = [play.claim(&[], None), play.claim(&[], None)];
    first.sort_by_key(|got| format!("{got:?}"));
    assert_eq!(first, [Got::Place(0), Got::Place(1)]);
    assert_eq!(play.claim(&[], None), Got::Waits);
    assert_eq!(play.end(1, Outcome::Success), [1]);
    assert_eq!((play.active(0), play.active(1)), (1, 1));
}

#[test]
fn a_place_counts_as_taken_before_anybody_picks_it_up() {
    let mut play = Play::new(&[(1, false)], |_| {});
    assert_eq!(play.claim(&[], None), Got::Place(0));
    assert_eq!(play.claim(&[], None), Got::Waits);
    assert_eq!(play.end(0, Outcome::Success), [0]);
    assert_eq!(play.active(0), 1, "granted, not accepted");
    let (key, slot) = (play.keys[0], play.member(0).slot);
    play.act(|roster, now, after| roster.remove(now, key, after));
    let mut after = Aftermath::default();
    let accepted = play
        .roster
        .accept(play.now, slot, 0, Reuse::Any, &mut after);
    assert!(accepted.is_some(), "it is leaving, and has that one yet");
    play.end(0, Outcome::Success);
    assert!(play.roster.members.is_empty());
}

#[test]
fn a_retry_waits_for_a_server_that_it_has_not_tried() {
    let mut play = Play::new(&[(1, false), (1, false)], |config| {
        config.eject.failures = 0;
    });
    assert_eq!(play.claim(&[], Some(1)), Got::Place(1));
    assert_eq!(play.claim(&[], Some(0)), Got::Place(0));
    assert_eq!(play.fail(0), [] as [usize; 0]);
    assert_eq!(
        play.claim(&[0], None),
        Got::Waits,
        "server 0 is free, and was tried"
    );
    assert_eq!(play.end(1, Outcome::Success), [1]);
}

#[test]
fn backups_take_requests_only_while_no_other_server_does() {
    let mut play = Play::new(&[(1, false), (9, true)], |_| {});
    assert_eq!(play.claim(&[], None), Got::Place(0));
    assert_eq!(
        play.claim(&[], None),
        Got::Waits,
        "the other is busy, not down"
    );
    assert_eq!(play.fail(0), [1], "who waited goes to the backup");
    assert_eq!(play.claim(&[], None), Got::Place(1));
}

#[test]
fn a_server_on_trial_does_not_send_the_backups_home() {
    let mut play = Play::new(&[(9, false), (9, true)], |_| {});
    assert_eq!(play.claim(&[], None), Got::Place(0));
    play.fail(0);
    play.pass(2 * SECOND);
    let mut places = [
        play.claim(&[], None),
        play.claim(&[], None),
        play.claim(&[], None),
    ];
    places.sort_by_key(|got| format!("{got:?}"));
    assert_eq!(
        places,
        [Got::Place(0), Got::Place(1), Got::Place(1)],
        "one for the trial"
    );
    play.end(0, Outcome::Success);
    assert_eq!(play.claim(&[], None), Got::Place(0));
    assert_eq!(play.claim(&[], None), Got::Place(0));
}

#[test]
fn a_retry_at_a_backup_is_not_given_to_somebody_in_line() {
    let mut play = Play::new(&[(1, false), (1, true)], |config| config.eject.failures = 0);
    assert_eq!(play.claim(&[], None), Got::Place(0));
    assert_eq!(play.claim(&[], None), Got::Waits);
    assert_eq!(play.fail(0), [0], "the next in line");
    assert_eq!(play.claim(&[0], None), Got::Place(1));
    assert_eq!(
        play.claim(&[0], None),
        Got::Nobody,
        "its one place is taken"
    );
    assert_eq!(play.end(1, Outcome::Success), [] as [usize; 0]);
}

#[test]
fn a_client_with_a_cookie_waits_for_its_server_and_only_while_it_is_up() {
    let mut play = Play::new(&[(1, false), (1, false)], |_| {});
    assert_eq!(play.claim(&[], Some(0)), Got::Place(0));
    assert_eq!(play.claim(&[], Some(0)), Got::Waits, "the other is free");
    assert_eq!(play.fail(0), [1], "it is not up any more");
}

#[test]
fn who_waits_for_a_backup_by_its_cookie_is_freed_when_that_is_called_off() {
    let mut play = Play::new(&[(1, false), (1, true)], |_| {});
    assert_eq!(play.claim(&[], None), Got::Place(0));
    play.fail(0);
    assert_eq!(play.claim(&[], Some(1)), Got::Place(1));
    assert_eq!(play.claim(&[], Some(1)), Got::Waits);
    assert_eq!(
        play.pass(2 * SECOND),
        [] as [usize; 0],
        "the other is on trial"
    );
    assert_eq!(play.claim(&[], Some(0)), Got::Place(0));
    assert_eq!(play.end(0, Outcome::Success), [0]);
}

#[test]
fn an_application_s_requests_wait_for_its_first_process() {
    let mut play = Play::new(&[], |_| {});
    assert_eq!(play.claim(&[], None), Got::Waits);
    let mut play = Play::new(&[(1, false)], |_| {});
    let key = play.keys[0];
    play.act(|roster, now, after| roster.remove(now, key, after));
    assert_eq!(play.claim(&[], None), Got::Nobody, "these were configured");
}

#[test]
fn the_last_server_is_not_put_aside_for_failures() {
    let mut play = Play::new(&[(9, false), (9, false)], |_| {});
    for at in [0, 1] {
        assert_eq!(play.claim(&[], Some(at)), Got::Place(at));
    }
    play.fail(0);
    play.fail(1);
    assert_eq!(play.claim(&[], None), Got::Place(1));
}
