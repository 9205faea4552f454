//! Arbitrary text as a file of haproxy: the import ends, and each line of its report has a place.

#![no_main]

use std::io;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use penstock_import::{IncludeReader, ServerKind, import};

/// No other files.
struct NoFiles;

impl IncludeReader for NoFiles {
    fn read(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn names(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let file = PathBuf::from("input");
    let kind = ServerKind::from_name("haproxy");
    match import(&file, &text, kind, &NoFiles) {
        Ok(made) => {
            let lines = text.lines().count() + 1;
            let mut directives = made.report.directives.iter();
            assert!(directives.all(|it| (1..=lines).contains(&it.line) && !it.detail.is_empty()));
            assert!(!made.toml.contains('\u{0}'));
        }
        Err(error) => assert!(error.to_string().starts_with("input")),
    }
});
