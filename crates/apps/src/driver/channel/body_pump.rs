//! A streamed body that arrives faster than its client takes it, in a task beside the driver.
//!
//! A spool that overflows waits for a disk or for its client; the driver of many streams must not.
//! From its first overflow on a stream's spool belongs to a task. The driver passes it pieces and
//! an end, and learns how much it took.
//!
//! # Invariants
//! - Pieces stay in order.
//! - At most the stream's window waits here, or one whole body (the bounds are `wire`'s).
//! - A complete body reaches its client even if the driver has ended.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Mutex, MutexGuard};
use penstock_exchange::Fault;
use penstock_exchange::buffering::{CapacityReleaser, SlowResponseGuard, SpoolWriter};
use penstock_runtime::loops;

/// The state shared by the driver and the task of one body.
#[derive(Debug)]
pub(super) struct BodyPump {
    /// Held for a move of bytes only.
    state: Mutex<PumpState>,
    releaser: CapacityReleaser,
    driver: Waker,
}

#[derive(Debug)]
struct PumpState {
    bytes: Vec<u8>,
    end: Option<Result<(), Fault>>,
    /// Bytes that the spool has taken and the driver has not counted.
    taken_bytes: u32,
    /// The spool has not taken all of its bytes.
    is_busy: bool,
    is_client_disconnected: bool,
    /// The guard of the slow response, if it was cut.
    slow_response: Option<Box<SlowResponseGuard>>,
    task: Option<Waker>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PumpProgress {
    /// Bytes taken since the driver last asked.
    pub(super) taken_bytes: u32,
    /// All bytes have been taken.
    pub(super) is_idle: bool,
    pub(super) is_client_disconnected: bool,
}

impl BodyPump {
    /// Starts a task for a spool that is over its memory by `over` bytes; it wakes `driver` on
    /// progress.
    pub(super) fn start(writer: SpoolWriter, over: u32, driver: Waker) -> Arc<Self> {
        let pump = Arc::new(Self {
            state: Mutex::new(PumpState {
                bytes: Vec::new(),
                end: None,
                taken_bytes: 0,
                is_busy: true,
                is_client_disconnected: false,
                slow_response: None,
                task: None,
            }),
            releaser: writer.capacity_releaser(),
            driver,
        });
        loops::spawn_here(Arc::clone(&pump).run(writer, over));
        pump
    }

    pub(super) fn push(&self, bytes: &[u8]) {
        let mut state = self.state.lock();
        if !state.is_client_disconnected {
            state.bytes.extend_from_slice(bytes);
        }
        wake_task(state);
    }

    /// Ends the body: it is complete, or cut.
    pub(super) fn end_body(&self, end: Result<(), Fault>) {
        let mut state = self.state.lock();
        if end.is_err() {
            state.bytes = Vec::new();
        }
        state.end = Some(end);
        self.releaser.release();
        wake_task(state);
    }

    pub(super) fn take_progress(&self) -> PumpProgress {
        let mut state = self.state.lock();
        PumpProgress {
            taken_bytes: std::mem::take(&mut state.taken_bytes),
            is_idle: !state.is_busy && state.bytes.is_empty(),
            is_client_disconnected: state.is_client_disconnected,
        }
    }

    /// The guard of the slow response, if it was cut.
    pub(super) fn take_slow_response(&self) -> Option<Box<SlowResponseGuard>> {
        self.state.lock().slow_response.take()
    }

    async fn run(self: Arc<Self>, mut writer: SpoolWriter, over: u32) {
        let mut count = over;
        loop {
            if let Err(fault) = writer.flush().await {
                self.state.lock().slow_response = writer.take_slow_response().map(Box::new);
                self.record_progress(count, true);
                writer.finish(Err(fault));
                return;
            }
            self.record_progress(count, false);
            let next = std::future::poll_fn(|cx| self.poll_next(cx, &writer)).await;
            match next {
                PumpInput::Bytes(bytes) => {
                    count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                    writer.push(&bytes);
                }
                PumpInput::End(end) => return writer.finish(end.map(|()| None)),
                PumpInput::ClientDisconnected => return self.record_progress(0, true),
            }
        }
    }

    fn poll_next(&self, cx: &mut Context<'_>, writer: &SpoolWriter) -> Poll<PumpInput> {
        let mut state = self.state.lock();
        if writer.poll_reader_gone(cx) {
            return Poll::Ready(PumpInput::ClientDisconnected);
        }
        if !state.bytes.is_empty() {
            state.is_busy = true;
            return Poll::Ready(PumpInput::Bytes(std::mem::take(&mut state.bytes)));
        }
        if let Some(end) = state.end.take() {
            return Poll::Ready(PumpInput::End(end));
        }
        state.task = Some(cx.waker().clone());
        Poll::Pending
    }

    fn record_progress(&self, taken: u32, is_gone: bool) {
        let mut state = self.state.lock();
        state.taken_bytes = state.taken_bytes.saturating_add(taken);
        state.is_busy = false;
        state.is_client_disconnected |= is_gone;
        if is_gone {
            state.bytes = Vec::new();
        }
        drop(state);
        self.driver.wake_by_ref();
    }
}

enum PumpInput {
    Bytes(Vec<u8>),
    End(Result<(), Fault>),
    ClientDisconnected,
}

/// Wakes the task, outside of the lock.
fn wake_task(mut state: MutexGuard<'_, PumpState>) {
    let task = state.task.take();
    drop(state);
    task.into_iter().for_each(Waker::wake);
}
