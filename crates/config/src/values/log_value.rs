//! What a line of an access log can show: words in braces of a format, or names of fields.
//!
//! # Invariants
//! - A name of a field and a word in braces mean the same.

use super::Placeholder;
use super::template::word_in_braces;

/// The form of an access log line that an operator has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogTemplate(Vec<LogPart>);

/// A part of a [`LogTemplate`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogPart {
    /// As it is.
    Text(String),
    /// What the request has there.
    Value(LogValue),
}

/// One thing about a request that a log can show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogValue {
    /// What the client has sent: a placeholder of [`super::Template`], but for groups of regular
    /// expressions.
    Request(Placeholder),
    /// Something that the server knows.
    Known(LogWord),
}

/// Declares the words of [`LogWord`], each once.
macro_rules! log_words {
    ($( $(#[doc = $doc:literal])+ $variant:ident = $word:literal, )+) => {
        /// What the server knows about a request at its end.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum LogWord {
            $( $(#[doc = $doc])+ $variant, )+
        }

        impl LogWord {
            fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The word.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        /// What a message says was expected of a value.
        pub(crate) const LOG_VALUES: &str = concat!(
            "client, host, hostname, scheme, method, uri, path, path.1, query, query.NAME, \
             header.NAME, cookie.NAME", $(", ", $word),+
        );
    };
}

log_words! {
    /// The time of the line, as RFC 3339 with milliseconds.
    Time = "time",
    /// The same in seconds since 1970, with a fraction.
    UnixTime = "unix_time",
    /// The same as in the combined format.
    LogDate = "log_date",
    /// The first line of the request; of a refused one as much as was read.
    Line = "line",
    /// The version of HTTP.
    Version = "version",
    /// The other end of the connection, which may be a proxy.
    Peer = "peer",
    /// The user that the client has proved to be.
    User = "user",
    /// The status of the response.
    Status = "status",
    /// Bytes of the response's body that were sent.
    Bytes = "bytes_sent",
    /// Seconds from the request's head to the last byte of the response.
    TotalTime = "total_time",
    /// Seconds in the queue of the application or upstream.
    QueueTime = "queue_time",
    /// The place in the queue on arrival.
    QueuePosition = "queue_position",
    /// Seconds from a worker or server getting the request to the head of its response.
    AppTime = "app_time",
    /// Seconds to connect to the server.
    ConnectTime = "connect_time",
    /// What has answered: an application's or upstream's name, or a component's.
    Handler = "handler",
    /// The process that has answered.
    Worker = "worker",
    /// The server of the upstream.
    Server = "server",
    /// Servers that were tried before.
    Retries = "retries",
    /// The path pattern of the route.
    Route = "route",
    /// The first host of the site, or `*`.
    Site = "site",
    /// The id of the request.
    RequestId = "request_id",
    /// The trace of the request.
    TraceId = "trace_id",
    /// The span of this server in it.
    SpanId = "span_id",
    /// The version of TLS.
    TlsVersion = "tls_version",
    /// The cipher suite of TLS.
    TlsCipher = "tls_cipher",
    /// The host that the client has named in its TLS handshake.
    ServerName = "server_name",
    /// Why a request was refused before it had a route.
    Reason = "reason",
}

impl LogValue {
    /// The value of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(word) = LogWord::from_word(name) {
            return Some(Self::Known(word));
        }
        match Placeholder::parse(name)? {
            Placeholder::Capture(_) => None,
            placeholder => Some(Self::Request(placeholder)),
        }
    }

    /// Whether it shows the route or the site.
    #[must_use]
    pub fn needs_route(&self) -> bool {
        matches!(self, Self::Known(LogWord::Route | LogWord::Site))
    }
}

impl LogTemplate {
    /// Parses a text with words in braces.
    ///
    /// # Errors
    /// The first word that stands for nothing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(start) = rest.find('{') {
            plain.push_str(&rest[..start]);
            let Some(word) = word_in_braces(&rest[start..]) else {
                plain.push('{');
                rest = &rest[start + 1..];
                continue;
            };
            let value = LogValue::parse(word).ok_or_else(|| format!("{{{word}}}"))?;
            if !plain.is_empty() {
                parts.push(LogPart::Text(std::mem::take(&mut plain)));
            }
            parts.push(LogPart::Value(value));
            rest = &rest[start + word.len() + 2..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(LogPart::Text(plain));
        }
        Ok(Self(parts))
    }

    /// Whether it shows the route or the site.
    #[must_use]
    pub fn needs_route(&self) -> bool {
        let needs = |part: &LogPart| matches!(part, LogPart::Value(value) if value.needs_route());
        self.0.iter().any(needs)
    }

    /// Its parts in order.
    #[must_use]
    pub fn parts(&self) -> &[LogPart] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_has_texts_and_values() {
        let template =
            LogTemplate::parse("a {client} {header.User-Agent}{status} {\"x\"}").unwrap();
        let value = |name| LogPart::Value(LogValue::parse(name).unwrap());
        assert_eq!(
            template.parts(),
            [
                LogPart::Text("a ".to_owned()),
                value("client"),
                LogPart::Text(" ".to_owned()),
                value("header.User-Agent"),
                value("status"),
                LogPart::Text(" {\"x\"}".to_owned()),
            ]
        );
        for unknown in ["{nothing}", "{re.1}", "{status.1}"] {
            assert_eq!(LogTemplate::parse(unknown), Err(unknown.to_owned()));
        }
    }

    #[test]
    fn every_word_is_named_by_the_message() {
        for name in LOG_VALUES.split(", ") {
            let name = name.trim();
            let value = LogValue::parse(name).unwrap_or_else(|| panic!("{name}"));
            if let LogValue::Known(word) = value {
                assert_eq!(word.as_str(), name);
            }
        }
    }
}
