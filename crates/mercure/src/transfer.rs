//! Mercure hubs at an upgrade: their history and their subscribers go on in the next process.
//!
//! The old process stops to dispatch updates at one position of each hub's history. The new one has
//! the history up to there, gives later updates their places, and a subscriber that moves gets
//! what came after that position.
//!
//! # Invariants
//! - A subscriber moves when its audience has all updates of the old process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_hub::{
    AdoptedStream, EndCallback, ForwardFn, OwnerRecord, OwnerTransfer, StreamOwner, Subscription,
    TransferParticipant,
};
use penstock_runtime::clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::audiences::AudienceKey;
use crate::broker::{AudienceJoinRequest, AudienceMembership, ResumeAfter, Subscriber};
use crate::handler::MercureHubs;
use crate::selector::{SelectorSet, TopicSelector};
use crate::update::Update;

/// Of all Mercure hubs of a process.
const PARTICIPANT: &str = "mercure";

/// The state of one hub.
#[derive(Debug, Serialize, Deserialize)]
struct BrokerRecord {
    route: String,
    first_position: u64,
    last_id: Option<Arc<str>>,
    updates: Vec<UpdateRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct UpdateRecord {
    id: Arc<str>,
    topics: Box<[Box<str>]>,
    #[serde(default)]
    is_private: bool,
    event: String,
    #[serde(default)]
    age_ms: u64,
}

/// An update for another process.
#[derive(Debug, Serialize, Deserialize)]
struct ForwardedUpdate {
    route: String,
    update: UpdateRecord,
}

/// A subscriber.
#[derive(Debug, Serialize, Deserialize)]
struct SubscriberRecord {
    route: String,
    topics: Vec<Arc<str>>,
    grants: Vec<Arc<str>>,
    /// It has all updates before this position.
    position: u64,
    subscriber: Option<Subscriber>,
}

impl UpdateRecord {
    fn new(update: &Update, age: Duration) -> Self {
        Self {
            id: Arc::clone(&update.id),
            topics: update.topics.clone(),
            is_private: update.is_private,
            // Updates are made of text.
            event: String::from_utf8_lossy(&update.encoded_event).into_owned(),
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn into_update(self) -> Update {
        Update {
            id: self.id,
            topics: self.topics,
            is_private: self.is_private,
            encoded_event: self.event.into(),
        }
    }
}

impl TransferParticipant for MercureHubs {
    fn name(&self) -> &'static str {
        PARTICIPANT
    }

    fn begin_transfer(&self, forward: ForwardFn) -> Vec<Value> {
        let brokers = self.brokers();
        let states = brokers.iter().map(|(route, broker)| {
            let (route, forward) = (route.clone(), Arc::clone(&forward));
            let name = route.clone();
            broker.begin_transfer(Arc::new(move |update: &Update| {
                let update = UpdateRecord::new(update, Duration::ZERO);
                let route = route.clone();
                let item = to_value(&ForwardedUpdate { route, update });
                item.map_or(Ok(false), |item| forward(item))
            }));
            let now = clock::now();
            broker.with_history(|history| {
                let (first_position, updates) = history.export(now);
                let updates = updates.map(|(update, age)| UpdateRecord::new(update, age));
                to_value(&BrokerRecord {
                    route: name,
                    first_position,
                    last_id: history.last_id().cloned(),
                    updates: updates.collect(),
                })
            })
        });
        states.flatten().collect()
    }

    fn cancel_transfer(&self) {
        for (_, broker) in self.brokers() {
            broker.cancel_transfer();
        }
    }

    fn import_state(&self, state: Value) -> Result<(), String> {
        let record: BrokerRecord = from_value(state)?;
        let broker = self.broker_of(&record.route)?;
        let now = clock::now();
        broker.begin_import(record.first_position, record.last_id);
        for update in record.updates {
            let at = published_at(now, update.age_ms);
            broker.import_update(update.into_update(), at);
        }
        Ok(())
    }

    fn finish_import(&self) {
        for (_, broker) in self.brokers() {
            broker.finish_import();
        }
    }

    fn receive(&self, item: Value) -> Result<(), String> {
        let ForwardedUpdate { route, update } = from_value(item)?;
        self.broker_of(&route)?
            .publish_accepted(update.into_update());
        Ok(())
    }

    fn adopt_stream(&self, data: Value) -> Result<AdoptedStream, String> {
        let record: SubscriberRecord = from_value(data)?;
        let broker = self.broker_of(&record.route)?;
        let arrival = AudienceJoinRequest {
            // It was counted where it came from.
            client: None,
            key: AudienceKey {
                topics: selector_set(&record.topics)?,
                grants: selector_set(&record.grants)?,
            },
            resume_after: Some(ResumeAfter::Position(record.position)),
            max_replay_bytes: usize::MAX,
            subscriber: record.subscriber.map(Arc::new),
            is_new: false,
        };
        let hub = broker.hub().clone();
        let joined = broker.join(arrival, |start, membership| {
            let places = hub.reserve_places(vec![Subscription {
                channel: start.channel,
                ..Subscription::default()
            }]);
            Ok(AdoptedStream {
                places: Some(places.map_err(|error| error.to_string())?),
                initial_bytes: start.replay.into(),
                on_end: membership.map(AudienceMembership::into_end_callback),
            })
        });
        joined.map_err(|error| error.to_string())?
    }
}

impl AudienceMembership {
    /// The callback that ends the membership with its stream.
    pub(super) fn into_end_callback(self) -> EndCallback {
        EndCallback::for_owner(self)
    }
}

impl StreamOwner for AudienceMembership {
    fn on_end(self: Box<Self>) {
        drop(self);
    }

    fn transfer(&self) -> OwnerTransfer {
        let Some((key, position)) = self.settled_position() else {
            return OwnerTransfer::Later;
        };
        let texts = |set: &SelectorSet| {
            let texts = set.iter().map(TopicSelector::selector_text);
            texts.cloned().collect()
        };
        let record = to_value(&SubscriberRecord {
            route: self.route().to_owned(),
            topics: texts(&key.topics),
            grants: texts(&key.grants),
            position,
            subscriber: self.subscriber().map(|subscriber| (**subscriber).clone()),
        });
        record.map_or(OwnerTransfer::Never, |data| {
            OwnerTransfer::Ready(OwnerRecord {
                participant: PARTICIPANT.to_owned(),
                channels: Vec::new(),
                data,
            })
        })
    }

    fn on_moved(self: Box<Self>) {
        self.leave_silently();
    }
}

fn selector_set(texts: &[Arc<str>]) -> Result<SelectorSet, String> {
    let selectors = texts.iter().map(|text| TopicSelector::new(text));
    let selectors: Result<Vec<_>, _> = selectors.collect();
    Ok(SelectorSet::new(
        selectors.map_err(|error| error.to_string())?,
    ))
}

fn published_at(now: Instant, age_ms: u64) -> Instant {
    now.checked_sub(Duration::from_millis(age_ms))
        .unwrap_or(now)
}

/// `None` never happens: the records have nothing that JSON has not.
fn to_value(record: &impl Serialize) -> Option<Value> {
    serde_json::to_value(record).ok()
}

fn from_value<T: for<'de> Deserialize<'de>>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}
