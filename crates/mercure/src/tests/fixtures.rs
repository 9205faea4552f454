//! Tokens, requests and settings that the tests of this crate share.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_config::{KeySetSource, MercureKey, MercureKeys, RouteMercure};
use penstock_exchange::request::RequestEnvironment;
use penstock_exchange::{
    Fault, IncomingBody, ListenerInfo, Mount, Request, RequestBody, RequestPath,
};
use penstock_http::{HeadLimits, ParseProgress, RequestHead, parse_head};
use penstock_sys::net::PeerAddress;
use penstock_tokens::SharedKeySet;
use serde_json::{Value, json};

pub(crate) const PUBLISHER_KEY: &str = "a key of publishers, which is long enough";
pub(crate) const SUBSCRIBERS_KEY: &str = "a key of subscribers, which is long enough";

/// A route that takes tokens of both keys and lets any client subscribe.
pub(crate) fn settings() -> RouteMercure {
    let key = |key: &str| {
        Some(MercureKeys::Single(MercureKey {
            key: key.into(),
            algorithm: "HS256".to_owned(),
        }))
    };
    RouteMercure {
        publisher_key: key(PUBLISHER_KEY),
        subscriber_key: key(SUBSCRIBERS_KEY),
        issuer: None,
        audience: None,
        anonymous: true,
        origins: vec!["https://page.example".to_owned()],
        subscriptions: false,
        heartbeat_interval: None,
        heartbeat_event: None,
    }
}

/// For settings without a set of keys.
pub(crate) fn no_key_sets(source: &KeySetSource) -> Arc<SharedKeySet> {
    panic!("{source} is not in these settings")
}

/// A token with these claims.
pub(crate) fn sign_token(key: &str, claims: &Value) -> String {
    sign_token_with_header(key, &json!({ "alg": "HS256", "typ": "JWT" }), claims)
}

pub(crate) fn sign_token_with_header(key: &str, header: &Value, claims: &Value) -> String {
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let [header, claims] = [header, claims].map(|part| encode(part.to_string().as_bytes()));
    let signed = format!("{header}.{claims}");
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let signature = encode(hmac::sign(&key, signed.as_bytes()).as_ref());
    format!("{signed}.{signature}")
}

/// A token that may publish to these topics.
pub(crate) fn publisher_token(topics: &[&str]) -> String {
    sign_token(PUBLISHER_KEY, &json!({ "mercure": { "publish": topics } }))
}

/// A token that may see private updates of these topics.
pub(crate) fn subscriber_token(topics: &[&str]) -> String {
    sign_token(
        SUBSCRIBERS_KEY,
        &json!({ "mercure": { "subscribe": topics } }),
    )
}

/// A head from its lines, without the blank one.
pub(crate) fn head(lines: &[&str]) -> RequestHead {
    let raw = format!("{}\r\n\r\n", lines.join("\r\n"));
    let limits = HeadLimits {
        max_target_bytes: 1 << 20,
        max_head_bytes: 1 << 20,
        max_fields: 100,
    };
    match parse_head(raw.as_bytes(), &limits).unwrap() {
        ParseProgress::Complete((head, _)) => head,
        ParseProgress::Partial => panic!("the head is not whole: {raw:?}"),
    }
}

/// A request to the host `hub.example`.
pub(crate) fn request(line: &str, fields: &[&str], body: Option<&str>) -> Request {
    let line = format!("{line} HTTP/1.1");
    let mut lines = vec![&*line, "Host: hub.example"];
    lines.extend(fields);
    let head = head(&lines);
    let arrival = RequestEnvironment {
        peer: PeerAddress::Unix,
        listener: Arc::new(ListenerInfo {
            scheme: "http",
            address: None,
            name: "test".to_owned(),
            proxy_protocol: false,
            has_tls: false,
        }),
        client_state: Arc::default(),
        trusted_proxies: Arc::default(),
        forwarded: None,
        mount: Mount::default(),
        arrived_at: Instant::now(),
    };
    let path = RequestPath::from_head(&head).unwrap();
    let body = body.map_or(RequestBody::Empty, |text| {
        RequestBody::Incoming(Box::new(ChunkedBody {
            remaining: text.into(),
            length: Some(text.len() as u64),
        }))
    });
    Request::new(Arc::new(head), path, body, arrival)
}

/// A body that comes in pieces.
pub(crate) struct ChunkedBody {
    pub(crate) remaining: Vec<u8>,
    pub(crate) length: Option<u64>,
}

impl IncomingBody for ChunkedBody {
    fn poll_fill(&mut self, _: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        let size = self.remaining.len().min(1000);
        into.extend(self.remaining.drain(..size));
        Poll::Ready(Ok(!self.remaining.is_empty()))
    }

    fn length(&self) -> Option<u64> {
        self.length
    }
}
