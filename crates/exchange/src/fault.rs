//! The failure of one exchange: one type between all components.
//!
//! Components make faults; edge turns each into a status, a page, a log line and a metric in one
//! place. The kind decides all of that; the cause is for the log and for development pages.

use std::borrow::Cow;
use std::sync::Arc;

use penstock_http::{FieldBlock, Status};

use crate::RequestTiming;

/// The failure of one exchange.
#[derive(Debug)]
pub struct Fault {
    /// The kind, which decides status and log level.
    pub kind: FaultKind,
    /// The facts, for the log.
    pub cause: Cow<'static, str>,
    /// A long text for a development error page: an application's traceback.
    pub detail: Option<Arc<str>>,
    /// Fields of the response that say what a client can do, such as `Retry-After`.
    pub fields: Option<Box<FieldBlock>>,
    /// The time spent until then; boxed, so that results stay small.
    pub timing: Box<RequestTiming>,
}

/// The side that caused the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultSide {
    /// The client: never an error in the log.
    Client,
    /// The application or its worker.
    Worker,
    /// A back end behind an upstream.
    Backend,
    /// Penstock or the machine it runs on.
    Internal,
}

/// The kinds of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The request breaks a rule: 400.
    BadRequest,
    /// The request's head is larger than the back end's format can carry: 431.
    HeadTooLarge,
    /// The request body is larger than `limits.body_bytes`: 413.
    BodyTooLarge,
    /// The request did not arrive in time (`header_timeout`, `body_idle_timeout`, `min_body_rate`):
    /// 408.
    ClientTooSlow,
    /// The client left before the response.
    ClientDisconnected,
    /// No such resource: 404.
    NotFound,
    /// It was there until a time: 410.
    Gone,
    /// There, but not served: 403.
    Forbidden,
    /// Only for clients that prove who they are: 401.
    Unauthorized,
    /// The client has asked too often: 429.
    TooManyRequests,
    /// No site has that host, or the connection may not ask for it: 421.
    UnknownHost,
    /// The method is not for this resource: 405.
    MethodNotAllowed,
    /// A method that the server does not implement: 501.
    NotImplemented,
    /// The application's queue is at `queue.max`: 503.
    QueueFull,
    /// No slot within `queue.timeout`: 503.
    QueueTimeout,
    /// No worker is up: the application does not boot, or stops: 503.
    Unavailable,
    /// The site is in maintenance: 503.
    Maintenance,
    /// The application raised: 500.
    AppRaised,
    /// The application broke the rules of its interface: 502.
    AppProtocolError,
    /// The worker died with the request inside: 502.
    WorkerDied,
    /// The application did not answer within `response_timeout`: 504.
    AppTimeout,
    /// No connection to any back end that may have the request: 502.
    ConnectFailed,
    /// The back end closed or reset before its response was complete: 502.
    BackendDisconnected,
    /// The back end broke the rules of its protocol: 502.
    BackendProtocolError,
    /// The back end did not respond, or stalled: 504.
    BackendTimeout,
    /// A bounded resource of the server is used up: 503.
    Overloaded,
    /// The server itself failed: 500.
    Internal,
}

/// Not registered; nginx logs it for the same event. Never sent.
const CLIENT_CLOSED_REQUEST: Status = match Status::new(499) {
    Some(status) => status,
    None => Status::BAD_REQUEST,
};

impl FaultKind {
    /// The status that a client gets. `ClientDisconnected` has one only for the log (nginx's 499).
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::BadRequest => Status::BAD_REQUEST,
            Self::HeadTooLarge => Status::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BodyTooLarge => Status::CONTENT_TOO_LARGE,
            Self::ClientTooSlow => Status::REQUEST_TIMEOUT,
            Self::ClientDisconnected => CLIENT_CLOSED_REQUEST,
            Self::NotFound => Status::NOT_FOUND,
            Self::Gone => Status::GONE,
            Self::Forbidden => Status::FORBIDDEN,
            Self::Unauthorized => Status::UNAUTHORIZED,
            Self::TooManyRequests => Status::TOO_MANY_REQUESTS,
            Self::UnknownHost => Status::MISDIRECTED_REQUEST,
            Self::MethodNotAllowed => Status::METHOD_NOT_ALLOWED,
            Self::NotImplemented => Status::NOT_IMPLEMENTED,
            Self::QueueFull
            | Self::QueueTimeout
            | Self::Unavailable
            | Self::Maintenance
            | Self::Overloaded => Status::SERVICE_UNAVAILABLE,
            Self::AppRaised | Self::Internal => Status::INTERNAL_SERVER_ERROR,
            Self::AppProtocolError
            | Self::WorkerDied
            | Self::ConnectFailed
            | Self::BackendDisconnected
            | Self::BackendProtocolError => Status::BAD_GATEWAY,
            Self::AppTimeout | Self::BackendTimeout => Status::GATEWAY_TIMEOUT,
        }
    }

    /// The side that caused it.
    #[must_use]
    pub fn side(self) -> FaultSide {
        match self {
            Self::BadRequest
            | Self::HeadTooLarge
            | Self::BodyTooLarge
            | Self::ClientTooSlow
            | Self::ClientDisconnected
            | Self::NotFound
            | Self::Gone
            | Self::Forbidden
            | Self::Unauthorized
            | Self::TooManyRequests
            | Self::UnknownHost
            | Self::MethodNotAllowed
            | Self::NotImplemented
            | Self::Maintenance => FaultSide::Client,
            Self::AppRaised | Self::AppProtocolError | Self::WorkerDied | Self::AppTimeout => {
                FaultSide::Worker
            }
            Self::ConnectFailed
            | Self::BackendDisconnected
            | Self::BackendProtocolError
            | Self::BackendTimeout => FaultSide::Backend,
            Self::QueueFull
            | Self::QueueTimeout
            | Self::Unavailable
            | Self::Overloaded
            | Self::Internal => FaultSide::Internal,
        }
    }

    /// Whether no byte of the request was sent to the server that failed: the request cannot have
    /// provoked the failure, which any other request at that moment meets too. After a retry this
    /// is about the last attempt alone: [`Self::ConnectFailed`] may follow one that was sent.
    #[must_use]
    pub fn is_before_sending(self) -> bool {
        matches!(
            self,
            Self::QueueFull
                | Self::QueueTimeout
                | Self::Unavailable
                | Self::ConnectFailed
                | Self::Overloaded
        )
    }

    /// Whether the same request may succeed a little later. An application that raised may do so
    /// each time.
    #[must_use]
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            Self::QueueFull
                | Self::QueueTimeout
                | Self::Unavailable
                | Self::Maintenance
                | Self::WorkerDied
                | Self::AppTimeout
                | Self::ConnectFailed
                | Self::BackendDisconnected
                | Self::BackendTimeout
                | Self::Overloaded
                | Self::TooManyRequests
                | Self::Internal
        )
    }

    /// The explanation for a client, in one sentence.
    #[must_use]
    pub fn explanation(self) -> &'static str {
        match self {
            Self::BadRequest => "The request is malformed.",
            Self::HeadTooLarge => "The request's header is larger than the application takes.",
            Self::BodyTooLarge => "The request body is larger than this server takes.",
            Self::ClientTooSlow => "The request took too long to arrive.",
            Self::ClientDisconnected => "The client closed the connection.",
            Self::NotFound => "There is nothing at this address.",
            Self::Gone => "This link has expired.",
            Self::Forbidden => "This address is not open to you.",
            Self::Unauthorized => "This address is only for those who sign in.",
            Self::TooManyRequests => "You have asked too often. Please try again in a moment.",
            Self::UnknownHost => "This server does not answer for that host.",
            Self::MethodNotAllowed => "This address does not take that method.",
            Self::NotImplemented => "This server does not know that method.",
            Self::QueueFull => "Too many requests are waiting. Please try again in a moment.",
            Self::QueueTimeout => "The request waited too long for its turn. Please try again.",
            Self::Unavailable => "The application is not running at the moment.",
            Self::AppRaised => "The application failed on this request.",
            Self::AppProtocolError => "The application gave an invalid response.",
            Self::WorkerDied => "The application's worker ended while it worked on this request.",
            Self::AppTimeout | Self::BackendTimeout => "The application did not answer in time.",
            Self::ConnectFailed => "The application cannot be reached.",
            Self::BackendDisconnected => {
                "The application ended its response before it was complete."
            }
            Self::BackendProtocolError => "The application gave an invalid response.",
            Self::Overloaded => "The server is overloaded. Please try again in a moment.",
            Self::Maintenance => "This site is in maintenance.",
            Self::Internal => "The server failed on this request.",
        }
    }
}

impl Fault {
    /// A fault with its cause.
    #[must_use]
    pub fn new(kind: FaultKind, cause: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            cause: cause.into(),
            detail: None,
            fields: None,
            timing: Box::default(),
        }
    }

    /// The same with a field of its response. A value that is none is left out.
    #[must_use]
    pub fn with_field(mut self, name: &str, value: &str) -> Self {
        let fields = self.fields.get_or_insert_default();
        let _ = fields.push(name, value.as_bytes());
        self
    }

    /// The same with its timing.
    #[must_use]
    pub fn with_timing(mut self, timing: RequestTiming) -> Self {
        *self.timing = timing;
        self
    }
}
