//! Asks `acme.on_demand.ask` whether a name may have a certificate.

use std::net::ToSocketAddrs;
use std::time::Duration;

use penstock_acme::{CallbackError, CallbackFuture, CertificateName, OnDemandPolicy};
use penstock_client::{Address, Client};
use penstock_runtime::LoopHandle;
use penstock_runtime::blocking::Pool;
use tokio::sync::oneshot;

use super::acme::AcmeEnvironment;

/// How long one answer may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest answer; its status alone counts.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// The URL.
pub(super) struct AskUrl {
    authority: String,
    target: String,
    pool: Pool,
    event_loop: LoopHandle,
}

impl AskUrl {
    pub(super) fn new(url: &str, environment: &AcmeEnvironment) -> Self {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let target = match target.starts_with('/') {
            true => target.to_owned(),
            false => format!("/{target}"),
        };
        Self {
            authority: authority.to_owned(),
            target,
            pool: environment.pool.clone(),
            event_loop: environment.event_loop.clone(),
        }
    }

    fn request(&self, name: &CertificateName) -> String {
        let separator = if self.target.contains('?') { '&' } else { '?' };
        format!(
            "GET {}{separator}domain={name} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.target, self.authority
        )
    }
}

impl OnDemandPolicy for AskUrl {
    fn is_allowed(&self, name: &CertificateName) -> CallbackFuture<bool> {
        let (request, authority) = (self.request(name), self.authority.clone());
        let pool = self.pool.clone();
        let (done, answer) = oneshot::channel();
        self.event_loop.spawn(async move {
            let _ = done.send(ask(&authority, &request, &pool).await);
        });
        Box::pin(async move {
            let answer = answer
                .await
                .unwrap_or_else(|_| Err("it was not asked".to_owned()));
            answer.map_err(|error| CallbackError(format!("acme.on_demand.ask: {error}")))
        })
    }
}

async fn ask(authority: &str, request: &str, pool: &Pool) -> Result<bool, String> {
    // The colons of an IPv6 address are within brackets.
    let has_port = authority
        .rsplit(']')
        .next()
        .is_some_and(|end| end.contains(':'));
    let address = match has_port {
        true => authority.to_owned(),
        false => format!("{authority}:80"),
    };
    let addresses = pool
        .run(move || address.to_socket_addrs().map(Vec::from_iter))
        .await;
    let addresses = addresses.map_err(|error| error.to_string())?;
    let addresses = addresses.map_err(|error| format!("cannot resolve the name: {error}"))?;
    let address = addresses.first().ok_or("the name has no address")?;
    let mut client = Client::new(Address::Tcp(*address));
    let answer = client
        .exchange(request.as_bytes(), ASK_TIMEOUT, MAX_ANSWER_BYTES)
        .await;
    Ok(answer.map_err(|error| error.to_string())?.status == 200)
}
