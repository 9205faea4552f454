//! The file that keeps histories over a stop and a start (`hub.history_file`).
//!
//! It has a line of JSON for each record: the hub's, then channels and the state of components.
//! The records are those of a transfer.
//!
//! # Invariants
//! - A file is written whole or not at all.
//! - A file is read once: after a crash there is none, so that what was published since it was
//!   written is missed with a notice.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_runtime::clock;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::records::ChannelRecord;
use crate::Hub;

/// The version of the file, which has no streams.
const HISTORY_FILE_VERSION: u32 = 1;

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HistoryLine {
    /// The first.
    Hub {
        version: u32,
        id_prefix: String,
        last_sequence: u64,
        removed_up_to: u64,
        /// Milliseconds since 1970.
        saved_at: u64,
    },
    Channel(ChannelRecord),
    Participant {
        name: String,
        state: Value,
    },
}

impl Hub {
    /// Writes all histories to `file`, which is replaced; how many channels have one. Blocks.
    /// Messages are refused from here on.
    ///
    /// # Errors
    /// When the file cannot be written; then it is as it was.
    pub fn save_history(&self, file: &Path) -> io::Result<usize> {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let temporary = file.with_file_name(name);
        let saved = self.write_history(&temporary);
        let saved = saved.and_then(|count| std::fs::rename(&temporary, file).map(|()| count));
        if saved.is_err() {
            // It may not be there.
            let _ = std::fs::remove_file(&temporary);
        }
        saved
    }

    fn write_history(&self, file: &Path) -> io::Result<usize> {
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600);
        let mut out = BufWriter::new(opened.open(file)?);
        let mut write = |line: &HistoryLine| {
            serde_json::to_writer(&mut out, line)?;
            out.write_all(b"\n")
        };
        let shared = &self.shared;
        shared.takes_no_messages.store(true, Ordering::Relaxed);
        write(&HistoryLine::Hub {
            version: HISTORY_FILE_VERSION,
            id_prefix: shared.id_prefix.load().to_string(),
            last_sequence: shared.last_sequence.load(Ordering::Relaxed),
            removed_up_to: shared.registry.removed_up_to(),
            saved_at: wall_time_ms(),
        })?;
        let mut count = 0;
        for channel in shared.registry.all_by_partition().flatten() {
            let record = {
                let state = channel.lock();
                let is_kept = !state.is_internal && state.last_id.is_some();
                is_kept.then(|| shared.channel_record(channel.name(), &state))
            };
            if let Some(record) = record {
                write(&HistoryLine::Channel(record))?;
                count += 1;
            }
        }
        for participant in shared.participants.all() {
            // Without a process to forward to.
            for state in participant.begin_transfer(Arc::new(|_| Ok(false))) {
                write(&HistoryLine::Participant {
                    name: participant.name().to_owned(),
                    state,
                })?;
            }
        }
        let written = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        written.sync_all()?;
        Ok(count)
    }

    /// Reads the histories of `file`, if there is one, and removes it; how many channels have one.
    /// Blocks. To be called before the hub is used.
    ///
    /// # Errors
    /// When the file cannot be read or has no such lines; what came before them is kept.
    pub fn load_history(&self, file: &Path) -> io::Result<Option<usize>> {
        #[expect(clippy::disallowed_methods, reason = "it says that it blocks")]
        let opened = match File::open(file) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        std::fs::remove_file(file)?;
        let mut lines = BufReader::new(opened).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let HistoryLine::Hub {
            version: HISTORY_FILE_VERSION,
            id_prefix,
            last_sequence,
            removed_up_to,
            saved_at,
        } = serde_json::from_str(&first)?
        else {
            return Err(io::Error::other("it is of another version of the server"));
        };
        let age_ms = wall_time_ms().saturating_sub(saved_at);
        self.shared
            .continue_ids(&id_prefix, last_sequence, removed_up_to);
        let taken = self.take_lines(lines, age_ms);
        for participant in self.shared.participants.all() {
            participant.finish_import();
        }
        taken.map(Some)
    }

    fn take_lines(
        &self,
        lines: impl Iterator<Item = io::Result<String>>,
        age_ms: u64,
    ) -> io::Result<usize> {
        let mut count = 0;
        for line in lines {
            match serde_json::from_str(&line?)? {
                HistoryLine::Channel(mut record) => {
                    for message in &mut record.history {
                        message.age_ms = message.age_ms.saturating_add(age_ms);
                    }
                    // The channel stays by its history.
                    match self.shared.import_channel(record) {
                        Ok(_) => count += 1,
                        Err(refused) => log::warn!("hub: a history is not kept: {refused}"),
                    }
                }
                HistoryLine::Participant { name, state } => {
                    let taken = self.shared.participants.find(&name);
                    if let Err(error) = taken.and_then(|it| it.import_state(state)) {
                        log::warn!("hub: the history of {name} is not kept: {error}");
                    }
                }
                HistoryLine::Hub { .. } => return Err(io::Error::other("a second first line")),
            }
        }
        Ok(count)
    }
}

fn wall_time_ms() -> u64 {
    let since = clock::wall_time();
    u64::try_from(Duration::as_millis(&since)).unwrap_or(u64::MAX)
}
