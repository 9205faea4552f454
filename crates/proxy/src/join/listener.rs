//! The front end's side of joins: admits members, makes them servers of their upstreams, and
//! removes them. For the invariants see `join`.
//!
//! `penstock` has one [`JoinListener`] for its lifetime, as the handler of the `server.join`
//! listener. The loop that accepted a connection performs its handshake, and the connection counts
//! as edge's until then. Afterwards it belongs to the upstream, as if opened there.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use penstock_config as config;
use penstock_exchange::{ListenerInfo, TakeoverFuture, TunnelHandler};
use penstock_runtime::log_throttle::{LogThrottle, suppressed_suffix};
use penstock_runtime::{Stream, clock, loops};
use penstock_sys::net::{self, PeerAddress};
use penstock_wire::join::{
    self, FrontEndMessage, HandshakeNonces, JoinPurpose, JoinReply, JoinSecret, JoinSide,
    JoinerMessage,
};
use tokio::sync::watch;

use super::joined_connections::JoinedConnections;
use super::line_stream::LineStream;
use super::{
    HANDSHAKE_TIMEOUT, HEARTBEAT_INTERVAL, JoinFailure, SILENCE_TIMEOUT, random_id, random_nonce,
};
use crate::connection::ResolvedAddress;
use crate::maintenance;
use crate::server_pool::{ServerId, ServerSpec};
use crate::upstream::{SharedUpstream, Upstream};

/// How often to check whether a leaving member still has requests.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum members of all upstreams.
const MAX_MEMBERS: usize = 1000;

/// Accepts joining servers. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct JoinListener(Arc<JoinListenerInner>);

#[derive(Debug)]
struct JoinListenerInner {
    table: ArcSwap<JoinTable>,
    /// Held only briefly.
    members: Mutex<HashMap<u64, Member>>,
    /// Sent when the table has changed; `true` when this server steps down.
    changes: watch::Sender<bool>,
    log_throttle: LogThrottle,
}

/// A member that may open connections.
#[derive(Debug)]
struct Member {
    dialled: Arc<JoinedConnections>,
    by: JoinedBy,
}

/// The part that a reload replaces.
#[derive(Debug, Default)]
struct JoinTable {
    /// The accepted keys.
    doors: Vec<Door>,
    /// Upstreams that may be joined.
    upstreams: BTreeMap<String, Weak<SharedUpstream>>,
}

/// A key, and the upstreams that it opens.
#[derive(Debug)]
struct Door {
    by: JoinedBy,
    secret: JoinSecret,
}

/// The listen address and the key that a member used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JoinedBy {
    join: config::JoinEndpoint,
    /// The only upstream that the key opens; `None` for all upstreams without a key of their own.
    only: Option<String>,
}

impl JoinTable {
    fn new<'u>(
        join: Option<&config::JoinEndpoint>,
        upstreams: impl Iterator<Item = &'u Arc<Upstream>>,
    ) -> Self {
        let mut table = Self::default();
        let Some(join) = join else {
            return table;
        };
        table.doors.push(Door::new(join.clone(), None));
        for upstream in upstreams.filter(|upstream| upstream.config().joinable) {
            let name = upstream.name().to_owned();
            if let Some(key) = &upstream.config().join_key {
                let own = config::JoinEndpoint {
                    key: key.clone(),
                    ..join.clone()
                };
                table.doors.push(Door::new(own, Some(name.clone())));
            }
            let shared = Arc::downgrade(&upstream.shared);
            table.upstreams.insert(name, shared);
        }
        table
    }

    /// The door whose key `proof` proves.
    fn door(&self, meeting: &HandshakeNonces, proof: &str) -> Result<&Door, JoinFailure> {
        let mut failure = JoinFailure::from(join::JoinError::WrongKey);
        for door in &self.doors {
            match door.secret.verify(JoinSide::Joiner, meeting, proof) {
                Ok(()) => return Ok(door),
                Err(error) => failure = error.into(),
            }
        }
        Err(failure)
    }

    /// The upstream of this name, if a client with the key of `by` may join it.
    fn open(&self, by: &JoinedBy, name: &str) -> Option<Arc<SharedUpstream>> {
        let shared = self.upstreams.get(name)?.upgrade()?;
        let is_open = match &by.only {
            Some(only) => only == name,
            None => shared.config.join_key.is_none(),
        };
        is_open.then_some(shared)
    }
}

impl Door {
    fn new(join: config::JoinEndpoint, only: Option<String>) -> Self {
        let secret = JoinSecret::new(join.key.expose());
        let by = JoinedBy { join, only };
        Self { by, secret }
    }
}

impl Default for JoinListenerInner {
    fn default() -> Self {
        Self {
            table: ArcSwap::default(),
            members: Mutex::default(),
            changes: watch::channel(false).0,
            log_throttle: LogThrottle::default(),
        }
    }
}

impl JoinListener {
    /// Accepts joins to those of `upstreams` that are `joinable`, from now on. Members of other
    /// upstreams are told to reconnect. Members with a removed key or address could open no more
    /// connections and get no new requests.
    pub fn configure<'u>(
        &self,
        join: Option<&config::JoinEndpoint>,
        upstreams: impl Iterator<Item = &'u Arc<Upstream>>,
    ) {
        self.0
            .table
            .store(Arc::new(JoinTable::new(join, upstreams)));
        self.0.changes.send_modify(|_| {});
    }

    /// This server steps down: it refuses joins and tells members to reconnect to the server that
    /// listens then. They stay members of this one until it ends.
    pub fn step_down(&self) {
        self.0.changes.send_replace(true);
    }
}

impl TunnelHandler for JoinListener {
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        _listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture {
        let front = Arc::clone(&self.0);
        Box::pin(async move {
            let met = clock::timeout(HANDSHAKE_TIMEOUT, front.handshake(client, early)).await;
            if let Err(failure) = met.unwrap_or(Err(JoinFailure::Timeout)) {
                let cause = failure.to_string();
                if let Some(count) = front.log_throttle.admit_line(&cause, clock::now()) {
                    let (peer, more) = (peer_name(peer), suppressed_suffix(count));
                    log::warn!("join: refused {peer}: {cause}{more}");
                }
            }
        })
    }
}

/// The peer's address for the log.
fn peer_name(peer: PeerAddress) -> String {
    match peer {
        PeerAddress::Tcp(address) => address.to_string(),
        PeerAddress::Unix => "a Unix socket".to_owned(),
    }
}

impl JoinListenerInner {
    /// Performs the handshake and serves the peer's purpose.
    async fn handshake(
        self: &Arc<Self>,
        client: Arc<Stream>,
        early: Vec<u8>,
    ) -> Result<(), JoinFailure> {
        let shared = |_| JoinFailure::Refused("its connection is shared".to_owned());
        let stream = Arc::try_unwrap(client).map_err(shared)?;
        let mut lines = LineStream::new(stream, early);
        let table = self.table.load_full();
        let nobody = || JoinFailure::Refused("joins are no longer accepted".to_owned());
        if table.doors.is_empty() || *self.changes.borrow() {
            return Err(nobody());
        }
        let meeting = HandshakeNonces {
            joiner: join::parse_greeting(&lines.next_line().await?)?,
            front_end: random_nonce()?,
        };
        lines
            .send(&join::encode_challenge(&meeting.front_end))
            .await?;
        // A peer without the key learns nothing more, and causes no work.
        let proof = lines.next_line().await?;
        let Door { by, secret } = table.door(&meeting, &proof)?;
        lines
            .send(&secret.prove(JoinSide::FrontEnd, &meeting))
            .await?;
        let line = lines.next_line().await?;
        match join::parse_join_request(secret, &meeting, &line)? {
            JoinPurpose::Control {
                capacity,
                upstream,
                label,
            } => {
                let Some(shared) = table.open(by, &upstream) else {
                    let why = format!("no upstream `{upstream}` is `joinable` here by this key");
                    return send_refusal(&lines, why).await;
                };
                let who = JoinRequest {
                    capacity,
                    label,
                    join_config: by.clone(),
                };
                self.admit_member(lines, &shared, who).await
            }
            JoinPurpose::CarryRequests { member } => {
                let found = {
                    let members = self.members();
                    let found = members.get(&member).filter(|member| member.by == *by);
                    found.map(|member| Arc::clone(&member.dialled))
                };
                let Some(dialled) = found else {
                    return send_refusal(&lines, "not a member any more".to_owned()).await;
                };
                lines.send(&JoinReply::Accepted(member).encode()).await?;
                let (stream, early) = lines.into_parts();
                if !early.is_empty() {
                    return Err(join::JoinError::Malformed.into());
                }
                let socket = stream.into_socket();
                // Unix sockets support neither, and need neither.
                let _ = net::enable_keepalive_after(&socket, SILENCE_TIMEOUT);
                let _ = net::set_user_timeout(&socket, SILENCE_TIMEOUT);
                let too_many = |_| JoinFailure::Refused("more connections than requested".into());
                dialled.offer(socket).map_err(too_many)
            }
        }
    }

    /// Makes a server of an authenticated peer.
    async fn admit_member(
        self: &Arc<Self>,
        lines: LineStream,
        shared: &Arc<SharedUpstream>,
        who: JoinRequest,
    ) -> Result<(), JoinFailure> {
        let JoinRequest {
            capacity,
            label,
            join_config: by,
        } = who;
        let (number, dialled) = (random_id()?, Arc::new(JoinedConnections::new(capacity)));
        // Before the member learns its number, which it needs to open connections.
        let is_in = {
            let mut members = self.members();
            let has_room = members.len() < MAX_MEMBERS;
            let member = Member {
                dialled: Arc::clone(&dialled),
                by: by.clone(),
            };
            has_room && members.insert(number, member).is_none()
        };
        if !is_in {
            return send_refusal(&lines, format!("too many members: {MAX_MEMBERS}")).await;
        }
        let mut membership = Membership {
            listener: Arc::clone(self),
            member_id: number,
            connections: dialled,
            join_config: by,
            joined_server: None,
        };
        lines.send(&JoinReply::Accepted(number).encode()).await?;
        let name = format!("{label} (joined)");
        let name = unique_name(shared, name);
        let spec = ServerSpec {
            address: config::ServerAddr::Joined(number),
            weight: 1,
            capacity: maintenance::member_capacity(&shared.config, capacity),
            backup: false,
            generation: 0,
        };
        let capacity = spec.capacity;
        let address = ResolvedAddress::Joined(Arc::clone(&membership.connections));
        let key = shared.add_server(address, name.as_str().into(), spec);
        membership.joined_server = Some((Arc::downgrade(shared), key));
        maintenance::notify_changes(shared);
        let upstream = &shared.name;
        log::info!("{upstream}: {name} joined (capacity={capacity})");
        let session = MemberSession {
            lines,
            membership,
            name,
            upstream: Arc::clone(upstream),
            has_left: false,
            is_done_sent: false,
            is_moved_sent: false,
        };
        loops::spawn_here(session.run());
        Ok(())
    }

    fn members(&self) -> MutexGuard<'_, HashMap<u64, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request to become a server.
#[derive(Debug)]
struct JoinRequest {
    capacity: u32,
    label: String,
    join_config: JoinedBy,
}

/// A name that no other server of the upstream has.
fn unique_name(shared: &SharedUpstream, name: String) -> String {
    let roster = shared.server_pool();
    let is_free = |name: &String| !(roster.servers().iter()).any(|it| *it.server.name == **name);
    let numbered = (2..).map(|number| format!("{name} {number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(is_free).unwrap_or_default()
}

async fn send_refusal(lines: &LineStream, why: String) -> Result<(), JoinFailure> {
    lines
        .send(&JoinReply::Refused(why.clone()).encode())
        .await?;
    Err(JoinFailure::Refused(why))
}

/// A membership; it ends when dropped.
#[derive(Debug)]
struct Membership {
    listener: Arc<JoinListenerInner>,
    member_id: u64,
    connections: Arc<JoinedConnections>,
    join_config: JoinedBy,
    /// The server that the member became.
    joined_server: Option<(Weak<SharedUpstream>, ServerId)>,
}

impl Membership {
    /// Removes the server: no new requests.
    fn remove_server(&self) {
        if let Some((shared, key)) = self.server() {
            let now = clock::now();
            shared.update_pool(|roster, aftermath| roster.remove(now, key, aftermath));
        }
    }

    fn server(&self) -> Option<(Arc<SharedUpstream>, ServerId)> {
        let (shared, key) = self.joined_server.as_ref()?;
        Some((shared.upgrade()?, *key))
    }

    /// Whether it could still open connections: the key and the address are unchanged.
    fn can_dial_in(&self) -> bool {
        let table = self.listener.table.load();
        table.doors.iter().any(|door| door.by == self.join_config)
    }

    /// Whether it is a server of its upstream.
    fn is_active_server(&self) -> bool {
        self.server()
            .is_some_and(|(shared, key)| shared.server_pool().server(key).is_some())
    }

    /// Whether it is a server, or is leaving with active requests.
    fn is_still_serving(&self) -> bool {
        self.server().is_some_and(|(shared, key)| {
            let roster = shared.server_pool();
            roster.servers().iter().any(|member| member.id == key)
        })
    }

    /// Updates the capacity by the member's announcement and its connections.
    fn update_capacity(&self) {
        if let Some((shared, key)) = self.server() {
            update_member_capacity(&shared, key, &self.connections);
        }
    }

    /// Whether its upstream is the configured one.
    fn is_current(&self) -> bool {
        let table = self.listener.table.load();
        let is_it = |shared: &Weak<SharedUpstream>| {
            let of = self.joined_server.as_ref();
            of.is_some_and(|(of, _)| of.ptr_eq(shared))
        };
        table.upstreams.values().any(is_it)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.remove_server();
        self.listener.members().remove(&self.member_id);
        self.connections.close();
    }
}

/// Sets a member's capacity by its announcement and its connections.
pub(crate) fn update_member_capacity(
    shared: &SharedUpstream,
    key: ServerId,
    dialled: &JoinedConnections,
) {
    let now = clock::now();
    shared.update_pool(|roster, aftermath| {
        let Some(member) = roster.server(key) else {
            return;
        };
        let capacity = dialled.capacity(member.open_connections());
        let capacity = maintenance::member_capacity(&shared.config, capacity);
        if capacity != member.spec.capacity {
            roster.change_spec(now, key, aftermath, |spec| spec.capacity = capacity);
        }
    });
}

/// The session on a member's control connection.
#[derive(Debug)]
struct MemberSession {
    lines: LineStream,
    membership: Membership,
    /// The server's name.
    name: String,
    upstream: Arc<str>,
    has_left: bool,
    /// The end of its requests was announced.
    is_done_sent: bool,
    is_moved_sent: bool,
}

enum MemberEvent {
    Line(Result<String, JoinFailure>),
    ConnectionsWanted(u32),
    TableChanged,
    Tick,
}

impl MemberSession {
    async fn run(mut self) {
        let end = self.run_until_end().await;
        let (upstream, name) = (&self.upstream, &self.name);
        match end {
            Err(_) if self.has_left => log::info!("{upstream}: {name} left"),
            Err(failure) => log::warn!("{upstream}: {name} disconnected: {failure}"),
            Ok(()) => log::info!("{upstream}: {name} left: its upstream was replaced"),
        }
    }

    /// Runs until the member leaves or its upstream is gone.
    async fn run_until_end(&mut self) -> Result<(), JoinFailure> {
        let mut news = self.membership.listener.changes.subscribe();
        let mut heard = clock::now();
        let mut beats_at = heard + HEARTBEAT_INTERVAL;
        loop {
            if self.membership.server().is_none() {
                return Ok(());
            }
            let gives_way = *news.borrow_and_update();
            if gives_way {
                self.membership.connections.end_supply();
                self.membership.update_capacity();
                self.membership.connections.wake_waiters();
            }
            let may_dial = gives_way || self.membership.can_dial_in();
            if !self.is_moved_sent && (gives_way || !may_dial || !self.membership.is_current()) {
                self.is_moved_sent = true;
                self.lines
                    .send(&FrontEndMessage::Superseded.encode())
                    .await?;
            }
            if !may_dial {
                let why = "its key or listen address was removed";
                return Err(JoinFailure::Refused(why.to_owned()));
            }
            if self.has_left && !self.is_done_sent && !self.membership.is_still_serving() {
                self.is_done_sent = true;
                self.lines.send(&FrontEndMessage::Drained.encode()).await?;
            }
            let looks_at = match self.has_left && !self.is_done_sent {
                true => clock::now() + DRAIN_POLL_INTERVAL,
                false => beats_at,
            };
            match self.next_event(&mut news, looks_at.min(beats_at)).await {
                MemberEvent::Line(line) => {
                    let said = JoinerMessage::parse(&line?)?;
                    heard = clock::now();
                    self.handle_message(said);
                }
                // The member would connect to the server that listens now.
                MemberEvent::ConnectionsWanted(_) if gives_way => {}
                MemberEvent::ConnectionsWanted(count) => {
                    self.lines
                        .send(&FrontEndMessage::Dial(count).encode())
                        .await?;
                }
                MemberEvent::TableChanged => {}
                MemberEvent::Tick if clock::now() >= heard + SILENCE_TIMEOUT => {
                    return Err(JoinFailure::Timeout);
                }
                MemberEvent::Tick if !self.has_left && !self.membership.is_active_server() => {
                    return Err(JoinFailure::Refused("its server was removed".to_owned()));
                }
                MemberEvent::Tick if clock::now() >= beats_at => {
                    beats_at = clock::now() + HEARTBEAT_INTERVAL;
                    self.lines
                        .send(&FrontEndMessage::Heartbeat.encode())
                        .await?;
                }
                MemberEvent::Tick => {}
            }
        }
    }

    async fn next_event(
        &mut self,
        news: &mut watch::Receiver<bool>,
        until: Instant,
    ) -> MemberEvent {
        tokio::select! {
            line = self.lines.next_line() => MemberEvent::Line(line),
            count = self.membership.connections.wait_for_demand() => MemberEvent::ConnectionsWanted(count),
            // The sender lives as long as the listener.
            _ = news.changed() => MemberEvent::TableChanged,
            () = clock::sleep_until(until) => MemberEvent::Tick,
        }
    }

    fn handle_message(&mut self, said: JoinerMessage) {
        match said {
            JoinerMessage::Heartbeat => {}
            JoinerMessage::Capacity(capacity) => {
                self.membership.connections.set_capacity(capacity);
                self.membership.update_capacity();
            }
            JoinerMessage::Leave => {
                self.has_left = true;
                log::info!("{}: {} leaving", self.upstream, self.name);
                self.membership.remove_server();
                self.membership.connections.close_idle();
            }
        }
    }
}
