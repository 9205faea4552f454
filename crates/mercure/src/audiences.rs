//! Audiences: the subscribers of a Mercure route with the same topics and the same rights.
//!
//! A subscriber is in exactly one audience, and an audience is one channel of the hub: so an
//! update reaches a subscriber once, whichever of its topics selected it, and all its updates come
//! in one order. `broker` looks up here which audiences an update concerns. Pure: no hub, no
//! clock.
//!
//! # Invariants
//! - An exact topic takes one look-up, however many other topics there are; of templates only
//!   those with a literal prefix of the topic are tried.
//! - An audience exists as long as it has a member.

mod selector_index;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use penstock_exchange::AddressPrefix;

use crate::selector::SelectorSet;
use crate::update::Update;
use selector_index::SelectorIndex;

/// One client may use this part of all variables, so that some is left for others.
const CLIENT_SHARE_DIVISOR: usize = 8;

/// The topics of an audience and the private updates it can see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct AudienceKey {
    /// What they subscribe to.
    pub topics: SelectorSet,
    /// Of which topics they may see private updates.
    pub grants: SelectorSet,
}

#[derive(Debug, Default)]
pub(super) struct Audiences {
    by_key: HashMap<Arc<AudienceKey>, u64>,
    by_number: HashMap<u64, Audience>,
    index: SelectorIndex,
    /// Variables in the templates of the audiences that each client has made.
    variables_by_client: HashMap<AddressPrefix, usize>,
    /// Numbers are never used twice: updates on their way to an audience that is gone must not
    /// reach another.
    next_number: u64,
}

#[derive(Debug)]
pub(super) struct Audience {
    /// Its number, which none had before it.
    pub number: u64,
    /// The same for all its members.
    pub key: Arc<AudienceKey>,
    /// Its channel at the hub.
    pub channel: Arc<str>,
    /// Updates before this position have been published to it, or came before its first member.
    pub delivered_up_to: u64,
    members: usize,
    /// The variables of its templates, for its client's bound.
    charged_variables: Option<(AddressPrefix, usize)>,
}

impl AudienceKey {
    /// Whether a subscriber with these selectors gets `update`. One topic may be subscribed and
    /// another one allowed.
    pub(super) fn receives(&self, update: &Update) -> bool {
        self.topics.matches_any(&update.topics) && self.can_see(update)
    }

    /// Whether a subscriber with these rights may see `update`.
    pub(super) fn can_see(&self, update: &Update) -> bool {
        !update.is_private || self.grants.matches_any(&update.topics)
    }
}

impl Audiences {
    /// Adds a member to the audience with that key. A new audience gets the channel that `channel`
    /// makes of its number, and begins at the position `delivered_up_to`. `None` when the templates
    /// in use would have more variables than [`selector_index::MAX_VARIABLES_IN_USE`], or those of
    /// this client more than its part.
    pub(super) fn join(
        &mut self,
        (audience_key, client): (AudienceKey, Option<AddressPrefix>),
        delivered_up_to: u64,
        channel: impl FnOnce(u64) -> Arc<str>,
    ) -> Option<&Audience> {
        if let Some(&number) = self.by_key.get(&audience_key) {
            let audience = self.by_number.get_mut(&number)?;
            audience.members += 1;
            return Some(audience);
        }
        if !self.index.has_room_for(&audience_key.topics) {
            return None;
        }
        let variables = audience_key
            .topics
            .iter()
            .map(selector_index::variable_count)
            .sum::<usize>();
        let charged = client.filter(|_| variables > 0);
        let charged = charged.map(|client| (client, variables));
        if let Some((client, variables)) = charged {
            let has = self
                .variables_by_client
                .get(&client)
                .copied()
                .unwrap_or_default();
            if has + variables > selector_index::MAX_VARIABLES_IN_USE / CLIENT_SHARE_DIVISOR {
                return None;
            }
            self.variables_by_client.insert(client, has + variables);
        }
        let number = self.next_number;
        self.next_number += 1;
        let audience_key = Arc::new(AudienceKey {
            topics: self.index.insert(&audience_key.topics, number),
            grants: audience_key
                .grants
                .map_each(|grant| self.index.intern_selector(grant)),
        });
        self.by_key.insert(Arc::clone(&audience_key), number);
        let audience = self.by_number.entry(number).or_insert_with(|| Audience {
            number,
            key: audience_key,
            channel: channel(number),
            delivered_up_to,
            members: 1,
            charged_variables: charged,
        });
        Some(audience)
    }

    /// Removes a member. The audience ends with its last member.
    pub(super) fn leave(&mut self, number: u64) {
        let Some(audience) = self.by_number.get_mut(&number) else {
            return;
        };
        audience.members -= 1;
        if audience.members > 0 {
            return;
        }
        if let Some(audience) = self.by_number.remove(&number) {
            self.by_key.remove(&audience.key);
            if let Some((client, variables)) = audience.charged_variables
                && let Entry::Occupied(mut entry) = self.variables_by_client.entry(client)
            {
                *entry.get_mut() -= variables;
                if *entry.get() == 0 {
                    entry.remove();
                }
            }
            self.index.remove(&audience.key.topics, number);
        }
    }

    pub(super) fn audience(&self, number: u64) -> Option<&Audience> {
        self.by_number.get(&number)
    }

    pub(super) fn audience_mut(&mut self, number: u64) -> Option<&mut Audience> {
        self.by_number.get_mut(&number)
    }

    /// The audiences that subscribe to one of `topics`, each once. Whether they may see it is not
    /// asked.
    pub(super) fn audiences_for_topics(&self, topics: &[Box<str>]) -> Vec<u64> {
        self.index.audiences_for(topics)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.by_number.len()
    }
}

#[cfg(test)]
mod tests;
