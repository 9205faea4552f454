//! The drivers of workers: each owns one socket of a worker process and the requests on it.
//!
//! A driver takes jobs from its mailbox (`dispatch`), sends their frames, and gives each response
//! to the request that waits for it. [`SlotDriver`] drives one thread, which answers in order;
//! [`ChannelDriver`] drives a reactor, which has all of its requests in progress at once.
//!
//! # Invariants
//! - When a driver ends, every request that it had is answered or back in the queue.
//! - Each request gets one reply.
//! - A declared length is kept, or the client's connection is cut.
//! - A request goes back to the queue only if its worker cannot have begun it.

mod channel;
mod hijack;
mod slot;

use std::borrow::Cow;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_exchange::buffering::{ResponseProducer, SpoolSpec, SpoolWriter, create_spool};
use penstock_exchange::{Body, Fault, FaultKind, Reply, RequestTiming, Response};
use penstock_queue::{DispatchedJob, SlotId};
use penstock_runtime::{Stream, clock, loops};

pub(crate) use self::channel::ChannelDriver;
pub(crate) use self::slot::SlotDriver;

use self::hijack::{HijackGuard, HijackedConnections, serve_hijacked_connection};
use crate::dispatch::{Job, Mailbox, MailboxDelivery};
use crate::reply::{ReplyHead, app_protocol_error};
use crate::shared::{AppShared, SlotProducer};

/// How long after a worker's end its last bytes may take to arrive.
const LAST_READ_TIMEOUT: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DriverEnd {
    /// It was asked to, and nothing was in progress.
    Retired,
    /// The worker closed the socket.
    WorkerDied,
    /// The worker broke the protocol.
    ProtocolBroken(String),
    /// A request took longer than `response_timeout`.
    TimedOut,
}

/// The parts that both drivers have: a worker's slot in the queue and the state of its socket.
#[derive(Debug)]
struct DriverCore {
    app: Arc<AppShared>,
    slot: SlotId,
    /// The producer of the slot's responses, which hold it until they have come.
    producer: Arc<SlotProducer>,
    pid: u32,
    mailbox: Arc<Mailbox>,
    /// Received bytes that are not a whole frame yet.
    received: ReceiveBuffer,
    hijacked_connections: HijackedConnections,
    is_retiring: bool,
    /// The time of streams is over: `stream_timeout` has passed since the worker was retired.
    are_streams_cut: bool,
    /// When to give up a worker whose process has ended.
    worker_lost_at: Option<Instant>,
    is_write_broken: bool,
}

impl DriverCore {
    fn new(app: Arc<AppShared>, slot: SlotId, mailbox: Arc<Mailbox>, pid: u32) -> Self {
        Self {
            producer: SlotProducer::new(&app, slot),
            app,
            slot,
            pid,
            mailbox,
            received: ReceiveBuffer::default(),
            hijacked_connections: HijackedConnections::default(),
            is_retiring: false,
            are_streams_cut: false,
            worker_lost_at: None,
            is_write_broken: false,
        }
    }

    /// Notes that the worker is retired or lost, or its streams are cut.
    fn note_state(&mut self, delivery: &MailboxDelivery) {
        self.is_retiring |= delivery.is_retired;
        self.are_streams_cut |= delivery.are_streams_cut;
        if delivery.is_worker_lost && self.worker_lost_at.is_none() {
            self.worker_lost_at = Some(clock::now() + LAST_READ_TIMEOUT);
        }
    }

    /// Whether frames may be written: a lost worker gets no more, so that another gets them.
    fn is_writable(&self) -> bool {
        !self.is_write_broken && self.worker_lost_at.is_none()
    }

    /// The timing of a request that the worker has had for `app_time`.
    fn request_timing(
        &self,
        start: Option<&DispatchedJob<Job>>,
        app_time: Duration,
    ) -> RequestTiming {
        RequestTiming {
            app_time,
            queue_time: start.map_or(Duration::ZERO, |start| start.waited),
            queue_position: start.map_or(0, |start| {
                u32::try_from(start.queue_position).unwrap_or(u32::MAX)
            }),
            handler: Some((&self.app.name).into()),
            worker_pid: self.pid,
            ..RequestTiming::default()
        }
    }

    /// The fault of a request that its worker had when the driver ended.
    fn end_fault(&self, end: &DriverEnd, timed_out: String) -> Fault {
        let pid = self.pid;
        match end {
            DriverEnd::TimedOut => Fault::new(FaultKind::AppTimeout, timed_out),
            DriverEnd::ProtocolBroken(why) => {
                app_protocol_error(format!("worker {pid} broke the protocol: {why}"))
            }
            DriverEnd::WorkerDied | DriverEnd::Retired => {
                let cause = format!("worker {pid} ended with the request inside");
                Fault::new(FaultKind::WorkerDied, cause)
            }
        }
    }

    /// Serves a connection that the application has hijacked; `socket` is its other end.
    fn spawn_hijacked(
        &self,
        mut job: Job,
        socket: OwnedFd,
        guard: HijackGuard,
        timing: RequestTiming,
    ) {
        match Stream::from_received(socket) {
            Ok(socket) => {
                let app = Arc::clone(&self.app);
                loops::spawn_here(serve_hijacked_connection(app, job, socket, guard, timing));
            }
            Err(error) => {
                let fault = app_protocol_error(format!("its hijacked connection: {error}"));
                job.answer(Err(fault.with_timing(timing)));
            }
        }
    }
}

/// The start of a frame whose end has not come.
#[derive(Debug, Default)]
struct ReceiveBuffer {
    partial_frame: Vec<u8>,
    /// The worker closed the socket with bytes unread in it.
    has_unread_frame: bool,
}

impl ReceiveBuffer {
    /// Returns the bytes to decode: those in `buffer`, behind the part of a frame that came before.
    fn take<'b>(
        &mut self,
        read: io::Result<usize>,
        buffer: &'b [u8],
    ) -> Result<Cow<'b, [u8]>, DriverEnd> {
        match read {
            Ok(0) => Err(DriverEnd::WorkerDied),
            Err(error) => {
                // unix(7): closing a socket with unread bytes resets the other end.
                self.has_unread_frame = error.kind() == io::ErrorKind::ConnectionReset;
                Err(DriverEnd::WorkerDied)
            }
            Ok(count) if self.partial_frame.is_empty() => Ok(Cow::Borrowed(&buffer[..count])),
            Ok(count) => {
                let mut whole = std::mem::take(&mut self.partial_frame);
                whole.extend_from_slice(&buffer[..count]);
                Ok(Cow::Owned(whole))
            }
        }
    }
}

/// Sends a request its reply, and counts a fault of the application's.
fn send_and_count_reply(app: &AppShared, job: &mut Job, reply: Result<Reply, Fault>) {
    if let Err(fault) = &reply {
        count_fault(app, fault.kind);
    }
    job.send_reply(reply);
}

/// Counts a request that its worker failed.
fn count_fault(app: &AppShared, kind: FaultKind) {
    match kind {
        FaultKind::AppRaised | FaultKind::AppProtocolError => {
            app.metrics.failed_requests.increment();
        }
        FaultKind::AppTimeout => app.metrics.timed_out_requests.increment(),
        FaultKind::WorkerDied => app.metrics.worker_deaths.increment(),
        _ => {}
    }
}

/// The fault of a response that its worker does not complete, or of none.
fn incomplete_response_fault(is_protocol: bool, cause: String) -> Fault {
    let kind = match is_protocol {
        true => FaultKind::AppProtocolError,
        false => FaultKind::AppRaised,
    };
    Fault::new(kind, cause)
}

/// Begins a body that its client takes at its own pace. `producer` is the worker's place that the
/// body holds until it has come.
fn open_spool(
    app: &AppShared,
    job: &Job,
    head: ReplyHead,
    length: Option<u64>,
    producer: Option<Arc<dyn ResponseProducer>>,
) -> (SpoolWriter, Response) {
    let spec = SpoolSpec {
        client: job.client.counted_address_prefix(),
        producer,
        is_unbuffered: head.is_unbuffered,
        length: head.declared.or(length),
    };
    let (writer, reader) = create_spool(app.buffering_settings.load_full(), spec);
    let mut response = head.response;
    response.body = Body::Stream(Box::new(reader));
    (writer, response)
}
