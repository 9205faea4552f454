//! Properties by name.

use penstock_config::MediaTypes;

use super::*;

fn naming(types: &[(&str, &str)], cache_control: &[(&str, &str)]) -> FileHeaderRules {
    let mut files = penstock_config::Files::new("/".into());
    let own = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    files.types = types.iter().map(own).collect();
    files.cache_control = cache_control.iter().map(own).collect();
    FileHeaderRules::new(&files).unwrap()
}

#[test]
fn tells_the_type_by_the_extension() {
    let naming = naming(&[], &[]);
    for (name, expected) in [
        ("index.html", "text/html; charset=utf-8"),
        ("a/b.c/INDEX.HTM", "text/html; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("app.js", "text/javascript; charset=utf-8"),
        ("app.min.mjs", "text/javascript; charset=utf-8"),
        ("data.json", "application/json; charset=utf-8"),
        (
            "site.webmanifest",
            "application/manifest+json; charset=utf-8",
        ),
        ("feed.xml", "text/xml; charset=utf-8"),
        ("feed.rss", "application/rss+xml; charset=utf-8"),
        ("logo.svg", "image/svg+xml; charset=utf-8"),
        ("notes.txt", "text/plain; charset=utf-8"),
        ("photo.jpg", "image/jpeg"),
        ("photo.png", "image/png"),
        ("photo.webp", "image/webp"),
        ("photo.avif", "image/avif"),
        ("favicon.ico", "image/x-icon"),
        ("font.woff2", "font/woff2"),
        ("film.mp4", "video/mp4"),
        ("paper.pdf", "application/pdf"),
        ("code.wasm", "application/wasm"),
        ("a.tar.gz", "application/gzip"),
        ("seg1.ts", "video/mp2t"),
        ("SEG1.TS", "video/mp2t"),
        ("live.m3u8", "application/vnd.apple.mpegurl"),
        ("seg.m4s", "video/iso.segment"),
        ("stream.mpd", "application/dash+xml; charset=utf-8"),
        ("song.m4a", "audio/mp4"),
        ("song.mid", "audio/midi"),
        ("captions.vtt", "text/vtt; charset=utf-8"),
        ("app.js.map", "application/json; charset=utf-8"),
        ("app.cjs", "text/javascript; charset=utf-8"),
        ("app.jsx", "text/javascript; charset=utf-8"),
        ("events.ndjson", "application/x-ndjson"),
        ("area.geojson", "application/geo+json; charset=utf-8"),
        ("card.jsonld", "application/ld+json; charset=utf-8"),
        ("openapi.yaml", "application/yaml"),
        ("README.md", "text/markdown; charset=utf-8"),
        ("font.woff", "font/woff"),
        ("font.otf", "font/otf"),
        ("font.ttf", "font/ttf"),
        ("photo.jxl", "image/jxl"),
        ("photo.heic", "image/heic"),
        ("scene.glb", "model/gltf-binary"),
        ("scene.gltf", "model/gltf+json; charset=utf-8"),
        ("book.epub", "application/epub+zip"),
        ("card.vcf", "text/vcard; charset=utf-8"),
        ("day.ics", "text/calendar; charset=utf-8"),
        ("pkg.rpm", "application/x-redhat-package-manager"),
        ("pkg.tgz", "application/gzip"),
        (
            "letter.docx",
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        ),
        ("README", "application/octet-stream"),
        ("a.html/README", "application/octet-stream"),
        ("a.", "application/octet-stream"),
        (".html", "application/octet-stream"),
        ("a.unheard-of", "application/octet-stream"),
        ("", "application/octet-stream"),
    ] {
        assert_eq!(naming.content_type(name.as_bytes()), expected, "{name}");
    }
    assert_eq!(
        naming.content_type(b"a.\xff\xfe"),
        "application/octet-stream"
    );
}

#[test]
fn overrides_are_unique_and_needed() {
    for (extension, media_type) in MEDIA_TYPE_OVERRIDES {
        assert_eq!(extension, extension.to_ascii_lowercase());
        let named = MEDIA_TYPE_OVERRIDES
            .iter()
            .filter(|(other, _)| *other == extension);
        assert_eq!(named.count(), 1, "{extension}");
        let theirs = mime_guess::from_ext(extension).first_raw();
        assert_ne!(theirs, Some(media_type), "{extension}");
    }
}

#[test]
fn own_types_come_first() {
    let naming = naming(
        &[
            ("foo", "text/x-foo"),
            ("js", "application/x-js; charset=latin1"),
            ("bin", "image/x-bin"),
        ],
        &[],
    );
    for (name, expected) in [
        ("a.foo", "text/x-foo; charset=utf-8"),
        ("a.FOO", "text/x-foo; charset=utf-8"),
        ("a.js", "application/x-js; charset=latin1"),
        ("a.bin", "image/x-bin"),
        ("a.css", "text/css; charset=utf-8"),
    ] {
        assert_eq!(naming.content_type(name.as_bytes()), expected, "{name}");
    }
}

#[test]
fn the_first_rule_that_matches_counts() {
    let rules = [
        ("/index.html", "no-cache"),
        ("/img/*", "max-age=60"),
        ("*.css", "max-age=70"),
        ("*-*.map", "private"),
        ("/a/*/z.*", "max-age=80"),
        ("*", ""),
    ];
    let naming = naming(&[], &rules);
    for (name, expected) in [
        ("index.html", "no-cache"),
        ("sub/index.html", ""),
        ("img/a.css", "max-age=60"),
        ("img/b/c.png", "max-age=60"),
        ("x/img/a.png", ""),
        ("a.css", "max-age=70"),
        ("deep/er/a.css", "max-age=70"),
        (".css", "max-age=70"),
        ("a.css.map", ""),
        ("a-b-c.map.map", "private"),
        ("a/b/c/z.gz", "max-age=80"),
        ("a/z.gz", ""),
    ] {
        assert_eq!(
            naming.cache_control(name.as_bytes()),
            Some(expected),
            "{name}"
        );
    }
    let hard = "*a".repeat(50);
    assert!(!glob_matches(hard.as_bytes(), &b"a".repeat(49)));
    assert!(glob_matches(hard.as_bytes(), &b"a".repeat(5000)));
}

#[test]
fn fingerprinted_names_are_immutable() {
    let mut naming = naming(&[], &[("*.html", "no-cache")]);
    for (name, expected) in [
        ("app-3f2a9c81.js", true),
        ("app.3f2a9c81.css", true),
        ("assets/app.min-0123456789abcdef0123456789abcdef.css", true),
        ("app-3F2A9C81.js", true),
        ("app-3f2a9c8.js", false),
        ("app-12345678.js", false),
        ("app-abcdefab.js", false),
        ("app-3f2a9g81.js", false),
        ("3f2a9c81.js", false),
        ("3f2a9c81-app.js", false),
        ("app-3f2a9c81", false),
        ("app.3f2a9c81", false),
        ("app-3f2a9c81/a.js", false),
        ("550e8400-e29b-41d4-a716-44665544000a.png", false),
        ("photo-550e8400-e29b-41d4-a716-44665544000a.png", false),
        ("page-3f2a9c81.html", false),
    ] {
        let found = naming.cache_control(name.as_bytes()) == Some(IMMUTABLE_CACHE_CONTROL);
        assert_eq!(found, expected, "{name}");
    }
    naming.immutable = false;
    assert_eq!(naming.cache_control(b"app-3f2a9c81.js"), None);
}

#[test]
fn values_that_cannot_be_sent_are_refused_at_the_start() {
    for (what, types, rules) in [
        ("types", vec![("a", "text/a\r\nX: y")], vec![]),
        ("cache_control", vec![], vec![("*.a", "max-age\n")]),
    ] {
        let mut files = penstock_config::Files::new("/".into());
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        files.types = types.into_iter().map(own).collect();
        files.cache_control = rules.into_iter().map(own).collect();
        let error = FileHeaderRules::new(&files).unwrap_err().to_string();
        assert!(error.starts_with(what), "{error}");
    }
}

#[test]
fn compressible_types_are_recognised() {
    let naming = naming(&[], &[]);
    for (name, expected) in [
        ("a.html", true),
        ("a.js", true),
        ("a.json", true),
        ("a.svg", true),
        ("a.wasm", true),
        ("a.ttf", true),
        ("a.ico", true),
        ("a.woff2", false),
        ("a.png", false),
        ("a.gz", false),
        ("a.mp4", false),
        ("a", false),
    ] {
        assert_eq!(
            MediaTypes::compressible().contains(naming.content_type(name.as_bytes()).as_bytes()),
            expected,
            "{name}"
        );
    }
}
