//! The owner of a held stream with a `Grip-Link`: ends its follower and sends its notice when it
//! ends, or hands both over to the next process of an upgrade.
//!
//! # Invariants
//! - One process sends the notice that a client is gone: the one that has the stream at its end.
//! - A stream moves when its follower has parked: nothing is on its way from one to the other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use penstock_hub::{
    AdoptedStream, EndCallback, ForwardFn, OwnerRecord, OwnerTransfer, StreamOwner,
    TransferParticipant,
};
use penstock_runtime::LoopHandle;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::disconnect_notices::send_disconnect_notice;
use super::link_follower::{FollowerHandle, FollowerRecord, FollowerTransfer, LinkFollower};
use super::original_request::{OriginalRequest, RequestRecord};
use super::{GripHandler, GripShared};

/// Of all streams with a `Grip-Link` of a process.
const PARTICIPANT: &str = "grip";

/// Streams with a `Grip-Link` at an upgrade: the new process continues them by the handlers that it
/// has for the same back ends.
#[derive(Debug)]
pub struct GripStreams {
    loops: Vec<LoopHandle>,
    next_loop: AtomicUsize,
    /// Handlers of one name are equivalent.
    handlers: Mutex<Vec<Weak<GripShared>>>,
}

pub(super) struct GripStreamOwner {
    pub(super) shared: Arc<GripShared>,
    pub(super) original_request: Arc<OriginalRequest>,
    /// Of a link that continues the stream.
    pub(super) follower: Option<FollowerHandle>,
    /// Where the back end is told that the client is gone.
    pub(super) gone_link: Option<Box<str>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct GripStreamRecord {
    handler: String,
    request: RequestRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follower: Option<FollowerRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gone_link: Option<Box<str>>,
}

impl GripStreams {
    /// Streams with a follower are spread over `loops`, of which there is at least one.
    #[must_use]
    pub fn new(loops: &[LoopHandle]) -> Self {
        Self {
            loops: loops.to_vec(),
            next_loop: AtomicUsize::new(0),
            handlers: Mutex::default(),
        }
    }

    /// Lets a handler continue streams that another process held for its back end.
    pub fn add_handler(&self, handler: &GripHandler) {
        let mut handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        handlers.retain(|each| each.strong_count() > 0);
        handlers.push(Arc::downgrade(&handler.shared));
    }

    fn find_handler(&self, name: &str) -> Result<Arc<GripShared>, String> {
        let handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
        // The last is of the active configuration.
        let mut alive = handlers.iter().rev().filter_map(Weak::upgrade);
        alive
            .find(|each| each.name == name)
            .ok_or_else(|| format!("no route has grip for {name}"))
    }
}

impl TransferParticipant for GripStreams {
    fn name(&self) -> &'static str {
        PARTICIPANT
    }

    /// Channels and their authority are the hub's.
    fn begin_transfer(&self, _: ForwardFn) -> Vec<Value> {
        Vec::new()
    }

    fn cancel_transfer(&self) {}

    fn import_state(&self, _: Value) -> Result<(), String> {
        Err("it has none".to_owned())
    }

    fn finish_import(&self) {}

    fn receive(&self, _: Value) -> Result<(), String> {
        Err("it forwards none".to_owned())
    }

    fn adopt_stream(&self, data: Value) -> Result<AdoptedStream, String> {
        let record = serde_json::from_value(data);
        let record: GripStreamRecord = record.map_err(|error| error.to_string())?;
        let shared = self.find_handler(&record.handler)?;
        let original_request = Arc::new(record.request.into_request(&shared)?);
        let (mut places, mut follower) = (None, None);
        if let Some(record) = record.follower {
            let (shared, origin) = (Arc::clone(&shared), Arc::clone(&original_request));
            let hub = shared.hub.clone();
            let continued = LinkFollower::from_record(shared, origin, record);
            let continued = continued.map_err(|error| error.to_string())?;
            let reserved = hub.reserve_places(vec![continued.stream_subscription()]);
            places = Some(reserved.map_err(|error| error.to_string())?);
            let next = self.next_loop.fetch_add(1, Ordering::Relaxed);
            follower = Some(continued.spawn_on(&self.loops[next % self.loops.len()]));
        }
        let owner = GripStreamOwner {
            shared,
            original_request,
            follower,
            gone_link: record.gone_link,
        };
        Ok(AdoptedStream {
            places,
            initial_bytes: Bytes::new(),
            on_end: Some(EndCallback::for_owner(owner)),
        })
    }
}

impl StreamOwner for GripStreamOwner {
    fn on_end(self: Box<Self>) {
        drop(self.follower);
        if let Some(link) = self.gone_link {
            send_disconnect_notice(&self.shared, self.original_request, link);
        }
    }

    fn transfer(&self) -> OwnerTransfer {
        let follower = match self.follower.as_ref().map(FollowerHandle::transfer) {
            None => None,
            Some(FollowerTransfer::Parked(record)) => Some(record),
            Some(FollowerTransfer::Asked) => return OwnerTransfer::Later,
            Some(FollowerTransfer::Ended) => return OwnerTransfer::Never,
        };
        let channels = follower.as_ref().map(FollowerRecord::channels);
        let record = GripStreamRecord {
            handler: self.shared.name.clone(),
            request: self.original_request.record(),
            follower,
            gone_link: self.gone_link.clone(),
        };
        match serde_json::to_value(record) {
            Ok(data) => OwnerTransfer::Ready(OwnerRecord {
                participant: PARTICIPANT.to_owned(),
                channels: channels.unwrap_or_default(),
                data,
            }),
            Err(error) => {
                log::warn!("grip: a stream does not move to the next process: {error}");
                OwnerTransfer::Never
            }
        }
    }

    /// The drop of the handle ends the follower.
    fn on_moved(self: Box<Self>) {}

    fn on_transfer_cancelled(&self) {
        if let Some(follower) = &self.follower {
            follower.resume();
        }
    }
}
