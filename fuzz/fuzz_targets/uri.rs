//! Arbitrary text as a target: accepted paths are absolute, without dot segments and control bytes,
//! and normalising is stable if nothing was encoded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::normalise_path;

fuzz_target!(|data: &str| {
    let Ok(found) = normalise_path(data) else {
        return;
    };
    assert!(data.starts_with(found.raw_path));
    assert!(found.path.starts_with(b"/") && found.path.len() <= found.raw_path.len().max(1));
    assert!(!found.path.iter().any(|&byte| byte < 0x20 || byte == 0x7f));
    assert!(
        !found
            .path
            .split(|&byte| byte == b'/')
            .any(|part| part == b"." || part == b"..")
    );
    if let Some(query) = found.query {
        assert_eq!(data.len(), found.raw_path.len() + 1 + query.len());
    }
    let again = std::str::from_utf8(&found.path)
        .ok()
        .filter(|path| !path.contains(['%', '?']));
    if let Some(path) = again {
        assert_eq!(
            normalise_path(path).map(|again| again.path == found.path),
            Ok(true)
        );
    }
});
