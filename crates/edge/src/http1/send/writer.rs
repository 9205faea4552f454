//! Writing at a client's transfer rate: as fast as its socket and a rate allow, until it is too
//! slow.
//!
//! # Invariants
//! - A client is judged by the bytes that it acknowledged, and only by the time spent waiting for
//!   it.

use std::io::IoSlice;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use penstock_exchange::BodyRate;
use penstock_runtime::{LazyDeadline, Stream, clock};

use super::{SendError, SentBytes};
use crate::http1::client_watch::{ClientWatch, FIRST_PROBE_DELAY};
use crate::transfer_rate::{Throttle, TransferLimits, TransferTimeout};

#[derive(Debug)]
pub(super) struct ResponseWriter<'c> {
    pub(super) stream: Arc<Stream>,
    pub(super) client_watch: ClientWatch<'c>,
    timeout: TransferTimeout,
    timer: LazyDeadline,
    throttle: Option<Throttle>,
    pub(super) sent: SentBytes,
    /// Bytes that the client had acknowledged at `acknowledged_at`.
    acknowledged: u64,
    acknowledged_at: Option<Instant>,
    /// When a client that closed its sending side is probed next.
    next_probe_at: Option<Instant>,
    probe_count: u32,
    /// A zero was refused. A layer of the stream may have it already, so it goes before the next
    /// bytes: see the rules of `StreamLayer`.
    owes_zero: bool,
}

/// Maximum zeros before a chunk's size: many readers accept no more than 16 digits.
const MAX_PROBES: u32 = 8;

/// Interval between two looks at the acknowledged bytes, but for a verdict.
const ACKNOWLEDGED_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes that may be sent ahead of the next piece, to find out whether the client has left.
#[derive(Debug)]
pub(super) enum ProbeBytes<'a> {
    /// Zeros between two chunks: the size of the next one may begin with them (RFC 9112 §7.1).
    Zeros,
    /// The head of a body that is not there yet.
    Head(&'a mut Bytes),
    Nothing,
}

impl ProbeBytes<'_> {
    fn next(&self) -> Option<u8> {
        match self {
            Self::Zeros => Some(b'0'),
            Self::Head(head) => head.first().copied(),
            Self::Nothing => None,
        }
    }

    fn spend(&mut self, count: usize) {
        if let Self::Head(head) = self {
            head.advance(count);
        }
    }
}

impl<'c> ResponseWriter<'c> {
    pub(super) fn new(
        stream: Arc<Stream>,
        limits: TransferLimits,
        watch: ClientWatch<'c>,
        sent: SentBytes,
        rate_max: Option<Box<BodyRate>>,
    ) -> Self {
        let now = clock::now();
        Self {
            stream,
            client_watch: watch,
            timeout: TransferTimeout::new(limits),
            timer: LazyDeadline::new(now + limits.idle_timeout),
            throttle: rate_max.map(|rate| Throttle::new(*rate, now)),
            sent,
            acknowledged: 0,
            acknowledged_at: None,
            next_probe_at: None,
            probe_count: 0,
            owes_zero: false,
        }
    }
}

impl ResponseWriter<'_> {
    /// Writes all of the slices at the client's transfer rate.
    pub(super) async fn write(&mut self, mut slices: &mut [IoSlice<'_>]) -> Result<(), SendError> {
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let written = match self.throttle.is_some() {
                true => self.write_throttled(slices).await?,
                false => self.write_some(slices).await?,
            };
            self.count_sent(written);
            IoSlice::advance_slices(&mut slices, written);
        }
        Ok(())
    }

    async fn write_some(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, SendError> {
        std::future::poll_fn(|cx| match self.stream.poll_write(cx, slices) {
            Poll::Ready(done) => Poll::Ready(done.map_err(|_| SendError::ClientDisconnected)),
            Poll::Pending => self.poll_too_slow(cx).map(Err),
        })
        .await
    }

    /// Writes as much of the first slice as the socket takes and the rate allows. The head is not
    /// held back.
    async fn write_throttled(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, SendError> {
        let first = slices.iter().find(|slice| !slice.is_empty());
        let Some(first) = first else { return Ok(0) };
        let head = usize::try_from(self.sent.head_len.saturating_sub(self.sent.total)).unwrap_or(0);
        if head > 0 {
            let head = &first[..first.len().min(head)];
            return self.write_some(&[IoSlice::new(head)]).await;
        }
        let allowed = self.wait_for_allowance(first.len()).await;
        let written = self.write_some(&[IoSlice::new(&first[..allowed])]).await?;
        self.consume_allowance(written);
        Ok(written)
    }

    /// The number of `wanted` bytes of the body that may go now, at least one; waits for the rate
    /// if it must.
    pub(super) async fn wait_for_allowance(&mut self, wanted: usize) -> usize {
        loop {
            let Some(throttle) = &mut self.throttle else {
                return wanted;
            };
            let now = clock::now();
            let allowed = throttle.available_bytes(now, wanted).min(wanted);
            if allowed > 0 {
                return allowed;
            }
            let ready_at = throttle.ready_at(wanted);
            self.sleep_until(ready_at, now).await;
        }
    }

    /// Counts bytes of the body against the rate.
    pub(super) fn consume_allowance(&mut self, bytes: usize) {
        if let Some(throttle) = &mut self.throttle {
            throttle.spend(bytes);
        }
    }

    pub(super) fn is_throttled(&self) -> bool {
        self.throttle.is_some()
    }

    /// Waits for something other than the client, which does not count against it.
    async fn sleep_until(&mut self, until: Instant, now: Instant) {
        self.stop_wait(now);
        self.timer.set(until);
        std::future::poll_fn(|cx| self.timer.poll(cx)).await;
    }

    fn stop_wait(&mut self, now: Instant) {
        self.refresh_acknowledged_if_due(now);
        self.timeout.stop_wait(now);
    }

    /// Waits for `work`, which has a deadline of its own, unless the client leaves. `head` goes
    /// before it, if it is not out yet.
    pub(super) async fn wait_while_connected<F: Future>(
        &mut self,
        work: F,
        head: &mut Bytes,
    ) -> Result<F::Output, SendError> {
        self.stop_wait(clock::now());
        let mut work = pin!(work);
        let mut ahead = ProbeBytes::Head(head);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            self.poll_disconnected(cx, &mut ahead)
                .map(|()| Err(SendError::ClientDisconnected))
        })
        .await
    }

    /// Ready when the client has left; polled while there is nothing to send. A client that closed
    /// its sending side looks the same until it is sent something: `ahead`, a byte at a time. With
    /// nothing to send, the kernel's own probes tell, though later.
    pub(super) fn poll_disconnected(
        &mut self,
        cx: &mut Context<'_>,
        ahead: &mut ProbeBytes<'_>,
    ) -> Poll<()> {
        if self
            .client_watch
            .poll_half_closed(cx, &self.stream)
            .is_pending()
        {
            return Poll::Pending;
        }
        if self.stream.poll_broken(cx).is_ready() {
            return Poll::Ready(());
        }
        while self.probe_count == 0 || self.probe_count < MAX_PROBES && ahead.next().is_some() {
            let now = clock::now();
            let due = *self.next_probe_at.get_or_insert(now + FIRST_PROBE_DELAY);
            self.timer.set(due);
            if self.timer.poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.probe_count == 0 {
                self.stream.probe_peer();
            }
            if let Some(byte) = ahead.next() {
                match self.stream.try_write(&[IoSlice::new(&[byte])]) {
                    Ok(count) => {
                        self.sent.total += count as u64;
                        self.owes_zero = false;
                        ahead.spend(count);
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                        self.owes_zero = matches!(ahead, ProbeBytes::Zeros);
                    }
                    Err(_) => return Poll::Ready(()),
                }
            }
            self.probe_count += 1;
            self.next_probe_at = Some(now + FIRST_PROBE_DELAY * (1 << self.probe_count));
        }
        Poll::Pending
    }

    /// What goes before the size of the next chunk: a zero that was refused.
    pub(super) fn take_owed_zero(&mut self) -> &'static [u8] {
        match std::mem::take(&mut self.owes_zero) {
            true => b"0",
            false => b"",
        }
    }

    /// Waits until the client will see the end of the stream as the end of the body: the kernel has
    /// the notice of a session.
    pub(super) async fn announce_end(&mut self) -> Result<(), SendError> {
        std::future::poll_fn(|cx| match self.stream.poll_shutdown_write(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => self.poll_too_slow(cx).map(Err),
        })
        .await
    }

    /// Counts bytes that are with the kernel: a client that was waited for has made room for them.
    pub(super) fn count_sent(&mut self, bytes: usize) {
        self.sent.total += bytes as u64;
        if self.timeout.is_waiting() {
            self.timeout.stop_wait(clock::now());
        }
    }

    /// Ready when the client has acknowledged too little for too long. The kernel reports room only
    /// after much of its buffer has drained, which takes a slow client longer than the idle
    /// timeout, so the buffer itself is checked before a verdict.
    pub(super) fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<SendError> {
        loop {
            let now = clock::now();
            self.refresh_acknowledged_if_due(now);
            self.timeout.start_wait(now);
            let mut deadline = self.timeout.deadline(now);
            if deadline <= now {
                self.refresh_acknowledged(now);
                self.timeout.start_wait(now);
                deadline = self.timeout.deadline(now);
            }
            if deadline <= now {
                return Poll::Ready(SendError::ClientTooSlow);
            }
            self.timer.set(deadline);
            if self.timer.poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Reads how much the client has acknowledged, unless that was read a moment ago.
    fn refresh_acknowledged_if_due(&mut self, now: Instant) {
        let is_due = (self.acknowledged_at)
            .is_none_or(|at| now.saturating_duration_since(at) >= ACKNOWLEDGED_INTERVAL);
        if is_due {
            self.refresh_acknowledged(now);
        }
    }

    fn refresh_acknowledged(&mut self, now: Instant) {
        self.acknowledged_at = Some(now);
        let taken = self.sent.total.saturating_sub(self.stream.unsent_bytes());
        if taken > self.acknowledged {
            self.timeout.record_progress(now, taken - self.acknowledged);
            self.acknowledged = taken;
        }
    }
}
