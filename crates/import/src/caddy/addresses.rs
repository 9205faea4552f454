//! Addresses of sites and of servers behind them.

use super::placeholders::environment;

/// The address of a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SiteAddress {
    /// The host; `None` for any.
    pub(super) host: Option<String>,
    /// The port, where the address has one.
    pub(super) port: Option<String>,
    /// `http` or `https`, where the address has one.
    pub(super) scheme: Option<String>,
    /// The path behind it.
    pub(super) path: String,
}

impl SiteAddress {
    /// Reads `https://example.com:8443/path`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = environment(text);
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_owned()), rest),
            None => (None, text.as_str()),
        };
        if scheme
            .as_deref()
            .is_some_and(|it| it != "http" && it != "https")
        {
            return None;
        }
        let (authority, path) = match rest.find('/').filter(|_| !rest.starts_with("${")) {
            Some(at) => (&rest[..at], &rest[at..]),
            None => (rest, ""),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, Some(port.to_owned())),
            _ => (authority, None),
        };
        let is_variable = host.starts_with("${") && host.ends_with('}');
        let host = match is_variable {
            true => host.to_owned(),
            false => host.trim_matches(['[', ']']).to_ascii_lowercase(),
        };
        let host = match host.as_str() {
            // A variable that has the host.
            name if is_variable && name.matches('$').count() == 1 => Some(name.to_owned()),
            "" | "*" | "0.0.0.0" | "::" => None,
            name if penstock_config::HostPattern::parse(name).is_some() => Some(name.to_owned()),
            _ => return None,
        };
        Some(Self {
            host,
            port,
            scheme,
            path: path.to_owned(),
        })
    }

    /// Whether the host is one of this machine, whose certificate is local.
    pub(super) fn is_local(&self) -> bool {
        let host = self.host.as_deref().unwrap_or_default();
        host == "localhost"
            || host.ends_with(".localhost")
            || host.ends_with(".local")
            || host.ends_with(":-localhost}")
            || host.parse::<std::net::IpAddr>().is_ok()
    }
}

/// A server behind a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerAddress {
    pub(super) address: String,
    pub(super) has_tls: bool,
}

impl ServerAddress {
    /// Reads `127.0.0.1:80`, `https://a.example`, `unix//run/a.sock`, `:9000`.
    pub(super) fn parse(text: &str, default_port: &str) -> Option<Self> {
        let text = environment(text);
        if text.contains('{') && !text.contains("${") {
            return None;
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text.as_str()));
        if !["", "http", "https", "h2c", "tcp"].contains(&scheme) {
            return None;
        }
        let has_tls = scheme == "https";
        let rest = rest.strip_prefix("tcp/").unwrap_or(rest);
        if let Some(path) = rest.strip_prefix("unix/") {
            let path = path.split('|').next().unwrap_or(path);
            return Some(Self {
                address: format!("unix:/{}", path.trim_start_matches('/')),
                has_tls,
            });
        }
        let rest = rest.trim_end_matches('/');
        let port = if has_tls { "443" } else { default_port };
        let address = match rest.strip_prefix(':') {
            Some(port) => format!("127.0.0.1:{port}"),
            None if rest.contains("${") => rest.to_owned(),
            None => crate::nginx::with_port(rest, port),
        };
        let port = address.rsplit(':').next().unwrap_or_default();
        let is_one = address.starts_with('[') || address.matches(':').count() == 1;
        let has_port = (is_one && port.parse::<u16>().is_ok()) || address.contains("${");
        (has_port && !address.contains(['/', ' '])).then_some(Self { address, has_tls })
    }
}

/// The name of an upstream for its first server.
pub(super) fn upstream_name(address: &str) -> String {
    let stem = match address.strip_prefix("unix:") {
        Some(path) => path
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .trim_end_matches(".sock"),
        None => address
            .trim_start_matches("127.0.0.1:")
            .trim_start_matches("localhost:"),
    };
    match stem.starts_with(|c: char| c.is_ascii_digit()) {
        true => format!("server-{stem}"),
        false => stem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_addresses_of_sites() {
        let site = |text: &str| SiteAddress::parse(text);
        let full = site("https://A.example:8443/x").unwrap();
        assert_eq!(full.host.as_deref(), Some("a.example"));
        assert_eq!(full.port.as_deref(), Some("8443"));
        assert_eq!(full.path, "/x");
        assert_eq!(site(":80").unwrap().host, None);
        assert_eq!(
            site("*.example.com").unwrap().host.as_deref(),
            Some("*.example.com")
        );
        assert_eq!(site("a b"), None);
        assert!(site("localhost").unwrap().is_local());
    }

    #[test]
    fn reads_addresses_of_servers() {
        let rows = [
            ("127.0.0.1:9", "127.0.0.1:9", false),
            (":9000", "127.0.0.1:9000", false),
            ("app", "app:80", false),
            ("https://a.example", "a.example:443", true),
            ("unix//run/a.sock", "unix:/run/a.sock", false),
            ("h2c://app:5", "app:5", false),
            ("{$APP:app:5}", "${APP:-app:5}", false),
        ];
        for (text, address, has_tls) in rows {
            let made = ServerAddress::parse(text, "80").unwrap();
            assert_eq!(
                (made.address.as_str(), made.has_tls),
                (address, has_tls),
                "{text}"
            );
        }
        assert_eq!(ServerAddress::parse("{http.x}", "80"), None);
    }
}
