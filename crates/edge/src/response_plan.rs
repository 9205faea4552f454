//! How a response is framed and whether its connection stays (RFC 9112 §6, §9).
//!
//! Called by `connection` for each response, before its head is encoded. Pure.

use penstock_http::{
    BodyFraming, Method, Persistence, RequestHead, ResponseFraming, Status, Version,
};

/// How a response is framed and whether the connection stays.
pub(crate) struct ResponsePlan {
    pub(crate) framing: ResponseFraming,
    pub(crate) persist: Persistence,
    pub(crate) keeps_alive: bool,
}

impl ResponsePlan {
    pub(crate) fn new(
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
        let keeps = head.keep_alive() && delimited && !close;
        let persist = match (keeps, old) {
            (false, _) => Persistence::Close,
            (true, true) => Persistence::KeepAliveHttp10,
            (true, false) => Persistence::KeepAlive,
        };
        Self {
            framing,
            persist,
            keeps_alive: keeps,
        }
    }

    /// For the head behind which the connection is no longer HTTP: it says nothing of its own about
    /// the connection (RFC 9110 §15.2.2).
    pub(crate) const fn for_protocol_switch() -> Self {
        Self {
            framing: ResponseFraming::None,
            persist: Persistence::KeepAlive,
            keeps_alive: true,
        }
    }
}

/// Whether a request announces a body with something in it.
pub(crate) fn has_request_body(head: &RequestHead) -> bool {
    !matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0))
}

/// Whether the response to `head` goes without its body.
pub(crate) fn is_bodiless(head: &RequestHead, status: Status) -> bool {
    head.method() == Method::Head || status.forbids_body()
}
