//! The numbered messages that are published to measure delivery: encoding and search.
//!
//! `publisher` writes them, `agent` finds them in received bytes. A message is one word of letters,
//! digits, dashes and a dot, so that it survives JSON, forms and URLs: `hold-RUN-NUMBER-SENT.`, all
//! hexadecimal. RUN distinguishes runs; SENT is the intended moment in microseconds of the
//! monotonic clock, which all processes of a machine share. Pure, except for [`monotonic_micros`].

use memchr::memmem::Finder;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberedMessage {
    /// From 1.
    pub(super) number: u32,
    /// Microseconds of [`monotonic_micros`].
    pub(super) sent_at: u64,
}

impl NumberedMessage {
    /// The text of the message in a run.
    pub(super) fn encode(&self, run: u32) -> String {
        format!(
            "{}{:x}-{:x}.",
            message_prefix(run),
            self.number,
            self.sent_at
        )
    }
}

/// Finds the messages of one run.
#[derive(Debug)]
pub(super) struct MessageFinder {
    finder: Finder<'static>,
    prefix_bytes: usize,
}

impl MessageFinder {
    pub(super) fn new(run: u32) -> Self {
        let prefix = message_prefix(run);
        Self {
            prefix_bytes: prefix.len(),
            finder: Finder::new(&prefix).into_owned(),
        }
    }

    /// The first message in a line.
    pub(super) fn find(&self, line: &[u8]) -> Option<NumberedMessage> {
        let at = self.finder.find(line)?;
        let rest = line.get(at + self.prefix_bytes..)?;
        let end = memchr::memchr(b'.', rest)?;
        let (number, sent_at) = str::from_utf8(&rest[..end]).ok()?.split_once('-')?;
        Some(NumberedMessage {
            number: u32::from_str_radix(number, 16).ok()?,
            sent_at: u64::from_str_radix(sent_at, 16).ok()?,
        })
    }
}

/// Microseconds of the machine's monotonic clock.
pub(super) fn monotonic_micros() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec) * 1_000_000 + part(now.tv_nsec) / 1_000
}

fn message_prefix(run: u32) -> String {
    format!("hold-{run:08x}-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_found_again() {
        let message = NumberedMessage {
            number: 42,
            sent_at: 1_234_567_890_123,
        };
        let word = message.encode(7);
        let reader = MessageFinder::new(7);
        for line in [
            word.clone(),
            format!("data: {word}"),
            format!("{{\"data\":\"{word}\"}}"),
        ] {
            assert_eq!(reader.find(line.as_bytes()), Some(message), "{line}");
        }
        assert_eq!(
            MessageFinder::new(8).find(word.as_bytes()),
            None,
            "another run"
        );
        for cut in 0..word.len() {
            assert_eq!(reader.find(&word.as_bytes()[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn what_only_looks_like_one_is_none() {
        let reader = MessageFinder::new(7);
        for line in [
            "hold-00000007--1.",
            "hold-00000007-1-.",
            "hold-00000007-x-1.",
            "hold-00000007-1ffffffff-1.",
            "hold-00000007-1-11111111111111111.",
            "hold-00000007-1",
        ] {
            assert_eq!(reader.find(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn the_clock_goes_on() {
        let before = monotonic_micros();
        assert!(before > 0 && monotonic_micros() >= before);
    }
}
