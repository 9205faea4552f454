//! One request on its way to a handler.
//!
//! Made by `edge` once the head is parsed and its path normalised; moved from handler to handler
//! (fall-through gives it back unchanged).

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use penstock_http::{
    HeadWriter, RequestHead, RequestHeadError, UriError, encode_path, normalise_path,
};
use penstock_sys::net::PeerAddress;

use crate::field_policy::TrustedHeaders;
use crate::{
    AddressPrefix, ClientState, ForwardedInfo, Mount, RequestBody, SendfileGrant, TrustedProxies,
};

/// What a listener tells handlers about itself.
#[derive(Debug, Clone)]
pub struct ListenerInfo {
    /// `http` (or `https`, once there is TLS).
    pub scheme: &'static str,
    /// Its real TCP address; `None` for a Unix socket.
    pub address: Option<SocketAddr>,
    /// As printed: `http://127.0.0.1:8080` or `unix:/run/x.sock`.
    pub name: String,
    /// Whether each connection begins with a PROXY protocol header, which names the client.
    pub proxy_protocol: bool,
}

/// One request.
#[derive(Debug)]
pub struct Request {
    /// The parsed head; shared with edge, which logs it.
    pub head: Arc<RequestHead>,
    /// The body, unread.
    pub body: RequestBody,
    /// Who sent it.
    pub peer: PeerAddress,
    /// Where it came in.
    pub listener: Arc<ListenerInfo>,
    /// Whether the client is still there.
    pub client_state: Arc<ClientState>,
    /// When its head was complete.
    pub arrived: Instant,
    /// Whose word about their own clients is taken.
    pub trusted_proxies: Arc<TrustedProxies>,
    /// What trusted proxies say of it; `None` for nearly all.
    pub forwarded: Option<Arc<ForwardedInfo>>,
    /// What was stripped from the front of its path.
    pub mount: Mount,
    /// The fields of its head that the route's own rules said, not the client.
    pub trusted_headers: TrustedHeaders,
    /// Leave for its response to name another body, where its route gives that.
    pub sendfile_grant: Option<Arc<SendfileGrant>>,
    path: RequestPath,
}

/// A request's path: percent-decoded once, free of `.` and `..` segments and of repeated slashes.
#[derive(Debug)]
pub struct RequestPath {
    text: RequestPathText,
    is_ambiguous: bool,
}

#[derive(Debug)]
enum RequestPathText {
    /// The first so many bytes of the target's origin form are the path already.
    Unchanged(usize),
    Decoded(Vec<u8>),
}

impl RequestPath {
    /// The path that `head` asks for; a copy only where it is not written as it is meant.
    ///
    /// # Errors
    /// When the target's path is not a path (bad percent-encoding, above the root, control bytes).
    pub fn from_head(head: &RequestHead) -> Result<Self, UriError> {
        // `OPTIONS *` and CONNECT have no path; edge answers both itself.
        let target = head.target_path_query();
        if matches!(target, "*" | "") {
            return Ok(Self {
                text: RequestPathText::Unchanged(target.len()),
                is_ambiguous: false,
            });
        }
        let normal = normalise_path(target)?;
        Ok(Self {
            text: match normal.path {
                Cow::Borrowed(path) => RequestPathText::Unchanged(path.len()),
                Cow::Owned(path) => RequestPathText::Decoded(path),
            },
            is_ambiguous: normal.is_ambiguous,
        })
    }

    /// Whether a program behind could read the target as another path than this one. It then gets the
    /// head of [`RequestPath::unambiguous_head`].
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// The head that asks for this very path, in a target that has one reading.
    ///
    /// # Errors
    /// When it makes no valid head.
    pub fn unambiguous_head(&self, head: &RequestHead) -> Result<RequestHead, RequestHeadError> {
        let mut target = encode_path(self.bytes(head));
        if let Some((_, query)) = head.target_path_query().split_once('?') {
            target.push('?');
            target.push_str(query);
        }
        HeadWriter::with_target(head, &target).finish()
    }

    /// The path of `name` in the folder that this is the path of, with its slash.
    #[must_use]
    pub fn join(&self, head: &RequestHead, name: &str) -> Self {
        Self {
            text: RequestPathText::Decoded([self.bytes(head), name.as_bytes()].concat()),
            is_ambiguous: self.is_ambiguous,
        }
    }

    /// Its bytes; `head` is the one that it was made of. Starts with `/`, but for `OPTIONS *`, where
    /// it is `*`.
    #[must_use]
    pub fn bytes<'a>(&'a self, head: &'a RequestHead) -> &'a [u8] {
        match &self.text {
            RequestPathText::Unchanged(len) => &head.path_query_bytes()[..*len],
            RequestPathText::Decoded(path) => path,
        }
    }
}

/// The parts of a request that `edge` knows besides its head and body.
#[derive(Debug)]
pub struct RequestOrigin {
    /// Who sent it.
    pub peer: PeerAddress,
    /// Where it came in.
    pub listener: Arc<ListenerInfo>,
    /// Whether the client is still there.
    pub client_state: Arc<ClientState>,
    /// When its head was complete.
    pub arrived: Instant,
    /// Whose word about their own clients is taken.
    pub trusted_proxies: Arc<TrustedProxies>,
    /// What trusted proxies say of it.
    pub forwarded: Option<Arc<ForwardedInfo>>,
    /// What was stripped from the front of its path.
    pub mount: Mount,
}

impl Request {
    /// The other end of its connection, as the log names it.
    #[must_use]
    pub fn peer_name(&self) -> String {
        match self.peer {
            PeerAddress::Tcp(address) => address.to_string(),
            PeerAddress::Unix => "unix".to_owned(),
        }
    }

    /// A request from its head and the path in it.
    #[must_use]
    pub fn new(
        head: Arc<RequestHead>,
        path: RequestPath,
        body: RequestBody,
        arrival: RequestOrigin,
    ) -> Self {
        let RequestOrigin {
            peer,
            listener,
            client_state: client,
            arrived: at,
            trusted_proxies: trust,
            forwarded,
            mount,
        } = arrival;
        let named = forwarded.as_ref().and_then(|it| it.client);
        let address = named.unwrap_or(peer);
        client.set_address_prefix(AddressPrefix::from_address(address), trust.covers(address));
        Self {
            head,
            body,
            peer,
            listener,
            client_state: client,
            arrived: at,
            trusted_proxies: trust,
            forwarded,
            mount,
            trusted_headers: TrustedHeaders::default(),
            sendfile_grant: None,
            path,
        }
    }

    /// The path; see [`RequestPath::bytes`].
    #[must_use]
    pub fn path(&self) -> &[u8] {
        self.path.bytes(&self.head)
    }

    /// Has what follows read it as a request for `name` in the folder that its path names.
    pub fn descend_into(&mut self, name: &str) {
        self.path = self.path.join(&self.head, name);
    }

    /// The scheme that the client used: what a trusted proxy says, else the listener's.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        let forwarded = self.forwarded.as_ref().and_then(|it| it.scheme);
        forwarded.unwrap_or(self.listener.scheme)
    }

    /// The client's address: what a trusted proxy says, else the peer's. A port of 0 is not known.
    #[must_use]
    pub fn client_address(&self) -> PeerAddress {
        let forwarded = self.forwarded.as_ref().and_then(|it| it.client);
        forwarded.unwrap_or(self.peer)
    }

    /// The authority that the client asked for: what a trusted proxy says, else the head's.
    #[must_use]
    pub fn host(&self) -> &str {
        let forwarded = self.forwarded.as_ref();
        let host = forwarded.and_then(|it| it.host.as_deref());
        host.unwrap_or_else(|| self.head.host())
    }

    /// Whether its peer may speak for a client of its own.
    #[must_use]
    pub fn is_from_trusted_proxy(&self) -> bool {
        self.trusted_proxies.covers(self.peer)
    }

    /// The query without its `?`, as sent; `None` when there is no `?`.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.head
            .target_path_query()
            .split_once('?')
            .map(|(_, query)| query)
    }
}
