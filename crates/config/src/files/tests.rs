//! What the `files` of a route give, and their errors, row by row.

use super::*;
use crate::model::Symlinks;
use crate::testing::{TestDir, check_error_table, parse_valid};

/// The files of a table with these keys.
fn files(folder: &TestDir, keys: &str) -> Files {
    let text =
        format!("[[sites]]\n[[sites.routes]]\n[sites.routes.files]\nroot = \"public\"\n{keys}\n");
    let config = parse_valid(folder, &text);
    config.sites[0].routes[0].files.clone().unwrap()
}

#[test]
fn reads_every_key() {
    let folder = TestDir::with_sample_site();
    let plain = Files::new(folder.join("public"));
    assert_eq!(files(&folder, ""), plain);
    let keys = r#"
try = ["{path}"]
blocking = "default"
listing = true
precompressed = ["gzip", "br"]
compress = false
immutable = false
types = { webmanifest = "application/manifest+json", txt = "text/plain; charset=iso-8859-1" }
symlinks = "none"
[sites.routes.files.cache_control]
"/index.html" = "no-cache"
"*.html" = "max-age=60"
"/a/img/*.png" = "public, max-age=86400"
"robots.txt" = "max-age=1"
"*" = "no-store"
"#;
    let pair = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
    let rules = [
        ("/index.html", "no-cache"),
        ("*.html", "max-age=60"),
        ("/a/img/*.png", "public, max-age=86400"),
        ("robots.txt", "max-age=1"),
        ("*", "no-store"),
    ];
    let types = [
        ("webmanifest", "application/manifest+json"),
        ("txt", "text/plain; charset=iso-8859-1"),
    ];
    let expected = Files {
        try_: vec![TryPattern::path()],
        listing: true,
        precompressed: vec![ContentCoding::Gzip, ContentCoding::Brotli],
        compress: Vec::new(),
        immutable: false,
        // As written, not as sorted.
        cache_control: rules.iter().map(pair).collect(),
        types: types.iter().map(pair).collect(),
        symlinks: Symlinks::Deny,
        ..plain
    };
    assert_eq!(files(&folder, keys), expected);
}

#[test]
fn the_word_for_all_codings_is_true() {
    let folder = TestDir::with_sample_site();
    let plain = Files::new(folder.join("public"));
    for keys in [
        "precompressed = true\ncompress = true\nsymlinks = \"inside\"",
        "compress = [\"zstd\", \"br\", \"gzip\"]",
    ] {
        assert_eq!(files(&folder, keys), plain, "{keys}");
    }
    assert_eq!(files(&folder, "precompressed = []").precompressed, []);
}

#[test]
fn reports_what_is_wrong() {
    const PATTERN: &str = "expected a pattern such as \"*.css\", \"/img/*\" or \"/index.html\"";
    const RULE: &str = "expected a value of `Cache-Control` such as \"public, max-age=3600\"";
    const EXTENSION: &str =
        "expected an extension such as \"webmanifest\", in small letters and without its dot";
    const MEDIA: &str = "expected a media type such as \"text/plain; charset=utf-8\"";
    // Rows of: name, keys from line 5 on, lines of the errors.
    let rows: &[(&str, &str, &[&str])] = &[
        (
            "codings",
            "precompressed = [\"gzp\", \"br\", \"br\"]\ncompress = \"gzip\"",
            &[
                "penstock.toml:5:18: `precompressed` cannot be \"gzp\": expected \"zstd\" or \"br\" or \"gzip\"; did you mean `gzip`?",
                "penstock.toml:5:31: `precompressed` has `br` twice",
                "penstock.toml:6:12: `compress` must be true, false, or a list, each \"zstd\" or \"br\" or \"gzip\", not a string",
            ],
        ),
        (
            "links",
            "symlinks = \"insid\"",
            &[
                "penstock.toml:5:12: `symlinks` cannot be \"insid\": expected \"inside\" or \"none\" or \"any\"; did you mean `inside`?",
            ],
        ),
        (
            "patterns",
            "cache_control = { \"a/b\" = \"x\", \"/a/css/\" = \"x\", \"*.css\" = \"\", \"*.js\" = \"a\\nb\", \"/../a\" = \"x\" }",
            &[
                &format!("penstock.toml:5:19: `cache_control` cannot be \"a/b\": {PATTERN}"),
                &format!("penstock.toml:5:32: `cache_control` cannot be \"/a/css/\": {PATTERN}"),
                &format!("penstock.toml:5:49: `*.css` cannot be \"\": {RULE}"),
                &format!("penstock.toml:5:63: `*.js` cannot be \"a\\nb\": {RULE}"),
                &format!("penstock.toml:5:80: `cache_control` cannot be \"/../a\": {PATTERN}"),
            ],
        ),
        (
            "types",
            "types = { \".a\" = \"a/b\", B = \"a/b\", c = \"text\", d = \"a/b; c\", e = \"a/b\\r\\nX: y\", f = 1 }",
            &[
                &format!("penstock.toml:5:11: `types` cannot be \".a\": {EXTENSION}"),
                &format!("penstock.toml:5:25: `types` cannot be \"B\": {EXTENSION}"),
                &format!("penstock.toml:5:36: `c` cannot be \"text\": {MEDIA}"),
                &format!("penstock.toml:5:48: `d` cannot be \"a/b; c\": {MEDIA}"),
                &format!("penstock.toml:5:62: `e` cannot be \"a/b\\r\\nX: y\": {MEDIA}"),
                "penstock.toml:5:85: `f` must be a string, not an integer",
            ],
        ),
        (
            "flags",
            "listing = \"on\"\nimmutable = 1",
            &[
                "penstock.toml:5:11: `listing` must be true or false, not a string",
                "penstock.toml:6:13: `immutable` must be true or false, not an integer",
            ],
        ),
    ];
    for (name, keys, expected) in rows {
        let text = format!(
            "[[sites]]\n[[sites.routes]]\n[sites.routes.files]\nroot = \"public\"\n{keys}\n"
        );
        check_error_table(&[(name, &text, expected)]);
    }
}

#[test]
fn what_is_wrong_is_told_beside_a_root_that_is_not_there() {
    check_error_table(&[(
        "both",
        "[[sites]]\n[[sites.routes]]\nfiles = { root = \"pub\", listing = 1 }\n",
        &[
            "penstock.toml:3:18: `root`: pub does not exist",
            "penstock.toml:3:35: `listing` must be true or false, not an integer",
        ],
    )]);
}

#[test]
fn the_last_item_of_try_may_be_a_fallback() {
    let folder = TestDir::with_sample_site();
    let text = |tries: &str, key: &str| {
        format!(
            "[apps.a]\n[[sites]]\n[[sites.routes]]\nfiles = {{ root = \"public\", try = {tries} }}\n{key}\n"
        )
    };
    let read = |tries: &str| {
        let config = parse_valid(&folder, &text(tries, "app = \"a\""));
        config.sites[0].routes[0].files.clone().unwrap()
    };
    assert_eq!(read(r#"["{path}", "/a.html"]"#).fallback, None);
    let files = read(r#"["{path}", "/index.php?{query}"]"#);
    assert_eq!(files.try_, [TryPattern::path()]);
    assert_eq!(files.fallback.unwrap().to_string(), "/index.php?{query}");
    assert_eq!(
        read(r#"["{path}", "=404"]"#).fallback,
        Some(TryFallback::Status(404))
    );
    let rows = [
        (
            r#"["=404", "{path}"]"#,
            "app = \"a\"",
            "35: `=404` of `try` ends the search: put it last",
        ),
        (
            r#"["=404"]"#,
            "app = \"a\"",
            "34: `try` has no place for files before its last item",
        ),
        (
            r#"["{path}", "=500"]"#,
            "app = \"a\"",
            "45: `try` cannot be \"=500\": expected \"=404\" or \"=403\"",
        ),
        (
            r#"["{path}", "/a?{nothing}"]"#,
            "app = \"a\"",
            "45: `try` cannot be \"/a?{nothing}\": expected a path with a query such as \
             \"/index.php?{query}\" or \"/index.php?q={path}&{query}\", in ASCII and without spaces",
        ),
        (
            r#"["{path}", "/a?{query}"]"#,
            "",
            "34: the last item of `try` is for the `app` or `upstream` of the route, which has none",
        ),
    ];
    for (tries, key, expected) in rows {
        let expected = format!("penstock.toml:4:{expected}");
        check_error_table(&[(tries, &text(tries, key), &[&expected])]);
    }
}
