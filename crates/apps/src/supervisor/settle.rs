//! What follows from the state, after every event: who is spawned, replaced, retired or killed.
//!
//! The second half of the supervisor's machine, after `events`. What must stay true: called twice in
//! a row it does nothing the second time; whatever it leaves undone has an event or the alarm that
//! brings it back.

use std::cmp::Reverse;
use std::time::Instant;

use super::seat::{Backoff, Seat};
use super::{Action, KillReason, Phase, Policy, Report, Roll, Supervisor, Worker, WorkerState};

impl Supervisor {
    /// Brings the workers in line with the state, and answers what is to be done.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<Action> {
        self.meet_deadlines(now);
        if self.phase == Phase::Running {
            self.fit_seats(now);
            self.finish_roll(now);
            if self.is_roll_queued && self.roll.is_none() {
                self.begin_roll(now);
                // Without any process there is nothing to wait for.
                self.finish_roll(now);
            }
            self.fill_seats(now);
            self.challenge(now);
            self.notice_up(now);
            self.is_catching_up &= !self.was_up || self.ready() < self.target;
        }
        if self.phase == Phase::Draining && self.workers.is_empty() {
            self.phase = Phase::Stopped;
            self.actions.push(Action::Stopped);
        }
        let wake_at = self.next_wake();
        if wake_at != self.wake_at {
            self.wake_at = wake_at;
            self.actions.extend(wake_at.map(Action::WakeAt));
        }
        std::mem::take(&mut self.actions)
    }

    fn meet_deadlines(&mut self, now: Instant) {
        let is_overdue = |w: &&Worker| w.deadline.is_some_and(|at| at <= now);
        let next = |s: &Self| s.workers().find(is_overdue).map(|w| (w.id, w.state));
        while let Some((id, state)) = next(self) {
            if state != WorkerState::Booting {
                self.kill(now, id, KillReason::StopTimedOut);
                continue;
            }
            let limit = self.policy.boot_timeout;
            let report = format!("the worker was not ready after {limit:?} and was killed");
            self.fail_boot(now, id, report);
            self.kill(now, id, KillReason::BootTimedOut);
        }
    }

    fn fit_seats(&mut self, now: Instant) {
        let Policy {
            processes_min: min,
            processes_max: max,
            ..
        } = self.policy;
        self.target = self.target.min(max).max(min);
        let threads = self.threads.min(self.policy.threads_max);
        self.set_threads(threads.max(self.policy.threads_min));
        while self.seats.len() > self.target
            && let Some(place) = self.surplus_seat()
        {
            let seat = self.seats.remove(place);
            self.leave_seat(now, &seat);
        }
        self.seats.resize_with(self.target, Seat::default);
    }

    /// The seat to give up when there is one too many: one that does not serve, or whose worker is to
    /// be replaced anyway, else the newest.
    fn surplus_seat(&self) -> Option<usize> {
        let cost = |place: &usize| {
            let seat = &self.seats[*place];
            let worker = self.holder(seat);
            let worker = worker.filter(|w| w.state == WorkerState::Ready);
            let generation = worker.map_or(0, |w| w.generation);
            let is_wanted = worker.is_some_and(|w| self.is_fresh(w));
            let is_contested = seat.challenger.is_some();
            (is_wanted, is_contested, generation, Reverse(*place))
        };
        (0..self.seats.len()).min_by_key(cost)
    }

    fn begin_roll(&mut self, now: Instant) {
        let has_ready = self.ready() > 0;
        self.is_roll_queued = false;
        self.restart_error = None;
        self.roll = Some(Roll {
            fallback: has_ready.then_some(self.generation),
            is_proven: false,
            began_at: now,
        });
        self.generation_last += 1;
        self.generation = self.generation_last;
        self.boots = Backoff::default();
        self.seats.iter_mut().for_each(Seat::forgive);
        let generation = self.generation;
        self.tell(Report::RestartBegan { generation });
        // A successor in the making has no place in this roll, and when nothing serves there is
        // nothing that old code still booting could save.
        self.call_off(now, |seat| seat.challenger.take());
        if !has_ready {
            self.call_off(now, |seat| seat.worker.take());
        }
    }

    fn fill_seats(&mut self, now: Instant) {
        let fallback = self.roll.as_ref().and_then(|roll| roll.fallback);
        let fallback = fallback.filter(|_| self.is_unproven());
        let generation = fallback.unwrap_or(self.generation);
        for place in 0..self.seats.len() {
            let seat = &self.seats[place];
            if seat.worker.is_some() {
                continue;
            }
            let challenger = seat.challenger.and_then(|id| self.workers.get(&id));
            if challenger.is_some_and(|w| w.generation == generation) {
                // It was to replace one that is gone now.
                let seat = &mut self.seats[place];
                seat.worker = seat.challenger.take();
                continue;
            }
            let is_due = seat.next_at().is_none_or(|at| at <= now);
            if is_due && self.may_boot(now) && self.may_spawn(now) {
                let worker = self.spawn(now, place, generation);
                self.seats[place].worker = Some(worker);
            }
        }
    }

    /// Replaces workers that run other code than they should, or are worn.
    fn challenge(&mut self, now: Instant) {
        while let Some(replacement) = self.next_replacement() {
            // The first failure of a new version ends its trial, so back-off has no say in it.
            if !(self.is_trial() || self.may_boot(now)) || !self.may_spawn(now) {
                return;
            }
            match replacement {
                Replacement::Beside(place) => {
                    let challenger = self.spawn(now, place, self.generation);
                    self.seats[place].challenger = Some(challenger);
                }
                Replacement::InPlace(place) => {
                    if let Some(old) = self.seats[place].worker.take() {
                        self.displace(now, old);
                    }
                    let worker = self.spawn(now, place, self.generation);
                    self.seats[place].worker = Some(worker);
                }
            }
        }
    }

    /// What may be replaced now, as far as numbers go.
    fn next_replacement(&self) -> Option<Replacement> {
        let challengers = self.seats.iter().filter(|seat| seat.challenger.is_some());
        let challengers = challengers.count();
        let surge = self.policy.max_surge.max(1);
        if self.is_unproven() {
            // The first of a new version is alone, and nothing is taken out for it.
            let place = self.stale_seat().filter(|_| challengers == 0);
            return place.map(Replacement::Beside);
        }
        let room_beside = surge.saturating_sub(challengers);
        // What is taken out before need not run beside.
        let removable = self.removable_max();
        let room_for_stale = room_beside.saturating_sub(removable);
        let absent = self.seats.len() - self.present();
        for (place, seat) in self.seats.iter().enumerate() {
            let worker = self.holder(seat).filter(|w| !self.is_fresh(w));
            let Some(worker) = worker.filter(|_| seat.challenger.is_none()) else {
                continue;
            };
            // One that is only worn is worth a successor beside it always.
            let is_stale = worker.generation != self.generation;
            let is_absent = worker.state != WorkerState::Ready;
            let may_stand_beside = match is_stale {
                true => room_for_stale > 0,
                false => room_beside > 0 && !is_absent,
            };
            if may_stand_beside {
                return Some(Replacement::Beside(place));
            }
            if is_stale && removable > 0 && (is_absent || absent < removable) {
                return Some(Replacement::InPlace(place));
            }
        }
        None
    }

    /// How many a restart may take out before their successors are ready.
    fn removable_max(&self) -> usize {
        let others = self.seats.len().saturating_sub(1);
        self.policy.max_unavailable.min(others)
    }

    fn finish_roll(&mut self, now: Instant) {
        let Some(roll) = &self.roll else {
            return;
        };
        let took = now.saturating_duration_since(roll.began_at);
        let is_done = |seat: &Seat| {
            let worker = self.holder(seat);
            worker.is_some_and(|w| w.state == WorkerState::Ready && w.generation == self.generation)
        };
        if self.seats.iter().all(is_done) {
            let generation = self.generation;
            self.roll = None;
            self.tell(Report::Restarted { generation, took });
            self.actions.push(Action::RestartDone(Ok(())));
        }
    }

    fn notice_up(&mut self, now: Instant) {
        let processes = self.policy.processes_min;
        if self.was_up || self.ready() < processes {
            return;
        }
        self.was_up = true;
        if let Some(started_at) = self.started_at {
            let took = now.saturating_duration_since(started_at);
            self.tell(Report::Up { processes, took });
        }
        if self.is_catching_up {
            self.target = self.target.max(self.policy.processes_at_start());
            self.fit_seats(now);
            self.fill_seats(now);
        }
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let deadlines = self.workers().filter_map(|w| w.deadline).min();
        if self.phase != Phase::Running || (self.boots.is_active() && self.is_booting()) {
            return deadlines;
        }
        let rush = self.spawns.next_at(self.spawns_max());
        let held_back = self.boots.next_at().max(rush);
        let vacant = self.seats.iter().filter(|seat| seat.worker.is_none());
        // A seat without a date of its own waits for the application's.
        let tries = vacant.filter_map(|seat| seat.next_at().max(held_back));
        let waits = self.next_replacement().is_some();
        let replacement = match self.is_trial() {
            true => rush,
            false => held_back,
        };
        let replacement = replacement.filter(|_| waits);
        deadlines.into_iter().chain(tries).chain(replacement).min()
    }

    fn may_spawn(&mut self, now: Instant) -> bool {
        self.spawns.room(now, self.spawns_max()) > 0
    }

    fn spawns_max(&self) -> usize {
        let rate = self.policy.spawn_rate.max(1) as usize;
        rate.saturating_mul(SPAWNS_BEYOND_RATE)
    }

    pub(super) fn is_unproven(&self) -> bool {
        let roll = self.roll.as_ref();
        roll.is_some_and(|roll| roll.fallback.is_some() && !roll.is_proven)
    }

    pub(super) fn stale_seat(&self) -> Option<usize> {
        let is_stale = |seat: &Seat| self.holder(seat).is_some_and(|w| !self.is_fresh(w));
        self.seats.iter().position(is_stale)
    }

    /// Whether a worker runs what it should and is not worn.
    fn is_fresh(&self, worker: &Worker) -> bool {
        worker.worn.is_none() && worker.generation == self.generation
    }

    fn holder(&self, seat: &Seat) -> Option<&Worker> {
        seat.worker.and_then(|id| self.workers.get(&id))
    }

    /// Seats whose worker serves.
    fn present(&self) -> usize {
        let serves = |w: &&Worker| w.state == WorkerState::Ready;
        let holders = self.seats.iter().filter_map(|seat| self.holder(seat));
        holders.filter(serves).count()
    }
}

/// Where a successor is spawned.
#[derive(Clone, Copy, Debug)]
enum Replacement {
    /// In the seat, next to the worker that serves there until it is ready.
    Beside(usize),
    /// In the seat, which its worker leaves now.
    InPlace(usize),
}

/// How many times `spawn_rate` are spawned within a second at most: enough for any start, crash or
/// restart, and an end to every storm.
const SPAWNS_BEYOND_RATE: usize = 20;
