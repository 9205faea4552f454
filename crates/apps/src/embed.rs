//! The worker scripts inside the binary, and the command line that starts them.
//!
//! An application runs under its own `python3` or `ruby`, with nothing installed beside it. The
//! executor writes [`bundle`] into a memory file once, hands its descriptor to the new process, and
//! starts it with [`Launch::argv`]: a stub given on the command line loads the modules from there.
//! No script ever exists on disk, so none can be stale, missing or replaced.
//!
//! What must stay true: a bundle is read through the descriptor with `pread`, from offset 0, so that
//! several workers may share one open file.

use std::ffi::{OsStr, OsString};

use penstock_wire::Dialect;

/// Everything that a worker process is told on its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch<'a> {
    pub dialect: Dialect,
    /// Path of the application's interpreter.
    pub interpreter: &'a OsStr,
    /// Descriptor, in the new process, of a file that holds [`bundle`].
    pub bundle_fd: i32,
    pub control_fd: i32,
    /// One for each thread, at least one.
    pub slot_fds: &'a [i32],
    /// Name of the application, for messages.
    pub app: &'a str,
    /// The application's folder: working directory and first place to import from.
    pub dir: &'a OsStr,
    /// `module:callable`, or the path of a `config.ru` relative to `dir`.
    pub entry: &'a str,
}

impl Launch<'_> {
    /// The whole command line, interpreter first.
    pub fn argv(&self) -> Vec<OsString> {
        let (switch, stub) = match self.dialect {
            Dialect::Python => ("-c", PYTHON_STUB),
            Dialect::Ruby => ("-e", RUBY_STUB),
        };
        let slots: Vec<String> = self.slot_fds.iter().map(ToString::to_string).collect();
        let mut argv = vec![self.interpreter.to_owned(), switch.into(), stub.into()];
        if self.dialect == Dialect::Ruby {
            // Without it ruby would take the first option below for its own.
            argv.push("--".into());
        }
        argv.push(self.bundle_fd.to_string().into());
        let options = [
            ("--control-fd", self.control_fd.to_string().into()),
            ("--slot-fds", slots.join(",").into()),
            ("--app", self.app.into()),
            ("--dir", self.dir.to_owned()),
            ("--entry", self.entry.into()),
        ];
        for (name, value) in options {
            argv.extend([name.into(), value]);
        }
        argv
    }
}

/// All modules of one language: for each `name_len u32, name, source_len u32, source`.
pub fn bundle(dialect: Dialect) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, source) in modules(dialect) {
        for part in [name, source] {
            let len = u32::try_from(part.len()).unwrap_or(u32::MAX);
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(part.as_bytes());
        }
    }
    out
}

fn modules(dialect: Dialect) -> &'static [(&'static str, &'static str)] {
    match dialect {
        Dialect::Python => PYTHON,
        Dialect::Ruby => RUBY,
    }
}

macro_rules! scripts {
    ($folder:literal, $($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../workers/", $folder, $name)))),+]
    };
}

const PYTHON: &[(&str, &str)] = scripts!(
    "python/penstock_worker/",
    "__init__.py",
    "__main__.py",
    "boot.py",
    "file_wrapper.py",
    "input.py",
    "wire.py",
    "wsgi.py",
);

/// In the order in which they are evaluated.
const RUBY: &[(&str, &str)] = scripts!(
    "ruby/",
    "wire.rb",
    "input.rb",
    "rack_env.rb",
    "stream.rb",
    "response.rb",
    "rack_app.rb",
    "boot.rb",
    "worker.rb",
);

const PYTHON_STUB: &str = include_str!("../workers/python/stub.py");
const RUBY_STUB: &str = include_str!("../workers/ruby/stub.rb");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_every_script_of_a_bundle() {
        for dialect in [Dialect::Python, Dialect::Ruby] {
            let bytes = bundle(dialect);
            let mut rest = bytes.as_slice();
            let mut parts = Vec::new();
            while let Some((len, tail)) = rest.split_first_chunk::<4>() {
                let (part, tail) = tail.split_at(u32::from_le_bytes(*len) as usize);
                parts.push(std::str::from_utf8(part).unwrap());
                rest = tail;
            }
            assert!(rest.is_empty());
            let listed: Vec<_> = modules(dialect)
                .iter()
                .flat_map(|(n, s)| [*n, *s])
                .collect();
            assert_eq!(parts, listed);
        }
    }

    #[test]
    fn puts_the_bundle_before_the_options() {
        let launch = Launch {
            dialect: Dialect::Ruby,
            interpreter: OsStr::new("/usr/bin/ruby"),
            bundle_fd: 9,
            control_fd: 3,
            slot_fds: &[4, 5],
            app: "shop",
            dir: OsStr::new("/srv/shop"),
            entry: "config.ru",
        };
        let argv = launch.argv();
        assert_eq!(argv[..2], ["/usr/bin/ruby", "-e"]);
        let tail =
            "-- 9 --control-fd 3 --slot-fds 4,5 --app shop --dir /srv/shop --entry config.ru";
        assert_eq!(argv[3..].join(OsStr::new(" ")), tail);
    }
}
