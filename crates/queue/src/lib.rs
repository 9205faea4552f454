//! Bounded queue that dispatches requests to the slots of workers or servers.
//!
//! A **slot** is the right to have requests in progress at one worker (or one upstream connection):
//! `request_capacity` of them, normally one. A request claims a free slot or waits in the queue. A
//! slot that becomes free takes the oldest waiter, whichever event loop that request belongs to.
//! The slots of one process form a group, and free slots of the process with the fewest requests
//! in progress are claimed first. Applications and upstreams both use this crate; each wraps one
//! [`Queue`] in a mutex that is held for one call. For an upstream a slot is a server: the upstream
//! chooses among them, changes their capacities, and may bind a waiter to one.
//!
//! The crate is pure: no I/O, no locks, no clock (`now` is an argument), no randomness. The caller
//! sends the job to the worker, responds with 503 and arms timers.
//!
//! # Invariants
//!
//! The simulation checks both.
//!
//! - No job waits while a slot that may take it has free capacity.
//! - No job is lost or duplicated.

mod queue;
mod slot_table;
mod wait_list;

pub use queue::{DispatchedJob, Queue, QueueLimits, QueueOutcome};
pub use slot_table::{SlotId, SlotSpec, SlotView};
pub use wait_list::Ticket;
