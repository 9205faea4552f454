//! The hub's side of the link to Redis: publications and subscriptions go to its task.
//!
//! # Invariants
//! - No caller waits for Redis.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use penstock_hub::{
    Bus, CatchUpFuture, Hub, HubError, PrepareChannelsFuture, Publication, SharedChannelState,
    SharedHistory,
};
use penstock_runtime::{clock, loops};
use tokio::sync::oneshot;

use crate::bus_driver::{BusDriver, LocalHub};
use crate::bus_inbox::{BusCommand, BusInbox};
use crate::entry::{ChannelName, NodeId};
use crate::followed_channel::PREPARE_TIMEOUT;
use crate::redis_link::{RedisTarget, StreamRetention};
use crate::snapshot::ClusterSnapshot;

/// What Redis keeps of a channel at least, so that a short absence is repaired: entries, and for
/// how long.
const MIN_STREAM_ENTRIES: usize = 100;
const MIN_STREAM_AGE: Duration = Duration::from_secs(60);

/// A hub's connection to a Redis.
pub struct RedisBus {
    inbox: Arc<BusInbox>,
    address: Arc<str>,
}

/// `server.redis` is not understood. It does not show the setting: there may be a password in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("server.redis: {0}")]
pub struct RedisUrlError(String);

impl RedisUrlError {
    pub(crate) fn new(problem: String) -> Self {
        Self(problem)
    }
}

/// Numbers of a server that are added up over all servers, by name.
pub type CounterSource = Box<dyn Fn() -> Vec<(String, u64)> + Send + Sync>;

impl RedisBus {
    /// Joins `hub` to the others at `url`, on the current loop, within a tokio runtime for its
    /// sockets; `numbers` are counted beside the hub's own. Redis need not be there yet. With TLS
    /// (`rediss://`) its certificate must be of one of `authorities` (PEM), or of one that the system
    /// trusts.
    ///
    /// # Errors
    /// When `url` or `authorities` are not understood.
    pub fn start(
        hub: &Hub,
        url: &str,
        authorities: Option<Vec<u8>>,
        numbers: CounterSource,
    ) -> Result<Arc<Self>, RedisUrlError> {
        let target = RedisTarget::parse(url, authorities).map_err(RedisUrlError)?;
        let inbox = Arc::new(BusInbox::new());
        let bus = Arc::new(Self {
            inbox: inbox.clone(),
            address: target.address.clone(),
        });
        let local = HubWithCounters {
            hub: hub.clone(),
            extra_counters: numbers,
        };
        let me = NodeId(RandomState::new().hash_one("node"));
        hub.set_bus(Some(bus.clone()));
        loops::spawn_here(BusDriver::new(local, me, target, inbox).run());
        Ok(bus)
    }

    /// Where Redis is, without its password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The cluster now.
    #[must_use]
    pub fn snapshot(&self) -> ClusterSnapshot {
        ClusterSnapshot {
            address: self.address.to_string(),
            ..self.inbox.snapshot()
        }
    }

    /// Waits until Redis delivers publications of this server to all, at most for `timeout`; whether
    /// it does. One that is delivered here alone before that is a gap for clients that resume.
    pub async fn wait_until_joined(&self, timeout: Duration) -> bool {
        let deadline = clock::now() + timeout;
        let mut looks = clock::PollInterval::new(JOIN_POLL_INTERVAL);
        loop {
            let snapshot = self.inbox.snapshot();
            if snapshot.connected && !snapshot.standalone {
                return true;
            }
            if clock::now() >= deadline {
                return false;
            }
            looks.tick().await;
        }
    }

    /// Ends it: from now on nothing more can be published to the channels of all servers
    /// ([`HubError::Draining`]), and what waits for Redis is sent if that takes no longer than two
    /// seconds.
    pub async fn stop(&self) {
        let (told, tells) = oneshot::channel();
        self.inbox.request_stop(told);
        // It ends by being dropped.
        let _ = clock::timeout(STOP_TIMEOUT, tells).await;
    }
}

/// Whether a channel is shared by all servers: names that begin with a control character are made
/// by this server for itself.
fn is_cluster_channel(channel: &str) -> bool {
    channel
        .chars()
        .next()
        .is_some_and(|first| !first.is_control())
}

/// How long subscribers of another server wait to be taken; after that it asks again.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a server that waits for its connection looks for it.
const JOIN_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Longer than the task takes at most.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl Bus for RedisBus {
    fn publish(&self, publication: &Publication) -> Result<bool, HubError> {
        if !is_cluster_channel(&publication.channel) {
            return Ok(false);
        }
        self.inbox.publish(publication).map(|()| true)
    }

    fn on_subscribed(&self, channel: &ChannelName) {
        if is_cluster_channel(channel) {
            self.inbox.push(BusCommand::Subscribed(channel.clone()));
        }
    }

    fn on_unsubscribed(&self, channel: &ChannelName) {
        if is_cluster_channel(channel) {
            self.inbox.push(BusCommand::Unsubscribed(channel.clone()));
        }
    }

    fn prepare_channels(&self, channels: &[ChannelName]) -> Option<PrepareChannelsFuture> {
        let now = clock::now();
        let shared = channels
            .iter()
            .filter(|channel| is_cluster_channel(channel));
        let tells = self.inbox.prepare_channels(shared, now)?;
        Some(Box::pin(async move {
            // Late is as good as never: what was missed is announced.
            let _ = clock::timeout_at(now + PREPARE_TIMEOUT, tells).await;
        }))
    }

    fn shared_state(&self, channel: &ChannelName) -> SharedChannelState {
        self.inbox.shared_state(channel)
    }

    fn catch_up(&self, mut channels: Vec<ChannelName>) -> CatchUpFuture {
        channels.retain(|channel| is_cluster_channel(channel));
        let (told, tells) = oneshot::channel();
        self.inbox.push(BusCommand::CatchUp(channels, told));
        Box::pin(async move {
            let told = clock::timeout(CATCH_UP_TIMEOUT, tells).await;
            matches!(told, Some(Ok(())))
        })
    }
}

impl fmt::Debug for RedisBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisBus").field(&self.snapshot()).finish()
    }
}

struct HubWithCounters {
    hub: Hub,
    extra_counters: CounterSource,
}

impl LocalHub for HubWithCounters {
    fn deliver_locally(&self, publication: Publication) -> bool {
        self.hub.publish_locally(publication).is_ok()
    }

    fn replace_history(&self, channel: &ChannelName, history: SharedHistory) {
        self.hub.replace_history(channel, history);
    }

    fn is_channel_in_use(&self, channel: &str) -> bool {
        self.hub.is_channel_in_use(channel)
    }

    fn stream_retention(&self) -> StreamRetention {
        let settings = self.hub.settings();
        let history = settings.history;
        StreamRetention {
            max_channels: settings.max_channels,
            max_entries: history.max_messages.max(MIN_STREAM_ENTRIES),
            max_age: history.max_age.max(MIN_STREAM_AGE),
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let hub = self.hub.snapshot();
        let counts = hub.counters;
        let own = [
            ("streams", hub.streams),
            ("polls", hub.long_polls),
            ("opened", counts.opened),
            ("closed", counts.closed),
            ("published", counts.published),
            ("delivered", counts.delivered),
            ("dropped", counts.dropped),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value));
        own.into_iter().chain((self.extra_counters)()).collect()
    }
}

#[cfg(test)]
mod tests;
