//! Renders texts with placeholders: values of header fields, targets of redirects, fixed bodies.
//!
//! # Invariants
//! - A value is what the client sent, never decoded: no placeholder can end a field.
//! - Groups of a regular expression, which matched the decoded path, are percent-encoded again.

use penstock_config::{PathRegex, Placeholder, Template, TemplatePart};
use penstock_exchange::RequestPath;
use penstock_http::{RequestHead, encode_path, strip_port};
use penstock_sys::net::PeerAddress;

/// What placeholders stand for in one request.
#[derive(Debug, Clone, Copy)]
pub struct TemplateValues<'a> {
    /// The head as the client sent it.
    pub head: &'a RequestHead,
    /// The client, as trusted proxies name it.
    pub client: PeerAddress,
    /// The authority that the client asked for, as trusted proxies name it.
    pub host: &'a str,
    /// The scheme that the client used.
    pub scheme: &'static str,
    /// The regular expression of the route's path.
    pub path_regex: Option<&'a PathRegex>,
}

/// Renders a template; `buffer` is used where it has placeholders.
pub fn render<'t>(
    template: &'t Template,
    values: &TemplateValues<'_>,
    buffer: &'t mut Vec<u8>,
) -> &'t [u8] {
    if let [TemplatePart::Text(text)] = template.parts() {
        return text.as_bytes();
    }
    buffer.clear();
    for part in template.parts() {
        match part {
            TemplatePart::Text(text) => buffer.extend_from_slice(text.as_bytes()),
            TemplatePart::Placeholder(placeholder) => values.append(placeholder, buffer),
        }
    }
    buffer
}

impl TemplateValues<'_> {
    /// Appends the value of a placeholder, as the client sent it.
    pub fn append(&self, placeholder: &Placeholder, out: &mut Vec<u8>) {
        let target = self.head.target_path_query();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let value = match placeholder {
            Placeholder::Client => {
                match self.client {
                    PeerAddress::Tcp(address) => out.extend(address.ip().to_string().bytes()),
                    PeerAddress::Unix => out.extend_from_slice(b"unix"),
                }
                return;
            }
            Placeholder::Capture(group) => return self.append_group(group, out),
            Placeholder::Host => self.host.as_bytes(),
            Placeholder::Hostname => strip_port(self.host).as_bytes(),
            Placeholder::Scheme => self.scheme.as_bytes(),
            Placeholder::Method => self.head.method_str().as_bytes(),
            Placeholder::Uri => target.as_bytes(),
            Placeholder::Path => path.as_bytes(),
            Placeholder::PathSegment(index) => {
                let segments = path.split('/').filter(|segment| !segment.is_empty());
                segments
                    .skip(index - 1)
                    .map(str::as_bytes)
                    .next()
                    .unwrap_or_default()
            }
            Placeholder::Query => query.as_bytes(),
            Placeholder::Parameter(name) => raw_parameter(query, name).as_bytes(),
            Placeholder::Header(name) => self.head.field(name).unwrap_or_default(),
            Placeholder::Cookie(name) => self.head.cookie(name).unwrap_or_default(),
        };
        out.extend_from_slice(value);
    }

    /// Appends a group of the match; nothing if it took no part in it.
    fn append_group(&self, group: &str, out: &mut Vec<u8>) {
        let Some((regex, path)) = self.path_regex.zip(RequestPath::from_head(self.head).ok())
        else {
            return;
        };
        let Some(captures) = regex.regex().captures(path.bytes(self.head)) else {
            return;
        };
        let found = match group.parse() {
            Ok(index) => captures.get(index),
            Err(_) => captures.name(group),
        };
        if let Some(found) = found {
            out.extend_from_slice(encode_path(found.as_bytes()).as_bytes());
        }
    }
}

/// The value of the first parameter of a query with this name, not decoded.
fn raw_parameter<'q>(query: &'q str, name: &str) -> &'q str {
    let mut pairs = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let found = pairs.find(|(found, _)| *found == name);
    found.map_or("", |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use penstock_http::{HeadLimits, ParseProgress, parse_head};

    use super::*;

    fn rendered(template: &str, target: &str) -> String {
        let text = format!(
            "GET {target} HTTP/1.1\r\nHost: a.example:8080\r\nX-A: 1\r\nCookie: sid=7; b=2\r\n\r\n"
        );
        let head = match parse_head(text.as_bytes(), &HeadLimits::default()).unwrap() {
            ParseProgress::Complete((head, _)) => head,
            ParseProgress::Partial => panic!("the head is whole: {text:?}"),
        };
        let regex = PathRegex::new("^/p/([^/]*)(?:/(?<rest>.*))?$").unwrap();
        let values = TemplateValues {
            head: &head,
            client: PeerAddress::Tcp("[2001:db8::1]:99".parse().unwrap()),
            host: "www.example:81",
            scheme: "https",
            path_regex: Some(&regex),
        };
        let mut buffer = b"left over".to_vec();
        let template = template.parse().unwrap();
        let rendered = render(&template, &values, &mut buffer);
        String::from_utf8(rendered.to_vec()).unwrap()
    }

    #[test]
    fn placeholders_stand_for_what_the_client_sent() {
        let target = "/p/x%20y/z?a=1%0d&b=&a=2";
        for (template, expected) in [
            ("plain {}", "plain {}"),
            ("{client}", "2001:db8::1"),
            (
                "{scheme}://{host}{uri}",
                "https://www.example:81/p/x%20y/z?a=1%0d&b=&a=2",
            ),
            ("{hostname}", "www.example"),
            ("{method} {path}", "GET /p/x%20y/z"),
            ("{path.1}-{path.2}-{path.4}", "p-x%20y-"),
            ("{query}", "a=1%0d&b=&a=2"),
            ("{query.a}|{query.b}|{query.c}", "1%0d||"),
            ("{header.x-a}{header.X-B}", "1"),
            ("{cookie.sid}{cookie.c}", "7"),
            ("/{re.1}/{re.rest}{re.9}", "/x%20y/z"),
        ] {
            assert_eq!(rendered(template, target), expected, "{template}");
        }
        assert_eq!(rendered("/{re.1}/{re.rest}", "/p/a%2e%25b"), "/a.%25b/");
        assert_eq!(rendered("/{re.1}", "/q"), "/");
    }
}
