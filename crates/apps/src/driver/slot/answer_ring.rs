//! Answers that come through memory which worker and driver share.
//!
//! A worker with several requests at hand answers all but the last of them there, and the last one
//! on the socket, so that one system call and one wake-up serve them all. None waits for a slow
//! request because of that: while several are with the worker, the driver looks every [`MIN_WAIT`].
//!
//! # Invariants
//! - An answer in the ring is read when its request's turn has come, and before anything that the
//!   worker has sent on the socket after it.
//! - An answer of a worker that has died since is an answer.
//! - A worker whose ring cannot be read here answers on the socket.

use std::io;
use std::task::Context;
use std::time::Duration;

use penstock_runtime::{LazyDeadline, clock, loops};
use penstock_sys::shared_ring::RingReader;
use penstock_wire::SlotEvent;

use super::SlotDriver;
use crate::driver::DriverEnd;

/// How soon the driver looks again: the resolution of a loop's timers.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// How soon at the latest, for a request that takes long.
const MAX_WAIT: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct AnswerRing {
    reader: RingReader,
    /// The answer that is being read.
    answer: Vec<u8>,
    /// When to look.
    deadline: LazyDeadline,
}

impl SlotDriver {
    /// The worker has handed over the memory, which this process may be too short of descriptors or
    /// memory to have.
    pub(super) fn open_answer_ring(&mut self) -> Result<(), DriverEnd> {
        if self.answer_ring.is_some() {
            return Err(broken("a second one"));
        }
        if self.descriptors.is_empty() {
            return Ok(());
        }
        let memory = self.descriptors.remove(0);
        match RingReader::map(memory) {
            Ok(reader) => {
                self.answer_ring = Some(AnswerRing {
                    reader,
                    answer: Vec::new(),
                    deadline: LazyDeadline::new(clock::now()),
                });
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                Err(broken("its size can change, or is wrong"))
            }
            Err(error) => {
                log::warn!(
                    "{}[{}]: its answers come one by one: their ring cannot be mapped: {error}",
                    self.core.app.name,
                    self.core.pid
                );
                Ok(())
            }
        }
    }

    /// Takes the answers whose turn has come; how many there were.
    pub(super) fn take_ring_answers(&mut self) -> Result<usize, DriverEnd> {
        let Some(mut ring) = self.answer_ring.take() else {
            return Ok(0);
        };
        let mut ended = 0;
        while self.take_ring_answer(&mut ring)? {
            ended += 1;
        }
        // After an error there is none.
        self.answer_ring = Some(ring);
        Ok(ended)
    }

    fn take_ring_answer(&mut self, ring: &mut AnswerRing) -> Result<bool, DriverEnd> {
        if self.decoder.outstanding_requests() == 0 {
            return Ok(false);
        }
        let number = self.decoder.current_request_seq();
        match ring.reader.take(number, &mut ring.answer) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return Err(broken(&error.to_string())),
        }
        let decoded = self.decoder.decode(&ring.answer);
        let decoded = decoded.map_err(|error| broken(&error.to_string()))?;
        match decoded {
            Some(decoded)
                if decoded.consumed == ring.answer.len()
                    && matches!(decoded.event, SlotEvent::Head { end: true, .. }) =>
            {
                self.progress_at = clock::now();
                self.handle_event(decoded.event)?;
                self.end_response();
                loops::charge_task(1);
                Ok(true)
            }
            _ => Err(broken("not one whole answer")),
        }
    }

    /// Takes what has come, and looks again soon if more may come. Whether something has changed.
    pub(super) fn poll_answer_ring(&mut self, cx: &mut Context<'_>) -> Result<bool, DriverEnd> {
        // The answer to the last one, and one that is open, come on the socket.
        if self.answer_ring.is_none()
            || self.decoder.outstanding_requests() < 2
            || self.open_response.is_some()
        {
            return Ok(false);
        }
        let ended = self.take_ring_answers()?;
        if ended > 0 {
            self.finish_requests(ended);
            return Ok(true);
        }
        let now = clock::now();
        let silence = now.saturating_duration_since(self.progress_at);
        let Some(ring) = &mut self.answer_ring else {
            return Ok(false);
        };
        ring.deadline
            .set(now + (silence / 16).clamp(MIN_WAIT, MAX_WAIT));
        Ok(ring.deadline.poll(cx).is_ready())
    }
}

fn broken(cause: &str) -> DriverEnd {
    DriverEnd::ProtocolBroken(format!("its ring of answers: {cause}"))
}
