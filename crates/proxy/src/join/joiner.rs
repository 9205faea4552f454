//! The worker's side of a join: keeps a membership in a front end's upstream, rejoins whenever it
//! is lost, and opens connections on which the front end sends requests.
//!
//! `penstock work` has one, on its control loop; request connections are opened on the loops that
//! serve them.
//!
//! # Invariants
//!
//! - It joins only after the application serves.
//! - After [`Joiner::leave`] it accepts no new requests and finishes active ones.
//! - If the front end moves, it follows at once, while requests of the old front end continue.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use penstock_config as config;
use penstock_runtime::blocking::Pool;
use penstock_runtime::{LoopHandle, Stream, clock, loops};
use penstock_sys::net::PeerAddress;
use penstock_tls::BoundSessionError;
use penstock_wire::join::{
    self, FrontEndMessage, JoinError, JoinHandshake, JoinPurpose, JoinReply, JoinSecret, JoinSide,
    JoinerMessage,
};
use tokio::sync::{oneshot, watch};

use super::line_stream::LineStream;
use super::session::FrontEndTls;
use super::{
    HANDSHAKE_TIMEOUT, HEARTBEAT_INTERVAL, JoinFailure, SILENCE_TIMEOUT, channel_binding_of,
    detach_guarded, random_bytes,
};

/// Serves an opened connection on the current loop; the bytes were read from it already.
pub type ServeConnectionFn = Arc<dyn Fn(Stream, PeerAddress, Vec<u8>) + Send + Sync>;

/// The setup of a joiner.
pub struct JoinerSetup {
    /// The address to connect to, and the upstream to join.
    pub config: config::JoinTarget,
    /// The name under which it joins.
    pub label: String,
    /// Maximum active requests.
    pub max_active: u32,
    /// The loops that serve requests.
    pub loops: Vec<LoopHandle>,
    /// The pool for name look-ups.
    pub lookup_pool: Pool,
    /// Serves one connection.
    pub serve: ServeConnectionFn,
}

/// A joiner. It keeps running when dropped.
#[derive(Debug, Clone)]
pub struct Joiner(Arc<JoinerInner>);

struct JoinerInner {
    address: String,
    upstream: String,
    secret: JoinSecret,
    /// `None` joins without TLS.
    tls: Option<FrontEndTls>,
    label: String,
    loops: Vec<LoopHandle>,
    pool: Pool,
    serve: ServeConnectionFn,
    /// The state to announce.
    desired: watch::Sender<DesiredState>,
    next_loop: AtomicUsize,
    dials_in_progress: AtomicU64,
    /// The last warning about failing to join, and its time.
    last_warning: Mutex<Option<(String, Instant)>>,
    state: watch::Sender<JoinerState>,
    /// Sessions that may have active or new requests.
    live_sessions: watch::Sender<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DesiredState {
    max_active: u32,
    is_leaving: bool,
}

/// The state of a joiner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinerState {
    /// Not a member now, and why.
    NotJoined(String),
    Joined,
    Left,
}

/// Delays between attempts.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Maximum addresses tried per name.
const MAX_ADDRESSES: usize = 8;

/// How often the same warning is repeated.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum connections being opened at once.
const MAX_DIALS: u64 = 10_000;

/// An address where a front end listens.
#[derive(Debug, Clone)]
enum FrontEndAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Why a session has ended, or is not the only one any more.
enum SessionEnd {
    Failed(JoinFailure),
    /// The front end steps down for another.
    Moved,
}

impl Joiner {
    /// Starts joining on the current loop. It runs until the process ends.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn start(setup: JoinerSetup) -> Result<Self, BoundSessionError> {
        let desired = DesiredState {
            max_active: setup.max_active.max(1),
            is_leaving: false,
        };
        let inner = Arc::new(JoinerInner {
            secret: JoinSecret::new(setup.config.key.expose()),
            tls: (setup.config.tls)
                .then(|| FrontEndTls::new(&setup.config.address))
                .transpose()?,
            address: setup.config.address,
            upstream: setup.config.upstream,
            label: join::sanitise_label(&setup.label),
            loops: setup.loops,
            pool: setup.lookup_pool,
            serve: setup.serve,
            desired: watch::channel(desired).0,
            next_loop: AtomicUsize::new(0),
            dials_in_progress: AtomicU64::new(0),
            last_warning: Mutex::default(),
            live_sessions: watch::channel(0).0,
            state: watch::channel(JoinerState::NotJoined("not connected yet".to_owned())).0,
        });
        loops::spawn_here(Arc::clone(&inner).run());
        Ok(Self(inner))
    }

    /// Changes the maximum of active requests.
    pub fn set_max_active(&self, max_active: u32) {
        let max_active = max_active.max(1);
        let replace =
            |desired: &mut DesiredState| std::mem::replace(&mut desired.max_active, max_active);
        (self.0.desired).send_if_modified(|desired| replace(desired) != max_active);
    }

    /// Accepts no new requests from now on; [`Joiner::wait_until_drained`] waits for the active
    /// ones.
    pub fn leave(&self) {
        (self.0.desired).send_modify(|desired| desired.is_leaving = true);
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> JoinerState {
        self.0.state.borrow().clone()
    }

    /// After [`Joiner::leave`], waits until no request of any front end is active and none can
    /// arrive. Returns at once if there is none. The caller bounds the wait.
    pub async fn wait_until_drained(&self) {
        let mut live = self.0.live_sessions.subscribe();
        // The sender lives as long as `self`.
        let _ = live.wait_for(|live| *live == 0).await;
    }

    /// Waits until it is a member.
    pub async fn wait_until_joined(&self) {
        let mut state = self.0.state.subscribe();
        // The sender lives as long as `self`.
        let _ = state.wait_for(|state| *state == JoinerState::Joined).await;
    }
}

impl JoinerInner {
    /// Joins again and again until told to leave.
    async fn run(self: Arc<Self>) {
        let mut desired = self.desired.subscribe();
        let mut pause = MIN_RETRY_DELAY;
        while !desired.borrow().is_leaving {
            let began = clock::now();
            let begun = tokio::select! {
                begun = self.join_once() => begun,
                // A front end that accepted it notices the closed connection.
                _ = desired.wait_for(|desired| desired.is_leaving) => break,
            };
            let end = match begun {
                Ok(ended) => (ended.await).unwrap_or(SessionEnd::Failed(JoinFailure::Closed)),
                Err(failure) => SessionEnd::Failed(failure),
            };
            let SessionEnd::Failed(failure) = end else {
                log::info!(
                    "{}: reconnecting to the front end that listens there now",
                    self.address
                );
                pause = MIN_RETRY_DELAY;
                continue;
            };
            if desired.borrow().is_leaving {
                break;
            }
            (self.state).send_replace(JoinerState::NotJoined(failure.to_string()));
            self.warn_throttled("not a server of", &failure);
            if clock::now() > began + MAX_RETRY_DELAY {
                pause = MIN_RETRY_DELAY;
            }
            let left = async { desired.wait_for(|desired| desired.is_leaving).await.is_ok() };
            clock::timeout(pause, left).await;
            pause = (pause * 2).min(MAX_RETRY_DELAY);
        }
        self.state.send_replace(JoinerState::Left);
    }

    /// Warns that it is not a member or cannot open a connection; a lasting cause once a minute.
    fn warn_throttled(&self, what: &str, failure: &JoinFailure) {
        let (cause, now) = (failure.to_string(), clock::now());
        let is_known =
            |(known, at): &(String, Instant)| *known == cause && now < *at + WARNING_INTERVAL;
        let mut last = self.last_warning.lock();
        if last.as_ref().is_some_and(is_known) {
            return;
        }
        *last = Some((cause.clone(), now));
        drop(last);
        let (address, upstream) = (&self.address, &self.upstream);
        log::warn!("{address}: {what} `{upstream}`: {cause}");
    }

    /// Joins once. The session runs as its own task; the receiver gets its end.
    async fn join_once(self: &Arc<Self>) -> Result<oneshot::Receiver<SessionEnd>, JoinFailure> {
        let live_guard = LiveSessionGuard::new(self);
        let max_active = self.desired.borrow().max_active;
        let purpose = JoinPurpose::Control {
            capacity: max_active,
            upstream: self.upstream.clone(),
            label: self.label.clone(),
        };
        let mut connected = Err(JoinFailure::Refused("the name has no address".to_owned()));
        for target in self.resolve_address().await? {
            connected = self.dial(&target, &purpose).await.map(|met| (met, target));
            if connected.is_ok() {
                break;
            }
        }
        let ((lines, member_id), target) = connected?;
        let (address, upstream) = (&self.address, &self.upstream);
        log::info!("{address}: joined `{upstream}` (capacity={max_active})");
        self.state.send_replace(JoinerState::Joined);
        *self.last_warning.lock() = None;
        let (end_sender, ended) = oneshot::channel();
        let session = JoinerSession {
            joiner: Arc::clone(self),
            lines,
            target,
            member_id,
            last_sent: DesiredState {
                max_active,
                is_leaving: false,
            },
            end_sender: Some(end_sender),
            live_guard: Some(live_guard),
        };
        loops::spawn_here(session.run());
        Ok(ended)
    }

    /// The addresses where the front end listens now.
    async fn resolve_address(&self) -> Result<Vec<FrontEndAddress>, JoinFailure> {
        if let Some(path) = self.address.strip_prefix("unix:") {
            return Ok(vec![FrontEndAddress::Unix(path.into())]);
        }
        if let Ok(address) = self.address.parse() {
            return Ok(vec![FrontEndAddress::Tcp(address)]);
        }
        let name = self.address.clone();
        let looked_up = self.pool.run(move || {
            let found = name.to_socket_addrs()?.map(FrontEndAddress::Tcp);
            Ok::<_, io::Error>(found.take(MAX_ADDRESSES).collect())
        });
        let found = clock::timeout(HANDSHAKE_TIMEOUT, looked_up).await;
        let found = found
            .ok_or(JoinFailure::Timeout)?
            .map_err(|error| JoinFailure::Refused(format!("cannot resolve the name: {error}")));
        Ok(found??)
    }

    /// Connects and performs the handshake for `purpose`.
    async fn dial(
        &self,
        target: &FrontEndAddress,
        purpose: &JoinPurpose,
    ) -> Result<(LineStream, u64), JoinFailure> {
        let met = clock::timeout(HANDSHAKE_TIMEOUT, self.handshake(target, purpose)).await;
        met.unwrap_or(Err(JoinFailure::Timeout))
    }

    async fn handshake(
        &self,
        target: &FrontEndAddress,
        purpose: &JoinPurpose,
    ) -> Result<(LineStream, u64), JoinFailure> {
        let stream = match target {
            FrontEndAddress::Tcp(address) => Stream::connect_tcp(*address).await?,
            FrontEndAddress::Unix(path) => Stream::connect_unix(path).await?,
        };
        let stream = match &self.tls {
            Some(tls) => tls.secure(stream).await?,
            None => stream,
        };
        let binding = channel_binding_of(&stream);
        let mut lines = LineStream::new(stream, Vec::new());
        let nonce = join::Nonce(random_bytes()?);
        lines.send(&join::encode_greeting(&nonce)).await?;
        let handshake = JoinHandshake {
            joiner: nonce,
            front_end: join::parse_challenge(&lines.next_line().await?)?,
            binding,
        };
        lines
            .send(&self.secret.encode_proof(JoinSide::Joiner, &handshake))
            .await?;
        // A front end with another key closes without a further line.
        let proved = match lines.next_line().await {
            Err(JoinFailure::Closed) => return Err(JoinError::WrongKey.into()),
            line => line?,
        };
        // A front end that cannot prove itself does not learn what wants to join, and can send no
        // request.
        self.secret
            .verify(JoinSide::FrontEnd, &handshake, &proved)?;
        let request = join::encode_join_request(&self.secret, &handshake, purpose);
        lines.send(&request).await?;
        let answered = lines.next_line().await?;
        match JoinReply::parse(&answered)? {
            JoinReply::Accepted(member) => Ok((lines, member)),
            JoinReply::Refused(why) => Err(JoinFailure::Refused(why)),
        }
    }

    /// Opens one request connection on the current loop.
    async fn bring_connection(self: Arc<Self>, target: FrontEndAddress, member: u64) {
        let _counted = DialGuard(&self);
        let purpose = JoinPurpose::CarryRequests { member };
        let opened = self.dial(&target, &purpose).await.and_then(|(lines, _)| {
            let (stream, early) = lines.into_parts();
            Ok((detach_guarded(stream).attach()?, early))
        });
        match opened {
            Ok((stream, early)) => (self.serve)(stream, target.peer_address(), early),
            Err(failure) => self.warn_throttled("no connection for", &failure),
        }
    }
}

struct DialGuard<'j>(&'j JoinerInner);

impl Drop for DialGuard<'_> {
    fn drop(&mut self) {
        self.0.dials_in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FrontEndAddress {
    fn peer_address(&self) -> PeerAddress {
        match self {
            Self::Tcp(address) => PeerAddress::Tcp(*address),
            Self::Unix(_) => PeerAddress::Unix,
        }
    }
}

/// A membership, as long as its control connection lasts.
struct JoinerSession {
    joiner: Arc<JoinerInner>,
    lines: LineStream,
    target: FrontEndAddress,
    member_id: u64,
    /// The state last announced to the front end.
    last_sent: DesiredState,
    /// Sent once.
    end_sender: Option<oneshot::Sender<SessionEnd>>,
    /// Held until no more requests can arrive.
    live_guard: Option<LiveSessionGuard>,
}

struct LiveSessionGuard(Arc<JoinerInner>);

impl LiveSessionGuard {
    fn new(joiner: &Arc<JoinerInner>) -> Self {
        joiner.live_sessions.send_modify(|live| *live += 1);
        Self(Arc::clone(joiner))
    }
}

impl Drop for LiveSessionGuard {
    fn drop(&mut self) {
        self.0.live_sessions.send_modify(|live| *live -= 1);
    }
}

impl JoinerSession {
    async fn run(mut self) {
        let Err(failure) = self.run_until_end().await;
        self.end(SessionEnd::Failed(failure));
    }

    fn end(&mut self, end: SessionEnd) {
        if let Some(sender) = self.end_sender.take() {
            // The receiver may be gone.
            let _ = sender.send(end);
        }
    }

    /// Runs the session; it ends with a failure.
    async fn run_until_end(&mut self) -> Result<Infallible, JoinFailure> {
        let mut desired = self.joiner.desired.subscribe();
        let mut heard_at = clock::now();
        let mut beats_at = heard_at + HEARTBEAT_INTERVAL;
        loop {
            let wanted = *desired.borrow_and_update();
            self.send_changes(wanted).await?;
            tokio::select! {
                line = self.lines.next_line() => {
                    heard_at = clock::now();
                    self.handle_line(&line?)?;
                }
                // The sender lives as long as the joiner.
                _ = desired.changed() => {}
                () = clock::sleep_until(beats_at) => {
                    let now = clock::now();
                    if now >= heard_at + SILENCE_TIMEOUT {
                        return Err(JoinFailure::Timeout);
                    }
                    beats_at = now + HEARTBEAT_INTERVAL;
                    self.lines.send(&JoinerMessage::Heartbeat.encode()).await?;
                }
            }
        }
    }

    async fn send_changes(&mut self, desired: DesiredState) -> Result<(), JoinFailure> {
        let before = std::mem::replace(&mut self.last_sent, desired);
        if desired.max_active != before.max_active {
            let max_active = JoinerMessage::Capacity(desired.max_active);
            self.lines.send(&max_active.encode()).await?;
        }
        if desired.is_leaving && !before.is_leaving {
            self.lines.send(&JoinerMessage::Leave.encode()).await?;
        }
        Ok(())
    }

    fn handle_line(&mut self, line: &str) -> Result<(), JoinFailure> {
        match FrontEndMessage::parse(line)? {
            FrontEndMessage::Heartbeat => {}
            FrontEndMessage::Dial(count) => (0..count).for_each(|_| self.spawn_connection()),
            FrontEndMessage::Superseded => self.end(SessionEnd::Moved),
            FrontEndMessage::Drained => self.live_guard = None,
        }
        Ok(())
    }

    fn spawn_connection(&self) {
        let joiner = &self.joiner;
        if joiner.dials_in_progress.fetch_add(1, Ordering::Relaxed) >= MAX_DIALS {
            joiner.dials_in_progress.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let next = joiner.next_loop.fetch_add(1, Ordering::Relaxed);
        let on = &joiner.loops[next % joiner.loops.len()];
        let carry = Arc::clone(joiner).bring_connection(self.target.clone(), self.member_id);
        on.spawn(carry);
    }
}

impl std::fmt::Debug for JoinerInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joiner")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for JoinerSetup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinerSetup").finish_non_exhaustive()
    }
}
