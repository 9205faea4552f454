//! TLS for clients: the `[tls]` and `[acme]` tables, and the tables of a site with a certificate.

use std::path::PathBuf;
use std::time::Duration;

use crate::options::OptionDefault::Described;
use crate::options::OptionKind::*;
use crate::options::expected::*;

section! {
    /// What all listeners with TLS have in common.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Tls
    in "tls", "[tls]", "[tls]" {
        /// Versions and cipher suites, as Mozilla's guidelines name them: `"intermediate"` has TLS
        /// 1.2 and 1.3, `"modern"` TLS 1.3 alone.
        profile: TlsProfile = TlsProfile::default(), Choice(TlsProfile::WORDS),
            example r#""modern""#;
        /// What a client gets that names no site with a certificate: the certificate of the first
        /// site that has one, or an error. A client that sends no name gets that certificate in
        /// any case.
        unknown_names: UnknownNames = UnknownNames::default(), Choice(UnknownNames::WORDS),
            example r#""refuse""#;
    }
}

choice! {
    /// Versions and cipher suites.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum TlsProfile {
        /// TLS 1.2 and 1.3, with forward secrecy and authenticated encryption.
        #[default]
        Intermediate = "intermediate",
        /// TLS 1.3.
        Modern = "modern",
    }
}

choice! {
    /// What a client gets that asks for the name of no site.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum UnknownNames {
        /// The certificate of the first site that has one.
        #[default]
        Default = "default",
        /// The alert `unrecognized_name`.
        Refuse = "refuse",
    }
}

/// Where the certificates of a site come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SiteTls {
    /// The site has no TLS.
    #[default]
    Off,
    /// A certificate authority, by ACME.
    Auto,
    /// The local certificate authority of this machine.
    Local,
    /// Files.
    Files(CertificateFiles),
}

section! {
    /// A certificate in files, which are read again when they change.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CertificateFiles(certificate: PathBuf, key: PathBuf)
    in "sites.tls", "tls = { ... } in [[sites]]", "" {
        /// The chain in PEM, the site's own certificate first.
        certificate: PathBuf = certificate, Path, default required, example r#""chain.pem""#, by hand;
        /// The private key in PEM, without a password.
        key: PathBuf = key, Path, default "in the file of `certificate`",
            example r#""key.pem""#, by hand;
    }
}

section! {
    /// Certificates of clients. Applications get the result as `SSL_CLIENT_VERIFY`,
    /// `SSL_CLIENT_S_DN`, `SSL_CLIENT_FINGERPRINT` and `SSL_CLIENT_CERT`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ClientCertificates(ca: PathBuf)
    in "sites.client_certificates", "client_certificates = { ... } in [[sites]]", "" {
        /// Whether a client without a certificate is refused.
        mode: ClientCertificateMode = ClientCertificateMode::default(),
            Choice(ClientCertificateMode::WORDS), example r#""request""#;
        /// The certificate authorities that sign them, in PEM.
        ca: PathBuf = ca, Path, default required, example r#""clients-ca.pem""#, by hand;
        /// Certificates that are revoked, in PEM.
        crl: Option<PathBuf> = None, Path, default "none", example r#""revoked.pem""#, by hand;
    }
}

choice! {
    /// Whether clients need a certificate.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum ClientCertificateMode {
        /// A handshake without one fails.
        #[default]
        Require = "require",
        /// One that is sent must be valid.
        Request = "request",
    }
}

section! {
    /// HTTP Strict Transport Security (RFC 6797): browsers use HTTPS alone for so long.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Hsts(max_age: Duration)
    in "sites.hsts", "hsts = { ... } in [[sites]]", "" {
        /// How long, from the last response on.
        max_age: Duration = max_age, Age, default required, example r#""1y""#, by hand;
        /// Whether the names below the site's follow it.
        include_subdomains: bool = false, Bool;
        /// Whether browsers may have the site in the list that they are delivered with, which takes
        /// sites with a `max_age` of at least a year.
        preload: bool = false, Bool;
    }
}

section! {
    /// Certificates by ACME (RFC 8555), for the hosts of sites with `tls = "auto"`. By setting
    /// `tls = "auto"` you accept the terms of service of the certificate authority.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Acme
    in "acme", "[acme]", "[acme]" {
        /// Where the authority writes about an account.
        email: Option<String> = None, Text(EMAIL_ADDRESS), default "none",
            example r#""ops@example.com""#, by check(crate::tls::is_email_address);
        /// The authority, or several in the order in which they are tried.
        directory: Vec<String> = vec!["letsencrypt".to_owned()],
            TextOrTexts(crate::tls::DIRECTORY_EXPECTED), shows r#""letsencrypt""#,
            example r#"["letsencrypt", "zerossl"]"#, by hand;
        /// Certificates that sign an authority's own HTTPS, in PEM: for one inside a company.
        ca: Option<PathBuf> = None, Path, default "those of the system",
            example r#""company-ca.pem""#, by hand;
        /// The folder of certificates and account keys, or `"redis"`: the store of `server.redis`,
        /// where several servers share them.
        storage: Option<AcmeStorage> = None, Text(crate::tls::STORAGE_EXPECTED),
            default "`/var/lib/penstock/certificates` (root), `$STATE_DIRECTORY/certificates`, or \
                `penstock/certificates` in `$XDG_DATA_HOME` or `~/.local/share`",
            example r#""/var/lib/penstock/certificates""#, by hand;
        /// The kind of certificate, for an authority that offers several.
        profile: Option<String> = None, Text("the name of a profile such as \"shortlived\""),
            default "the authority's default", example r#""shortlived""#,
            by check(crate::headers::is_token);
        /// How control over a name is proved, in the order of preference. Wildcards need
        /// `"dns-01"` or `"dns-persist-01"`, which is a record that you set once: the log shows it
        /// after the first attempt.
        challenges: Vec<ChallengeKind> = vec![ChallengeKind::TlsAlpn01, ChallengeKind::Http01],
            Texts(crate::tls::CHALLENGES_EXPECTED), shows r#"["tls-alpn-01", "http-01"]"#,
            example r#"["dns-01"]"#, by hand;
        /// A command that publishes a DNS record and removes it: it is run with `present` or
        /// `cleanup`, the domain, the record's name and its value.
        dns_hook: Option<String> = None, Text(APP_COMMAND), default "none",
            example r#""/etc/penstock/dns-hook""#, by check(crate::tls::is_command);
        /// An account that the authority knows already.
        external_account: Option<ExternalAccount> = None, Table("acme.external_account"),
            default "none", example r#"{ key_id = "kid-1", key = { file = "eab.key" } }"#, by hand;
        /// Certificates for names that no site lists, ordered at the first connection.
        on_demand: Option<OnDemand> = None, Table("acme.on_demand"), default "none",
            example r#"{ ask = "http://127.0.0.1:5000/allowed" }"#, by hand;
    }
}

/// Where certificates and account keys are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcmeStorage {
    /// In a folder.
    Folder(PathBuf),
    /// In the store of `server.redis`.
    Redis,
}

/// How control over a name is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChallengeKind {
    /// By a response on port 80 (RFC 8555 §8.3).
    Http01,
    /// By a certificate on port 443 (RFC 8737).
    TlsAlpn01,
    /// By a DNS record (RFC 8555 §8.4).
    Dns01,
    /// By a DNS record that is set once by hand (draft-ietf-acme-dns-persist).
    DnsPersist01,
}

impl ChallengeKind {
    /// The kind of a word, as RFC 8555 has them.
    pub(crate) fn from_word(word: &str) -> Option<Self> {
        match word {
            "http-01" => Some(Self::Http01),
            "tls-alpn-01" => Some(Self::TlsAlpn01),
            "dns-01" => Some(Self::Dns01),
            "dns-persist-01" => Some(Self::DnsPersist01),
            _ => None,
        }
    }
}

section! {
    /// An account that was made at the authority's site (RFC 8555 §7.3.4).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ExternalAccount(key_id: String, key_file: PathBuf)
    in "acme.external_account", "external_account = { ... } in [acme]", "" {
        /// The key's name.
        key_id: String = key_id, Text("the key's name"), default required,
            example r#""kid-1""#, by hand;
        /// The key in base64url, in a file.
        "key" => key_file: PathBuf = key_file, Table("acme.external_account.key"), default required,
            example r#"{ file = "eab.key" }"#, by hand;
    }
}

keys! {
    /// A secret in a file.
    EXTERNAL_ACCOUNT_KEY in "acme.external_account.key",
        "key = { ... } in [acme.external_account]", "" {
        /// The file.
        "file": Path, Described("required, unless there is a `credential`"),
            example r#""eab.key""#;
        /// The name of a credential that systemd gives the server, in place of `file`.
        "credential": Text(crate::secret::CREDENTIAL_EXPECTED), Described("none"),
            example r#""eab""#;
    }
}

section! {
    /// Certificates for the domains of customers. No certificate is ordered for a name that `ask`
    /// does not allow.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct OnDemand(ask: String)
    in "acme.on_demand", "on_demand = { ... } in [acme]", "" {
        /// A URL that answers 200 to `?domain=NAME` when NAME may have a certificate.
        ask: String = ask, Text(HTTP_URL), default required,
            example r#""http://127.0.0.1:5000/allowed""#, by hand;
        /// Most certificates ordered in `interval`.
        max_orders: u64 = 10, Number(1, 100_000);
        /// The time that `max_orders` counts in.
        interval: Duration = Duration::from_secs(60), Time(1000);
    }
}
