//! Lines of JSON from a pipe, reassembled and of limited length.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::child_link::MAX_LINE_BYTES;

/// Bytes read but not returned.
#[derive(Debug, Default)]
pub(super) struct JsonLines {
    pending: Vec<u8>,
    /// No line ends before this position.
    scanned: usize,
}

impl JsonLines {
    /// Waits for the first line; `None` if the input ends before it.
    ///
    /// # Errors
    /// As [`JsonLines::read_more`].
    pub(super) fn first_line(&mut self, input: &impl AsFd) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(line) = self.next_line() {
                return Ok(Some(line));
            }
            if !self.read_more(input)? {
                return Ok(None);
            }
        }
    }

    /// The next complete line, without its end.
    pub(super) fn next_line(&mut self) -> Option<Vec<u8>> {
        let Some(found) = memchr::memchr(b'\n', &self.pending[self.scanned..]) else {
            self.scanned = self.pending.len();
            return None;
        };
        let end = self.scanned + found;
        self.scanned = 0;
        let behind = self.pending.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.pending, behind);
        line.pop();
        Some(line)
    }

    /// Reads available bytes, or waits for some; returns whether the input continues.
    ///
    /// # Errors
    /// The input cannot be read, or a line is too long.
    pub(super) fn read_more(&mut self, input: &impl AsFd) -> io::Result<bool> {
        if self.pending.len() > MAX_LINE_BYTES {
            return Err(io::Error::other("a line is too long"));
        }
        let mut chunk = [0; 16 << 10];
        loop {
            match rustix::io::read(input, &mut chunk) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.pending.extend_from_slice(&chunk[..count]);
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn gives_whole_lines_however_they_come() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        let mut lines = JsonLines::default();
        let mut found = Vec::new();
        for piece in ["a", "b\nc\n\nd", "e", "\n"] {
            writer.write_all(piece.as_bytes()).unwrap();
            assert!(lines.read_more(&reader).unwrap());
            while let Some(line) = lines.next_line() {
                found.push(String::from_utf8(line).unwrap());
            }
        }
        assert_eq!(found, ["ab", "c", "", "de"]);
        drop(writer);
        assert!(!lines.read_more(&reader).unwrap());
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = JsonLines {
            pending: vec![b'x'; MAX_LINE_BYTES + 1],
            scanned: 0,
        };
        let (_writer, reader) = UnixStream::pair().unwrap();
        assert!(lines.read_more(&reader).is_err());
    }
}
