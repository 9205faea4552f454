//! A child process as seen from an event loop: its exit, and its output by line and by event.
//!
//! `apps`' executor awaits these; `sys::process` starts the child.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use penstock_sys::poll::Interest;
use penstock_sys::process::{Launcher, ProcessSpec, SpawnedProcess, StartProgress};

use crate::multiline_output::{OutputEvent, OutputEventCollector};
use crate::registered_fd::RegisteredFd;

/// Delay before another attempt to get a descriptor that watches a process.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Waits until the process behind `pidfd` has ended. Retries while descriptors are short: an error
/// must not be taken for the end.
pub async fn wait_for_exit(pidfd: &OwnedFd) {
    loop {
        let watched = pidfd.try_clone();
        let watched = watched.and_then(|fd| RegisteredFd::new(fd, Interest::Read));
        if let Ok(fd) = watched
            && poll_fn(|cx| fd.poll_readable(cx)).await.is_ok()
        {
            return;
        }
        crate::clock::sleep(RETRY_DELAY).await;
    }
}

/// Delay before another attempt to send an order to a busy launcher.
const BUSY: Duration = Duration::from_millis(5);

/// Starts a program and waits until it runs, for 10 s at most, as a disk may not answer. Dropping
/// the future cancels the start.
pub async fn launch(launcher: &Launcher, launch: ProcessSpec) -> io::Result<SpawnedProcess> {
    let mut starting = launcher.begin_launch(launch)?;
    let socket = starting.socket().try_clone_to_owned()?;
    let socket = RegisteredFd::new(socket, Interest::Read)?;
    loop {
        match starting.advance()? {
            StartProgress::Running(started) => return Ok(started),
            StartProgress::LauncherBusy => crate::clock::sleep(BUSY).await,
            StartProgress::Waiting => {
                socket.clear_readable();
                let readable = poll_fn(|cx| socket.poll_readable(cx));
                // Without a reply, the next call of `advance` detects the timeout.
                let come = crate::clock::timeout_at(starting.deadline(), readable).await;
                come.unwrap_or(Ok(()))?;
            }
        }
    }
}

/// Longest line kept whole; a longer one is split into pieces of this size.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// The same for a line that may be a JSON object, which would be invalid once split: the size that
/// log collectors accept.
const MAX_JSON_LINE_BYTES: usize = 256 * 1024;

/// How long a program may pause within an event: a traceback is often written line by line.
const EVENT_PAUSE: Duration = Duration::from_millis(20);

/// Reads `pipe` to its end. Passes each line (without its end) to `take_line` as it arrives, and
/// each event, which is one line or more, to `take_event` once it is complete.
pub async fn read_output(
    pipe: OwnedFd,
    mut take_line: impl FnMut(&str) + Send,
    mut take_event: impl FnMut(OutputEvent) + Send,
) {
    let Ok(pipe) = OutputPipe::new(pipe) else {
        return;
    };
    let mut pending: Vec<u8> = Vec::new();
    let mut events = OutputEventCollector::default();
    let mut chunk = vec![0; 4096];
    // This many bytes of the incomplete line contain no line end.
    let mut searched = 0;
    loop {
        let read = match events.is_pending() {
            true => crate::clock::timeout(EVENT_PAUSE, pipe.read(&mut chunk)).await,
            false => Some(pipe.read(&mut chunk).await),
        };
        let Some(read) = read else {
            events.flush(&mut take_event);
            continue;
        };
        let Ok(count @ 1..) = read else { break };
        pending.extend_from_slice(&chunk[..count]);
        let mut start = 0;
        while let Some(end) = line_end(&pending[start..], searched) {
            searched = 0;
            let line = String::from_utf8_lossy(&pending[start..start + end]);
            take_line(&line);
            events.push(&line, &mut take_event);
            start += end;
            start += usize::from(pending.get(start) == Some(&b'\n'));
        }
        pending.drain(..start);
        searched = pending.len();
    }
    if !pending.is_empty() {
        let line = String::from_utf8_lossy(&pending);
        take_line(&line);
        events.push(&line, &mut take_event);
    }
    events.flush(&mut take_event);
}

/// Where the first line of `bytes` ends or is split: never within a character.
fn line_end(bytes: &[u8], searched: usize) -> Option<usize> {
    let max = match bytes.first() {
        Some(b'{') => MAX_JSON_LINE_BYTES,
        _ => MAX_LINE_BYTES,
    };
    let part = &bytes[searched..bytes.len().min(max)];
    if let Some(found) = part.iter().position(|&byte| byte == b'\n') {
        return Some(searched + found);
    }
    let is_inside = |at: usize| bytes[at] & 0b1100_0000 == 0b1000_0000;
    (bytes.len() > max).then(|| {
        (max - 3..=max)
            .rev()
            .find(|&at| !is_inside(at))
            .unwrap_or(max)
    })
}

/// The reading end of a pipe (pipes need `read`, not `recv`).
#[derive(Debug)]
struct OutputPipe(RegisteredFd);

impl OutputPipe {
    fn new(pipe: OwnedFd) -> io::Result<Self> {
        Ok(Self(RegisteredFd::new(pipe, Interest::Read)?))
    }

    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            poll_fn(|cx| self.0.poll_readable(cx)).await?;
            match penstock_sys::file::read_pipe(&self.0, buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.0.clear_readable(),
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_between_characters() {
        let long = "é".repeat(MAX_LINE_BYTES);
        let text = [b"x", long.as_bytes()].concat();
        assert_eq!(line_end(b"ab\ncd", 0), Some(2));
        assert_eq!(line_end(b"abc", 0), None);
        assert_eq!(line_end(&text[..MAX_LINE_BYTES], 0), None);
        assert_eq!(line_end(&text, 0), Some(MAX_LINE_BYTES - 1));
        // Bytes that are not text are split anywhere.
        assert_eq!(
            line_end(&[0x80; MAX_LINE_BYTES + 1], 0),
            Some(MAX_LINE_BYTES)
        );
        let mut json = b"{".to_vec();
        json.resize(MAX_JSON_LINE_BYTES, b'x');
        assert_eq!(line_end(&json, MAX_LINE_BYTES), None);
        json.push(b'\n');
        assert_eq!(
            line_end(&json, MAX_JSON_LINE_BYTES),
            Some(MAX_JSON_LINE_BYTES)
        );
        json.insert(1, b'x');
        assert_eq!(
            line_end(&json, MAX_JSON_LINE_BYTES),
            Some(MAX_JSON_LINE_BYTES)
        );
    }
}
