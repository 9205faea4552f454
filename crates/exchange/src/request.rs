//! One request on its way to a handler.
//!
//! Made by `edge` once the head is parsed and its path normalised; moved from handler to handler.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_http::{
    HeadWriter, RequestHead, RequestHeadError, UriError, encode_path, normalise_path,
};
use penstock_sys::net::PeerAddress;

use crate::field_policy::TrustedHeaders;
use crate::{
    AddressPrefix, ClientState, ForwardedInfo, Mount, RequestBody, SendfileGrant, TrustedProxies,
};

/// A listener, as handlers know it.
#[derive(Debug, Clone)]
pub struct ListenerInfo {
    /// `http`, or `https` where connections have TLS.
    pub scheme: &'static str,
    /// Its real TCP address; `None` for a Unix socket.
    pub address: Option<SocketAddr>,
    /// As printed: `http://127.0.0.1:8080` or `unix:/run/x.sock`.
    pub name: String,
    /// Whether each connection begins with a PROXY protocol header, which names the client.
    pub proxy_protocol: bool,
    /// Whether each connection has a TLS session.
    pub has_tls: bool,
}

/// One request.
#[derive(Debug)]
pub struct Request {
    /// The parsed head; shared with edge, which logs it.
    pub head: Arc<RequestHead>,
    /// The body, unread.
    pub body: RequestBody,
    /// The other end of the connection.
    pub peer: PeerAddress,
    /// The listener that it came by.
    pub listener: Arc<ListenerInfo>,
    /// Whether the client is still there.
    pub client_state: Arc<ClientState>,
    /// When its head was complete.
    pub arrived_at: Instant,
    /// Proxies whose forwarding headers are trusted.
    pub trusted_proxies: Arc<TrustedProxies>,
    /// The information of trusted proxies about the client; `None` for nearly all.
    pub forwarded: Option<Arc<ForwardedInfo>>,
    /// The prefix stripped from its path.
    pub mount: Mount,
    /// Fields of its head that the route's own rules set.
    pub trusted_headers: TrustedHeaders,
    /// Permission for its response to name another body, where its route gives that.
    pub sendfile_grant: Option<Arc<SendfileGrant>>,
    /// How long its back end may take to respond, where its route says that, in milliseconds: a
    /// request is small.
    response_timeout_millis: Option<NonZeroU32>,
    /// Its head before the rules of its route; `None` if they changed nothing.
    pub client_head: Option<Arc<RequestHead>>,
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
    /// The path is this many first bytes of the target's origin form.
    Unchanged(usize),
    Decoded(Vec<u8>),
}

impl RequestPath {
    /// The path of `head`; a copy only where the target is not in normal form.
    ///
    /// # Errors
    /// When the target's path is invalid (bad percent-encoding, above the root, control bytes).
    pub fn from_head(head: &RequestHead) -> Result<Self, UriError> {
        // `OPTIONS *` and CONNECT have no path; edge responds to both itself.
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

    /// Whether a back end could read the target as another path than this one. It then gets the
    /// head of [`RequestPath::unambiguous_head`].
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// The head for this path, with a target that has one reading.
    ///
    /// # Errors
    /// When it makes no valid head.
    pub fn unambiguous_head(&self, head: &RequestHead) -> Result<RequestHead, RequestHeadError> {
        let mut target = encode_path(self.bytes(head));
        if let Some((_, query)) = head.target_path_query().split_once('?') {
            target.push('?');
            target.push_str(query);
        }
        HeadWriter::with_kept_fields(head, head.method_str(), &target, |_| true).finish()
    }

    /// The path of `name` in the directory of this path, which ends with a slash.
    #[must_use]
    pub fn join(&self, head: &RequestHead, name: &str) -> Self {
        Self {
            text: RequestPathText::Decoded([self.bytes(head), name.as_bytes()].concat()),
            is_ambiguous: self.is_ambiguous,
        }
    }

    /// Its bytes; `head` is the one that it was made of. Starts with `/`, but for `OPTIONS *`,
    /// where it is `*`.
    #[must_use]
    pub fn bytes<'a>(&'a self, head: &'a RequestHead) -> &'a [u8] {
        match &self.text {
            RequestPathText::Unchanged(len) => &head.path_query_bytes()[..*len],
            RequestPathText::Decoded(path) => path,
        }
    }
}

/// The environment of a request: all but its head and body.
#[derive(Debug, Clone)]
pub struct RequestEnvironment {
    /// The other end of the connection.
    pub peer: PeerAddress,
    /// The listener that it came by.
    pub listener: Arc<ListenerInfo>,
    /// Whether the client is still there.
    pub client_state: Arc<ClientState>,
    /// When its head was complete.
    pub arrived_at: Instant,
    /// Proxies whose forwarding headers are trusted.
    pub trusted_proxies: Arc<TrustedProxies>,
    /// The information of trusted proxies about the client.
    pub forwarded: Option<Arc<ForwardedInfo>>,
    /// The prefix stripped from its path.
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

    /// A request of `head` and the path in it.
    #[must_use]
    pub fn new(
        head: Arc<RequestHead>,
        path: RequestPath,
        body: RequestBody,
        environment: RequestEnvironment,
    ) -> Self {
        let RequestEnvironment {
            peer,
            listener,
            client_state: client,
            arrived_at: at,
            trusted_proxies: trust,
            forwarded,
            mount,
        } = environment;
        let named = forwarded.as_ref().and_then(|it| it.client);
        let address = named.unwrap_or(peer);
        client.set_address_prefix(AddressPrefix::from_address(address), trust.covers(address));
        Self {
            head,
            body,
            peer,
            listener,
            client_state: client,
            arrived_at: at,
            trusted_proxies: trust,
            forwarded,
            mount,
            trusted_headers: TrustedHeaders::default(),
            sendfile_grant: None,
            response_timeout_millis: None,
            client_head: None,
            path,
        }
    }

    /// Sets how long its back end may take to respond.
    pub fn set_response_timeout(&mut self, timeout: Duration) {
        let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        self.response_timeout_millis = NonZeroU32::new(millis);
    }

    /// How long its back end may take to respond, where its route says that.
    #[must_use]
    pub fn response_timeout(&self) -> Option<Duration> {
        let millis = self.response_timeout_millis?;
        Some(Duration::from_millis(u64::from(millis.get())))
    }

    /// The target as the client sent it, before its route rewrote it: a path below
    /// [`Request::client_prefix`] and a query.
    #[must_use]
    pub fn client_target(&self) -> &str {
        let head = self.client_head.as_deref().unwrap_or(&self.head);
        head.target_path_query()
    }

    /// The prefix, in encoded form, that trusted proxies have stripped from the client's target.
    #[must_use]
    pub fn client_prefix(&self) -> Cow<'_, str> {
        let forwarded = self.forwarded.as_ref();
        forwarded.map_or(Cow::Borrowed(""), |info| info.mount.encoded_path())
    }

    /// The environment of a request that is made for this one, with a client state of its own.
    #[must_use]
    pub fn environment(&self, client_state: Arc<ClientState>) -> RequestEnvironment {
        RequestEnvironment {
            peer: self.peer,
            listener: Arc::clone(&self.listener),
            client_state,
            arrived_at: self.arrived_at,
            trusted_proxies: Arc::clone(&self.trusted_proxies),
            forwarded: self.forwarded.clone(),
            mount: self.mount.clone(),
        }
    }

    /// Another request of the same client, without a body, whose head has fields of `trusted` names
    /// that a component has set. Interim responses to it do not reach the client.
    ///
    /// # Errors
    /// When the head's target has no valid path.
    pub fn subrequest(
        &self,
        head: Arc<RequestHead>,
        trusted: impl IntoIterator<Item = String>,
    ) -> Result<Self, UriError> {
        let path = RequestPath::from_head(&head)?;
        let client_state = ClientState::new(self.client_state.tls().cloned());
        client_state.set_user(self.client_state.user());
        if self.client_state.is_authenticated() {
            client_state.set_authenticated();
        }
        client_state.set_correlation(self.client_state.correlation());
        let environment = RequestEnvironment {
            mount: Mount::default(),
            ..self.environment(Arc::new(client_state))
        };
        let mut request = Self::new(head, path, RequestBody::Empty, environment);
        request.trusted_headers = self.trusted_headers.with_names(trusted);
        Ok(request)
    }

    /// Replaces the head by one with the same target, whose fields of `trusted` names a component
    /// has set. The component removes the client's fields of these names.
    pub fn replace_head(
        &mut self,
        head: Arc<RequestHead>,
        trusted: impl IntoIterator<Item = String>,
    ) {
        debug_assert_eq!(head.target_path_query(), self.head.target_path_query());
        self.head = head;
        self.trusted_headers = self.trusted_headers.with_names(trusted);
    }

    /// Replaces the head by one for another target, whose path is `path`.
    pub fn retarget(&mut self, head: Arc<RequestHead>, path: RequestPath) {
        self.head = head;
        self.path = path;
    }

    /// The path; see [`RequestPath::bytes`].
    #[must_use]
    pub fn path(&self) -> &[u8] {
        self.path.bytes(&self.head)
    }

    /// Changes the path to `name` in the directory of the path.
    pub fn descend_into(&mut self, name: &str) {
        self.path = self.path.join(&self.head, name);
    }

    /// The scheme that the client used: that of a trusted proxy, else the listener's.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        let forwarded = self.forwarded.as_ref().and_then(|it| it.scheme);
        forwarded.unwrap_or(self.listener.scheme)
    }

    /// The client's address: that of a trusted proxy, else the peer's. A port of 0 is unknown.
    #[must_use]
    pub fn client_address(&self) -> PeerAddress {
        let forwarded = self.forwarded.as_ref().and_then(|it| it.client);
        forwarded.unwrap_or(self.peer)
    }

    /// The authority that the client asked for: that of a trusted proxy, else the head's.
    #[must_use]
    pub fn host(&self) -> &str {
        let forwarded = self.forwarded.as_ref();
        let host = forwarded.and_then(|it| it.host.as_deref());
        host.unwrap_or_else(|| self.head.host())
    }

    /// Whether its peer is a trusted proxy.
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
