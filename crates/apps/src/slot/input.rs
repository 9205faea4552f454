//! What a slot's driver sends of a request's body that comes while its thread has the request.
//!
//! The worker asks for each piece with PULL and waits; it gets one INPUT, of what its connection
//! has read or reads next. Nothing else is sent behind such a request but CANCEL, until its
//! response has ended.
//!
//! # Invariants
//! - Each PULL is answered, also when the response ends first: a thread of the application's that
//!   waits for bytes would take the next request's.
//! - A request whose worker waits for its client has no clock: the limits of bodies bound that
//!   wait.

use std::task::{Context, Poll};

use penstock_exchange::{Fault, FaultKind};
use penstock_runtime::clock;
use penstock_wire::{encode_input, encode_input_aborted};

use super::{Driver, End, Open};
use crate::upload::Piece;

impl Driver {
    /// Whether more of the body of the request at the head of the line may come.
    pub(super) fn is_uploading(&self) -> bool {
        let front = self.line.front();
        front.is_some_and(|entry| entry.is_sent() && entry.start.job.upload.is_some())
    }

    /// The worker waits for the next piece.
    pub(super) fn pulled(&mut self) -> Result<(), End> {
        let is_known = self.is_uploading() || self.is_input_cut;
        if !is_known || std::mem::replace(&mut self.is_pulling, true) {
            return Err(End::Broken("a PULL for nothing".into()));
        }
        if self.is_input_cut {
            self.answer_with_cut();
        }
        Ok(())
    }

    /// Takes the next piece, if the worker waits for one; and notices a body that fails.
    pub(super) fn poll_input(&mut self, cx: &mut Context<'_>) {
        if !self.is_uploading() {
            return;
        }
        let Some(entry) = self.line.front_mut() else {
            return;
        };
        let job = &mut entry.start.job;
        let Some(upload) = &job.upload else {
            return;
        };
        match upload.poll_next(cx, self.is_pulling) {
            Poll::Pending => {}
            Poll::Ready(Piece::Bytes { bytes, is_last }) => {
                if is_last {
                    job.upload = None;
                }
                encode_input(&mut self.input, &bytes, is_last);
                self.is_pulling = false;
                self.progress_at = clock::now();
            }
            Poll::Ready(Piece::Failed(fault)) => self.cut_input(fault),
        }
    }

    /// The rest of the body does not come: its request is over for whoever waits for it, and the
    /// worker is told when it asks.
    pub(super) fn cut_input(&mut self, fault: Fault) {
        let Some(entry) = self.line.front_mut() else {
            return;
        };
        entry.start.job.upload = None;
        self.is_input_cut = true;
        match self.open.take() {
            Some(Open::Spool(spool)) => {
                spool.finish(Err(fault));
                self.discard(false);
            }
            // An application that answers by itself has its answer, and reads a body that ends.
            Some(open @ (Open::Discard | Open::Hijacked(_))) => self.open = Some(open),
            None => {
                entry.start.job.answer(Err(fault));
                // What follows such a head is dropped.
                self.open = self.held.take().map(|_| Open::Discard);
                self.progress_at = clock::now();
                self.discarding_since = Some(self.progress_at);
            }
        }
        if self.is_pulling {
            self.answer_with_cut();
        }
    }

    /// The response at the head of the line has ended: nothing of its body is sent any more.
    pub(super) fn end_input(&mut self) {
        if self.is_pulling {
            self.answer_with_cut();
        }
        self.is_input_cut = false;
    }

    /// The time of a request whose worker is replaced is over before its body was.
    pub(super) fn cut_upload(&mut self) {
        let limit = self.app.stream_timeout;
        let cause = format!(
            "worker {} is being replaced and stream_timeout ({limit:?}) is over",
            self.pid
        );
        self.cut_input(Fault::new(FaultKind::AppTimeout, cause));
    }

    fn answer_with_cut(&mut self) {
        encode_input_aborted(&mut self.input);
        self.is_pulling = false;
    }
}
