//! The original request, and the requests made from it: the one for the back end, the repeated
//! one, and those to the links of an instruction.
//!
//! # Invariants
//! - A `Grip-*` field in any of them is the server's own.
//! - A request to a link has nothing of the client but its address.
//! - All go to the back end that gave the instruction, whatever host a link names.

mod record;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use penstock_exchange::field_policy::{FieldClass, TrustedHeaders, classify_field};
use penstock_exchange::grip::is_grip_field;
use penstock_exchange::request::{RequestEnvironment, RequestPath};
use penstock_exchange::{ClientState, Fault, FaultKind, IncomingBody, Request, RequestBody};
use penstock_http::{HeadWriter, Method, RequestHead};
use penstock_hub::{AllowedOrigins, channel_name, is_same_host};
use penstock_runtime::clock;

pub(super) use record::RequestRecord;

use super::{GripShared, backend_fault};
use crate::field_lists::starts_with_ignore_case;

pub(super) const SIGNATURE_HEADER: &str = "Grip-Sig";
const FEATURE_HEADER: &str = "Grip-Feature";
const LAST_HEADER: &str = "Grip-Last";

/// What the hub can do of what clients of GRIP ask about.
const SUPPORTED_FEATURES: &str = "status, link:next, link:gone, filter:skip-self, filter:skip-users, \
                        filter:require-sub, filter:build-id, filter:var-subst";

/// The last ids that are known, by the channels' keys.
pub(crate) type LastMessageIds = [(Arc<str>, Arc<str>)];

/// What a request came with.
#[derive(Debug, Clone)]
pub(crate) struct OriginalRequest {
    pub(crate) head: Arc<RequestHead>,
    pub(crate) environment: RequestEnvironment,
    trusted_headers: TrustedHeaders,
    /// Whether it may be repeated: it only reads, and has no body that was consumed.
    pub(crate) is_repeatable: bool,
}

impl OriginalRequest {
    pub(crate) fn from_request(request: &Request) -> Self {
        let method = request.head.method();
        Self {
            head: Arc::clone(&request.head),
            environment: request.environment(Arc::clone(&request.client_state)),
            trusted_headers: request.trusted_headers.clone(),
            is_repeatable: matches!(method, Method::Get | Method::Head)
                && matches!(request.body, RequestBody::Empty),
        }
    }

    /// Whether a page of another origin than the host's own and `origins` has sent it. A client
    /// without an origin is no browser.
    pub(crate) fn is_cross_origin(&self, origins: &AllowedOrigins) -> bool {
        let mut origin_values = self.head.field_values("origin");
        let origin = match (origin_values.next(), origin_values.next()) {
            (None, _) => return false,
            (Some(origin), None) => origin,
            (Some(_), Some(_)) => return true,
        };
        if origins.allows_any || origins.is_listed(origin) {
            return false;
        }
        let forwarded = self.environment.forwarded.as_ref();
        let host = forwarded.and_then(|forwarded| forwarded.host.as_deref());
        // A page that poses as the site without TLS must not get what its TLS protects.
        let is_weaker = forwarded.is_some_and(|forwarded| forwarded.scheme == Some("https"))
            && origin.starts_with(b"http://");
        is_weaker || !is_same_host(origin, host.unwrap_or_else(|| self.head.host()))
    }

    /// The request as the back end gets it.
    ///
    /// # Errors
    /// When it makes no valid head: the added fields are the server's own.
    pub(crate) fn sign_request(
        &self,
        request: Request,
        shared: &GripShared,
    ) -> Result<Request, Fault> {
        if shared.signer.is_none() {
            return Ok(request);
        }
        let mut request = request;
        let head = self.signed_head(shared, &[], clock::wall_time_at(request.arrived_at))?;
        request.head = Arc::new(head);
        request.trusted_headers = self.trusted_headers_for(shared);
        Ok(request)
    }

    /// The original request, for the next handler.
    pub(crate) fn restore_request(&self, mut request: Box<Request>) -> Box<Request> {
        request.head = Arc::clone(&self.head);
        request.trusted_headers = self.trusted_headers.clone();
        request
    }

    /// The same request again, with the last message ids that the hub knows.
    pub(crate) fn build_repeated_request(
        &self,
        shared: &GripShared,
        last: &LastMessageIds,
    ) -> Result<Request, Fault> {
        let head = self.signed_head(shared, last, clock::wall_time())?;
        self.build_request(head, Arc::clone(&self.environment.client_state), shared)
    }

    /// A request for a link of an instruction.
    ///
    /// # Errors
    /// When the link is no path, or names another host than the request did.
    pub(crate) fn build_link_request(
        &self,
        shared: &GripShared,
        method: &'static str,
        link: &str,
        last: &LastMessageIds,
    ) -> Result<Request, Fault> {
        let target = self.resolve_link(link)?;
        let mut writer = HeadWriter::new(&self.head, method, &target);
        writer.push_field("Host", self.head.host().as_bytes());
        if method == "POST" {
            writer.push_field("Content-Length", b"0");
        }
        self.add_grip_headers(&mut writer, shared, last, clock::wall_time());
        let head = writer
            .finish()
            .map_err(|error| invalid_request_fault(&error))?;
        // The client may be gone; a request to a link has none.
        self.build_request(head, self.own_client_state(), shared)
    }

    /// A request with a body of its own in the place of the client's, which asked for a WebSocket:
    /// its fields but for those of the handshake, and `fields`.
    pub(crate) fn build_events_request(
        &self,
        shared: &GripShared,
        fields: &[(&str, &[u8])],
        body: Vec<u8>,
    ) -> Result<Request, Fault> {
        let mut writer = HeadWriter::new(&self.head, "POST", self.head.target());
        for (name, value) in self.head.fields() {
            let is_own = self.trusted_headers.covers(name)
                || !is_grip_field(name.as_bytes()) && !is_websocket_header(name);
            if is_own
                && (classify_field(name) != FieldClass::HopByHop
                    || name.eq_ignore_ascii_case("host"))
            {
                writer.push_field(name, value);
            }
        }
        for (name, value) in fields {
            writer.push_field(name, value);
        }
        writer.push_field("Content-Length", body.len().to_string().as_bytes());
        self.add_grip_headers(&mut writer, shared, &[], clock::wall_time());
        let head = writer
            .finish()
            .map_err(|error| invalid_request_fault(&error))?;
        let mut request = self.build_request(head, self.own_client_state(), shared)?;
        // No client may say some of them.
        let names = fields.iter().map(|(name, _)| (*name).to_owned());
        request.trusted_headers = request.trusted_headers.with_names(names);
        request.body = RequestBody::Incoming(Box::new(BufferedBody(body)));
        Ok(request)
    }

    /// The target of a link as seen from the request (RFC 3986 §5.2); dots are resolved where all
    /// paths are. An application that knows where it is mounted names its own paths below that.
    pub(crate) fn resolve_link(&self, link: &str) -> Result<String, Fault> {
        let target = self.resolve_reference(link)?;
        Ok(match self.environment.mount.strip_from(&target) {
            Some(rest) if rest.starts_with('/') => rest.to_owned(),
            Some(rest) => format!("/{rest}"),
            None => target,
        })
    }

    fn resolve_reference(&self, link: &str) -> Result<String, Fault> {
        let link = link.split('#').next().unwrap_or_default();
        let own = self.head.target_path_query();
        let path = own.split('?').next().unwrap_or_default();
        let after_authority = |rest: &str| {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, target) = rest.split_at(end);
            let forwarded = self.environment.forwarded.as_ref();
            let forwarded = forwarded.and_then(|forwarded| forwarded.host.as_deref());
            let is_own = authority.eq_ignore_ascii_case(self.head.host())
                || forwarded.is_some_and(|own| authority.eq_ignore_ascii_case(own));
            let slash = if target.starts_with('/') { "" } else { "/" };
            is_own
                .then(|| format!("{slash}{target}"))
                .ok_or_else(|| backend_fault(format!("Grip-Link: `{link}` is of another host")))
        };
        let mut absolute = ["http://", "https://", "//"].into_iter();
        if let Some(start) = absolute.find(|start| starts_with_ignore_case(link, start)) {
            return after_authority(&link[start.len()..]);
        }
        Ok(match link.bytes().next() {
            Some(b'/') => link.to_owned(),
            Some(b'?') => format!("{path}{link}"),
            _ => {
                let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
                format!("{folder}{link}")
            }
        })
    }

    /// The original head, with the server's own GRIP fields in place of any others.
    fn signed_head(
        &self,
        shared: &GripShared,
        last: &LastMessageIds,
        now: Duration,
    ) -> Result<RequestHead, Fault> {
        let original = &self.head;
        let mut writer = HeadWriter::new(original, original.method_str(), original.target());
        for (name, value) in original.fields() {
            if !is_grip_field(name.as_bytes()) || self.trusted_headers.covers(name) {
                writer.push_field(name, value);
            }
        }
        self.add_grip_headers(&mut writer, shared, last, now);
        writer
            .finish()
            .map_err(|error| invalid_request_fault(&error))
    }

    fn add_grip_headers(
        &self,
        writer: &mut HeadWriter,
        shared: &GripShared,
        last: &LastMessageIds,
        now: Duration,
    ) {
        if let Some(signer) = &shared.signer {
            writer.push_field(SIGNATURE_HEADER, signer.sign(now).as_bytes());
            writer.push_field(FEATURE_HEADER, SUPPORTED_FEATURES.as_bytes());
        }
        for (key, id) in last {
            let channel = channel_name(key);
            // A name or id that cannot stand in a field cannot have come from one: from JSON it
            // can, and then the back end is asked without.
            if is_plain_field_value(channel) && is_plain_field_value(id) {
                writer.push_field(LAST_HEADER, format!("{channel}; last-id={id}").as_bytes());
            }
        }
    }

    /// The state of a client that need not stay.
    fn own_client_state(&self) -> Arc<ClientState> {
        ClientState::on_behalf_of(&self.environment.client_state)
    }

    fn build_request(
        &self,
        head: RequestHead,
        client: Arc<ClientState>,
        shared: &GripShared,
    ) -> Result<Request, Fault> {
        let path = RequestPath::from_head(&head)
            .map_err(|error| backend_fault(format!("Grip-Link: {error}")))?;
        let arrival = RequestEnvironment {
            client_state: client,
            arrived_at: clock::now(),
            ..self.environment.clone()
        };
        let mut request = Request::new(Arc::new(head), path, RequestBody::Empty, arrival);
        request.trusted_headers = self.trusted_headers_for(shared);
        Ok(request)
    }

    fn trusted_headers_for(&self, shared: &GripShared) -> TrustedHeaders {
        match self.trusted_headers.is_empty() {
            true => shared.trusted_headers.clone(),
            false => trust_grip_headers(&self.trusted_headers),
        }
    }
}

/// Those, and what the hub says itself.
pub(crate) fn trust_grip_headers(known: &TrustedHeaders) -> TrustedHeaders {
    known.with_names([SIGNATURE_HEADER, FEATURE_HEADER, LAST_HEADER].map(str::to_owned))
}

/// Whether a field of a client is about its WebSocket, or has a name that the server uses for its
/// own.
fn is_websocket_header(name: &str) -> bool {
    const OWN: [&str; 5] = [
        "accept",
        "accept-encoding",
        "connection-id",
        "content-type",
        "keep-alive-interval",
    ];
    let is_offer = name.eq_ignore_ascii_case("sec-websocket-protocol");
    starts_with_ignore_case(name, "sec-websocket-") && !is_offer
        || starts_with_ignore_case(name, "meta-")
        || OWN.iter().any(|own| name.eq_ignore_ascii_case(own))
}

struct BufferedBody(Vec<u8>);

impl IncomingBody for BufferedBody {
    fn poll_fill(&mut self, _: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        let more = !self.0.is_empty();
        into.append(&mut self.0);
        Poll::Ready(Ok(more))
    }

    fn length(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }
}

/// Whether a name or id means in a field what it means elsewhere.
fn is_plain_field_value(text: &str) -> bool {
    let is_odd = |byte: u8| byte < b' ' || byte == 0x7f || matches!(byte, b',' | b';' | b'"');
    !text.is_empty() && text.trim() == text && !text.bytes().any(is_odd)
}

fn invalid_request_fault(error: &penstock_http::RequestHeadError) -> Fault {
    let cause = format!("grip: what is asked of the back end is no valid request: {error}");
    Fault::new(FaultKind::Internal, cause)
}
