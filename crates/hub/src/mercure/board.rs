//! The board of a Mercure route: its audiences and history behind one lock, and the way to the hub.
//!
//! `publish` puts updates on it, `subscribe` joins an audience. Updates are handed to the channels of the
//! audiences that take them; when these are many, in portions, so that the loop does other things in
//! between. Handlers of the same route before and after a reload have the same board.
//!
//! What must stay true: the hub is called under the board's lock, and what the hub calls never waits for
//! it, so that there is one order of locks; what is decided is `order`'s.

mod order;
mod roll;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use penstock_exchange::{AddressPrefix, multipart};
use penstock_runtime::{LoopHandle, clock, loops};

use super::audiences::{Audience, Wish};
use super::update::Update;
use crate::hold::Ended;
use crate::publication::{Content, Publication, StreamPart};
use crate::{Hub, Refused};
use order::{Order, Progress};

pub(super) use order::Full;
pub(super) use roll::{CONTEXT, Roll, SUBSCRIPTIONS, Subscriber};

/// Audiences that are handed an update at a time.
const PORTION: usize = 256;

/// How long a hub that takes nothing is left alone.
const BEHIND_FOR: Duration = Duration::from_millis(5);

/// The board of one route.
#[derive(Debug)]
pub(super) struct Board {
    hub: Hub,
    /// What its channels' names begin with: nobody else can name them.
    channels: Box<str>,
    /// Held while the hub is called, never across a wait.
    state: Mutex<State>,
    /// Audiences that lost a member while the board may have been locked. Held for a push or a take, with
    /// nothing else locked behind it.
    left: Mutex<Vec<u64>>,
}

#[derive(Debug, Default)]
struct State {
    order: Order,
    roll: Roll,
    /// A task is about to hand out the rest.
    has_task: bool,
}

/// What a subscriber comes with.
#[derive(Debug)]
pub(super) struct Arrival<'a> {
    /// Whose it is, for the bound on each client's templates; none is not counted.
    pub client: Option<AddressPrefix>,
    /// What it subscribes to and may see.
    pub wish: Wish,
    /// The last update that it knows.
    pub after: Option<&'a str>,
    /// Bytes of history that it is sent at a time.
    pub replay_bytes_max: usize,
    /// By which name others learn of it; none is not at all.
    pub subscriber: Option<Arc<Subscriber>>,
}

/// How a subscriber begins.
#[derive(Debug)]
pub(super) struct Start {
    /// The update before the first one of `replay`, if it asked for history.
    pub before: Option<Arc<str>>,
    /// The events that it missed.
    pub replay: Vec<u8>,
    /// The channel that its updates come on.
    pub channel: Arc<str>,
    /// Its place in its audience; `None` if more history is left than it may be sent at a time: it comes
    /// back for the rest, and for what is published from now on.
    pub member: Option<Member>,
}

/// A place in an audience; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Member {
    board: Arc<Board>,
    audience: u64,
    subscriber: Option<Arc<Subscriber>>,
}

impl Board {
    /// An empty board.
    pub(super) fn new(hub: Hub) -> Arc<Self> {
        // No route of the hub takes names with a control character from clients.
        let channels = format!("\u{1}mercure {:032x} ", multipart::random_boundary());
        Arc::new(Self {
            hub,
            channels: channels.into(),
            state: Mutex::default(),
            left: Mutex::default(),
        })
    }

    /// The hub that it publishes to.
    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Publishes an update; gives its id. It is on its way then, not received.
    ///
    /// # Errors
    /// When too many wait.
    pub(super) fn publish(self: &Arc<Self>, update: Update) -> Result<Arc<str>, Full> {
        let id = Arc::clone(&update.id);
        let bounds = self.hub.settings().history;
        let update = Arc::new(update);
        self.lock().order.publish(update, clock::now(), &bounds)?;
        self.hand_out();
        Ok(id)
    }

    /// Takes a subscriber in and hands its start to `hold`, which asks the hub for its stream. That is done
    /// under the board's lock, so that nothing is published between the end of its history and the beginning
    /// of its stream; `hold` must not call the board.
    ///
    /// # Errors
    /// When its templates are too many.
    pub(super) fn join<T>(
        self: &Arc<Self>,
        arrival: Arrival<'_>,
        hold: impl FnOnce(Start) -> T,
    ) -> Result<T, Full> {
        let bounds = self.hub.settings().history;
        let mut state = self.lock();
        state.order.prune(clock::now(), &bounds);
        let channel = |number| format!("{}{number}", self.channels).into();
        let joined = state.order.join(
            (arrival.wish, arrival.client),
            arrival.after,
            arrival.replay_bytes_max,
            channel,
        )?;
        let subscriber = arrival.subscriber.filter(|_| joined.is_whole);
        if let Some(subscriber) = &subscriber {
            state.roll.insert(subscriber);
        }
        let member = Member {
            board: Arc::clone(self),
            audience: joined.audience,
            subscriber: subscriber.clone(),
        };
        let held = hold(Start {
            before: joined.before,
            replay: joined.replay,
            channel: joined.channel,
            member: joined.is_whole.then_some(member),
        });
        // A member that was dropped meanwhile could not leave by itself.
        self.clear(&mut state);
        drop(state);
        if let Some(subscriber) = subscriber {
            self.announce(&subscriber, true);
        }
        Ok(held)
    }

    /// The id of the last update.
    pub(super) fn last_id(&self) -> Option<Arc<str>> {
        self.lock().order.last_id().cloned()
    }

    /// How many audiences there are.
    #[cfg(test)]
    pub(super) fn audiences(&self) -> usize {
        self.lock().order.audiences()
    }

    /// Looks at who subscribes.
    pub(super) fn with_roll<T>(&self, look: impl FnOnce(&Roll) -> T) -> T {
        look(&self.lock().roll)
    }

    /// Tells of a subscriber that came or has gone.
    fn announce(self: &Arc<Self>, subscriber: &Subscriber, is_active: bool) {
        let message_bytes = self.hub.settings().message_bytes;
        for draft in subscriber.announcements(is_active) {
            let told = Update::new(draft, message_bytes)
                .map_err(|error| error.to_string())
                .and_then(|update| self.publish(update).map_err(|full| full.to_string()));
            if let Err(reason) = told {
                log::warn!("mercure: a change of subscriptions is not announced: {reason}");
            }
        }
    }

    /// Hands out what waits: a portion now, the rest in a task.
    fn hand_out(self: &Arc<Self>) {
        {
            let mut state = self.lock();
            if state.has_task || state.hand_out(&self.hub) == Progress::Done {
                return;
            }
            state.has_task = true;
        }
        let board = Arc::clone(self);
        loops::spawn_here(async move {
            loop {
                let progress = {
                    let mut state = board.lock();
                    let progress = state.hand_out(&board.hub);
                    state.has_task = progress != Progress::Done;
                    progress
                };
                match progress {
                    Progress::Done => return,
                    Progress::More => loops::yield_now().await,
                    Progress::Behind => clock::sleep(BEHIND_FOR).await,
                }
            }
        });
    }

    /// The state, with those gone who left.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.clear(&mut state);
        state
    }

    fn clear(&self, state: &mut State) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        for audience in std::mem::take(&mut *left) {
            state.order.leave(audience);
        }
    }

    /// Takes a member out of its audience, now or with whatever is done next.
    fn leave(&self, audience: u64) {
        self.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(audience);
        match self.state.try_lock() {
            Ok(mut state) => self.clear(&mut state),
            Err(TryLockError::Poisoned(state)) => self.clear(&mut state.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

impl State {
    fn hand_out(&mut self, hub: &Hub) -> Progress {
        self.order
            .hand_out(PORTION, |audience, update| hand(hub, audience, update))
    }
}

/// Publishes an update to an audience's channel, on this node alone: no other has such a channel. `false` if
/// the hub takes nothing at the moment.
fn hand(hub: &Hub, audience: &Audience, update: &Update) -> bool {
    let published = hub.publish_from_bus(Publication {
        channel: Arc::clone(&audience.channel),
        stream: Some(StreamPart::Send(Content {
            bytes: update.event.clone(),
            filters: Vec::new(),
        })),
        ..Publication::default()
    });
    match published {
        // Without a place for the channel there is nobody on it.
        Ok(()) | Err(Refused::Draining | Refused::Channels(_)) => true,
        Err(Refused::Message(bytes)) => {
            let id = &update.id;
            log::error!("mercure: update {id} is lost: hub.message_bytes is {bytes} now");
            true
        }
        Err(_) => false,
    }
}

impl Member {
    /// What gives the place back when its stream has ended.
    pub(super) fn until_ended(self) -> Ended {
        Ended(Box::new(move || drop(self)))
    }
}

impl Drop for Member {
    /// May be called by the hub with its own locks held: what needs the board is left to a task.
    fn drop(&mut self) {
        self.board.leave(self.audience);
        let Some(subscriber) = self.subscriber.take() else {
            return;
        };
        // Outside of any loop the server has stopped, and nobody is left to be told.
        let Some(here) = LoopHandle::current() else {
            return;
        };
        let board = Arc::clone(&self.board);
        here.spawn(async move {
            board.lock().roll.remove(&subscriber);
            board.announce(&subscriber, false);
        });
    }
}
