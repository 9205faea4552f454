//! `bench hold`: opens up to millions of streams, holds and reads them, and measures their cost to
//! the server.
//!
//! `arguments` makes a [`HoldPlan`]. `coordinator` ([`execute`]) starts agents through
//! `child_link`, each a process with a share (`agent`), since descriptors per process are limited.
//! They exchange the lines of `agent_protocol`. `source_addresses` assigns addresses and ports;
//! `publisher` sends numbered messages (`numbered_message`) and `probe` other requests meanwhile,
//! both through an `open_loop`; `sampler` reads the cost, `aggregate` and `samples` combine it for
//! the report.
//!
//! # Invariants
//!
//! - A stream costs an agent well under 700 bytes, whatever it receives.
//! - Each stream that is not held is counted under one cause.
//! - No process started here outlives the run.

mod agent;
mod agent_protocol;
mod aggregate;
mod arguments;
mod coordinator;
mod numbered_message;
mod open_loop;
mod plan;
mod probe;
mod publisher;
mod sampler;
mod samples;
mod source_addresses;

pub use agent::run_agent;
pub use agent_protocol::{SourceRange, StreamTarget};
pub(crate) use arguments::run;
pub use arguments::{HoldArguments, PublishArguments};
pub use coordinator::execute;
pub use open_loop::OpenLoopSettings;
pub use plan::{HoldPhase, HoldPlan, HoldProgress};
pub use probe::ProbeSpec;
pub use publisher::PublishSpec;
