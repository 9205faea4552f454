//! One certificate authority: its HTTPS client, the account, orders.

/// Awaits a step again whose nonce the authority does not accept (RFC 8555 §6.5). The library
/// does so twice; behind a load balancer, where servers do not share nonces, that is not enough.
/// A macro, because the future of a generic function with an async closure is not `Send`.
macro_rules! with_fresh_nonces {
    ($step:expr) => {{
        let mut retries = 0;
        loop {
            match $step.await.map_err($crate::error::AcmeError::from) {
                Err(error) if retries < 5 && error.is_problem("badNonce") => retries += 1,
                result => break result,
            }
        }
    }};
}

mod account;
mod order;
mod responder;
mod transport;

pub(crate) use self::account::CertificateAuthority;
pub(crate) use self::order::{OrderContext, OrderRequest};
pub(crate) use self::responder::{TokenRecord, is_token};
