//! `penstock top`: a live view of a running server in the terminal.
//!
//! Once a second this reads the status as JSON; `frame` makes lines of it, `terminal` shows them.
//!
//! # Invariants
//! - The terminal is as before when the command ends, also by a signal or an error.
//! - Text of the server is shown without control characters.

mod frame;
mod terminal;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use penstock_runtime::start_tokio;
use serde_json::Value;

use self::frame::{Frame, Size};
use self::terminal::{Input, Terminal};
use super::ServerLocation;
use super::target::{self, AdminTarget};

/// The time from one frame to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long the server may take to answer: keys work between two questions.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Of a frame that goes to a file or a pipe.
const PIPE_SIZE: Size = Size {
    columns: 120,
    rows: usize::MAX,
};

/// A status and when it was read.
struct Sample {
    status: Value,
    at: Instant,
}

/// Shows frames until `q`, or prints one.
pub(super) fn run(to: &ServerLocation, is_once: bool) -> Result<String, String> {
    let target = target::locate_read_target(to)?;
    let runtime = start_tokio().map_err(|error| error.to_string())?;
    if is_once {
        return runtime.block_on(print_once(&target));
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err("this is no terminal: use --once to print one frame".to_owned());
    }
    // The first answer comes before the screen is changed, so that an error is a line.
    let first = read_sample(&target)?;
    runtime.block_on(show_frames(&target, first))?;
    Ok(String::new())
}

/// One frame with the rates of a second.
async fn print_once(target: &AdminTarget) -> Result<String, String> {
    let first = read_sample(target)?;
    tokio::time::sleep(INTERVAL).await;
    let second = read_sample(target)?;
    Ok(make_frame(&second, Some(&first), PIPE_SIZE).into_text())
}

async fn show_frames(target: &AdminTarget, first: Sample) -> Result<(), String> {
    let mut terminal = Terminal::open().map_err(|error| format!("the terminal: {error}"))?;
    let mut samples = (None, first);
    let mut problem: Option<String> = None;
    loop {
        let mut frame = make_frame(&samples.1, samples.0.as_ref(), terminal.size());
        if let Some(problem) = &problem {
            frame.set_problem(problem);
        }
        let shown = terminal.show(&frame).map_err(|error| error.to_string());
        match shown {
            Ok(()) => {}
            Err(error) => return Err(format!("the terminal: {error}")),
        }
        match terminal.wait(INTERVAL).await {
            Input::Quit => return Ok(()),
            Input::Resized => continue,
            Input::Elapsed => {}
        }
        match read_sample(target) {
            Ok(sample) => {
                problem = None;
                // Another process has its own counters.
                let is_same = sample.status["pid"] == samples.1.status["pid"];
                let before = std::mem::replace(&mut samples.1, sample);
                samples.0 = is_same.then_some(before);
            }
            Err(error) => problem = Some(error),
        }
    }
}

fn read_sample(target: &AdminTarget) -> Result<Sample, String> {
    let answer = target.send("GET", "/status.json", "", STATUS_TIMEOUT)?;
    let status = serde_json::from_str(&answer);
    Ok(Sample {
        status: status.map_err(|error| format!("unreadable status: {error}"))?,
        at: Instant::now(),
    })
}

fn make_frame(now: &Sample, before: Option<&Sample>, size: Size) -> Frame {
    let before = before.map(|before| {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        (&before.status, seconds)
    });
    Frame::new(&now.status, before, size)
}

/// Writes all of a text to standard output.
fn write_all(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
