//! Pending challenges of ACME over HTTP: `edge` answers them, and the maker of certificates has them.

/// The tokens that certificate authorities may ask for at the moment.
pub trait HttpChallenges: Send + Sync + std::fmt::Debug {
    /// The key authorization of a token (RFC 8555 §8.1); `None` if it is not pending. Called on
    /// event loops: must not block.
    fn key_authorization(&self, token: &str) -> Option<String>;
}
