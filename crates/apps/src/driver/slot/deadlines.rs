//! The deadlines of a slot's driver: of the first request, of requests behind a long response, of
//! streams in a worker that is being replaced, and of a driver without a request.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::clock;

use super::{OpenResponse, SlotDriver};
use crate::driver::DriverEnd;

/// How long a worker may take to end a stream that was cut, before its socket is closed.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);

impl SlotDriver {
    /// Ready with the end if an idle driver is to end.
    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<DriverEnd> {
        match (
            self.core.is_retiring,
            self.core.worker_lost_at,
            self.gc_deadline,
        ) {
            (true, None, _) if self.core.hijacked_connections.poll_count(cx) > 0 => {
                if !self.core.are_streams_cut {
                    return Poll::Pending;
                }
                self.core.hijacked_connections.cut_all();
                Poll::Ready(DriverEnd::Retired)
            }
            (true, _, _) => Poll::Ready(DriverEnd::Retired),
            (false, Some(_), _) => Poll::Ready(DriverEnd::WorkerDied),
            (false, None, None) => Poll::Pending,
            (false, None, Some(at)) => {
                self.deadline.set(at);
                let limit = self.core.app.response_timeout;
                let overdue =
                    || DriverEnd::ProtocolBroken(format!("no GARBAGE_COLLECTED within {limit:?}"));
                self.deadline.poll(cx).map(|()| overdue())
            }
        }
    }

    /// When the first request has had its time. An event stream has no deadline, unless requests
    /// wait behind it.
    pub(super) fn response_deadline(&self, cx: &mut Context<'_>) -> Option<Instant> {
        if self.is_pulling && self.discarding_since.is_none() {
            // It waits for its client; the limits of bodies bound that.
            return None;
        }
        // A dropped response must end, even if its bytes keep coming.
        let mut since = self.discarding_since.unwrap_or(self.progress_at);
        let is_streaming = match &self.open_response {
            Some(OpenResponse::Spooling(_)) => self.is_unbuffered,
            Some(OpenResponse::Hijacked(stage)) => {
                // The driver is woken at the connection's end, when the call's time begins.
                self.core.hijacked_connections.poll_count(cx);
                let overdue_since = stage.overdue_since(since);
                since = overdue_since.unwrap_or(since);
                overdue_since.is_none()
            }
            Some(OpenResponse::Discarding) | None => false,
        };
        if is_streaming && self.in_flight.len() == 1 {
            return None;
        }
        let job = self.in_flight.front().map(|entry| &entry.start.job);
        let app = &self.core.app;
        let timeout = job.map_or(app.response_timeout, |job| app.response_timeout_of(job));
        let usual = since + timeout;
        Some(self.deadline_extension.map_or(usual, |at| at.max(usual)))
    }

    /// Answers requests that have waited for `queue.timeout` behind a long response. Their worker
    /// has them and may still run them.
    pub(super) fn poll_behind(&mut self, cx: &mut Context<'_>) {
        let limit = self.core.app.queue_timeout();
        for entry in self.in_flight.iter_mut().skip(1) {
            let job = &mut entry.start.job;
            if job.reply_sender.is_none() {
                continue;
            }
            self.behind_deadline.set(entry.handed_over_at + limit);
            if self.behind_deadline.poll(cx).is_pending() {
                return;
            }
            self.core.app.metrics.queue_timeout.increment();
            let cause = format!(
                "worker {} had a response before it that took longer than queue.timeout ({limit:?})",
                self.core.pid
            );
            job.answer(Err(Fault::new(FaultKind::AppTimeout, cause)));
            self.core.producer.set_pipelined_since(None);
        }
    }

    /// Cuts a stream whose time is over, also one that is dropped; `true` if it did.
    pub(super) fn cut_stream(&mut self) -> bool {
        let is_uploading = self.is_uploading();
        if !self.core.are_streams_cut
            || self.cut_deadline.is_some()
            || self.open_response.is_none() && !is_uploading
        {
            return false;
        }
        if is_uploading {
            self.cut_overdue_body();
        }
        if !matches!(self.open_response, Some(OpenResponse::Spooling(_))) {
            self.core.hijacked_connections.cut_all();
            self.cut_deadline = Some(clock::now() + CUT_TIMEOUT);
            return true;
        }
        if let Some(OpenResponse::Spooling(spool)) = self.open_response.take() {
            let limit = self.core.app.stream_timeout;
            let cause = format!(
                "worker {} is being replaced and stream_timeout ({limit:?}) is over",
                self.core.pid
            );
            spool.finish(Err(Fault::new(FaultKind::AppTimeout, cause)));
        }
        self.discard_response(false);
        self.cut_deadline = Some(clock::now() + CUT_TIMEOUT);
        true
    }
}
