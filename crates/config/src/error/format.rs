//! Formats parts of a problem: a position, a suggestion, a reason.
//!
//! Used in the texts of [`super::Problem`].
//!
//! # Invariants
//!
//! - Unknown parts leave no trace in the text.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// ` in [section]`, or at the top.
pub(super) struct InSection<'a>(pub(super) &'a str);

impl fmt::Display for InSection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => f.write_str("at the top level"),
            section => write!(f, "in [{section}]"),
        }
    }
}

/// `; did you mean ...?`, or nothing.
pub(super) struct DidYouMean<'a>(pub(super) &'a Option<String>);

impl fmt::Display for DidYouMean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(word) => write!(f, "; did you mean `{word}`?"),
            None => Ok(()),
        }
    }
}

/// The noun for several names.
pub(super) struct BackendNoun {
    pub(super) apps: usize,
    pub(super) all: usize,
}

impl fmt::Display for BackendNoun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.apps {
            0 => "upstreams",
            apps if apps == self.all => "applications",
            _ => "applications and upstreams",
        })
    }
}

/// ` on line N`, or nothing.
pub(super) struct OnLine(pub(super) usize);

impl fmt::Display for OnLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            line => write!(f, " on line {line}"),
        }
    }
}

/// Why a path cannot be used.
pub(super) struct IoReason(pub(super) io::ErrorKind);

impl fmt::Display for IoReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            io::ErrorKind::NotFound => f.write_str("does not exist"),
            other => write!(f, "cannot be read: {other}"),
        }
    }
}

/// ` (permission denied)` and the like; nothing if the path does not exist.
pub(super) struct AccessError(pub(super) Option<io::ErrorKind>);

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None | Some(io::ErrorKind::NotFound) => Ok(()),
            Some(kind) => write!(f, " ({kind})"),
        }
    }
}

/// A list of paths.
pub(super) struct PathList<'a>(pub(super) &'a [PathBuf]);

impl fmt::Display for PathList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, path) in self.0.iter().enumerate() {
            let before = if index == 0 { "" } else { ", " };
            write!(f, "{before}{}", path.display())?;
        }
        Ok(())
    }
}
