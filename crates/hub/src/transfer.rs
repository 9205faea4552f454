//! The transfer of a hub to the next process of an upgrade: channels, histories and the sockets of
//! held streams, so that no client has to reconnect.
//!
//! The old process calls [`crate::Hub::transfer_to`], the new one
//! [`crate::Hub::receive_transfer`], each with one end of a packet socket. First the channels
//! move, and with them the authority over numbers and ids: from then on the old hub forwards what
//! it is given to publish, and is a mirror of the channels that it still has subscribers of. Then
//! the streams move, a batch at a time, each with its position in its channels and its unsent
//! bytes.
//!
//! ```text
//! old: hello, channel (one for each), participant_state, channels_end
//! new: imported
//! old: streams (with their sockets), publish, forward, subscribe, unsubscribe, streams_moved
//! new: taken, accepted, message, channel
//! ```
//!
//! Where several servers share the channels ([`crate::Bus`]), these have no authority to move. The
//! streams alone move, each with the id of its last message in each channel. The new process takes a
//! batch when it has caught up with what the old one had, and repeats what lies between.
//!
//! # Invariants
//! - A message gets its number in one of the two processes, and both agree in which.
//! - A socket is written to by one process: by the new one after `taken`, else by the old one. For
//!   a session of TLS that is also a matter of secrecy: no two records have one nonce.
//! - If the new process ends, the old hub takes the authority back with what was not accepted, and
//!   keeps every stream that was not taken.
//! - A process of another version ends the transfer, not the upgrade: streams then end as at any
//!   stop.

mod channels;
mod export;
mod history_file;
mod import;
mod link;
mod participant;
mod records;
mod reply_queue;
mod shared_place;
mod successor;

use std::time::Duration;

use penstock_exchange::{HeldConnection, HeldConnectionGuard};

pub use export::HubTransfer;
pub use import::HubReceiver;
pub(crate) use participant::TransferParticipants;
pub use participant::{
    AdoptedStream, ForwardFn, OwnerRecord, OwnerTransfer, StreamPlaces, TransferParticipant,
};
pub(crate) use records::{
    ByteRecord, KeepAliveRecord, SessionRecord, StreamChannelRecord, StreamRecord, UnsentRecord,
};
pub(crate) use shared_place::SharedPlace;
pub(crate) use successor::SuccessorLink;

use link::TransferSocket;

use crate::EndCallback;
use crate::counters::StreamPermit;
use crate::hub::PendingSubscription;

/// The version of the messages between the two processes.
///
/// Versions 1 and 2 know no sessions of TLS, and would continue such a stream in the clear.
const TRANSFER_VERSION: u32 = 3;

/// That of servers which share their channels with others.
const SHARED_TRANSFER_VERSION: u32 = 4;

/// How long the other side may leave its end of the socket full.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a transfer ended.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The other process has closed its end.
    #[error("the other process has closed the socket")]
    Closed,
    /// It does not read.
    #[error("the other process does not read")]
    Stalled,
    /// It did not answer in time.
    #[error("the other process does not answer")]
    NoAnswer,
    /// It uses another version.
    #[error("the other process has transfer version {0}, this one {TRANSFER_VERSION}")]
    Version(u32),
    /// One of the two shares its channels with other servers.
    #[error("only one of the two processes has server.redis")]
    OtherServers,
    /// A message that is none, or at the wrong time.
    #[error("bad message: {0}")]
    BadMessage(String),
    /// More messages wait for the other process than `hub.max_backlog_total`.
    #[error("more messages wait for the other process than hub.max_backlog_total allows")]
    Overflow,
    /// The socket's error.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A stream between two owners: in no list, with what its next owner needs.
#[derive(Debug)]
pub(crate) struct DetachedStream {
    pub(crate) record: StreamRecord,
    /// Its places in its channels, which keep what is published meanwhile.
    pub(crate) places: Vec<PendingSubscription>,
    pub(crate) connection: HeldConnection,
    pub(crate) permit: StreamPermit,
    pub(crate) guard: HeldConnectionGuard,
    pub(crate) on_end: Option<EndCallback>,
}
