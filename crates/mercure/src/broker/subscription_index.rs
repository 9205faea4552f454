//! The subscriptions of a Mercure route by name: for the subscriptions API, and for the updates
//! that announce them.
//!
//! Maintained by `broker` where `mercure.subscriptions` is set; shown by `subscriptions`.
//!
//! # Invariants
//! - A subscription is found by its topic and its subscriber without a search through others.
//! - The announcements are private, for subscribers with a token that names them.

use std::collections::BTreeMap;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::update::{UpdateDraft, generate_urn};

/// Where subscriptions are, whatever the hub's own path is.
pub(crate) const SUBSCRIPTIONS_PATH: &str = "/.well-known/mercure/subscriptions";

/// The context of documents that describe them.
pub(crate) const JSON_LD_CONTEXT: &str = "https://mercure.rocks/";

/// All that is not unreserved (RFC 3986 §2.3).
const PERCENT_ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// All subscriptions: the subscribers of each topic.
#[derive(Debug, Default)]
pub(crate) struct SubscriptionIndex(BTreeMap<Arc<str>, TopicSubscribers>);

/// The subscribers of a topic by their names, with their payloads.
type TopicSubscribers = BTreeMap<Arc<str>, Option<Arc<Value>>>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Subscriber {
    id: Arc<str>,
    /// As it wrote them, each once.
    topics: Box<[Arc<str>]>,
    payload: Option<Arc<Value>>,
}

impl Subscriber {
    /// One with a name of its own.
    pub(crate) fn new(mut topics: Vec<Arc<str>>, payload: Option<Value>) -> Self {
        topics.sort_unstable();
        topics.dedup();
        Self {
            id: generate_urn().into(),
            topics: topics.into(),
            payload: payload.map(Arc::new),
        }
    }

    /// The updates that announce its arrival or end, one for each topic.
    pub(crate) fn announcements(&self, is_active: bool) -> impl Iterator<Item = UpdateDraft> {
        self.topics.iter().map(move |topic| {
            let mut document =
                subscription_document(topic, &self.id, self.payload.as_deref(), is_active);
            document["@context"] = JSON_LD_CONTEXT.into();
            UpdateDraft {
                topics: vec![subscription_path(topic, Some(&self.id)).into()],
                data: document.to_string(),
                is_private: true,
                ..UpdateDraft::default()
            }
        })
    }
}

impl SubscriptionIndex {
    pub(super) fn insert(&mut self, subscriber: &Subscriber) {
        for topic in &subscriber.topics {
            let subscribers = self.0.entry(Arc::clone(topic)).or_default();
            subscribers.insert(Arc::clone(&subscriber.id), subscriber.payload.clone());
        }
    }

    pub(super) fn remove(&mut self, subscriber: &Subscriber) {
        for topic in &subscriber.topics {
            let Some(subscribers) = self.0.get_mut(topic) else {
                continue;
            };
            subscribers.remove(&subscriber.id);
            if subscribers.is_empty() {
                self.0.remove(topic);
            }
        }
    }

    /// Documents of the subscriptions to `topic`, or to all; at most so many.
    pub(crate) fn subscription_documents(&self, topic: Option<&str>, max: usize) -> Vec<Value> {
        let one = topic.and_then(|topic| self.0.get_key_value(topic));
        let all = topic.is_none().then(|| self.0.iter());
        one.into_iter()
            .chain(all.into_iter().flatten())
            .flat_map(|(topic, subscribers)| {
                subscribers
                    .iter()
                    .map(|(id, payload)| subscription_document(topic, id, payload.as_deref(), true))
            })
            .take(max)
            .collect()
    }

    pub(crate) fn find_subscription_document(
        &self,
        topic: &str,
        subscriber: &str,
    ) -> Option<Value> {
        let payload = self.0.get(topic)?.get(subscriber)?;
        Some(subscription_document(
            topic,
            subscriber,
            payload.as_deref(),
            true,
        ))
    }
}

/// The address of the subscriptions to a topic, or of one subscriber's.
pub(crate) fn subscription_path(topic: &str, subscriber: Option<&str>) -> String {
    let encode = |text| utf8_percent_encode(text, PERCENT_ENCODED);
    let topic = encode(topic);
    match subscriber {
        Some(subscriber) => format!("{SUBSCRIPTIONS_PATH}/{topic}/{}", encode(subscriber)),
        None => format!("{SUBSCRIPTIONS_PATH}/{topic}"),
    }
}

fn subscription_document(
    topic: &str,
    subscriber: &str,
    payload: Option<&Value>,
    is_active: bool,
) -> Value {
    let mut document = json!({
        "id": subscription_path(topic, Some(subscriber)),
        "type": "Subscription",
        "subscriber": subscriber,
        "topic": topic,
        "active": is_active,
    });
    if let Some(payload) = payload {
        document["payload"] = payload.clone();
    }
    document
}
