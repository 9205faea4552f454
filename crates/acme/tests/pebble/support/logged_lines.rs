//! The lines that the service logs, of all tests together.

use std::sync::{Mutex, Once};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Collects lines from now on. Called by every test's first helper.
pub(crate) fn collect() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&LINES).unwrap();
        log::set_max_level(LevelFilter::Debug);
    });
}

/// Fails if a line contains one of these secrets, or a part of a key in PEM.
pub(crate) fn assert_never_logged(secrets: &[&str]) {
    let lines = LINES.0.lock().unwrap();
    assert!(!lines.is_empty());
    for line in &*lines {
        assert!(!line.contains("PRIVATE KEY"), "{line}");
        let secret = secrets.iter().find(|secret| line.contains(**secret));
        assert_eq!(secret, None, "{line}");
    }
}

/// Whether a line contains all of these texts.
pub(crate) fn is_logged(texts: &[&str]) -> bool {
    let lines = LINES.0.lock().unwrap();
    let has_all = |line: &String| texts.iter().all(|text| line.contains(text));
    lines.iter().any(has_all)
}

struct LoggedLines(Mutex<Vec<String>>);

static LINES: LoggedLines = LoggedLines(Mutex::new(Vec::new()));

impl Log for LoggedLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Debug && metadata.target().starts_with("penstock")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}
