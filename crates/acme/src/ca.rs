//! One certificate authority: its HTTPS client, the account, orders.

mod account;
mod order;
mod responder;
mod transport;

pub(crate) use self::account::CertificateAuthority;
pub(crate) use self::order::{OrderContext, OrderRequest};
pub(crate) use self::responder::{TokenRecord, is_token};
