//! `bench hold`: a million streams opened, held and listened to, and what that costs the server.
//!
//! `verb` reads the arguments and makes a [`Plan`]; `coordinator` ([`execute`]) starts agents through
//! `link`, each a process with a share (`agent`), since a process may have only so many descriptors. They
//! speak the lines of `order`. `sources` shares out addresses and ports; `publisher` sends numbered
//! messages (`message`) through `client`, `probe` asks for something else meanwhile, `sampler` reads what
//! it costs, `gather` and `samples` put it together for the report.
//!
//! What must stay true: a stream costs an agent well under 700 bytes, whatever it receives; each stream
//! that is not held is counted under one cause; nothing that was started outlives the run.

mod agent;
mod client;
mod coordinator;
mod gather;
mod lines;
mod link;
mod message;
mod order;
mod plan;
mod probe;
mod publisher;
mod sampler;
mod samples;
mod sources;
mod verb;

pub use agent::agent;
pub use coordinator::execute;
pub use plan::{HoldError, Phase, Plan, Progress};
pub use probe::Asking;
pub use publisher::Publish;
pub(crate) use verb::run;
pub use verb::{HoldArguments, PublishArguments};
