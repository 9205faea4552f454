//! The end of a slot's driver: who learns what happened, and what goes back to the queue.
//!
//! What must stay true: nobody is left waiting, and a request goes back only if its worker cannot have
//! begun it.

use penstock_exchange::{Fault, FaultKind, RequestTiming};
use penstock_queue::DispatchedJob;
use penstock_runtime::clock;
use penstock_wire::{HEADER_LEN, request_name};

use super::{InFlightRequest, OpenResponse, SlotDriver};
use crate::dispatch::Job;
use crate::driver::DriverEnd;
use crate::shared::DispatchMode;

/// Where a REQUEST frame's environment begins: behind its header and the environment's length.
const ENVIRON_OFFSET: usize = HEADER_LEN + 4;

impl SlotDriver {
    /// Leaves nobody waiting: the head of the line learns what happened, the rest goes back.
    pub(super) fn close_all(&mut self, end: &DriverEnd) {
        let mut unbegun: Vec<DispatchedJob<Job>> = Vec::new();
        let mut line = std::mem::take(&mut self.in_flight).into_iter();
        if let Some(first) = line.next() {
            // A frame alone in a socket that was not read to its end: nobody has begun it.
            let was_unread = self.has_unread_frame && self.is_frame_last && line.len() == 0;
            let was_sent = first.is_sent() && !was_unread;
            if was_sent || self.open_response.is_some() || *end == DriverEnd::TimedOut {
                self.fail_request(first, end);
            } else {
                unbegun.push(first.start);
            }
        }
        if *end == DriverEnd::Retired {
            // Its stream was cut: the process may live for a moment and turn to the next.
            line.by_ref()
                .for_each(|entry| self.fail_request(entry, end));
        }
        // Those that waited too long have been answered.
        let unanswered = line.filter(|entry| entry.start.job.reply_sender.is_some());
        unbegun.extend(unanswered.map(|entry| entry.start));
        self.mailbox.set_in_progress(0);
        self.mailbox.set_deadline_extension(None);
        self.app
            .dispatch
            .remove_slot(clock::now(), self.slot, &self.mailbox, unbegun);
    }

    fn fail_request(&mut self, mut entry: InFlightRequest, end: &DriverEnd) {
        let app = clock::now().saturating_duration_since(entry.handed_over_at);
        let timing = RequestTiming {
            queue_time: entry.start.waited,
            queue_position: u32::try_from(entry.start.queue_position).unwrap_or(u32::MAX),
            app_time: app,
            handler: Some((&self.app.name).into()),
            worker_pid: self.pid,
            ..RequestTiming::default()
        };
        if *end == DriverEnd::Retired && self.open_response.take().is_some() {
            // Its client has been told.
            return;
        }
        let (kind, cause) = match end {
            DriverEnd::TimedOut => {
                self.app.metrics.timed_out_requests.increment();
                self.log_stuck_request(&entry);
                let limit = self.app.response_timeout;
                (
                    FaultKind::AppTimeout,
                    format!("no answer within response_timeout ({limit:?})"),
                )
            }
            DriverEnd::ProtocolBroken(why) => {
                self.app.metrics.failed_requests.increment();
                (
                    FaultKind::AppProtocolError,
                    format!("worker {} broke the protocol: {why}", self.pid),
                )
            }
            DriverEnd::WorkerDied | DriverEnd::Retired => {
                self.app.metrics.worker_deaths.increment();
                (
                    FaultKind::WorkerDied,
                    format!("worker {} ended with the request inside", self.pid),
                )
            }
        };
        let fault = Fault::new(kind, cause).with_timing(timing);
        match self.open_response.take() {
            Some(OpenResponse::Spooling(spool)) => spool.finish(Err(fault)),
            // Whoever answers for a hijacked connection hears of its worker's end.
            Some(OpenResponse::Discarding | OpenResponse::Hijacked(_)) => {}
            None => entry.start.job.answer(Err(fault)),
        }
    }

    /// Says in the log which request is stuck; the executor asks the worker for its stacks next.
    fn log_stuck_request(&self, entry: &InFlightRequest) {
        let DispatchMode::Workers(dialect) = self.app.dispatch_mode else {
            return;
        };
        let (app, pid) = (&self.app.name, self.pid);
        let frame = &entry.start.job.frame;
        let name = frame
            .get(ENVIRON_OFFSET..)
            .and_then(|e| request_name(dialect, e));
        let name = name.map_or_else(|| "a request".to_owned(), |(m, path)| format!("{m} {path}"));
        let seconds = clock::now()
            .saturating_duration_since(entry.handed_over_at)
            .as_secs_f64();
        log::error!(
            "{app}[{pid}]: {name} has had {seconds:.1} s, more than response_timeout and what it \
             asked for; the stacks of the worker's threads follow"
        );
    }
}
