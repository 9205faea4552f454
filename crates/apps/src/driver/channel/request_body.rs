//! The body of a reactor's request that arrives while the worker has the request.
//!
//! The worker asks for each piece with PULL and gets one INPUT. A body that fails ends the stream
//! on this side, and the worker gets a STREAM_CANCEL.
//!
//! # Invariants
//! - Each PULL is answered once, unless the stream ends before.
//! - A stream whose worker waits for its client has no deadline here: the limits of bodies bound
//!   that wait.

use std::ops::ControlFlow;
use std::task::{Context, Poll};

use penstock_runtime::clock;
use penstock_wire::channel;

use super::ChannelDriver;
use super::receive::unexpected_frame;
use super::stream_table::{RequestBodyState, StreamState, index_of};
use crate::driver::DriverEnd;
use crate::upload::UploadPiece;

impl ChannelDriver {
    /// Answers PULL, or waits for the piece.
    pub(super) fn handle_pull(&mut self, id: u32) -> Result<(), DriverEnd> {
        let Some(entry) = self.streams.entry(id) else {
            return Ok(());
        };
        if entry.is_abandoned() {
            // STREAM_CANCEL is on its way.
            return Ok(());
        }
        if entry.input != RequestBodyState::Arriving {
            return Err(unexpected_frame("a PULL for nothing", id));
        }
        entry.input = RequestBodyState::Requested;
        self.streams.stop_clock(id);
        if let Some(waker) = self.streams.waker(index_of(id)) {
            let _ = self.poll_upload(id, &mut Context::from_waker(&waker));
        }
        Ok(())
    }

    /// Sends the next piece of a body; breaks when the stream is over.
    pub(super) fn poll_upload(&mut self, id: u32, cx: &mut Context<'_>) -> ControlFlow<()> {
        let Some(entry) = self.streams.entry(id) else {
            return ControlFlow::Break(());
        };
        let is_pulled = entry.input == RequestBodyState::Requested;
        let Some(upload) = self.streams.upload(id) else {
            return ControlFlow::Continue(());
        };
        match upload.poll_next(cx, is_pulled) {
            Poll::Pending => ControlFlow::Continue(()),
            Poll::Ready(UploadPiece::Bytes { bytes, is_last }) => {
                self.send_input(id, &bytes, is_last);
                ControlFlow::Continue(())
            }
            Poll::Ready(UploadPiece::Failed(fault)) => {
                self.fail_stream(id, || fault);
                ControlFlow::Break(())
            }
        }
    }

    fn send_input(&mut self, id: u32, bytes: &[u8], is_last: bool) {
        let mut frame = Vec::new();
        channel::encode_input(&mut frame, id, bytes, is_last);
        self.outbox.push_frame(frame);
        if is_last {
            self.streams.end_request_body(id);
        }
        let Some(entry) = self.streams.entry(id) else {
            return;
        };
        if !is_last {
            entry.input = RequestBodyState::Arriving;
        }
        // The worker's time runs again, unless its client does not read the response.
        match entry.state {
            StreamState::AwaitingResponse(_) => self.streams.start_clock(id, clock::now()),
            StreamState::Spooling(_) => self.streams.restart_body_clock(id, clock::now()),
            _ => {}
        }
    }
}
