//! An original request as another process gets it.
//!
//! The head goes as text and is parsed there by the parser for clients' requests.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use penstock_exchange::field_policy::TrustedHeaders;
use penstock_exchange::request::RequestEnvironment;
use penstock_exchange::{AddressSource, ForwardedInfo, ListenerInfo, Mount};
use penstock_http::{HeadLimits, ParseProgress, RequestHead, parse_head};
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;
use serde::{Deserialize, Serialize};

use super::OriginalRequest;
use crate::handler::GripShared;

/// The head passed the limits where it arrived.
const UNLIMITED: HeadLimits = HeadLimits {
    max_target_bytes: usize::MAX,
    max_head_bytes: usize::MAX,
    max_fields: usize::MAX,
};

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::handler) struct RequestRecord {
    /// In base64: values may have any bytes.
    head: String,
    peer: AddressRecord,
    listener: ListenerRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forwarded: Option<ForwardedRecord>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    mount: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    trusted_headers: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AddressRecord {
    Tcp(SocketAddr),
    Unix,
}

#[derive(Debug, Serialize, Deserialize)]
struct ListenerRecord {
    scheme: String,
    address: Option<SocketAddr>,
    name: String,
    proxy_protocol: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct ForwardedRecord {
    client: Option<AddressRecord>,
    scheme: Option<String>,
    host: Option<Box<str>>,
    port: Option<u16>,
    mount: String,
    source: AddressSource,
}

impl OriginalRequest {
    pub(in crate::handler) fn record(&self) -> RequestRecord {
        let RequestEnvironment {
            peer,
            listener,
            forwarded,
            mount,
            ..
        } = &self.environment;
        RequestRecord {
            head: STANDARD.encode(head_text(&self.head)),
            peer: (*peer).into(),
            listener: ListenerRecord {
                scheme: listener.scheme.to_owned(),
                address: listener.address,
                name: listener.name.clone(),
                proxy_protocol: listener.proxy_protocol,
            },
            forwarded: forwarded.as_ref().map(|forwarded| ForwardedRecord {
                client: forwarded.client.map(AddressRecord::from),
                scheme: forwarded.scheme.map(str::to_owned),
                host: forwarded.host.clone(),
                port: forwarded.port,
                mount: forwarded.mount.path().to_owned(),
                source: forwarded.source,
            }),
            mount: mount.path().to_owned(),
            trusted_headers: self.trusted_headers.names().map(str::to_owned).collect(),
        }
    }
}

impl RequestRecord {
    /// The request again, for requests to links: it has no client of its own here.
    ///
    /// # Errors
    /// Why it is none.
    pub(in crate::handler) fn into_request(
        self,
        shared: &GripShared,
    ) -> Result<OriginalRequest, String> {
        let head = STANDARD.decode(&self.head);
        let head = head.map_err(|error| format!("the head of its request: {error}"))?;
        let forwarded = self.forwarded.map(|forwarded| {
            Arc::new(ForwardedInfo {
                client: forwarded.client.map(PeerAddress::from),
                scheme: forwarded.scheme.as_deref().map(known_scheme),
                host: forwarded.host,
                port: forwarded.port,
                mount: Mount::new(&forwarded.mount),
                source: forwarded.source,
            })
        });
        Ok(OriginalRequest {
            head: Arc::new(parse_text(&head)?),
            environment: RequestEnvironment {
                peer: self.peer.into(),
                listener: Arc::new(ListenerInfo {
                    scheme: known_scheme(&self.listener.scheme),
                    address: self.listener.address,
                    name: self.listener.name,
                    proxy_protocol: self.listener.proxy_protocol,
                    has_tls: false,
                }),
                client_state: Arc::default(),
                arrived_at: clock::now(),
                trusted_proxies: Arc::clone(&shared.trusted_proxies),
                forwarded,
                mount: Mount::new(&self.mount),
            },
            trusted_headers: TrustedHeaders::new(self.trusted_headers),
            is_repeatable: false,
        })
    }
}

impl From<PeerAddress> for AddressRecord {
    fn from(address: PeerAddress) -> Self {
        match address {
            PeerAddress::Tcp(address) => Self::Tcp(address),
            PeerAddress::Unix => Self::Unix,
        }
    }
}

impl From<AddressRecord> for PeerAddress {
    fn from(record: AddressRecord) -> Self {
        match record {
            AddressRecord::Tcp(address) => Self::Tcp(address),
            AddressRecord::Unix => Self::Unix,
        }
    }
}

fn head_text(head: &RequestHead) -> Vec<u8> {
    let line = [head.method_str(), head.target(), head.version().as_str()].join(" ");
    let mut text = [line.as_bytes(), b"\r\n"].concat();
    for (name, value) in head.fields() {
        for part in [name.as_bytes(), b": ", value, b"\r\n"] {
            text.extend_from_slice(part);
        }
    }
    text.extend_from_slice(b"\r\n");
    text
}

fn parse_text(text: &[u8]) -> Result<RequestHead, String> {
    match parse_head(text, &UNLIMITED) {
        Ok(ParseProgress::Complete((head, used))) if used == text.len() => Ok(head),
        Ok(_) => Err("the head of its request has no end, or more than one".to_owned()),
        Err(error) => Err(format!("the head of its request: {error}")),
    }
}

fn known_scheme(scheme: &str) -> &'static str {
    match scheme {
        "https" => "https",
        _ => "http",
    }
}
