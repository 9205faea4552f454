//! One request to a server that the configuration names by a URL: a set of keys, a collector of
//! traces.
//!
//! # Invariants
//! - A name is resolved in the caller's pool, and never on a loop.

use std::net::ToSocketAddrs;
use std::time::Duration;

use penstock_client::{Address, Client, Response, TlsTarget};
use penstock_runtime::blocking::Pool;
use penstock_tls::{ClientTlsOptions, ServerTrust, client_config, server_name, system_roots};

/// Addresses of a name that are tried: two machines with two families.
const MAX_TRIED_ADDRESSES: usize = 4;

/// Sends a request, head and body, to the server of this authority, with or without TLS, over a
/// connection of its own. `timeout` is for the exchange, `max_body` for the body of the response.
/// Another address of the name is tried where the first one fails, so that the request may arrive
/// twice: it must be one that does no harm then.
///
/// # Errors
/// Why there is no complete response, in words.
pub(crate) async fn send(
    (has_tls, authority): (bool, &str),
    request: &[u8],
    pool: &Pool,
    timeout: Duration,
    max_body: usize,
) -> Result<Response, String> {
    // The colons of an IPv6 address are within brackets.
    let has_port = authority
        .rsplit(']')
        .next()
        .is_some_and(|end| end.contains(':'));
    let name = match (has_port, has_tls) {
        (true, _) => authority.to_owned(),
        (false, true) => format!("{authority}:443"),
        (false, false) => format!("{authority}:80"),
    };
    let tls = match has_tls {
        false => None,
        true => Some(server_tls(&name, pool).await?),
    };
    let addresses = pool.run(move || name.to_socket_addrs().map(Vec::from_iter));
    let addresses = addresses.await.map_err(|error| error.to_string())?;
    let addresses = addresses.map_err(|error| format!("cannot resolve the name: {error}"))?;
    let mut failure = "the name has no address".to_owned();
    // Each address has a part of the time: the first one may be down.
    let tried = addresses.len().clamp(1, MAX_TRIED_ADDRESSES);
    let timeout = timeout / u32::try_from(tried).unwrap_or(1);
    for address in addresses.into_iter().take(tried) {
        let mut client = Client::new(Address::Tcp(address)).with_tls(tls.clone());
        match client.exchange(request, timeout, max_body).await {
            Ok(answer) => return Ok(answer),
            Err(error) => failure = format!("{address}: {error}"),
        }
    }
    Err(failure)
}

/// Trust in the system's authorities, and the name that the server at `HOST:PORT` must prove.
async fn server_tls(server: &str, pool: &Pool) -> Result<TlsTarget, String> {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let name = server_name(host).map_err(|error| error.to_string())?;
    // Read again each time: requests are few, and authorities change.
    let roots = pool.run(system_roots).await;
    let roots = roots.map_err(|error| error.to_string())?;
    let config = client_config(ClientTlsOptions {
        trust: ServerTrust::Authorities(roots.map_err(|error| error.to_string())?),
        certificate: None,
        alpn: vec![b"http/1.1".to_vec()],
        key_log: None,
    });
    Ok(TlsTarget {
        config: config.map_err(|error| error.to_string())?,
        server_name: name,
    })
}
