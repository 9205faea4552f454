//! `tls` of an upstream: a flag, or a table that is `true` and says more.
//!
//! Called by `upstream`. The files are checked by the server, which knows what a certificate is.
//!
//! # Invariants
//! - Every server has a name that it can be asked for.

use std::net::IpAddr;

use crate::model::{ServerAddr, Upstream, UpstreamTls};
use crate::section::{Keys as _, Section};
use crate::values::is_host_name;

/// Reads the key for an upstream that has its servers.
pub(super) fn read(table: &Section<'_>, upstream: &Upstream) -> Option<UpstreamTls> {
    let mut tls = UpstreamTls::default();
    if table.is_table("tls") {
        let inner = table.table("tls")?;
        tls.read_keys(&inner);
        if inner.has("key") && !inner.has("certificate") {
            inner.report_missing("certificate");
        }
        refuse_contradictions(&inner, &tls);
    } else if !table.get::<bool>("tls")? {
        return None;
    }
    if upstream.joinable {
        let problem = "`tls` cannot stand with `joinable`: a program that joins opens the \
                       connections itself";
        table.report_key("tls", problem);
    }
    check_names(table, &tls, upstream);
    Some(tls)
}

/// Of `ca`, `fingerprint` and `verify = false` only one can say what makes a server trusted.
fn refuse_contradictions(table: &Section<'_>, tls: &UpstreamTls) {
    let set = [
        ("`ca`", tls.ca.is_some()),
        ("`fingerprint`", tls.fingerprint.is_some()),
        ("`verify = false`", !tls.verify),
    ];
    let set: Vec<_> = set.iter().filter(|(_, is_set)| *is_set).collect();
    if let [(first, _), (second, _), ..] = set[..] {
        let problem = format!("{first} and {second} cannot stand together: remove one of them");
        table.report(table.offset, problem);
    }
}

/// Reports a server that has no name of its own where none is set.
fn check_names(table: &Section<'_>, tls: &UpstreamTls, upstream: &Upstream) {
    let is_nameless = |address: &ServerAddr| matches!(address, ServerAddr::Unix(_));
    let mut addresses = upstream.servers.iter().map(|server| &server.address);
    if tls.server_name.is_none()
        && let Some(address) = addresses.find(|address| is_nameless(address))
    {
        let problem = format!(
            "server {address} has no name that a certificate could be for: set \
             `tls = {{ server_name = \"...\" }}`"
        );
        table.report_key("tls", problem);
    }
}

/// Whether it can be the SHA-256 of a certificate.
pub(crate) fn is_fingerprint(text: &str) -> bool {
    let mut digits = text.chars().filter(|c| *c != ':');
    digits.clone().count() == 64 && digits.all(|c| c.is_ascii_hexdigit())
}

/// Whether a certificate can be for this name or address.
pub(crate) fn is_server_name(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || is_host_name(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestDir, check_error_table, parse_valid};

    fn read(folder: &TestDir, lines: &str) -> Option<UpstreamTls> {
        let text = format!("[upstreams.b]\nservers = [\"a.example:443\"]\n{lines}\n");
        parse_valid(folder, &text).upstreams["b"].tls.clone()
    }

    #[test]
    fn tls_is_a_flag_or_a_table() {
        let folder = TestDir::with_sample_site();
        assert_eq!(read(&folder, ""), None);
        assert_eq!(read(&folder, "tls = false"), None);
        let default = Some(UpstreamTls::default());
        assert_eq!(read(&folder, "tls = true"), default);
        assert_eq!(read(&folder, "tls = {}"), default);
        let table = "tls = { ca = \"ca.pem\", server_name = \"b.example\", certificate = \"/c.pem\", \
                     key = \"c.key\" }";
        let inside = |name: &str| Some(folder.path().join(name));
        let expected = UpstreamTls {
            ca: inside("ca.pem"),
            server_name: Some("b.example".to_owned()),
            fingerprint: None,
            verify: true,
            certificate: Some("/c.pem".into()),
            key: inside("c.key"),
        };
        assert_eq!(read(&folder, table), Some(expected));
        assert!(!read(&folder, "tls = { verify = false }").unwrap().verify);
    }

    #[test]
    fn reports_tls_that_cannot_work() {
        let upstream = |server: &str, tls: &str| {
            format!("[upstreams.b]\nservers = [\"{server}\"]\ntls = {tls}\n")
        };
        check_error_table(&[
            (
                "a word",
                &upstream("a:1", "\"yes\""),
                &["penstock.toml:3:7: `tls` must be true, false, or a table, not a string"],
            ),
            (
                "a name with a port",
                &upstream("a:1", "{ server_name = \"a:1\" }"),
                &[
                    "penstock.toml:3:23: `server_name` cannot be \"a:1\": expected a host name such as \"api.example\" or an IP address, without a port",
                ],
            ),
            (
                "a key alone",
                &upstream("a:1", "{ key = \"k\" }"),
                &[
                    "penstock.toml:3:7: `certificate` is missing in [upstreams.b.tls]: expected a path",
                ],
            ),
            (
                "authorities without verification",
                &upstream("a:1", "{ ca = \"c\", verify = false }"),
                &[
                    "penstock.toml:3:7: `ca` and `verify = false` cannot stand together: remove one of them",
                ],
            ),
            (
                "a short fingerprint",
                &upstream("a:1", "{ fingerprint = \"5F:3A\" }"),
                &[
                    "penstock.toml:3:23: `fingerprint` cannot be \"5F:3A\": expected a SHA-256 fingerprint: 64 hexadecimal digits, with or without colons",
                ],
            ),
            (
                "a server without a name",
                &upstream("unix:/a.sock", "true"),
                &[
                    "penstock.toml:3:7: server unix:/a.sock has no name that a certificate could be for: set `tls = { server_name = \"...\" }`",
                ],
            ),
        ]);
    }
}
