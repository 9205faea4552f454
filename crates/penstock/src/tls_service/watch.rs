//! Picks up certificate files that have changed, and renews certificates of the local authority.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::CertificateFiles;
use penstock_runtime::blocking::Pool;
use penstock_runtime::clock;
use penstock_tls::LocalAuthority;
use rustls::pki_types::UnixTime;

use super::TlsService;
use super::paths::local_authority_folder;
use super::site_certificates::SiteEntry;

/// How often files are looked at. A tool that writes chain and key one after the other has that
/// long; until the pair fits, the old one serves.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// What identifies the content of a pair of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileStamp([FileFacts; 2]);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FileFacts {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of files; `None` if they cannot be looked at.
    pub(super) fn of(files: &CertificateFiles) -> Option<Self> {
        Some(Self([facts(&files.certificate)?, facts(&files.key)?]))
    }
}

fn facts(path: &Path) -> Option<FileFacts> {
    let found = path.metadata().ok()?;
    Some(FileFacts {
        device: found.dev(),
        inode: found.ino(),
        size: found.len(),
        changed: (found.mtime(), found.mtime_nsec()),
    })
}

impl TlsService {
    /// Looks at the files of certificates for as long as the server runs.
    pub(crate) async fn watch_files(self: Arc<Self>, pool: Pool) {
        loop {
            clock::sleep(CHECK_INTERVAL).await;
            let service = Arc::clone(&self);
            let look = move || {
                service.reload_changed_files();
                service.renew_local();
            };
            if let Err(error) = pool.run(look).await {
                log::warn!("tls: certificate files not looked at: {error}");
            }
        }
    }

    /// Reads files that have changed. Blocks.
    fn reload_changed_files(&self) {
        let now = UnixTime::now();
        let watched: Vec<_> = self
            .current
            .lock()
            .entries
            .iter()
            .map(SiteEntry::watched)
            .collect();
        let watched = watched.into_iter().flatten();
        for (entry, files) in watched.filter(|(entry, files)| FileStamp::of(files) != entry.stamp) {
            let hosts = entry.label();
            let (entry, outcome) = entry.reload_files(&files, now);
            match outcome {
                Ok(None) => {}
                Ok(Some(problems)) => {
                    log::info!("tls: certificate replaced (hosts={hosts:?})");
                    for problem in problems {
                        log::warn!("tls: {problem}");
                    }
                }
                Err(error) => {
                    log::error!("tls: the old certificate stays in use: {error} (hosts={hosts:?})");
                }
            }
            self.replace_entry(entry);
        }
    }

    /// Renews certificates of the local authority that end soon. Blocks.
    fn renew_local(&self) {
        let now = UnixTime::now();
        let is_due = |entry: &&SiteEntry| entry.needs_local_renewal(now);
        let due: Vec<_> = (self.current.lock().entries.iter())
            .filter(is_due)
            .cloned()
            .collect();
        if due.is_empty() {
            return;
        }
        let authority = match LocalAuthority::open(&local_authority_folder(), now) {
            Ok(authority) => authority,
            Err(error) => return log::error!("tls: no certificate is renewed: {error}"),
        };
        for entry in due {
            match entry.load(Some(&authority), None, now) {
                Ok((entry, _)) => self.replace_entry(entry),
                Err(error) => log::error!("tls: a certificate is not renewed: {error}"),
            }
        }
    }

    /// Puts new certificates of some hosts in place, unless a reload has changed their origin.
    fn replace_entry(&self, entry: SiteEntry) {
        let mut current = self.current.lock();
        if let Some(old) = current.entries.iter_mut().find(|old| old.is_same(&entry)) {
            old.take_certificates(&entry);
            current.publish(&self.store);
        }
    }
}
