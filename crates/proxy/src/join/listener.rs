//! The front end's side of joins: admits members, makes them servers of their upstreams, and
//! removes them. For the invariants see `join`.
//!
//! `penstock` has one [`JoinListener`] for its lifetime, as the handler of the `server.join`
//! listener. The loop that accepted a connection performs its handshakes: `edge` that of TLS, this
//! file that of the join. The connection counts as edge's until then. Afterwards it belongs to the
//! upstream, as if opened there.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use penstock_config as config;
use penstock_exchange::{ListenerInfo, TakeoverFuture, TunnelHandler};
use penstock_runtime::log_throttle::{LogThrottle, suppressed_suffix};
use penstock_runtime::{Stream, clock, loops};
use penstock_sys::net::PeerAddress;
use penstock_wire::join::{
    self, ChannelBinding, FrontEndMessage, JoinError, JoinHandshake, JoinPurpose, JoinReply,
    JoinSecret, JoinSide, JoinerMessage, Nonce,
};
use tokio::sync::watch;

use super::joined_connections::JoinedConnections;
use super::line_stream::LineStream;
use super::{
    HANDSHAKE_TIMEOUT, HEARTBEAT_INTERVAL, JoinFailure, SILENCE_TIMEOUT, channel_binding_of,
    detach_guarded, random_bytes,
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
    connections: Arc<JoinedConnections>,
    by: JoinedBy,
}

/// The part that a reload replaces.
#[derive(Debug, Default)]
struct JoinTable {
    /// Whether joins without TLS are refused.
    requires_tls: bool,
    /// The accepted keys.
    accepted_keys: Vec<AcceptedKey>,
    /// Upstreams that may be joined.
    upstreams: BTreeMap<String, Weak<SharedUpstream>>,
}

/// A key, and the upstreams that it opens.
#[derive(Debug)]
struct AcceptedKey {
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
        table.requires_tls = join.tls;
        table.add_key(join.clone(), None);
        for upstream in upstreams.filter(|upstream| upstream.config().joinable) {
            let name = upstream.name().to_owned();
            if let Some(key) = upstream.config().join_key.clone() {
                table.add_key(
                    config::JoinEndpoint {
                        key,
                        ..join.clone()
                    },
                    Some(name.clone()),
                );
            }
            let shared = Arc::downgrade(&upstream.shared);
            table.upstreams.insert(name, shared);
        }
        table
    }

    fn add_key(&mut self, join: config::JoinEndpoint, only: Option<String>) {
        self.accepted_keys.push(AcceptedKey {
            secret: JoinSecret::new(join.key.expose()),
            by: JoinedBy { join, only },
        });
    }

    /// The accepted key that `proof` proves, and whether it proves it for this connection.
    ///
    /// # Errors
    /// It proves none.
    fn find_key(
        &self,
        handshake: &JoinHandshake,
        proof: &str,
    ) -> Result<(&AcceptedKey, Result<(), JoinError>), JoinError> {
        let mut failure = JoinError::WrongKey;
        for key in &self.accepted_keys {
            match key.secret.verify(JoinSide::Joiner, handshake, proof) {
                Ok(()) => return Ok((key, Ok(()))),
                Err(error @ JoinError::Intercepted) => return Ok((key, Err(error))),
                Err(error) => failure = error,
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
        (self.0.table).store(Arc::new(JoinTable::new(join, upstreams)));
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
            let binding = channel_binding_of(&client);
            let handshake = front.handshake(client, binding, early);
            let met = clock::timeout(HANDSHAKE_TIMEOUT, handshake).await;
            if let Err(failure) = met.unwrap_or(Err(JoinFailure::Timeout)) {
                let cause = failure.to_string();
                if let Some(count) = front.log_throttle.admit_line(&cause, clock::now()) {
                    let peer = match peer {
                        PeerAddress::Tcp(address) => address.to_string(),
                        PeerAddress::Unix => "a Unix socket".to_owned(),
                    };
                    log::warn!("join: refused {peer}: {cause}{}", suppressed_suffix(count));
                }
            }
        })
    }

    fn refuses_plaintext(&self) -> bool {
        true
    }
}

impl JoinListenerInner {
    /// Performs the handshake and serves the peer's purpose.
    async fn handshake(
        self: &Arc<Self>,
        client: Arc<Stream>,
        binding: ChannelBinding,
        early: Vec<u8>,
    ) -> Result<(), JoinFailure> {
        let refused = |cause: &str| JoinFailure::Refused(cause.to_owned());
        let stream = Arc::try_unwrap(client).map_err(|_| refused("its connection is shared"))?;
        let mut lines = LineStream::new(stream, early);
        let table = self.table.load_full();
        if table.accepted_keys.is_empty() || *self.changes.borrow() {
            return Err(refused("joins are no longer accepted"));
        }
        let handshake = JoinHandshake {
            joiner: read_greeting(&mut lines, binding, table.requires_tls).await?,
            front_end: Nonce(random_bytes()?),
            binding,
        };
        lines
            .send(&join::encode_challenge(&handshake.front_end))
            .await?;
        // A peer without the key learns nothing more, and causes no work.
        let proof = lines.next_line().await?;
        let (AcceptedKey { by, secret }, channel_check) = table.find_key(&handshake, &proof)?;
        // A joiner with the key behind another session finds that in this line.
        lines
            .send(&secret.encode_proof(JoinSide::FrontEnd, &handshake))
            .await?;
        channel_check?;
        let line = lines.next_line().await?;
        match join::parse_join_request(secret, &handshake, &line)? {
            JoinPurpose::Control {
                capacity: max_active,
                upstream,
                label,
            } => {
                let Some(shared) = table.open(by, &upstream) else {
                    let why = format!("no upstream `{upstream}` is `joinable` here by this key");
                    return send_refusal(&lines, why).await;
                };
                self.admit_member(lines, &shared, by, max_active, &label)
                    .await
            }
            JoinPurpose::CarryRequests { member } => {
                let connections = (self.members.lock().get(&member))
                    .filter(|member| member.by == *by)
                    .map(|member| Arc::clone(&member.connections));
                let Some(connections) = connections else {
                    return send_refusal(&lines, "not a member any more".to_owned()).await;
                };
                lines.send(&JoinReply::Accepted(member).encode()).await?;
                let (stream, early) = lines.into_parts();
                if !early.is_empty() {
                    return Err(JoinError::Malformed.into());
                }
                let offered = connections.offer_connection(detach_guarded(stream));
                offered.map_err(|_| refused("more connections than requested"))
            }
        }
    }

    /// Makes a server of an authenticated peer.
    async fn admit_member(
        self: &Arc<Self>,
        lines: LineStream,
        shared: &Arc<SharedUpstream>,
        by: &JoinedBy,
        max_active: u32,
        label: &str,
    ) -> Result<(), JoinFailure> {
        let (member_id, connections) = (
            u64::from_be_bytes(random_bytes()?),
            Arc::new(JoinedConnections::new(max_active)),
        );
        // Before the member learns its number, which it needs to open connections.
        let is_in = {
            let mut members = self.members.lock();
            let member = Member {
                connections: Arc::clone(&connections),
                by: by.clone(),
            };
            members.len() < MAX_MEMBERS && members.insert(member_id, member).is_none()
        };
        if !is_in {
            return send_refusal(&lines, format!("too many members: {MAX_MEMBERS}")).await;
        }
        let mut session = MemberSession {
            lines,
            listener: Arc::clone(self),
            member_id,
            connections,
            by: by.clone(),
            upstream: Weak::new(),
            server_id: ServerId(0),
            name: String::new(),
            upstream_name: Arc::clone(&shared.name),
            has_left: false,
            is_drain_announced: false,
            is_move_announced: false,
        };
        let max_active = maintenance::member_max_active(&shared.config, max_active);
        let spec = ServerSpec {
            address: config::ServerAddr::Joined(member_id),
            weight: 1,
            max_active,
            backup: false,
            generation: 0,
        };
        let address = ResolvedAddress::Joined(Arc::clone(&session.connections));
        session.name = unique_name(shared, format!("{label} (joined)"));
        session.server_id = shared.add_server(address, session.name.as_str().into(), spec);
        session.upstream = Arc::downgrade(shared);
        maintenance::wake_maintenance(shared);
        log::info!(
            "{}: {} joined (capacity={max_active})",
            shared.name,
            session.name
        );
        // After it is a server: another that leaves for it may leave as soon as it knows. The
        // session ends, and the server with it, when this fails.
        session
            .lines
            .send(&JoinReply::Accepted(member_id).encode())
            .await?;
        loops::spawn_here(session.run());
        Ok(())
    }
}

/// Reads a joiner's first line. One that this front end cannot serve is told what it needs.
async fn read_greeting(
    lines: &mut LineStream,
    binding: ChannelBinding,
    requires_tls: bool,
) -> Result<Nonce, JoinFailure> {
    let is_plain = binding == ChannelBinding::Plain;
    let greeting = match is_plain && lines.begins_with_tls().await? {
        false => join::parse_greeting(&lines.next_line().await?),
        true => {
            lines.send_last(&join::encode_requirement(false)).await?;
            return Err(JoinFailure::Refused(TLS_AT_PLAIN.to_owned()));
        }
    };
    let failure = match greeting {
        Ok(_) if is_plain && requires_tls => JoinFailure::Refused(PLAIN_AT_TLS.to_owned()),
        Ok(nonce) => return Ok(nonce),
        Err(error @ JoinError::OtherVersion(_)) => error.into(),
        // A stranger is told nothing.
        Err(error) => return Err(error.into()),
    };
    lines
        .send_last(&join::encode_requirement(requires_tls))
        .await?;
    Err(failure)
}

const TLS_AT_PLAIN: &str = "it joins over TLS, and `join` in [server] says `tls = false`: remove \
    that, or start `penstock work` with --plain";

const PLAIN_AT_TLS: &str = "it joins without TLS, which `join` in [server] demands: start \
    `penstock work` without --plain, or set `tls = false` here";

/// A name that no other server of the upstream has.
fn unique_name(shared: &SharedUpstream, name: String) -> String {
    let pool = shared.server_pool.lock();
    let is_free = |name: &String| !pool.servers.iter().any(|it| *it.server.name == **name);
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

/// Sets a member's limit of active requests by its announcement and its connections.
pub(crate) fn update_member_max_active(
    shared: &SharedUpstream,
    id: ServerId,
    connections: &JoinedConnections,
) {
    let now = clock::now();
    shared.update_pool(|pool| {
        let Some(member) = pool.server(id) else {
            return;
        };
        let max_active = connections.max_active(member.open_connections());
        let max_active = maintenance::member_max_active(&shared.config, max_active);
        if max_active != member.spec.max_active {
            pool.change_spec(now, id, |spec| spec.max_active = max_active);
        }
    });
}

/// A membership and its control connection; it ends when dropped.
#[derive(Debug)]
struct MemberSession {
    lines: LineStream,
    listener: Arc<JoinListenerInner>,
    member_id: u64,
    connections: Arc<JoinedConnections>,
    by: JoinedBy,
    /// Where the member is a server.
    upstream: Weak<SharedUpstream>,
    server_id: ServerId,
    name: String,
    upstream_name: Arc<str>,
    has_left: bool,
    /// The end of its requests was announced.
    is_drain_announced: bool,
    is_move_announced: bool,
}

impl MemberSession {
    async fn run(mut self) {
        let end = self.run_until_end().await;
        let (upstream, name) = (&self.upstream_name, &self.name);
        match end {
            Err(_) if self.has_left => log::info!("{upstream}: {name} left"),
            Err(failure) => log::warn!("{upstream}: {name} disconnected: {failure}"),
            Ok(()) => log::info!("{upstream}: {name} left: its upstream was replaced"),
        }
    }

    /// Runs until the member leaves or its upstream is gone.
    async fn run_until_end(&mut self) -> Result<(), JoinFailure> {
        let mut changes = self.listener.changes.subscribe();
        let mut heard_at = clock::now();
        let mut beats_at = heard_at + HEARTBEAT_INTERVAL;
        while let Some(shared) = self.upstream.upgrade() {
            let gives_way = *changes.borrow_and_update();
            if gives_way {
                self.connections.mark_exhausted();
                update_member_max_active(&shared, self.server_id, &self.connections);
                self.connections.wake_waiters();
            }
            let may_dial = gives_way || self.can_dial_in();
            if !self.is_move_announced && (gives_way || !may_dial || !self.is_current()) {
                self.is_move_announced = true;
                self.lines
                    .send(&FrontEndMessage::Superseded.encode())
                    .await?;
            }
            if !may_dial {
                let cause = "its key or listen address was removed, or TLS was changed";
                return Err(JoinFailure::Refused(cause.to_owned()));
            }
            if self.has_left && !self.is_drain_announced && !self.is_serving(&shared, true) {
                self.is_drain_announced = true;
                self.lines.send(&FrontEndMessage::Drained.encode()).await?;
            }
            let wakes_at = match self.has_left && !self.is_drain_announced {
                true => beats_at.min(clock::now() + DRAIN_POLL_INTERVAL),
                false => beats_at,
            };
            // The wait does not keep the upstream alive.
            drop(shared);
            tokio::select! {
                line = self.lines.next_line() => {
                    let message = JoinerMessage::parse(&line?)?;
                    heard_at = clock::now();
                    self.handle_message(message);
                }
                count = self.connections.wait_for_connection_demand() => {
                    // A member of a server that steps down would connect to the next one.
                    if !gives_way {
                        self.lines.send(&FrontEndMessage::Dial(count).encode()).await?;
                    }
                }
                // The sender lives as long as the listener.
                _ = changes.changed() => {}
                () = clock::sleep_until(wakes_at) => {
                    let now = clock::now();
                    if now >= heard_at + SILENCE_TIMEOUT {
                        return Err(JoinFailure::Timeout);
                    }
                    let shared = self.upstream.upgrade();
                    if !self.has_left && shared.is_some_and(|it| !self.is_serving(&it, false)) {
                        return Err(JoinFailure::Refused("its server was removed".to_owned()));
                    }
                    if now >= beats_at {
                        beats_at = now + HEARTBEAT_INTERVAL;
                        self.lines.send(&FrontEndMessage::Heartbeat.encode()).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether it could still open connections: the key, the address and TLS are unchanged.
    fn can_dial_in(&self) -> bool {
        self.listener
            .table
            .load()
            .accepted_keys
            .iter()
            .any(|key| key.by == self.by)
    }

    /// Whether its upstream is the configured one.
    fn is_current(&self) -> bool {
        let table = self.listener.table.load();
        table
            .upstreams
            .values()
            .any(|shared| shared.ptr_eq(&self.upstream))
    }

    /// Whether it is a server of its upstream, or with `or_leaving`, leaves with active requests.
    fn is_serving(&self, shared: &SharedUpstream, or_leaving: bool) -> bool {
        let pool = shared.server_pool.lock();
        let mut members = (pool.servers.iter()).filter(|member| member.id == self.server_id);
        members.any(|member| or_leaving || !member.is_leaving)
    }

    fn handle_message(&mut self, message: JoinerMessage) {
        match message {
            JoinerMessage::Heartbeat => {}
            JoinerMessage::Capacity(max_active) => {
                self.connections.set_max_active(max_active);
                if let Some(shared) = self.upstream.upgrade() {
                    update_member_max_active(&shared, self.server_id, &self.connections);
                }
            }
            JoinerMessage::Leave => {
                self.has_left = true;
                log::info!("{}: {} leaving", self.upstream_name, self.name);
                self.remove_server();
                self.connections.close_idle();
            }
        }
    }

    /// Removes the server: no new requests.
    fn remove_server(&self) {
        if let Some(shared) = self.upstream.upgrade() {
            shared.update_pool(|pool| pool.remove(clock::now(), self.server_id));
        }
    }
}

impl Drop for MemberSession {
    fn drop(&mut self) {
        self.remove_server();
        self.listener.members.lock().remove(&self.member_id);
        self.connections.close();
    }
}
