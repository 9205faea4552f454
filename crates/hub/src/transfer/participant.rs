//! Components with channels and streams of their own that move with the hub, as Mercure hubs do.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, Weak};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::hub::PendingSubscription;
use crate::{EndCallback, Hub, HubError, Subscription};

/// Passes an item to the same component of the other process; `Ok(false)` once the transfer has
/// ended: then it is for this process. An error: too much waits for the other process.
pub type ForwardFn = Arc<dyn Fn(Value) -> Result<bool, HubError> + Send + Sync>;

/// A component that moves with the hub.
pub trait TransferParticipant: Send + Sync + fmt::Debug {
    /// Its name in both processes.
    fn name(&self) -> &'static str;

    /// In the old process: gives the authority away. What is published from here on goes to
    /// `forward`. Returns the state for [`TransferParticipant::import_state`].
    fn begin_transfer(&self, forward: ForwardFn) -> Vec<Value>;

    /// In the old process: takes the authority back.
    fn cancel_transfer(&self);

    /// In the new process: takes a part of the state, before it serves.
    ///
    /// # Errors
    /// Why not, for the log.
    fn import_state(&self, state: Value) -> Result<(), String>;

    /// In the new process: all streams that can move have come.
    fn finish_import(&self);

    /// Takes an item that was passed to `forward`.
    ///
    /// # Errors
    /// Why it is lost, for the log.
    fn receive(&self, item: Value) -> Result<(), String>;

    /// In the new process: takes a stream by the data of its [`OwnerRecord`].
    ///
    /// # Errors
    /// Why the stream stays with the old process.
    fn adopt_stream(&self, data: Value) -> Result<AdoptedStream, String>;
}

/// A stream in its new process.
#[derive(Debug, Default)]
pub struct AdoptedStream {
    /// Its channels, from [`Hub::reserve_places`]; `None` are those that it had in the old process,
    /// from its position in each.
    pub places: Option<StreamPlaces>,
    /// Sent before the messages of its channels.
    pub initial_bytes: Bytes,
    /// As [`crate::HeldStream::on_end`].
    pub on_end: Option<EndCallback>,
}

/// Places in channels that a stream is to have: messages from now on are kept for it.
#[derive(Debug)]
pub struct StreamPlaces(pub(crate) Vec<PendingSubscription>);

/// How the owner of a stream continues it in another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// [`TransferParticipant::name`].
    pub participant: String,
    /// The channels that it listens to for its stream.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<Arc<str>>,
    /// For [`TransferParticipant::adopt_stream`].
    pub data: Value,
}

/// Whether a stream can move now.
#[derive(Debug)]
pub enum OwnerTransfer {
    /// It ends with this process.
    Never,
    /// Something is on its way to it.
    Later,
    /// It can.
    Ready(OwnerRecord),
}

/// The participants of a hub.
#[derive(Debug, Default)]
pub(crate) struct TransferParticipants(RwLock<Vec<Weak<dyn TransferParticipant>>>);

impl TransferParticipants {
    pub(super) fn all(&self) -> Vec<Arc<dyn TransferParticipant>> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn find(&self, name: &str) -> Result<Arc<dyn TransferParticipant>, String> {
        let mut all = self.all().into_iter();
        all.find(|each| each.name() == name)
            .ok_or_else(|| format!("there is no {name:?} here"))
    }
}

impl Hub {
    /// Lets a component move with the hub at an upgrade.
    pub fn add_transfer_participant(&self, participant: Weak<dyn TransferParticipant>) {
        let participants = &self.shared.participants.0;
        let mut all = participants.write().unwrap_or_else(PoisonError::into_inner);
        all.push(participant);
    }

    /// Places for an adopted stream.
    ///
    /// # Errors
    /// There are too many channels.
    pub fn reserve_places(
        &self,
        subscriptions: Vec<Subscription>,
    ) -> Result<StreamPlaces, HubError> {
        let max_channels = self.settings().max_channels;
        let places = subscriptions
            .into_iter()
            .map(|subscription| PendingSubscription::new(&self.shared, subscription, max_channels));
        Ok(StreamPlaces(places.collect::<Result<_, _>>()?))
    }
}
