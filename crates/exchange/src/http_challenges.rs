//! Challenges of ACME over HTTP: `edge` answers them, and the maker of certificates has the answers.

use std::future::Future;
use std::pin::Pin;

/// The tokens that certificate authorities may ask for at the moment.
pub trait HttpChallenges: Send + Sync + std::fmt::Debug {
    /// The key authorization of a token (RFC 8555 §8.1); `None` if it is not pending. Called on
    /// event loops: must not block.
    fn key_authorization(&self, token: &str) -> Option<String>;
}

/// The tokens of other servers with the same storage: behind a load balancer a validation may reach
/// any of them.
pub trait SharedChallenges: Send + Sync + std::fmt::Debug {
    /// As [`HttpChallenges::key_authorization`], after a bounded time.
    fn find_key_authorization(
        &self,
        token: String,
    ) -> Pin<Box<dyn Future<Output = Option<String>> + Send>>;
}
