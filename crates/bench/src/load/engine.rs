//! Executes a plan: starts the event loops, spreads connections over them, begins and ends the
//! window, and combines the loops' figures.
//!
//! [`execute`] stays on the caller's thread, which checks the stop flag and notifies the observer.
//!
//! # Invariants
//!
//! - It returns whatever the server does, and then no thread and no connection is left.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::Waker;
use std::time::{Duration, Instant};

use penstock_runtime::{EventLoops, PreciseTimer, clock, loops};
use rustix::process::Resource;
use rustix::thread::CpuSet;
use rustix::time::ClockId;

use super::arrivals::ArrivalSchedule;
use super::connection::LoadConnection;
use super::picker::RequestPicker;
use super::recorder::Recorder;
use super::shared_run::{LoadState, LoopLoad, LoopPhase, LoopProgress, LoopState, SharedRun};
use super::{Load, LoadEvent, LoadPlan, LoadProgress, WindowEnd};
use crate::report::{GeneratorLoad, LoadFigures};

/// Executes a plan; blocks until its end. Returns the figures of each load, in order.
///
/// # Errors
/// Threads or descriptors ran out before anything was sent.
pub fn execute(
    plan: &LoadPlan,
    observer: &mut dyn FnMut(LoadEvent),
) -> io::Result<Vec<LoadFigures>> {
    check_plan(plan)?;
    allow_descriptors(plan)?;
    let limit = match plan.window_end {
        WindowEnd::Requests(count) => Some(count),
        WindowEnd::Elapsed(_) => None,
    };
    let loops = EventLoops::start(plan.threads)?;
    let run = Arc::new(SharedRun::new(&plan.loads, limit, loops.handles().len()));
    let engine = Engine {
        plan,
        observer,
        run,
        loops: &loops,
    };
    let figures = engine.execute();
    loops.stop();
    figures
}

struct Engine<'a> {
    plan: &'a LoadPlan,
    observer: &'a mut dyn FnMut(LoadEvent),
    run: Arc<SharedRun>,
    loops: &'a EventLoops,
}

/// A loop's time so far.
struct LoopTimes {
    now: Instant,
    cpu: Duration,
    run_queue: Duration,
}

impl LoopTimes {
    /// Reads those of the current thread.
    fn read() -> Self {
        Self {
            now: clock::now(),
            cpu: thread_cpu(),
            run_queue: thread_run_queue_time(),
        }
    }
}

/// A loop's results at the window's end.
struct LoopResult {
    times: LoopTimes,
    last_ended: Option<Instant>,
    recorders: Vec<Recorder>,
}

impl Engine<'_> {
    fn execute(mut self) -> io::Result<Vec<LoadFigures>> {
        self.prepare()?;
        self.start_connections(|load| load.rate.is_some())?;
        self.wait_for_open_connections();
        let mut begun = None;
        if self.plan.warm_up.is_zero() {
            begun = Some(self.begin_window()?);
        }
        self.start_connections(|load| load.rate.is_none())?;
        self.start_schedules()?;
        let begun = match begun {
            Some(begun) => begun,
            None => {
                self.wait_for_end(WindowEnd::Elapsed(self.plan.warm_up), false);
                self.wait_for_idle_connections()?;
                if self.is_stopped() {
                    let empty = |load| with_load_description(load, LoadFigures::default());
                    return Ok(self.plan.loads.iter().map(empty).collect());
                }
                self.begin_window()?
            }
        };
        self.wait_for_end(self.plan.window_end, true);
        (self.observer)(LoadEvent::WindowEnds);
        let collected = self.on_each_loop(|_, run| run.state.with(collect_loop))?;
        (self.observer)(LoadEvent::AfterWindow);
        Ok(self.summarise(&begun, &collected))
    }

    /// Pins the loops and creates each one's state.
    fn prepare(&self) -> io::Result<()> {
        let core = self.plan.core;
        let count = self.loops.handles().len();
        let prepared = self.on_each_loop(move |index, run| {
            if let Some(core) = core {
                pin_to_core(core)?;
            }
            run.state.with(|state| {
                state.loads = new_loop_loads(run, index, count)?;
                Ok(())
            })
        })?;
        prepared.into_iter().collect()
    }

    /// Starts the connections of some loads.
    fn start_connections(&self, which: fn(&Load) -> bool) -> io::Result<()> {
        let count = self.loops.handles().len();
        self.on_each_loop(move |index, run| {
            for (number, shared) in run.loads.iter().enumerate() {
                if which(&shared.load) {
                    for slot in 0..connections_on(number, &shared.load, index, count) {
                        loops::spawn_here(LoadConnection::new(Arc::clone(run), number, slot).run());
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Waits until each open-loop connection has tried once to open.
    fn wait_for_open_connections(&self) {
        let (all, longest) = self.connections_of(|load| load.rate.is_some());
        self.wait_for_count(&self.run.ready_connections, all, longest);
    }

    /// The connections of some loads, and their longest timeout.
    fn connections_of(&self, which: fn(&Load) -> bool) -> (usize, Duration) {
        let loads = || self.plan.loads.iter().filter(|load| which(load));
        let all = loads().map(|load| load.connections as usize).sum();
        let longest = loads().map(|load| load.timeout).max();
        (all, longest.unwrap_or_default())
    }

    /// Waits until so many connections are counted, for a time at most.
    fn wait_for_count(&self, counter: &AtomicUsize, count: usize, time: Duration) {
        let until = Instant::now() + time;
        while counter.load(Ordering::Acquire) < count
            && Instant::now() < until
            && !self.is_stopped()
        {
            std::thread::park_timeout(READY_POLL_INTERVAL);
        }
    }

    /// Starts the open loops' schedules; the loops' arrivals interleave.
    fn start_schedules(&self) -> io::Result<()> {
        let count = self.loops.handles().len();
        let base = Instant::now();
        let started = self.on_each_loop(move |index, run| {
            for (number, shared) in run.loads.iter().enumerate() {
                let share = connections_on(number, &shared.load, index, count);
                if let (Some(rate), true) = (shared.load.rate, share > 0) {
                    #[allow(clippy::cast_precision_loss, reason = "few loops")]
                    let phase = (loop_offset(number, index, count) as f64 / rate).min(1.0);
                    run.with_load(number, |_, it| {
                        let arrivals = it.arrivals.as_mut()?;
                        arrivals.set_start(base + Duration::from_secs_f64(phase));
                        Some(())
                    });
                    loops::spawn_here(run_schedule(Arc::clone(run), number, PreciseTimer::new()?));
                }
            }
            Ok(())
        })?;
        started.into_iter().collect()
    }

    /// Before a limited window: lets closed loops finish active requests. Otherwise the server
    /// would spend the start of the window on requests that do not count.
    fn wait_for_idle_connections(&self) -> io::Result<()> {
        let (all, longest) = self.connections_of(|load| load.rate.is_none());
        if matches!(self.plan.window_end, WindowEnd::Elapsed(_)) || all == 0 {
            return Ok(());
        }
        self.on_each_loop(|_, run| run.state.with(|state| state.phase = LoopPhase::Settling))?;
        // Connecting and responding each end within the timeout.
        let time = longest.saturating_mul(2) + POLL_INTERVAL;
        self.wait_for_count(&self.run.resting_connections, all, time);
        Ok(())
    }

    fn begin_window(&mut self) -> io::Result<Vec<LoopTimes>> {
        (self.observer)(LoadEvent::WindowBegins);
        self.on_each_loop(|_, run| run.state.with(begin_loop_window))
    }

    /// Waits for an end, or the stop flag, and reports progress meanwhile.
    fn wait_for_end(&mut self, until: WindowEnd, is_measured: bool) {
        let start = Instant::now();
        let mut told = start;
        let mut heard = (0, start);
        let patience = self.silence_limit();
        loop {
            let now = Instant::now();
            let answered = self.sum_progress(|it| &it.requests);
            if answered != heard.0 {
                heard = (answered, now);
            }
            let left = match until {
                WindowEnd::Requests(_) if now - heard.1 > patience => Duration::ZERO,
                WindowEnd::Elapsed(all) => all.saturating_sub(now - start),
                WindowEnd::Requests(_) if self.run.is_complete() => Duration::ZERO,
                WindowEnd::Requests(_) => POLL_INTERVAL,
            };
            if left.is_zero() || self.is_stopped() {
                return;
            }
            if now - told >= PROGRESS_INTERVAL {
                told = now;
                let progress = LoadProgress {
                    is_measured,
                    elapsed: now - start,
                    requests: answered,
                    errors: self.sum_progress(|it| &it.errors),
                };
                (self.observer)(LoadEvent::Progress(progress));
            }
            std::thread::park_timeout(left.min(POLL_INTERVAL));
        }
    }

    /// A server without a response for this long is not going to respond: a limited window ends,
    /// rather than wait for the timeout of each request.
    fn silence_limit(&self) -> Duration {
        let longest = self.plan.loads.iter().map(|load| load.timeout).max();
        longest.unwrap_or_default().saturating_mul(2) + SILENCE_TIMEOUT
    }

    fn sum_progress(&self, of: fn(&LoopProgress) -> &AtomicU64) -> u64 {
        let loops = self.run.progress.iter();
        loops.map(|it| of(it).load(Ordering::Relaxed)).sum()
    }

    fn is_stopped(&self) -> bool {
        self.plan.stop.load(Ordering::Relaxed)
    }

    fn summarise(&self, begun: &[LoopTimes], collected: &[LoopResult]) -> Vec<LoadFigures> {
        let seconds = self.window_seconds(begun, collected);
        let since = |of: fn(&LoopTimes) -> Duration| {
            let loops = begun.iter().zip(collected);
            loops.map(move |(begun, ended)| of(&ended.times).saturating_sub(of(begun)))
        };
        let share =
            |time: Option<Duration>| time.unwrap_or_default().as_secs_f64() / seconds.max(1e-9);
        let cpu_seconds = since(|times| times.cpu).sum::<Duration>().as_secs_f64();
        let waited = share(since(|times| times.run_queue).max());
        let generator = GeneratorLoad {
            threads: collected.len(),
            busy: share(since(|times| times.cpu).max().filter(|_| seconds > 0.0)).min(1.0),
            cpu_seconds,
            lag_p99: None,
            bottleneck: None,
        };
        let loads = self.plan.loads.iter().enumerate();
        loads
            .filter_map(|(number, load)| {
                let mut parts = collected.iter().filter_map(|it| it.recorders.get(number));
                let mut all = parts.next()?.clone();
                parts.for_each(|part| all.merge(part));
                let mut figures = with_load_description(load, all.figures(seconds));
                figures.generator = GeneratorLoad {
                    lag_p99: all.lag_p99(),
                    bottleneck: bottleneck(&generator, waited, &all),
                    ..generator.clone()
                };
                Some(figures)
            })
            .collect()
    }

    /// A limited window ends with its last request, others when the loops were asked.
    fn window_seconds(&self, begun: &[LoopTimes], collected: &[LoopResult]) -> f64 {
        let first = begun.iter().map(|it| it.now).min();
        let last = if self.run.is_complete() {
            collected.iter().filter_map(|it| it.last_ended).max()
        } else {
            collected.iter().map(|it| it.times.now).min()
        };
        match (first, last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Runs `work` on every loop and returns the results by loop.
    fn on_each_loop<T: Send + 'static>(
        &self,
        work: impl Fn(usize, &Arc<SharedRun>) -> T + Clone + Send + 'static,
    ) -> io::Result<Vec<T>> {
        let answers: Vec<_> = self
            .loops
            .handles()
            .iter()
            .map(|it| {
                let (give, answer) = mpsc::sync_channel(1);
                let (work, run, index) = (work.clone(), Arc::clone(&self.run), it.index());
                it.spawn(async move {
                    // The engine may have given up on this loop.
                    let _ = give.send(work(index, &run));
                });
                answer
            })
            .collect();
        let lost = |_| io::Error::other("an event loop of the load generator does not respond");
        answers
            .iter()
            .map(|answer| answer.recv_timeout(LOOP_REPLY_TIMEOUT).map_err(lost))
            .collect()
    }
}

/// Assigns an open loop's arrivals, each at its moment.
async fn run_schedule(run: Arc<SharedRun>, load: usize, alarm: PreciseTimer) {
    while let Some(wait) = run.assign_due_arrivals(load, clock::now()) {
        let set = alarm.set(wait);
        if set.is_err() || std::future::poll_fn(|cx| alarm.poll(cx)).await.is_err() {
            return;
        }
    }
}

fn begin_loop_window(state: &mut LoopState) -> LoopTimes {
    state.phase = LoopPhase::Measured;
    state.resting.drain(..).for_each(Waker::wake);
    for it in &mut state.loads {
        it.recorder.reset();
        if let Some(arrivals) = &mut it.arrivals {
            arrivals.discard_unassigned();
        }
    }
    LoopTimes::read()
}

fn collect_loop(state: &mut LoopState) -> LoopResult {
    let at = clock::now();
    state.phase = LoopPhase::Ended;
    let mut recorders = Vec::new();
    for mut it in std::mem::take(&mut state.loads) {
        if let Some(arrivals) = &mut it.arrivals {
            arrivals.record_unassigned(at, &mut it.recorder);
            // Its connection was woken and has not run yet.
            for (slot, due) in arrivals.unstarted_arrivals() {
                it.in_progress_since[slot] = Some(due);
            }
        }
        // An open loop's arrivals have waited at least until now, and a server that stopped
        // responding must not look unused.
        for began in it.in_progress_since.iter().flatten() {
            let age = at.saturating_duration_since(*began);
            it.recorder.record_unfinished(age, it.arrivals.is_some());
        }
        recorders.push(it.recorder);
    }
    LoopResult {
        times: LoopTimes {
            now: at,
            ..LoopTimes::read()
        },
        last_ended: state.last_ended,
        recorders,
    }
}

fn new_loop_loads(run: &SharedRun, index: usize, count: usize) -> io::Result<Vec<LoopLoad>> {
    let loads = run.loads.iter().enumerate();
    loads
        .map(|(number, shared)| {
            let load = &shared.load;
            let connections = connections_on(number, load, index, count);
            let arrivals = load.rate.map(|rate| {
                // Loops without a connection of this load have no share of its rate.
                let parts = count.min(load.connections as usize).max(1);
                #[allow(clippy::cast_precision_loss, reason = "few loops")]
                let rate = rate / parts as f64;
                ArrivalSchedule::new(clock::now(), rate, connections)
            });
            let mut recorder = Recorder::new(arrivals.is_some());
            if shared.servers.iter().any(|server| server.tls.is_some()) {
                recorder = recorder.and_then(Recorder::with_tls);
            }
            Ok(LoopLoad {
                recorder: recorder.map_err(io::Error::other)?,
                picker: RequestPicker::new(load, index as u64),
                arrivals,
                in_progress_since: vec![None; connections],
            })
        })
        .collect()
}

/// The number of a load's connections on a loop; each load begins at another loop.
fn connections_on(number: usize, load: &Load, index: usize, count: usize) -> usize {
    let all = load.connections as usize;
    all / count + usize::from(loop_offset(number, index, count) < all % count)
}

/// The loop's index from the load's view, from 0.
fn loop_offset(number: usize, index: usize, count: usize) -> usize {
    (index + count - number % count) % count
}

fn with_load_description(load: &Load, figures: LoadFigures) -> LoadFigures {
    LoadFigures {
        name: load.name.clone(),
        connections: load.connections,
        rate: load.rate,
        ..figures
    }
}

/// Why the generator may have limited the result.
fn bottleneck(generator: &GeneratorLoad, waited: f64, recorder: &Recorder) -> Option<String> {
    if generator.busy > MAX_BUSY {
        let percent = generator.busy * 100.0;
        return Some(format!("its thread was busy {percent:.0} % of the time"));
    }
    if generator.busy + waited > MAX_BUSY {
        let (busy, waited) = (generator.busy * 100.0, waited * 100.0);
        return Some(format!(
            "its thread was busy {busy:.0} % of the time and waited {waited:.0} % for a core"
        ));
    }
    let lag = recorder.lag_p99()?;
    if lag > MAX_LAG_US {
        return Some(format!(
            "1 % of its arrivals were sent more than {lag} us late"
        ));
    }
    let (late, due) = (recorder.schedule.late, recorder.schedule.due);
    (late.saturating_mul(100) > due).then(|| format!("{late} of its {due} arrivals were sent late"))
}

fn thread_cpu() -> Duration {
    let spent = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(spent.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// How long this thread was runnable without a core; zero if the kernel does not report it.
#[allow(clippy::disallowed_methods, reason = "/proc is memory")]
fn thread_run_queue_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1);
    Duration::from_nanos(waited.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Pins the current thread, and the processes that it starts, to a core.
pub(crate) fn pin_to_core(core: usize) -> io::Result<()> {
    let wrong = || io::Error::other(format!("no core {core}"));
    if core >= CpuSet::MAX_CPU {
        return Err(wrong());
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(None, &cores).map_err(|_| wrong())
}

fn check_plan(plan: &LoadPlan) -> io::Result<()> {
    let is_sound = |load: &Load| {
        let has_rate = load.rate.is_none_or(|rate| rate.is_finite() && rate > 0.0);
        !load.requests.is_empty() && load.connections > 0 && has_rate
    };
    if plan.loads.is_empty() || !plan.loads.iter().all(is_sound) {
        let message = "a load needs a request, a connection and a rate above zero";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// Raises the soft limit of open descriptors as far as possible, for this process and its children.
/// If a plan needs more, [`execute`] fails.
pub fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If it is too low for a plan, that is reported then.
    let _ = rustix::process::setrlimit(Resource::Nofile, limit);
}

/// Allows the open descriptors that a plan needs.
fn allow_descriptors(plan: &LoadPlan) -> io::Result<()> {
    let of = |load: &Load| {
        let servers = LoadState::new(load).servers.len();
        u64::from(load.connections) * servers as u64
    };
    let needed = plan.loads.iter().map(of).sum::<u64>() + SPARE_DESCRIPTORS;
    raise_descriptor_limit();
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    match limit.filter(|limit| *limit < needed) {
        None => Ok(()),
        Some(limit) => Err(io::Error::other(format!(
            "{needed} open files are needed and {limit} allowed"
        ))),
    }
}

/// The interval of checks for the stop flag and the end of a window.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The interval of checks for open connections.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// A loop replies within an iteration; one that does not is lost.
const LOOP_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// In addition to two timeouts: how long a limited window continues without any response.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(1);

/// Descriptors that are no connections: the loops' own, files, pipes.
const SPARE_DESCRIPTORS: u64 = 64;

/// Above these limits the generator itself may be the bottleneck.
const MAX_BUSY: f64 = 0.95;
const MAX_LAG_US: u64 = 2_000;
