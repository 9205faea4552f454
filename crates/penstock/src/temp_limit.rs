//! The default of `limits.temp_bytes`.
//!
//! Used when a configuration is resolved, at a start, a reload and a check.

use penstock_config::{Limits, format_size};
use penstock_sys::page_cache::{FileSystemKind, dir_file_system};

/// Maximum default: no disk writes more within a minute.
const MAX_DEFAULT: u64 = 16 << 30;

/// Maximum default for a directory in memory. A body of the default maximum length fits, since a
/// body may use half of the space.
const MAX_DEFAULT_ON_TMPFS: u64 = 128 << 20;

/// The default for a directory of unknown size.
const DEFAULT_FOR_UNKNOWN_SIZE: u64 = 1 << 30;

const MIB: u64 = 1 << 20;

/// Sets the default if `limits` has none. May block.
pub(crate) fn set_default_max_temp_size(limits: &mut Limits) {
    if limits.max_temp_size.is_none() {
        limits.max_temp_size = Some(match dir_file_system(&limits.temp_dir) {
            Ok((system, bytes)) => default_max_temp_size(system, bytes),
            Err(_) => DEFAULT_FOR_UNKNOWN_SIZE,
        });
    }
}

/// A tenth of a disk: other programs need space too, and a full disk is worse than a waiting
/// client. Less of memory, which applications need.
fn default_max_temp_size(system: FileSystemKind, bytes: u64) -> u64 {
    match system {
        // A tmpfs may have no size limit.
        FileSystemKind::Memory if bytes == 0 => MAX_DEFAULT_ON_TMPFS,
        FileSystemKind::Memory => (bytes / 8).clamp(1, MAX_DEFAULT_ON_TMPFS),
        _ if bytes == 0 => DEFAULT_FOR_UNKNOWN_SIZE,
        _ => (bytes / 10 / MIB * MIB).clamp(MIB, MAX_DEFAULT),
    }
}

/// Warns of a temporary directory in memory. May block.
pub(crate) fn tmpfs_warning(limits: &Limits) -> Option<String> {
    let (FileSystemKind::Memory, _) = dir_file_system(&limits.temp_dir).ok()? else {
        return None;
    };
    Some(format!(
        "limits.temp_dir: {} is in memory (tmpfs): large bodies and what slow clients have not \
         taken fill memory, up to limits.temp_bytes ({}): name a folder on a disk",
        limits.temp_dir.display(),
        format_size(limits.max_temp_size.unwrap_or_default()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_share_of_the_disk_and_little_of_memory() {
        const GIB: u64 = 1 << 30;
        for (system, bytes, default) in [
            (FileSystemKind::Disk, 40 * GIB, 4 * GIB),
            (FileSystemKind::Layered, 4000 * GIB, 16 * GIB),
            (FileSystemKind::Other, 0, GIB),
            (FileSystemKind::Memory, 64 * GIB, 128 << 20),
            (FileSystemKind::Memory, 80 << 20, 10 << 20),
            (FileSystemKind::Memory, 0, 128 << 20),
        ] {
            assert_eq!(
                default_max_temp_size(system, bytes),
                default,
                "{system:?} {bytes}"
            );
        }
    }

    #[test]
    fn what_is_configured_stays() {
        let mut limits = Limits {
            max_temp_size: Some(5),
            ..Limits::default()
        };
        set_default_max_temp_size(&mut limits);
        assert_eq!(limits.max_temp_size, Some(5));
        limits.max_temp_size = None;
        set_default_max_temp_size(&mut limits);
        assert!(limits.max_temp_size.is_some_and(|bytes| bytes > 1 << 20));
    }
}
