//! Purges that may still have files: noted in the folder, so that no restart brings back what they mean.
//!
//! A purge takes its objects out of the index at once; their files go in the background, which takes a while
//! for many. Before that the keeper notes the purge; once all files are gone the note is empty again.
//! A start reads the note and drops what it finds of such files. What must stay true: a damaged note
//! purges everything that is older rather than nothing; a purge that returned a moment before the process was
//! killed may be lost, as it waits for no disk.

use std::sync::Arc;

use twox_hash::XxHash3_64;

use super::super::Store;
use super::super::disk::Kind;
use super::super::folder::Folder;
use super::super::purging::Rule;
use super::Keeper;

const NAME: &str = "purges";

/// What is noted.
#[derive(Debug, Default)]
pub(super) struct Journal {
    purges: Vec<(u64, Rule)>,
}

impl Keeper {
    /// Notes new purges, and clears the note when their files are gone.
    pub(super) async fn note_purges(&mut self) {
        let (new, is_clean) = {
            let mut work = self.disk.work();
            let new = std::mem::take(&mut work.purges);
            (new, work.dying.is_empty() && self.recovery.is_none())
        };
        if new.is_empty() && (self.journal.purges.is_empty() || !is_clean) {
            return;
        }
        if new.iter().any(|(_, rule)| *rule == Rule::All) {
            self.journal.purges.clear();
        }
        self.journal.purges.extend(new);
        if is_clean {
            self.journal.purges.clear();
        }
        let Some(opened) = self.disk.opened() else {
            return;
        };
        let (bytes, number) = (encode(&self.journal.purges), self.disk.number());
        let write = move || opened.folder.write_note(NAME, &bytes, number);
        // A failure took the disk out, and it is written again with the next purge.
        let _ = self.disk.run(Kind::Write, write).await;
    }

    /// Reads what former processes purged.
    pub(super) async fn read_purges(&mut self, store: &Store, folder: &Arc<Folder>) {
        let (folder, number) = (Arc::clone(folder), self.disk.number());
        let read = move || folder.note(NAME);
        let former = match self.disk.run(Kind::Read, read).await {
            Ok(None) => return,
            Ok(Some(bytes)) => decode(&bytes),
            Err(_) => None,
        };
        // Nobody knows what it said.
        let former = former.unwrap_or_else(|| vec![(number, Rule::All)]);
        self.journal.purges.extend(former.iter().cloned());
        store.remembered().set_former(former);
    }
}

/// A checksum, then for each purge its number, kind, length and text.
pub(crate) fn encode(purges: &[(u64, Rule)]) -> Vec<u8> {
    if purges.is_empty() {
        return Vec::new();
    }
    let mut out = vec![0; 8];
    for (number, rule) in purges {
        let (kind, text) = match rule {
            Rule::Key(text) => (0, &text[..]),
            Rule::Url(url) => (1, url.as_bytes()),
            Rule::Prefix(prefix) => (2, prefix.as_bytes()),
            Rule::Tag(tag) => (3, tag.as_bytes()),
            Rule::All => (4, &[][..]),
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

/// None when it is not as it was written.
fn decode(bytes: &[u8]) -> Option<Vec<(u64, Rule)>> {
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
            0 => Rule::Key(text.into()),
            1 => Rule::Url(string()?),
            2 => Rule::Prefix(string()?),
            3 => Rule::Tag(string()?),
            4 => Rule::All,
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
    fn a_note_is_read_back_and_a_damaged_one_is_none() {
        let purges = vec![
            (7, Rule::Tag("news".to_owned())),
            (u64::MAX, Rule::Url("http://h/\u{e9}".to_owned())),
            (0, Rule::Prefix("/".to_owned())),
            (9, Rule::Key(b"http://h/\0de"[..].into())),
            (10, Rule::All),
        ];
        let bytes = encode(&purges);
        assert_eq!(decode(&bytes), Some(purges));
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(decode(&wrong).is_none() && decode(&bytes[..at]).is_none());
        }
        assert!(encode(&[]).is_empty());
    }
}
