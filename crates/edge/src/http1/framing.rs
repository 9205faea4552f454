//! How a response is framed and whether its connection stays open (RFC 9112 §6, §9). Pure.

use penstock_http::{ConnectionPersistence, Method, RequestHead, ResponseFraming, Status, Version};

/// The framing of a response, and whether the connection stays open behind it.
pub(super) struct ResponsePlan {
    pub(super) framing: ResponseFraming,
    pub(super) persistence: ConnectionPersistence,
    pub(super) keeps_alive: bool,
}

impl ResponsePlan {
    pub(super) fn new(
        head: &RequestHead,
        status: Status,
        length: Option<u64>,
        close: bool,
    ) -> Self {
        let old = head.version() == Version::Http10;
        let framing = match length {
            _ if status.forbids_body() => ResponseFraming::None,
            Some(length) => ResponseFraming::Length(length),
            // RFC 9110 §9.3.2: fields that only the content would tell may be left out for HEAD.
            None if head.method() == Method::Head => ResponseFraming::None,
            None if old => ResponseFraming::UntilClose,
            None => ResponseFraming::Chunked,
        };
        let delimited = !matches!(framing, ResponseFraming::UntilClose);
        let keeps_alive = head.keep_alive() && delimited && !close;
        let persistence = match (keeps_alive, old) {
            (false, _) => ConnectionPersistence::Close,
            (true, true) => ConnectionPersistence::KeepAliveHttp10,
            (true, false) => ConnectionPersistence::KeepAlive,
        };
        Self {
            framing,
            persistence,
            keeps_alive,
        }
    }

    /// For a head behind which the connection is no longer HTTP: it has no field about the
    /// connection of its own (RFC 9110 §15.2.2).
    pub(super) const fn for_protocol_switch() -> Self {
        Self {
            framing: ResponseFraming::None,
            persistence: ConnectionPersistence::KeepAlive,
            keeps_alive: true,
        }
    }
}

/// Whether the response to `head` goes without its body.
pub(super) fn is_bodiless(head: &RequestHead, status: Status) -> bool {
    head.method() == Method::Head || status.forbids_body()
}

/// The reason why the connection cannot switch protocols behind a response with this status, if
/// there is one. Behind a request that was not read to its end nothing says where the other
/// protocol begins.
pub(super) fn switch_refusal(
    head: &RequestHead,
    status: Status,
    is_cut_short: bool,
) -> Option<&'static str> {
    if status != Status::SWITCHING_PROTOCOLS {
        Some("protocols switched without status 101")
    } else if !head.is_upgrade() {
        Some("protocols switched for a request that did not ask for it")
    } else {
        is_cut_short.then_some("protocols switched before the request's body was read")
    }
}
