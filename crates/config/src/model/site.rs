//! Sites and their routes: the `[[sites]]` and `[[sites.routes]]` tables.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{
    ClientCertificates, Files, Hsts, RouteCache, RouteHub, RouteMercure, Sendfile, SiteTls,
};
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::values::{HostPattern, PathPattern};

section! {
    /// One site. Without any, the only application or upstream answers every host and path, an
    /// application after the files of `public/` in its directory if there is one.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Site(routes: Vec<Route>)
    in "sites", "[[sites]]", "[[sites]]" {
        /// Hosts the site answers for.
        hosts: Vec<HostPattern> = Vec::new(), Texts(SITE_HOST),
            default "any host that no other site names",
            example r#"["example.com", "*.example.com"]"#, by hand;
        /// Where its certificates come from: `"auto"` for a certificate authority by ACME (see
        /// `[acme]`), `"local"` for the authority of this machine (see `penstock trust`), or files.
        tls: SiteTls = SiteTls::Off, OrTable(&Text(SITE_TLS), "sites.tls"), shows r#""off""#,
            example r#"{ certificate = "chain.pem", key = "key.pem" }"#, by hand;
        /// Whether clients show certificates of their own. A client that has agreed on TLS for
        /// another site gets 421.
        client_certificates: Option<ClientCertificates> = None, Table("sites.client_certificates"),
            default "no", example r#"{ ca = "clients-ca.pem" }"#, only "a site with `tls`", by hand;
        /// Whether a request without TLS is redirected to `https`, by 308.
        redirect_to_https: Option<bool> = None, Bool,
            default "`true` where a listener has TLS and the site has a certificate",
            only "a site with `tls`";
        /// For how long browsers use HTTPS alone; a duration alone is `max_age`.
        hsts: Option<Hsts> = None, OrTable(&Age, "sites.hsts"), default "no such field",
            example r#""1y""#, only "a site with `tls`", by hand;
        /// Routes, tried in order.
        routes: Vec<Route> = routes, Tables("sites.routes"), default required, by hand;
        /// Files, of at most 1MiB, that take the place of the server's own error pages, by
        /// status or by class (`4xx`, `5xx`); what an application or upstream answers is sent
        /// as it is, and so is the server's page for a request that is too broken to tell its
        /// site. They are read at start and at a reload.
        error_pages: BTreeMap<u16, PathBuf> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ 404 = "errors/404.html", 5xx = "errors/50x.html" }"#, by hand;
    }
}

section! {
    /// One route of the site above it. Routes are tried in order; files come before the app or
    /// upstream, and what no file answers falls through to it. A route with `hub` or `mercure`
    /// has none of these.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Route(path: PathPattern)
    in "sites.routes", "[[sites.routes]]", "[[sites.routes]]" {
        /// The path it is for, or every path below one when it ends in `/*`.
        path: PathPattern = path, Text(ROUTE_PATH), shows r#""/*""#, by hand;
        /// Files to look for first.
        files: Option<Files> = None, Table("sites.routes.files"), default "no files",
            example r#"{ root = "public" }"#, by hand;
        /// Application that answers what no file did.
        app: Option<String> = None, Text("the name of an [apps.NAME] table"), default "no app",
            example r#""hello""#, by hand;
        /// Upstream that answers what no file did.
        upstream: Option<String> = None, Text(UPSTREAM_NAME), default "no upstream",
            example r#""legacy""#, only "a route without `app`", by hand;
        /// Holds a stream of Server-Sent Events for each client; a text alone is `channel`.
        hub: Option<RouteHub> = None, OrTable(&Text(CHANNEL_EXPECTED), "sites.routes.hub"),
            default "no streams", example r#""news.{path.1}""#,
            only "a route without `app`, `upstream` and `files`", by hand;
        /// Answers as a Mercure hub, of this server alone also with `server.redis`; its clients
        /// look for it at the path `/.well-known/mercure`.
        mercure: Option<RouteMercure> = None, Table("sites.routes.mercure"),
            default "no Mercure hub",
            example "{ publisher_key = \"!ChangeThisMercureHubJWTSecretKey!\", anonymous = \
                true }", only "a route without `app`, `upstream`, `files` and `hub`", by hand;
        /// Whether what the application or upstream says by GRIP is obeyed on this route.
        grip: Option<bool> = None, Bool, default "as the application or upstream says",
            only ONLY_ROUTE_WITH_BACKEND;
        /// Whether its responses may name another body on this route.
        sendfile: Option<Sendfile> = None, FlagOrPaths,
            default "as the application or upstream says", example r#"["private"]"#,
            only ONLY_ROUTE_WITH_BACKEND, by hand;
        /// Whether the route is for internal redirects (`X-Accel-Redirect`) only; for a client
        /// it is not there: the next one that matches answers.
        internal: bool = false, Bool;
        /// How the path is changed.
        rewrite: Rewrite = Rewrite::default(), Table("sites.routes.rewrite"), default "no change",
            example r#"{ strip_prefix = "/api" }"#;
        /// How the request's header is changed.
        request_headers: HeaderRules = HeaderRules::default(),
            Table("sites.routes.request_headers"), default "no change",
            example r#"{ set = { X-Site = "{host}" }, remove = ["X-Debug"] }"#, by hand;
        /// How the response's header is changed.
        response_headers: HeaderRules = HeaderRules::default(),
            Table("sites.routes.response_headers"), default "no change",
            example r#"{ set = { X-Frame-Options = "DENY" } }"#, by hand;
        /// Whether request bodies are read whole before a back end hears of them.
        request_buffering: Option<bool> = None, Bool, default "the upstream's", only ONLY_PROXIED;
        /// Whether responses are taken off the back end faster than the client takes them.
        response_buffering: Option<bool> = None, Bool, default "the upstream's", only ONLY_PROXIED;
        /// Longest request body; above it the answer is 413.
        max_body_size: Option<u64> = None, Size(1), default "`limits.body_bytes`",
            example r#""2GiB""#;
        /// Caches in front of the app or upstream; a list alone is `stores`.
        cache: Option<RouteCache> = None, OrTable(&Texts(CACHE_EXPECTED), "sites.routes.cache"),
            default "no cache", example r#"["disk1"]"#, only ONLY_ROUTE_WITH_BACKEND, by hand;
    }
}

section! {
    /// How the path is changed before files, app or upstream see it: first `strip_prefix`, then
    /// `add_prefix`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Rewrite
    in "sites.routes.rewrite", "rewrite = { ... } in [[sites.routes]]", "" {
        /// Taken off the front of the path, if it is there.
        strip_prefix: Option<String> = None, Text(PATH_PREFIX), default "nothing", example r#""/api""#,
            by parse(crate::route::parse_prefix);
        /// Put in front.
        add_prefix: Option<String> = None, Text(PATH_PREFIX), default "nothing", example r#""/v2""#,
            by parse(crate::route::parse_prefix);
        /// Whether `Location`, `Content-Location`, `Refresh` and cookie paths of an upstream
        /// are put back under `strip_prefix`.
        response_paths: bool = true, Bool;
    }
}

section! {
    /// Changes of the request's header, in this order: `remove`, `set`, `add`. In values
    /// `{client}`, `{host}`, `{scheme}` and `{path}` stand for the request's. Fields of framing
    /// and of the connection are not a route's to change.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HeaderRules
    in "sites.routes.request_headers", "request_headers = { ... } in [[sites.routes]]", "" {
        /// Fields that are dropped.
        remove: Vec<String> = Vec::new(), Texts(HEADER_FIELD), example r#"["X-Debug"]"#, by hand;
        /// Fields that replace all of their name.
        set: BTreeMap<String, String> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ X-Site = "{host}" }"#, by hand;
        /// Fields that are added to those there are.
        add: BTreeMap<String, String> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ Via = "1.1 front" }"#, by hand;
    }
}

impl HeaderRules {
    /// Whether they change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
