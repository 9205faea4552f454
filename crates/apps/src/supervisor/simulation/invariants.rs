//! What holds between any two events, whatever they are.

use super::*;

impl SupervisorSimulation {
    pub(super) fn check_invariants(&mut self) {
        let s = &self.supervisor;
        assert!(s.workers().map(|w| &w.id).eq(self.processes.keys()));
        let policy = &s.policy;
        let target = s.target_workers;
        assert!((policy.min_processes..=policy.max_processes).contains(&target));
        assert_eq!(s.threads_per_worker, self.threads, "the executor was told");
        let threads = policy.min_threads..=policy.max_threads;
        assert!(s.phase != SupervisorPhase::Running || threads.contains(&self.threads));
        assert!(s.phase != SupervisorPhase::Running || s.replicas.len() == target);
        let serves = |w: &&Worker| matches!(w.state, WorkerState::Booting | WorkerState::Ready);
        assert!(s.workers().filter(serves).count() <= target + self.max_surge);
        for worker in s.workers().filter(|w| w.pid.is_none() && !serves(w)) {
            assert!(self.processes[&worker.id].is_abandoned, "it is asked about");
        }
        for worker in s.workers().filter(serves) {
            let holds =
                |replica: &&Replica| [replica.worker, replica.successor].contains(&Some(worker.id));
            assert_eq!(
                s.replicas.iter().filter(holds).count(),
                1,
                "one replica each"
            );
        }
        let seated = s
            .replicas
            .iter()
            .flat_map(|replica| [replica.worker, replica.successor]);
        let mut seated = seated.flatten();
        assert!(seated.all(|id| s.workers.get(&id).is_some_and(|w| serves(&w))));
        let mut successors = s.replicas.iter().filter_map(|replica| replica.successor);
        assert!(successors.all(|id| s.workers[&id].generation == s.generation));
        let successors = s
            .replicas
            .iter()
            .filter(|replica| replica.successor.is_some());
        let successors = successors.count();
        assert!(successors <= self.max_surge);
        assert!(
            successors <= 1 || !s.is_restart_unproven(),
            "the first is alone"
        );
        self.max_surge = successors.max(policy.max_surge);
        let rate = policy.spawn_rate as usize;
        for (times, max) in [(&mut self.spawns, 20 * rate), (&mut self.growth, rate)] {
            times.retain(|at| self.now - *at < Duration::from_secs(1));
            assert!(times.len() <= max, "{} within a second", times.len());
        }
        let is_short = s.ready_worker_count() < target && s.phase == SupervisorPhase::Running;
        let has_hope = s.has_booting_worker() || self.alarm.is_some();
        assert!(!is_short || has_hope, "somebody boots or is about to");
        assert!(
            s.next_wake().is_none_or(|at| at > self.now),
            "nothing is overdue"
        );
        assert!(s.phase != SupervisorPhase::Running || s.generation == self.generation);
        let owed = usize::from(s.rolling_restart.is_some()) + usize::from(s.is_restart_queued);
        assert_eq!(self.restarts, owed as u64, "each restart is answered once");
    }
}
