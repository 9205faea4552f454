//! The `forward_auth` of a route: a service that decides about each request.
//!
//! Called by `route`; `parse` adds an upstream for each service.
//!
//! # Invariants
//! - The upstream of a service has a name that no upstream of the file can have.

use std::collections::BTreeMap;

use crate::address::parse_server_addr;
use crate::findings::LocatedValue;
use crate::headers::is_removable_field;
use crate::model::{
    ForwardAuth, HostHeader, Protocol, Site, Upstream, UpstreamServer, UpstreamTls,
};
use crate::section::{Keys as _, Section};

/// The URL of a service, in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    /// Whether it has TLS.
    pub is_https: bool,
    /// Host and port, as written.
    pub authority: String,
    /// Path and query; starts with `/`.
    pub target: String,
}

impl ServiceUrl {
    /// Parses an `http` or `https` URL without user information and fragment.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (is_https, rest) = match text.split_once("://")? {
            ("http", rest) => (false, rest),
            ("https", rest) => (true, rest),
            _ => return None,
        };
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let is_target = target.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        let url = Self {
            is_https,
            authority: authority.to_owned(),
            target: match target.starts_with('/') {
                true => target.to_owned(),
                false => format!("/{target}"),
            },
        };
        (is_target && url.server_address().is_some()).then_some(url)
    }

    /// The address with the port that the scheme has by default.
    fn server_address(&self) -> Option<crate::ServerAddr> {
        let port = if self.is_https { ":443" } else { ":80" };
        let with_port = match self.authority.rfind(':') {
            Some(colon) if !self.authority[colon..].contains(']') => self.authority.clone(),
            _ => format!("{}{port}", self.authority),
        };
        let base = std::path::Path::new("/");
        let address = parse_server_addr(&with_port, base)?;
        use crate::ServerAddr::{Name, Tcp};
        matches!(address, Name { .. } | Tcp(_)).then_some(address)
    }

    /// The name of the service's upstream.
    #[must_use]
    pub fn upstream_name(&self) -> String {
        let scheme = if self.is_https { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }
}

/// Reads the service of a route.
pub(crate) fn read(route: &Section<'_>) -> Option<ForwardAuth> {
    let (text, table) = match route.is_table("forward_auth") {
        false => (route.text("forward_auth")?, None),
        true => {
            let table = route.table("forward_auth")?;
            (table.text("url")?, Some(table))
        }
    };
    let reporter = table.as_ref().unwrap_or(route);
    let url = parse_url(reporter, &text)?;
    let mut auth = ForwardAuth::new(url);
    if let Some(table) = &table {
        auth.read_keys(table);
        let names = table.list("copy_headers", |name| {
            is_removable_field(name).then(|| name.to_owned())
        });
        let names = names.unwrap_or_default();
        auth.copy_headers = names.into_iter().map(|name| name.value).collect();
    }
    Some(auth)
}

fn parse_url(table: &Section<'_>, text: &LocatedValue<&str>) -> Option<ServiceUrl> {
    let url = ServiceUrl::parse(text.value);
    if url.is_none() {
        let expected = crate::options::expected::SERVICE_URL;
        let key = if table.has("url") {
            "url"
        } else {
            "forward_auth"
        };
        table.report_invalid_item(key, text.value, text.offset, expected);
    }
    url
}

/// Adds the upstreams of all services. Of several routes with one service the longest timeout counts.
pub(crate) fn add_upstreams(upstreams: &mut BTreeMap<String, Upstream>, sites: &[Site]) {
    let routes = sites.iter().flat_map(|site| &site.routes);
    for auth in routes.filter_map(|route| route.forward_auth.as_ref()) {
        let name = auth.url.upstream_name();
        let Some(address) = auth.url.server_address() else {
            continue;
        };
        let upstream = upstreams.entry(name.clone()).or_insert_with(|| {
            let servers = vec![UpstreamServer::new(address)];
            let mut upstream = Upstream::new(&name, Protocol::Http, servers);
            upstream.host = HostHeader::Custom(auth.url.authority.clone());
            upstream.tls = auth.url.is_https.then(UpstreamTls::default);
            upstream.response_timeout = auth.timeout;
            upstream
        });
        upstream.response_timeout = upstream.response_timeout.max(auth.timeout);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{TestDir, parse_valid};

    fn route(auth: &str) -> String {
        format!("[[sites]]\n[[sites.routes]]\nrespond = {{}}\nforward_auth = {auth}\n")
    }

    #[test]
    fn a_service_gets_an_upstream() {
        let folder = TestDir::with_files(&[]);
        for (auth, name, host, target, timeout) in [
            (
                "\"http://127.0.0.1:4180/oauth2/auth\"",
                "http://127.0.0.1:4180",
                "127.0.0.1:4180",
                "/oauth2/auth",
                10,
            ),
            (
                "{ url = \"https://auth.example\", copy_headers = [\"X-User\"], timeout = \"2s\" }",
                "https://auth.example",
                "auth.example",
                "/",
                2,
            ),
            (
                "{ url = \"http://auth.example?x=1\" }",
                "http://auth.example",
                "auth.example",
                "/?x=1",
                10,
            ),
        ] {
            let config = parse_valid(&folder, &route(auth));
            let read = config.sites[0].routes[0].forward_auth.as_ref().unwrap();
            assert_eq!(read.url.target, target);
            let upstream = &config.upstreams[name];
            assert_eq!(upstream.host, HostHeader::Custom(host.to_owned()));
            assert_eq!(upstream.response_timeout, Duration::from_secs(timeout));
            assert_eq!(upstream.tls.is_some(), name.starts_with("https"));
        }
    }

    #[test]
    fn services_that_cannot_be_meant_are_refused() {
        let folder = TestDir::with_files(&[]);
        for (auth, expected) in [
            (
                "\"auth.example\"",
                "`forward_auth` cannot be \"auth.example\"",
            ),
            ("\"ftp://auth.example\"", "`forward_auth` cannot be"),
            ("\"http://user@auth.example/\"", "`forward_auth` cannot be"),
            ("\"http://auth.example/#a\"", "`forward_auth` cannot be"),
            ("\"http://unix:/run/a.sock\"", "`forward_auth` cannot be"),
            ("{}", "`url` is missing"),
            ("{ url = \"x\" }", "`url` cannot be \"x\""),
            (
                "{ url = \"http://a\", copy_headers = [\"Connection\"] }",
                "`copy_headers` cannot be",
            ),
            (
                "{ url = \"http://a\", timeout = \"0s\" }",
                "`timeout` cannot be",
            ),
        ] {
            let text = route(auth);
            let found = crate::parse(&text, &folder.path().join("penstock.toml"));
            let found = found.expect_err(auth).to_string();
            assert!(found.contains(expected), "{auth}: {found}");
        }
    }
}
