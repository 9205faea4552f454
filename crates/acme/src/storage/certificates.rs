//! Certificates in a storage: loaded and checked, stored, and the best of several found.

use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{Storage, StorageError, keys};
use crate::certificate::{Certificate, CertificateFacts};
use crate::name::CertificateName;
use crate::settings::Directory;

/// The content of a certificate's `.json` file, as far as certmagic's is needed.
#[derive(Debug, Serialize, Deserialize)]
struct CertificateRecord {
    sans: Vec<String>,
    issuer_data: IssuerRecord,
}

#[derive(Debug, Serialize, Deserialize)]
struct IssuerRecord {
    ca: String,
}

/// Loads the certificate for `name` from the authority of `directory_url`. One that cannot be used
/// (torn files, another key) counts as missing, with a warning.
pub(crate) async fn load_certificate(
    storage: &dyn Storage,
    directory_url: &str,
    name: &CertificateName,
) -> Result<Option<Certificate>, StorageError> {
    let key = |extension| keys::certificate(directory_url, name, extension);
    let Some(chain) = storage.load(&key("crt")).await? else {
        return Ok(None);
    };
    let Some(private_key) = storage.load(&key("key")).await? else {
        return Ok(None);
    };
    let chain = String::from_utf8_lossy(&chain);
    let private_key = Zeroizing::new(
        std::str::from_utf8(&private_key)
            .unwrap_or_default()
            .to_owned(),
    );
    match Certificate::parse(name, &chain, private_key, Arc::from(directory_url)) {
        Ok(certificate) => Ok(Some(certificate)),
        Err(error) => {
            let place = key("crt");
            log::warn!(
                "acme: a stored certificate is not used: {error} (name={name}, key={place})"
            );
            Ok(None)
        }
    }
}

/// Loads the newest certificate of those that have not expired at `now`.
pub(crate) async fn load_newest(
    storage: &dyn Storage,
    directories: &[Directory],
    name: &CertificateName,
    now: SystemTime,
) -> Result<Option<Certificate>, StorageError> {
    let mut newest: Option<Certificate> = None;
    for directory in directories {
        let Some(found) = load_certificate(storage, &directory.url, name).await? else {
            continue;
        };
        // One that is valid from a moment ago may seem to be valid from now on: clocks differ.
        let is_valid = now < found.facts.not_after;
        let is_newer = |best: &Certificate| is_newer(&found.facts, &best.facts);
        if is_valid && newest.as_ref().is_none_or(is_newer) {
            newest = Some(found);
        }
    }
    Ok(newest)
}

/// Whether `found` is another certificate than `known` and was not issued before it. Dates have
/// whole seconds: two certificates may have the same, and the lifetime says nothing.
pub(crate) fn is_newer(found: &CertificateFacts, known: &CertificateFacts) -> bool {
    found != known && found.not_before >= known.not_before
}

/// Stores a certificate. Readers that see a part of it find that key and certificate do not match.
pub(crate) async fn store_certificate(
    storage: &dyn Storage,
    name: &CertificateName,
    certificate: &Certificate,
) -> Result<(), StorageError> {
    let ready = &certificate.ready;
    let key = |extension| keys::certificate(&ready.directory, name, extension);
    let record = CertificateRecord {
        sans: ready.names.iter().map(ToString::to_string).collect(),
        issuer_data: IssuerRecord {
            ca: ready.directory.to_string(),
        },
    };
    let record = serde_json::to_vec_pretty(&record).unwrap_or_default();
    let values = [
        ("key", ready.key_pem.expose().as_bytes()),
        ("crt", ready.chain_pem.as_bytes()),
        ("json", &record),
    ];
    for (extension, value) in values {
        let value = Zeroizing::new(value.to_vec());
        storage.store(&key(extension), value).await?;
    }
    Ok(())
}
