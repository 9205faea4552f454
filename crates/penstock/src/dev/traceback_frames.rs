//! Splits a traceback into the application's own frames, with the source around them, and the rest.
//!
//! Used by `explain`. Splitting is pure and knows the formats of Python and Ruby; reading blocks and
//! is bounded in files, bytes and lines.
//!
//! # Invariants
//!
//! - Whatever a traceback says, only source files in the application's directory are read: no
//!   hidden files and no installed packages.
//! - Secrets in source are masked.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use super::secrets;
use crate::code::code_paths;

/// A line of a file that a traceback names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TracebackFrame {
    /// Absolute.
    pub(crate) file: PathBuf,
    /// From 1.
    pub(crate) line: usize,
}

/// Maximum number of frames shown: those nearest to the failure.
const MAX_FRAMES: usize = 8;

/// Lines shown before and after the frame's line.
const CONTEXT_LINES: usize = 5;

/// Maximum bytes read of a file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Maximum characters shown of a line.
const MAX_LINE_CHARS: usize = 400;

/// Finds the frames of the application in `dir` that a traceback names, in its order, each once.
fn find_frames(text: &str, dir: &Path) -> Vec<TracebackFrame> {
    let mut frames = Vec::new();
    for line in text.lines() {
        let Some((file, line)) = parse_python_frame(line).or_else(|| parse_ruby_frame(line)) else {
            continue;
        };
        let Some(file) = app_source_file(file, dir) else {
            continue;
        };
        let frame = TracebackFrame { file, line };
        frames.retain(|other| *other != frame);
        frames.push(frame);
    }
    // Python prints the failure last, Ruby first.
    let is_python = text.lines().any(|line| parse_python_frame(line).is_some());
    if is_python {
        frames.drain(..frames.len().saturating_sub(MAX_FRAMES));
    } else {
        frames.truncate(MAX_FRAMES);
    }
    frames
}

/// A part of a traceback, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TracebackPart {
    /// A frame of the application that is shown with its source.
    Own {
        frame: TracebackFrame,
        /// Its lines in the traceback.
        text: String,
    },
    /// Frames of libraries, and own ones beyond those that are shown.
    Others { frames: usize, text: String },
    /// An exception's message, or what connects two exceptions.
    Message(String),
}

/// Splits a traceback of the application in `dir`.
pub(crate) fn split_traceback(text: &str, dir: &Path) -> Vec<TracebackPart> {
    let frame_of = |line: &str| {
        let (file, line) = parse_python_frame(line).or_else(|| parse_ruby_frame(line))?;
        Some(app_source_file(file, dir).map(|file| TracebackFrame { file, line }))
    };
    let mut left = find_frames(text, dir);
    let mut parts = Vec::new();
    // From the end, as of a frame that occurs several times the last is shown.
    let lines: Vec<_> = text.lines().map(|line| (line, frame_of(line))).collect();
    let shown: Vec<_> = lines
        .iter()
        .rev()
        .map(|(_, frame)| {
            let frame = frame.as_ref()?.as_ref()?;
            let at = left.iter().position(|one| one == frame)?;
            Some(left.swap_remove(at))
        })
        .collect();
    for ((line, frame), shown) in lines.iter().zip(shown.into_iter().rev()) {
        push_line(&mut parts, line, frame.is_some(), shown);
    }
    parts
}

/// Adds a line to the part that it belongs to.
fn push_line(
    parts: &mut Vec<TracebackPart>,
    line: &str,
    is_frame: bool,
    shown: Option<TracebackFrame>,
) {
    let own_line = || format!("{line}\n");
    match (shown, is_frame, parts.last_mut()) {
        (Some(frame), ..) => parts.push(TracebackPart::Own {
            frame,
            text: own_line(),
        }),
        (None, true, Some(TracebackPart::Others { frames, text })) => {
            *frames += 1;
            text.push_str(&own_line());
        }
        (None, true, _) => parts.push(TracebackPart::Others {
            frames: 1,
            text: own_line(),
        }),
        // The source below a frame, and the marks below that.
        (
            None,
            false,
            Some(TracebackPart::Own { text, .. } | TracebackPart::Others { text, .. }),
        ) if line.starts_with([' ', '\t']) => text.push_str(&own_line()),
        (None, false, Some(TracebackPart::Message(text))) => text.push_str(&own_line()),
        (None, false, _) => parts.push(TracebackPart::Message(own_line())),
    }
}

/// `  File "app.py", line 12, in view`.
fn parse_python_frame(line: &str) -> Option<(&str, usize)> {
    let rest = line
        .trim_start_matches([' ', '|', '+'])
        .strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    Some((file, rest[..end].parse().ok()?))
}

/// `app.rb:12:in 'view': message (Class)`, alone or after `from`.
fn parse_ruby_frame(line: &str) -> Option<(&str, usize)> {
    let line = line.trim_start();
    let line = line.strip_prefix("from ").unwrap_or(line);
    let (location, _) = line.split_once(":in ").or_else(|| line.split_once(": "))?;
    let (file, number) = location.rsplit_once(':')?;
    let is_source = file.ends_with(".rb") || file.ends_with(".ru") || file.ends_with(".erb");
    Some((file, number.parse().ok()?)).filter(|_| is_source)
}

/// The file, if it is one of the application's own.
fn app_source_file(file: &str, dir: &Path) -> Option<PathBuf> {
    let path = dir.join(file);
    let below = path.strip_prefix(dir).ok()?;
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let mut folders = below.parent()?.iter();
    let is_own = below.components().all(is_plain) && folders.all(code_paths::is_code_dir);
    (is_own && is_source_file(below)).then_some(path)
}

/// Whether a file is source code or a template: other files may contain keys or data.
fn is_source_file(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    !name.starts_with('.') && SOURCE_EXTENSIONS.contains(&ending.to_ascii_lowercase().as_str())
}

/// Extensions of Python's and Ruby's files, and of their templates.
const SOURCE_EXTENSIONS: [&str; 18] = [
    "py", "pyw", "pyx", "rb", "ru", "rake", "erb", "haml", "slim", "builder", "jbuilder", "html",
    "htm", "jinja", "jinja2", "j2", "mako", "liquid",
];

impl TracebackFrame {
    /// The path below the application's directory, and the line.
    pub(crate) fn describe_location(&self, dir: &Path) -> String {
        let file = self.file.strip_prefix(dir).unwrap_or(&self.file);
        format!("{}, line {}", file.display(), self.line)
    }

    /// The lines around it, each with its number; `None` if they cannot be read. *Blocking*.
    pub(crate) fn source_excerpt(&self, dir: &Path) -> Option<String> {
        // A link inside the directory may point anywhere.
        let file = self.file.canonicalize().ok()?;
        let is_inside = file.starts_with(dir.canonicalize().ok()?);
        if !is_inside || !is_source_file(&file) || !file.is_file() {
            return None;
        }
        let mut text = Vec::new();
        #[expect(clippy::disallowed_methods, reason = "runs in a pool")]
        let file = std::fs::File::open(file).ok()?;
        file.take(MAX_FILE_BYTES).read_to_end(&mut text).ok()?;
        let source = secrets::mask_text(&String::from_utf8_lossy(&text));
        excerpt(&source, self.line)
    }
}

fn excerpt(text: &str, line: usize) -> Option<String> {
    let first = line.saturating_sub(CONTEXT_LINES).max(1);
    let lines = text
        .lines()
        .enumerate()
        .map(|(index, text)| (index + 1, text));
    let shown = lines
        .skip(first - 1)
        .take(line.checked_add(CONTEXT_LINES + 1)?.saturating_sub(first));
    let mut out = String::new();
    let mut has_line = false;
    for (number, text) in shown {
        let mark = if number == line { '>' } else { ' ' };
        has_line |= number == line;
        let text: String = text.chars().take(MAX_LINE_CHARS).collect();
        out.push_str(&format!("{mark} {number:>4}  {text}\n"));
    }
    has_line.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locations(text: &str) -> Vec<String> {
        let dir = Path::new("/srv/app");
        find_frames(text, dir)
            .iter()
            .map(|frame| frame.describe_location(dir))
            .collect()
    }

    #[test]
    fn finds_the_applications_own_frames() {
        let python = "Traceback (most recent call last):\n  File \"/usr/lib/python3/wsgi.py\", line 1, in run\n    x\n  \
                      File \"/srv/app/.venv/lib/flask.py\", line 2, in f\n  File \"/srv/app/app.py\", line 12, in view\n    \
                      raise ValueError(1)\n  File \"/srv/app/lib/x.py\", line 3\n  File \"/srv/app/../etc/x.py\", line 4, in y\nValueError: 1";
        assert_eq!(locations(python), ["app.py, line 12", "lib/x.py, line 3"]);
        let ruby = "app.rb:12:in 'view': bad (RuntimeError)\n\tfrom /srv/app/lib/x.rb:3:in 'each'\n\tfrom \
                    /usr/lib/ruby/rack.rb:4:in 'call'\n\tfrom /srv/app/config.ru:1:in '<main>'\n";
        let expected = ["app.rb, line 12", "lib/x.rb, line 3", "config.ru, line 1"];
        assert_eq!(locations(ruby), expected);
        let odd = "  File \".env\", line 1, in f\n  File \"db.sqlite3\", line 1\n  File \"lib/.x.py\", line 1\n  \
                   File \"secrets.json\", line 1\n  File \"key\", line 1\n  File \"v/a.html\", line 1\n";
        assert_eq!(locations(odd), ["v/a.html, line 1"]);
        assert_eq!(locations("nothing at 12:30 of it\napp.rb: x\n"), [""; 0]);
    }

    #[test]
    fn keeps_the_frames_nearest_to_the_failure() {
        let python: String = (1..=20)
            .map(|line| format!("  File \"a.py\", line {line}, in f\n"))
            .collect();
        assert_eq!(locations(&python)[0], "a.py, line 13");
        let ruby: String = (1..=20)
            .map(|line| format!("a.rb:{line}:in 'f'\n"))
            .collect();
        assert_eq!(
            (locations(&ruby).len(), &*locations(&ruby)[0]),
            (MAX_FRAMES, "a.rb, line 1")
        );
    }

    #[test]
    fn frames_of_libraries_are_apart_from_own_ones() {
        let dir = Path::new("/srv/app");
        let describe = |text: &str| -> Vec<String> {
            let parts = split_traceback(text, dir).into_iter();
            let parts = parts.map(|part| match part {
                TracebackPart::Own { frame, text } => {
                    format!("{}: {}", frame.describe_location(dir), text.lines().count())
                }
                TracebackPart::Others { frames, .. } => format!("{frames} others"),
                TracebackPart::Message(text) => text.trim_end().to_owned(),
            });
            parts.collect()
        };
        let python = "Traceback (most recent call last):\n  File \"/usr/lib/a.py\", line 1, in run\n    x\n  \
                      File \"/usr/lib/b.py\", line 2, in run\n    y\n    ^\n  File \"app.py\", line 12, in view\n    \
                      z()\n    ^^^\n  File \"/usr/lib/c.py\", line 3, in z\nValueError: 1\nsecond line";
        assert_eq!(
            describe(python),
            [
                "Traceback (most recent call last):",
                "2 others",
                "app.py, line 12: 3",
                "1 others",
                "ValueError: 1\nsecond line",
            ]
        );
        let ruby = "app.rb:12:in 'view': bad (E)\n\tfrom /usr/lib/rack.rb:4:in 'call'\n\tfrom \
                    app.rb:12:in 'view'\n";
        assert_eq!(describe(ruby), ["2 others", "app.rb, line 12: 1"]);
    }

    #[test]
    fn shows_the_lines_around() {
        let text: String = (1..=20).map(|line| format!("line {line}\n")).collect();
        let shown = excerpt(&text, 2).unwrap();
        assert_eq!(shown.lines().count(), 7);
        assert!(
            shown.starts_with("     1  line 1\n>    2  line 2\n"),
            "{shown}"
        );
        assert_eq!(excerpt(&text, 21), None);
        assert_eq!(excerpt(&text, usize::MAX), None);
    }
}
