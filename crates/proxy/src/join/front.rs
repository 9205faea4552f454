//! The side that listens: members come, are servers of their upstreams, and go.
//!
//! `penstock` has one [`Front`] for its whole life, as the handler of the listener of `server.join`. A connection is met
//! on the loop that accepted it and counts as one of the edge's until then; afterwards it is the upstream's, as if it had
//! been made there. What must stay true: see `join`.

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
    self, FrontEndMessage, HandshakeNonces, JoinPurpose, JoinReply, JoinSecret, JoinerMessage,
};
use tokio::sync::watch;

use super::dialled::Dialled;
use super::lines::Lines;
use super::{BEAT, JoinFailure, MEETING, SILENCE, draw, draw_number};
use crate::connection::Address;
use crate::maintain;
use crate::roster::{MemberKey, MemberSpec};
use crate::upstream::{Shared, Upstream};

/// How often to look whether one that leaves still has requests.
const LOOK: Duration = Duration::from_millis(20);

/// Members at once, of all upstreams.
const MEMBERS_MAX: usize = 1000;

/// Where programs dial in; see the head of this file. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Front(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    table: ArcSwap<Table>,
    /// Held for a look.
    members: Mutex<HashMap<u64, Member>>,
    /// Sent when the table has changed, and when it is over (`true`).
    news: watch::Sender<bool>,
    repeats: LogThrottle,
}

/// Who may bring connections.
#[derive(Debug)]
struct Member {
    dialled: Arc<Dialled>,
    by: JoinedBy,
}

/// What a reload replaces.
#[derive(Debug, Default)]
struct Table {
    /// The keys that open something.
    doors: Vec<Door>,
    /// Those that may be joined.
    upstreams: BTreeMap<String, Weak<Shared>>,
}

/// A key, and what it opens.
#[derive(Debug)]
struct Door {
    by: JoinedBy,
    secret: JoinSecret,
}

/// Where a program dialled, and with which key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct JoinedBy {
    join: config::Join,
    /// The only upstream that the key opens; none are all that have no key of their own.
    only: Option<String>,
}

impl Table {
    fn new<'u>(
        join: Option<&config::Join>,
        upstreams: impl Iterator<Item = &'u Arc<Upstream>>,
    ) -> Self {
        let mut table = Self::default();
        let Some(join) = join else {
            return table;
        };
        table.doors.push(Door::new(join.clone(), None));
        for upstream in upstreams.filter(|upstream| upstream.config().joined) {
            let name = upstream.name().to_owned();
            if let Some(key) = &upstream.config().join_key {
                let own = config::Join {
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

    /// The door whose key this proves.
    fn door(&self, meeting: &HandshakeNonces, proof: &str) -> Result<&Door, JoinFailure> {
        let mut failure = JoinFailure::from(join::JoinError::WrongKey);
        for door in &self.doors {
            match join::verify_joiner(&door.secret, meeting, proof) {
                Ok(()) => return Ok(door),
                Err(error) => failure = error.into(),
            }
        }
        Err(failure)
    }

    /// The upstream of this name, if who came `by` a key may join it.
    fn open(&self, by: &JoinedBy, name: &str) -> Option<Arc<Shared>> {
        let shared = self.upstreams.get(name)?.upgrade()?;
        let is_open = match &by.only {
            Some(only) => only == name,
            None => shared.config.join_key.is_none(),
        };
        is_open.then_some(shared)
    }
}

impl Door {
    fn new(join: config::Join, only: Option<String>) -> Self {
        let secret = JoinSecret::new(join.key.expose());
        let by = JoinedBy { join, only };
        Self { by, secret }
    }
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            table: ArcSwap::default(),
            members: Mutex::default(),
            news: watch::channel(false).0,
            repeats: LogThrottle::default(),
        }
    }
}

impl Front {
    /// From now on whoever knows the key may join those of `upstreams` that are `joined`. Members of others are told to
    /// come back; those that came by another key or to another address could bring no connection any more, and get no new
    /// request.
    pub fn configure<'u>(
        &self,
        join: Option<&config::Join>,
        upstreams: impl Iterator<Item = &'u Arc<Upstream>>,
    ) {
        self.0.table.store(Arc::new(Table::new(join, upstreams)));
        self.0.news.send_modify(|_| {});
    }

    /// This server gives way: nobody may join any more, and members are told to come back, to whoever listens then. They
    /// stay members of this one until it ends.
    pub fn give_way(&self) {
        self.0.news.send_replace(true);
    }
}

impl TunnelHandler for Front {
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        _listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture {
        let front = Arc::clone(&self.0);
        Box::pin(async move {
            let met = clock::timeout(MEETING, front.meet(client, early)).await;
            if let Err(failure) = met.unwrap_or(Err(JoinFailure::Silent)) {
                let cause = failure.to_string();
                if let Some(count) = front.repeats.admit_line(&cause, clock::now()) {
                    let (peer, more) = (peer_name(peer), suppressed_suffix(count));
                    log::warn!("join: {peer} is not let in: {cause}{more}");
                }
            }
        })
    }
}

/// Who dials in, for the log.
fn peer_name(peer: PeerAddress) -> String {
    match peer {
        PeerAddress::Tcp(address) => address.to_string(),
        PeerAddress::Unix => "a Unix socket".to_owned(),
    }
}

impl Inner {
    /// Meets whoever dials in, and lets it be what it wants to be.
    async fn meet(
        self: &Arc<Self>,
        client: Arc<Stream>,
        early: Vec<u8>,
    ) -> Result<(), JoinFailure> {
        let shared = |_| JoinFailure::Refused("its connection is another's".to_owned());
        let stream = Arc::try_unwrap(client).map_err(shared)?;
        let mut lines = Lines::new(stream, early);
        let table = self.table.load_full();
        let nobody = || JoinFailure::Refused("nobody may join any more".to_owned());
        if table.doors.is_empty() || *self.news.borrow() {
            return Err(nobody());
        }
        let meeting = HandshakeNonces {
            joiner: join::parse_greeting(&lines.next().await?)?,
            front_end: draw()?,
        };
        lines
            .say(&join::encode_challenge(&meeting.front_end))
            .await?;
        // A stranger is told nothing else, and nothing is done for him.
        let proof = lines.next().await?;
        let Door { by, secret } = table.door(&meeting, &proof)?;
        lines.say(&join::prove_front_end(secret, &meeting)).await?;
        let line = lines.next().await?;
        match join::parse_join_request(secret, &meeting, &line)? {
            JoinPurpose::Control {
                capacity,
                upstream,
                label,
            } => {
                let Some(shared) = table.open(by, &upstream) else {
                    let why = format!("no upstream `{upstream}` is `joined` here by this key");
                    return refuse(&lines, why).await;
                };
                let who = Newcomer {
                    capacity,
                    label,
                    by: by.clone(),
                };
                self.admit(lines, &shared, who).await
            }
            JoinPurpose::CarryRequests { member } => {
                let found = {
                    let members = self.members();
                    let found = members.get(&member).filter(|member| member.by == *by);
                    found.map(|member| Arc::clone(&member.dialled))
                };
                let Some(dialled) = found else {
                    return refuse(&lines, "it is no member any more".to_owned()).await;
                };
                lines.say(&JoinReply::Accepted(member).encode()).await?;
                let (stream, early) = lines.into_parts();
                if !early.is_empty() {
                    return Err(join::JoinError::Malformed.into());
                }
                let socket = stream.into_socket();
                // Of Unix sockets neither is known, and no machine stands between.
                let _ = net::enable_keepalive_after(&socket, SILENCE);
                let _ = net::set_user_timeout(&socket, SILENCE);
                let too_many = |_| JoinFailure::Refused("it has more than it was asked for".into());
                dialled.put(socket).map_err(too_many)
            }
        }
    }

    /// Makes a server of who is met.
    async fn admit(
        self: &Arc<Self>,
        lines: Lines,
        shared: &Arc<Shared>,
        who: Newcomer,
    ) -> Result<(), JoinFailure> {
        let Newcomer {
            capacity,
            label,
            by,
        } = who;
        let (number, dialled) = (draw_number()?, Arc::new(Dialled::new(capacity)));
        // Before it knows its number, by which it dials.
        let is_in = {
            let mut members = self.members();
            let has_room = members.len() < MEMBERS_MAX;
            let member = Member {
                dialled: Arc::clone(&dialled),
                by: by.clone(),
            };
            has_room && members.insert(number, member).is_none()
        };
        if !is_in {
            return refuse(&lines, format!("{MEMBERS_MAX} members are here")).await;
        }
        let mut membership = Membership {
            front: Arc::clone(self),
            number,
            dialled,
            by,
            of: None,
        };
        lines.say(&JoinReply::Accepted(number).encode()).await?;
        let name = format!("{label} (joined)");
        let name = unique(shared, name);
        let spec = MemberSpec {
            address: config::ServerAddr::Joined(number),
            weight: 1,
            capacity: maintain::capacity_of_member(&shared.config, capacity),
            backup: false,
            generation: 0,
        };
        let capacity = spec.capacity;
        let address = Address::Joined(Arc::clone(&membership.dialled));
        let key = shared.add(address, name.as_str().into(), spec);
        membership.of = Some((Arc::downgrade(shared), key));
        maintain::tell_news(shared);
        let upstream = &shared.name;
        log::info!("{upstream}: {name} serves, {capacity} at once");
        let session = Session {
            lines,
            membership,
            name,
            upstream: Arc::clone(upstream),
            has_left: false,
            is_done: false,
            has_moved: false,
        };
        loops::spawn_here(session.run());
        Ok(())
    }

    fn members(&self) -> MutexGuard<'_, HashMap<u64, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who wants to be a server.
#[derive(Debug)]
struct Newcomer {
    capacity: u32,
    label: String,
    by: JoinedBy,
}

/// A name that no other server of the upstream has.
fn unique(shared: &Shared, name: String) -> String {
    let roster = shared.roster();
    let is_free = |name: &String| !(roster.members().iter()).any(|it| *it.server.name == **name);
    let numbered = (2..).map(|number| format!("{name} {number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(is_free).unwrap_or_default()
}

async fn refuse(lines: &Lines, why: String) -> Result<(), JoinFailure> {
    lines.say(&JoinReply::Refused(why.clone()).encode()).await?;
    Err(JoinFailure::Refused(why))
}

/// A place among the members; its drop is the end of it.
#[derive(Debug)]
struct Membership {
    front: Arc<Inner>,
    number: u64,
    dialled: Arc<Dialled>,
    by: JoinedBy,
    /// The server that it is.
    of: Option<(Weak<Shared>, MemberKey)>,
}

impl Membership {
    /// No new requests.
    fn retire(&self) {
        if let Some((shared, key)) = self.server() {
            let now = clock::now();
            shared.change(|roster, aftermath| roster.remove(now, key, aftermath));
        }
    }

    fn server(&self) -> Option<(Arc<Shared>, MemberKey)> {
        let (shared, key) = self.of.as_ref()?;
        Some((shared.upgrade()?, *key))
    }

    /// Whether it could still bring connections: the same key, the same address.
    fn may_dial(&self) -> bool {
        let table = self.front.table.load();
        table.doors.iter().any(|door| door.by == self.by)
    }

    /// Whether it is a server of its upstream.
    fn is_there(&self) -> bool {
        self.server()
            .is_some_and(|(shared, key)| shared.roster().member(key).is_some())
    }

    /// Whether it is one, or leaves it with requests that it has.
    fn has_requests(&self) -> bool {
        self.server().is_some_and(|(shared, key)| {
            let roster = shared.roster();
            roster.members().iter().any(|member| member.key == key)
        })
    }

    /// It may have as many requests as it says, or as it has connections for.
    fn fit(&self) {
        if let Some((shared, key)) = self.server() {
            fit(&shared, key, &self.dialled);
        }
    }

    /// Whether its upstream is the one that the configuration has.
    fn is_current(&self) -> bool {
        let table = self.front.table.load();
        let is_it = |shared: &Weak<Shared>| {
            let of = self.of.as_ref();
            of.is_some_and(|(of, _)| of.ptr_eq(shared))
        };
        table.upstreams.values().any(is_it)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.retire();
        self.front.members().remove(&self.number);
        self.dialled.close();
    }
}

/// Gives a member the capacity that it has by its own word and by its connections.
pub(crate) fn fit(shared: &Shared, key: MemberKey, dialled: &Dialled) {
    let now = clock::now();
    shared.change(|roster, aftermath| {
        let Some(member) = roster.member(key) else {
            return;
        };
        let capacity = dialled.capacity(member.open());
        let capacity = maintain::capacity_of_member(&shared.config, capacity);
        if capacity != member.spec.capacity {
            roster.respec(now, key, aftermath, |spec| spec.capacity = capacity);
        }
    });
}

/// A member's control connection.
#[derive(Debug)]
struct Session {
    lines: Lines,
    membership: Membership,
    /// What the server is called.
    name: String,
    upstream: Arc<str>,
    has_left: bool,
    /// It was told that it has nothing any more.
    is_done: bool,
    has_moved: bool,
}

/// What happens to a session.
enum Event {
    Line(Result<String, JoinFailure>),
    Asked(u32),
    News,
    Time,
}

impl Session {
    async fn run(mut self) {
        let end = self.listen().await;
        let (upstream, name) = (&self.upstream, &self.name);
        match end {
            Err(_) if self.has_left => log::info!("{upstream}: {name} has left"),
            Err(failure) => log::warn!("{upstream}: {name} is gone: {failure}"),
            Ok(()) => log::info!("{upstream}: {name} served the upstream that was replaced"),
        }
    }

    /// Until the member goes, or its upstream has gone.
    async fn listen(&mut self) -> Result<(), JoinFailure> {
        let mut news = self.membership.front.news.subscribe();
        let mut heard = clock::now();
        let mut beats_at = heard + BEAT;
        loop {
            if self.membership.server().is_none() {
                return Ok(());
            }
            let gives_way = *news.borrow_and_update();
            if gives_way {
                self.membership.dialled.set_last();
                self.membership.fit();
                self.membership.dialled.wake();
            }
            let may_dial = gives_way || self.membership.may_dial();
            if !self.has_moved && (gives_way || !may_dial || !self.membership.is_current()) {
                self.has_moved = true;
                self.lines
                    .say(&FrontEndMessage::Superseded.encode())
                    .await?;
            }
            if !may_dial {
                let why = "it came by a key or an address that is no more";
                return Err(JoinFailure::Refused(why.to_owned()));
            }
            if self.has_left && !self.is_done && !self.membership.has_requests() {
                self.is_done = true;
                self.lines.say(&FrontEndMessage::Drained.encode()).await?;
            }
            let looks_at = match self.has_left && !self.is_done {
                true => clock::now() + LOOK,
                false => beats_at,
            };
            match self.next(&mut news, looks_at.min(beats_at)).await {
                Event::Line(line) => {
                    let said = JoinerMessage::parse(&line?)?;
                    heard = clock::now();
                    self.obey(said);
                }
                // It would dial whoever listens now.
                Event::Asked(_) if gives_way => {}
                Event::Asked(count) => {
                    self.lines
                        .say(&FrontEndMessage::Dial(count).encode())
                        .await?
                }
                Event::News => {}
                Event::Time if clock::now() >= heard + SILENCE => return Err(JoinFailure::Silent),
                Event::Time if !self.has_left && !self.membership.is_there() => {
                    return Err(JoinFailure::Refused("it was taken out here".to_owned()));
                }
                Event::Time if clock::now() >= beats_at => {
                    beats_at = clock::now() + BEAT;
                    self.lines.say(&FrontEndMessage::Heartbeat.encode()).await?;
                }
                Event::Time => {}
            }
        }
    }

    async fn next(&mut self, news: &mut watch::Receiver<bool>, until: Instant) -> Event {
        tokio::select! {
            line = self.lines.next() => Event::Line(line),
            count = self.membership.dialled.asked() => Event::Asked(count),
            // Its sender is as old as the front.
            _ = news.changed() => Event::News,
            () = clock::sleep_until(until) => Event::Time,
        }
    }

    fn obey(&mut self, said: JoinerMessage) {
        match said {
            JoinerMessage::Heartbeat => {}
            JoinerMessage::Capacity(capacity) => {
                self.membership.dialled.set_capacity(capacity);
                self.membership.fit();
            }
            JoinerMessage::Leave => {
                self.has_left = true;
                log::info!("{}: {} leaves", self.upstream, self.name);
                self.membership.retire();
                self.membership.dialled.close_waiting();
            }
        }
    }
}
