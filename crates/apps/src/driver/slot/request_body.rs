//! The body of a slot's request that arrives while its thread has the request.
//!
//! The worker asks for each piece with PULL and gets one INPUT. Until the response has ended, only
//! INPUT and CANCEL are sent behind such a request.
//!
//! # Invariants
//! - Each PULL is answered, also when the response ends first: a thread of the application that
//!   waits for bytes would take those of the next request.
//! - A request whose worker waits for its client has no deadline here: the limits of bodies bound
//!   that wait.

use std::task::{Context, Poll};

use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::clock;
use penstock_wire::{encode_input, encode_input_aborted};

use super::{OpenResponse, SlotDriver};
use crate::driver::DriverEnd;
use crate::upload::UploadPiece;

impl SlotDriver {
    /// Whether more of the first request's body may come.
    pub(super) fn is_uploading(&self) -> bool {
        let front = self.in_flight.front();
        front.is_some_and(|entry| entry.is_sent() && entry.start.job.upload.is_some())
    }

    /// Answers PULL, or waits for the piece.
    pub(super) fn handle_pull(&mut self) -> Result<(), DriverEnd> {
        let is_known = self.is_uploading() || self.is_body_cut;
        if !is_known || std::mem::replace(&mut self.is_pulling, true) {
            return Err(DriverEnd::ProtocolBroken("a PULL for nothing".into()));
        }
        if self.is_body_cut {
            self.send_cut_frame();
        }
        Ok(())
    }

    /// Takes the next piece if the worker waits for one, and notices a body that fails.
    pub(super) fn poll_input(&mut self, cx: &mut Context<'_>) {
        if !self.is_uploading() {
            return;
        }
        let Some(entry) = self.in_flight.front_mut() else {
            return;
        };
        let job = &mut entry.start.job;
        let Some(upload) = &job.upload else {
            return;
        };
        match upload.poll_next(cx, self.is_pulling) {
            Poll::Pending => {}
            Poll::Ready(UploadPiece::Bytes { bytes, is_last }) => {
                if is_last {
                    job.upload = None;
                }
                encode_input(&mut self.input_frames, &bytes, is_last);
                self.is_pulling = false;
                self.progress_at = clock::now();
            }
            Poll::Ready(UploadPiece::Failed(fault)) => self.fail_body(fault),
        }
    }

    /// Ends a request whose body fails. The worker learns of it when it asks for more.
    pub(super) fn fail_body(&mut self, fault: Fault) {
        let Some(entry) = self.in_flight.front_mut() else {
            return;
        };
        entry.start.job.upload = None;
        self.is_body_cut = true;
        match self.open_response.take() {
            Some(OpenResponse::Spooling(spool)) => {
                spool.finish(Err(fault));
                self.discard_response(false);
            }
            // A hijacked request has its reply, and reads the body's end.
            Some(open @ (OpenResponse::Discarding | OpenResponse::Hijacked(_))) => {
                self.open_response = Some(open);
            }
            None => {
                entry.start.job.answer(Err(fault));
                // The body behind a held head is dropped.
                self.open_response = self.held_head.take().map(|_| OpenResponse::Discarding);
                self.progress_at = clock::now();
                self.discarding_since = Some(self.progress_at);
            }
        }
        if self.is_pulling {
            self.send_cut_frame();
        }
    }

    /// Stops sending the body: the first response has ended.
    pub(super) fn end_request_body(&mut self) {
        if self.is_pulling {
            self.send_cut_frame();
        }
        self.is_body_cut = false;
    }

    /// Ends a body that is still arriving when its worker's time is over.
    pub(super) fn cut_overdue_body(&mut self) {
        let limit = self.core.app.stream_timeout;
        let cause = format!(
            "worker {} is being replaced and stream_timeout ({limit:?}) is over",
            self.core.pid
        );
        self.fail_body(Fault::new(FaultKind::AppTimeout, cause));
    }

    fn send_cut_frame(&mut self) {
        encode_input_aborted(&mut self.input_frames);
        self.is_pulling = false;
    }
}
