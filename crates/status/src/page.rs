//! The files of the status page, compiled in.
//!
//! The page has no build step. It gets all its data from `/events` and sets it as text, never as markup.
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
pub(crate) const ASSETS: [Asset; 12] = [
    Asset {
        path: "/",
        content_type: "text/html; charset=utf-8",
        text: include_str!("ui/index.html"),
    },
    Asset {
        path: "/app.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("ui/app.js"),
    },
    Asset {
        path: "/views.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("ui/views.js"),
    },
    Asset {
        path: "/upstreams.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("ui/upstreams.js"),
    },
    Asset {
        path: "/caches.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("ui/caches.js"),
    },
    Asset {
        path: "/streams.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("ui/streams.js"),
    },
    Asset {
        path: "/charts.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("ui/charts.js"),
    },
    Asset {
        path: "/elements.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("ui/elements.js"),
    },
    Asset {
        path: "/history.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("ui/history.js"),
    },
    Asset {
        path: "/numbers.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("ui/numbers.js"),
    },
    Asset {
        path: "/style.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("ui/style.css"),
    },
    Asset {
        path: "/icon.svg",
        content_type: "image/svg+xml",
        text: include_str!("ui/icon.svg"),
    },
];

/// The page's Content-Security-Policy (CSP level 3).
pub(crate) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";
