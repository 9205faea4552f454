//! What holds between any two events, whatever they are.

use super::*;

impl World {
    pub(super) fn check_invariants(&mut self) {
        let s = &self.supervisor;
        assert!(s.workers().map(|w| &w.id).eq(self.processes.keys()));
        let policy = s.policy();
        let target = s.target();
        assert!((policy.processes_min..=policy.processes_max).contains(&target));
        assert_eq!(s.threads(), self.threads, "the executor was told");
        let threads = policy.threads_min..=policy.threads_max;
        assert!(s.phase != Phase::Running || threads.contains(&self.threads));
        assert!(s.phase != Phase::Running || s.seats.len() == target);
        let serves = |w: &&Worker| matches!(w.state, WorkerState::Booting | WorkerState::Ready);
        assert!(s.workers().filter(serves).count() <= target + self.surge_max);
        for worker in s.workers().filter(|w| w.pid.is_none() && !serves(w)) {
            assert!(self.processes[&worker.id].is_abandoned, "it is asked about");
        }
        for worker in s.workers().filter(serves) {
            let holds = |seat: &&Seat| [seat.worker, seat.challenger].contains(&Some(worker.id));
            assert_eq!(s.seats.iter().filter(holds).count(), 1, "one seat each");
        }
        let seated = s
            .seats
            .iter()
            .flat_map(|seat| [seat.worker, seat.challenger]);
        let mut seated = seated.flatten();
        assert!(seated.all(|id| s.workers.get(&id).is_some_and(|w| serves(&w))));
        let mut challengers = s.seats.iter().filter_map(|seat| seat.challenger);
        assert!(challengers.all(|id| s.workers[&id].generation == s.generation));
        let challengers = s.seats.iter().filter(|seat| seat.challenger.is_some());
        let challengers = challengers.count();
        assert!(challengers <= self.surge_max);
        assert!(challengers <= 1 || !s.is_unproven(), "the first is alone");
        self.surge_max = challengers.max(policy.max_surge);
        let rate = policy.spawn_rate as usize;
        for (times, max) in [(&mut self.spawns, 20 * rate), (&mut self.growth, rate)] {
            times.retain(|at| self.now - *at < Duration::from_secs(1));
            assert!(times.len() <= max, "{} within a second", times.len());
        }
        let is_short = s.ready() < target && s.phase == Phase::Running;
        let has_hope = s.is_booting() || self.alarm.is_some();
        assert!(!is_short || has_hope, "somebody boots or is about to");
        assert!(
            s.next_wake().is_none_or(|at| at > self.now),
            "nothing is overdue"
        );
        assert!(s.phase != Phase::Running || s.generation == self.generation);
        let owed = usize::from(s.roll.is_some()) + usize::from(s.is_roll_queued);
        assert_eq!(self.restarts, owed as u64, "each restart is answered once");
    }
}
