//! Header fields of every held stream, for what stands between this server and its clients.
//!
//! Used by routes with `hub`, by `grip` and by `mercure`. nginx keeps a response back until a
//! buffer is full, head included, and other proxies compress it with the same effect, unless the
//! response says otherwise.
//!
//! # Invariants
//! - No directive that is there is removed: `no-store` and `private` stay.

use penstock_http::{FieldBlock, list_elements};

/// Asks proxies to pass a stream on as it comes: `X-Accel-Buffering: no` (nginx), and `no-cache`
/// and `no-transform` beside the directives of its `Cache-Control`.
pub fn forbid_buffering(fields: &mut FieldBlock) {
    fields.remove("X-Accel-Buffering");
    fields.push_static("X-Accel-Buffering", "no");
    let has = |wanted: &str| {
        let values = fields.iter();
        let values = values.filter(|(name, _)| name.eq_ignore_ascii_case("cache-control"));
        let mut directives = values.flat_map(|(_, value)| list_elements(value));
        directives.any(|directive| directive.eq_ignore_ascii_case(wanted.as_bytes()))
    };
    let missing = match (has("no-cache"), has("no-transform")) {
        (true, true) => return,
        (false, false) => "no-cache, no-transform",
        (false, true) => "no-cache",
        (true, false) => "no-transform",
    };
    let mut joined = Vec::new();
    for (name, value) in fields.iter() {
        if name.eq_ignore_ascii_case("cache-control") && !value.is_empty() {
            joined.extend_from_slice(value);
            joined.extend_from_slice(b", ");
        }
    }
    joined.extend_from_slice(missing.as_bytes());
    fields.remove("Cache-Control");
    // Each part was a valid value.
    let _ = fields.push("Cache-Control", &joined);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directives_that_are_there_stay() {
        for (lines, expected) in [
            (&[][..], "no-cache, no-transform"),
            (&["no-store"][..], "no-store, no-cache, no-transform"),
            (&["Private, No-Cache"], "Private, No-Cache, no-transform"),
            (&["no-transform"], "no-transform, no-cache"),
            (&["no-transform,no-cache"], "no-transform,no-cache"),
            (
                &["private", "max-age=60"],
                "private, max-age=60, no-cache, no-transform",
            ),
            (
                &["no-cache=\"Set-Cookie\""],
                "no-cache=\"Set-Cookie\", no-cache, no-transform",
            ),
            (&[""], "no-cache, no-transform"),
        ] {
            let mut fields = FieldBlock::new();
            for line in lines {
                fields.push("cache-control", line.as_bytes()).unwrap();
            }
            fields.push("x-accel-buffering", b"yes").unwrap();
            forbid_buffering(&mut fields);
            let all = |wanted: &str| {
                let fields = fields.iter();
                let fields = fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
                let values = fields.map(|(_, value)| String::from_utf8_lossy(value).into_owned());
                values.collect::<Vec<_>>()
            };
            assert_eq!(all("cache-control"), [expected], "{lines:?}");
            assert_eq!(all("x-accel-buffering"), ["no"], "{lines:?}");
        }
    }
}
