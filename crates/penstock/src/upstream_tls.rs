//! Reads the certificates and keys of upstreams with `tls`.
//!
//! Used at start, before the server becomes another user, and in a pool at each reload; `penstock
//! check` shows the errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use penstock_config::{self as config, Config};
use penstock_proxy::{TlsMaterial, UpstreamTls};
use penstock_tls::certificate_file::{self, CertificateFiles, CertificateProblem};
use penstock_tls::{
    ClientTlsOptions, Fingerprint, ServerCertificate, ServerTrust, client_config, roots_from_file,
    server_name, system_roots,
};
use rustls::RootCertStore;
use rustls::pki_types::UnixTime;

/// TLS of the upstreams that have it, by their name.
pub(crate) type UpstreamTlsSet = BTreeMap<String, UpstreamTls>;

/// Reads the files of all upstreams. May block.
///
/// # Errors
/// Every problem, a line each.
pub(crate) fn load(config: &Config) -> Result<UpstreamTlsSet, String> {
    let mut loader = Loader::default();
    let (mut loaded, mut wrong) = (UpstreamTlsSet::new(), Vec::new());
    for (name, upstream) in &config.upstreams {
        let Some(tls) = &upstream.tls else {
            continue;
        };
        match loader.build(tls) {
            Ok(tls) => drop(loaded.insert(name.clone(), tls)),
            Err(error) => wrong.push(format!("upstreams.{name}.tls{error}")),
        }
    }
    match wrong.is_empty() {
        true => Ok(loaded),
        false => Err(wrong.join("\n")),
    }
}

/// What servers may hold against the client certificates, now or soon. May block.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, upstream) in &config.upstreams {
        let files = upstream.tls.as_ref().and_then(client_certificate_files);
        let loaded = files.and_then(|files| certificate_file::load(&files, UnixTime::now()).ok());
        let problems = loaded.map(|loaded| loaded.problems).unwrap_or_default();
        let relevant = problems.iter().filter(|problem| concerns_clients(problem));
        warnings
            .extend(relevant.map(|problem| format!("upstreams.{name}.tls.certificate: {problem}")));
    }
    warnings
}

/// Whether a problem of a certificate matters where a client shows it: its names do not.
fn concerns_clients(problem: &CertificateProblem) -> bool {
    !matches!(
        problem,
        CertificateProblem::NoNames
            | CertificateProblem::SelfSigned
            | CertificateProblem::Authority { .. }
            | CertificateProblem::NoIntermediate { .. }
    )
}

/// Reads the system's authorities once for all upstreams.
#[derive(Default)]
struct Loader {
    system_roots: Option<Arc<RootCertStore>>,
}

impl Loader {
    /// # Errors
    /// What is wrong, behind the key that it is wrong with.
    fn build(&mut self, tls: &config::UpstreamTls) -> Result<UpstreamTls, String> {
        let (trust, certificate) = (self.trust(tls)?, client_certificate(tls)?);
        let material = TlsMaterial {
            authorities: match &trust {
                ServerTrust::Authorities(roots) => Some(Arc::clone(roots)),
                ServerTrust::Fingerprints(_) | ServerTrust::Anything => None,
            },
            own_chain: (certificate.iter())
                .flat_map(|it| it.certified_key.cert.clone())
                .collect(),
        };
        let options = ClientTlsOptions {
            trust,
            certificate,
            alpn: Vec::new(),
            key_log: None,
        };
        let name = tls.server_name.as_deref().map(server_name).transpose();
        Ok(UpstreamTls {
            config: client_config(options).map_err(|error| format!(": {error}"))?,
            server_name: name.map_err(|error| format!(".server_name: {error}"))?,
            material,
        })
    }

    fn trust(&mut self, tls: &config::UpstreamTls) -> Result<ServerTrust, String> {
        if !tls.verify {
            return Ok(ServerTrust::Anything);
        }
        if let Some(fingerprint) = &tls.fingerprint {
            let fingerprint: Fingerprint = fingerprint
                .parse()
                .map_err(|error| format!(".fingerprint: {error}"))?;
            return Ok(ServerTrust::Fingerprints(vec![fingerprint]));
        }
        let roots = match &tls.ca {
            Some(path) => read_authorities(path)?,
            None => self.system_roots()?,
        };
        Ok(ServerTrust::Authorities(roots))
    }

    fn system_roots(&mut self) -> Result<Arc<RootCertStore>, String> {
        if let Some(roots) = &self.system_roots {
            return Ok(Arc::clone(roots));
        }
        let roots = system_roots().map_err(|error| format!(": {error}"))?;
        self.system_roots = Some(Arc::clone(&roots));
        Ok(roots)
    }
}

fn read_authorities(path: &Path) -> Result<Arc<RootCertStore>, String> {
    roots_from_file(path).map_err(|error| format!(".ca: {}: {error}", path.display()))
}

fn client_certificate(tls: &config::UpstreamTls) -> Result<Option<ServerCertificate>, String> {
    let Some(files) = client_certificate_files(tls) else {
        return Ok(None);
    };
    let loaded = certificate_file::load(&files, UnixTime::now());
    let loaded = loaded.map_err(|error| format!(".certificate: {error}"))?;
    Ok(Some(loaded.certificate))
}

fn client_certificate_files(tls: &config::UpstreamTls) -> Option<CertificateFiles> {
    Some(CertificateFiles {
        certificate: tls.certificate.clone()?,
        key: tls.key.clone(),
    })
}
