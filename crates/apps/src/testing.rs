//! A request as edge would have read it, and a body as edge would give it, for the tests of this
//! crate.
//!
//! What must stay true: the head goes through the parser that heads of clients go through.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{
    ClientCertificate, ClientState, ClientVerification, Fault, FaultKind, ForwardedInfo,
    IncomingBody, ListenerInfo, Request, RequestBody, TlsInfo, TrustedProxies,
};
use penstock_http::{HeadLimits, ParseProgress, parse_head};
use penstock_runtime::clock;
use penstock_sys::net::PeerAddress;

/// A request with this head and no body; `listens` is the address that it came to, none is a Unix
/// socket.
pub(crate) fn request(head: &str, peer: PeerAddress, listens: Option<&str>) -> Request {
    let limits = HeadLimits {
        max_target_bytes: 8192,
        max_head_bytes: 32768,
        max_fields: 100,
    };
    let Ok(ParseProgress::Complete((head, _))) = parse_head(head.as_bytes(), &limits) else {
        panic!("a valid head: {head:?}")
    };
    let listener = ListenerInfo {
        scheme: "http",
        address: listens.map(|address| address.parse().unwrap()),
        name: "unix:/run/a.sock".into(),
        proxy_protocol: false,
        has_tls: false,
    };
    // This machine, as an operator lists it.
    let networks = ["127.0.0.0/8", "::1/128"].map(|text| text.parse().unwrap());
    let trust = Arc::new(TrustedProxies::new(networks.into(), true));
    let is_trusted = ForwardedInfo::has_forwarding_fields(&head, &trust) && trust.covers(peer);
    let forwarded = is_trusted.then(|| Arc::new(ForwardedInfo::read(&head, &trust).0));
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

/// `GET path` over a Unix socket.
pub(crate) fn get(path: &str) -> Request {
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    request(&head, PeerAddress::Unix, None)
}

/// The next step of a scripted body.
#[derive(Debug)]
pub(crate) enum BodyScript {
    Bytes(usize),
    Piece(Vec<u8>),
    Fault(FaultKind),
    End,
}

/// The connection's side, shared with the body that stands for it.
#[derive(Debug, Default)]
pub(crate) struct ScriptedConnection {
    script: Mutex<VecDeque<BodyScript>>,
    waiting: Mutex<Option<Waker>>,
    /// Bytes that were read from it.
    pub(crate) read: AtomicUsize,
    /// How often its client's time was charged.
    pub(crate) charged: AtomicUsize,
    is_body_dropped: AtomicBool,
}

/// A request's body that a test plays.
pub(crate) struct ScriptedBody(Arc<ScriptedConnection>);

impl ScriptedBody {
    pub(crate) fn new() -> (Arc<ScriptedConnection>, Self) {
        let connection = Arc::<ScriptedConnection>::default();
        let body = Self(Arc::clone(&connection));
        (connection, body)
    }
}

impl ScriptedConnection {
    pub(crate) fn push(&self, step: BodyScript) {
        self.script.lock().unwrap().push_back(step);
        if let Some(waker) = self.waiting.lock().unwrap().take() {
            waker.wake();
        }
    }

    pub(crate) fn is_body_dropped(&self) -> bool {
        self.is_body_dropped.load(Ordering::SeqCst)
    }
}

impl IncomingBody for ScriptedBody {
    fn poll_fill(&mut self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        self.0.charged.fetch_add(1, Ordering::SeqCst);
        self.poll_prefetch(cx, into)
    }

    fn poll_prefetch(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<Result<bool, Fault>> {
        match self.0.script.lock().unwrap().pop_front() {
            Some(BodyScript::Bytes(count)) => {
                into.resize(into.len() + count, b'x');
                self.0.read.fetch_add(count, Ordering::SeqCst);
                Poll::Ready(Ok(true))
            }
            Some(BodyScript::Piece(bytes)) => {
                into.extend_from_slice(&bytes);
                Poll::Ready(Ok(true))
            }
            Some(BodyScript::Fault(kind)) => {
                Poll::Ready(Err(Fault::new(kind, "as the test wants it")))
            }
            Some(BodyScript::End) => Poll::Ready(Ok(false)),
            None => {
                *self.0.waiting.lock().unwrap() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_at_end(&self) -> bool {
        matches!(self.0.script.lock().unwrap().front(), Some(BodyScript::End))
    }

    fn length(&self) -> Option<u64> {
        None
    }
}

impl Drop for ScriptedBody {
    fn drop(&mut self) {
        self.0.is_body_dropped.store(true, Ordering::SeqCst);
    }
}
