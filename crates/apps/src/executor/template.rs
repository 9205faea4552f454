//! Templates: processes that load the application once and from which its workers are forked.
//!
//! The executor's hand for `preload`. The first `Spawn` of a generation starts its template, those that
//! come meanwhile wait for it; when it is ready each is a FORK. A forked worker becomes the server's own
//! child (`forking`). What must stay true: every `Spawn` is answered; a template is there for a
//! generation that may still be spawned and for no other, and one that fails takes nobody down that
//! serves already.

mod shown;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use penstock_config::Preload;
use penstock_runtime::clock;
use penstock_sys::process::{ProcessExit, ProcessHandle, SpawnedProcess};

use super::control::{Control, Line};
use super::follow::{Held, Readiness, Tail};
use super::forking::Forking;
use super::launching::Purpose;
use super::processes::take_turns;
use super::{Child, ControlMessage, Executor, Input, Key};
use crate::app::Way;
use crate::supervisor::{Event, WorkerId};

/// How long a template that is told to end may take: it has nothing to do at its end.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Most workers that a template is told to fork before it has forked one of them. It forks one after the
/// other, and what it has been told cannot be taken back.
const ORDERED_MAX: usize = 16;

/// All templates of an application, and what is under way from them.
#[derive(Debug, Default)]
pub(super) struct Templates {
    all: HashMap<Key, Template>,
    started: u64,
    pub(super) forking: HashMap<WorkerId, Forking>,
    /// Generations of which nothing can be forked, and why.
    plain: HashMap<u64, String>,
    /// Generations whose workers do not become templates, after one tried.
    pub(super) settled: Vec<u64>,
}

/// A process from which workers are forked.
#[derive(Debug)]
struct Template {
    /// None while it is being started.
    process: Option<ProcessHandle>,
    held: Held,
    generation: u64,
    /// It lets others go first while it boots.
    gives_way: bool,
    began: Instant,
    tail: Tail,
    /// None once it is to end.
    control: Option<Control>,
    state: State,
    /// Workers that wait for it: until it is ready, and then until it has forked those before them.
    waiting: VecDeque<WorkerId>,
    /// Proportional memory when it was last measured, in bytes.
    memory: Option<u64>,
    /// How many workers were templates of this generation before they were.
    renewals: usize,
    /// Tries to fork, of one worker or of many at once, that failed since the last one that did not.
    refused: u32,
}

#[derive(Debug)]
enum State {
    /// It loads the application.
    Starting,
    Ready,
    Ending,
}

impl Templates {
    /// Notes a fork that this template could not make; how many tries in a row have come to nothing. Those
    /// that were asked for together are one.
    pub(super) fn refuse(&mut self, key: Key) -> u32 {
        let is_more = self.forking.values().any(|forking| forking.template == key);
        let Some(template) = self.all.get_mut(&key) else {
            return 0;
        };
        if !is_more && template.waiting.is_empty() {
            template.refused = template.refused.saturating_add(1);
        }
        template.refused
    }

    /// It has forked a worker.
    pub(super) fn accept(&mut self, key: Key) {
        if let Some(template) = self.all.get_mut(&key) {
            template.refused = 0;
        }
    }

    fn of(&self, generation: u64) -> Option<(Key, &Template)> {
        let is_it = |t: &Template| t.generation == generation && !matches!(t.state, State::Ending);
        let mut all = self.all.iter().filter(|(_, t)| is_it(t));
        all.next().map(|(key, template)| (*key, template))
    }

    /// The template of this generation that forks, and how many there were before it.
    pub(super) fn ready(&self, generation: u64) -> Option<(Key, usize)> {
        let (key, template) = self.of(generation)?;
        matches!(template.state, State::Ready).then_some((key, template.renewals))
    }

    pub(super) fn generation(&self, key: Key) -> Option<u64> {
        self.all.get(&key).map(|template| template.generation)
    }

    /// Has a template fork a worker; `false` when it takes no orders.
    pub(super) fn order(&self, key: Key, worker: WorkerId, with: [OwnedFd; 3]) -> bool {
        let template = self.all.get(&key);
        let control = template.and_then(|template| template.control.as_ref());
        control.is_some_and(|control| control.fork(worker, with))
    }

    /// The process ids of all of them.
    pub(super) fn pids(&self) -> impl Iterator<Item = (Key, u32)> {
        let all = self.all.iter();
        all.filter_map(|(key, template)| Some((*key, template.process.as_ref()?.pid())))
    }

    /// Takes in what a template uses of memory.
    pub(super) fn measured(&mut self, key: Key, bytes: Option<u64>) {
        if let Some(template) = self.all.get_mut(&key) {
            template.memory = bytes.or(template.memory);
        }
    }

    /// How many workers a template has been told to fork and has not.
    fn ordered(&self, key: Key) -> usize {
        let forking = self.forking.values();
        forking.filter(|forking| forking.template == key).count()
    }

    fn wait(&mut self, key: Key, worker: WorkerId) {
        if let Some(template) = self.all.get_mut(&key) {
            template.waiting.push_back(worker);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn has(&self, key: Key) -> bool {
        self.all.contains_key(&key)
    }
}

/// Spawning.
impl Executor {
    /// Spawns a worker in the way that its generation allows: `Spawned` or `SpawnFailed` will be said.
    pub(super) fn spawn(&mut self, worker: WorkerId, generation: u64) -> Result<(), String> {
        let is_plain = match self.shared.way {
            Way::Workers(_) => {
                self.config.preload == Preload::Never
                    || self.templates.plain.contains_key(&generation)
            }
            Way::Servers(_) => true,
        };
        if is_plain {
            return self.spawn_plain(worker, generation);
        }
        match self.templates.of(generation).map(|(key, _)| key) {
            Some(key) => self.spawn_from(key, worker),
            None => self.start_template(worker, generation),
        }
    }

    fn spawn_from(&mut self, key: Key, worker: WorkerId) -> Result<(), String> {
        let Some(template) = self.templates.all.get_mut(&key) else {
            return Err("the template is gone".to_owned());
        };
        let is_ready = matches!(template.state, State::Ready) && template.waiting.is_empty();
        if !is_ready || self.templates.ordered(key) >= ORDERED_MAX {
            self.templates.wait(key, worker);
            return Ok(());
        }
        self.fork(key, worker)
    }

    fn start_template(&mut self, worker: WorkerId, generation: u64) -> Result<(), String> {
        let (launch, control, line) = self.prepare_template()?;
        self.templates.started += 1;
        let key = Key::Template(self.templates.started);
        let (held, _) = Held::new();
        let template = Template {
            process: None,
            held,
            generation,
            gives_way: false,
            began: clock::now(),
            tail: Tail::default(),
            control: Some(control),
            state: State::Starting,
            waiting: VecDeque::from([worker]),
            memory: None,
            renewals: 0,
            refused: 0,
        };
        self.templates.all.insert(key, template);
        let purpose = Purpose::Template(line);
        self.launch(key, generation, (launch, None), purpose);
        let deadline = clock::now() + self.config.boot_timeout;
        self.later(deadline, Input::TemplateOverdue { key });
        Ok(())
    }

    /// Its process runs.
    pub(super) fn handle_template_started(
        &mut self,
        key: Key,
        started: SpawnedProcess,
        line: Line,
    ) {
        let generation = self.templates.generation(key);
        let gives_way = generation.is_some_and(|generation| self.give_way(generation, &started));
        let Some(template) = self.templates.all.get_mut(&key) else {
            return;
        };
        let (held, group) = Held::new();
        template.process = Some(started.handle());
        template.gives_way = gives_way;
        template.held = held;
        let (readiness, tail) = (Readiness::Control(line), template.tail.clone());
        self.watch(key, started, readiness, tail, group);
        self.publish();
    }

    /// A worker is not wanted any more before there is one; `true` when none will come. One that is
    /// being forked is answered for soon in any case.
    pub(super) fn abandon(&mut self, worker: WorkerId) -> bool {
        let is_given_up = self.launching.remove(&Key::Worker(worker)).is_some();
        is_given_up
            || self.templates.all.values_mut().any(|template| {
                let before = template.waiting.len();
                template.waiting.retain(|waiting| *waiting != worker);
                template.waiting.len() < before
            })
    }
}

/// What templates say and do.
impl Executor {
    pub(super) fn handle_template(&mut self, key: Key, message: ControlMessage) {
        let name = &self.shared.name;
        let Some(template) = self.templates.all.get_mut(&key) else {
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
                if !matches!(template.state, State::Starting) {
                    return;
                }
                if let Err(report) = self.learn_kind(pid, kind) {
                    return self.fail_template(key, report);
                }
                let name = &self.shared.name;
                let Some(template) = self.templates.all.get_mut(&key) else {
                    return;
                };
                let boot = clock::now().saturating_duration_since(template.began);
                template.state = State::Ready;
                take_turns(&process, template.gives_way);
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
                        self.fork_waiting(key);
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
                        let waiting = std::mem::take(&mut template.waiting);
                        self.templates.plain.insert(generation, why);
                        self.end_template(key);
                        self.spawn_all(generation, waiting);
                    }
                }
            }
            ControlMessage::BootFailed { traceback } => self.fail_template(key, traceback),
            ControlMessage::ForkFailed { worker, reason } => {
                self.handle_fork_failed(key, worker, &reason);
            }
            ControlMessage::Broken(why) => {
                log::error!("{name}[{pid}]: the template broke the worker protocol: {why}");
                self.fail_template(
                    key,
                    format!("the template broke the worker protocol: {why}"),
                );
                // A template that says nonsense may do it for ever.
                let _ = process.kill();
            }
            // Said of servers only.
            ControlMessage::Silent => {}
        }
        self.publish();
    }

    /// Has a template fork as many of those that wait as it may be told.
    pub(super) fn fork_waiting(&mut self, key: Key) {
        while self.templates.ordered(key) < ORDERED_MAX {
            let template = self.templates.all.get_mut(&key);
            let ready = template.filter(|template| matches!(template.state, State::Ready));
            let Some(worker) = ready.and_then(|template| template.waiting.pop_front()) else {
                return;
            };
            if let Err(reason) = self.fork(key, worker) {
                self.fail_spawn(worker, reason);
            }
        }
    }

    fn spawn_all(&mut self, generation: u64, waiting: VecDeque<WorkerId>) {
        for worker in waiting {
            if let Err(reason) = self.spawn_plain(worker, generation) {
                self.fail_spawn(worker, reason);
            }
        }
    }

    /// It has had its time.
    pub(super) fn handle_template_overdue(&mut self, key: Key) {
        let Some(template) = self.templates.all.get(&key) else {
            return;
        };
        let Some(process) = template.process.clone() else {
            let limit = self.config.boot_timeout;
            return self.fail_template(key, format!("the application did not run after {limit:?}"));
        };
        match template.state {
            State::Ready => {}
            State::Ending => {
                // What is gone needs no signal.
                let _ = process.kill_process();
            }
            State::Starting => {
                let (limit, tail) = (self.config.boot_timeout, template.tail.text());
                let report = format!(
                    "the application was not loaded after {limit:?} and was killed\n{tail}"
                );
                self.fail_template(key, report);
                let _ = process.kill();
            }
        }
    }

    pub(super) fn handle_template_exited(&mut self, key: Key, exit: Option<ProcessExit>) {
        let Some(template) = self.templates.all.get(&key) else {
            return;
        };
        let how = exit.map_or_else(|| "ended".to_owned(), |exit| format!("ended with {exit}"));
        match template.state {
            State::Starting => {
                let tail = template.tail.text();
                let report = format!("the template {how} before it was ready\n{tail}");
                self.fail_template(key, report);
            }
            State::Ready => {
                let name = &self.shared.name;
                let pid = template.process.as_ref().map_or(0, ProcessHandle::pid);
                log::error!(
                    "{name}[{pid}]: the template {how} unasked; the next one loads what is on disk then"
                );
                self.fail_template(key, format!("the template {how}"));
            }
            State::Ending => {}
        }
        self.templates.all.remove(&key);
        self.publish();
        self.stop_when_empty();
    }

    /// Nothing will come of it: those that wait for it are told, and the log once.
    pub(super) fn fail_template(&mut self, key: Key, report: String) {
        let template = self.templates.all.get_mut(&key);
        let waiting = template.map(|template| std::mem::take(&mut template.waiting));
        self.end_template(key);
        let waiting = waiting.unwrap_or_default();
        for worker in waiting {
            let reason = report.clone();
            self.event(Event::SpawnFailed { worker, reason });
            // The same words of all the others.
            self.is_retelling = true;
        }
        self.is_retelling = false;
    }

    /// Ends a template that is of no use; those that wait for it wait for the next.
    pub(super) fn renew_template(&mut self, key: Key) {
        let template = self.templates.all.get_mut(&key);
        let Some((generation, waiting)) =
            template.map(|t| (t.generation, std::mem::take(&mut t.waiting)))
        else {
            return;
        };
        self.end_template(key);
        for worker in waiting {
            if let Err(reason) = self.spawn(worker, generation) {
                self.fail_spawn(worker, reason);
            }
        }
    }

    /// Has a template end: by itself, or by force a moment later.
    pub(super) fn end_template(&mut self, key: Key) {
        let Some(generation) = self.templates.generation(key) else {
            return;
        };
        if self.abandon_template(key) {
            return self.stop_when_empty();
        }
        let is_used = self.has_workers_of(generation);
        let Some(template) = self.templates.all.get_mut(&key) else {
            return;
        };
        template.control = None;
        // What the application has started while it loaded serves the workers.
        if is_used && matches!(template.state, State::Ready) {
            template.held.hold(true);
        }
        let before = std::mem::replace(&mut template.state, State::Ending);
        if matches!(before, State::Ending) {
            return;
        }
        if matches!(before, State::Starting) {
            // It does not look at its socket while it loads the application.
            let _ = template.process.as_ref().map(ProcessHandle::terminate);
        }
        let at = clock::now() + END_TIMEOUT;
        self.later(at, Input::TemplateOverdue { key });
    }

    /// Gives up one that does not run yet: nothing will tell its end.
    fn abandon_template(&mut self, key: Key) -> bool {
        let is_starting = |template: &Template| template.process.is_none();
        let is_abandoned = self.templates.all.get(&key).is_some_and(is_starting);
        if is_abandoned {
            self.launching.remove(&key);
            self.templates.all.remove(&key);
        }
        is_abandoned
    }

    fn has_workers_of(&self, generation: u64) -> bool {
        let mut children = self.children.values().map(|child| child.generation);
        let mut forking = self.templates.forking.values().map(|f| f.generation);
        children.any(|g| g == generation) || forking.any(|g| g == generation)
    }

    /// Ends the templates of which nothing will be forked any more, and what they have started once nobody
    /// is left whom it serves.
    pub(super) fn tend_templates(&mut self) {
        let (current, fallback) = self.supervisor.generations();
        let is_draining = self.is_draining;
        let is_wanted = |generation: u64| {
            !is_draining && (generation == current || Some(generation) == fallback)
        };
        self.templates
            .plain
            .retain(|generation, _| is_wanted(*generation));
        self.templates
            .settled
            .retain(|generation| is_wanted(*generation));
        let mut unwanted = Vec::new();
        for (key, template) in &self.templates.all {
            let is_needed = !template.waiting.is_empty();
            if !is_wanted(template.generation) && !is_needed {
                unwanted.push(*key);
            }
        }
        for key in unwanted {
            self.end_template(key);
        }
        for template in self.templates.all.values() {
            let generation = template.generation;
            let is_used = is_wanted(generation) || self.has_workers_of(generation);
            if template.held.is_held() && !is_used {
                template.held.hold(false);
            }
        }
    }

    /// Makes a worker that was promoted the template of its generation, in place of the one before.
    pub(super) fn enthrone(&mut self, worker: WorkerId, child: Child) {
        let generation = child.generation;
        let before = self
            .templates
            .of(generation)
            .map(|(key, t)| (key, t.renewals));
        let mut waiting = VecDeque::new();
        if let Some((key, _)) = before {
            let template = self.templates.all.get_mut(&key);
            waiting = template.map_or(waiting, |template| std::mem::take(&mut template.waiting));
            self.end_template(key);
        }
        let template = Template {
            process: Some(child.process),
            held: child.held,
            generation,
            gives_way: false,
            began: child.began,
            tail: child.tail,
            control: child.control,
            state: State::Ready,
            waiting,
            memory: None,
            renewals: before.map_or(0, |(_, renewals)| renewals) + 1,
            refused: 0,
        };
        let key = Key::Worker(worker);
        self.templates.all.insert(key, template);
        self.fork_waiting(key);
    }
}
