//! The execution of a plan: loops are started, connections spread over them, the window begun and
//! ended, and the loops' figures put together.
//!
//! `execute` of the module above is its only caller and stays on the caller's thread, which looks for
//! the stop flag and tells the observer. What must stay true: it comes back whatever the server does;
//! when it does, no thread and no connection is left.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::task::Waker;
use std::time::{Duration, Instant};

use penstock_runtime::{Loops, PreciseTimer, clock, loops};
use rustix::process::Resource;
use rustix::thread::CpuSet;
use rustix::time::ClockId;

use super::arrivals::Arrivals;
use super::connection::Connection;
use super::pick::Picker;
use super::recorder::Recorder;
use super::run::{LoopLoad, LoopProgress, LoopState, Phase, Run};
use super::{Load, Observer, Pace, Plan, Progress, Until};
use crate::report::{Figures, Generator};

/// Executes a plan.
pub(super) fn execute(plan: &Plan, observer: &mut dyn Observer) -> io::Result<Vec<Figures>> {
    check(plan)?;
    allow_descriptors(plan)?;
    let limit = match plan.until {
        Until::Requests(count) => Some(count),
        Until::Elapsed(_) => None,
    };
    let loops = Loops::start(plan.threads)?;
    let run = Arc::new(Run::new(&plan.loads, limit, loops.handles().len()));
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
    plan: &'a Plan,
    observer: &'a mut dyn Observer,
    run: Arc<Run>,
    loops: &'a Loops,
}

/// What a loop says at the window's begin.
struct Begun {
    at: Instant,
    cpu: Duration,
    waited: Duration,
}

/// What a loop says at the window's end.
struct Collected {
    at: Instant,
    cpu: Duration,
    waited: Duration,
    last_ended: Option<Instant>,
    recorders: Vec<Recorder>,
}

impl Engine<'_> {
    fn execute(mut self) -> io::Result<Vec<Figures>> {
        self.prepare()?;
        self.start_connections(is_open)?;
        self.wait_for_open_connections();
        let mut begun = None;
        if self.plan.warm_up.is_zero() {
            begun = Some(self.begin_window()?);
        }
        self.start_connections(|load| !is_open(load))?;
        self.start_schedules()?;
        let begun = match begun {
            Some(begun) => begun,
            None => {
                self.wait(Until::Elapsed(self.plan.warm_up), false);
                self.settle()?;
                if self.is_stopped() {
                    return Ok(self.nothing());
                }
                self.begin_window()?
            }
        };
        self.wait(self.plan.until, true);
        self.observer.window_ends();
        let collected = self.each_loop(|_, run| run.state.with(collect))?;
        self.observer.after_window();
        Ok(self.summarise(&begun, &collected))
    }

    /// Pins the loops and gives each its state.
    fn prepare(&self) -> io::Result<()> {
        let core = self.plan.core;
        let count = self.loops.handles().len();
        let prepared = self.each_loop(move |index, run| {
            if let Some(core) = core {
                pin(core)?;
            }
            run.state.with(|state| {
                state.loads = loop_loads(run, index, count)?;
                Ok(())
            })
        })?;
        prepared.into_iter().collect()
    }

    /// Starts the connections of some loads.
    fn start_connections(&self, which: fn(&Load) -> bool) -> io::Result<()> {
        let count = self.loops.handles().len();
        self.each_loop(move |index, run| {
            for (number, shared) in run.loads.iter().enumerate() {
                if which(&shared.load) {
                    for slot in 0..connections_on(number, &shared.load, index, count) {
                        loops::spawn_here(Connection::new(Arc::clone(run), number, slot).drive());
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Open loops' connections each try once before the schedule starts.
    fn wait_for_open_connections(&self) {
        let loads = || self.plan.loads.iter().filter(|load| is_open(load));
        let all: usize = loads().map(|load| load.connections as usize).sum();
        let longest = loads().map(|load| load.timeout).max().unwrap_or_default();
        let until = Instant::now() + longest;
        while self.run.ready.load(Ordering::Acquire) < all
            && Instant::now() < until
            && !self.is_stopped()
        {
            std::thread::park_timeout(READY_LOOK);
        }
    }

    /// Starts the open loops' schedules, each loop's arrivals between those of the others.
    fn start_schedules(&self) -> io::Result<()> {
        let count = self.loops.handles().len();
        let base = Instant::now();
        let started = self.each_loop(move |index, run| {
            for (number, shared) in run.loads.iter().enumerate() {
                let share = connections_on(number, &shared.load, index, count);
                if let (Pace::Open(rate), true) = (shared.load.pace, share > 0) {
                    #[allow(clippy::cast_precision_loss, reason = "few loops")]
                    let phase = (place(number, index, count) as f64 / rate).min(1.0);
                    run.start_schedule(number, base + Duration::from_secs_f64(phase));
                    loops::spawn_here(pace(Arc::clone(run), number, PreciseTimer::new()?));
                }
            }
            Ok(())
        })?;
        started.into_iter().collect()
    }

    /// Before a limited window: lets closed loops end what is under way. Otherwise the server would
    /// spend the begin of the window on requests that do not count.
    fn settle(&self) -> io::Result<()> {
        let loads = || self.plan.loads.iter().filter(|load| !is_open(load));
        let all: usize = loads().map(|load| load.connections as usize).sum();
        if matches!(self.plan.until, Until::Elapsed(_)) || all == 0 {
            return Ok(());
        }
        self.each_loop(|_, run| run.state.with(|state| state.phase = Phase::Settling))?;
        // A request takes no longer than to connect and to be answered, each within the time-out.
        let longest = loads().map(|load| load.timeout).max().unwrap_or_default();
        let until = Instant::now() + longest.saturating_mul(2) + LOOK;
        while self.run.resting.load(Ordering::Acquire) < all
            && Instant::now() < until
            && !self.is_stopped()
        {
            std::thread::park_timeout(READY_LOOK);
        }
        Ok(())
    }

    fn begin_window(&mut self) -> io::Result<Vec<Begun>> {
        self.observer.window_begins();
        self.each_loop(|_, run| run.state.with(begin))
    }

    /// Waits for an end, or the stop flag, and tells the progress meanwhile.
    fn wait(&mut self, until: Until, is_measured: bool) {
        let start = Instant::now();
        let mut told = start;
        let mut heard = (0, start);
        let patience = self.patience();
        loop {
            let now = Instant::now();
            let answered = self.sum(|it| it.requests.load(Ordering::Relaxed));
            if answered != heard.0 {
                heard = (answered, now);
            }
            let left = match until {
                Until::Requests(_) if now - heard.1 > patience => Duration::ZERO,
                Until::Elapsed(all) => all.saturating_sub(now - start),
                Until::Requests(_) if self.run.is_complete() => Duration::ZERO,
                Until::Requests(_) => LOOK,
            };
            if left.is_zero() || self.is_stopped() {
                return;
            }
            if now - told >= TELL {
                told = now;
                let progress = Progress {
                    is_measured,
                    elapsed: now - start,
                    requests: answered,
                    errors: self.sum(|it| it.errors.load(Ordering::Relaxed)),
                };
                self.observer.progress(progress);
            }
            std::thread::park_timeout(left.min(LOOK));
        }
    }

    /// A server that has answered nothing for so long will not: a limited window ends, rather than
    /// have each of its requests wait for the time-out.
    fn patience(&self) -> Duration {
        let longest = self.plan.loads.iter().map(|load| load.timeout).max();
        longest.unwrap_or_default().saturating_mul(2) + SILENCE
    }

    fn sum(&self, of: fn(&LoopProgress) -> u64) -> u64 {
        self.run.progress.iter().map(of).sum()
    }

    fn is_stopped(&self) -> bool {
        self.plan.stop.load(Ordering::Relaxed)
    }

    /// The figures when nothing was measured.
    fn nothing(&self) -> Vec<Figures> {
        let name = |load| described(load, Figures::default());
        self.plan.loads.iter().map(name).collect()
    }

    fn summarise(&self, begun: &[Begun], collected: &[Collected]) -> Vec<Figures> {
        let seconds = self.window_seconds(begun, collected);
        let spent = || {
            begun
                .iter()
                .zip(collected)
                .map(|(b, c)| c.cpu.saturating_sub(b.cpu))
        };
        let cpu_seconds: f64 = spent().map(|it| it.as_secs_f64()).sum();
        let busiest = spent().max().unwrap_or_default().as_secs_f64();
        let waited = begun
            .iter()
            .zip(collected)
            .map(|(b, c)| c.waited.saturating_sub(b.waited));
        let waited = waited.max().unwrap_or_default().as_secs_f64() / seconds.max(1e-9);
        let generator = Generator {
            threads: collected.len(),
            busy: if seconds > 0.0 {
                (busiest / seconds).min(1.0)
            } else {
                0.0
            },
            cpu_seconds,
            lag_p99: None,
            bottleneck: None,
        };
        let loads = self.plan.loads.iter().enumerate();
        loads
            .filter_map(|(number, load)| {
                let mut parts = collected.iter().filter_map(|it| it.recorders.get(number));
                let mut all = parts.next()?.clone();
                parts.for_each(|part| all.add(part));
                let mut figures = described(load, all.figures(seconds));
                figures.generator = Generator {
                    lag_p99: all.lag_p99(),
                    bottleneck: bottleneck(&generator, waited, &all),
                    ..generator.clone()
                };
                Some(figures)
            })
            .collect()
    }

    /// A limited window ends with its last request, the others when the loops were asked.
    fn window_seconds(&self, begun: &[Begun], collected: &[Collected]) -> f64 {
        let first = begun.iter().map(|it| it.at).min();
        let last = if self.run.is_complete() {
            collected.iter().filter_map(|it| it.last_ended).max()
        } else {
            collected.iter().map(|it| it.at).min()
        };
        match (first, last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Runs `work` on every loop and gives what it came to, by loop.
    fn each_loop<T: Send + 'static>(
        &self,
        work: impl Fn(usize, &Arc<Run>) -> T + Clone + Send + 'static,
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
        let lost = |_| io::Error::other("a loop of the load generator does not answer");
        answers
            .iter()
            .map(|answer| answer.recv_timeout(ANSWER_TIMEOUT).map_err(lost))
            .collect()
    }
}

/// Hands out an open loop's arrivals, each at its moment.
async fn pace(run: Arc<Run>, load: usize, alarm: PreciseTimer) {
    while let Some(wait) = run.hand_out(load, clock::now()) {
        let set = alarm.set(wait);
        if set.is_err() || std::future::poll_fn(|cx| alarm.poll(cx)).await.is_err() {
            return;
        }
    }
}

fn begin(state: &mut LoopState) -> Begun {
    state.phase = Phase::Measured;
    state.resting.drain(..).for_each(Waker::wake);
    for it in &mut state.loads {
        it.recorder.reset();
        if let Some(arrivals) = &mut it.arrivals {
            arrivals.forget();
        }
    }
    Begun {
        at: clock::now(),
        cpu: thread_cpu(),
        waited: thread_waited(),
    }
}

fn collect(state: &mut LoopState) -> Collected {
    let at = clock::now();
    state.phase = Phase::Ended;
    let mut recorders = Vec::new();
    for mut it in std::mem::take(&mut state.loads) {
        if let Some(arrivals) = &mut it.arrivals {
            arrivals.settle(at, &mut it.recorder);
            // Its connection was woken and has not had its turn.
            let untaken: Vec<_> = arrivals.untaken().collect();
            for (slot, due) in untaken {
                it.mark(slot, Some(due));
            }
        }
        it.leave(at);
        recorders.push(it.recorder);
    }
    Collected {
        at,
        cpu: thread_cpu(),
        waited: thread_waited(),
        last_ended: state.last_ended,
        recorders,
    }
}

fn loop_loads(run: &Run, index: usize, count: usize) -> io::Result<Vec<LoopLoad>> {
    let loads = run.loads.iter().enumerate();
    loads
        .map(|(number, shared)| {
            let load = &shared.load;
            let connections = connections_on(number, load, index, count);
            let arrivals = match load.pace {
                Pace::Closed => None,
                Pace::Open(rate) => {
                    // Loops without a connection of this load have no part in its rate.
                    let parts = count.min(load.connections as usize).max(1);
                    #[allow(clippy::cast_precision_loss, reason = "few loops")]
                    let rate = rate / parts as f64;
                    Some(Arrivals::new(clock::now(), rate, connections))
                }
            };
            Ok(LoopLoad {
                recorder: Recorder::new(arrivals.is_some()).map_err(io::Error::other)?,
                picker: Picker::new(load, index as u64),
                arrivals,
                under_way: vec![None; connections],
            })
        })
        .collect()
}

/// How many of a load's connections a loop has; each load begins at another loop.
fn connections_on(number: usize, load: &Load, index: usize, count: usize) -> usize {
    let all = load.connections as usize;
    all / count + usize::from(place(number, index, count) < all % count)
}

/// Which loop this one is to a load, from 0.
fn place(number: usize, index: usize, count: usize) -> usize {
    (index + count - number % count) % count
}

fn is_open(load: &Load) -> bool {
    matches!(load.pace, Pace::Open(_))
}

fn described(load: &Load, figures: Figures) -> Figures {
    Figures {
        name: load.name.clone(),
        connections: load.connections,
        rate: match load.pace {
            Pace::Closed => None,
            Pace::Open(rate) => Some(rate),
        },
        ..figures
    }
}

/// Why the generator may have limited the result.
fn bottleneck(generator: &Generator, waited: f64, recorder: &Recorder) -> Option<String> {
    if generator.busy > BUSY_MAX {
        let percent = generator.busy * 100.0;
        return Some(format!("its thread was busy {percent:.0} % of the time"));
    }
    if generator.busy + waited > BUSY_MAX {
        let (busy, waited) = (generator.busy * 100.0, waited * 100.0);
        return Some(format!(
            "its thread was busy {busy:.0} % of the time and waited {waited:.0} % for a core"
        ));
    }
    let lag = recorder.lag_p99()?;
    if lag > LAG_MAX_US {
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

/// How long this thread was ready and had no core; zero where the kernel does not say.
#[allow(clippy::disallowed_methods, reason = "/proc is memory")]
fn thread_waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1);
    Duration::from_nanos(waited.and_then(|text| text.parse().ok()).unwrap_or(0))
}

fn pin(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &cores)?)
}

fn check(plan: &Plan) -> io::Result<()> {
    let is_sound = |load: &Load| {
        let has_rate = match load.pace {
            Pace::Closed => true,
            Pace::Open(rate) => rate.is_finite() && rate > 0.0,
        };
        !load.shapes.is_empty() && load.connections > 0 && has_rate
    };
    if plan.loads.is_empty() || !plan.loads.iter().all(is_sound) {
        let message = "a load needs a request, a connection and a rate above zero";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// Raises the soft limit of open descriptors to the hard one.
pub(super) fn allow_all_descriptors() {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What is too few for a plan is told then.
    let _ = rustix::process::setrlimit(Resource::Nofile, limit);
}

/// Raises the soft limit of open descriptors as far as the plan needs it.
fn allow_descriptors(plan: &Plan) -> io::Result<()> {
    let of = |load: &Load| {
        let addresses = super::run::SharedLoad::new(load).addresses.len();
        u64::from(load.connections) * addresses as u64
    };
    let needed = plan.loads.iter().map(of).sum::<u64>() + DESCRIPTORS_BESIDE;
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(most) = limit.maximum.filter(|most| *most < needed) {
        return Err(io::Error::other(format!(
            "{needed} open files are needed and {most} allowed"
        )));
    }
    limit.current = Some(needed);
    Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
}

/// How often the stop flag and the end of a window are looked for.
const LOOK: Duration = Duration::from_millis(20);

/// How often connections that open are counted.
const READY_LOOK: Duration = Duration::from_millis(1);

/// How often the observer is told.
const TELL: Duration = Duration::from_millis(250);

/// A loop answers within a turn; one that does not is lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Beside two time-outs: how long a limited window goes on without any answer.
const SILENCE: Duration = Duration::from_secs(1);

/// Descriptors that are no connections: the loops' own, files, pipes.
const DESCRIPTORS_BESIDE: u64 = 64;

/// Above these the generator may have been what was measured.
const BUSY_MAX: f64 = 0.95;
const LAG_MAX_US: u64 = 2_000;
