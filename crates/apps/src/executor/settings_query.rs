//! Asks an application's own interpreter a question, in a process that ends at once.
//!
//! `penstock` asks so for Django's settings, which only Python can read. The process has the
//! environment and the isolation of a worker, and gets no socket.
//!
//! # Invariants
//! - The process and its group have ended when [`ask_interpreter`] returns, whatever the code does.
//! - It waits no longer than `timeout`, and keeps one line of bounded length.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use penstock_config as config;
use penstock_runtime::{clock, loops, process as watch_process};
use penstock_sys::process;

use super::access;
use super::process_task::OutputTail;
use super::workers::{error_context, process_environment, process_sandbox};

/// Bytes of an answer, at most: a few paths and URLs. Longer lines arrive in pieces of twice that.
const MAX_ANSWER_BYTES: usize = 8 << 10;

/// Runs `script` as `python -c` does, in the folder of the application. Returns what follows
/// `marker` in the last line that begins with it.
///
/// # Errors
/// A sentence, with the last lines that the process wrote.
pub async fn ask_interpreter(
    config: &config::App,
    (script, marker): (&str, &'static str),
    arguments: &[&str],
    timeout: Duration,
) -> Result<String, String> {
    let found = access::find_program_files(config)?;
    let words = ["-c", script].into_iter().chain(arguments.iter().copied());
    let mut spec = process::ProcessSpec {
        program: Default::default(),
        args: words.map(Into::into).collect(),
        dir: config.dir.clone(),
        env: process_environment(config, None),
        account: None,
        group: None,
        inherited_fds: Vec::new(),
        placed_fds: Vec::new(),
        sandbox: process_sandbox(config),
        access: access::access_rules(config),
        app: config.name.clone(),
    };
    found.add_to_rules(&mut spec.access);
    spec.program = found.program.into();
    let mut started =
        process::spawn_process(&spec).map_err(error_context("python cannot be started"))?;
    let (answer, tail) = (Answer::default(), OutputTail::default());
    for pipe in [started.stdout.try_clone(), started.stderr.try_clone()] {
        let pipe = pipe.map_err(error_context("output"))?;
        let (answer, tail) = (answer.clone(), tail.clone());
        loops::spawn_here(async move {
            let take_line = |line: &str| match line.strip_prefix(marker) {
                Some(text) => answer.keep(text),
                None => tail.push_line(line),
            };
            watch_process::read_output(pipe, take_line, |_| {}).await;
            drop(answer);
        });
    }
    let ended = clock::timeout(timeout, watch_process::wait_for_exit(&started.exit_fd)).await;
    let _ = started.handle().kill_group();
    watch_process::wait_for_exit(&started.exit_fd).await;
    let exit = started.try_exit().ok().flatten();
    // What was written before the end may not have been read yet.
    let _ = clock::timeout(READ_TIMEOUT, answer.wait_for_readers()).await;
    if let Some(text) = answer.take() {
        return Ok(text);
    }
    let problem = match (ended, exit) {
        (None, _) => format!("no answer within {} s", timeout.as_secs()),
        (Some(()), Some(exit)) => format!("python ended without an answer ({exit})"),
        (Some(()), None) => "python ended without an answer".to_owned(),
    };
    Err(match tail.joined_lines() {
        lines if lines.is_empty() => problem,
        lines => format!("{problem}\n{lines}"),
    })
}

/// How long the pipes of an ended process may take to be read to their end: a process that it left
/// behind may keep them open.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// How often to look whether the pipes have been read.
const READ_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The line that was waited for, shared with the readers of the pipes.
#[derive(Debug, Clone, Default)]
struct Answer(Arc<Mutex<Option<String>>>);

impl Answer {
    fn keep(&self, text: &str) {
        if text.len() <= MAX_ANSWER_BYTES {
            *self.0.lock() = Some(text.to_owned());
        }
    }

    fn take(&self) -> Option<String> {
        self.0.lock().take()
    }

    /// Waits until no reader is left.
    async fn wait_for_readers(&self) {
        while Arc::strong_count(&self.0) > 1 {
            clock::sleep(READ_POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use penstock_config::{App, AppKind};
    use penstock_runtime::loops::block_on;

    use super::*;

    fn ask(script: &str, timeout: Duration) -> Result<String, String> {
        let app = App::new("app", std::env::temp_dir(), AppKind::Wsgi, "app");
        let question = ask_interpreter(&app, (script, "answer: "), &["an argument"], timeout);
        block_on(question).unwrap()
    }

    #[test]
    fn the_last_line_with_the_marker_is_the_answer() {
        let script = "import sys\nprint('noise', 'x' * 100000)\nprint('answer: old')\n\
                      print('answer: ' + sys.argv[1])\nsys.exit(3)\n";
        let answer = ask(script, Duration::from_secs(20));
        assert_eq!(answer.as_deref(), Ok("an argument"));
    }

    #[test]
    fn a_process_that_does_not_answer_ends_and_says_why() {
        let fails = "raise OSError('no key')\n";
        let hangs = "import os\nos.fork()\nprint('it waits', flush=True)\n\
                     import signal\nsignal.pause()\n";
        let long = "print('answer: ' + 'x' * 20000)\n";
        for (script, timeout, words) in [
            (
                fails,
                Duration::from_secs(20),
                ["without an answer", "OSError: no key"],
            ),
            (
                hangs,
                Duration::from_secs(1),
                ["no answer within 1 s", "it waits"],
            ),
            (long, Duration::from_secs(20), ["without an answer", ""]),
        ] {
            let begun = Instant::now();
            let error = ask(script, timeout).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{error}");
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
        }
    }
}
