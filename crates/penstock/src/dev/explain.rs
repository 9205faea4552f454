//! Adds explanations to an application's faults in development: the exception, the frames of the
//! traceback with their source, the process's output, and its environment.
//!
//! `wiring` wraps an application's handler in it, in development only; `edge` renders the page. It
//! also answers pages that ask whether newer code serves, and puts a bar on pages of old code.
//!
//! # Invariants
//!
//! - A response that is no internal error passes at once, and unchanged but for the bar.
//! - Secrets in the environment, in source and in output are not shown.
//! - Reading files has a deadline.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_apps::App;
use penstock_exchange::development::{is_state_request, state_response, with_stale_bar};
use penstock_exchange::{
    Fault, FaultKind, Handler, HandlerProgress, InlineResponse, Request, RequestView,
};
use penstock_runtime::blocking::Pool;
use penstock_runtime::clock;

use super::code_state::code_state;
use super::secrets::{mask_text, mask_value};
use super::traceback_frames::{TracebackPart, split_traceback};

/// How long a worker's output may take after its response, which arrives on another socket.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);

/// How often to check for the output.
const OUTPUT_POLL_INTERVAL: Duration = Duration::from_millis(10);

const SOURCE_READ_TIMEOUT: Duration = Duration::from_secs(1);

const MAX_OUTPUT_LINES: usize = 40;

pub(crate) fn with_explanations(
    handler: Arc<dyn Handler>,
    app: &Arc<App>,
    pool: Pool,
) -> Arc<dyn Handler> {
    let app = Arc::clone(app);
    Arc::new(ExplainingHandler { handler, app, pool })
}

#[derive(Debug)]
struct ExplainingHandler {
    handler: Arc<dyn Handler>,
    app: Arc<App>,
    pool: Pool,
}

impl Handler for ExplainingHandler {
    fn handle(&self, request: Request) -> HandlerProgress {
        let (app, pool) = (Arc::clone(&self.app), self.pool.clone());
        if is_state_request(&request) {
            let state = code_state(&app.snapshot());
            return HandlerProgress::Ready(Ok(state_response(&state).into()));
        }
        let (head, since) = (Arc::clone(&request.head), app.output_line_count());
        match self.handler.handle(request) {
            HandlerProgress::Ready(Err(fault)) if is_app_fault(fault.kind) => {
                HandlerProgress::Pending(Box::pin(async move {
                    Err(explain(fault, since, &app, &pool).await)
                }))
            }
            HandlerProgress::Pending(work) => HandlerProgress::Pending(Box::pin(async move {
                match work.await {
                    Err(fault) if is_app_fault(fault.kind) => {
                        Err(explain(fault, since, &app, &pool).await)
                    }
                    other => with_stale_bar(other, &head, || code_state(&app.snapshot())),
                }
            })),
            HandlerProgress::Ready(made) => {
                let made = with_stale_bar(made, &head, || code_state(&app.snapshot()));
                HandlerProgress::Ready(made)
            }
        }
    }

    fn try_inline(&self, request: &RequestView<'_>, take: &mut dyn FnMut(InlineResponse<'_>)) {
        self.handler.try_inline(request, take);
    }
}

/// Whether the application's output may explain the fault.
fn is_app_fault(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::Unavailable
            | FaultKind::AppRaised
            | FaultKind::AppProtocolError
            | FaultKind::WorkerDied
            | FaultKind::AppTimeout
            | FaultKind::ConnectFailed
            | FaultKind::BackendDisconnected
            | FaultKind::BackendProtocolError
            | FaultKind::BackendTimeout
    )
}

/// Explains a fault; `since` counts the output lines before the request.
async fn explain(mut fault: Fault, since: u64, app: &App, pool: &Pool) -> Fault {
    let pid = Some(fault.timing.worker_pid).filter(|pid| *pid != 0);
    let traceback = match &fault.detail {
        Some(report) => Some(report.to_string()),
        None => wait_for_traceback(pid, since, app).await,
    };
    let output = app.output(pid, 0);
    let mut detail = String::new();
    push_section(&mut detail, "Mark", &code_state(&app.snapshot()).mark);
    if let Some(traceback) = &traceback {
        let exception = mask_text(penstock_apps::failure_line(traceback));
        push_section(&mut detail, "Exception", &exception);
        for (title, text) in frame_sections(traceback, app, pool).await {
            push_section(&mut detail, &title, &text);
        }
        let whole = mask_text(traceback.trim_end());
        push_section(&mut detail, "- Traceback", &whole);
    }
    let shown = &output[output.len().saturating_sub(MAX_OUTPUT_LINES)..];
    if !shown.is_empty() {
        push_section(&mut detail, "Output", &mask_text(&shown.join("\n")));
    }
    push_section(&mut detail, "Environment", &describe_environment(app));
    fault.detail = Some(detail.into());
    fault
}

fn push_section(detail: &mut String, title: &str, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(detail, "== {title} ==\n{text}");
}

/// Waits for the traceback in a process's output until it is complete or the deadline passes.
async fn wait_for_traceback(pid: Option<u32>, since: u64, app: &App) -> Option<String> {
    let deadline = clock::now() + OUTPUT_TIMEOUT;
    let mut found = None;
    loop {
        clock::sleep(OUTPUT_POLL_INTERVAL).await;
        let now = last_traceback(&app.output(pid, since));
        if now.is_some() && now == found || clock::now() >= deadline {
            return now;
        }
        found = now;
    }
}

/// The last Python or Ruby traceback in a process's output.
fn last_traceback(lines: &[String]) -> Option<String> {
    let is_python = |line: &String| line.starts_with("Traceback (most recent call last)");
    let begin = lines.iter().rposition(is_python);
    let begin = begin.or_else(|| {
        // Ruby begins with the line of the failure and continues with lines of `from`.
        let first = lines
            .iter()
            .rposition(|line| line.trim_start().starts_with("from "))?;
        let before = lines[..first].iter();
        before
            .into_iter()
            .rposition(|line| !line.trim_start().starts_with("from "))
    });
    begin.map(|begin| lines[begin..].join("\n"))
}

/// The frames of a traceback with their titles: own ones open with the source around them, those of
/// libraries folded.
async fn frame_sections(traceback: &str, app: &App, pool: &Pool) -> Vec<(String, String)> {
    let dir = app.config().dir.clone();
    let parts = split_traceback(traceback, &dir);
    let read = pool.run(move || {
        parts
            .iter()
            .filter_map(|part| section_of(part, &dir))
            .collect()
    });
    let read = clock::timeout(SOURCE_READ_TIMEOUT, read).await;
    read.and_then(Result::ok).unwrap_or_default()
}

/// The section of a part; none for messages, which the whole traceback has. *Blocking*.
fn section_of(part: &TracebackPart, dir: &Path) -> Option<(String, String)> {
    match part {
        TracebackPart::Own { frame, text } => {
            let title = format!("+ {}", frame.describe_location(dir));
            let source = frame.source_excerpt(dir);
            Some((title, source.unwrap_or_else(|| mask_text(text))))
        }
        TracebackPart::Others { frames, text } => {
            let plural = if *frames == 1 { "" } else { "s" };
            Some((format!("- {frames} other frame{plural}"), mask_text(text)))
        }
        TracebackPart::Message(_) => None,
    }
}

/// How the application is run, and the variables that its configuration adds.
fn describe_environment(app: &App) -> String {
    let config = app.config();
    let mut text = format!(
        "directory: {}\nkind: {}\n",
        config.dir.display(),
        app.kind()
    );
    if config.command.is_empty() {
        let _ = writeln!(text, "entry: {}", config.entry);
    } else {
        let words = config.command.iter().map(|word| mask_value("", word));
        let command = words.collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "command: {command}");
    }
    let processes = config.processes;
    let threads = match config.has_spare_threads() {
        true => format!("{} to {}", config.min_threads, config.threads),
        false => config.threads.to_string(),
    };
    let _ = writeln!(
        text,
        "processes: {} to {}, threads: {threads}",
        processes.min, processes.max
    );
    for (name, value) in config.env.iter() {
        let _ = writeln!(text, "{name}={}", mask_value(name, value));
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn finds_the_last_traceback() {
        let python = "boot\nTraceback (most recent call last):\n  old\nValueError: 1\nhello\nTraceback (most recent call last):\n  File x\nKeyError: 2";
        let found = last_traceback(&lines(python)).unwrap();
        assert_eq!(
            found,
            "Traceback (most recent call last):\n  File x\nKeyError: 2"
        );
        let ruby =
            "hello\na.rb:1:in 'x': no (RuntimeError)\n\tfrom a.rb:2:in 'y'\n\tfrom a.rb:3:in 'z'";
        let found = last_traceback(&lines(ruby)).unwrap();
        assert!(
            found.starts_with("a.rb:1:in 'x'") && found.ends_with("'z'"),
            "{found}"
        );
        assert_eq!(last_traceback(&lines("hello\nworld")), None);
        assert_eq!(last_traceback(&lines("\tfrom a")), None);
    }
}
