//! One probe of one server, from connecting to the verdict. Called by `probe`.
//!
//! # Invariants
//!
//! - It ends within twice `health.timeout`, whatever the server does.
//! - It stores no more of a response than its head.

use std::io;
use std::pin::pin;
use std::time::Duration;

use penstock_client::{ClientError, read_head, read_more};
use penstock_config::{self as config, HealthCheck, HostHeader, Protocol, ProxyProtocol};
use penstock_http::ResponseHeadScanner;
use penstock_runtime::{Stream, clock};
use penstock_wire::gateway::GatewayError;
use penstock_wire::{ajp, fastcgi, proxy_protocol};
use thiserror::Error;

use crate::connection::{
    BackendServer, ConnectionSetup, ResolvedAddress, SetupError, exhausted_local_resource,
};

/// Why a probe failed.
#[derive(Debug, Error)]
pub(super) enum ProbeError {
    #[error("cannot connect: out of {0} on this host")]
    LocalShortage(&'static str),
    #[error("no response within health.timeout ({0:?})")]
    Timeout(Duration),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("status {0}")]
    Status(u16),
    #[error("malformed response: {0}")]
    Gateway(#[from] GatewayError),
}

impl ProbeError {
    /// Whether the failure says nothing about the server.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::LocalShortage(_))
    }
}

/// Probes a server. A late one gets `health.timeout` once more if `make_room` has freed resources
/// of the server.
///
/// # Errors
/// Why the server is not healthy, or cannot be probed.
pub(super) async fn check_server(
    (server, config): (&BackendServer, &config::Upstream),
    setup: ConnectionSetup,
    make_room: impl FnOnce() -> bool,
) -> Result<(), ProbeError> {
    let Some(health) = &config.health else {
        return Ok(());
    };
    let deadline = clock::now() + health.timeout;
    let connected = clock::timeout_at(deadline, connect(&server.address)).await;
    let late = || ClientError::Connect(io::ErrorKind::TimedOut.into());
    let stream = connected.ok_or_else(late)??;
    let setup = ConnectionSetup {
        proxy_header: config.proxy_protocol.map(local_proxy_header),
        ..setup
    };
    // A server that is busy may not begin a handshake either.
    let mut answer = pin!(async {
        let stream = setup.prepare(stream, server).await?;
        run_probe(&stream, server, config, health).await
    });
    if let Some(answer) = clock::timeout_at(deadline, answer.as_mut()).await {
        return answer;
    }
    // On the same connection: a new one would lose the position in the server's own queue.
    if make_room()
        && let Some(answer) = clock::timeout(health.timeout, answer).await
    {
        return answer;
    }
    Err(ProbeError::Timeout(health.timeout))
}

async fn connect(address: &ResolvedAddress) -> Result<Stream, ProbeError> {
    address
        .connect()
        .await
        .map_err(|error| match exhausted_local_resource(address, &error) {
            Some(what) => ProbeError::LocalShortage(what),
            None => ClientError::Connect(error).into(),
        })
}

/// Without a client address: the server should treat the connection as a health check.
fn local_proxy_header(version: ProxyProtocol) -> Vec<u8> {
    let mut header = Vec::new();
    match version {
        ProxyProtocol::V1 => proxy_protocol::encode_v1(&mut header, None),
        ProxyProtocol::V2 => proxy_protocol::encode_v2(&mut header, None),
    }
    header
}

async fn run_probe(
    stream: &Stream,
    server: &BackendServer,
    config: &config::Upstream,
    health: &HealthCheck,
) -> Result<(), ProbeError> {
    let mut out = Vec::new();
    match (config.protocol, &health.path) {
        (Protocol::Http, Some(path)) => encode_get(&mut out, path, probe_host(server, config)),
        (Protocol::FastCgi, _) => fastcgi::encode_probe(&mut out),
        (Protocol::Ajp, _) => ajp::encode_probe(&mut out),
        (Protocol::Http, None) | (Protocol::Scgi | Protocol::Uwsgi, _) => {
            // The protocol has no query: accepting the connection is enough.
            return Ok(());
        }
    }
    stream.write_all(&out).await.map_err(ClientError::Io)?;
    match config.protocol {
        Protocol::FastCgi => read_until_answer(stream, fastcgi::parse_probe_response).await,
        Protocol::Ajp => read_until_answer(stream, ajp::parse_probe_response).await,
        _ => {
            let scanner = match config.strict {
                true => ResponseHeadScanner::new(),
                false => ResponseHeadScanner::lenient(),
            };
            let status = read_head(stream, &mut Vec::new(), scanner).await?.status;
            let (low, high) = health.status;
            match (low..=high).contains(&status) {
                true => Ok(()),
                false => Err(ProbeError::Status(status)),
            }
        }
    }
}

/// Encodes the request of a probe (RFC 9112 §3.2, §9.6); the configuration has validated `path` and
/// `host`.
fn encode_get(out: &mut Vec<u8>, path: &str, host: &str) {
    let lines = [
        "GET ",
        path,
        " HTTP/1.1\r\nHost: ",
        host,
        "\r\nUser-Agent: penstock-probe\r\nConnection: close\r\n\r\n",
    ];
    lines
        .iter()
        .for_each(|text| out.extend_from_slice(text.as_bytes()));
}

/// The `Host` of a probe, which has no client's.
fn probe_host<'a>(server: &'a BackendServer, config: &'a config::Upstream) -> &'a str {
    match &config.host {
        HostHeader::Custom(text) => text,
        HostHeader::Client | HostHeader::Server => &server.authority,
    }
}

/// Reads until `answer` finds a response.
async fn read_until_answer(
    stream: &Stream,
    answer: impl Fn(&[u8]) -> Result<Option<usize>, GatewayError>,
) -> Result<(), ProbeError> {
    let mut received = Vec::new();
    while answer(&received)?.is_none() {
        read_more(stream, &mut received).await?;
    }
    Ok(())
}
