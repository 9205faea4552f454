//! Builds requests from URLs, headers and bodies. `command` and `compare` use it before a load
//! begins; names are resolved here, once.

#![allow(
    clippy::disallowed_methods,
    reason = "files are read before anything is sent"
)]

use std::fmt::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use bytes::Bytes;
use penstock_http::is_token;

use crate::load::{Address, EncodedRequest, TlsTarget};
use crate::tls::TlsClient;

/// Why a request cannot be built: the URL, file or part of it, and the error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(pub(crate) String);

impl From<TargetError> for String {
    fn from(error: TargetError) -> Self {
        error.0
    }
}

/// The server and path of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The address to connect to.
    pub address: Address,
    /// The `Host` field.
    pub host: String,
    /// Path and query, as sent.
    pub path: String,
    /// The server that must be there, if the URL is `https://`.
    pub tls: Option<TlsTarget>,
}

/// The parts that all of a load's requests share.
#[derive(Debug, Clone)]
pub struct RequestTemplate {
    /// The method.
    pub method: String,
    /// More header fields, by name and value.
    pub headers: Vec<(String, String)>,
    /// The body; `None` sends none.
    pub body: Option<Bytes>,
    /// Whether the connection serves further requests.
    pub keep_alive: bool,
}

impl Default for RequestTemplate {
    fn default() -> Self {
        Self {
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: None,
            keep_alive: true,
        }
    }
}

impl Target {
    /// Parses `http://host:port/path`, `https://host:port/path` or `unix:/path/of.sock`; `socket`
    /// replaces the address to connect to, and `client` makes the sessions of `https://`.
    ///
    /// # Errors
    /// It is none of them, its name has no address, or `client` cannot be used.
    pub fn from_url(
        url: &str,
        socket: Option<&Path>,
        client: &TlsClient,
    ) -> Result<Self, TargetError> {
        let wrong = |what: &str| TargetError(format!("`{url}`: {what}"));
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Self {
                address: Address::Unix(path.into()),
                host: "localhost".to_owned(),
                path: "/".to_owned(),
                tls: None,
            });
        }
        let secured = url.strip_prefix("https://");
        let rest = secured.or_else(|| url.strip_prefix("http://"));
        let rest = rest.unwrap_or(url);
        if rest.contains("://") {
            return Err(wrong("only http://, https:// and unix: can be measured"));
        }
        let rest = rest.split('#').next().unwrap_or(rest);
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let path = match path {
            query if query.starts_with('?') => format!("/{query}"),
            "" => "/".to_owned(),
            path => path.to_owned(),
        };
        check_path(&path)?;
        if authority.is_empty() || authority.contains('@') || !authority.is_ascii() {
            return Err(wrong("no host to connect to"));
        }
        let (host, port) = split_port(authority);
        let port = port.unwrap_or(match secured {
            Some(_) => ":443",
            None => ":80",
        });
        let address = match socket {
            Some(socket) => Address::Unix(socket.into()),
            None => {
                let found = resolve(&format!("{host}{port}"));
                Address::Tcp(found.map_err(|error| wrong(&error.to_string()))?)
            }
        };
        let tls = secured.map(|_| tls_target(host, client));
        Ok(Self {
            address,
            host: authority.to_owned(),
            path,
            tls: tls.transpose().map_err(|why| wrong(&why))?,
        })
    }

    /// The same server with another path.
    #[must_use]
    pub fn with_path(&self, path: &str) -> Self {
        Self {
            path: path.to_owned(),
            ..self.clone()
        }
    }

    /// Encodes a request for each of these paths.
    ///
    /// # Errors
    /// A part of one would break the request.
    pub fn encode_requests(
        &self,
        paths: &[String],
        template: &RequestTemplate,
    ) -> Result<Vec<EncodedRequest>, TargetError> {
        let requests = paths.iter();
        requests
            .map(|path| self.with_path(path).encode_request(template, 1))
            .collect()
    }

    /// Encodes a request for it.
    ///
    /// # Errors
    /// A part of it would break the request.
    pub fn encode_request(
        &self,
        template: &RequestTemplate,
        weight: u32,
    ) -> Result<EncodedRequest, TargetError> {
        check_path(&self.path)?;
        let refuse = |what: String| Err(TargetError(what));
        if !is_token(template.method.as_bytes()) {
            return refuse(format!("`{}` is not a method", template.method));
        }
        let mut head = format!("{} {} HTTP/1.1\r\n", template.method, self.path);
        if !has_field(template, "host") {
            // Writing to a String cannot fail.
            let _ = write!(head, "Host: {}\r\n", self.host);
        }
        for (name, value) in &template.headers {
            if !is_token(name.as_bytes())
                || value.bytes().any(|b| b < b' ' && b != b'\t' || b == 0x7f)
            {
                return refuse(format!("`{name}: {value}` is not a header field"));
            }
            let _ = write!(head, "{name}: {value}\r\n");
        }
        if !template.keep_alive && !has_field(template, "connection") {
            head.push_str("Connection: close\r\n");
        }
        let body = template.body.as_deref().unwrap_or_default();
        if template.body.is_some() && !has_field(template, "content-length") {
            let _ = write!(head, "Content-Length: {}\r\n", body.len());
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        Ok(EncodedRequest {
            address: self.address.clone(),
            tls: self.tls.clone(),
            bytes: bytes.into(),
            weight,
            is_head: template.method == "HEAD",
        })
    }
}

/// Reads the paths in a file, one per line; skips empty lines and those that begin with `#`.
///
/// # Errors
/// It cannot be read, has none, or one is not a path.
pub fn read_paths(file: &Path) -> Result<Vec<String>, TargetError> {
    let text = String::from_utf8_lossy(&read_file(file)?).into_owned();
    let lines = text.lines().map(str::trim);
    let paths: Vec<String> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    if paths.is_empty() {
        return Err(TargetError(format!("{}: no path in it", file.display())));
    }
    paths.iter().try_for_each(|path| check_path(path))?;
    Ok(paths)
}

/// Reads a file.
///
/// # Errors
/// It cannot be read; the text names it.
pub fn read_file(path: &Path) -> Result<Vec<u8>, TargetError> {
    std::fs::read(path).map_err(|error| TargetError(format!("{}: {error}", path.display())))
}

/// Parses header fields such as `Name: value`.
///
/// # Errors
/// One has no colon.
pub fn parse_headers(texts: &[String]) -> Result<Vec<(String, String)>, TargetError> {
    let read = |text: &String| {
        let wrong = || TargetError(format!("`{text}`: a header is `Name: value`"));
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    texts.iter().map(read).collect()
}

fn has_field(template: &RequestTemplate, field: &str) -> bool {
    let mut names = template.headers.iter().map(|(name, _)| name);
    names.any(|name| name.eq_ignore_ascii_case(field))
}

/// The host, and the port with its colon if there is one.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => {
            (&authority[..colon], Some(&authority[colon..]))
        }
        _ => (authority, None),
    }
}

fn resolve(authority: &str) -> std::io::Result<SocketAddr> {
    let mut found = authority.to_socket_addrs()?;
    found
        .next()
        .ok_or_else(|| std::io::Error::other("no address"))
}

fn tls_target(host: &str, client: &TlsClient) -> Result<TlsTarget, String> {
    let server_name = penstock_tls::server_name(host).map_err(|error| error.to_string())?;
    Ok(TlsTarget {
        config: client.config()?,
        server_name,
    })
}

fn check_path(path: &str) -> Result<(), TargetError> {
    match is_request_path(path) {
        true => Ok(()),
        false => Err(TargetError(format!("`{path}`: {PATH_RULE}"))),
    }
}

/// Whether it can be a request target in origin form (RFC 9112 §3.2.1); for the scenario's paths
/// too.
pub(crate) fn is_request_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
}

pub(crate) const PATH_RULE: &str =
    "a path begins with a slash and has no blanks; what is not ASCII is written as %XX";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::TlsSettings;

    #[test]
    fn reads_places() {
        let client = TlsClient::default();
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap());
        for (url, address, host, path) in [
            (
                "http://127.0.0.1:8080",
                tcp("127.0.0.1:8080"),
                "127.0.0.1:8080",
                "/",
            ),
            (
                "127.0.0.1:80/a?b=c#d",
                tcp("127.0.0.1:80"),
                "127.0.0.1:80",
                "/a?b=c",
            ),
            ("http://[::1]/x", tcp("[::1]:80"), "[::1]", "/x"),
            (
                "http://127.0.0.1?q",
                tcp("127.0.0.1:80"),
                "127.0.0.1",
                "/?q",
            ),
            (
                "unix:/run/a.sock",
                Address::Unix("/run/a.sock".into()),
                "localhost",
                "/",
            ),
        ] {
            let found = Target::from_url(url, None, &client).unwrap();
            assert_eq!(
                (found.address, &*found.host, &*found.path),
                (address, host, path),
                "{url}"
            );
        }
        let over = Target::from_url(
            "http://example.test/x",
            Some(Path::new("/run/b.sock")),
            &client,
        );
        let over = over.unwrap();
        assert_eq!(over.address, Address::Unix("/run/b.sock".into()));
        assert_eq!(over.host, "example.test");
        for wrong in [
            "ftp://a/",
            "http:///x",
            "http://u@127.0.0.1/",
            "http://127.0.0.1:x/",
            "http://127.0.0.1/a b",
            "http://127.0.0.1/\u{e4}",
            "http://127.0.0.1/\u{7f}",
        ] {
            assert!(Target::from_url(wrong, None, &client).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_places_with_tls() {
        let client = TlsClient::new(TlsSettings {
            is_insecure: true,
            ..TlsSettings::default()
        });
        for (url, address, host, name) in [
            (
                "https://127.0.0.1/",
                "127.0.0.1:443",
                "127.0.0.1",
                "127.0.0.1",
            ),
            ("https://[::1]:81/", "[::1]:81", "[::1]:81", "::1"),
            (
                "https://localhost:82",
                "127.0.0.1:82",
                "localhost:82",
                "localhost",
            ),
        ] {
            let socket = (name == "localhost").then_some(Path::new("/run/b.sock"));
            let found = Target::from_url(url, socket, &client).unwrap();
            let address = match socket {
                Some(socket) => Address::Unix(socket.into()),
                None => Address::Tcp(address.parse().unwrap()),
            };
            assert_eq!(
                (found.address.clone(), &*found.host),
                (address, host),
                "{url}"
            );
            let tls = found.tls.clone().unwrap();
            assert_eq!(tls.server_name.to_str(), name, "{url}");
            let request = found
                .encode_request(&RequestTemplate::default(), 1)
                .unwrap();
            assert_eq!(request.tls, Some(tls), "{url}");
        }
        let wrong = Target::from_url("https://a_b..c/", Some(Path::new("/x")), &client);
        assert!(wrong.unwrap_err().to_string().contains("a_b..c"));
    }

    #[test]
    fn writes_requests() {
        let target =
            Target::from_url("http://127.0.0.1:81/p", None, &TlsClient::default()).unwrap();
        let text = |template: &RequestTemplate| {
            let shape = target.encode_request(template, 1).unwrap();
            String::from_utf8(shape.bytes.to_vec()).unwrap()
        };
        assert_eq!(
            text(&RequestTemplate::default()),
            "GET /p HTTP/1.1\r\nHost: 127.0.0.1:81\r\n\r\n"
        );
        let template = RequestTemplate {
            method: "POST".into(),
            headers: vec![("host".into(), "a".into()), ("X".into(), "1".into())],
            body: Some(Bytes::from_static(b"ab")),
            keep_alive: false,
        };
        assert_eq!(
            text(&template),
            "POST /p HTTP/1.1\r\nhost: a\r\nX: 1\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab"
        );
        let split = RequestTemplate {
            headers: vec![("X".into(), "1\r\nY: 2".into())],
            ..RequestTemplate::default()
        };
        assert!(target.encode_request(&split, 1).is_err());
        assert!(
            target
                .with_path("/a\r\n")
                .encode_request(&RequestTemplate::default(), 1)
                .is_err()
        );
    }
}
