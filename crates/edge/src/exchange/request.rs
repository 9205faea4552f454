//! From a client's request to the one that handlers get: fields of trusted proxies are read, the
//! filters of the route applied.

use std::sync::Arc;
use std::time::Instant;

use penstock_exchange::field_policy::TrustedHeaders;
use penstock_exchange::{
    Fault, FaultKind, ForwardedInfo, InvalidForwardedField, Mount, RequestPath,
};
use penstock_http::RequestHead;
use penstock_runtime::clock;
use penstock_runtime::log_throttle::suppressed_suffix;

use super::{ConnectionContext, Exchange};
use crate::filters::{Filters, HeaderPlaceholders};
use crate::{Settings, access_log};

impl ConnectionContext<'_> {
    /// Reads what a trusted peer says about its client. Other peers cost next to nothing, and a
    /// trusted one without such fields a look at the names of its fields.
    pub(super) fn read_forwarded(
        self,
        settings: &Settings,
        head: &RequestHead,
        now: Instant,
    ) -> Option<Arc<ForwardedInfo>> {
        let trust = &settings.trusted_proxies;
        if !self.source.is_trusted_proxy(trust) {
            let (log, peer) = (
                &self.edge.untrusted_forwarding_log,
                self.source.peer_address(),
            );
            log.look(peer, head, trust, now);
            return None;
        }
        if !ForwardedInfo::has_forwarding_fields(head, trust) {
            return None;
        }
        let (info, broken) = ForwardedInfo::read(head, trust);
        self.log_broken_fields(&broken);
        Some(Arc::new(info))
    }

    /// As [`ConnectionContext::read_forwarded`], for a head that a route's rules have made: fields
    /// that they set are trusted.
    fn read_forwarded_with_rules(
        self,
        exchange: &Exchange,
        head: &RequestHead,
        trusted_headers: &TrustedHeaders,
    ) -> Option<Arc<ForwardedInfo>> {
        let (trust, sent) = (&exchange.settings.trusted_proxies, &exchange.head);
        let is_trusted = self.source.is_trusted_proxy(trust);
        let (info, broken) = ForwardedInfo::read_with_trusted_headers(
            head,
            sent,
            trust,
            is_trusted,
            trusted_headers,
        );
        self.log_broken_fields(&broken);
        (info != ForwardedInfo::default()).then(|| Arc::new(info))
    }

    fn log_broken_fields(self, broken: &[InvalidForwardedField]) {
        for field in broken {
            if let Some(count) = self.edge.log_throttle.admit_line(&field.name, clock::now()) {
                log::warn!(
                    "edge: {} of proxy {} ignored: {} (value={:?}){}",
                    field.name,
                    access_log::format_peer(self.source.client_address()),
                    field.cause,
                    field.value,
                    suppressed_suffix(count),
                );
            }
        }
    }
}

impl Exchange {
    /// The request as a route's filters change it.
    ///
    /// # Errors
    /// When they make no valid request of it.
    pub(super) fn apply_filters(
        &self,
        connection: ConnectionContext<'_>,
        filters: &Filters,
        request: HandlerRequest,
    ) -> Result<HandlerRequest, Fault> {
        let settings = &self.settings;
        let trust = Some(&*settings.trusted_proxies)
            .filter(|trust| connection.source.is_trusted_proxy(trust));
        let filtered = filters.apply_to_request(
            &request.head,
            &self.request_placeholders(connection),
            trust,
        )?;
        let Some(filtered) = filtered else {
            return Ok(request);
        };
        let path = RequestPath::from_head(&filtered.head);
        let path = path.map_err(|error| Fault::new(FaultKind::BadRequest, error.to_string()))?;
        let forwarded = match filters.changes_forwarding_fields(&settings.trusted_proxies) {
            true => connection.read_forwarded_with_rules(
                self,
                &filtered.head,
                &filtered.trusted_headers,
            ),
            false => request.forwarded,
        };
        Ok(HandlerRequest {
            head: Arc::new(filtered.head),
            path,
            trusted_headers: filtered.trusted_headers,
            mount: filtered.mount,
            client_head: Some(request.head),
            forwarded,
        })
    }

    /// The values of placeholders in a response's filters: prefix and host are those that its
    /// handlers got.
    pub(super) fn response_placeholders<'a>(
        &'a self,
        connection: ConnectionContext<'a>,
    ) -> HeaderPlaceholders<'a> {
        let forwarded = self.handler_forwarded.as_deref();
        HeaderPlaceholders {
            outer_mount: forwarded.map(|it| &it.mount),
            forwarded_host: forwarded.and_then(|it| it.host.as_deref()),
            ..self.request_placeholders(connection)
        }
    }

    fn request_placeholders<'a>(
        &'a self,
        connection: ConnectionContext<'a>,
    ) -> HeaderPlaceholders<'a> {
        let forwarded = self.forwarded.as_deref();
        HeaderPlaceholders {
            head: &self.head,
            client: connection.client_address(forwarded),
            host: (forwarded.and_then(|it| it.host.as_deref())).unwrap_or_else(|| self.head.host()),
            scheme: connection.scheme(forwarded),
            outer_mount: forwarded.map(|it| &it.mount),
            forwarded_host: None,
            listener: connection.listener,
            tls: connection.client_state.tls().map(|tls| &**tls),
        }
    }
}

/// A request for handlers, before it has a body.
pub(super) struct HandlerRequest {
    pub(super) head: Arc<RequestHead>,
    pub(super) path: RequestPath,
    pub(super) trusted_headers: TrustedHeaders,
    /// The prefix that its route has stripped from the path.
    pub(super) mount: Mount,
    /// The head before its route has changed it.
    pub(super) client_head: Option<Arc<RequestHead>>,
    /// What trusted proxies, and the route's rules in their place, say about the client.
    pub(super) forwarded: Option<Arc<ForwardedInfo>>,
}

impl HandlerRequest {
    /// The request before any rule: the head as it came, unless its target has two readings. Then
    /// the target is rewritten, so that no back end chooses between them.
    ///
    /// # Errors
    /// When it makes no valid head.
    pub(super) fn unambiguous(
        head: Arc<RequestHead>,
        path: RequestPath,
        forwarded: Option<Arc<ForwardedInfo>>,
    ) -> Result<Self, Fault> {
        let (mut head, mut path) = (head, path);
        if path.is_ambiguous() {
            let refused = |cause: String| Fault::new(FaultKind::BadRequest, cause);
            let rewritten = path.unambiguous_head(&head);
            head = Arc::new(rewritten.map_err(|error| refused(error.to_string()))?);
            path = RequestPath::from_head(&head).map_err(|error| refused(error.to_string()))?;
        }
        Ok(Self {
            head,
            path,
            trusted_headers: TrustedHeaders::default(),
            mount: Mount::default(),
            client_head: None,
            forwarded,
        })
    }
}
