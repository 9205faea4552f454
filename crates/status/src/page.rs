//! The files of the status page, compiled in.
//!
//! The page has no build step. It gets all its data from `/events` and `/history.json` and sets it as text, never
//! as markup.
//!
//! # Invariants
//! - The page loads nothing from other servers; [`CONTENT_SECURITY_POLICY`] enforces it.

/// One file of the page.
#[derive(Debug)]
pub(crate) struct Asset {
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) text: &'static str,
}

/// All files of the page.
pub(crate) const ASSETS: [Asset; 17] = [
    asset(
        "/",
        "text/html; charset=utf-8",
        include_str!("ui/index.html"),
    ),
    asset("/app.js", SCRIPT, include_str!("ui/app.js")),
    asset("/views.js", SCRIPT, include_str!("ui/views.js")),
    asset("/upstreams.js", SCRIPT, include_str!("ui/upstreams.js")),
    asset("/caches.js", SCRIPT, include_str!("ui/caches.js")),
    asset(
        "/certificates.js",
        SCRIPT,
        include_str!("ui/certificates.js"),
    ),
    asset("/problems.js", SCRIPT, include_str!("ui/problems.js")),
    asset("/jobs.js", SCRIPT, include_str!("ui/jobs.js")),
    asset("/rules.js", SCRIPT, include_str!("ui/rules.js")),
    asset("/streams.js", SCRIPT, include_str!("ui/streams.js")),
    asset("/charts.js", SCRIPT, include_str!("ui/charts.js")),
    asset("/elements.js", SCRIPT, include_str!("ui/elements.js")),
    asset("/history.js", SCRIPT, include_str!("ui/history.js")),
    asset("/numbers.js", SCRIPT, include_str!("ui/numbers.js")),
    asset(
        "/style.css",
        "text/css; charset=utf-8",
        include_str!("ui/style.css"),
    ),
    asset("/icon.svg", "image/svg+xml", include_str!("ui/icon.svg")),
    asset(
        "/icon-error.svg",
        "image/svg+xml",
        include_str!("ui/icon-error.svg"),
    ),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

const fn asset(path: &'static str, content_type: &'static str, text: &'static str) -> Asset {
    Asset {
        path,
        content_type,
        text,
    }
}

/// The page's Content-Security-Policy (CSP level 3).
pub(crate) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";
