//! A certificate authority of this machine, for development: browsers that trust it accept
//! `https://localhost`.
//!
//! `tls = "local"` gets its certificates here; `penstock trust` puts the root into the stores of
//! the system and of browsers (`trust`). Certificates of sites are made at start and never stored.
//!
//! The folder holds `authority.pem`, the root's key and certificate for this program only, and
//! `root.pem`, the certificate for all others.
//!
//! # Invariants
//!
//! - Two programs that start at once agree on one root: the file appears whole, or not at all.
//! - A key that other users can read signs nothing: with it they could pretend to be any site.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::UnixTime;
use zeroize::Zeroizing;

use crate::certificate::{CertificateSource, ServerCertificate};
use crate::certificate_file::{self, CertificateError, private_key};
use crate::certificates::short_digest;
use crate::pem_file;
use crate::stand_in::{CLOCK_SKEW, IssueError, assemble, leaf_params, moment};
use crate::x509::CertificateFacts;

#[cfg(test)]
mod tests;
pub mod trust;

/// The names of each certificate besides those that are asked for.
pub const LOCAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Ten years, as mkcert has it: each new root is a new `penstock trust`.
const ROOT_VALIDITY: u64 = 10 * 365 * 86_400;

/// Safari accepts 825 days of a private authority; a server that runs longer than 60 renews.
const LEAF_VALIDITY: u64 = 90 * 86_400;

const AUTHORITY_FILE: &str = "authority.pem";
/// The file in the folder of an authority with the certificate that clients have to trust.
pub const ROOT_FILE: &str = "root.pem";

/// The authority of a folder.
pub struct LocalAuthority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    root: ServerCertificate,
    root_pem: String,
}

/// Why there is no local authority.
#[derive(Debug, thiserror::Error)]
pub enum LocalAuthorityError {
    /// A file or folder cannot be read or written.
    #[error("the local certificate authority: {}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// The key is not private.
    #[error(
        "the local certificate authority: {}: other users can read its key (mode {mode:o}): remove \
         the file, and run \"penstock trust\" again",
        path.display()
    )]
    ExposedKey {
        /// The file with the key.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file has no usable root.
    #[error(
        "the local certificate authority: {}: {cause}: remove the file, and run \"penstock trust\" \
         again",
        path.display()
    )]
    Damaged {
        /// The file with the root.
        path: PathBuf,
        /// The problem.
        cause: CertificateError,
    },
    /// A root cannot be made or used.
    #[error("the local certificate authority cannot sign: {0}")]
    Unusable(#[from] rcgen::Error),
}

impl LocalAuthority {
    /// Opens the authority of a folder; makes the folder and the root where there is none, or where
    /// it has expired. Blocks.
    pub fn open(folder: &Path, now: UnixTime) -> Result<Self, LocalAuthorityError> {
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(folder);
        made.map_err(|cause| failed(folder, cause))?;
        let path = folder.join(AUTHORITY_FILE);
        let existing = read(folder, &path, now)?;
        let authority = match existing {
            Some(authority) if !authority.root.facts.is_expired(now) => authority,
            expired => {
                create(&path, now, expired.is_some())?;
                let missing = || failed(&path, io::ErrorKind::NotFound.into());
                read(folder, &path, now)?.ok_or_else(missing)?
            }
        };
        authority.publish_root()?;
        Ok(authority)
    }

    /// Whether a folder has an authority. Blocks.
    pub fn exists(folder: &Path) -> bool {
        folder.join(AUTHORITY_FILE).exists()
    }

    /// The file with the certificate that clients have to trust.
    pub fn root_path(&self) -> PathBuf {
        self.folder.join(ROOT_FILE)
    }

    /// The certificate that clients have to trust.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// The facts of that certificate.
    pub fn root_facts(&self) -> &CertificateFacts {
        &self.root.facts
    }

    /// Makes a certificate for `localhost`, the loopback addresses and these names.
    pub fn issue(&self, names: &[String], now: UnixTime) -> Result<ServerCertificate, IssueError> {
        let mut all = names.to_vec();
        let missing = LOCAL_NAMES
            .iter()
            .filter(|name| !names.iter().any(|it| it == *name));
        all.extend(missing.map(|name| (*name).to_owned()));
        let left = self.root.facts.not_after.saturating_sub(now.as_secs());
        let mut params = leaf_params(&all, now, LEAF_VALIDITY.min(left))?;
        let common = all[0].chars().take(MAX_COMMON_NAME).collect::<String>();
        params.distinguished_name.push(DnType::CommonName, common);
        params.use_authority_key_identifier_extension = true;
        let rejected = |cause| IssueError::Rejected {
            names: all.join(", "),
            cause,
        };
        let key = KeyPair::generate().map_err(rejected)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(rejected)?;
        assemble(&all, &certificate, &key, CertificateSource::LocalAuthority)
    }

    /// Writes `root.pem` where it is missing or another.
    fn publish_root(&self) -> Result<(), LocalAuthorityError> {
        let path = self.root_path();
        let is_current = pem_file::read(&path).is_ok_and(|it| *it.text == self.root_pem.as_bytes());
        if is_current {
            return Ok(());
        }
        write_whole(&path, self.root_pem.as_bytes(), 0o644, |temporary| {
            std::fs::rename(temporary, &path)
        })
        .map_err(|cause| failed(&path, cause))
    }
}

/// Whether a certificate is in the last third of its validity.
pub fn needs_renewal(facts: &CertificateFacts, now: UnixTime) -> bool {
    let validity = facts.not_after.saturating_sub(facts.not_before);
    now.as_secs() > facts.not_after.saturating_sub(validity / 3)
}

/// The longest common name (RFC 5280 appendix A.1).
const MAX_COMMON_NAME: usize = 64;

/// Reads an authority; `None` if there is no file.
fn read(
    folder: &Path,
    path: &Path,
    now: UnixTime,
) -> Result<Option<LocalAuthority>, LocalAuthorityError> {
    let file = match pem_file::read(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(failed(path, cause)),
    };
    if file.mode & 0o077 != 0 {
        return Err(LocalAuthorityError::ExposedKey {
            path: path.to_owned(),
            mode: file.mode,
        });
    }
    let damaged = |cause| LocalAuthorityError::Damaged {
        path: path.to_owned(),
        cause,
    };
    let source = CertificateSource::LocalAuthority;
    let loaded = certificate_file::parse(&file.text, &file.text, source, now).map_err(damaged)?;
    let root = loaded.certificate;
    let key = KeyPair::try_from(&private_key::parse(&file.text).map_err(damaged)?)?;
    let issuer = Issuer::from_ca_cert_der(&root.certified_key.cert[0], key)?;
    let text = String::from_utf8_lossy(&file.text);
    let start = text.find("-----BEGIN CERTIFICATE").unwrap_or(0);
    let root_pem = text[start..].to_owned();
    Ok(Some(LocalAuthority {
        folder: folder.to_owned(),
        issuer,
        root,
        root_pem,
    }))
}

/// Makes a root, unless another program made one in the meantime. An expired root is replaced.
fn create(path: &Path, now: UnixTime, is_expired: bool) -> Result<(), LocalAuthorityError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.not_before = moment(now.as_secs().saturating_sub(CLOCK_SKEW));
    params.not_after = moment(now.as_secs() + ROOT_VALIDITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // With a mark of its own: stores find a root by its name.
    let mark = short_digest(&[key.public_key_raw()]);
    let name = format!("Penstock local authority {:08x}", mark >> 32);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let root = params.self_signed(&key)?;
    let key = Zeroizing::new(key.serialize_pem());
    let text = Zeroizing::new(format!("{}{}", *key, root.pem()));
    write_whole(path, text.as_bytes(), 0o600, |temporary| match is_expired {
        true => std::fs::rename(temporary, path),
        // Unlike a rename, a link replaces no file.
        false => match std::fs::hard_link(temporary, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            result => result,
        },
    })
    .map_err(|cause| failed(path, cause))
}

/// Writes a temporary file beside `path` and lets `place` put it there.
fn write_whole(
    path: &Path,
    text: &[u8],
    mode: u32,
    place: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let mut random = [0; 8];
    aws_lc_rs::rand::fill(&mut random).map_err(|_| io::Error::other("no random bytes"))?;
    let temporary = path.with_extension(format!("{:016x}", u64::from_be_bytes(random)));
    let mut options = std::fs::File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)?;
    // Whatever the umask left of the mode.
    let permissions = std::fs::Permissions::from_mode(mode);
    let written = file
        .set_permissions(permissions)
        .and_then(|()| file.write_all(text));
    let placed = written
        .and_then(|()| file.sync_all())
        .and_then(|()| place(&temporary));
    // After a rename there is none.
    let _ = std::fs::remove_file(&temporary);
    placed
}

fn failed(path: &Path, cause: io::Error) -> LocalAuthorityError {
    LocalAuthorityError::Io {
        path: path.to_owned(),
        cause,
    }
}

impl fmt::Debug for LocalAuthority {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalAuthority")
            .field("folder", &self.folder)
            .field("root", &self.root.facts)
            .finish_non_exhaustive()
    }
}
