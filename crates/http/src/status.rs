//! Status codes: checked numbers, named constants, and the IANA reason phrases.
//!
//! All components respond with a `Status`, and `h1::encode` writes it. A value outside 100..=599
//! cannot be created.

use std::fmt;

/// A status code between 100 and 599 (RFC 9110 §15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

impl Status {
    /// A status from a number; `None` outside 100..=599.
    pub const fn new(code: u16) -> Option<Self> {
        if code >= 100 && code <= 599 {
            Some(Self(code))
        } else {
            None
        }
    }

    pub const fn code(self) -> u16 {
        self.0
    }

    /// Whether another, final status follows (1xx, RFC 9110 §15.2).
    pub const fn is_informational(self) -> bool {
        self.0 < 200
    }

    pub const fn is_success(self) -> bool {
        self.0 >= 200 && self.0 < 300
    }

    /// Whether the status is an error (4xx, 5xx).
    pub const fn is_error(self) -> bool {
        self.0 >= 400
    }

    /// Whether a response with this status never has a body (1xx, 204, 304: RFC 9112 §6.3).
    pub const fn forbids_body(self) -> bool {
        self.0 < 200 || self.0 == 204 || self.0 == 304
    }

    /// The registered reason phrase, empty for a code that IANA does not list.
    pub const fn reason(self) -> &'static str {
        reason(self.0)
    }

    /// The three digits as written in a status line.
    pub const fn digits(self) -> [u8; 3] {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "each is one digit of at most 599"
        )]
        [
            b'0' + (self.0 / 100) as u8,
            b'0' + (self.0 / 10 % 10) as u8,
            b'0' + (self.0 % 10) as u8,
        ]
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

macro_rules! statuses {
    ($($code:literal $name:ident $reason:literal,)*) => {
        impl Status {
            $(
                #[doc = concat!("`", stringify!($code), " ", $reason, "`.")]
                pub const $name: Self = Self($code);
            )*
        }

        const fn reason(code: u16) -> &'static str {
            match code {
                $($code => $reason,)*
                _ => "",
            }
        }

        #[cfg(test)]
        const LISTED: &[Status] = &[$(Status($code)),*];
    };
}

statuses! {
    100 CONTINUE "Continue",
    101 SWITCHING_PROTOCOLS "Switching Protocols",
    102 PROCESSING "Processing",
    103 EARLY_HINTS "Early Hints",
    200 OK "OK",
    201 CREATED "Created",
    202 ACCEPTED "Accepted",
    203 NON_AUTHORITATIVE "Non-Authoritative Information",
    204 NO_CONTENT "No Content",
    205 RESET_CONTENT "Reset Content",
    206 PARTIAL_CONTENT "Partial Content",
    207 MULTI_STATUS "Multi-Status",
    208 ALREADY_REPORTED "Already Reported",
    226 IM_USED "IM Used",
    300 MULTIPLE_CHOICES "Multiple Choices",
    301 MOVED_PERMANENTLY "Moved Permanently",
    302 FOUND "Found",
    303 SEE_OTHER "See Other",
    304 NOT_MODIFIED "Not Modified",
    305 USE_PROXY "Use Proxy",
    307 TEMPORARY_REDIRECT "Temporary Redirect",
    308 PERMANENT_REDIRECT "Permanent Redirect",
    400 BAD_REQUEST "Bad Request",
    401 UNAUTHORIZED "Unauthorized",
    402 PAYMENT_REQUIRED "Payment Required",
    403 FORBIDDEN "Forbidden",
    404 NOT_FOUND "Not Found",
    405 METHOD_NOT_ALLOWED "Method Not Allowed",
    406 NOT_ACCEPTABLE "Not Acceptable",
    407 PROXY_AUTHENTICATION_REQUIRED "Proxy Authentication Required",
    408 REQUEST_TIMEOUT "Request Timeout",
    409 CONFLICT "Conflict",
    410 GONE "Gone",
    411 LENGTH_REQUIRED "Length Required",
    412 PRECONDITION_FAILED "Precondition Failed",
    413 CONTENT_TOO_LARGE "Content Too Large",
    414 URI_TOO_LONG "URI Too Long",
    415 UNSUPPORTED_MEDIA_TYPE "Unsupported Media Type",
    416 RANGE_NOT_SATISFIABLE "Range Not Satisfiable",
    417 EXPECTATION_FAILED "Expectation Failed",
    421 MISDIRECTED_REQUEST "Misdirected Request",
    422 UNPROCESSABLE_CONTENT "Unprocessable Content",
    423 LOCKED "Locked",
    424 FAILED_DEPENDENCY "Failed Dependency",
    425 TOO_EARLY "Too Early",
    426 UPGRADE_REQUIRED "Upgrade Required",
    428 PRECONDITION_REQUIRED "Precondition Required",
    429 TOO_MANY_REQUESTS "Too Many Requests",
    431 REQUEST_HEADER_FIELDS_TOO_LARGE "Request Header Fields Too Large",
    451 UNAVAILABLE_FOR_LEGAL_REASONS "Unavailable For Legal Reasons",
    500 INTERNAL_SERVER_ERROR "Internal Server Error",
    501 NOT_IMPLEMENTED "Not Implemented",
    502 BAD_GATEWAY "Bad Gateway",
    503 SERVICE_UNAVAILABLE "Service Unavailable",
    504 GATEWAY_TIMEOUT "Gateway Timeout",
    505 HTTP_VERSION_NOT_SUPPORTED "HTTP Version Not Supported",
    506 VARIANT_ALSO_NEGOTIATES "Variant Also Negotiates",
    507 INSUFFICIENT_STORAGE "Insufficient Storage",
    508 LOOP_DETECTED "Loop Detected",
    511 NETWORK_AUTHENTICATION_REQUIRED "Network Authentication Required",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_numbers_outside_the_three_digit_classes() {
        for code in [0, 99, 600, 999, 2000, u16::MAX] {
            assert_eq!(Status::new(code), None, "{code}");
        }
        for code in [100, 299, 599] {
            assert_eq!(Status::new(code).map(Status::code), Some(code));
        }
    }

    #[test]
    fn knows_which_statuses_never_have_a_body() {
        for (status, expected) in [
            (Status::CONTINUE, true),
            (Status::SWITCHING_PROTOCOLS, true),
            (Status::OK, false),
            (Status::NO_CONTENT, true),
            (Status::PARTIAL_CONTENT, false),
            (Status::NOT_MODIFIED, true),
            (Status::NOT_FOUND, false),
        ] {
            assert_eq!(status.forbids_body(), expected, "{status}");
        }
    }

    #[test]
    fn every_listed_status_has_digits_and_a_reason_fit_for_the_wire() {
        for &status in LISTED {
            assert_eq!(status.digits(), *status.to_string().as_bytes());
            assert!(!status.reason().is_empty() && status.reason().is_ascii());
        }
        assert_eq!(Status(299).reason(), "");
    }
}
