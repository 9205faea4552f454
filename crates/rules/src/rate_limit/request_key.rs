//! What a request counts as: its client, user, host, path, fields and cookies.

use penstock_config::RateKey;
use penstock_exchange::{AddressPrefix, Request};
use penstock_http::strip_port;

/// The key of a request; `None` where it lacks a part of it: such requests are not counted.
pub(crate) fn request_key(keys: &[RateKey], request: &Request) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(32);
    for part in keys {
        key.push(0);
        match part {
            RateKey::Client => {
                let prefix = AddressPrefix::from_address(request.client_address());
                key.extend_from_slice(&prefix.to_bits().to_le_bytes());
            }
            RateKey::Host => {
                let host = strip_port(request.host());
                let host = host.strip_suffix('.').unwrap_or(host);
                key.extend(host.bytes().map(|byte| byte.to_ascii_lowercase()));
            }
            RateKey::Path => key.extend_from_slice(request.path()),
            // All of them: a back end may read another than the first.
            RateKey::Header(name) => append_all(&mut key, request.head.field_values(name))?,
            RateKey::Cookie(name) => {
                let cookies = request.head.cookies();
                let named = cookies.filter(|(found, _)| *found == name.as_bytes());
                append_all(&mut key, named.map(|(_, value)| value))?;
            }
            RateKey::User => {
                let user = request.client_state.user()?;
                key.extend_from_slice(user.as_bytes());
            }
            RateKey::Route => {}
        }
    }
    Some(key)
}

/// Appends values; `None` if there is none.
fn append_all<'v>(key: &mut Vec<u8>, values: impl Iterator<Item = &'v [u8]>) -> Option<()> {
    let before = key.len();
    for value in values {
        key.push(b',');
        key.extend_from_slice(value);
    }
    (key.len() > before).then_some(())
}
