//! One run of `bench hold`: agents are started, open their streams, hold them, and say what came of it.
//!
//! `verb` makes the [`Plan`] and calls [`execute`]; the phases follow one another as [`Phase`] names them. All that
//! happens is heard on one channel by one thread, which also takes a sample every now and then. What must
//! stay true: every phase ends by itself; Ctrl-C ends it with what was found so far; agents, publisher and
//! probe are gone when it returns, whatever the way.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::gather::Gathered;
use super::link::{Heard, Link};
use super::order::{Ask, PROTOCOL, Word};
use super::plan::{HoldError, Phase, Plan, Progress, tick};
use super::probe::{Interval, Probe};
use super::publisher::Publisher;
use super::sampler::Sampler;
use super::samples::Samples;
use crate::report::{Hold, HoldCost, HoldCounts, HoldSample, Probed, Published};
use crate::text::units::number;

/// Opens and holds streams as planned; blocks until the end. Agents are `program bench hold-agent`;
/// `watch` is called a few times a second.
///
/// # Errors
/// When the agents cannot be started.
pub fn execute(
    plan: &Plan,
    program: &Path,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Hold, HoldError> {
    let mut run = Run::start(plan, program)?;
    run.prepare(watch)?;
    run.open(watch);
    run.hold(watch)?;
    run.settle(watch);
    Ok(run.finish(watch))
}

struct Run<'a> {
    plan: &'a Plan,
    phase: Phase,
    /// Before the links, so that an agent which still speaks is not waited for.
    words: Receiver<(usize, Heard)>,
    links: Vec<Link>,
    gathered: Gathered,
    sampler: Sampler,
    probe: Option<Probe>,
    publisher: Option<Publisher>,
    published: Option<(Published, u32)>,
    /// Which messages are ours.
    run: u32,
    samples: Samples,
    opening: Option<Instant>,
    holding: Option<Instant>,
    ended: Option<Instant>,
    ready: usize,
    notes: Vec<String>,
}

impl<'a> Run<'a> {
    fn start(plan: &'a Plan, program: &Path) -> Result<Self, HoldError> {
        let run = run_number();
        let (sender, words) = sync_channel(WORDS_MAX);
        let mut links = Vec::new();
        for (agent, share) in plan.shares.iter().enumerate() {
            let order = plan.order(agent, *share, run);
            let link = Link::start(program, agent, &order, sender.clone());
            links.push(link.map_err(HoldError::Agent)?);
        }
        Ok(Self {
            phase: Phase::Starting,
            words,
            links,
            gathered: Gathered::new(&plan.shares)?,
            sampler: Sampler::new(plan.servers.clone()),
            probe: None,
            publisher: None,
            published: None,
            run,
            samples: Samples::new(plan.sample),
            opening: None,
            holding: None,
            ended: None,
            ready: 0,
            notes: Vec::new(),
            plan,
        })
    }

    /// Until all agents are ready and the baseline is taken.
    fn prepare(&mut self, watch: &mut dyn FnMut(&Progress)) -> Result<(), HoldError> {
        let deadline = Instant::now() + READY_TIME;
        while self.ready < self.links.len() && !self.is_stopped() {
            self.step(watch).map_err(HoldError::Agent)?;
            if self.gathered.counts().lost.agent > 0 {
                let why = self.notes.pop().unwrap_or_default();
                return Err(HoldError::Agent(why));
            }
            if Instant::now() > deadline {
                let why = format!("{} of {} agents", self.ready, self.links.len());
                return Err(HoldError::Agent(format!("only {why} started in time")));
            }
        }
        self.sampler = Sampler::new(self.plan.servers.clone());
        if let Some(asking) = &self.plan.probe {
            self.probe = Some(Probe::start(asking)?);
        }
        let until = Instant::now() + self.plan.lead;
        while Instant::now() < until && !self.is_stopped() {
            self.step(watch).map_err(HoldError::Agent)?;
        }
        Ok(())
    }

    /// Until no stream is being opened any more.
    fn open(&mut self, watch: &mut dyn FnMut(&Progress)) {
        self.phase = Phase::Opening;
        let begun = Instant::now();
        self.opening = Some(begun);
        self.sample(begun);
        self.ask(Ask::Begin);
        let (mut last_opened, mut opened) = (begun, 0);
        let mut is_given_up = false;
        while self.gathered.pending() > 0 && !self.is_stopped() {
            self.step_or_note(watch);
            let counts = self.gathered.counts();
            if counts.opened > opened {
                (last_opened, opened) = (Instant::now(), counts.opened);
            }
            if !is_given_up && self.is_hopeless(&counts, last_opened) {
                is_given_up = true;
                self.ask(Ask::EndOpening);
                self.notes.push(format!(
                    "the opening was given up after {} streams, of which {} were opened",
                    counts.begun, counts.opened
                ));
            }
        }
        if self.gathered.pending() > 0 {
            self.ask(Ask::EndOpening);
        }
    }

    /// Whether nothing has been opened for so long, or of so many, that nothing will be.
    fn is_hopeless(&self, counts: &HoldCounts, last_opened: Instant) -> bool {
        let turns = Duration::try_from_secs_f64(10.0 / self.plan.rate).unwrap_or_default();
        let patience = (self.plan.timeout * 3).max(HOPELESS_TIME) + turns;
        let has_lost = counts.lost.total() > 0;
        (counts.opened == 0 && counts.lost.total() >= HOPELESS_STREAMS)
            || (has_lost && last_opened.elapsed() > patience)
    }

    /// For the time that was asked for.
    fn hold(&mut self, watch: &mut dyn FnMut(&Progress)) -> Result<(), HoldError> {
        self.phase = Phase::Holding;
        let now = Instant::now();
        self.holding = Some(now);
        self.gathered.busiest();
        if let Some(probe) = &self.probe {
            probe.hold();
        }
        if self.plan.publish.is_some() {
            self.ask(Ask::Publishing);
        }
        while now.elapsed() < self.plan.hold && !self.is_stopped() && !self.gathered.is_done() {
            self.step_or_note(watch);
            if self.publisher.is_none()
                && self.gathered.expects()
                && let Some(publish) = &self.plan.publish
            {
                self.publisher = Some(Publisher::start(publish, self.run)?);
            }
        }
        let ended = Instant::now();
        self.ended = Some(ended);
        self.note_busy(ended - now);
        Ok(())
    }

    /// An agent that has no time to look hears everything late.
    fn note_busy(&mut self, held: Duration) {
        let busy = self.gathered.busiest() / held.as_secs_f64().max(f64::MIN_POSITIVE);
        if held > BUSY_FROM && busy > BUSY {
            self.notes.push(format!(
                "an agent was busy {:.0} % of the time: latencies are its own as much as the \
                 server's; give more --agents, where there are more cores",
                busy * 100.0
            ));
        }
    }

    /// Until nothing of what was published arrives any more.
    fn settle(&mut self, watch: &mut dyn FnMut(&Progress)) {
        self.phase = Phase::Settling;
        let Some(publisher) = self.publisher.take() else {
            if let Some(publish) = &self.plan.publish {
                self.notes
                    .push("it was over before anything was published".to_owned());
                self.published = Some((publish.nothing(), 0));
            }
            return;
        };
        self.published = Some(publisher.stop());
        let begun = Instant::now();
        let (mut last_heard, mut received) = (begun, self.gathered.counts().received);
        let quiet = tick(self.links.len()) * 2 + SETTLE_QUIET;
        while last_heard.elapsed() < quiet && begun.elapsed() < SETTLE_TIME {
            self.step_or_note(watch);
            let now = self.gathered.counts().received;
            if now != received {
                (last_heard, received) = (Instant::now(), now);
            }
            if self.gathered.is_done() {
                return;
            }
        }
    }

    /// Ends the agents and gives the report.
    fn finish(mut self, watch: &mut dyn FnMut(&Progress)) -> Hold {
        self.phase = Phase::Ending;
        let now = Instant::now();
        self.sample(now);
        let server_cpu = self.sampler.server_cpu();
        let probed = self.probe.take().map(Probe::stop);
        let last = self.published.as_ref().map_or(0, |(_, last)| *last);
        self.ask(Ask::Finish { last });
        let deadline = now + FINISH_TIME;
        while !self.gathered.is_done() && Instant::now() < deadline {
            self.step_or_note(watch);
        }
        if !self.gathered.is_done() {
            let late = "an agent did not say its last word in time: its last figures are missing";
            self.notes.push(late.to_owned());
        }
        self.links.iter_mut().for_each(Link::close);
        self.report(probed, server_cpu)
    }

    fn report(self, probe: Option<Probed>, server_cpu: Option<f64>) -> Hold {
        let plan = self.plan;
        let until = self.ended.unwrap_or_else(Instant::now);
        let holding = self.holding.unwrap_or(until);
        let seconds = |from: Option<Instant>, to: Instant| {
            from.map_or(0.0, |from| to.saturating_duration_since(from).as_secs_f64())
        };
        let mut hold = Hold {
            targets: plan.targets.clone(),
            streams: plan.streams(),
            rate: plan.rate,
            beat_seconds: plan.beat.map(|beat| beat.as_secs_f64()),
            grace_seconds: plan.grace.as_secs_f64(),
            agents: plan.shares.len(),
            sources: plan.sources.iter().map(Vec::len).sum(),
            opening_seconds: seconds(self.opening, holding),
            held_seconds: seconds(self.holding, until),
            published: self.published.map(|(published, _)| published),
            probe,
            samples: self.samples.into_all(),
            notes: self.notes,
            ..Hold::default()
        };
        self.gathered.report(&mut hold);
        hold.cost = cost(&hold, &self.sampler, &self.gathered, server_cpu);
        let received = number(hold.counts.received);
        if let (Some(published), Some(seconds)) = (&mut hold.published, server_cpu)
            && received > 0.0
        {
            published.cpu_us_per_delivery = Some(seconds * 1e6 / received);
        }
        hold
    }

    /// Hears what there is, and samples when it is time.
    fn step(&mut self, watch: &mut dyn FnMut(&Progress)) -> Result<(), String> {
        let mut failed = None;
        let mut wait = STEP;
        // All that is there, so that no agent waits for the sample below.
        for _ in 0..WORDS_MAX {
            match self.words.recv_timeout(wait) {
                Ok((agent, heard)) => self.take(agent, heard, &mut failed),
                Err(RecvTimeoutError::Timeout) => break,
                // All agents have ended: there is still the time to wait for.
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::park_timeout(wait);
                    break;
                }
            }
            wait = Duration::ZERO;
        }
        let now = Instant::now();
        if self.opening.is_some() && self.samples.is_due(now) {
            self.sample(now);
        }
        let left = match self.holding {
            Some(holding) => self.plan.hold.saturating_sub(holding.elapsed()),
            None => self.plan.hold,
        };
        watch(&Progress {
            phase: self.phase,
            streams: self.plan.streams(),
            counts: self.gathered.counts(),
            left,
            sample: self.samples.last(),
        });
        failed.map_or(Ok(()), Err)
    }

    /// As [`Run::step`], where a failure is told in the report.
    fn step_or_note(&mut self, watch: &mut dyn FnMut(&Progress)) {
        if let Err(why) = self.step(watch) {
            self.notes.push(why);
        }
    }

    fn take(&mut self, agent: usize, heard: Heard, failed: &mut Option<String>) {
        match heard {
            Heard::Word(Word::Ready { protocol: PROTOCOL }) => self.ready += 1,
            Heard::Word(Word::Ready { protocol }) => {
                *failed = Some(format!("agent {agent} is of version {protocol}"));
            }
            Heard::Word(Word::Failed(why)) => *failed = Some(format!("agent {agent}: {why}")),
            Heard::Word(Word::Tick(tick)) => self.gathered.take(agent, *tick, false),
            Heard::Word(Word::Done(tick)) => self.gathered.take(agent, *tick, true),
            Heard::Gone => {
                if self.gathered.lose(agent, "an agent ended unasked") {
                    let how = self.links[agent].how_ended();
                    self.notes
                        .push(format!("agent {agent} ended unasked: {how}"));
                }
            }
        }
    }

    fn sample(&mut self, now: Instant) {
        let cost = self.sampler.look();
        let counts = self.gathered.counts();
        let asked = self
            .probe
            .as_ref()
            .map_or_else(Interval::default, Probe::interval);
        let receipts = self.gathered.interval();
        let at = self.opening.map_or(Duration::ZERO, |from| now - from);
        self.samples.add(
            now,
            counts.heard,
            HoldSample {
                at: at.as_secs_f64(),
                is_opening: self.phase == Phase::Opening,
                open: counts.open,
                lost: counts.lost.total(),
                heard_per_second: 0.0,
                server_bytes: cost.server,
                kernel_bytes: cost.kernel,
                tool_bytes: self.gathered.memory(),
                load: cost.load,
                probe_mean: asked.mean,
                probe_p99: asked.p99,
                probe_errors: asked.errors,
                latency_p50: receipts.p50,
                latency_p99: receipts.p99,
            },
        );
    }

    fn ask(&mut self, ask: Ask) {
        for link in &mut self.links {
            link.ask(ask);
        }
    }

    fn is_stopped(&self) -> bool {
        self.plan.stop.load(Ordering::Relaxed)
    }
}

/// What the streams cost: the most while all were held, or of all when none were.
fn cost(
    hold: &Hold,
    sampler: &Sampler,
    gathered: &Gathered,
    server_cpu_seconds: Option<f64>,
) -> HoldCost {
    let has_held = hold.samples.iter().any(|sample| !sample.is_opening);
    let samples = || {
        let samples = hold.samples.iter();
        samples.filter(move |sample| !has_held || !sample.is_opening)
    };
    let most = |of: fn(&HoldSample) -> Option<u64>| samples().filter_map(of).max();
    let server_bytes = most(|sample| sample.server_bytes);
    let kernel_bytes = most(|sample| sample.kernel_bytes);
    let mut all: Vec<u64> = samples().filter_map(|sample| sample.kernel_bytes).collect();
    all.sort_unstable();
    let kernel_median = all.get(all.len() / 2).copied();
    let tool_bytes = most(|sample| Some(sample.tool_bytes)).unwrap_or(0);
    let streams = hold.counts.open_max;
    let per_stream = |bytes: u64| (streams > 0).then(|| number(bytes) / number(streams));
    let grown = server_bytes.zip(sampler.server_before);
    let loads = hold.samples.iter().map(|sample| sample.load);
    HoldCost {
        server_before: sampler.server_before,
        server_bytes,
        server_bytes_per_stream: grown
            .and_then(|(now, before)| per_stream(now.saturating_sub(before))),
        kernel_bytes,
        kernel_bytes_per_stream: kernel_bytes.and_then(per_stream),
        kernel_bytes_per_stream_median: kernel_median.and_then(per_stream),
        tool_bytes,
        tool_bytes_per_stream: per_stream(tool_bytes),
        server_cpu_seconds,
        tool_cpu_seconds: gathered.cpu_seconds(),
        load_max: loads.fold(0.0, f64::max),
    }
}

/// A number that another run at the same channel hardly has.
fn run_number() -> u32 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let mixed =
        now.tv_sec.wrapping_mul(1_000_003) ^ now.tv_nsec ^ (i64::from(std::process::id()) << 20);
    let bytes = mixed.to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Above this part of a core an agent counts as busy, over a time that its ticks can show.
const BUSY: f64 = 0.9;
const BUSY_FROM: Duration = Duration::from_secs(5);

/// What may wait to be heard.
const WORDS_MAX: usize = 256;

/// How long a step waits for a word.
const STEP: Duration = Duration::from_millis(100);

/// For all agents to start.
const READY_TIME: Duration = Duration::from_secs(60);

/// For all agents to say their last word.
const FINISH_TIME: Duration = Duration::from_secs(60);

/// Without a receipt for so long, nothing more is on its way; and it never takes longer than that.
const SETTLE_QUIET: Duration = Duration::from_millis(500);
const SETTLE_TIME: Duration = Duration::from_secs(15);

/// A server that opened none of so many streams opens none; nor does one after so long a time.
const HOPELESS_STREAMS: u64 = 1000;
const HOPELESS_TIME: Duration = Duration::from_secs(10);
