//! The state that a stream's owner and its follower share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_hub::ListenerPosition;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The owner's end: dropping it ends the task.
#[derive(Debug)]
pub(in crate::handler) struct FollowerHandle(pub(super) Arc<FollowerControl>);

#[derive(Debug, Default)]
pub(super) struct FollowerControl {
    state: Mutex<FollowerState>,
    changed: Notify,
}

#[derive(Debug, Default)]
pub(super) enum FollowerState {
    #[default]
    Following,
    /// The task is to park before it forwards anything else.
    ParkAsked,
    /// It waits to be resumed or ended.
    Parked(Box<FollowerRecord>),
    Ended,
}

/// Whether the stream of a follower can move.
pub(in crate::handler) enum FollowerTransfer {
    Parked(FollowerRecord),
    /// It is asked to park.
    Asked,
    Ended,
}

/// A parked follower, for another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::handler) struct FollowerRecord {
    pub(super) positions: Vec<ListenerPosition>,
    /// Messages were lost before these positions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_behind: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) subscriber_meta: Vec<(Box<str>, Box<str>)>,
    /// The channels, each with the last message that the stream knows.
    pub(super) channel_ids: Vec<(Arc<str>, Option<Arc<str>>)>,
    /// Target and timeout in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) next_link: Option<(Box<str>, u64)>,
    pub(super) next_fetch_ms: u64,
}

impl FollowerRecord {
    pub(in crate::handler) fn channels(&self) -> Vec<Arc<str>> {
        let positions = self.positions.iter();
        positions.map(|each| each.channel.clone()).collect()
    }
}

impl FollowerHandle {
    /// The parked follower's record. One that is not parked is asked to.
    pub(in crate::handler) fn transfer(&self) -> FollowerTransfer {
        let mut state = self.0.lock();
        match &*state {
            FollowerState::Parked(record) => return FollowerTransfer::Parked((**record).clone()),
            FollowerState::Ended => return FollowerTransfer::Ended,
            FollowerState::ParkAsked => return FollowerTransfer::Asked,
            FollowerState::Following => *state = FollowerState::ParkAsked,
        }
        drop(state);
        self.0.changed.notify_waiters();
        FollowerTransfer::Asked
    }

    /// Lets a follower that was asked to park continue.
    pub(in crate::handler) fn resume(&self) {
        let is_asked = |state: &FollowerState| {
            matches!(state, FollowerState::ParkAsked | FollowerState::Parked(_))
        };
        self.0.replace_if(is_asked, FollowerState::Following);
    }
}

impl Drop for FollowerHandle {
    fn drop(&mut self) {
        self.0.set(FollowerState::Ended);
    }
}

impl FollowerControl {
    /// Waits until the state is one of these.
    pub(super) async fn wait_until(&self, is_reached: impl Fn(&FollowerState) -> bool) {
        loop {
            // A change after this line is not missed.
            let changed = self.changed.notified();
            if is_reached(&self.lock()) {
                return;
            }
            changed.await;
        }
    }

    pub(super) async fn wait_until_asked(&self) {
        self.wait_until(|state| matches!(state, FollowerState::ParkAsked))
            .await;
    }

    pub(super) fn set(&self, state: FollowerState) {
        self.replace_if(|_| true, state);
    }

    /// Parks the task, if that is still asked for, until it is resumed.
    pub(super) async fn park(&self, record: FollowerRecord) {
        let is_asked = |state: &FollowerState| matches!(state, FollowerState::ParkAsked);
        self.replace_if(is_asked, FollowerState::Parked(Box::new(record)));
        // It may be asked again before it sees that it was resumed.
        self.wait_until(|state| !matches!(state, FollowerState::Parked(_)))
            .await;
    }

    fn replace_if(&self, is_replaced: impl Fn(&FollowerState) -> bool, by: FollowerState) {
        {
            let mut state = self.lock();
            if !is_replaced(&state) {
                return;
            }
            *state = by;
        }
        self.changed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, FollowerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
