//! Adds explanations to an application's faults in development: the traceback, the source around
//! it, the process's output, and its environment.
//!
//! `wiring` wraps an application's handler in it, in development only; `edge` renders the page.
//!
//! # Invariants
//!
//! - A response that is no internal error passes unchanged and at once.
//! - Secrets of the environment are not shown.
//! - Reading files has a deadline.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use penstock_apps::App;
use penstock_exchange::{
    Fault, FaultKind, Handler, HandlerProgress, InlineResponse, Request, RequestView,
};
use penstock_runtime::blocking::Pool;
use penstock_runtime::clock;

use super::traceback_frames::{self, TracebackFrame};

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
        let since = app.output_line_count();
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
                    other => other,
                }
            })),
            now @ HandlerProgress::Ready(_) => now,
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
    if let Some(traceback) = &traceback {
        push_section(&mut detail, "Traceback", traceback.trim_end());
        for (title, source) in source_excerpts(traceback, app, pool).await {
            push_section(&mut detail, &title, &source);
        }
    }
    let shown = &output[output.len().saturating_sub(MAX_OUTPUT_LINES)..];
    if !shown.is_empty() {
        push_section(&mut detail, "Output", &shown.join("\n"));
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

/// The source around each of the application's own frames, with a title.
async fn source_excerpts(traceback: &str, app: &App, pool: &Pool) -> Vec<(String, String)> {
    let dir = app.config().dir.clone();
    let frames = traceback_frames::find_frames(traceback, &dir);
    let read = pool.run(move || {
        let shown = |frame: &TracebackFrame| {
            Some((frame.describe_location(&dir), frame.source_excerpt(&dir)?))
        };
        frames.iter().filter_map(shown).collect::<Vec<_>>()
    });
    let read = clock::timeout(SOURCE_READ_TIMEOUT, read).await;
    read.and_then(Result::ok).unwrap_or_default()
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

/// The value, or a mask if the variable may be a secret or contain a password. Masks too much
/// rather than too little: a password may contain any character, including those that end it in a
/// well-formed URL.
fn mask_value(name: &str, value: &str) -> String {
    let name = name.to_ascii_uppercase();
    let is_folder = name == "PWD" || name == "OLDPWD";
    if !is_folder && SECRET_NAME_PARTS.iter().any(|word| name.contains(word)) {
        return MASK.to_owned();
    }
    // `password=x`, `"token": x`, and the like: a longer name or the value follows.
    let inside = value.to_ascii_uppercase();
    let is_told = |word: &str| {
        inside.match_indices(word).any(|(at, _)| {
            let behind = inside[at..].trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
            behind
                .trim_start_matches(['"', '\'', ' '])
                .starts_with(['=', ':'])
        })
    };
    if SECRET_NAME_PARTS.iter().any(|word| is_told(word)) {
        return MASK.to_owned();
    }
    let Some((scheme, rest)) = value.split_once("://") else {
        return value.to_owned();
    };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{MASK}@{host}"),
        None => value.to_owned(),
    }
}

const MASK: &str = "(masked)";

/// Parts of names of variables with secret values.
const SECRET_NAME_PARTS: [&str; 12] = [
    "SECRET",
    "KEY",
    "TOKEN",
    "PASS",
    "PWD",
    "AUTH",
    "DSN",
    "SALT",
    "CREDENTIAL",
    "GRIP_URL",
    "PUBLISH_URL",
    "PRIVATE",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn secrets_are_masked() {
        let rows = [
            ("GREETING", "hello", "hello"),
            ("SECRET_KEY_BASE", "abc", "(masked)"),
            ("aws_access_key_id", "abc", "(masked)"),
            ("API_TOKEN", "abc", "(masked)"),
            ("DB_PASSWORD", "abc", "(masked)"),
            (
                "DATABASE_URL",
                "postgres://u:p@h/db?x=1",
                "postgres://(masked)@h/db?x=1",
            ),
            (
                "REDIS_URLS",
                "redis://:a/b@h1,redis://:c@h2/1",
                "redis://(masked)@h2/1",
            ),
            ("SITE", "https://example.com/a", "https://example.com/a"),
            ("SMTP_PASS", "abc", "(masked)"),
            ("MYSQL_PWD", "abc", "(masked)"),
            ("PWD", "/srv", "/srv"),
            ("BASIC_AUTH", "u:p", "(masked)"),
            ("SENTRY_DSN", "https://abc@h/1", "(masked)"),
            ("SALT", "abc", "(masked)"),
            ("GOOGLE_CREDENTIALS", "abc", "(masked)"),
            ("PG", "host=h password=abc user=u", "(masked)"),
            ("PG_URI", "postgres://h/db?password=abc", "(masked)"),
            ("JSON", "{\"api_key\": \"abc\"}", "(masked)"),
            ("ODBC", "Server=h;Pwd=abc", "(masked)"),
            ("HINT", "a passing key", "a passing key"),
        ];
        for (name, value, expected) in rows {
            assert_eq!(mask_value(name, value), expected, "{name}");
        }
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
