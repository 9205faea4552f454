//! Arbitrary text as a configuration and as single values: every error has a position, displayed
//! values parse to the same value, and no secret is displayed.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use penstock_config::{HidePattern, ListenAddr, is_hard_to_guess, parse};

const SECRET: &str = "cAnArY-0123456789abcdefghijklmnopqrstuvwxyz";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    check_values(text);
    // Existing paths are out of scope.
    let origin = Path::new("/nonexistent/penstock.toml");
    if text.contains('/') {
        return;
    }
    check_config(text, origin);
    let text = format!("{text}\n[server]\nadmin_token = \"{SECRET}\"\nlisten = \":0\"\n");
    check_config(&text, origin);
});

fn check_config(text: &str, origin: &Path) {
    let shown = match parse(text, origin) {
        Ok(config) => format!("{config:?}"),
        Err(report) => report.to_string(),
    };
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(!shown.is_empty());
    // An error costs a few lines; unknown keys of nested tables are named with their path.
    assert!(shown.len() <= 64 * 1024 + 400 * text.len());
}

fn check_values(text: &str) {
    if let Ok(address) = text.parse::<ListenAddr>() {
        let shown = address.to_string();
        let written = shown.trim_start_matches("http://").trim_start_matches('*');
        assert_eq!(written.parse().as_ref(), Ok(&address), "{shown}");
    }
    if let Some(pattern) = HidePattern::parse(text) {
        assert_eq!(HidePattern::parse(&pattern.to_string()), Some(pattern));
    }
    let short = text.chars().count() < 16;
    assert!(!(short && is_hard_to_guess(text)), "{text}");
}
