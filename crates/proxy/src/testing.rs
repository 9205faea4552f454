//! Builds requests as edge makes them, for the tests of `request_head`, `environ` and `codec`.
//!
//! The client is `CLIENT_ADDRESS`, which is not trusted, unless the test names another peer; the
//! listener is on 127.0.0.1:8080.

use std::net::SocketAddr;
use std::sync::Arc;

use penstock_config as config;
use penstock_exchange::field_policy::TrustedHeaders;
use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{
    ClientCertificate, ClientState, ClientVerification, ForwardedInfo, ListenerInfo, Request,
    RequestBody, TlsInfo, TrustedProxies,
};
use penstock_http::{HeadLimits, ParseProgress, parse_head};
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

/// The client of requests.
pub(crate) const CLIENT_ADDRESS: &str = "192.0.2.7:50000";
/// A trusted peer.
pub(crate) const PROXY_ADDRESS: &str = "127.0.0.1:50000";

/// The request of `CLIENT_ADDRESS` with that head, which ends with its blank line.
pub(crate) fn request(head: &str) -> Request {
    build_request_from(head, CLIENT_ADDRESS)
}

/// Builds the request of a peer: an address, or `unix`.
pub(crate) fn build_request_from(head: &str, peer: &str) -> Request {
    let peer = match peer {
        "unix" => PeerAddress::Unix,
        address => PeerAddress::Tcp(address.parse().unwrap()),
    };
    let listens = Some("127.0.0.1:8080".parse().unwrap());
    request_at(head, peer, "http", listens)
}

/// The same at another listener.
pub(crate) fn request_at(
    head: &str,
    peer: PeerAddress,
    scheme: &'static str,
    listens: Option<SocketAddr>,
) -> Request {
    // This machine, as an operator lists it.
    let networks = ["127.0.0.0/8", "::1/128"].map(|text| text.parse().unwrap());
    let trust = TrustedProxies::new(networks.into(), true);
    build_request_trusting(head, peer, scheme, listens, trust)
}

/// The same with these trusted proxies.
pub(crate) fn build_request_trusting(
    head: &str,
    peer: PeerAddress,
    scheme: &'static str,
    listens: Option<SocketAddr>,
    trust: TrustedProxies,
) -> Request {
    let limits = HeadLimits {
        max_target_bytes: 8192,
        max_head_bytes: 200_000,
        max_fields: 100,
    };
    let Ok(ParseProgress::Complete((head, _))) = parse_head(head.as_bytes(), &limits) else {
        panic!("a valid head: {head:?}")
    };
    let listener = ListenerInfo {
        scheme,
        address: listens,
        name: String::new(),
        proxy_protocol: false,
        has_tls: false,
    };
    let trust = Arc::new(trust);
    let is_forwarded = ForwardedInfo::has_forwarding_fields(&head, &trust) && trust.covers(peer);
    let forwarded = is_forwarded.then(|| Arc::new(ForwardedInfo::read(&head, &trust).0));
    let mount = forwarded.as_ref().map(|info| info.mount.clone());
    let arrival = RequestEnvironment {
        peer,
        listener: Arc::new(listener),
        client_state: Arc::default(),
        trusted_proxies: trust,
        forwarded,
        mount: mount.unwrap_or_default(),
        arrived_at: clock::now(),
    };
    let path = RequestPath::from_head(&head).unwrap();
    Request::new(Arc::new(head), path, RequestBody::Empty, arrival)
}

/// Builds the request of a peer whose route's rules have set those fields.
pub(crate) fn build_request_with_trusted_headers(
    head: &str,
    peer: &str,
    trusted_headers: TrustedHeaders,
) -> Request {
    let mut request = build_request_from(head, peer);
    let is_trusted = request.is_from_trusted_proxy();
    let (head, trust) = (&request.head, &request.trusted_proxies);
    // The rest of the head counts as the peer's.
    let (info, _) =
        ForwardedInfo::read_with_trusted_headers(head, head, trust, is_trusted, &trusted_headers);
    request.mount = info.mount.clone();
    request.forwarded = (info != ForwardedInfo::default()).then(|| Arc::new(info));
    request.trusted_headers = trusted_headers;
    request
}

/// A client with a session of TLS and a verified certificate.
pub(crate) fn client_with_certificate() -> Arc<ClientState> {
    let certificate = ClientCertificate {
        subject: "CN=anna".into(),
        issuer: "CN=Clients".into(),
        serial: "0A".into(),
        fingerprint: "ab12".into(),
    };
    let tls = TlsInfo {
        version: "TLSv1.3",
        version_number: 0x0304,
        cipher: "AES_128_GCM_SHA256".into(),
        cipher_number: 0x1301,
        server_name: Some("a.test".into()),
        peer_certificates: [b"der"[..].into()].into(),
        client: ClientVerification::Verified(Box::new(certificate)),
        ..TlsInfo::default()
    };
    Arc::new(ClientState::new(Some(Arc::new(tls))))
}

/// The configuration of an upstream with every default.
pub(crate) fn upstream_config(protocol: config::Protocol) -> config::Upstream {
    config::Upstream::new("test", protocol, Vec::new())
}
