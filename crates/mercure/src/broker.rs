//! The broker of a Mercure route: its audiences and history behind one lock, and the way to the
//! hub.
//!
//! `publish` gives it updates, `subscribe` joins an audience. Updates go to the channels of the
//! audiences that take them; many audiences are served in portions, so that the event loop does
//! other work in between. The handlers of a route before and after a reload have the same broker.
//!
//! # Invariants
//! - The hub is called under the broker's lock, and no callback of the hub waits for that lock, so
//!   there is one order of locks.
//! - `update_dispatcher` makes all decisions.

mod subscription_index;
mod update_dispatcher;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use penstock_exchange::{AddressPrefix, multipart};
use penstock_hub::{History, Hub, HubError, Publication, StreamAction};
use penstock_runtime::{LoopHandle, clock, loops};
use update_dispatcher::{DispatchProgress, UpdateDispatcher};

use crate::audiences::{Audience, AudienceKey};
use crate::history::UpdateHistory;
use crate::update::Update;

pub(super) use subscription_index::{
    JSON_LD_CONTEXT, SUBSCRIPTIONS_PATH, Subscriber, SubscriptionIndex,
};
pub(super) use update_dispatcher::{BrokerFullError, JoinedSubscriber, ResumeAfter};

/// Audiences that get an update in one turn.
const AUDIENCES_PER_TURN: usize = 256;

/// The delay before a hub that accepts nothing is tried again.
const BACKPRESSURE_DELAY: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Broker {
    hub: Hub,
    /// Its route, by which the next process knows it.
    route: Box<str>,
    /// The prefix of its channels' names, which no client can name.
    channel_prefix: Box<str>,
    /// Held while the hub is called, never across a wait.
    state: Mutex<BrokerState>,
    /// Audiences that lost a member while the broker may have been locked. Held for a push or a
    /// take, with nothing else locked behind it.
    departed: Mutex<Vec<u64>>,
}

/// Passes an update to another process; `false` once that takes no more.
pub(super) type ForwardUpdateFn = Arc<dyn Fn(&Update) -> Result<bool, HubError> + Send + Sync>;

#[derive(Default)]
struct BrokerState {
    /// Another process has the authority.
    forward: Option<ForwardUpdateFn>,
    /// Subscribers of another process are on their way here.
    is_importing: bool,
    update_dispatcher: UpdateDispatcher,
    subscriptions: SubscriptionIndex,
    /// A task is about to dispatch the rest.
    has_dispatch_task: bool,
}

/// The request of a subscriber to join an audience.
#[derive(Debug)]
pub(super) struct AudienceJoinRequest<'a> {
    /// Its client, for the bound on each client's templates; `None` is not counted.
    pub client: Option<AddressPrefix>,
    /// What it subscribes to and may see.
    pub key: AudienceKey,
    /// What it has of the history that it asks for; `None` asks for none.
    pub resume_after: Option<ResumeAfter<'a>>,
    /// Bytes of history that it is sent at a time.
    pub max_replay_bytes: usize,
    /// The subscriber as others see it; `None` is not announced.
    pub subscriber: Option<Arc<Subscriber>>,
    /// Whether it is announced.
    pub is_new: bool,
}

/// A place in an audience; given back when it is dropped.
#[derive(Debug)]
pub(super) struct AudienceMembership {
    broker: Arc<Broker>,
    audience: u64,
    subscriber: Option<Arc<Subscriber>>,
}

impl Broker {
    pub(super) fn new(hub: Hub, route: &str) -> Arc<Self> {
        // No route of the hub takes names with a control character from clients.
        let channels = format!("\u{1}mercure {:032x} ", multipart::random_boundary());
        Arc::new(Self {
            hub,
            route: route.into(),
            channel_prefix: channels.into(),
            state: Mutex::default(),
            departed: Mutex::default(),
        })
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Publishes an update; gives its id. It is on its way then, not received.
    pub(super) fn publish(self: &Arc<Self>, update: Update) -> Result<Arc<str>, BrokerFullError> {
        let id = Arc::clone(&update.id);
        let mut state = self.lock();
        if let Some(forward) = &state.forward
            && forward(&update).map_err(|_| BrokerFullError::TooManyUpdates)?
        {
            return Ok(id);
        }
        let bounds = self.history_bounds(&state);
        state
            .update_dispatcher
            .publish(Arc::new(update), clock::now(), &bounds)?;
        drop(state);
        self.dispatch();
        Ok(id)
    }

    /// Publishes an update that another process has accepted.
    pub(super) fn publish_accepted(self: &Arc<Self>, update: Update) {
        let mut state = self.lock();
        let bounds = self.history_bounds(&state);
        state
            .update_dispatcher
            .append(Arc::new(update), clock::now(), &bounds);
        drop(state);
        self.dispatch();
    }

    /// While subscribers move all updates that they may need are kept, within the bound of all
    /// backlogs.
    fn history_bounds(&self, state: &BrokerState) -> History {
        let settings = self.hub.settings();
        match state.is_importing {
            false => settings.history,
            true => History {
                max_messages: usize::MAX,
                max_age: Duration::MAX,
                max_size: settings.max_backlog_total,
                ..settings.history
            },
        }
    }

    /// Gives the authority away: updates go to `forward` from here on.
    pub(super) fn begin_transfer(&self, forward: ForwardUpdateFn) {
        self.lock().forward = Some(forward);
    }

    /// Takes the authority back.
    pub(super) fn cancel_transfer(&self) {
        self.lock().forward = None;
    }

    pub(super) fn with_history<T>(&self, look: impl FnOnce(&UpdateHistory) -> T) -> T {
        look(&self.lock().update_dispatcher.history)
    }

    /// Goes on with the history of another process, from `first_position` on.
    pub(super) fn begin_import(&self, first_position: u64, last_id: Option<Arc<str>>) {
        let mut state = self.lock();
        state.is_importing = true;
        let history = &mut state.update_dispatcher.history;
        history.continue_at(first_position, last_id);
    }

    /// Appends an update of that history, which its subscribers have.
    pub(super) fn import_update(&self, update: Update, published_at: Instant) {
        let mut state = self.lock();
        let bounds = self.history_bounds(&state);
        let history = &mut state.update_dispatcher.history;
        history.push(&Arc::new(update), published_at, &bounds);
    }

    /// No more subscribers are on their way here.
    pub(super) fn finish_import(&self) {
        self.lock().is_importing = false;
    }

    /// Adds a subscriber and passes its start to `hold`, which asks the hub for its stream. That is
    /// done under the broker's lock, so that nothing is published between the end of its history
    /// and the beginning of its stream; `hold` must not call the broker. Without a membership more
    /// history is left than may be sent at a time: the subscriber comes back for the rest, and for
    /// later updates.
    pub(super) fn join<T>(
        self: &Arc<Self>,
        arrival: AudienceJoinRequest<'_>,
        hold: impl FnOnce(JoinedSubscriber, Option<AudienceMembership>) -> T,
    ) -> Result<T, BrokerFullError> {
        let mut state = self.lock();
        if state.forward.is_some() {
            return Err(BrokerFullError::Moving);
        }
        let bounds = self.history_bounds(&state);
        state
            .update_dispatcher
            .history
            .drop_expired(clock::now(), &bounds);
        let channel = |number| format!("{}{number}", self.channel_prefix).into();
        let joined = state.update_dispatcher.join(
            (arrival.key, arrival.client),
            arrival.resume_after,
            arrival.max_replay_bytes,
            channel,
        )?;
        let subscriber = arrival.subscriber.filter(|_| joined.is_complete);
        if let Some(subscriber) = &subscriber {
            state.subscriptions.insert(subscriber);
        }
        let membership = AudienceMembership {
            broker: Arc::clone(self),
            audience: joined.audience,
            subscriber: subscriber.clone(),
        };
        let membership = joined.is_complete.then_some(membership);
        let held = hold(joined, membership);
        // A member that was dropped meanwhile could not leave by itself.
        self.remove_departed(&mut state);
        drop(state);
        if let Some(subscriber) = subscriber.filter(|_| arrival.is_new) {
            self.announce_subscription(&subscriber, true);
        }
        Ok(held)
    }

    pub(super) fn last_update_id(&self) -> Option<Arc<str>> {
        self.lock().update_dispatcher.history.last_id().cloned()
    }

    #[cfg(test)]
    pub(super) fn audience_count(&self) -> usize {
        self.lock().update_dispatcher.audiences.count()
    }

    pub(super) fn with_subscriptions<T>(&self, look: impl FnOnce(&SubscriptionIndex) -> T) -> T {
        look(&self.lock().subscriptions)
    }

    fn announce_subscription(self: &Arc<Self>, subscriber: &Subscriber, is_active: bool) {
        let message_bytes = self.hub.settings().max_message_size;
        for draft in subscriber.announcements(is_active) {
            let published = Update::new(draft, message_bytes)
                .map_err(|error| error.to_string())
                .and_then(|update| self.publish(update).map_err(|full| full.to_string()));
            if let Err(reason) = published {
                log::warn!("mercure: a change of subscriptions is not announced: {reason}");
            }
        }
    }

    /// Dispatches waiting updates: a portion now, the rest in a task.
    fn dispatch(self: &Arc<Self>) {
        {
            let mut state = self.lock();
            if state.has_dispatch_task
                || state.dispatch_portion(&self.hub) == DispatchProgress::Done
            {
                return;
            }
            state.has_dispatch_task = true;
        }
        let broker = Arc::clone(self);
        loops::spawn_here(async move {
            loop {
                let progress = {
                    let mut state = broker.lock();
                    let progress = state.dispatch_portion(&broker.hub);
                    state.has_dispatch_task = progress != DispatchProgress::Done;
                    progress
                };
                match progress {
                    DispatchProgress::Done => return,
                    DispatchProgress::More => loops::yield_now().await,
                    DispatchProgress::Blocked => clock::sleep(BACKPRESSURE_DELAY).await,
                }
            }
        });
    }

    /// The state, without subscribers that have left.
    fn lock(&self) -> MutexGuard<'_, BrokerState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.remove_departed(&mut state);
        state
    }

    fn remove_departed(&self, state: &mut BrokerState) {
        let mut left = self.departed.lock().unwrap_or_else(PoisonError::into_inner);
        for audience in std::mem::take(&mut *left) {
            state.update_dispatcher.audiences.leave(audience);
        }
    }

    /// Removes a member from its audience, now or with the next operation.
    fn leave(&self, audience: u64) {
        self.departed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(audience);
        match self.state.try_lock() {
            Ok(mut state) => self.remove_departed(&mut state),
            Err(TryLockError::Poisoned(state)) => self.remove_departed(&mut state.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

impl BrokerState {
    fn dispatch_portion(&mut self, hub: &Hub) -> DispatchProgress {
        self.update_dispatcher
            .dispatch(AUDIENCES_PER_TURN, |audience, update| {
                deliver_update(hub, audience, update)
            })
    }
}

/// Publishes an update to an audience's channel, on this server alone: no other has such a channel.
/// `false` if the hub takes nothing at the moment.
fn deliver_update(hub: &Hub, audience: &Audience, update: &Update) -> bool {
    let published = hub.publish_locally(Publication {
        channel: Arc::clone(&audience.channel),
        stream: Some(StreamAction::Send(update.encoded_event.clone().into())),
        ..Publication::default()
    });
    match published {
        // A channel without room has no subscribers.
        Ok(()) | Err(HubError::Draining | HubError::TooManyChannels(_)) => true,
        Err(HubError::MessageTooLarge(bytes)) => {
            let id = &update.id;
            log::error!("mercure: update {id} is lost: hub.max_message_size is {bytes} now");
            true
        }
        Err(_) => false,
    }
}

impl fmt::Debug for BrokerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerState")
            .field("update_dispatcher", &self.update_dispatcher)
            .finish_non_exhaustive()
    }
}

impl AudienceMembership {
    /// What its audience selects and may see, and the position before which it has all updates;
    /// `None` while some are on their way to it.
    pub(super) fn settled_position(&self) -> Option<(Arc<AudienceKey>, u64)> {
        // The caller must not wait for the lock.
        let state = match self.broker.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let dispatcher = &state.update_dispatcher;
        if state.forward.is_none() || !dispatcher.is_settled() {
            return None;
        }
        let audience = dispatcher.audiences.audience(self.audience)?;
        Some((
            Arc::clone(&audience.key),
            dispatcher.history.next_position(),
        ))
    }

    pub(super) fn route(&self) -> &str {
        &self.broker.route
    }

    pub(super) fn subscriber(&self) -> Option<&Arc<Subscriber>> {
        self.subscriber.as_ref()
    }

    /// Leaves without an announcement: the subscriber goes on elsewhere.
    pub(super) fn leave_silently(mut self) {
        self.subscriber = None;
    }
}

impl Drop for AudienceMembership {
    /// May be called by the hub with its own locks held: what needs the broker is left to a task.
    fn drop(&mut self) {
        self.broker.leave(self.audience);
        let Some(subscriber) = self.subscriber.take() else {
            return;
        };
        // Outside any event loop the server has stopped, and there are no subscribers left.
        let Some(here) = LoopHandle::current() else {
            return;
        };
        let broker = Arc::clone(&self.broker);
        here.spawn(async move {
            broker.lock().subscriptions.remove(&subscriber);
            broker.announce_subscription(&subscriber, false);
        });
    }
}
