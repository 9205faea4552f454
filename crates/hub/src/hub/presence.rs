//! Presence: how many subscribe to a channel, for operators and for the channel's own streams.
//!
//! [`Hub::list_channels`] counts when it is asked. A namespace whose route or application wants it
//! ([`Hub::set_presence_namespaces`]) has events as well: `shared` records each change under the
//! lock of the channel, and `maintenance` publishes the number a second later.
//!
//! # Invariants
//! - A channel waits at most once, so that it gets at most one event a second for all changes.
//! - An event of presence has no id and is in no history: clients that resume have it neither as
//!   their last id nor among the messages that they missed.
//! - Servers count their own subscribers, not those of others.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_runtime::{clock, loops};
use serde::Serialize;
use serde_json::json;

use super::{Hub, HubShared};
use crate::channel::{Channel, ChannelState, is_internal_channel};
use crate::namespace::{channel_name, namespace_of_key};
use crate::{HUB_NAMESPACE, Publication, StreamAction};

/// A channel with subscribers on this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChannelPresence {
    /// Its namespace.
    pub namespace: String,
    /// Its name there.
    pub channel: String,
    /// Its streams, long polls and WebSockets.
    pub subscribers: u64,
}

/// Which channels are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChannelFilter {
    /// Those of this namespace.
    pub namespace: Option<String>,
    /// The one of this name; those that begin so where a `*` follows.
    pub channel: Option<String>,
}

/// Channels whose number of subscribers has changed.
#[derive(Debug, Default)]
pub(crate) struct PresenceChanges(Mutex<PendingChanges>);

#[derive(Debug, Default)]
struct PendingChanges {
    channels: Vec<Arc<Channel>>,
    /// When they are published; none without channels.
    due: Option<Instant>,
}

/// Changes within so long are one event.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(1);

/// Channels between two of which others on the loop have their turn.
const CHANNELS_PER_YIELD: usize = 64;

impl Hub {
    /// Publishes changes of presence to the channels of these namespaces, and of no others.
    pub fn set_presence_namespaces(&self, namespaces: &[String]) {
        let usages = &self.shared.registry.namespace_usages;
        usages.set_presence_namespaces(namespaces);
    }

    /// The channels with subscribers on this server that pass the filter, at most `max`: which
    /// ones of more is not defined. Long lists take several turns of the event loop.
    pub async fn list_channels(&self, filter: &ChannelFilter, max: usize) -> Vec<ChannelPresence> {
        let mut found = Vec::new();
        for channels in self.shared.registry.all_by_partition() {
            let passing = channels.iter().filter(|each| filter.passes(each.name()));
            let present = passing.filter_map(|channel| {
                let subscribers = channel.lock().subscriber_count();
                (subscribers > 0).then(|| ChannelPresence::new(channel.name(), subscribers))
            });
            let room = max - found.len();
            found.extend(present.take(room));
            if found.len() == max {
                break;
            }
            loops::yield_now().await;
        }
        found.sort_by(|a, b| (&a.namespace, &a.channel).cmp(&(&b.namespace, &b.channel)));
        found
    }
}

impl ChannelFilter {
    fn passes(&self, key: &str) -> bool {
        let namespace = self.namespace.as_deref();
        let is_named = |name: &str| match &self.channel {
            None => true,
            Some(wanted) => match wanted.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == wanted,
            },
        };
        !is_internal_channel(key)
            && namespace.is_none_or(|wanted| wanted == displayed_namespace(key))
            && is_named(channel_name(key))
    }
}

impl ChannelPresence {
    fn new(key: &str, subscribers: u64) -> Self {
        Self {
            namespace: displayed_namespace(key).to_owned(),
            channel: channel_name(key).to_owned(),
            subscribers,
        }
    }
}

/// The namespace of a channel, as configurations name it.
fn displayed_namespace(key: &str) -> &str {
    match namespace_of_key(key) {
        "" => HUB_NAMESPACE,
        name => name,
    }
}

impl HubShared {
    /// Records that the number of a channel's subscribers has changed, where that is published.
    pub(super) fn record_presence_change(&self, channel: &Arc<Channel>, state: &mut ChannelState) {
        let is_wanted = state.namespace_usage.has_presence.load(Ordering::Relaxed);
        if !is_wanted || state.is_internal || state.has_presence_change {
            return;
        }
        state.has_presence_change = true;
        let mut pending = self.presence_changes.lock();
        if pending.due.is_none() {
            pending.due = Some(clock::now() + PRESENCE_INTERVAL);
            self.maintenance_due.notify_one();
        }
        pending.channels.push(Arc::clone(channel));
    }

    pub(super) async fn publish_presence_changes(&self) {
        let channels = {
            let mut pending = self.presence_changes.lock();
            if pending.due.is_none_or(|due| clock::now() < due) {
                return;
            }
            std::mem::take(&mut *pending).channels
        };
        for (number, channel) in channels.iter().enumerate() {
            let subscribers = {
                let mut state = channel.lock();
                state.has_presence_change = false;
                state.subscriber_count()
            };
            if subscribers > 0 {
                self.deliver_unkept(channel, presence_event(channel.name(), subscribers));
            }
            if (number + 1).is_multiple_of(CHANNELS_PER_YIELD) {
                loops::yield_now().await;
            }
        }
    }
}

fn presence_event(key: &str, subscribers: u64) -> Publication {
    let data = json!({ "channel": channel_name(key), "subscribers": subscribers });
    Publication {
        stream: Some(StreamAction::Notice(
            format!("event: presence\ndata: {data}\n\n").into(),
        )),
        ..Publication::default()
    }
}

impl PresenceChanges {
    pub(super) fn due(&self) -> Option<Instant> {
        self.lock().due
    }

    /// A panic under the lock leaves a list that is whole.
    fn lock(&self) -> MutexGuard<'_, PendingChanges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
