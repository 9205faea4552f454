//! Reads files of certificates, keys and revocation lists: bounded, and regular files only.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use zeroize::Zeroizing;

/// The largest file that is read. A chain with its key takes 10 KiB, the bundle of all public
/// authorities 220 KiB, and revocation lists of private authorities stay below this.
pub(crate) const MAX_PEM_BYTES: u64 = 8 << 20;

/// A file's text, and the permission bits that it had when it was read.
pub(crate) struct PemFile {
    /// Cleared when dropped: it may hold a key.
    pub(crate) text: Zeroizing<Vec<u8>>,
    pub(crate) mode: u32,
}

/// Reads a regular file of at most 8 MiB. Its text is cleared when dropped. Blocks.
///
/// # Errors
/// Why it cannot be read, or that it is larger or of another kind.
pub fn read_pem_file(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    read(path).map(|file| file.text)
}

/// Reads a file. Blocks.
pub(crate) fn read(path: &Path) -> io::Result<PemFile> {
    // Without NONBLOCK, opening a pipe waits for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let cause = "it is not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
    }
    let too_large = || {
        let cause = format!("it is larger than {MAX_PEM_BYTES} bytes");
        io::Error::new(io::ErrorKind::FileTooLarge, cause)
    };
    let Some(size) = usize::try_from(metadata.len())
        .ok()
        .filter(|_| metadata.len() <= MAX_PEM_BYTES)
    else {
        return Err(too_large());
    };
    // One allocation: a buffer that grows would leave copies of a key behind.
    let mut text = Zeroizing::new(Vec::with_capacity(size + 1));
    file.take(MAX_PEM_BYTES + 1).read_to_end(&mut text)?;
    match text.len() as u64 > MAX_PEM_BYTES {
        true => Err(too_large()),
        false => Ok(PemFile {
            text,
            mode: metadata.mode() & 0o7777,
        }),
    }
}

/// Why a file of certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It holds no section of the expected kind.
    #[error("it holds no \"-----BEGIN {0}-----\"")]
    Empty(&'static str),
    /// It is in the binary form.
    #[error(
        "it is in DER form and PEM is expected: convert it with \
         \"openssl x509 -inform der -in FILE -out FILE.pem\""
    )]
    Binary,
    /// A section has no end, or its text is not base64.
    #[error("section {0} is damaged: it has no end line, or its text is not base64")]
    Damaged(usize),
}

/// The certificates of a PEM text, at least one.
pub(crate) fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    sections(text, "CERTIFICATE")
}

/// The revocation lists of a PEM text, at least one.
pub(crate) fn revocation_lists(
    text: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    sections(text, "X509 CRL")
}

fn sections<T: PemObject>(text: &[u8], label: &'static str) -> Result<Vec<T>, PemError> {
    let mut found = Vec::new();
    for section in T::pem_slice_iter(text) {
        found.push(section.map_err(|_| PemError::Damaged(found.len() + 1))?);
    }
    match (found.is_empty(), text.first()) {
        (false, _) => Ok(found),
        // A DER certificate is a SEQUENCE.
        (true, Some(0x30)) => Err(PemError::Binary),
        (true, _) => Err(PemError::Empty(label)),
    }
}
