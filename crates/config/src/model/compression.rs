//! Compression of responses: the `compress` key of `[server]`, `[[sites]]` and `[[sites.routes]]`.

use super::ContentCoding;
use crate::options::OptionKind::*;
use crate::options::expected::*;

section! {
    /// Responses that are compressed while they are sent, for clients that accept it. A flag or a
    /// list alone is `algorithms`. A route without the key has that of its site, a site that of
    /// `[server]`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Compression
    in "compress", "compress = { ... } in [server], [[sites]] and [[sites.routes]]", "" {
        /// Codings, the preferred one first.
        algorithms: Vec<ContentCoding> = vec![ContentCoding::Zstd, ContentCoding::Brotli, ContentCoding::Gzip],
            Texts(CODING), shows r#"["zstd", "br", "gzip"]"#, example r#"["br", "gzip"]"#, by hand;
        /// Media types that are compressed; `*` stands for anything, once in each.
        types: Vec<String> = Compression::default_types(), Texts(MEDIA_TYPE_PATTERN),
            default "text, JSON, JavaScript, XML, SVG, WebAssembly, YAML, uncompressed fonts and icons",
            example r#"["text/*", "application/json"]"#,
            by items(crate::compression::is_type_pattern);
        /// Smaller bodies are not compressed, if their length is known.
        min_size: u64 = 1024, Size(0);
        /// How hard `gzip` tries.
        gzip_level: u32 = 5, Number(1, 9);
        /// How hard `br` tries. From 5 on it takes several times as long, and more memory.
        br_level: u32 = 4, Number(0, 6);
        /// How hard `zstd` tries.
        zstd_level: u32 = 3, Number(1, 12);
        /// Whether what an application answers to a page of another site that sends the user's
        /// cookies or password is compressed, too. Such a page could guess what is secret in it from
        /// its length (BREACH).
        cross_site: bool = false, Bool;
    }
}

impl Compression {
    /// Types that are compressed unless others are named. What has a compression of its own (images,
    /// video, archives, WOFF) is not among them.
    fn default_types() -> Vec<String> {
        DEFAULT_TYPES.map(str::to_owned).into()
    }
}

const DEFAULT_TYPES: [&str; 25] = [
    "text/*",
    "*+json",
    "*+xml",
    "*+yaml",
    "application/javascript",
    "application/json",
    "application/json5",
    "application/sql",
    "application/toml",
    "application/vnd.apple.mpegurl",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-font-ttf",
    "application/x-javascript",
    "application/x-ndjson",
    "application/xml",
    "application/yaml",
    "font/collection",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/vnd.microsoft.icon",
    "image/x-icon",
    "model/obj",
    "model/stl",
];
