//! One waiting line over exact slots: who starts at once, who waits, who is told to go away.
//!
//! A **slot** is the right to have requests in progress at one worker (or one back-end
//! connection): `capacity` of them, normally one. A request claims a free slot or joins the line,
//! and a slot that frees takes the oldest waiter, whichever loop it came from. The slots of one
//! process are a group: of the free ones those of the idlest process are taken first. Applications and
//! upstreams both use this crate; each wraps one [`Queue`] in a mutex that is held for the length
//! of one call. For an upstream a slot is a server: its caller chooses among them, changes their
//! capacities, and may bind a waiter to one.
//!
//! Pure: no I/O, no locks, no clock (`now` is an argument), no randomness. Sending the job to the
//! worker, answering 503 and waking timers are the caller's. What must stay true, and is checked
//! by the simulation: nobody waits while a slot that may take it has room, no job is lost or
//! doubled.

mod queue;
mod ranked_groups;
mod slot_table;
mod wait_list;

pub use queue::{DispatchedJob, Queue, QueueLimits, QueueOutcome};
pub use slot_table::{SlotId, SlotSpec, SlotView};
pub use wait_list::Ticket;
