//! The built-in error page: a sentence for users, and all details for a developer.
//!
//! In development it shows the cause, the fault's detail and the request. The detail has sections,
//! each below a line `== title ==`. A title that begins with `+ ` is one that can be folded, with
//! `- ` one that is; the section `Exception` is the title of the page, and `Mark` names the code that
//! served: the page reloads when other code does.
//!
//! # Invariants
//! - In production the page has the status, one fixed sentence and the request's id, and nothing
//!   else from the request, the application or the machine.
//! - Everything shown in HTML is escaped.

use std::fmt::Write as _;

use penstock_exchange::development::reload_script;
use penstock_exchange::{Fault, FaultSide, RequestId};
use penstock_http::{LogMask, Method, RequestHead, Status};

pub(super) struct BuiltinErrorPage<'a> {
    pub(super) status: Status,
    pub(super) fault: &'a Fault,
    /// The id by which the logs name the request.
    pub(super) request_id: Option<&'a RequestId>,
    /// The request, in development; without it the page has only status and sentence.
    pub(super) debug_request: Option<(&'a RequestHead, &'a LogMask)>,
}

/// A section that is shown in development.
struct PageSection<'a> {
    title: &'a str,
    fold: Fold,
    text: String,
}

/// Whether a section can be folded in HTML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fold {
    Never,
    Open,
    Closed,
}

/// What is shown in development.
#[derive(Default)]
struct DebugDetail<'a> {
    /// The exception in one line.
    exception: Option<String>,
    /// The mark of the code that served.
    mark: Option<String>,
    sections: Vec<PageSection<'a>>,
}

impl BuiltinErrorPage<'_> {
    pub(super) fn to_text(&self) -> String {
        let (code, reason) = (self.status.code(), self.status.reason());
        let explanation = self.fault.kind.explanation();
        let mut text = format!("{code} {reason}\n{explanation}\n");
        if let Some(id) = self.request_id {
            let _ = writeln!(text, "Request id: {id}");
        }
        if let Some((head, mask)) = self.debug_request {
            let detail = self.debug_detail(head, mask);
            if let Some(exception) = &detail.exception {
                let _ = write!(text, "\n{exception}\n");
            }
            let _ = write!(text, "\n{}\n", self.fault.cause);
            for part in detail.sections {
                let title = match part.title {
                    "" => String::new(),
                    title => format!("== {title} ==\n"),
                };
                let _ = write!(text, "\n{title}{}\n", part.text);
            }
        }
        text
    }

    pub(super) fn to_html(&self) -> String {
        let (code, reason) = (self.status.code(), self.status.reason());
        let status = format!("{code} {reason}");
        let detail = self
            .debug_request
            .map(|(head, mask)| self.debug_detail(head, mask));
        let exception = detail.as_ref().and_then(|it| it.exception.as_deref());
        let exception = exception.map(escape_html);
        let (title, heading, line) = match &exception {
            Some(exception) => (
                format!("{exception} ({status})"),
                exception,
                format!("{status}. {}", self.fault.kind.explanation()),
            ),
            None => (
                status.clone(),
                &status,
                self.fault.kind.explanation().to_owned(),
            ),
        };
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <h1>{heading}</h1>\n<p>{line}</p>\n"
        );
        if let Some(id) = self.request_id {
            let id = escape_html(&id.to_string());
            let _ = writeln!(page, "<p><small>Request id: <code>{id}</code></small></p>");
        }
        let Some(detail) = detail else {
            return page;
        };
        let cause = escape_html(&self.fault.cause);
        let _ = writeln!(page, "<p><strong>{cause}</strong></p>");
        for section in &detail.sections {
            section.push_html(&mut page);
        }
        // What was posted is not posted again without a question.
        let is_repeatable = self
            .debug_request
            .is_some_and(|(head, _)| head.method() == Method::Get);
        let mark = detail.mark.filter(|_| is_repeatable);
        if let Some(script) = mark.and_then(|mark| reload_script(&mark)) {
            let _ = writeln!(page, "<script>{script}</script>");
        }
        page
    }

    /// The sections of the detail, then the request, unless the client is to blame.
    fn debug_detail(&self, head: &RequestHead, mask: &LogMask) -> DebugDetail<'_> {
        let sections = self.fault.detail.as_deref().map(parse_sections);
        let mut detail = DebugDetail::default();
        for section in sections.unwrap_or_default() {
            match section.title {
                "Exception" => detail.exception = Some(section.text),
                "Mark" => detail.mark = Some(section.text),
                _ => detail.sections.push(section),
            }
        }
        if self.fault.kind.side() != FaultSide::Client {
            detail.sections.push(PageSection {
                title: "Request",
                fold: Fold::Never,
                text: request_text(head, mask),
            });
        }
        detail
    }
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:4rem auto;\
    padding:0 1rem;color:#223}h1{font-size:1.5rem;overflow-wrap:anywhere}\
    h2,summary{font-size:1.1rem;font-weight:600;margin:1rem 0 .5rem}summary{cursor:pointer}\
    pre{background:#f4f4f6;padding:1rem;overflow:auto}";

impl<'a> PageSection<'a> {
    /// An empty section; the first characters of the title may say how it is folded.
    fn from_title(title: &'a str) -> Self {
        let folds = [("+ ", Fold::Open), ("- ", Fold::Closed)];
        let marked = folds
            .into_iter()
            .find_map(|(mark, fold)| Some((title.strip_prefix(mark)?, fold)));
        let (title, fold) = marked.unwrap_or((title, Fold::Never));
        Self {
            title,
            fold,
            text: String::new(),
        }
    }

    fn push_html(&self, page: &mut String) {
        let (title, text) = (escape_html(self.title), escape_html(&self.text));
        // Writing to a String cannot fail.
        let _ = match self.fold {
            Fold::Never if title.is_empty() => writeln!(page, "<pre>{text}</pre>"),
            Fold::Never => writeln!(page, "<h2>{title}</h2>\n<pre>{text}</pre>"),
            Fold::Open => writeln!(
                page,
                "<details open><summary>{title}</summary>\n<pre>{text}</pre></details>"
            ),
            Fold::Closed => writeln!(
                page,
                "<details><summary>{title}</summary>\n<pre>{text}</pre></details>"
            ),
        };
    }
}

/// The sections of a text: each begins with a line `== title ==`; text before the first has no
/// title.
fn parse_sections(detail: &str) -> Vec<PageSection<'_>> {
    let mut parts = vec![PageSection::from_title("")];
    for line in detail.lines() {
        let title = line.strip_prefix("== ");
        match (
            title.and_then(|rest| rest.strip_suffix(" ==")),
            parts.last_mut(),
        ) {
            (None, Some(part)) => {
                part.text.push_str(line);
                part.text.push('\n');
            }
            (title, _) => parts.push(PageSection::from_title(title.unwrap_or_default())),
        }
    }
    parts.retain(|part| !part.text.trim().is_empty());
    for part in &mut parts {
        part.text.truncate(part.text.trim_end().len());
    }
    parts
}

/// The head as it was sent, without credentials by which its reader could act as the client.
fn request_text(head: &RequestHead, mask: &LogMask) -> String {
    let target = mask.apply_url_str(head.target());
    let mut text = format!("{} {target}\n", head.method_str());
    for (name, value) in head.fields() {
        match is_secret(name) || mask.masks_name(name.as_bytes()) {
            true => {
                let _ = writeln!(text, "{name}: (masked, {} bytes)", value.len());
            }
            false => {
                let value = match name.eq_ignore_ascii_case("referer") {
                    true => mask.apply_url(value),
                    false => mask.apply(value),
                };
                let _ = writeln!(text, "{name}: {}", String::from_utf8_lossy(&value));
            }
        }
    }
    text.truncate(text.trim_end().len());
    text
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let words = [
        "cookie",
        "authorization",
        "token",
        "secret",
        "password",
        "api-key",
    ];
    words.iter().any(|word| name.contains(word))
}

fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use penstock_exchange::FaultKind;

    use super::*;

    fn head() -> RequestHead {
        let raw = b"POST /pay?x=%3Cb%3E&pin=t'0k HTTP/1.1\r\nHost: h\r\nReferer: https://u:p'q8@h/\r\nCookie: id=12345\r\nAuthorization: Bearer t0k\r\n\
                    X-Api-Key: k3y\r\nX-Note: <script>alert(1)</script>\r\nContent-Length: 0\r\n\r\n";
        head_of(raw)
    }

    fn head_of(raw: &[u8]) -> RequestHead {
        let parsed = penstock_http::parse_head(raw, &penstock_http::HeadLimits::default());
        let Ok(penstock_http::ParseProgress::Complete((head, _))) = parsed else {
            panic!("the head is whole");
        };
        head
    }

    fn fault() -> Fault {
        let mut fault = Fault::new(FaultKind::AppRaised, "ValueError: <b>");
        let detail = "first\n== Traceback ==\nFile \"a.py\", <i>\n\n== Environment ==\n\n== Output ==\nlast <u> & 'x'";
        fault.detail = Some(detail.into());
        fault
    }

    fn pages(fault: &Fault, shown: Option<&RequestHead>) -> [String; 2] {
        let status = fault.kind.status();
        let mask = LogMask::new(["default", "pin"]);
        let page = BuiltinErrorPage {
            status,
            fault,
            request_id: None,
            debug_request: shown.map(|head| (head, &mask)),
        };
        [page.to_html(), page.to_text()]
    }

    #[test]
    fn production_pages_show_only_the_explanation() {
        let mut other = fault();
        (other.cause, other.detail) = ("something else".into(), None);
        for (page, same) in pages(&fault(), None).iter().zip(pages(&other, None)) {
            assert_eq!(*page, same);
            assert!(page.contains("500 Internal Server Error"), "{page}");
            assert!(page.contains("The application failed on this request."));
            for word in [
                "ValueError",
                "Traceback",
                "a.py",
                "last",
                "Request",
                "/pay",
                "Cookie",
                "Host",
            ] {
                assert!(!page.contains(word), "{word}: {page}");
            }
        }
    }

    #[test]
    fn development_has_everything_escaped_and_secrets_masked() {
        let head = head();
        let [html, plain] = pages(&fault(), Some(&head));
        for words in [
            "<strong>ValueError: &lt;b&gt;</strong>",
            "<pre>first</pre>\n<h2>Traceback</h2>\n<pre>File &quot;a.py&quot;, &lt;i&gt;</pre>\n<h2>Output</h2>",
            "last &lt;u&gt; &amp; &#39;x&#39;",
            "<h2>Request</h2>\n<pre>POST /pay?x=%3Cb%3E&amp;pin=***",
            "&lt;script&gt;alert(1)&lt;/script&gt;",
        ] {
            assert!(html.contains(words), "{words}: {html}");
        }
        assert!(!html.contains("<script>") && !html.contains("Environment"));
        for words in [
            "\nValueError: <b>\n\nfirst\n\n== Traceback ==\nFile \"a.py\", <i>\n",
            "\n== Request ==\nPOST /pay?x=%3Cb%3E&pin=***\n",
            "(masked, 8 bytes)",
            "(masked, 10 bytes)",
            "(masked, 3 bytes)",
        ] {
            assert!(plain.contains(words), "{words}: {plain}");
        }
        for secret in ["12345", "0k", "k3y", "q8"] {
            assert!(
                !html.contains(secret) && !plain.contains(secret),
                "{secret}"
            );
        }
    }

    #[test]
    fn the_exception_is_the_title_and_frames_are_folded() {
        let mut fault = fault();
        let detail = "== Exception ==\nLookupError: no <i>\n== Mark ==\n7\n== + a.py, line 1 ==\nx\n\
                      == - 2 frames of libraries ==\ny";
        fault.detail = Some(detail.into());
        let get = head_of(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let [html, plain] = pages(&fault, Some(&get));
        for words in [
            "<title>LookupError: no &lt;i&gt; (500 Internal Server Error)</title>",
            "<h1>LookupError: no &lt;i&gt;</h1>\n<p>500 Internal Server Error. The application",
            "<details open><summary>a.py, line 1</summary>\n<pre>x</pre></details>",
            "<details><summary>2 frames of libraries</summary>\n<pre>y</pre></details>",
            "s.mark!==\"7\"?location.reload()",
        ] {
            assert!(html.contains(words), "{words}: {html}");
        }
        let frames = "\nLookupError: no <i>\n\nValueError: <b>\n\n== a.py, line 1 ==\nx\n";
        assert!(plain.contains(frames), "{plain}");
        let [posted, _] = pages(&fault, Some(&head()));
        assert!(!posted.contains("<script>"), "a form is not sent twice");
    }

    #[test]
    fn client_errors_do_not_show_the_request() {
        let [html, plain] = pages(
            &Fault::new(FaultKind::NotFound, "no such file"),
            Some(&head()),
        );
        assert!(html.contains("no such file") && !html.contains("/pay"));
        assert!(plain.ends_with("\nno such file\n"), "{plain}");
    }
}
