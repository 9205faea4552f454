//! Templates: processes that load the application once and from which its workers are forked.
//!
//! The executor's part for `preload`. The first `Spawn` of a generation starts its template, later
//! ones wait for it; when it is ready each is a FORK. A forked worker becomes the server's own
//! child (`forking`).
//!
//! # Invariants
//! - Every `Spawn` is answered.
//! - There is a template only for a generation that may still be spawned, and one that fails takes
//!   no serving worker down.

mod template_view;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penstock_config::Preload;
use penstock_runtime::clock;
use penstock_sys::process::{ProcessExit, ProcessHandle, SpawnedProcess};

use super::control::{ControlHandle, ControlLine};
use super::forking::PendingFork;
use super::launching::Purpose;
use super::process_task::{GroupHold, OutputTail, Readiness};
use super::processes::restore_priority;
use super::{ChildProcess, ControlMessage, Executor, ExecutorInput, ProcessKey};
use crate::shared::DispatchMode;
use crate::supervisor::{SupervisorEvent, WorkerId};

/// How long a template may take to end: it has nothing to do then.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The most workers that a template is ordered to fork ahead. It forks one after the
/// other, and what it has been told cannot be taken back.
const MAX_ORDERED_FORKS: usize = 16;

/// All templates of an application, and the forks in progress.
#[derive(Debug, Default)]
pub(super) struct Templates {
    processes: HashMap<ProcessKey, Template>,
    started_count: u64,
    pub(super) pending_forks: HashMap<WorkerId, PendingFork>,
    /// Generations of which nothing can be forked, and why.
    unforkable: HashMap<u64, String>,
    /// Generations whose workers do not become templates, after one tried.
    pub(super) not_reforked: Vec<u64>,
}

#[derive(Debug)]
struct Template {
    /// None while it is being started.
    process: Option<ProcessHandle>,
    group_hold: GroupHold,
    generation: u64,
    /// It lets others go first while it boots.
    has_low_priority: bool,
    started_at: Instant,
    output_tail: OutputTail,
    /// None once it is to end.
    control: Option<ControlHandle>,
    state: TemplateState,
    /// Workers that wait for it: until it is ready, and then until it has forked those before them.
    waiting_workers: VecDeque<WorkerId>,
    /// Proportional memory when it was last measured, in bytes.
    memory_bytes: Option<u64>,
    /// How many workers were templates of this generation before they were.
    renewals: usize,
    /// Tries to fork, of one worker or of many at once, that failed since the last one that did
    /// not.
    failed_forks: u32,
}

#[derive(Debug)]
enum TemplateState {
    Starting,
    Ready,
    Ending,
}

impl Templates {
    /// Notes a fork that this template could not make; how many tries in a row have come to
    /// nothing. Those that were asked for together are one.
    pub(super) fn record_fork_failure(&mut self, key: ProcessKey) -> u32 {
        let is_more = self
            .pending_forks
            .values()
            .any(|forking| forking.template == key);
        let Some(template) = self.processes.get_mut(&key) else {
            return 0;
        };
        if !is_more && template.waiting_workers.is_empty() {
            template.failed_forks = template.failed_forks.saturating_add(1);
        }
        template.failed_forks
    }

    pub(super) fn record_fork(&mut self, key: ProcessKey) {
        if let Some(template) = self.processes.get_mut(&key) {
            template.failed_forks = 0;
        }
    }

    fn find_by_generation(&self, generation: u64) -> Option<(ProcessKey, &Template)> {
        let is_it =
            |t: &Template| t.generation == generation && !matches!(t.state, TemplateState::Ending);
        let mut all = self.processes.iter().filter(|(_, t)| is_it(t));
        all.next().map(|(key, template)| (*key, template))
    }

    /// The template of this generation that forks, and how many there were before it.
    pub(super) fn find_ready(&self, generation: u64) -> Option<(ProcessKey, usize)> {
        let (key, template) = self.find_by_generation(generation)?;
        matches!(template.state, TemplateState::Ready).then_some((key, template.renewals))
    }

    pub(super) fn generation(&self, key: ProcessKey) -> Option<u64> {
        self.processes.get(&key).map(|template| template.generation)
    }

    /// Has a template fork a worker; `false` when it takes no orders.
    pub(super) fn order_fork(&self, key: ProcessKey, worker: WorkerId, with: [OwnedFd; 3]) -> bool {
        let template = self.processes.get(&key);
        let control = template.and_then(|template| template.control.as_ref());
        control.is_some_and(|control| control.order_fork(worker, with))
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = (ProcessKey, u32)> {
        let all = self.processes.iter();
        all.filter_map(|(key, template)| Some((*key, template.process.as_ref()?.pid())))
    }

    pub(super) fn set_memory(&mut self, key: ProcessKey, bytes: Option<u64>) {
        if let Some(template) = self.processes.get_mut(&key) {
            template.memory_bytes = bytes.or(template.memory_bytes);
        }
    }

    /// How many workers a template has been told to fork and has not.
    fn ordered_forks(&self, key: ProcessKey) -> usize {
        let forking = self.pending_forks.values();
        forking.filter(|forking| forking.template == key).count()
    }

    fn push_waiting(&mut self, key: ProcessKey, worker: WorkerId) {
        if let Some(template) = self.processes.get_mut(&key) {
            template.waiting_workers.push_back(worker);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    pub(super) fn contains(&self, key: ProcessKey) -> bool {
        self.processes.contains_key(&key)
    }
}

impl Executor {
    /// Spawns a worker in the way that its generation allows: `Spawned` or `SpawnFailed` will be
    /// said.
    pub(super) fn spawn_worker(&mut self, worker: WorkerId, generation: u64) -> Result<(), String> {
        let is_plain = match self.shared.dispatch_mode {
            DispatchMode::Workers(_) => {
                self.config.preload == Preload::Never
                    || self.templates.unforkable.contains_key(&generation)
            }
            DispatchMode::Servers(_) => true,
        };
        if is_plain {
            return self.spawn_plain(worker, generation);
        }
        match self
            .templates
            .find_by_generation(generation)
            .map(|(key, _)| key)
        {
            Some(key) => self.spawn_from_template(key, worker),
            None => self.start_template(worker, generation),
        }
    }

    fn spawn_from_template(&mut self, key: ProcessKey, worker: WorkerId) -> Result<(), String> {
        let Some(template) = self.templates.processes.get_mut(&key) else {
            return Err("the template is gone".to_owned());
        };
        let is_ready =
            matches!(template.state, TemplateState::Ready) && template.waiting_workers.is_empty();
        if !is_ready || self.templates.ordered_forks(key) >= MAX_ORDERED_FORKS {
            self.templates.push_waiting(key, worker);
            return Ok(());
        }
        self.order_fork(key, worker)
    }

    fn start_template(&mut self, worker: WorkerId, generation: u64) -> Result<(), String> {
        let (launch, control, line) = self.prepare_template()?;
        self.templates.started_count += 1;
        let key = ProcessKey::Template(self.templates.started_count);
        let (held, _) = GroupHold::new();
        let template = Template {
            process: None,
            group_hold: held,
            generation,
            has_low_priority: false,
            started_at: clock::now(),
            output_tail: OutputTail::default(),
            control: Some(control),
            state: TemplateState::Starting,
            waiting_workers: VecDeque::from([worker]),
            memory_bytes: None,
            renewals: 0,
            failed_forks: 0,
        };
        self.templates.processes.insert(key, template);
        let purpose = Purpose::Template(line);
        self.launch(key, generation, (launch, None), purpose);
        let deadline = clock::now() + self.config.boot_timeout;
        self.schedule_input(deadline, ExecutorInput::TemplateOverdue { key });
        Ok(())
    }

    pub(super) fn handle_template_started(
        &mut self,
        key: ProcessKey,
        started: SpawnedProcess,
        line: ControlLine,
    ) {
        let generation = self.templates.generation(key);
        let gives_way =
            generation.is_some_and(|generation| self.lower_priority(generation, &started));
        let Some(template) = self.templates.processes.get_mut(&key) else {
            return;
        };
        let (held, group) = GroupHold::new();
        template.process = Some(started.handle());
        template.has_low_priority = gives_way;
        template.group_hold = held;
        let (readiness, tail) = (Readiness::Control(line), template.output_tail.clone());
        self.spawn_follower(key, started, readiness, tail, group);
        self.publish_view();
    }

    /// A worker is not wanted any more before there is one; `true` when none will come. One that is
    /// being forked is answered for soon in any case.
    pub(super) fn abandon_spawn(&mut self, worker: WorkerId) -> bool {
        let is_given_up = self.launching.remove(&ProcessKey::Worker(worker)).is_some();
        is_given_up
            || self.templates.processes.values_mut().any(|template| {
                let before = template.waiting_workers.len();
                template
                    .waiting_workers
                    .retain(|waiting| *waiting != worker);
                template.waiting_workers.len() < before
            })
    }
}

impl Executor {
    pub(super) fn handle_template_message(&mut self, key: ProcessKey, message: ControlMessage) {
        let name = &self.shared.name;
        let Some(template) = self.templates.processes.get_mut(&key) else {
            return;
        };
        let generation = template.generation;
        // It says nothing before it runs.
        let Some(process) = template.process.clone() else {
            return;
        };
        let pid = process.pid();
        match message {
            ControlMessage::Ready {
                interpreter,
                kind,
                prevents_fork,
                leaves_threads,
            } => {
                if !matches!(template.state, TemplateState::Starting) {
                    return;
                }
                if let Err(report) = self.settle_kind(pid, kind) {
                    return self.fail_template(key, report);
                }
                let name = &self.shared.name;
                let Some(template) = self.templates.processes.get_mut(&key) else {
                    return;
                };
                let boot = clock::now().saturating_duration_since(template.started_at);
                template.state = TemplateState::Ready;
                restore_priority(&process, template.has_low_priority);
                self.interpreter = interpreter;
                match prevents_fork {
                    None => {
                        log::info!("{name}[{pid}]: template ready in {boot:.1?}");
                        if let Some(threads) = leaves_threads {
                            log::info!(
                                "{name}[{pid}]: its workers are forked without the threads that run \
                                 in it: {threads}"
                            );
                        }
                        self.fork_waiting_workers(key);
                    }
                    Some(why) => {
                        let advice = match self.config.preload {
                            Preload::Auto => "`preload = true` forks whatever threads there are, ",
                            Preload::Always | Preload::Never => "",
                        };
                        log::warn!(
                            "{name}[{pid}]: the application cannot be forked: {why}; each worker \
                             loads it for itself ({advice}`preload = false` spares the attempt)"
                        );
                        let waiting = std::mem::take(&mut template.waiting_workers);
                        self.templates.unforkable.insert(generation, why);
                        self.end_template(key);
                        self.spawn_all_directly(generation, waiting);
                    }
                }
            }
            ControlMessage::BootFailed { traceback } => self.fail_template(key, traceback),
            ControlMessage::ForkFailed { worker, reason } => {
                self.handle_fork_failed(key, worker, &reason);
            }
            ControlMessage::ProtocolBroken(why) => {
                log::error!("{name}[{pid}]: the template broke the worker protocol: {why}");
                self.fail_template(
                    key,
                    format!("the template broke the worker protocol: {why}"),
                );
                // A template that says nonsense may do it for ever.
                let _ = process.kill();
            }
            // Said of servers only.
            ControlMessage::NoAnswer => {}
        }
        self.publish_view();
    }

    /// Has a template fork as many of those that wait as it may be told.
    pub(super) fn fork_waiting_workers(&mut self, key: ProcessKey) {
        while self.templates.ordered_forks(key) < MAX_ORDERED_FORKS {
            let template = self.templates.processes.get_mut(&key);
            let ready = template.filter(|template| matches!(template.state, TemplateState::Ready));
            let Some(worker) = ready.and_then(|template| template.waiting_workers.pop_front())
            else {
                return;
            };
            if let Err(reason) = self.order_fork(key, worker) {
                self.fail_spawn(worker, reason);
            }
        }
    }

    fn spawn_all_directly(&mut self, generation: u64, waiting: VecDeque<WorkerId>) {
        for worker in waiting {
            if let Err(reason) = self.spawn_plain(worker, generation) {
                self.fail_spawn(worker, reason);
            }
        }
    }

    pub(super) fn handle_template_overdue(&mut self, key: ProcessKey) {
        let Some(template) = self.templates.processes.get(&key) else {
            return;
        };
        let Some(process) = template.process.clone() else {
            let limit = self.config.boot_timeout;
            return self.fail_template(key, format!("the application did not run after {limit:?}"));
        };
        match template.state {
            TemplateState::Ready => {}
            TemplateState::Ending => {
                // An ended process needs no signal.
                let _ = process.kill_process();
            }
            TemplateState::Starting => {
                let (limit, tail) = (self.config.boot_timeout, template.output_tail.text());
                let report = format!(
                    "the application was not loaded after {limit:?} and was killed\n{tail}"
                );
                self.fail_template(key, report);
                let _ = process.kill();
            }
        }
    }

    pub(super) fn handle_template_exited(&mut self, key: ProcessKey, exit: Option<ProcessExit>) {
        let Some(template) = self.templates.processes.get(&key) else {
            return;
        };
        let how = exit.map_or_else(|| "ended".to_owned(), |exit| format!("ended with {exit}"));
        match template.state {
            TemplateState::Starting => {
                let tail = template.output_tail.text();
                let report = format!("the template {how} before it was ready\n{tail}");
                self.fail_template(key, report);
            }
            TemplateState::Ready => {
                let name = &self.shared.name;
                let pid = template.process.as_ref().map_or(0, ProcessHandle::pid);
                log::error!(
                    "{name}[{pid}]: the template {how} unasked; the next one loads what is on disk then"
                );
                self.fail_template(key, format!("the template {how}"));
            }
            TemplateState::Ending => {}
        }
        self.templates.processes.remove(&key);
        self.publish_view();
        self.stop_when_empty();
    }

    /// Nothing will come of it: those that wait for it are told, and the log once.
    pub(super) fn fail_template(&mut self, key: ProcessKey, report: String) {
        let template = self.templates.processes.get_mut(&key);
        let waiting = template.map(|template| std::mem::take(&mut template.waiting_workers));
        self.end_template(key);
        let waiting = waiting.unwrap_or_default();
        for worker in waiting {
            let reason = report.clone();
            self.handle_event(SupervisorEvent::SpawnFailed { worker, reason });
            // The same words of all the others.
            self.is_repeated_report = true;
        }
        self.is_repeated_report = false;
    }

    /// Ends a template that is of no use; those that wait for it wait for the next.
    pub(super) fn renew_template(&mut self, key: ProcessKey) {
        let template = self.templates.processes.get_mut(&key);
        let Some((generation, waiting)) =
            template.map(|t| (t.generation, std::mem::take(&mut t.waiting_workers)))
        else {
            return;
        };
        self.end_template(key);
        for worker in waiting {
            if let Err(reason) = self.spawn_worker(worker, generation) {
                self.fail_spawn(worker, reason);
            }
        }
    }

    /// Has a template end: by itself, or by force a moment later.
    pub(super) fn end_template(&mut self, key: ProcessKey) {
        let Some(generation) = self.templates.generation(key) else {
            return;
        };
        if self.abandon_template(key) {
            return self.stop_when_empty();
        }
        let is_used = self.has_workers_of(generation);
        let Some(template) = self.templates.processes.get_mut(&key) else {
            return;
        };
        template.control = None;
        // What the application has started while it loaded serves the workers.
        if is_used && matches!(template.state, TemplateState::Ready) {
            template.group_hold.set_held(true);
        }
        let before = std::mem::replace(&mut template.state, TemplateState::Ending);
        if matches!(before, TemplateState::Ending) {
            return;
        }
        if matches!(before, TemplateState::Starting) {
            // It does not look at its socket while it loads the application.
            let _ = template.process.as_ref().map(ProcessHandle::terminate);
        }
        let at = clock::now() + END_TIMEOUT;
        self.schedule_input(at, ExecutorInput::TemplateOverdue { key });
    }

    /// Gives up one that does not run yet: nothing will tell its end.
    fn abandon_template(&mut self, key: ProcessKey) -> bool {
        let is_starting = |template: &Template| template.process.is_none();
        let is_abandoned = self.templates.processes.get(&key).is_some_and(is_starting);
        if is_abandoned {
            self.launching.remove(&key);
            self.templates.processes.remove(&key);
        }
        is_abandoned
    }

    fn has_workers_of(&self, generation: u64) -> bool {
        let mut children = self.children.values().map(|child| child.generation);
        let mut forking = self.templates.pending_forks.values().map(|f| f.generation);
        children.any(|g| g == generation) || forking.any(|g| g == generation)
    }

    /// Ends the templates of which nothing will be forked any more, and what they have started once
    /// no worker is left that they serve.
    pub(super) fn end_unused_templates(&mut self) {
        let (current, fallback) = self.supervisor.generations();
        let is_draining = self.is_draining;
        let is_wanted = |generation: u64| {
            !is_draining && (generation == current || Some(generation) == fallback)
        };
        self.templates
            .unforkable
            .retain(|generation, _| is_wanted(*generation));
        self.templates
            .not_reforked
            .retain(|generation| is_wanted(*generation));
        let mut unwanted = Vec::new();
        for (key, template) in &self.templates.processes {
            let is_needed = !template.waiting_workers.is_empty();
            if !is_wanted(template.generation) && !is_needed {
                unwanted.push(*key);
            }
        }
        for key in unwanted {
            self.end_template(key);
        }
        for template in self.templates.processes.values() {
            let generation = template.generation;
            let is_used = is_wanted(generation) || self.has_workers_of(generation);
            if template.group_hold.is_held() && !is_used {
                template.group_hold.set_held(false);
            }
        }
    }

    /// Makes a worker that was promoted the template of its generation, in place of the one before.
    pub(super) fn install_template(&mut self, worker: WorkerId, child: ChildProcess) {
        let generation = child.generation;
        let before = self
            .templates
            .find_by_generation(generation)
            .map(|(key, t)| (key, t.renewals));
        let mut waiting = VecDeque::new();
        if let Some((key, _)) = before {
            let template = self.templates.processes.get_mut(&key);
            waiting = template.map_or(waiting, |template| {
                std::mem::take(&mut template.waiting_workers)
            });
            self.end_template(key);
        }
        let template = Template {
            process: Some(child.process),
            group_hold: child.group_hold,
            generation,
            has_low_priority: false,
            started_at: child.started_at,
            output_tail: child.output_tail,
            control: child.control,
            state: TemplateState::Ready,
            waiting_workers: waiting,
            memory_bytes: None,
            renewals: before.map_or(0, |(_, renewals)| renewals) + 1,
            failed_forks: 0,
        };
        let key = ProcessKey::Worker(worker);
        self.templates.processes.insert(key, template);
        self.fork_waiting_workers(key);
    }
}
