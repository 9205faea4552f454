//! The end of a channel's driver: replies for the requests it has, or their way back to the queue.

use penstock_http::websocket::close_code;
use penstock_queue::DispatchedJob;
use penstock_runtime::clock;

use super::ChannelDriver;
use super::stream_table::StreamState;
use crate::dispatch::Job;
use crate::driver::{DriverEnd, count_fault};

impl ChannelDriver {
    /// Gives unbegun requests back, and fails the others.
    pub(super) fn requeue_or_fail_all(&mut self, end: &DriverEnd) {
        let (unsent, last) = self.outbox.drain_unsent();
        // A frame at the end of a socket that was not read to its end: its worker has not begun it.
        let unread = last.filter(|_| self.core.received.has_unread_frame);
        let mut unbegun: Vec<DispatchedJob<Job>> = Vec::new();
        for id in unread.into_iter().chain(unsent) {
            let is_wanted = self
                .streams
                .entry(id)
                .is_some_and(|entry| !entry.is_abandoned());
            if is_wanted && let Some(StreamState::AwaitingResponse(start)) = self.streams.close(id)
            {
                unbegun.push(*start);
            }
        }
        for id in self.streams.ids() {
            self.fail_remaining(id, end);
        }
        self.core.mailbox.set_in_progress(0);
        self.core.app.dispatch.remove_slot(
            clock::now(),
            self.core.slot,
            &self.core.mailbox,
            unbegun,
        );
    }

    fn fail_remaining(&mut self, id: u32, end: &DriverEnd) {
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        let timing =
            (self.core).request_timing(entry.unanswered_job(), entry.app_time(clock::now()));
        let was_abandoned = entry.is_abandoned();
        let timed_out = format!("worker {} takes no requests any more", self.core.pid);
        let fault = self.core.end_fault(end, timed_out).with_timing(timing);
        if !was_abandoned {
            count_fault(&self.core.app, fault.kind);
        }
        let state = self.streams.close(id);
        match state {
            Some(StreamState::AwaitingResponse(mut start)) => start.job.answer(Err(fault)),
            Some(StreamState::Spooling(writer)) => writer.finish(Err(fault)),
            Some(StreamState::Pumping(pump)) => pump.end_body(Err(fault)),
            Some(StreamState::WebSocket(socket)) => {
                // A client that reconnects finds the next worker.
                let code = match self.core.is_retiring {
                    true => close_code::SERVICE_RESTART,
                    false => close_code::INTERNAL_ERROR,
                };
                socket
                    .pipe
                    .close_by_worker(code, "the application's worker ended");
            }
            // A hijacked connection learns of the end by itself.
            Some(
                StreamState::Hijacked(_)
                | StreamState::AbandonedUnsent(_)
                | StreamState::Discarding,
            )
            | None => {}
        }
    }
}
