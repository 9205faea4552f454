//! The journal of purges that are not yet applied to all files, so that no restart brings purged
//! objects back.
//!
//! A purge removes its objects from the index at once; removing many files in the background takes
//! a while. The maintenance task writes the purge to the journal first, and clears the journal once
//! all files are removed. A start reads the journal and drops matching files.
//!
//! # Invariants
//!
//! - A damaged journal purges everything older rather than nothing.
//! - A purge that returned just before the process was killed may be lost, since it waits for no
//!   disk.

use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::super::Store;
use super::super::cache_dir::CacheDir;
use super::super::disk::{DiskError, DiskOperationKind};
use super::super::purge_rules::{NumberedPurges, PurgeRule};
use super::Maintenance;

const JOURNAL_NAME: &str = "purges";

impl Maintenance {
    /// Adds new purges to the journal, and clears it when their files are removed.
    pub(super) async fn write_journal(&mut self) {
        if (self.recovery.as_ref()).is_some_and(|recovery| !recovery.is_journal_read) {
            // The directory's own journal is read first, in this round.
            return;
        }
        let (new, is_clean) = {
            let mut work = self.disk.maintenance_queue();
            let new = std::mem::take(&mut work.purges);
            (new, work.discarded.is_empty() && self.recovery.is_none())
        };
        if is_clean {
            self.is_journal_dirty |= !self.journal.is_empty();
            self.journal = NumberedPurges::default();
        } else {
            for (number, rule) in new.to_sorted_vec() {
                self.is_journal_dirty = true;
                self.journal.add(number, rule);
            }
        }
        if !self.is_journal_dirty {
            return;
        }
        let Some(opened) = self.disk.open_dir() else {
            return;
        };
        let (purges, number) = (self.journal.to_sorted_vec(), self.disk.new_file_number());
        let write = move || {
            opened
                .dir
                .write_root_file(JOURNAL_NAME, &encode(&purges), number)
        };
        // A failed write is repeated in the next round of a working disk.
        let written = self.disk.run(DiskOperationKind::Write, write).await;
        self.is_journal_dirty = written.is_err();
    }

    /// Reads the purges of earlier processes. Returns `false` if that must be retried.
    pub(super) async fn read_journal(&mut self, store: &Store, folder: &Arc<CacheDir>) -> bool {
        let (folder, number) = (Arc::clone(folder), self.disk.new_file_number());
        let read = move || folder.read_root_file(JOURNAL_NAME);
        let former = match self.disk.run(DiskOperationKind::Read, read).await {
            Ok(None) => Some(Vec::new()),
            Ok(Some(bytes)) => decode(&bytes),
            Err(DiskError::Io(_)) => None,
            Err(DiskError::OutOfService | DiskError::Pool(_)) => return false,
        };
        // A damaged journal counts as a purge of everything.
        for (number, rule) in former.unwrap_or_else(|| vec![(number, PurgeRule::All)]) {
            self.journal.add(number, rule);
        }
        let mut pending = store.pending_purges.lock();
        for (number, rule) in self.journal.to_sorted_vec() {
            pending.add(number, rule);
        }
        true
    }
}

/// Encodes a checksum, then number, kind, length and text of each purge.
pub(crate) fn encode(purges: &[(u64, PurgeRule)]) -> Vec<u8> {
    if purges.is_empty() {
        return Vec::new();
    }
    let mut out = vec![0; 8];
    for (number, rule) in purges {
        let (kind, text) = match rule {
            PurgeRule::Key(text) => (0, &text[..]),
            PurgeRule::Url(url) => (1, url.as_bytes()),
            PurgeRule::Prefix(prefix) => (2, prefix.as_bytes()),
            PurgeRule::Tag(tag) => (3, tag.as_bytes()),
            PurgeRule::All => (4, &[][..]),
        };
        out.extend_from_slice(&number.to_le_bytes());
        out.push(kind);
        out.extend_from_slice(&(text.len() as u64).to_le_bytes());
        out.extend_from_slice(text);
    }
    let sum = XxHash3_64::oneshot(&out[8..]);
    out[..8].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Decodes a journal. `None` if it is damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<(u64, PurgeRule)>> {
    let (sum, mut rest) = bytes.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*sum) != XxHash3_64::oneshot(rest) {
        return None;
    }
    let mut purges = Vec::new();
    while !rest.is_empty() {
        let (number, after) = rest.split_first_chunk::<8>()?;
        let (kind, after) = after.split_first()?;
        let (length, after) = after.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (text, after) = after.split_at_checked(length)?;
        let string = || String::from_utf8(text.to_vec()).ok();
        let rule = match kind {
            0 => PurgeRule::Key(text.into()),
            1 => PurgeRule::Url(string()?),
            2 => PurgeRule::Prefix(string()?),
            3 => PurgeRule::Tag(string()?),
            4 if text.is_empty() => PurgeRule::All,
            _ => return None,
        };
        purges.push((u64::from_le_bytes(*number), rule));
        rest = after;
    }
    Some(purges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_round_trips_and_a_damaged_one_is_ignored() {
        let purges = vec![
            (7, PurgeRule::Tag("news".to_owned())),
            (u64::MAX, PurgeRule::Url("http://h/\u{e9}".to_owned())),
            (0, PurgeRule::Prefix("/".to_owned())),
            (9, PurgeRule::Key(b"http://h/\0de"[..].into())),
            (10, PurgeRule::All),
        ];
        let bytes = encode(&purges);
        assert_eq!(decode(&bytes), Some(purges));
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(decode(&wrong).is_none() && decode(&bytes[..at]).is_none());
        }
        assert!(encode(&[]).is_empty());
        // A purge of everything with a text is invalid.
        let mut odd = encode(&[(10, PurgeRule::Tag("x".to_owned()))]);
        odd[16] = 4;
        let sum = XxHash3_64::oneshot(&odd[8..]);
        odd[..8].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(decode(&odd), None);
    }
}
