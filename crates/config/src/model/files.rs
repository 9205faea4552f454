//! Static files: what a route says about a folder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::hide::HidePattern;
use crate::values::TryPattern;

/// A folder of static files.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Files {
    /// The absolute folder; nothing outside it is served.
    pub root: PathBuf,
    /// What to look for, in order.
    pub try_: Vec<TryPattern>,
    /// The name of the blocking pool that reads them.
    pub blocking: String,
    /// Whether a folder without an index page is answered with a list of what is in it.
    pub listing: bool,
    /// Content codings whose ready-made files (`app.js.br`) are looked for beside a file, the preferred
    /// one first.
    pub precompressed: Vec<Coding>,
    /// Codings that files of a type that profits are compressed with while they are asked for, the
    /// preferred one first; empty is never.
    pub compress: Vec<Coding>,
    /// Whether names with a fingerprint in them are sent with a `Cache-Control` that says so (a year,
    /// `immutable`, RFC 8246), where no rule of `cache_control` says otherwise.
    pub immutable: bool,
    /// `Cache-Control` of files by a pattern of their name, in the order of the file: `*.css`, `/img/*`,
    /// `/index.html`. The first that matches counts.
    pub cache_control: Vec<(String, String)>,
    /// Media types by extension (without the dot, lower case), over those that are known.
    pub types: BTreeMap<String, String>,
    /// Which symbolic links below the root are followed.
    pub symlinks: Symlinks,
    /// Names that are not found, whatever the path or link that leads to them.
    pub hide: Vec<HidePattern>,
}

impl Files {
    /// The files below `root` with every default.
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            try_: TryPattern::defaults(),
            blocking: "default".to_owned(),
            listing: false,
            precompressed: vec![Coding::Zstd, Coding::Brotli, Coding::Gzip],
            compress: vec![Coding::Zstd, Coding::Brotli, Coding::Gzip],
            immutable: true,
            cache_control: Vec::new(),
            types: BTreeMap::new(),
            symlinks: Symlinks::default(),
            hide: HidePattern::defaults(),
        }
    }
}

/// A content coding (RFC 9110 §8.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// `zstd` (RFC 8878), file suffix `.zst`.
    Zstd,
    /// `br` (RFC 7932), file suffix `.br`.
    Brotli,
    /// `gzip` (RFC 1952), file suffix `.gz`.
    Gzip,
}

impl Coding {
    /// Its name in `Accept-Encoding` and in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    /// The suffix of a file that holds it, with its dot.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Zstd => ".zst",
            Self::Brotli => ".br",
            Self::Gzip => ".gz",
        }
    }
}

/// Which symbolic links below a root are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Symlinks {
    /// Those that stay below the root: `"inside"`.
    #[default]
    InsideRoot,
    /// None: `"none"`.
    Deny,
    /// All: `"any"`.
    Any,
}
