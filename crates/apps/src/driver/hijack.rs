//! A connection that an application answers by itself: `rack.hijack`, or the socket in a WSGI
//! environment.
//!
//! The worker keeps one end of a socket pair and sends the other to the driver, which starts
//! [`serve_hijacked_connection`]. The application writes a whole HTTP response to its end. Its head
//! is read like that of any server: a 101 that the client asked for makes a tunnel, anything else
//! is a response whose body follows its framing. Status, access log, filters and framing are the
//! front end's as usual.
//!
//! # Invariants
//! - A hijacked connection holds its worker: a retired slot ends when its connections have ended,
//!   or are cut.
//! - It does not outlive its worker, and a response that a dead worker left incomplete never looks
//!   complete.
//! - Broken HTTP costs its client a 502 and the worker nothing.
//! - The client's end and the worker's end close together.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use penstock_exchange::buffering::SpoolWriter;
use penstock_exchange::{
    Body, Fault, FaultKind, Reply, RequestTiming, Response, Takeover, TakeoverFuture,
};
use penstock_http::{
    BodyDecoder, BodyFraming, CheckedField, FieldBlock, ParseProgress, ResponseBodyFraming,
    ResponseHead, ResponseHeadLimits, ResponseHeadScanner, Status,
};
use penstock_runtime::{ByteStream, Stream, buffers, clock, relay};
use penstock_wire::parse_response_head;
use tokio::sync::watch;

use super::{open_spool, send_and_count_reply};
use crate::dispatch::Job;
use crate::reply::{self, ReplyHead, app_protocol_error};
use crate::shared::AppShared;
use crate::upload::store_waker;

/// How long a connection may be silent in both directions: as the tunnels of upstreams by default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long after its worker's end its last bytes may take to arrive. A process that the
/// application forked may still have the socket.
const HIJACK_LAST_READ_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait for a worker's end after a connection's: the sockets of a process that dies
/// close one after the other.
const DEATH_NOTICE_TIMEOUT: Duration = Duration::from_millis(50);

const MAX_INTERIM_RESPONSES: usize = 64;

#[derive(Debug)]
pub(crate) struct HijackedConnections {
    shared: Arc<HijackedCount>,
    /// True when all of them are to end.
    cut_sender: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct HijackedCount {
    count: AtomicUsize,
    driver_waker: Mutex<Option<Waker>>,
}

impl Default for HijackedConnections {
    fn default() -> Self {
        Self {
            shared: Arc::default(),
            cut_sender: watch::channel(false).0,
        }
    }
}

impl HijackedConnections {
    /// How many there are; the task is woken when that changes.
    pub(crate) fn poll_count(&self, cx: &mut Context<'_>) -> usize {
        store_waker(&mut self.shared.driver_waker.lock(), cx);
        self.shared.count.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shared.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn cut_all(&self) {
        self.cut_sender.send_replace(true);
    }

    pub(crate) fn register(&self) -> HijackGuard {
        self.shared.count.fetch_add(1, Ordering::AcqRel);
        HijackGuard {
            shared: Arc::clone(&self.shared),
            shared_progress: Arc::default(),
            cut_receiver: self.cut_sender.subscribe(),
        }
    }
}

/// The progress of one hijacked connection, for its driver.
#[derive(Debug, Default)]
pub(crate) struct HijackProgress {
    has_head: AtomicBool,
    ended_at: OnceLock<Instant>,
    /// Woken at its end, besides the driver.
    end_waker: OnceLock<Waker>,
}

impl HijackProgress {
    /// Sets the waker for its end; once.
    pub(crate) fn set_end_waker(&self, waker: Waker) {
        let _ = self.end_waker.set(waker);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended_at.get().is_some()
    }

    /// Since when the application's call should be over, if so; `begun_at` is when the connection
    /// was hijacked. [`serve_hijacked_connection`] has the deadline of the head; the rest is a
    /// stream.
    pub(crate) fn overdue_since(&self, begun_at: Instant) -> Option<Instant> {
        let ended_at = self.ended_at.get()?;
        Some(match self.has_head.load(Ordering::Acquire) {
            true => begun_at.max(*ended_at),
            false => begun_at,
        })
    }
}

/// One hijacked connection, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct HijackGuard {
    shared: Arc<HijackedCount>,
    shared_progress: Arc<HijackProgress>,
    cut_receiver: watch::Receiver<bool>,
}

impl HijackGuard {
    pub(crate) fn shared_progress(&self) -> Arc<HijackProgress> {
        Arc::clone(&self.shared_progress)
    }

    fn mark_head_received(&self) {
        self.shared_progress.has_head.store(true, Ordering::Release);
    }

    /// Does `work` until the connections of this worker are cut, or the worker has ended.
    async fn unless_cut<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Fault> {
        let mut cut = std::pin::pin!(async {
            if self.cut_receiver.wait_for(|cut| *cut).await.is_ok() {
                return "cut: stream_timeout after its worker was replaced";
            }
            clock::sleep(HIJACK_LAST_READ_TIMEOUT).await;
            WORKER_DIED_CAUSE
        });
        let mut work = std::pin::pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => {
                let cause = cut.as_mut().poll(cx);
                cause.map(|cause| Err(Fault::new(FaultKind::WorkerDied, cause)))
            }
        })
        .await
    }

    /// Whether the connection ended because its worker did.
    async fn has_worker_died(&mut self) -> bool {
        let died = async { self.cut_receiver.wait_for(|cut| *cut).await.is_err() };
        clock::timeout(DEATH_NOTICE_TIMEOUT, died).await == Some(true)
    }
}

const WORKER_DIED_CAUSE: &str = "its worker ended with a hijacked connection";

impl Drop for HijackGuard {
    fn drop(&mut self) {
        // Only the first end counts.
        let _ = self.shared_progress.ended_at.set(clock::now());
        if let Some(waker) = self.shared_progress.end_waker.get() {
            waker.wake_by_ref();
        }
        self.shared.count.fetch_sub(1, Ordering::AcqRel);
        let driver = self.shared.driver_waker.lock().take();
        driver.into_iter().for_each(Waker::wake);
    }
}

/// Replies to `job` with the response that the application writes to the other end of `socket`.
pub(crate) async fn serve_hijacked_connection(
    app: Arc<AppShared>,
    mut job: Job,
    socket: Stream,
    mut hijacked: HijackGuard,
    timing: RequestTiming,
) {
    let limit = app.response_timeout_of(&job);
    let read = {
        let job = &mut job;
        let head = async { clock::timeout(limit, read_head(&socket, job)).await };
        hijacked.unless_cut(head).await
    };
    let (head, bytes) = match read {
        Ok(Some(Ok(read))) => read,
        Ok(Some(Err(fault))) => {
            return send_and_count_reply(&app, &mut job, Err(fault.with_timing(timing)));
        }
        Ok(None) => {
            let cause = format!("no response on a hijacked connection within {limit:?}");
            let fault = Fault::new(FaultKind::AppTimeout, cause).with_timing(timing);
            return send_and_count_reply(&app, &mut job, Err(fault));
        }
        Err(fault) => return job.answer(Err(fault.with_timing(timing))),
    };
    hijacked.mark_head_received();
    let rest = bytes[head.len..].to_vec();
    if head.status == 101 {
        let tunnel = HijackTunnel {
            socket: socket.into_socket(),
            buffered: rest,
            guard: hijacked,
        };
        return match switching_response(&bytes[..head.len], tunnel, timing) {
            Ok(response) => job.answer(Ok(response)),
            Err(fault) => send_and_count_reply(&app, &mut job, Err(fault)),
        };
    }
    let reply = match response_head(&job, &bytes[..head.len], timing) {
        Ok(reply) => reply,
        Err(fault) => return send_and_count_reply(&app, &mut job, Err(fault)),
    };
    send_response(&app, &mut job, reply, &head, rest, &socket, &mut hijacked).await;
}

/// Reads to the end of the final head, or of a 101. Returns it, and the bytes read, which begin
/// with it.
async fn read_head(socket: &Stream, job: &mut Job) -> Result<(ResponseHead, Vec<u8>), Fault> {
    let limits = ResponseHeadLimits::default();
    let (mut bytes, mut scanner, mut interim) = (Vec::new(), ResponseHeadScanner::new(), 0);
    loop {
        let scanned = scanner.scan(&bytes, job.is_head, &limits);
        let scanned = scanned
            .map_err(|error| app_protocol_error(format!("on a hijacked connection: {error}")))?;
        match scanned {
            ParseProgress::Complete(head) if head.status == 101 && !job.upgrades => {
                return Err(app_protocol_error(
                    "a 101 on a hijacked connection whose client did not ask for one",
                ));
            }
            ParseProgress::Complete(head) if head.status >= 200 || head.status == 101 => {
                return Ok((head, bytes));
            }
            ParseProgress::Complete(head) if interim < MAX_INTERIM_RESPONSES => {
                bytes.drain(..head.len);
                interim += 1;
                continue;
            }
            ParseProgress::Complete(_) => {
                return Err(app_protocol_error(format!(
                    "more than {MAX_INTERIM_RESPONSES} interim responses"
                )));
            }
            ParseProgress::Partial => {}
        }
        let count = poll_fn(|cx| {
            let reply = job.reply_sender.as_mut();
            if reply.is_some_and(|reply| reply.poll_closed(cx).is_ready()) {
                return Poll::Ready(None);
            }
            read_into(cx, socket, &mut bytes).map(Some)
        })
        .await;
        match count {
            None => {
                let cause = "left before a hijacked connection had its response";
                return Err(Fault::new(FaultKind::ClientDisconnected, cause));
            }
            Some(0) => {
                return Err(app_protocol_error(
                    "a hijacked connection was closed without a response",
                ));
            }
            Some(_) => {}
        }
    }
}

/// Appends the next bytes; 0 at any end.
fn read_into(cx: &mut Context<'_>, socket: &Stream, bytes: &mut Vec<u8>) -> Poll<usize> {
    buffers::with_receive_buffer(|buffer| {
        socket.poll_read(cx, buffer).map(|read| {
            let count = read.unwrap_or(0);
            bytes.extend_from_slice(&buffer[..count]);
            count
        })
    })
}

/// Calls `take` with each field of a scanned head.
fn for_each_field(head: &[u8], mut take: impl FnMut(&CheckedField<'_>)) {
    let limits = ResponseHeadLimits::default();
    let mut take = |field: CheckedField<'_>| take(&field);
    // It was complete and valid a moment ago.
    let _ = ResponseHeadScanner::new().scan_with(head, false, &limits, &mut take);
}

/// The response that hands the client's connection over.
fn switching_response(
    head: &[u8],
    tunnel: HijackTunnel,
    timing: RequestTiming,
) -> Result<Response, Fault> {
    let mut fields = FieldBlock::with_capacity(256);
    fields.push_static("Connection", "Upgrade");
    let (mut pushed, mut has_upgrade) = (Ok(()), false);
    for_each_field(head, |field| {
        let name = std::str::from_utf8(field.name()).unwrap_or_default();
        let is_upgrade = name.eq_ignore_ascii_case("upgrade");
        has_upgrade |= is_upgrade;
        if pushed.is_ok() && (is_upgrade || reply::is_sent_to_client(name.as_bytes())) {
            pushed = fields.push(name, field.value());
        }
    });
    if let Err(error) = pushed {
        return Err(app_protocol_error(format!("response field: {error}")).with_timing(timing));
    }
    if !has_upgrade {
        return Err(app_protocol_error("a 101 without Upgrade").with_timing(timing));
    }
    let body = Body::Takeover(Box::new(tunnel));
    let mut response = Response::new(Status::SWITCHING_PROTOCOLS, body);
    response.fields = fields;
    response.timing = timing;
    Ok(response)
}

/// The client's head of a response that is no upgrade, by the rules of all responses.
fn response_head(job: &Job, head: &[u8], timing: RequestTiming) -> Result<ReplyHead, Fault> {
    // Behind "HTTP/1.1 ".
    let mut strings = head.get(9..12).unwrap_or_default().to_vec();
    let mut count: u16 = 1;
    for_each_field(head, |field| {
        for part in [field.name(), field.value()] {
            strings.push(0);
            strings.extend_from_slice(part);
            count = count.saturating_add(1);
        }
    });
    let parts = parse_response_head(&strings, count).map_err(|error| {
        app_protocol_error(format!("response head: {error}")).with_timing(timing.clone())
    })?;
    reply::build_reply_head(&parts, job.is_head, timing, job.sendfile.as_deref())
}

/// Sends a response that is no upgrade, with its body as it arrives.
async fn send_response(
    app: &AppShared,
    job: &mut Job,
    mut reply: ReplyHead,
    head: &ResponseHead,
    rest: Vec<u8>,
    socket: &Stream,
    hijacked: &mut HijackGuard,
) {
    if let Some(redirect) = reply.redirect.take() {
        return job.send_reply(Ok(Reply::Redirect(redirect)));
    }
    if !reply.wants_body {
        let mut response = reply.response;
        response.body = Body::Omitted(reply.declared);
        return job.answer(Ok(response));
    }
    // An application that writes to a connection wants its bytes sent at once.
    reply.is_unbuffered = true;
    // It holds no slot of the worker, so its end lets no request start.
    let (mut writer, response) = open_spool(app, job, reply, None, None);
    job.answer(Ok(response));
    let copied = hijacked.unless_cut(copy_body(&mut writer, head.framing, rest, socket));
    let end = match copied.await.flatten() {
        Ok(CopyEnd::Closed) if hijacked.has_worker_died().await => {
            Err(Fault::new(FaultKind::WorkerDied, WORKER_DIED_CAUSE))
        }
        end => end,
    };
    if end.is_err() {
        app.metrics.failed_requests.increment();
    }
    writer.finish(end.map(|_| None));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyEnd {
    /// The body is complete by its framing, or its rest is not wanted.
    Complete,
    /// The other end was closed, which ends a body without framing.
    Closed,
}

/// Copies a body until its end, or until its client has left.
async fn copy_body(
    writer: &mut SpoolWriter,
    framing: ResponseBodyFraming,
    mut bytes: Vec<u8>,
    socket: &Stream,
) -> Result<CopyEnd, Fault> {
    let mut decoder = match framing {
        ResponseBodyFraming::None => return Ok(CopyEnd::Complete),
        ResponseBodyFraming::Length(length) => Some(BodyDecoder::new(BodyFraming::Length(length))),
        ResponseBodyFraming::Chunked => Some(BodyDecoder::new(BodyFraming::Chunked)),
        ResponseBodyFraming::UntilClose => None,
    };
    loop {
        if let Some(decoder) = &mut decoder {
            let mut at = 0;
            while at < bytes.len() && !decoder.is_done() {
                let decoded = decoder.decode(&bytes[at..]).map_err(|error| {
                    app_protocol_error(format!("the body on a hijacked connection: {error}"))
                })?;
                writer.push(&bytes[at..][decoded.content]);
                if decoded.consumed == 0 {
                    break;
                }
                at += decoded.consumed;
            }
            bytes.drain(..at);
            if decoder.is_done() {
                return Ok(CopyEnd::Complete);
            }
        } else {
            writer.push(&bytes);
            bytes.clear();
        }
        writer.flush().await?;
        let read = poll_fn(|cx| {
            if writer.poll_reader_gone(cx) {
                return Poll::Ready(None);
            }
            read_into(cx, socket, &mut bytes).map(Some)
        });
        let Some(count) = clock::timeout(IDLE_TIMEOUT, read).await else {
            let cause = format!("nothing came on a hijacked connection within {IDLE_TIMEOUT:?}");
            return Err(Fault::new(FaultKind::AppTimeout, cause));
        };
        match count {
            None => return Ok(CopyEnd::Complete),
            Some(0) if decoder.is_none() => return Ok(CopyEnd::Closed),
            Some(0) => {
                let cause = "a hijacked connection was closed within its response's body";
                return Err(app_protocol_error(cause));
            }
            Some(_) => {}
        }
    }
}

/// An accepted upgrade, until edge hands the client over.
#[derive(Debug)]
struct HijackTunnel {
    socket: OwnedFd,
    /// Bytes that the application wrote behind its response head.
    buffered: Vec<u8>,
    guard: HijackGuard,
}

impl Takeover for HijackTunnel {
    fn take_over(self: Box<Self>, client: Arc<dyn ByteStream>, early: Vec<u8>) -> TakeoverFuture {
        let Self {
            socket,
            buffered: from_app,
            guard: mut hijacked,
        } = *self;
        Box::pin(async move {
            // The client is on another loop than the driver.
            let Ok(socket) = Stream::new(socket) else {
                return client.abort();
            };
            let relayed = relay(&*client, &socket, early, from_app, IDLE_TIMEOUT);
            if hijacked.unless_cut(relayed).await.is_err() {
                // The protocol is unknown here: the client sees the end.
                client.shutdown_write();
            }
        })
    }
}
