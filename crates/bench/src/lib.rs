//! Load generator and comparisons: `penstock bench run | sweep | compare | mix | hold`.
//!
//! `command` reads the command line and calls a verb: `run` and `mix` put a load on a server,
//! `sweep` does so at many concurrencies, `compare` does so to several deployments that it starts
//! and stops (`deploy`). These use `load`, which sends and measures. `hold` opens and holds streams
//! by the hundred thousand in its own processes. All produce a `report`, which is printed (`text`),
//! saved as JSON, and drawn (`chart`, `html`).
//!
//! # Invariants
//!
//! - No component of the server is used here, so that its bugs cannot hide themselves.
//! - A result that the generator may have limited says so in every output.
//! - No process started here outlives the run.

mod chart;
mod child_link;
pub mod command;
mod compare;
mod compare_saved;
mod connection_steps;
mod context;
mod csv;
pub mod deploy;
pub mod hold;
mod html;
mod live_line;
pub mod load;
mod output;
pub mod report;
mod report_file;
mod run;
pub mod scenario;
mod spline;
mod summary;
mod sweep;
pub mod target;
mod text;
pub mod tls;
mod window;

pub use command::Command;
