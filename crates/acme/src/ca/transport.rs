//! Requests to one authority over HTTPS, for the protocol library.
//!
//! # Invariants
//! - Every request has one deadline, from the connection to the last byte of the body.
//! - A response has a bound.
//! - An error status becomes a [`CallError`] with reason and `Retry-After`, which the library
//!   drops. Status 400 passes: the library repeats requests with a stale nonce (RFC 8555 §6.5).

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::header::{CONTENT_TYPE, HeaderValue, LINK, RETRY_AFTER, USER_AGENT};
use hyper::http::response::Parts;
use hyper::{Method, Request, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient, Problem};
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};

use crate::error::CallError;

/// A client for one authority. Clones share connections.
#[derive(Clone)]
pub(crate) struct Transport {
    client: Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>,
    timeout: Duration,
    /// Certificate responses by URL, for the choice of a chain; only filled if one is preferred.
    chains: Option<Arc<Mutex<HashMap<String, ChainResponse>>>>,
    /// The authority's name in `dns-persist-01` records; the library drops it.
    issuer_domain: Arc<Mutex<Option<String>>>,
}

/// A downloaded chain and the URLs of its alternatives (RFC 8555 §7.4.2).
#[derive(Debug, Clone)]
pub(crate) struct ChainResponse {
    pub(crate) pem: String,
    pub(crate) alternates: Vec<String>,
}

type LibraryResult = Result<BytesResponse, instant_acme::Error>;

impl Transport {
    pub(crate) fn new(
        roots: RootCertStore,
        timeout: Duration,
        keep_chains: bool,
    ) -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(timeout / 2));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_only()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self {
            client: Client::builder(TokioExecutor::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_max_idle_per_host(2)
                .build(connector),
            timeout,
            chains: keep_chains.then(Arc::default),
            issuer_domain: Arc::default(),
        })
    }

    /// Takes the chain that was downloaded from `url`.
    pub(crate) fn take_chain(&self, url: &str) -> Option<ChainResponse> {
        self.chains.as_ref()?.lock().remove(url)
    }

    /// The authority's name in `dns-persist-01` records, once it has offered that challenge.
    pub(crate) fn issuer_domain(&self) -> Option<String> {
        self.issuer_domain.lock().clone()
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> LibraryResult {
        let url = request.uri().to_string();
        let is_get = request.method() == Method::GET;
        let host = request.uri().host().unwrap_or_default().to_owned();
        let exchange = self.exchange(request, &host);
        let answer = match tokio::time::timeout(self.timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Timeout {
                host: host.clone(),
                after: self.timeout,
            }),
        };
        let (mut parts, body) = answer.map_err(library_error)?;
        if let Some(error) = error_of_status(&parts, &body, host) {
            return Err(library_error(error));
        }
        if is_get && !parts.headers.contains_key(RETRY_AFTER) {
            // The library requires one for renewal information. RFC 9773 §4.3.3 names the default.
            let default = HeaderValue::from_static("21600");
            parts.headers.insert(RETRY_AFTER, default);
        }
        self.keep_chain(url, &parts, &body);
        if let Some(domain) = find_issuer_domain(&body) {
            *self.issuer_domain.lock() = Some(domain);
        }
        Ok(BytesResponse {
            parts,
            body: Box::new(body),
        })
    }

    async fn exchange(
        &self,
        mut request: Request<BodyWrapper<Bytes>>,
        host: &str,
    ) -> Result<(Parts, Bytes), CallError> {
        let agent = HeaderValue::from_static(USER_AGENT_VALUE);
        request.headers_mut().insert(USER_AGENT, agent);
        let unreachable = |cause: String| CallError::Unreachable {
            host: host.to_owned(),
            cause,
        };
        let response = self.client.request(request).await;
        let (parts, body) = response
            .map_err(|e| unreachable(root_cause(&e)))?
            .into_parts();
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| unreachable(root_cause(&*error)))?;
        Ok((parts, body.to_bytes()))
    }

    fn keep_chain(&self, url: String, parts: &Parts, body: &Bytes) {
        let Some(chains) = &self.chains else { return };
        let content_type = parts.headers.get(CONTENT_TYPE);
        if content_type.is_none_or(|value| !value.as_bytes().starts_with(CHAIN_TYPE)) {
            return;
        }
        let mut chains = chains.lock();
        // Chains of orders that were given up.
        if chains.len() >= MAX_KEPT_CHAINS {
            chains.clear();
        }
        let response = ChainResponse {
            pem: String::from_utf8_lossy(body).into_owned(),
            alternates: alternate_links(parts),
        };
        chains.insert(url, response);
    }
}

impl HttpClient for Transport {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = LibraryResult> + Send>> {
        Box::pin(self.clone().send(request))
    }
}

/// Larger than a long chain and a directory; smaller than an attack on memory.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
const MAX_KEPT_CHAINS: usize = 64;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const CHAIN_TYPE: &[u8] = b"application/pem-certificate-chain";
const USER_AGENT_VALUE: &str = concat!("penstock/", env!("CARGO_PKG_VERSION"));

fn error_of_status(parts: &Parts, body: &Bytes, host: String) -> Option<CallError> {
    if !parts.status.is_client_error() && !parts.status.is_server_error() {
        return None;
    }
    let problem = serde_json::from_slice::<Box<Problem>>(body).ok();
    if parts.status == StatusCode::BAD_REQUEST && problem.is_some() {
        return None;
    }
    Some(CallError::Status {
        host,
        status: parts.status.as_u16(),
        problem,
        retry_at: retry_at(parts, SystemTime::now()),
    })
}

/// Reads `Retry-After` (RFC 9110 §10.2.3): a number of seconds or a date.
fn retry_at(parts: &Parts, now: SystemTime) -> Option<SystemTime> {
    let value = parts.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match u64::from_str(value) {
        Ok(seconds) => now.checked_add(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(value).ok(),
    }
}

/// Finds the first of a challenge's `issuer-domain-names` in an authorization.
fn find_issuer_domain(body: &Bytes) -> Option<String> {
    memchr::memmem::find(body, b"\"issuer-domain-names\"")?;
    let authorization: serde_json::Value = serde_json::from_slice(body).ok()?;
    let challenges = authorization.get("challenges")?.as_array()?;
    let mut names = challenges
        .iter()
        .filter_map(|challenge| challenge.get("issuer-domain-names"));
    Some(names.next()?.get(0)?.as_str()?.to_owned())
}

/// The targets of `Link: <...>;rel="alternate"` (RFC 8288).
fn alternate_links(parts: &Parts) -> Vec<String> {
    let values = parts.headers.get_all(LINK).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let links = values.flat_map(|value| value.split(','));
    links
        .filter_map(|link| {
            let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
            let is_alternate = parameters.replace([' ', '"'], "").contains("rel=alternate");
            is_alternate.then(|| target.to_owned())
        })
        .collect()
}

fn library_error(error: CallError) -> instant_acme::Error {
    instant_acme::Error::Other(Box::new(error))
}

/// The innermost cause: the outer ones say "client error" and "connect error".
fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
