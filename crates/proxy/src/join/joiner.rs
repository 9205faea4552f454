//! The side that dials: it stays a member of a front end's upstream for as long as it lives, comes back whenever it is none, and
//! brings connections on which that one sends requests.
//!
//! `penstock work` has one, on its control loop; connections that carry are dialled on the loops that serve them. What must
//! stay true: it joins only when it is told that the application serves; one that is told to leave takes no new requests and
//! goes on with those it has; a front end that moves is followed at once, while what it still has goes on here.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_config as config;
use penstock_runtime::blocking::Pool;
use penstock_runtime::{LoopHandle, Stream, clock, loops};
use penstock_sys::net::{self, PeerAddress};
use penstock_wire::join::{
    self, FrontEndMessage, HandshakeNonces, JoinError, JoinPurpose, JoinReply, JoinSecret,
    JoinerMessage,
};
use tokio::sync::{oneshot, watch};

use super::lines::Lines;
use super::{BEAT, JoinFailure, MEETING, SILENCE, draw};

/// Serves a connection that was dialled, on the loop that this runs on; the bytes were read from it already.
pub type ServeDialled = Arc<dyn Fn(Stream, PeerAddress, Vec<u8>) + Send + Sync>;

/// What a joiner needs.
pub struct JoinerSetup {
    /// Where it dials, and as what.
    pub joins: config::Joins,
    /// What it is called there.
    pub label: String,
    /// Requests that it may have in progress.
    pub capacity: u32,
    /// The loops that serve.
    pub loops: Vec<LoopHandle>,
    /// Where names are looked up.
    pub pool: Pool,
    /// What serves.
    pub serve: ServeDialled,
}

/// One that joins; see the head of this file. Dropped, it goes on.
#[derive(Debug, Clone)]
pub struct Joiner(Arc<Inner>);

struct Inner {
    address: String,
    upstream: String,
    secret: JoinSecret,
    label: String,
    loops: Vec<LoopHandle>,
    pool: Pool,
    serve: ServeDialled,
    /// What it is to say.
    wish: watch::Sender<Wish>,
    next_loop: AtomicUsize,
    dialling: AtomicU64,
    /// What was said last of why it is not a member, and when.
    told: Mutex<Option<(String, Instant)>>,
    state: watch::Sender<JoinerState>,
    /// Memberships in which requests may be in progress, or come.
    live: watch::Sender<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    capacity: u32,
    leaves: bool,
}

/// How it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinerState {
    /// Not a member now, and why.
    Out(String),
    /// A member.
    In,
    /// It has left.
    Left,
}

/// Between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Addresses of a name that are tried.
const ADDRESSES_MAX: usize = 8;

/// How often the same is told.
const TOLD_EACH: Duration = Duration::from_secs(60);

/// What is told of a connection that could not be brought.
const NO_CONNECTION: &str = "no connection for";

/// Connections that are being dialled at once, at most.
const DIALLING_MAX: u64 = 10_000;

/// Where a front end listens.
#[derive(Debug, Clone)]
enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Why a session is no more, or not the only one any more.
enum End {
    Failed(JoinFailure),
    /// The front end gives way to another.
    Moved,
}

impl Joiner {
    /// Begins to join, on the current loop. It goes on until the process ends.
    #[must_use]
    pub fn start(setup: JoinerSetup) -> Self {
        let JoinerSetup {
            joins,
            label,
            capacity,
            loops: serving,
            pool,
            serve,
        } = setup;
        let wish = Wish {
            capacity: capacity.max(1),
            leaves: false,
        };
        let inner = Arc::new(Inner {
            secret: JoinSecret::new(joins.key.expose()),
            address: joins.address,
            upstream: joins.upstream,
            label: join::sanitise_label(&label),
            loops: serving,
            pool,
            serve,
            wish: watch::channel(wish).0,
            next_loop: AtomicUsize::new(0),
            dialling: AtomicU64::new(0),
            told: Mutex::default(),
            live: watch::channel(0).0,
            state: watch::channel(JoinerState::Out("it has not dialled yet".to_owned())).0,
        });
        loops::spawn_here(Arc::clone(&inner).stay());
        Self(inner)
    }

    /// It may have another number of requests in progress from now on.
    pub fn set_capacity(&self, capacity: u32) {
        let capacity = capacity.max(1);
        self.0
            .wish
            .send_if_modified(|wish| std::mem::replace(&mut wish.capacity, capacity) != capacity);
    }

    /// It takes no new requests from now on; [`Joiner::left`] waits for those it has.
    pub fn leave(&self) {
        self.0.wish.send_modify(|wish| wish.leaves = true);
    }

    /// How it stands.
    #[must_use]
    pub fn state(&self) -> JoinerState {
        self.0.state.borrow().clone()
    }

    /// Waits until nothing is in progress any more of all that came from front ends, and nothing comes, once it was told
    /// to leave. At once where there is none. The caller bounds the wait.
    pub async fn left(&self) {
        let mut live = self.0.live.subscribe();
        // Its sender is this one's.
        let _ = live.wait_for(|live| *live == 0).await;
    }

    /// Waits until it is a member.
    pub async fn is_in(&self) {
        let mut state = self.0.state.subscribe();
        // Its sender is this one's.
        let _ = state.wait_for(|state| *state == JoinerState::In).await;
    }
}

impl Inner {
    /// Joins again and again, until it is to leave.
    async fn stay(self: Arc<Self>) {
        let mut wish = self.wish.subscribe();
        let mut pause = PAUSE_MIN;
        while !wish.borrow().leaves {
            let began = clock::now();
            let begun = tokio::select! {
                begun = self.begin() => begun,
                // A front end that has let it in already sees it go.
                _ = wish.wait_for(|wish| wish.leaves) => break,
            };
            let end = match begun {
                Ok(ended) => ended.await.unwrap_or(End::Failed(JoinFailure::Closed)),
                Err(failure) => End::Failed(failure),
            };
            let End::Failed(failure) = end else {
                log::info!("{}: moves to whoever listens there now", self.address);
                pause = PAUSE_MIN;
                continue;
            };
            if wish.borrow().leaves {
                break;
            }
            self.set_state(JoinerState::Out(failure.to_string()));
            self.tell("not a server of", &failure);
            if clock::now() > began + PAUSE_MAX {
                pause = PAUSE_MIN;
            }
            let left = async { wish.wait_for(|wish| wish.leaves).await.is_ok() };
            clock::timeout(pause, left).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.set_state(JoinerState::Left);
    }

    /// Says why it is not a member, or brings no connection: what lasts, each minute.
    fn tell(&self, what: &str, failure: &JoinFailure) {
        let (cause, now) = (failure.to_string(), clock::now());
        {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let is_known =
                |(known, at): &(String, Instant)| *known == cause && now < *at + TOLD_EACH;
            if told.as_ref().is_some_and(is_known) {
                return;
            }
            *told = Some((cause.clone(), now));
        }
        let (address, upstream) = (&self.address, &self.upstream);
        log::warn!("{address}: {what} `{upstream}`: {cause}");
    }

    fn set_state(&self, state: JoinerState) {
        self.state.send_replace(state);
    }

    /// Becomes a member; its session goes on by itself, and its end is told.
    async fn begin(self: &Arc<Self>) -> Result<oneshot::Receiver<End>, JoinFailure> {
        let live = Live::new(self);
        let wish = Wish {
            leaves: false,
            ..*self.wish.borrow()
        };
        let purpose = JoinPurpose::Control {
            capacity: wish.capacity,
            upstream: self.upstream.clone(),
            label: self.label.clone(),
        };
        let mut failure = JoinFailure::Refused("the name has no address".to_owned());
        let mut met = None;
        for target in self.find().await? {
            match self.dial(&target, &purpose).await {
                Ok((lines, member)) => {
                    met = Some((lines, member, target));
                    break;
                }
                Err(why) => failure = why,
            }
        }
        let (lines, member, target) = met.ok_or(failure)?;
        let (address, upstream) = (&self.address, &self.upstream);
        let capacity = wish.capacity;
        log::info!("{address}: a server of `{upstream}`, {capacity} at once");
        self.set_state(JoinerState::In);
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let (tell, ended) = oneshot::channel();
        let session = Session {
            joiner: Arc::clone(self),
            lines,
            target,
            member,
            said: wish,
            tell: Some(tell),
            live: Some(live),
        };
        loops::spawn_here(session.run());
        Ok(ended)
    }

    /// Where the front end listens now.
    async fn find(&self) -> Result<Vec<Target>, JoinFailure> {
        if let Some(path) = self.address.strip_prefix("unix:") {
            return Ok(vec![Target::Unix(path.into())]);
        }
        if let Ok(address) = self.address.parse() {
            return Ok(vec![Target::Tcp(address)]);
        }
        let name = self.address.clone();
        let looked_up = self.pool.run(move || {
            let found = name.to_socket_addrs()?.map(Target::Tcp);
            Ok::<_, io::Error>(found.take(ADDRESSES_MAX).collect())
        });
        let found = clock::timeout(MEETING, looked_up).await;
        let found = found.ok_or(JoinFailure::Silent)?;
        let refused = |error: penstock_runtime::blocking::PoolError| {
            JoinFailure::Refused(format!("the name is not looked up: {error}"))
        };
        Ok(found.map_err(refused)??)
    }

    /// Meets the front end, for some purpose.
    async fn dial(
        &self,
        target: &Target,
        purpose: &JoinPurpose,
    ) -> Result<(Lines, u64), JoinFailure> {
        let met = clock::timeout(MEETING, self.meet(target, purpose)).await;
        met.unwrap_or(Err(JoinFailure::Silent))
    }

    async fn meet(
        &self,
        target: &Target,
        purpose: &JoinPurpose,
    ) -> Result<(Lines, u64), JoinFailure> {
        let stream = match target {
            Target::Tcp(address) => Stream::connect_tcp(*address).await?,
            Target::Unix(path) => Stream::connect_unix(path).await?,
        };
        let mut lines = Lines::new(stream, Vec::new());
        let nonce = draw()?;
        lines.say(&join::encode_greeting(&nonce)).await?;
        let meeting = HandshakeNonces {
            joiner: nonce,
            front_end: join::parse_challenge(&lines.next().await?)?,
        };
        lines
            .say(&join::prove_joiner(&self.secret, &meeting))
            .await?;
        // A front end that knows another key says nothing more.
        let proved = lines.next().await;
        let proved = proved.map_err(|failure| match failure {
            JoinFailure::Closed => JoinError::WrongKey.into(),
            failure => failure,
        })?;
        // Who cannot prove to be the front end does not learn who wants to join, and brings no request.
        join::verify_front_end(&self.secret, &meeting, &proved)?;
        let request = join::encode_join_request(&self.secret, &meeting, purpose);
        lines.say(&request).await?;
        let answered = lines.next().await?;
        match JoinReply::parse(&answered)? {
            JoinReply::Accepted(member) => Ok((lines, member)),
            JoinReply::Refused(why) => Err(JoinFailure::Refused(why)),
        }
    }

    /// Brings one connection that carries, on the current loop.
    async fn carry(self: Arc<Self>, target: Target, member: u64) {
        let _counted = Dialling(&self);
        match self
            .dial(&target, &JoinPurpose::CarryRequests { member })
            .await
        {
            Ok((lines, _)) => {
                let (stream, early) = lines.into_parts();
                let socket = stream.into_socket();
                // Of Unix sockets neither is known, and no machine stands between.
                let _ = net::enable_keepalive_after(&socket, SILENCE);
                let _ = net::set_user_timeout(&socket, SILENCE);
                match Stream::new(socket) {
                    Ok(stream) => (self.serve)(stream, target.peer(), early),
                    Err(error) => self.tell(NO_CONNECTION, &error.into()),
                }
            }
            Err(failure) => self.tell(NO_CONNECTION, &failure),
        }
    }
}

/// Counts one that is being dialled.
struct Dialling<'j>(&'j Inner);

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.0.dialling.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Target {
    fn peer(&self) -> PeerAddress {
        match self {
            Self::Tcp(address) => PeerAddress::Tcp(*address),
            Self::Unix(_) => PeerAddress::Unix,
        }
    }
}

/// A membership, as long as its control connection lasts.
struct Session {
    joiner: Arc<Inner>,
    lines: Lines,
    target: Target,
    member: u64,
    /// What the front end knows.
    said: Wish,
    /// Told once.
    tell: Option<oneshot::Sender<End>>,
    /// Until nothing comes any more.
    live: Option<Live>,
}

/// Counts a membership.
struct Live(Arc<Inner>);

impl Live {
    fn new(joiner: &Arc<Inner>) -> Self {
        joiner.live.send_modify(|live| *live += 1);
        Self(Arc::clone(joiner))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.send_modify(|live| *live -= 1);
    }
}

/// What happens to a session.
enum Event {
    Line(Result<String, JoinFailure>),
    Wish,
    Time,
}

impl Session {
    async fn run(mut self) {
        let failure = self.listen().await;
        self.end(End::Failed(failure));
    }

    fn end(&mut self, end: End) {
        if let Some(tell) = self.tell.take() {
            // Whoever is told no more does not stay.
            let _ = tell.send(end);
        }
    }

    /// Until it is over; why.
    async fn listen(&mut self) -> JoinFailure {
        let mut wish = self.joiner.wish.subscribe();
        let mut heard = clock::now();
        let mut beats_at = heard + BEAT;
        loop {
            let wanted = *wish.borrow_and_update();
            if let Err(failure) = self.say_wish(wanted).await {
                return failure;
            }
            let done = match self.next(&mut wish, beats_at).await {
                Event::Line(line) => {
                    heard = clock::now();
                    line.and_then(|line| self.obey(&line))
                }
                Event::Wish => Ok(()),
                Event::Time if clock::now() >= heard + SILENCE => Err(JoinFailure::Silent),
                Event::Time => {
                    beats_at = clock::now() + BEAT;
                    self.lines.say(&JoinerMessage::Heartbeat.encode()).await
                }
            };
            if let Err(failure) = done {
                return failure;
            }
        }
    }

    async fn next(&mut self, wish: &mut watch::Receiver<Wish>, until: Instant) -> Event {
        tokio::select! {
            line = self.lines.next() => Event::Line(line),
            // Its sender is as old as the joiner.
            _ = wish.changed() => Event::Wish,
            () = clock::sleep_until(until) => Event::Time,
        }
    }

    async fn say_wish(&mut self, wish: Wish) -> Result<(), JoinFailure> {
        let before = std::mem::replace(&mut self.said, wish);
        if wish.capacity != before.capacity {
            let capacity = JoinerMessage::Capacity(wish.capacity);
            self.lines.say(&capacity.encode()).await?;
        }
        if wish.leaves && !before.leaves {
            self.lines.say(&JoinerMessage::Leave.encode()).await?;
        }
        Ok(())
    }

    fn obey(&mut self, line: &str) -> Result<(), JoinFailure> {
        match FrontEndMessage::parse(line)? {
            FrontEndMessage::Heartbeat => {}
            FrontEndMessage::Dial(count) => (0..count).for_each(|_| self.bring_one()),
            FrontEndMessage::Superseded => self.end(End::Moved),
            FrontEndMessage::Drained => self.live = None,
        }
        Ok(())
    }

    fn bring_one(&self) {
        let joiner = &self.joiner;
        if joiner.dialling.fetch_add(1, Ordering::Relaxed) >= DIALLING_MAX {
            joiner.dialling.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let next = joiner.next_loop.fetch_add(1, Ordering::Relaxed);
        let on = &joiner.loops[next % joiner.loops.len()];
        let carry = Arc::clone(joiner).carry(self.target.clone(), self.member);
        on.spawn(carry);
    }
}

impl std::fmt::Debug for Inner {
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
