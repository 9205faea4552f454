//! One run of `bench hold`: starts agents, has them open and hold their streams, and reports.
//!
//! `arguments` makes the [`HoldPlan`] and calls [`execute`]; the phases follow [`HoldPhase`]. One
//! thread receives all events on one channel and also takes the samples.
//!
//! # Invariants
//!
//! - Every phase ends by itself; Ctrl-C ends it with the results so far.
//! - Agents, publisher and probe have ended when it returns, in every case.

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::agent_protocol::{AgentMessage, AgentRequest, PROTOCOL_VERSION};
use super::aggregate::AgentTotals;
use super::plan::{HoldPhase, HoldPlan, HoldProgress, tick_interval};
use super::probe::HoldProbe;
use super::publisher::Publisher;
use super::sampler::Sampler;
use super::samples::SampleSeries;
use crate::child_link::ChildLink;
use crate::report::{HoldCost, HoldResult, HoldSample, ProbeResult, PublishResult, StreamCounts};
use crate::text::units::to_f64;

/// Opens and holds streams as planned; blocks until the end. Agents run `program bench hold-agent`;
/// `watch` is called a few times a second.
///
/// # Errors
/// The agents cannot be started.
pub fn execute(
    plan: &HoldPlan,
    program: &Path,
    watch: &mut dyn FnMut(&HoldProgress),
) -> Result<HoldResult, Box<dyn Error>> {
    let mut run = HoldRun::start(plan, program, watch)?;
    run.prepare()?;
    run.open_streams();
    run.hold_streams()?;
    run.wait_for_receipts();
    Ok(run.finish())
}

/// The number of an agent, and its message; `None` when it sends nothing more.
type AgentEvent = (usize, Option<AgentMessage>);

struct HoldRun<'a> {
    plan: &'a HoldPlan,
    watch: &'a mut dyn FnMut(&HoldProgress),
    phase: HoldPhase,
    /// Dropped before the links, so that an agent that still sends is not waited for.
    messages: Receiver<AgentEvent>,
    links: Vec<ChildLink>,
    totals: AgentTotals,
    sampler: Sampler,
    probe: Option<HoldProbe>,
    publisher: Option<Publisher>,
    published: Option<(PublishResult, u32)>,
    /// Identifies this run's messages.
    run: u32,
    samples: SampleSeries,
    opening_since: Option<Instant>,
    holding_since: Option<Instant>,
    ended_at: Option<Instant>,
    ready_agents: usize,
    notes: Vec<String>,
}

impl<'a> HoldRun<'a> {
    fn start(
        plan: &'a HoldPlan,
        program: &Path,
        watch: &'a mut dyn FnMut(&HoldProgress),
    ) -> Result<Self, Box<dyn Error>> {
        let run = run_number();
        let (sender, words) = sync_channel(MAX_QUEUED_MESSAGES);
        let mut links = Vec::new();
        for (agent, share) in plan.shares.iter().enumerate() {
            let order = plan.order_for_agent(agent, *share, run);
            let sender = sender.clone();
            let forward = move |message| sender.send((agent, message)).is_ok();
            let link = ChildLink::start(program, "hold-agent", &order, forward);
            let named = |error| format!("agent {agent}: {error}");
            links.push(link.map_err(named)?);
        }
        Ok(Self {
            phase: HoldPhase::Starting,
            messages: words,
            links,
            totals: AgentTotals::new(&plan.shares)?,
            sampler: Sampler::new(plan.servers.clone()),
            probe: None,
            publisher: None,
            published: None,
            run,
            samples: SampleSeries::new(plan.sample_interval),
            opening_since: None,
            holding_since: None,
            ended_at: None,
            ready_agents: 0,
            notes: Vec::new(),
            plan,
            watch,
        })
    }

    /// Waits until all agents are ready and the baseline is measured.
    fn prepare(&mut self) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while self.ready_agents < self.links.len() && !self.is_stopped() {
            self.step()?;
            if self.totals.counts().lost.agent > 0 {
                let why = self.notes.pop().unwrap_or_default();
                return Err(why.into());
            }
            if Instant::now() > deadline {
                let (ready, all) = (self.ready_agents, self.links.len());
                return Err(format!("only {ready} of {all} agents started in time").into());
            }
        }
        self.sampler = Sampler::new(self.plan.servers.clone());
        if let Some(asking) = &self.plan.probe {
            self.probe = Some(HoldProbe::start(asking)?);
        }
        let until = Instant::now() + self.plan.baseline_time;
        while Instant::now() < until && !self.is_stopped() {
            self.step()?;
        }
        Ok(())
    }

    /// Waits until all streams are open or given up.
    fn open_streams(&mut self) {
        self.phase = HoldPhase::Opening;
        let begun = Instant::now();
        self.opening_since = Some(begun);
        self.take_sample(begun);
        self.ask_agents(AgentRequest::Begin);
        let (mut last_opened, mut opened) = (begun, 0);
        let mut is_given_up = false;
        while self.totals.pending_streams() > 0 && !self.is_stopped() {
            self.step_noting_errors();
            let counts = self.totals.counts();
            if counts.opened > opened {
                (last_opened, opened) = (Instant::now(), counts.opened);
            }
            if !is_given_up && self.should_give_up(&counts, last_opened) {
                is_given_up = true;
                self.ask_agents(AgentRequest::EndOpening);
                self.notes.push(format!(
                    "the opening was given up after {} streams, of which {} were opened",
                    counts.begun, counts.opened
                ));
            }
        }
        if self.totals.pending_streams() > 0 {
            self.ask_agents(AgentRequest::EndOpening);
        }
    }

    /// Whether too much time, or too many streams, have passed without any opened.
    fn should_give_up(&self, counts: &StreamCounts, last_opened: Instant) -> bool {
        let turns = Duration::try_from_secs_f64(10.0 / self.plan.rate).unwrap_or_default();
        let patience = (self.plan.timeout * 3).max(GIVE_UP_AFTER) + turns;
        let has_lost = counts.lost.total() > 0;
        (counts.opened == 0 && counts.lost.total() >= GIVE_UP_AFTER_STREAMS)
            || (has_lost && last_opened.elapsed() > patience)
    }

    /// Holds the streams for the requested time.
    fn hold_streams(&mut self) -> Result<(), Box<dyn Error>> {
        self.phase = HoldPhase::Holding;
        let now = Instant::now();
        self.holding_since = Some(now);
        self.totals.take_busiest_cpu_seconds();
        if let Some(probe) = &self.probe {
            probe.mark_streams_held();
        }
        if self.plan.publish.is_some() {
            self.ask_agents(AgentRequest::Publishing);
        }
        while now.elapsed() < self.plan.hold && !self.is_stopped() && !self.totals.is_done() {
            self.step_noting_errors();
            if self.publisher.is_none()
                && self.totals.all_expect_messages()
                && let Some(publish) = &self.plan.publish
            {
                self.publisher = Some(Publisher::start(publish, self.run)?);
            }
        }
        let ended = Instant::now();
        self.ended_at = Some(ended);
        self.note_busy_agents(ended - now);
        Ok(())
    }

    /// A busy agent measures every receipt late.
    fn note_busy_agents(&mut self, held: Duration) {
        let busy =
            self.totals.take_busiest_cpu_seconds() / held.as_secs_f64().max(f64::MIN_POSITIVE);
        if held > MIN_BUSY_TIME && busy > BUSY_SHARE {
            self.notes.push(format!(
                "an agent was busy {:.0} % of the time, so latencies include its own delays: give \
                 more --agents if there are more cores",
                busy * 100.0
            ));
        }
    }

    /// Waits until no published message arrives any more.
    fn wait_for_receipts(&mut self) {
        self.phase = HoldPhase::AwaitingReceipts;
        let Some(publisher) = self.publisher.take() else {
            if let Some(publish) = &self.plan.publish {
                self.notes
                    .push("it ended before anything was published".to_owned());
                self.published = Some((publish.empty_result(), 0));
            }
            return;
        };
        self.published = Some(publisher.stop());
        let begun = Instant::now();
        let (mut last_heard, mut received) = (begun, self.totals.counts().received);
        let quiet = tick_interval(self.links.len()) * 2 + SETTLE_QUIET_TIME;
        while last_heard.elapsed() < quiet && begun.elapsed() < SETTLE_TIMEOUT {
            self.step_noting_errors();
            let now = self.totals.counts().received;
            if now != received {
                (last_heard, received) = (Instant::now(), now);
            }
            if self.totals.is_done() {
                return;
            }
        }
    }

    /// Ends the agents and returns the report.
    fn finish(mut self) -> HoldResult {
        self.phase = HoldPhase::Ending;
        let now = Instant::now();
        self.take_sample(now);
        let server_cpu = self.sampler.server_cpu_seconds();
        let probed = self.probe.take().map(HoldProbe::stop);
        let last = self.published.as_ref().map_or(0, |(_, last)| *last);
        self.ask_agents(AgentRequest::Finish { last });
        let deadline = now + FINISH_TIMEOUT;
        while !self.totals.is_done() && Instant::now() < deadline {
            self.step_noting_errors();
        }
        if !self.totals.is_done() {
            let late =
                "an agent did not send its last report in time: its last figures are missing";
            self.notes.push(late.to_owned());
        }
        self.links.iter_mut().for_each(ChildLink::close);
        self.report(probed, server_cpu)
    }

    fn report(self, probe: Option<ProbeResult>, server_cpu: Option<f64>) -> HoldResult {
        let plan = self.plan;
        let until = self.ended_at.unwrap_or_else(Instant::now);
        let holding = self.holding_since.unwrap_or(until);
        let seconds = |from: Option<Instant>, to: Instant| {
            from.map_or(0.0, |from| to.saturating_duration_since(from).as_secs_f64())
        };
        let mut hold = HoldResult {
            targets: plan.targets.clone(),
            streams: plan.total_streams(),
            rate: plan.rate,
            heartbeat_seconds: plan.heartbeat.map(|beat| beat.as_secs_f64()),
            grace_seconds: plan.grace.as_secs_f64(),
            agents: plan.shares.len(),
            sources: plan.sources.iter().map(Vec::len).sum(),
            opening_seconds: seconds(self.opening_since, holding),
            held_seconds: seconds(self.holding_since, until),
            published: self.published.map(|(published, _)| published),
            probe,
            samples: self.samples.into_all(),
            notes: self.notes,
            ..HoldResult::default()
        };
        self.totals.fill_report(&mut hold);
        hold.cost = hold_cost(&hold, &self.sampler, &self.totals, server_cpu);
        let received = to_f64(hold.counts.received);
        if let (Some(published), Some(seconds)) = (&mut hold.published, server_cpu)
            && received > 0.0
        {
            published.cpu_us_per_delivery = Some(seconds * 1e6 / received);
        }
        hold
    }

    /// Handles pending events, and takes a sample when it is due.
    fn step(&mut self) -> Result<(), String> {
        let mut failed = None;
        let mut wait = STEP_TIMEOUT;
        // All pending events, so that no agent waits for the sample below.
        for _ in 0..MAX_QUEUED_MESSAGES {
            match self.messages.recv_timeout(wait) {
                Ok(event) => self.handle_event(event, &mut failed),
                Err(RecvTimeoutError::Timeout) => break,
                // All agents have ended; the time still has to pass.
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::park_timeout(wait);
                    break;
                }
            }
            wait = Duration::ZERO;
        }
        let now = Instant::now();
        if self.opening_since.is_some() && self.samples.is_due(now) {
            self.take_sample(now);
        }
        let left = match self.holding_since {
            Some(holding) => self.plan.hold.saturating_sub(holding.elapsed()),
            None => self.plan.hold,
        };
        (self.watch)(&HoldProgress {
            phase: self.phase,
            streams: self.plan.total_streams(),
            counts: self.totals.counts(),
            time_left: left,
            sample: self.samples.last(),
        });
        failed.map_or(Ok(()), Err)
    }

    /// As [`HoldRun::step`], with failures noted in the report.
    fn step_noting_errors(&mut self) {
        if let Err(why) = self.step() {
            self.notes.push(why);
        }
    }

    fn handle_event(&mut self, (agent, message): AgentEvent, failed: &mut Option<String>) {
        match message {
            Some(AgentMessage::Ready {
                protocol: PROTOCOL_VERSION,
            }) => self.ready_agents += 1,
            Some(AgentMessage::Ready { protocol }) => {
                *failed = Some(format!("agent {agent} has protocol version {protocol}"));
            }
            Some(AgentMessage::Failed(why)) => *failed = Some(format!("agent {agent}: {why}")),
            Some(AgentMessage::Tick(tick)) => self.totals.add_tick(agent, *tick, false),
            Some(AgentMessage::Done(tick)) => self.totals.add_tick(agent, *tick, true),
            None if self
                .totals
                .record_lost_agent(agent, "an agent ended unexpectedly") =>
            {
                let how = self.links[agent].wait();
                let how = how.map_or_else(
                    || "it did not end in time".to_owned(),
                    |how| how.to_string(),
                );
                let note = format!("agent {agent} ended unexpectedly: {how}");
                self.notes.push(note);
            }
            None => {}
        }
    }

    fn take_sample(&mut self, now: Instant) {
        let counts = self.totals.counts();
        let [latency_p50, latency_p99] = self.totals.take_latency_percentiles();
        let at = self.opening_since.map_or(Duration::ZERO, |from| now - from);
        let mut sample = HoldSample {
            at: at.as_secs_f64(),
            is_opening: self.phase == HoldPhase::Opening,
            open: counts.open,
            lost: counts.lost.total(),
            tool_bytes: self.totals.memory_bytes(),
            latency_p50,
            latency_p99,
            ..self.sampler.sample()
        };
        if let Some(probe) = &self.probe {
            probe.fill_sample(&mut sample);
        }
        self.samples.add(now, counts.receipts, sample);
    }

    fn ask_agents(&mut self, ask: AgentRequest) {
        for link in &mut self.links {
            // One that cannot be reached has ended, which its last message reports.
            let _ = link.send(&ask);
        }
    }

    fn is_stopped(&self) -> bool {
        self.plan.stop.load(Ordering::Relaxed)
    }
}

/// The cost of the streams: the peak while all were held, or of the whole run if none were.
fn hold_cost(
    hold: &HoldResult,
    sampler: &Sampler,
    gathered: &AgentTotals,
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
    let streams = hold.counts.max_open;
    let per_stream = |bytes: u64| (streams > 0).then(|| to_f64(bytes) / to_f64(streams));
    let grown = server_bytes.zip(sampler.server_bytes_before);
    let loads = hold.samples.iter().map(|sample| sample.load_average);
    HoldCost {
        server_bytes_before: sampler.server_bytes_before,
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
        max_load_average: loads.fold(0.0, f64::max),
    }
}

/// A number that another run on the same channel is unlikely to have.
fn run_number() -> u32 {
    // Each state has random keys.
    let random = RandomState::new()
        .hash_one(std::process::id())
        .to_le_bytes();
    u32::from_le_bytes([random[0], random[1], random[2], random[3]])
}

/// Above this share of a core an agent counts as busy, over a time that its ticks can measure.
const BUSY_SHARE: f64 = 0.9;
const MIN_BUSY_TIME: Duration = Duration::from_secs(5);

/// Maximum queued events.
const MAX_QUEUED_MESSAGES: usize = 256;

/// The maximum wait of a step.
const STEP_TIMEOUT: Duration = Duration::from_millis(100);

/// For all agents to start.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// For all agents to send their last message.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

/// Without a receipt for this long, no message is in flight; the timeout limits the whole wait.
const SETTLE_QUIET_TIME: Duration = Duration::from_millis(500);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(15);

/// A server that opened none of this many streams, or none for this long, opens none at all.
const GIVE_UP_AFTER_STREAMS: u64 = 1000;
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
