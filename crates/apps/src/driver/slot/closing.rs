//! The end of a slot's driver: replies for the requests it has, or their way back to the queue.

use penstock_queue::DispatchedJob;
use penstock_runtime::clock;
use penstock_wire::{HEADER_LEN, read_method_and_path};

use super::{InFlightRequest, OpenResponse, SlotDriver};
use crate::dispatch::Job;
use crate::driver::{DriverEnd, count_fault};
use crate::shared::DispatchMode;

/// Offset of the environment in a REQUEST frame, behind the environment's length.
const ENVIRON_OFFSET: usize = HEADER_LEN + 4;

impl SlotDriver {
    /// Fails the first request if its worker may have begun it, and gives the others back.
    pub(super) fn requeue_or_fail_all(&mut self, end: &DriverEnd) {
        // What a worker has answered before its end is answered. After a breach of the protocol
        // nothing is certain.
        if *end == DriverEnd::WorkerDied {
            let _ = self.take_ring_answers();
        }
        let mut unbegun: Vec<DispatchedJob<Job>> = Vec::new();
        let mut line = std::mem::take(&mut self.in_flight).into_iter();
        if let Some(first) = line.next() {
            // A frame alone in a socket that was not read to its end: its worker has not begun it.
            let was_unread =
                self.core.received.has_unread_frame && self.is_frame_last && line.len() == 0;
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
        // Those that waited too long have their replies.
        let unanswered = line.filter(|entry| entry.start.job.reply_sender.is_some());
        unbegun.extend(unanswered.map(|entry| entry.start));
        self.core.mailbox.set_in_progress(0);
        *self.core.mailbox.deadline_extension.lock() = None;
        self.core.app.dispatch.remove_slot(
            clock::now(),
            self.core.slot,
            &self.core.mailbox,
            unbegun,
        );
    }

    fn fail_request(&mut self, mut entry: InFlightRequest, end: &DriverEnd) {
        if *end == DriverEnd::Retired && self.open_response.take().is_some() {
            // Its client has its reply.
            return;
        }
        let app_time = clock::now().saturating_duration_since(entry.handed_over_at);
        let timing = self.core.request_timing(Some(&entry.start), app_time);
        let limit = self.core.app.response_timeout_of(&entry.start.job);
        let timed_out = format!("no answer within response_timeout ({limit:?})");
        let fault = self.core.end_fault(end, timed_out).with_timing(timing);
        count_fault(&self.core.app, fault.kind);
        if *end == DriverEnd::TimedOut {
            self.log_stuck_request(&entry);
        }
        match self.open_response.take() {
            Some(OpenResponse::Spooling(spool)) => spool.finish(Err(fault)),
            // A hijacked connection learns of the end by itself.
            Some(OpenResponse::Discarding | OpenResponse::Hijacked(_)) => {}
            None => entry.start.job.answer(Err(fault)),
        }
    }

    /// Logs which request is stuck. The executor asks the worker for its stacks next.
    fn log_stuck_request(&self, entry: &InFlightRequest) {
        let DispatchMode::Workers(dialect) = self.core.app.dispatch_mode else {
            return;
        };
        let (app, pid) = (&self.core.app.name, self.core.pid);
        let frame = &entry.start.job.frame;
        let name = frame
            .get(ENVIRON_OFFSET..)
            .and_then(|e| read_method_and_path(dialect, e));
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
