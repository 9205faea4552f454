//! Where and how requests are logged: `server.access_log` and `[access_logs.NAME]`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::Conditions;
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::options::{OptionDefault, SectionDoc, SharedKeys};
use crate::values::{LogTemplate, LogValue};

section! {
    /// Where requests are logged, which of them, and what a line looks like.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct AccessLog(path: LogTarget)
    in "server.access_log", "access_log = { ... } in [server]", "" {
        /// File that lines are appended to, or where else they go: `"stdout"`, `"stderr"`,
        /// `"journald"`, `"syslog"` (`/dev/log`), `"syslog:unix:/run/log"` or
        /// `"syslog:10.0.0.1:514"` (UDP, RFC 5424).
        path: LogTarget = path, Text(ACCESS_LOG_PATH),
            default "required, unless `format` is \"off\"", example r#""logs/access.log""#, by hand;
        /// The form of a line: `"combined"`, `"common"`, `"json"`, `"dev"` for a person at a
        /// terminal, `"off"` for none, or a text with words in braces. Such are the placeholders of
        /// `request_headers` but for `{re.1}`, and those of the table in observability.md.
        format: LogFormat = LogFormat::default(), Text(ACCESS_LOG_FORMAT),
            shows r#""combined""#, example r#""{client} {method} {uri} {status} {total_time}""#,
            by hand;
        /// Requests that are logged: conditions, or names of `[conditions.NAME]` tables. Requests
        /// that were refused before they could be read are logged whatever stands here.
        "match" => conditions: Conditions = Conditions::default(),
            OrTable(&Texts(CONDITION_NAME), "sites.routes.match"), default "every request",
            example r#"{ not = { path = ["/health"] } }"#, by hand;
        /// Statuses that are logged.
        "status" => statuses: Vec<StatusPattern> = Vec::new(), Texts(STATUS_PATTERN),
            default "every status", example r#"["4xx", "5xx"]"#, by hand;
        /// Requests that took less are not logged.
        min_time: Duration = Duration::ZERO, Time(0);
        /// The share of the requests that is logged, from 0 to 1. Responses of 500 and above, and
        /// refused requests, are always logged.
        sample: SampleShare = SampleShare::ALL, Fraction, shows "1.0", example "0.1", by hand;
    }
    also {
        /// What a JSON object of a line has, in this order, by the names of `format` without
        /// braces.
        "fields": Texts(LOG_FIELD), OptionDefault::Described("the usual ones of \"json\""),
            example r#"["time", "client", "method", "uri", "status"]"#,
            only "`format = \"json\"`";
    }
}

/// Further logs, with the keys of `server.access_log`.
pub(crate) const NAMED_ACCESS_LOGS: SectionDoc = SectionDoc {
    name: "access_logs.NAME",
    heading: "[access_logs.NAME]",
    example: "# [access_logs.shop]",
    description: "Another access log, beside `server.access_log`.",
    shared_keys: Some(SharedKeys {
        section: "server.access_log",
        except: &[],
    }),
    options: &[],
};

/// A place for log lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// An absolute file path, appended to.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A syslog daemon (RFC 5424).
    Syslog(SyslogAddress),
    /// The journal of systemd, by its native protocol.
    Journald,
}

/// Where a syslog daemon gets its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyslogAddress {
    /// A datagram socket of this machine.
    Unix(PathBuf),
    /// By UDP (RFC 5426).
    Udp(SocketAddr),
}

/// The form of an access log line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// The combined log format of the Apache server, with timings behind it.
    #[default]
    Combined,
    /// The common log format of the Apache server, and nothing else.
    Common,
    /// One JSON object a line.
    Json,
    /// One JSON object a line, of these fields.
    Fields(Vec<LogField>),
    /// Short, for a person at a terminal.
    Dev,
    /// As the operator has written it.
    Template(LogTemplate),
}

/// A field of [`LogFormat::Fields`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogField {
    /// Its name.
    pub name: String,
    /// What it shows.
    pub value: LogValue,
}

/// A status, or a class of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusPattern {
    /// This status.
    Exact(u16),
    /// All that begin with this digit.
    Class(u16),
}

impl StatusPattern {
    /// Parses `404` or `4xx`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(class) = text.strip_suffix("xx") {
            let class = class.parse().ok();
            return class.filter(|it| (1..=5).contains(it)).map(Self::Class);
        }
        let status = text.parse().ok();
        status
            .filter(|it| (100..=599).contains(it))
            .map(Self::Exact)
    }

    /// Whether a status is meant.
    #[must_use]
    pub fn matches(self, status: u16) -> bool {
        match self {
            Self::Exact(exact) => exact == status,
            Self::Class(class) => class == status / 100,
        }
    }
}

/// A share of requests, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleShare(u32);

impl SampleShare {
    /// Every request.
    pub const ALL: Self = Self(1_000_000);

    /// The share nearest to a number from 0 to 1.
    #[must_use]
    pub fn from_fraction(share: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to 0 to 1 million"
        )]
        let millionths = (share.clamp(0.0, 1.0) * 1e6).round() as u32;
        Self(millionths)
    }

    /// Whether a request with this random number is among them.
    #[must_use]
    pub fn includes(self, random: u64) -> bool {
        self == Self::ALL || random % 1_000_000 < u64::from(self.0)
    }
}

impl LogFormat {
    /// Whether it shows the route or the site of a request.
    #[must_use]
    pub fn needs_route(&self) -> bool {
        match self {
            Self::Fields(fields) => fields.iter().any(|field| field.value.needs_route()),
            Self::Template(template) => template.needs_route(),
            Self::Combined | Self::Common | Self::Json | Self::Dev => false,
        }
    }
}
