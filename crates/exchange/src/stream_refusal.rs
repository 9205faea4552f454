//! The response to a browser's `EventSource` in place of an error that passes.
//!
//! After any status but 200 an `EventSource` never reconnects (HTML, Server-sent events). `edge`
//! asks the [`StreamRefusal`] of its settings before it sends such an error; the hub is one.

use std::fmt;

use crate::{AddressPrefix, Response};

/// Answers requests for streams of events that cannot begin now.
pub trait StreamRefusal: fmt::Debug + Send + Sync {
    /// The response that makes the client return later; `None` if it is to get the error. `client`
    /// is the one that a held response counts for.
    fn refuse_stream(&self, client: Option<AddressPrefix>, cause: &str) -> Option<Response>;
}
