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
use penstock_sys::process::ProcessExit;

use super::forking::PendingFork;
use super::process_task::{PendingProcess, ReadinessSource};
use super::{ChildProcess, ControlMessage, Executor, ProcessKey, RunningProcess};
use crate::shared::DispatchMode;
use crate::supervisor::{SupervisorEvent, WorkerId};

/// How long a template may take to end: it has nothing to do then.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The most workers that a template is ordered to fork ahead. It forks one after the
/// other, and an order that was sent cannot be taken back.
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
    /// `None` while it is being started. Its control socket is closed once it is to end.
    process: Option<RunningProcess>,
    generation: u64,
    started_at: Instant,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TemplateState {
    Starting,
    Ready,
    Ending,
}

impl Template {
    fn new(generation: u64, waiting_workers: VecDeque<WorkerId>) -> Self {
        Self {
            process: None,
            generation,
            started_at: clock::now(),
            state: TemplateState::Starting,
            waiting_workers,
            memory_bytes: None,
            renewals: 0,
            failed_forks: 0,
        }
    }

    fn is_group_held(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| *process.is_group_held.borrow())
    }
}

impl Templates {
    /// Records a fork that this template could not make; returns how many tries in a row have come
    /// to nothing. Those that were asked for together are one.
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

    pub(super) fn record_fork_success(&mut self, key: ProcessKey) {
        if let Some(template) = self.processes.get_mut(&key) {
            template.failed_forks = 0;
        }
    }

    fn find_by_generation(&self, generation: u64) -> Option<(ProcessKey, &Template)> {
        let is_it = |t: &Template| t.generation == generation && t.state != TemplateState::Ending;
        let mut all = self.processes.iter();
        let (key, template) = all.find(|(_, template)| is_it(template))?;
        Some((*key, template))
    }

    /// The template of this generation that forks, and how many there were before it.
    pub(super) fn find_ready(&self, generation: u64) -> Option<(ProcessKey, usize)> {
        let (key, template) = self.find_by_generation(generation)?;
        (template.state == TemplateState::Ready).then_some((key, template.renewals))
    }

    pub(super) fn generation(&self, key: ProcessKey) -> Option<u64> {
        self.processes.get(&key).map(|template| template.generation)
    }

    /// Has a template fork a worker; `false` when it takes no orders.
    pub(super) fn order_fork(&self, key: ProcessKey, worker: WorkerId, with: [OwnedFd; 3]) -> bool {
        let process = self.processes.get(&key).and_then(|it| it.process.as_ref());
        let control = process.and_then(|process| process.control.as_ref());
        control.is_some_and(|control| control.order_fork(worker, with))
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = (ProcessKey, u32)> {
        let all = self.processes.iter();
        all.filter_map(|(key, template)| Some((*key, template.process.as_ref()?.handle.pid())))
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
            return self.spawn_unforked_worker(worker, generation);
        }
        match self.templates.find_by_generation(generation) {
            Some((key, _)) => self.spawn_from_template(key, worker),
            None => self.start_template(worker, generation),
        }
    }

    fn spawn_from_template(&mut self, key: ProcessKey, worker: WorkerId) -> Result<(), String> {
        let Some(template) = self.templates.processes.get_mut(&key) else {
            return Err("the template is gone".to_owned());
        };
        let is_ready =
            template.state == TemplateState::Ready && template.waiting_workers.is_empty();
        if !is_ready || self.templates.ordered_forks(key) >= MAX_ORDERED_FORKS {
            self.templates.push_waiting(key, worker);
            return Ok(());
        }
        self.order_fork(key, worker)
    }

    fn start_template(&mut self, worker: WorkerId, generation: u64) -> Result<(), String> {
        let (launch, control, connection) = self.prepare_template()?;
        self.templates.started_count += 1;
        let key = ProcessKey::Template(self.templates.started_count);
        let template = Template::new(generation, VecDeque::from([worker]));
        let pending = PendingProcess {
            generation,
            started_at: template.started_at,
            readiness: ReadinessSource::Control(connection),
            control: Some(control),
        };
        self.templates.processes.insert(key, template);
        self.launch(key, pending, None, (launch, None));
        let deadline = clock::now() + self.config.boot_timeout;
        self.schedule(deadline, move |it| it.handle_template_overdue(key));
        Ok(())
    }

    pub(super) fn handle_template_started(&mut self, key: ProcessKey, process: RunningProcess) {
        if let Some(template) = self.templates.processes.get_mut(&key) {
            template.process = Some(process);
            self.publish_view();
        }
    }

    /// A worker is not wanted any more before there is one; `true` when none will come. One that is
    /// being forked is answered for soon in any case.
    pub(super) fn abandon_spawn(&mut self, worker: WorkerId) -> bool {
        let is_given_up = self
            .pending_launches
            .remove(&ProcessKey::Worker(worker))
            .is_some();
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
        // It sends nothing before it runs.
        let Some(process) = &template.process else {
            return;
        };
        let process = process.handle.clone();
        let pid = process.pid();
        match message {
            ControlMessage::Ready {
                interpreter,
                kind,
                prevents_fork,
                leaves_threads,
            } => {
                if template.state != TemplateState::Starting {
                    return;
                }
                if let Err(report) = self.record_detected_kind(pid, kind) {
                    return self.fail_template(key, report);
                }
                let name = &self.shared.name;
                let Some(template) = self.templates.processes.get_mut(&key) else {
                    return;
                };
                let boot = clock::now().saturating_duration_since(template.started_at);
                template.state = TemplateState::Ready;
                template
                    .process
                    .iter()
                    .for_each(RunningProcess::restore_priority);
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
                // A template that sends nonsense may do it for ever.
                let _ = process.kill();
            }
            // Reported for servers only.
            ControlMessage::NoAnswer => {}
        }
        self.publish_view();
    }

    /// Has a template fork as many of those that wait as may be ordered.
    pub(super) fn fork_waiting_workers(&mut self, key: ProcessKey) {
        while self.templates.ordered_forks(key) < MAX_ORDERED_FORKS {
            let template = self.templates.processes.get_mut(&key);
            let ready = template.filter(|template| template.state == TemplateState::Ready);
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
            if let Err(reason) = self.spawn_unforked_worker(worker, generation) {
                self.fail_spawn(worker, reason);
            }
        }
    }

    pub(super) fn handle_template_overdue(&mut self, key: ProcessKey) {
        let Some(template) = self.templates.processes.get(&key) else {
            return;
        };
        let limit = self.config.boot_timeout;
        let Some(process) = &template.process else {
            return self.fail_template(key, format!("the application did not run after {limit:?}"));
        };
        match template.state {
            TemplateState::Ready => {}
            TemplateState::Ending => {
                // An ended process needs no signal.
                let _ = process.handle.kill_process();
            }
            TemplateState::Starting => {
                let (handle, tail) = (process.handle.clone(), process.output_tail.joined_lines());
                let report = format!(
                    "the application was not loaded after {limit:?} and was killed\n{tail}"
                );
                self.fail_template(key, report);
                let _ = handle.kill();
            }
        }
    }

    pub(super) fn handle_template_exited(&mut self, key: ProcessKey, exit: Option<ProcessExit>) {
        let Some(template) = self.templates.processes.get(&key) else {
            return;
        };
        let process = template.process.as_ref();
        let how = exit.map_or_else(|| "ended".to_owned(), |exit| format!("ended with {exit}"));
        match template.state {
            TemplateState::Starting => {
                let tail = process.map_or_else(String::new, |it| it.output_tail.joined_lines());
                let report = format!("the template {how} before it was ready\n{tail}");
                self.fail_template(key, report);
            }
            TemplateState::Ready => {
                let name = &self.shared.name;
                let pid = process.map_or(0, |process| process.handle.pid());
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
        let before = std::mem::replace(&mut template.state, TemplateState::Ending);
        if let Some(process) = &mut template.process {
            process.control = None;
            match before {
                // What the application has started while it loaded serves the workers.
                TemplateState::Ready if is_used => _ = process.is_group_held.send_replace(true),
                // It does not look at its socket while it loads the application.
                TemplateState::Starting => _ = process.handle.terminate(),
                TemplateState::Ready | TemplateState::Ending => {}
            }
        }
        if before == TemplateState::Ending {
            return;
        }
        let at = clock::now() + END_TIMEOUT;
        self.schedule(at, move |it| it.handle_template_overdue(key));
    }

    /// Gives up one that does not run yet: nothing will tell its end.
    fn abandon_template(&mut self, key: ProcessKey) -> bool {
        let is_starting = |template: &Template| template.process.is_none();
        let is_abandoned = self.templates.processes.get(&key).is_some_and(is_starting);
        if is_abandoned {
            self.pending_launches.remove(&key);
            self.templates.processes.remove(&key);
        }
        is_abandoned
    }

    fn has_workers_of(&self, generation: u64) -> bool {
        let mut children = self.children.values().map(|child| child.process.generation);
        let mut forking = self.templates.pending_forks.values().map(|f| f.generation);
        children.any(|g| g == generation) || forking.any(|g| g == generation)
    }

    /// Ends the templates of which nothing will be forked any more, and what they have started once
    /// no worker is left that they serve.
    pub(super) fn end_unused_templates(&mut self) {
        let (current, fallback) = self.supervisor.current_and_fallback_generations();
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
        let is_unwanted =
            |it: &Template| !is_wanted(it.generation) && it.waiting_workers.is_empty();
        let unwanted = self.templates.processes.iter();
        let unwanted = unwanted.filter(|(_, template)| is_unwanted(template));
        let unwanted: Vec<_> = unwanted.map(|(key, _)| *key).collect();
        for key in unwanted {
            self.end_template(key);
        }
        for template in self.templates.processes.values() {
            let generation = template.generation;
            let is_used = is_wanted(generation) || self.has_workers_of(generation);
            if let Some(process) = &template.process
                && !is_used
            {
                process.is_group_held.send_if_modified(std::mem::take);
            }
        }
    }

    /// Makes a worker that was promoted the template of its generation, in place of the one before.
    pub(super) fn install_template(&mut self, worker: WorkerId, child: ChildProcess) {
        let generation = child.process.generation;
        let mut template = Template::new(generation, VecDeque::new());
        template.state = TemplateState::Ready;
        template.started_at = child.process.started_at;
        template.process = Some(child.process);
        template.renewals = 1;
        let before = self.templates.find_by_generation(generation);
        if let Some(key) = before.map(|(key, _)| key)
            && let Some(before) = self.templates.processes.get_mut(&key)
        {
            template.renewals += before.renewals;
            template.waiting_workers = std::mem::take(&mut before.waiting_workers);
            self.end_template(key);
        }
        let key = ProcessKey::Worker(worker);
        self.templates.processes.insert(key, template);
        self.fork_waiting_workers(key);
    }
}
