//! Hidden names: the compiled patterns of `hide`, and their log.
//!
//! `file_tree` checks each name before it opens it and again for the target of a symbolic link;
//! `listing` checks each entry. `file_cache` stores the result, so that cached requests are not
//! matched again. Pure, except for the log.
//!
//! # Invariants
//!
//! - The result does not depend on a name's spelling: case, final dots and spaces, letters that a
//!   file system folds or ignores, and appended codings (`dump.sql.gz`) do not matter.
//! - A match allocates nothing, unless a path is longer than [`MAX_STACK_PATH_BYTES`].
//! - The log names a hidden file once, and a bounded number of files of a root.

use std::path::Path;

use penstock_config::{DEFAULT_HIDE_PATTERNS, HidePattern};

use crate::file_header_rules::glob_matches;
use crate::logged_names::LoggedNames;

/// Paths up to this length are matched without allocation.
const MAX_STACK_PATH_BYTES: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HideMatch<'a> {
    pub(crate) pattern: &'a str,
    pub(crate) is_default: bool,
}

#[derive(Debug, Default)]
pub(crate) struct HidePatterns {
    /// In written order; the last match decides.
    rules: Vec<HideRule>,
}

#[derive(Debug)]
struct HideRule {
    pattern: Box<str>,
    origin: RuleOrigin,
    /// Letters that a matching path must have; most paths are excluded by these.
    required_letters: u128,
    matches: RulePattern,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleOrigin {
    Default,
    Configured,
    /// The configuration, as an exception (`!`).
    Exception,
}

#[derive(Debug)]
enum RulePattern {
    /// The last segment.
    Name(Box<[u8]>),
    /// Any segment.
    Segment(Box<[u8]>),
    /// Any directory segment.
    Directory(Box<[u8]>),
    /// The whole path below the root.
    Path(Box<[u8]>),
}

impl HidePatterns {
    pub(crate) fn new(patterns: &[HidePattern]) -> Self {
        let mut hidden = Self::default();
        for pattern in patterns {
            match pattern {
                HidePattern::Defaults => {
                    for pattern in DEFAULT_HIDE_PATTERNS {
                        hidden.push(pattern, RuleOrigin::Default);
                    }
                }
                HidePattern::Hide(pattern) => hidden.push(pattern, RuleOrigin::Configured),
                HidePattern::Except(pattern) => hidden.push(pattern, RuleOrigin::Exception),
            }
        }
        hidden
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    fn push(&mut self, pattern: &str, origin: RuleOrigin) {
        let folded = fold_to_vec(pattern.as_bytes());
        let matches = match (folded.strip_prefix(b"/"), folded.strip_suffix(b"/")) {
            (Some(path), _) if path.ends_with(b"/") => {
                RulePattern::Path([path, b"*"].concat().into())
            }
            (Some(path), _) => RulePattern::Path(path.into()),
            (None, Some(folder)) => RulePattern::Directory(folder.into()),
            // A configured name also hides directories of that name; an exception opens none.
            (None, None) if origin != RuleOrigin::Configured => {
                RulePattern::Name(folded.as_slice().into())
            }
            (None, None) => RulePattern::Segment(folded.as_slice().into()),
        };
        self.rules.push(HideRule {
            pattern: pattern.into(),
            origin,
            required_letters: letter_mask(&folded) & !letter_mask(b"*"),
            matches,
        });
    }

    /// Finds the pattern that hides `name`, a path relative to the root. A directory's ends with a
    /// slash.
    pub(crate) fn find_match(&self, name: &[u8]) -> Option<HideMatch<'_>> {
        if self.rules.is_empty() {
            return None;
        }
        let mut buffer = [0; MAX_STACK_PATH_BYTES];
        let rule = match buffer.get_mut(..name.len()) {
            Some(buffer) => {
                let len = fold_name(name, buffer);
                self.last_match(&buffer[..len])?
            }
            None => self.last_match(&fold_to_vec(name))?,
        };
        (rule.origin != RuleOrigin::Exception).then_some(HideMatch {
            pattern: &rule.pattern,
            is_default: rule.origin == RuleOrigin::Default,
        })
    }

    /// The rule that decides for a folded path.
    fn last_match(&self, path: &[u8]) -> Option<&HideRule> {
        let (folders, last) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        let absent = !letter_mask(path);
        let mut rules = self.rules.iter().rev();
        rules.find(|rule| {
            rule.required_letters & absent == 0 && rule.matches.matches(path, folders, last)
        })
    }
}

impl RulePattern {
    fn matches(&self, path: &[u8], folders: &[u8], last: &[u8]) -> bool {
        let is_last = |pattern: &[u8]| original_names(last).any(|name| glob_matches(pattern, name));
        let is_folder = |pattern: &[u8]| {
            let mut folders = folders.split(|&byte| byte == b'/');
            folders.any(|folder| !folder.is_empty() && glob_matches(pattern, folder))
        };
        match self {
            Self::Path(pattern) => original_names(path).any(|path| glob_matches(pattern, path)),
            Self::Directory(pattern) => is_folder(pattern),
            Self::Segment(pattern) => is_folder(pattern) || is_last(pattern),
            Self::Name(pattern) => is_last(pattern),
        }
    }
}

/// The letters of a folded text, one bit each. Slashes are excluded: in a pattern they are marks.
fn letter_mask(text: &[u8]) -> u128 {
    let slash = 1_u128 << b'/';
    let all = text
        .iter()
        .fold(0, |all, byte| all | 1_u128 << (byte & 127));
    all & !slash
}

/// A name, and the names of which it is a packed, copied or numbered version: `dump.sql.1.gz`,
/// `dump.sql.1`, `dump.sql`; `app.log-2026-11-26`, `app.log`; `config.php-old`, `config.php`.
fn original_names(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    fn original<'a>(name: &&'a [u8]) -> Option<&'a [u8]> {
        let name: &'a [u8] = name;
        if let Some(dot) = name.iter().rposition(|&byte| byte == b'.') {
            let (original, ending) = (name.get(..dot)?, name.get(dot + 1..)?);
            if is_version_suffix(ending) || COPY_SUFFIXES.contains(&ending) {
                return Some(original);
            }
        }
        if let Some(original) = without_copy_word(name) {
            return Some(original);
        }
        // `error_log-2026-11-26`: from the first dash that only a number follows.
        let number = name.iter().rposition(|byte| !is_version_byte(*byte))? + 1;
        let mut behind = name.get(number..)?.iter();
        let end = number + behind.position(|byte| b"-_".contains(byte))?;
        let (original, number) = name.split_at(end);
        is_version_suffix(number).then_some(original)
    }
    std::iter::successors(Some(name), original)
}

/// The original of a name that ends with a mark and a word for a copy: `config.php-old`,
/// `config.php_bak2`, `config.php copy`, `config.php (1)`.
fn without_copy_word(name: &[u8]) -> Option<&[u8]> {
    let is_mark = |byte: u8| b"-_+,~ (".contains(&byte);
    let (inner, is_closed) = match name.split_last() {
        Some((b')', inner)) => (inner, true),
        _ => (name, false),
    };
    let mark = inner.iter().rposition(|&byte| is_mark(byte))?;
    let word = inner.get(mark + 1..)?;
    let letters = word.iter().rposition(|byte| !byte.is_ascii_digit());
    let letters = word.get(..letters.map_or(0, |last| last + 1))?;
    // A number alone counts only in parentheses; otherwise it is a date or a part of the name.
    let is_copy = match letters {
        b"" => is_closed && !word.is_empty(),
        _ => COPY_SUFFIXES.contains(&letters),
    };
    let end = name.get(..mark)?.iter().rposition(|&byte| !is_mark(byte))?;
    name.get(..=end).filter(|_| is_copy)
}

/// Whether an ending is a number, a date or a time: `1`, `2026-11-26`, `20261126t101500z`.
fn is_version_suffix(ending: &[u8]) -> bool {
    ending.iter().any(u8::is_ascii_digit) && ending.iter().all(|&byte| is_version_byte(byte))
}

fn is_version_byte(byte: u8) -> bool {
    byte.is_ascii_digit() || b"-_:tz".contains(&byte)
}

/// Endings of packed files and of copies set aside.
///
/// Not `txt`: files such as `makefile.txt` and `example.php.txt` are meant to be read.
const COPY_SUFFIXES: [&[u8]; 38] = [
    b"7z",
    b"backup",
    b"bak",
    b"bck",
    b"bkp",
    b"br",
    b"bz2",
    b"copy",
    b"default",
    b"disabled",
    b"dist",
    b"example",
    b"gz",
    b"lz",
    b"lz4",
    b"lzma",
    b"lzo",
    b"new",
    b"off",
    b"old",
    b"orig",
    b"original",
    b"prev",
    b"rar",
    b"sample",
    b"save",
    b"tar",
    b"tbz2",
    b"temp",
    b"tgz",
    b"template",
    b"tmp",
    b"txz",
    b"xz",
    b"z",
    b"zip",
    b"zst",
    b"zstd",
];

fn fold_to_vec(name: &[u8]) -> Vec<u8> {
    let mut out = vec![0; name.len()];
    let len = fold_name(name, &mut out);
    out.truncate(len);
    out
}

/// Writes the folded form of `name`, in which names are compared, and returns its length. `out`
/// must be as long as `name`.
///
/// Rules of single file systems apply to all, since the cost is at most a hidden name: case
/// (casefolded ext4, exFAT, NTFS), letters outside ASCII that fold into it or are ignored (ext4,
/// HFS+: U+200C, U+212A, U+017F, U+00DF), final dots and spaces (FAT), `\` as a slash (CIFS),
/// `::$DATA` (NTFS).
fn fold_name(name: &[u8], out: &mut [u8]) -> usize {
    let (mut len, mut start) = (0, 0);
    let mut rest = name;
    while let Some((&byte, after)) = rest.split_first() {
        let mut next = after;
        let own = [byte.to_ascii_lowercase()];
        let folded: &[u8] = match byte {
            b'/' | b'\\' => {
                len = trim_ignored_suffix(out, start, len);
                start = len + 1;
                b"/"
            }
            _ if byte.is_ascii() => &own,
            _ => match FOLDED_LETTERS
                .iter()
                .find(|(letter, _)| rest.starts_with(letter))
            {
                Some((letter, folded)) => {
                    next = &rest[letter.len()..];
                    folded
                }
                None => b"",
            },
        };
        if let Some(place) = out.get_mut(len..len + folded.len()) {
            place.copy_from_slice(folded);
            len += folded.len();
        }
        rest = next;
    }
    trim_ignored_suffix(out, start, len)
}

/// Letters outside ASCII that fold to ASCII (Unicode's `CaseFolding.txt`): the Kelvin sign, the
/// long and the sharp s, ligatures. None becomes longer.
const FOLDED_LETTERS: [(&[u8], &[u8]); 11] = [
    (b"\xe2\x84\xaa", b"k"),
    (b"\xc5\xbf", b"s"),
    (b"\xc3\x9f", b"ss"),
    (b"\xe1\xba\x9e", b"ss"),
    (b"\xef\xac\x80", b"ff"),
    (b"\xef\xac\x81", b"fi"),
    (b"\xef\xac\x82", b"fl"),
    (b"\xef\xac\x83", b"ffi"),
    (b"\xef\xac\x84", b"ffl"),
    (b"\xef\xac\x85", b"st"),
    (b"\xef\xac\x86", b"st"),
];

/// Whether a file system may read the segment as a name that begins with a dot: ext4 and HFS+ skip
/// ignorable letters (Unicode's `Default_Ignorable_Code_Point`) when they fold case.
pub(crate) fn is_dot_name(mut segment: &[u8]) -> bool {
    while let Some(first) = segment.first().filter(|first| !first.is_ascii()) {
        // The first byte gives the length; invalid UTF-8 is not folded.
        let len = first.leading_ones() as usize;
        let letter = segment
            .get(..len)
            .and_then(|bytes| str::from_utf8(bytes).ok());
        match letter.and_then(|letter| letter.chars().next()) {
            Some(letter) if is_ignorable(letter) => segment = &segment[len..],
            _ => return false,
        }
    }
    segment.first() == Some(&b'.')
}

fn is_ignorable(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// The end of a segment without suffixes that a file system may ignore.
fn trim_ignored_suffix(out: &[u8], start: usize, mut len: usize) -> usize {
    while let Some(segment) = out.get(start..len) {
        let shorter = match segment {
            [.., b'.' | b' '] => len - 1,
            _ if segment.ends_with(NTFS_STREAM_SUFFIX) => len - NTFS_STREAM_SUFFIX.len(),
            _ => break,
        };
        len = shorter;
    }
    len
}

/// NTFS's name for the content stream of a file.
const NTFS_STREAM_SUFFIX: &[u8] = b"::$data";

/// Logs an existing hidden file, unless it was logged before.
pub(crate) fn log_hidden_file(log: &LoggedNames, root: &Path, name: &[u8], hiding: HideMatch<'_>) {
    if !log.insert(name) {
        return;
    }
    let file = root.join(String::from_utf8_lossy(name).as_ref());
    let pattern = hiding.pattern;
    log::warn!(
        "files: 404 for {file:?}: hidden by \"{pattern}\" of the default list; to serve such files \
         set files = {{ ..., hide = [\"default\", \"!{pattern}\"] }}"
    );
}

#[cfg(test)]
mod tests;
