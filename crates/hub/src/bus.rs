//! Several servers as one hub, joined by a Redis or Valkey (`server.redis`).
//!
//! What is published on one server goes to Redis, which gives it its place in its channel's stream and
//! publishes it to all servers that follow the channel, this one included: so all deliver in one order. While
//! Redis does not answer, each server delivers what is published on it at once, and keeps it for the
//! others. What was missed is read from the streams; what they do not have any more is announced, as an event
//! `gap` to streams of events.
//!
//! [`RedisBus`] is the face; `driver` the task behind it, which alone speaks to Redis (`link`, `script`) and
//! owns `machine`, where everything is decided: `outbox` (what is published here), `follows` and `follow` (what
//! comes). What must stay true: nobody waits for Redis but this task, and none of its waits is without an
//! end; what is kept for a Redis that is away is bounded.

mod answers;
mod backoff;
mod driver;
mod encoding;
mod entry;
mod follow;
mod follows;
pub(crate) mod fuzzing;
mod inbox;
mod link;
mod machine;
mod outbox;
mod pushes;
mod script;
mod seen;
#[cfg(test)]
mod simulation;
mod totals;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use penstock_runtime::{clock, loops};
use tokio::sync::oneshot;

pub use self::inbox::Status as BusStatus;
pub use self::totals::Totals;

use self::driver::{Driver, Local};
use self::entry::{Channel, NodeId};
use self::follow::PREPARED_WITHIN;
use self::inbox::{Inbox, Order};
use self::link::{Keeping, Target};
use crate::hub::{Bus, Prepared};
use crate::{Hub, Publication, Refused};

/// What Redis keeps of a channel at least, so that a short absence is repaired: entries, and for how long.
const ENTRIES_MIN: usize = 100;
const AGE_MIN: Duration = Duration::from_secs(60);

/// A hub's connection to a Redis.
pub struct RedisBus {
    inbox: Arc<Inbox>,
    address: Arc<str>,
}

/// `server.redis` is not understood. It does not show the setting: there may be a password in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("server.redis: {0}")]
pub struct BadRedis(String);

/// Numbers of a server that are added up over all servers, by name.
pub type Numbers = Box<dyn Fn() -> Vec<(String, u64)> + Send + Sync>;

impl RedisBus {
    /// Joins `hub` to the others at `url`, on the current loop, within a tokio runtime for its sockets; `numbers` are counted beside the hub's own.
    /// Redis need not be there yet.
    ///
    /// # Errors
    /// When `url` is not understood.
    pub fn start(hub: &Hub, url: &str, numbers: Numbers) -> Result<Arc<Self>, BadRedis> {
        let target = Target::parse(url).map_err(BadRedis)?;
        let inbox = Arc::new(Inbox::new());
        let bus = Arc::new(Self {
            inbox: inbox.clone(),
            address: target.address.clone(),
        });
        let local = HubAndNumbers {
            hub: hub.clone(),
            numbers,
        };
        let me = NodeId(RandomState::new().hash_one("node"));
        hub.set_bus(Some(bus.clone()));
        loops::spawn_here(Driver::new(local, me, target, inbox).run());
        Ok(bus)
    }

    /// Where Redis is, without its password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How this server stands with Redis.
    #[must_use]
    pub fn status(&self) -> BusStatus {
        self.inbox.status()
    }

    /// The numbers of all servers together, at most some seconds old.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.inbox.totals()
    }

    /// Ends it: from now on nothing more can be published to the channels of all servers
    /// ([`Refused::Draining`]), and what waits for Redis is sent if that takes no longer than two seconds.
    pub async fn stop(&self) {
        let (told, tells) = oneshot::channel();
        self.inbox.stop(told);
        // It ends by being dropped.
        let _ = clock::timeout(STOPPED_WITHIN, tells).await;
    }
}

/// Whether a channel is one of all nodes: those whose names begin with a control character are made by this
/// server for itself.
fn is_shared(channel: &str) -> bool {
    channel
        .chars()
        .next()
        .is_some_and(|first| !first.is_control())
}

/// Longer than the task takes at most.
const STOPPED_WITHIN: Duration = Duration::from_secs(5);

impl Bus for RedisBus {
    fn publish(&self, publication: &Publication) -> Result<bool, Refused> {
        if !is_shared(&publication.channel) {
            return Ok(false);
        }
        self.inbox.publish(publication).map(|()| true)
    }

    fn subscribed(&self, channel: &Channel) {
        if is_shared(channel) {
            self.inbox.put(Order::Subscribed(channel.clone()));
        }
    }

    fn unsubscribed(&self, channel: &Channel) {
        if is_shared(channel) {
            self.inbox.put(Order::Unsubscribed(channel.clone()));
        }
    }

    fn prepare(&self, channels: &[Channel]) -> Option<Prepared> {
        let now = clock::now();
        let shared = channels.iter().filter(|channel| is_shared(channel));
        let tells = self.inbox.prepare(shared, now)?;
        Some(Box::pin(async move {
            // Late is as good as never: what was missed is announced.
            let _ = clock::timeout_at(now + PREPARED_WITHIN, tells).await;
        }))
    }
}

impl fmt::Debug for RedisBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBus")
            .field("address", &self.address)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// This node's hub.
struct HubAndNumbers {
    hub: Hub,
    numbers: Numbers,
}

impl Local for HubAndNumbers {
    fn deliver(&self, publication: Publication) -> bool {
        self.hub.publish_from_bus(publication).is_ok()
    }

    fn restore(&self, channel: &Channel, history: Vec<(Publication, Duration)>) {
        self.hub.restore_aged(channel, history);
    }

    fn is_in_use(&self, channel: &str) -> bool {
        self.hub.is_in_use(channel)
    }

    fn keeping(&self) -> Keeping {
        let settings = self.hub.settings();
        let history = settings.history;
        Keeping {
            channels: settings.channels_max,
            entries: history.count.max(ENTRIES_MIN),
            age: history.age.max(AGE_MIN),
        }
    }

    fn numbers(&self) -> Vec<(String, u64)> {
        let counts = self.hub.counts();
        let own = [
            ("streams", counts.streams),
            ("polls", counts.polls),
            ("opened", counts.opened),
            ("closed", counts.closed),
            ("published", counts.published),
            ("delivered", counts.delivered),
            ("dropped", counts.dropped),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value));
        own.into_iter().chain((self.numbers)()).collect()
    }
}

#[cfg(test)]
mod tests;
