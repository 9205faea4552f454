//! The certificates of one site, or of one host of it: where they come from, and what is in use.

use std::fmt;
use std::sync::Arc;

use penstock_config::{CertificateFiles, HostPattern, Site, SiteTls};
use penstock_tls::certificate_file::{
    self, CertificateFileError, CertificateFiles as Files, KeepReason, LoadedCertificate,
    RefreshOutcome,
};
use penstock_tls::{
    CertificateStatus, IssueError, LocalAuthority, PolicyId, ServerCertificate, SiteCertificates,
    local_authority::needs_renewal, stand_in,
};
use rustls::pki_types::UnixTime;

use super::tcp_listeners::ListenerStore;
use super::watch::FileStamp;

/// Certificates for some hosts, and their origin.
#[derive(Debug, Clone)]
pub(super) struct SiteEntry {
    /// As the configuration writes them; empty for a site of any host.
    pub(super) hosts: Vec<String>,
    origin: SiteTls,
    policy: PolicyId,
    certificates: Vec<ServerCertificate>,
    /// Of the files, when they were read last.
    pub(super) stamp: Option<FileStamp>,
    last_error: Option<String>,
    /// A client has asked for it, and no site names it.
    is_on_demand: bool,
    /// The TCP listener that has it, alone.
    pub(super) listener: Option<ListenerStore>,
}

/// Why a site has no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum SiteError {
    #[error(transparent)]
    File(#[from] CertificateFileError),
    #[error(transparent)]
    Issue(#[from] IssueError),
}

/// What clients may hold against a site's certificate.
#[derive(Debug)]
pub(crate) struct SiteProblem {
    file: String,
    problem: String,
    /// Whether clients refuse it: `check` fails.
    pub(crate) is_error: bool,
}

impl fmt::Display for SiteProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.problem)
    }
}

impl SiteEntry {
    /// The entries of a site, without certificates yet. With ACME each host has a certificate of its
    /// own, so that one name that cannot be proved holds up no other.
    pub(super) fn for_site(site: &Site, policy: PolicyId) -> Vec<Self> {
        let hosts: Vec<String> = site.hosts.iter().map(HostPattern::to_string).collect();
        let entry = |hosts| Self {
            hosts,
            origin: site.tls.clone(),
            policy,
            certificates: Vec::new(),
            stamp: None,
            last_error: None,
            is_on_demand: false,
            listener: None,
        };
        match site.tls {
            SiteTls::Off => Vec::new(),
            SiteTls::Auto if !hosts.is_empty() => {
                hosts.into_iter().map(|host| entry(vec![host])).collect()
            }
            SiteTls::Auto | SiteTls::Local | SiteTls::Files(_) => vec![entry(hosts)],
        }
    }

    /// The entry of a TCP listener with a certificate of its own, without it yet.
    pub(super) fn for_listener(listener: ListenerStore, files: &CertificateFiles) -> Self {
        Self {
            hosts: Vec::new(),
            origin: SiteTls::Files(files.clone()),
            policy: PolicyId::NONE,
            certificates: Vec::new(),
            stamp: None,
            last_error: None,
            is_on_demand: false,
            listener: Some(listener),
        }
    }

    /// Whether it is for the same hosts or the same listener, from the same origin.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_there = match (&self.listener, &other.listener) {
            (None, None) => self.hosts == other.hosts,
            (Some(own), Some(other)) => Arc::ptr_eq(&own.store, &other.store),
            _ => false,
        };
        is_there && self.origin == other.origin
    }

    /// Its hosts or its listener, for the log.
    pub(super) fn label(&self) -> String {
        match &self.listener {
            Some(listener) => listener.name.clone(),
            None => self.hosts.join(", "),
        }
    }

    /// The certificates of its listener, which are for that; none for those of sites.
    pub(super) fn listener_statuses(&self) -> impl Iterator<Item = CertificateStatus> {
        self.listener.iter().flat_map(|listener| {
            let of_listener = |status| CertificateStatus {
                hosts: vec![listener.name.clone()],
                ..status
            };
            listener.store.snapshot().into_iter().map(of_listener)
        })
    }

    pub(super) fn certificates(&self) -> &[ServerCertificate] {
        &self.certificates
    }

    /// Whether its certificates come by ACME.
    pub(super) fn is_automatic(&self) -> bool {
        self.origin == SiteTls::Auto
    }

    /// Whether it is the site of names on demand.
    pub(super) fn is_automatic_for_any_host(&self) -> bool {
        self.is_automatic() && self.hosts.is_empty()
    }

    /// Whether it was made for this name on demand.
    pub(super) fn is_on_demand_for(&self, host: &str) -> bool {
        self.is_on_demand && self.hosts == [host]
    }

    /// An entry for a name on demand, which this is the site of.
    pub(super) fn on_demand(&self, host: &str, certificate: ServerCertificate) -> Self {
        Self {
            hosts: vec![host.to_owned()],
            certificates: vec![certificate],
            is_on_demand: true,
            ..self.clone()
        }
    }

    /// The same name on demand, of another site for any host; `None` for one that a site named.
    pub(super) fn moved_to(&self, open: &Self) -> Option<Self> {
        let mut moved = open.on_demand(self.hosts.first()?, self.certificates.first()?.clone());
        moved.take_certificates(self);
        self.is_on_demand.then_some(moved)
    }

    /// Takes the certificates of an entry for the same hosts, and nothing else of it: what clients
    /// must prove is this one's.
    pub(super) fn take_certificates(&mut self, other: &Self) {
        self.certificates.clone_from(&other.certificates);
        self.stamp.clone_from(&other.stamp);
        self.last_error.clone_from(&other.last_error);
    }

    /// Whether its certificate is one of the local authority that ends soon.
    pub(super) fn needs_local_renewal(&self, now: UnixTime) -> bool {
        let is_due = |it: &ServerCertificate| needs_renewal(&it.facts, now);
        self.origin == SiteTls::Local && self.certificates.iter().any(is_due)
    }

    /// Replaces its certificate.
    pub(super) fn replace(&mut self, certificate: ServerCertificate) {
        self.certificates = vec![certificate];
        self.last_error = None;
    }

    /// Gets its certificate. `known` are those in use, which serve a site by ACME until it has others.
    ///
    /// # Errors
    /// The files cannot be used, or no certificate can be made.
    pub(super) fn load(
        mut self,
        local: Option<&LocalAuthority>,
        known: Option<Vec<ServerCertificate>>,
        now: UnixTime,
    ) -> Result<(Self, Vec<SiteProblem>), SiteError> {
        let mut problems = Vec::new();
        self.certificates = match (&self.origin, known) {
            (SiteTls::Files(files), _) => {
                self.stamp = FileStamp::of(files);
                let loaded = certificate_file::load(&to_pair(files), now)?;
                problems = describe_problems(files, &loaded, &self.hosts);
                vec![loaded.certificate]
            }
            (SiteTls::Auto, Some(known)) => known,
            (SiteTls::Local, _) => match local {
                Some(authority) => vec![authority.issue(&self.hosts, now)?],
                None => Vec::new(),
            },
            (SiteTls::Auto, None) => vec![stand_in(&self.hosts, now)?],
            (SiteTls::Off, _) => Vec::new(),
        };
        Ok((self, problems))
    }

    /// A copy and its files, to look whether they have changed.
    pub(super) fn watched(&self) -> Option<(Self, CertificateFiles)> {
        match &self.origin {
            SiteTls::Files(files) => Some((self.clone(), files.clone())),
            SiteTls::Off | SiteTls::Auto | SiteTls::Local => None,
        }
    }

    /// Reads its files again. The certificate in use stays if the files hold a worse one, and if
    /// they hold the same, which is `None`. Blocks.
    pub(super) fn reload_files(
        mut self,
        files: &CertificateFiles,
        now: UnixTime,
    ) -> (Self, Result<Option<Vec<SiteProblem>>, KeepReason>) {
        self.stamp = FileStamp::of(files);
        let pair = to_pair(files);
        let refreshed = match self.certificates.first() {
            Some(current) => certificate_file::refresh(&pair, current, now),
            None => match certificate_file::load(&pair, now) {
                Ok(loaded) => RefreshOutcome::Replaced(Box::new(loaded)),
                Err(error) => RefreshOutcome::Kept(error.into()),
            },
        };
        let outcome = match refreshed {
            RefreshOutcome::Unchanged => Ok(None),
            RefreshOutcome::Replaced(loaded) => {
                let problems = describe_problems(files, &loaded, &self.hosts);
                self.certificates = vec![loaded.certificate];
                Ok(Some(problems))
            }
            RefreshOutcome::Kept(reason) => Err(reason),
        };
        self.last_error = outcome.as_ref().err().map(KeepReason::to_string);
        (self, outcome)
    }

    pub(super) fn to_certificates(&self) -> SiteCertificates {
        SiteCertificates {
            hosts: self.hosts.clone(),
            certificates: self.certificates.clone(),
            policy: self.policy,
            last_error: self.last_error.clone(),
        }
    }
}

fn to_pair(files: &CertificateFiles) -> Files {
    Files {
        certificate: files.certificate.clone(),
        key: (files.key != files.certificate).then(|| files.key.clone()),
    }
}

fn describe_problems(
    files: &CertificateFiles,
    loaded: &LoadedCertificate,
    hosts: &[String],
) -> Vec<SiteProblem> {
    let file = files.certificate.display().to_string();
    let mut problems = Vec::new();
    for problem in &loaded.problems {
        problems.push(SiteProblem {
            file: file.clone(),
            problem: problem.to_string(),
            is_error: loaded.errors().any(|error| error == problem),
        });
    }
    let uncovered = loaded.uncovered_hosts(hosts);
    if !uncovered.is_empty() {
        problems.push(SiteProblem {
            file,
            problem: format!(
                "the certificate is not for {}: its names are {}",
                uncovered.join(", "),
                loaded.certificate.facts.names.join(", ")
            ),
            is_error: true,
        });
    }
    problems
}
