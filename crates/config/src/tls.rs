//! TLS for clients: the `[tls]` and `[acme]` tables, the keys of sites with a certificate, and the
//! checks between listeners, sites and challenges.
//!
//! Called by `parse`, and by `site` for each site. Whether a certificate is good, and fits its
//! site, is checked by the wiring, which reads the files.

use crate::command_line::split_command;
use crate::findings::make_absolute;
use crate::model::{
    Acme, AcmeStorage, CertificateFiles, ChallengeKind, ClientCertificates, ExternalAccount, Hsts,
    OnDemand, Server, Site, SiteTls, TcpFrontend, TcpTls, Tls,
};
use crate::section::{Keys as _, Section, TextOrList};
use crate::values::HostPattern;

/// What `acme.directory` may be.
pub(crate) const DIRECTORY_EXPECTED: &str =
    "\"letsencrypt\", \"letsencrypt-staging\", \"zerossl\", or the https URL of a directory";

/// What `acme.storage` may be.
pub(crate) const STORAGE_EXPECTED: &str = "\"redis\", or the path of a folder";

/// What `acme.challenges` may have.
pub(crate) const CHALLENGES_EXPECTED: &str =
    "\"http-01\", \"tls-alpn-01\", \"dns-01\" or \"dns-persist-01\"";

/// Authorities that have a word.
const KNOWN_DIRECTORIES: [&str; 3] = ["letsencrypt", "letsencrypt-staging", "zerossl"];

/// Whether a text looks like an e-mail address: what is wrong with it otherwise, the authority says.
pub(crate) fn is_email_address(text: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control();
    text.len() <= 254
        && !text.contains(is_odd)
        && text
            .split_once('@')
            .is_some_and(|(name, host)| !name.is_empty() && host.contains('.'))
}

/// Whether a text is a command line.
pub(crate) fn is_command(text: &str) -> bool {
    split_command(text).is_some_and(|words| !words.is_empty())
}

/// Reads `[tls]` and `[acme]`.
pub(crate) fn read(top: &Section<'_>, has_redis: bool) -> (Tls, Acme) {
    let mut tls = Tls::default();
    if let Some(table) = top.table("tls") {
        tls.read_keys(&table);
    }
    let acme = top.table("acme").map(|table| read_acme(&table, has_redis));
    (tls, acme.unwrap_or_default())
}

fn read_acme(table: &Section<'_>, has_redis: bool) -> Acme {
    let mut acme = Acme::default();
    acme.read_keys(table);
    if let Some(directories) = read_directories(table) {
        acme.directory = directories;
    }
    acme.ca = table.path("ca").map(|path| path.value);
    acme.storage = table.text("storage").map(|text| match text.value {
        "redis" => {
            if !has_redis {
                let problem = "`storage = \"redis\"` needs `redis` in [server]";
                table.report(text.offset, problem);
            }
            AcmeStorage::Redis
        }
        path => AcmeStorage::Folder(make_absolute(
            table.findings.base_dir(),
            std::path::Path::new(path),
        )),
    });
    if let Some(challenges) = table.list("challenges", ChallengeKind::from_word) {
        acme.challenges = challenges.into_iter().map(|kind| kind.value).collect();
        table.check_not_empty("challenges");
    }
    if acme.challenges.contains(&ChallengeKind::Dns01) && acme.dns_hook.is_none() {
        let problem = "`challenges` has \"dns-01\", which needs a `dns_hook`";
        table.report_key("challenges", problem);
    }
    acme.external_account = table.table("external_account").and_then(|account| {
        let key_id = account.text("key_id");
        let file = account.table("key").and_then(|key| key.secret_path());
        Some(ExternalAccount::new(key_id?.value.to_owned(), file?.value))
    });
    acme.on_demand = table.table("on_demand").and_then(|on_demand| {
        let ask = on_demand.parse_text("ask", |text| is_http_url(text).then(|| text.to_owned()));
        let mut settings = OnDemand::new(String::new());
        settings.read_keys(&on_demand);
        settings.ask = ask?.value;
        Some(settings)
    });
    acme
}

fn read_directories(table: &Section<'_>) -> Option<Vec<String>> {
    let (texts, offset) = match table.text_or_texts("directory")? {
        TextOrList::One(text) => (vec![text.value], text.offset),
        TextOrList::List(texts) => (texts.value, texts.offset),
    };
    for text in &texts {
        if !is_acme_directory(text) {
            table.report_invalid_item("directory", text, offset, DIRECTORY_EXPECTED);
        }
    }
    table.check_not_empty("directory");
    Some(texts.into_iter().map(str::to_owned).collect())
}

/// Whether a text names a directory of ACME: a known word or an https URL.
pub(crate) fn is_acme_directory(text: &str) -> bool {
    KNOWN_DIRECTORIES.contains(&text) || text.starts_with("https://")
}

fn is_http_url(text: &str) -> bool {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|it| text.strip_prefix(it));
    rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// Reads the keys of a site that are about TLS and need more than their type.
pub(crate) fn read_site(table: &Section<'_>, site: &mut Site) {
    if let Some(tls) = read_site_tls(table) {
        site.tls = tls;
    }
    site.client_certificates = read_client_certificates(table);
    site.hsts = match table.is_table("hsts") {
        false => table.get("hsts").map(Hsts::new),
        true => table.table("hsts").and_then(|hsts| {
            let mut settings = Hsts::new(hsts.get("max_age")?);
            settings.read_keys(&hsts);
            Some(settings)
        }),
    };
    if site.tls == SiteTls::Off {
        for key in ["client_certificates", "redirect_to_https", "hsts"] {
            if table.has(key) && !table.has("tls") {
                table.report_not_applicable(key);
            }
        }
    }
}

fn read_site_tls(table: &Section<'_>) -> Option<SiteTls> {
    if !table.is_table("tls") {
        let word = table.parse_text("tls", |text| match text {
            "off" => Some(SiteTls::Off),
            "auto" => Some(SiteTls::Auto),
            "local" => Some(SiteTls::Local),
            _ => None,
        });
        return word.map(|word| word.value);
    }
    read_certificate_files(&table.table("tls")?).map(SiteTls::Files)
}

/// Reads the key `tls` of a TCP listener, and those beside it.
pub(crate) fn read_tcp(table: &Section<'_>, frontend: &mut TcpFrontend) {
    frontend.tls = match table.is_table("tls") {
        false => match table.get("tls") {
            Some(true) => TcpTls::Sites,
            Some(false) | None => TcpTls::Off,
        },
        true => {
            let files = table.table("tls");
            let files = files.and_then(|files| read_certificate_files(&files));
            files.map_or(TcpTls::Off, TcpTls::Files)
        }
    };
    frontend.client_certificates = read_client_certificates(table);
    if frontend.tls == TcpTls::Off && !table.is_table("tls") {
        for key in ["alpn", "client_certificates"] {
            table.report_not_applicable(key);
        }
    }
}

fn read_certificate_files(table: &Section<'_>) -> Option<CertificateFiles> {
    let (certificate, key) = (table.path("certificate"), table.path("key"));
    let certificate = certificate?.value;
    let key = key.map_or_else(|| certificate.clone(), |key| key.value);
    Some(CertificateFiles::new(certificate, key))
}

fn read_client_certificates(table: &Section<'_>) -> Option<ClientCertificates> {
    let clients = table.table("client_certificates")?;
    let (ca, crl) = (clients.path("ca"), clients.path("crl"));
    let mut settings = ClientCertificates::new(ca?.value);
    settings.read_keys(&clients);
    settings.crl = crl.map(|crl| crl.value);
    Some(settings)
}

/// Reports listeners with TLS and no certificate, and certificates that no listener uses.
pub(crate) fn check_listeners<'t>(
    top: &Section<'_>,
    server: &Server,
    mut tcp: impl Iterator<Item = &'t TcpFrontend>,
    sites: &[Site],
) {
    let flags = top.findings.flags();
    let has_certificate = sites.iter().any(|site| site.tls != SiteTls::Off);
    let has_http = server.has_tls_listener();
    let has_listener = has_http || tcp.any(|frontend| frontend.tls == TcpTls::Sites);
    if has_listener && !has_certificate && !flags.has_certificate {
        let problem = "a listener has `tls = true`, and no site has a certificate: set `tls` of a \
                       site to \"auto\", \"local\" or a table with `certificate` and `key`";
        top.report_key(if has_http { "server" } else { "tcp" }, problem);
    }
    if has_certificate && !has_listener && !flags.has_tls_listener {
        let problem = "a site has a certificate, and no listener has TLS: add `{ address = \
                       \":443\", tls = true }` to `listen` in [server]";
        top.report_key("sites", problem);
    }
}

/// Reports hosts that no challenge can prove control over.
pub(crate) fn check_challenges(top: &Section<'_>, acme: &Acme, sites: &[Site]) {
    let is_dns =
        |kind: &ChallengeKind| matches!(kind, ChallengeKind::Dns01 | ChallengeKind::DnsPersist01);
    let has_dns = acme.challenges.iter().any(is_dns);
    let mut automatic = sites.iter().filter(|site| site.tls == SiteTls::Auto);
    let has_open_site = automatic.clone().any(|site| site.hosts.is_empty());
    if has_open_site && acme.on_demand.is_none() {
        let problem = "a site for any host has `tls = \"auto\"`: name its `hosts`, or set \
                       `on_demand` in [acme]";
        top.report_key("sites", problem);
    }
    let wildcard = automatic.find_map(|site| {
        let is_wildcard = |host: &&HostPattern| matches!(host, HostPattern::Subdomains(_));
        site.hosts.iter().find(is_wildcard)
    });
    if let Some(host) = wildcard
        && !has_dns
        && acme.on_demand.is_none()
    {
        let problem = format!(
            "a certificate for {host} needs the challenge \"dns-01\" or \"dns-persist-01\": \
             set `challenges` in [acme]"
        );
        top.report_key("sites", problem);
    }
}

#[cfg(test)]
mod tests;
