//! `bench hold`: a million streams opened, held and listened to, and what that costs the server.
//!
//! `verb` reads the arguments and makes a [`HoldPlan`]; `coordinator` ([`execute`]) starts agents through
//! `link`, each a process with a share (`agent`), since a process may have only so many descriptors. They
//! speak the lines of `order`. `sources` shares out addresses and ports; `publisher` sends numbered
//! messages (`message`) through `client`, `probe` asks for something else meanwhile, `sampler` reads what
//! it costs, `aggregate` and `samples` put it together for the report.
//!
//! What must stay true: a stream costs an agent well under 700 bytes, whatever it receives; each stream
//! that is not held is counted under one cause; nothing that was started outlives the run.

mod agent;
mod agent_link;
mod agent_protocol;
mod aggregate;
mod arguments;
mod client;
mod coordinator;
mod json_lines;
mod numbered_message;
mod plan;
mod probe;
mod publisher;
mod sampler;
mod samples;
mod source_addresses;

pub use agent::run_agent;
pub(crate) use arguments::run;
pub use arguments::{HoldArguments, PublishArguments};
pub use coordinator::execute;
pub use plan::{HoldError, HoldPhase, HoldPlan, HoldProgress};
pub use probe::ProbeSpec;
pub use publisher::PublishSpec;
