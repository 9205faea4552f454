//! Static files: a route's settings for a directory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::hide::HidePattern;
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::values::{TryFallback, TryPattern};

section! {
    /// A directory of static files.
    #[derive(Debug, Clone, PartialEq, Eq, Hash)]
    pub struct Files(root: PathBuf)
    in "sites.routes.files", "files = { ... } in [[sites.routes]]", "" {
        /// Directory of the files; nothing outside it is served.
        root: PathBuf = root, Path, default required, example r#""public""#, by hand;
        /// Places to look in, in order; one without `{path}` is the same file for every path. The
        /// last may be a status (`"=404"`, `"=403"`), which the request is answered with, or a path
        /// with a query (`"/index.php?q={path}&{query}"`), with which the application or upstream
        /// of the route gets the request.
        "try" => try_: Vec<TryPattern> = TryPattern::defaults(), Texts(TRY_FILE),
            shows r#"["{path}", "{path}/index.html"]"#,
            example r#"["{path}", "{path}/index.html", "{path}.html"]"#, by hand;
        /// Pool that reads the files.
        blocking: String = "default".to_owned(), Text("the name of a [blocking.NAME] table"),
            by hand;
        /// Whether a directory without an index page is answered with a list of its files.
        listing: bool = false, Bool;
        /// Codings with ready-made files (`app.js.zst`, `.br`, `.gz`) that are looked for beside a
        /// file, the preferred one first.
        precompressed: Vec<ContentCoding> = vec![ContentCoding::Zstd, ContentCoding::Brotli, ContentCoding::Gzip],
            FlagOrChoices(ContentCoding::WORDS), shows "true", example r#"["br", "gzip"]"#, by hand;
        /// Codings that files of a type that profits are compressed with when they are asked
        /// for, the preferred one first.
        compress: Vec<ContentCoding> = vec![ContentCoding::Zstd, ContentCoding::Brotli, ContentCoding::Gzip],
            FlagOrChoices(ContentCoding::WORDS), shows "true", example r#"["zstd", "gzip"]"#, by hand;
        /// Whether names with a fingerprint in them, such as `app-3f9a1c07.js`, may be kept by
        /// clients for a year without asking (RFC 8246); a rule of `cache_control` comes first.
        immutable: bool = true, Bool;
        /// `Cache-Control` by a pattern of the file: of its path below the root if it begins
        /// with a slash (`/img/*`, `/index.html`), else of its name (`*.css`); `*` stands for
        /// anything, and the first that matches counts, in the order of the file.
        cache_control: Vec<(String, String)> = Vec::new(), StringMap, shows "{}",
            example r#"{ "*.html" = "no-cache", "/img/*" = "max-age=86400" }"#, by hand;
        /// Media types by extension, over those that are known.
        types: BTreeMap<String, String> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ webmanifest = "application/manifest+json" }"#, by hand;
        /// Which symbolic links below the root are followed: those that stay inside it, none,
        /// or any, wherever they lead; others are not found.
        symlinks: Symlinks = Symlinks::default(), Choice(Symlinks::WORDS),
            example r#""none""#;
        /// Names that are not found, whatever their case and whatever link leads to them: names
        /// (`*.psd`), directories (`drafts/`), paths below the root (`/internal/*`), exceptions
        /// (`!*.py`). The last that matches counts. `"default"` stands for sources, databases,
        /// keys, backups, logs and what holds passwords; names that begin with a dot are never
        /// found.
        hide: Vec<HidePattern> = HidePattern::defaults(), Texts(HIDE_PATTERN), default "`server.hide`",
            example r#"["default", "!*.py", "drafts/"]"#, by hand;
    }
    plain {
        /// What happens to a request without a file; `None` passes it on as it is.
        fallback: Option<TryFallback> = None;
    }
}

choice! {
    /// A content coding (RFC 9110 §8.4.1).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum ContentCoding {
        /// `zstd` (RFC 8878), file suffix `.zst`.
        Zstd = "zstd",
        /// `br` (RFC 7932), file suffix `.br`.
        Brotli = "br",
        /// `gzip` (RFC 1952), file suffix `.gz`.
        Gzip = "gzip",
    }
}

impl ContentCoding {
    /// The suffix of a file that holds it, with its dot.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Zstd => ".zst",
            Self::Brotli => ".br",
            Self::Gzip => ".gz",
        }
    }
}

choice! {
    /// Which symbolic links below a root are followed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub enum Symlinks {
        /// Those that stay below the root: `"inside"`.
        #[default]
        InsideRoot = "inside",
        /// None: `"none"`.
        Deny = "none",
        /// All: `"any"`.
        Any = "any",
    }
}
