//! The lines of a start that can be clicked: `open https://shop.example/`, for sites that have hosts.
//!
//! Such a site answers 421 at the bare addresses that `announce` prints.

use penstock_config::{HostPattern, Site, SiteTls};

/// Sites whose links are printed. A configuration with more of them is not a first start.
const MAX_LINKS: usize = 4;

/// The line of each site with a host of its own, of at most [`MAX_LINKS`] sites; none where there
/// are more. `listeners` are those for HTTP: scheme and port.
pub(super) fn describe_site_links(
    sites: &[Site],
    listeners: &[(&'static str, u16)],
) -> Vec<String> {
    let mut links: Vec<String> = sites
        .iter()
        .filter_map(|site| site_link(site, listeners))
        .map(|link| format!("open {link}\n"))
        .collect();
    links.dedup();
    match links.len() > MAX_LINKS {
        true => Vec::new(),
        false => links,
    }
}

/// The URL of a site, by the first listener that its clients are to use.
fn site_link(site: &Site, listeners: &[(&'static str, u16)]) -> Option<String> {
    let exact = site.hosts.iter().find_map(|host| match host {
        HostPattern::Exact(name) => Some(name.as_str()),
        HostPattern::Subdomains(_) => None,
    });
    let host = site.canonical_host.as_deref().or(exact)?;
    let wanted = match site.tls {
        SiteTls::Off => "http",
        SiteTls::Auto | SiteTls::Local | SiteTls::Files(_) => "https",
    };
    let of_scheme = listeners.iter().find(|(scheme, _)| *scheme == wanted);
    let (scheme, port) = of_scheme.or_else(|| listeners.first())?;
    let default_port = if *scheme == "https" { 443 } else { 80 };
    let port = match *port == default_port {
        true => String::new(),
        false => format!(":{port}"),
    };
    Some(format!("{scheme}://{host}{port}/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [(&str, u16); 2] = [("http", 8080), ("https", 8443)];

    fn site(tls: SiteTls, hosts: &[HostPattern]) -> Site {
        let mut site = Site::new(Vec::new());
        (site.tls, site.hosts) = (tls, hosts.to_vec());
        site
    }

    fn exact(name: &str) -> HostPattern {
        HostPattern::Exact(name.to_owned())
    }

    #[test]
    fn a_link_has_the_scheme_host_and_port_of_the_site() {
        let rows = [
            (SiteTls::Local, &BOTH[..], Some("https://a.test:8443/")),
            (SiteTls::Off, &BOTH[..], Some("http://a.test:8080/")),
            (
                SiteTls::Auto,
                &[("https", 443)][..],
                Some("https://a.test/"),
            ),
            (SiteTls::Off, &[("http", 80)][..], Some("http://a.test/")),
            (
                SiteTls::Off,
                &[("https", 8443)][..],
                Some("https://a.test:8443/"),
            ),
            (
                SiteTls::Auto,
                &[("http", 443)][..],
                Some("http://a.test:443/"),
            ),
            (SiteTls::Local, &[][..], None),
        ];
        let hosts = [
            HostPattern::Subdomains(".a.test".to_owned()),
            exact("a.test"),
        ];
        for (tls, listeners, expected) in rows {
            let site = site(tls.clone(), &hosts);
            assert_eq!(
                site_link(&site, listeners).as_deref(),
                expected,
                "{tls:?} {listeners:?}"
            );
        }
        assert_eq!(site_link(&site(SiteTls::Local, &[]), &BOTH), None);
        assert_eq!(site_link(&site(SiteTls::Local, &hosts[..1]), &BOTH), None);
        let mut canonical = site(SiteTls::Local, &hosts);
        canonical.canonical_host = Some("www.a.test".to_owned());
        assert_eq!(
            site_link(&canonical, &BOTH).as_deref(),
            Some("https://www.a.test:8443/")
        );
    }

    #[test]
    fn many_sites_have_no_links() {
        let named = |number| site(SiteTls::Local, &[exact(&format!("{number}.test"))]);
        let mut sites: Vec<_> = (0..MAX_LINKS).map(named).collect();
        assert_eq!(describe_site_links(&sites, &BOTH).len(), MAX_LINKS);
        sites.push(named(MAX_LINKS));
        assert!(describe_site_links(&sites, &BOTH).is_empty());
    }
}
