//! Sites and their routes: the `[[sites]]` and `[[sites.routes]]` tables.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use super::{
    ClientCertificates, Compression, ConcurrencyRule, Conditions, ContentCoding, Files, Hsts,
    JwtAuth, Mirror, ResponseRate, RouteCache, RouteHub, RouteMercure, Satisfy, Sendfile,
    SignedUrl, SiteTls, SplitBy, SplitCookie, SplitPart,
};
use crate::forward_auth::ServiceUrl;
use crate::options::OptionDefault;
use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::rate_limit::{RateKey, RequestRate};
use crate::redacted::Secret;
use crate::values::{HostPattern, PathPattern, PathRegex, Template, ValuePattern};

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
        /// The one host that the site is to have: requests for its other hosts are redirected to
        /// it, by 308.
        canonical_host: Option<String> = None, Text(CANONICAL_HOST), default "none",
            example r#""example.com""#, only "a site with `hosts`",
            by parse(crate::site::parse_canonical_host);
        /// Whether responses are compressed, where the route does not say it.
        compress: Option<Compression> = None,
            OrTable(&FlagOrChoices(ContentCoding::WORDS), "compress"), default "the server's",
            example "true", by hand;
        /// The `[access_logs.NAME]` that have its requests; `[]` for none. A log that a site names
        /// has no requests of sites without this key.
        access_logs: Option<Vec<String>> = None, Texts("the name of an [access_logs.NAME] table"),
            default "`server.access_log` and each of `[access_logs.NAME]` that no site names",
            example r#"["shop"]"#, by hand;
        /// Routes, tried in order.
        routes: Vec<Route> = routes, Tables("sites.routes"), default required, by hand;
        /// Files, of at most 1MiB, that take the place of the server's own error pages, by
        /// status or by class (`4xx`, `5xx`); with `intercept_errors` also of those of
        /// applications and upstreams. The server's page for a request that is too broken to tell
        /// its site stays. They are read at start and at a reload.
        error_pages: BTreeMap<u16, PathBuf> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ 404 = "errors/404.html", 5xx = "errors/50x.html" }"#, by hand;
        /// Whether errors of applications and upstreams get these pages in place of their own
        /// bodies: all that have one, or those of the list.
        intercept_errors: BTreeSet<u16> = BTreeSet::new(),
            FlagOrTexts(crate::error_pages::INTERCEPTED_EXPECTED), shows "false",
            example r#"["404", "5xx"]"#, only "a site with `error_pages`", by hand;
        /// Whether every response gets the fields that tell browsers to be careful, where it does
        /// not have them itself.
        security_headers: SecurityHeaders = SecurityHeaders::off(),
            OrTable(&Bool, "sites.security_headers"), shows "false", example "true", by hand;
    }
}

section! {
    /// Fields that responses of every kind get which do not have them. `"off"` leaves one out.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SecurityHeaders
    in "sites.security_headers", "security_headers = { ... } in [[sites]] and [[sites.routes]]", "" {
        /// Whether `X-Content-Type-Options: nosniff` is sent: browsers believe the media type.
        content_type_options: bool = true, Bool;
        /// `Referrer-Policy`: how much of its address a page tells others.
        referrer_policy: String = "strict-origin-when-cross-origin".to_owned(), Text(POLICY),
            by check(crate::security_headers::is_policy);
        /// `X-Frame-Options`: which pages may show this one in a frame. It is left out where the
        /// response has `frame-ancestors` in a `Content-Security-Policy`.
        frame_options: String = "SAMEORIGIN".to_owned(),
            Text("\"SAMEORIGIN\", \"DENY\" or \"off\""), example r#""DENY""#,
            by check(crate::security_headers::is_frame_option);
        /// `Cross-Origin-Opener-Policy`: which pages reach the window of this one.
        opener_policy: String = "same-origin-allow-popups".to_owned(), Text(POLICY),
            example r#""same-origin""#, by check(crate::security_headers::is_policy);
        /// `Permissions-Policy`: what a page may use of the device.
        permissions_policy: String = "off".to_owned(), Text(POLICY),
            example r#""camera=(), geolocation=(), microphone=()""#,
            by check(crate::security_headers::is_policy);
        /// `Content-Security-Policy`: where a page may load from.
        content_security_policy: String = "off".to_owned(), Text(POLICY),
            example r#""frame-ancestors 'self'""#, by check(crate::security_headers::is_policy);
    }
}

const POLICY: &str = "the value of the field, or \"off\"";

impl SecurityHeaders {
    /// None of the fields.
    #[must_use]
    pub fn off() -> Self {
        let off = || "off".to_owned();
        Self {
            content_type_options: false,
            referrer_policy: off(),
            frame_options: off(),
            opener_policy: off(),
            permissions_policy: off(),
            content_security_policy: off(),
        }
    }

    /// The fields that are sent.
    #[must_use]
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        let nosniff = if self.content_type_options {
            "nosniff"
        } else {
            "off"
        };
        let all = [
            ("X-Content-Type-Options", nosniff),
            ("Referrer-Policy", &self.referrer_policy),
            ("X-Frame-Options", &self.frame_options),
            ("Cross-Origin-Opener-Policy", &self.opener_policy),
            ("Permissions-Policy", &self.permissions_policy),
            ("Content-Security-Policy", &self.content_security_policy),
        ];
        let sent = all.into_iter().filter(|(_, value)| *value != "off");
        sent.map(|(name, value)| (name, value.to_owned())).collect()
    }
}

section! {
    /// One route of the site above it. Routes are tried in order; files come before the app or
    /// upstream, and what no file answers falls through to it. A route with `hub` or `mercure`
    /// has none of these.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Route(path: PathPattern)
    in "sites.routes", "[[sites.routes]]", "[[sites.routes]]" {
        /// The path it is for: one path, every path below one (`/assets/*`), every path with an
        /// ending (`*.php`), or a regular expression.
        path: PathPattern = path, OrTable(&Text(ROUTE_PATH), "sites.routes.path"),
            shows r#""/*""#, by hand;
        /// What else its requests must be: a table of conditions, or a list of the names of
        /// `[conditions.NAME]` tables.
        "match" => conditions: Conditions = Conditions::default(),
            OrTable(&Texts(CONDITION_NAME), "sites.routes.match"), default "every request",
            example r#"{ method = ["GET"], header = { X-Beta = "1" } }"#, by hand;
        /// Clients that may ask; others get 403. Clients are those that trusted proxies name.
        allow: Vec<String> = Vec::new(), Texts(TRUSTED_NETWORK), default "all",
            example r#"["10.0.0.0/8"]"#, by items(crate::address::is_network_or_unix);
        /// Clients that get 403, also if `allow` has them.
        deny: Vec<String> = Vec::new(), Texts(TRUSTED_NETWORK), default "none",
            example r#"["192.0.2.0/24"]"#, by items(crate::address::is_network_or_unix);
        /// Whether all rules about who may use the route must admit a request (`allow`,
        /// `client_certificate`, `signed_url`, `jwt`, `basic_auth`, `forward_auth`), or one of them. `deny` refuses in
        /// both cases.
        satisfy: Satisfy = Satisfy::All, Choice(Satisfy::WORDS), example r#""any""#,
            only "a route with two or more of `allow`, `client_certificate`, `signed_url`, `jwt`, \
                `basic_auth` and `forward_auth`";
        /// Whether clients must have shown a certificate that their site accepts; others get 403.
        client_certificate: bool = false, Bool;
        /// Users with passwords, who alone may ask (RFC 7617). Applications get the user's name as
        /// `REMOTE_USER`. A path alone is the file of the users.
        basic_auth: Option<BasicAuth> = None, OrTable(&Path, "sites.routes.basic_auth"),
            default "anyone", example r#"{ realm = "Admin", users = { file = "htpasswd" } }"#,
            by hand;
        /// Tokens of an identity provider that clients must have (JWT, RFC 7519). Applications get
        /// the user's name as `REMOTE_USER`. A text alone is `jwks`.
        jwt: Option<JwtAuth> = None,
            OrTable(&Text(crate::hub::KEY_SET_EXPECTED), "sites.routes.jwt"), default "none",
            example r#"{ jwks = "https://id.example/keys", audience = "shop" }"#, by hand;
        /// Links that are good until a time, signed by the application. A text alone is `secret`.
        signed_url: Option<SignedUrl> = None,
            OrTable(&Text(SHARED_SECRET), "sites.routes.signed_url"), default "none",
            example r#"{ secret = { file = "link-secret" } }"#, by hand;
        /// A service that decides about each request, such as oauth2-proxy or Authelia; a URL alone
        /// is `url`.
        forward_auth: Option<ForwardAuth> = None,
            OrTable(&Text(SERVICE_URL), "sites.routes.forward_auth"), default "none",
            example r#"{ url = "http://127.0.0.1:4180/oauth2/auth", copy_headers = ["X-User"] }"#,
            by hand;
        /// How often its requests may come; others get 429. A text alone is `rate`.
        rate_limit: Option<RateLimitRule> = None,
            OrTable(&Text(REQUEST_RATE), "sites.routes.rate_limit"), default "no limit",
            example r#"{ rate = "10/s", burst = 20 }"#, by hand;
        /// How many of its requests may be in progress for each client; others get 429. A number
        /// alone is `max`.
        max_concurrent: Option<ConcurrencyRule> = None,
            OrTable(&Number(1, 1_000_000), "sites.routes.max_concurrent"), default "no bound",
            example "10", by hand;
        /// How fast each of its responses is sent, at most. A text alone is `rate`.
        response_rate: Option<ResponseRate> = None,
            OrTable(&Rate, "sites.routes.response_rate"), default "as fast as the client reads",
            example r#""1MiB/s""#, by hand;
        /// Pages of other sites that may use the route (CORS); a list alone is `origins`.
        cors: Option<Cors> = None, OrTable(&Texts(CORS_ORIGIN), "sites.routes.cors"),
            default "none", example r#"["https://app.example"]"#, by hand;
        /// Redirects its requests; a text alone is `to`.
        redirect: Option<Redirect> = None, OrTable(&Text(REDIRECT_TARGET), "sites.routes.redirect"),
            default "no redirect", example r#""https://new.example{uri}""#,
            only "a route without a handler", by hand;
        /// Answers its requests by itself.
        respond: Option<Respond> = None, Table("sites.routes.respond"), default "no such answer",
            example "{ status = 204 }", only "a route without a handler", by hand;
        /// Files to look for first.
        files: Option<Files> = None, Table("sites.routes.files"), default "no files",
            example r#"{ root = "public" }"#, by hand;
        /// Application that answers what no file did.
        app: Option<String> = None, Text("the name of an [apps.NAME] table"), default "no app",
            example r#""hello""#, by hand;
        /// Upstream that answers what no file did.
        upstream: Option<String> = None, Text(UPSTREAM_NAME), default "no upstream",
            example r#""legacy""#, only "a route without `app`", by hand;
        /// Several back ends, each with a part of the requests: two versions of an application.
        split: Vec<SplitPart> = Vec::new(), Tables("sites.routes.split"), default "one back end",
            example r#"[{ app = "hello", weight = 95 }, { upstream = "legacy", weight = 5 }]"#,
            only "a route without `app` and `upstream`", by hand;
        /// What keeps a client at its part of `split`: a cookie of Penstock (`"cookie"`, or a table
        /// with its name), a hash of its address (`"client"`) or of the value of a field or cookie
        /// of the application (`"header:NAME"`, `"cookie:NAME"`), or nothing (`"request"`).
        split_by: SplitBy = SplitBy::Cookie(SplitCookie::default()),
            OrTable(&Text(SPLIT_KEY), "sites.routes.split_by"), shows r#""cookie""#,
            example r#"{ name = "group", max_age = "30d" }"#, only ONLY_SPLIT, by hand;
        /// Another back end that gets a copy of some requests, whose responses are dropped.
        mirror: Option<Mirror> = None, Table("sites.routes.mirror"), default "no copies",
            example r#"{ upstream = "legacy", share = 0.01 }"#, only ONLY_ROUTE_WITH_BACKEND,
            by hand;
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
        /// How the path is changed; of a list of tables the first whose `regex` matches counts.
        rewrite: Rewrite = Rewrite::default(), TableOrTables("sites.routes.rewrite"),
            default "no change", example r#"{ strip_prefix = "/api" }"#, by hand;
        /// How the request's header is changed; the tables of a list are applied in order.
        request_headers: Vec<HeaderRules> = Vec::new(),
            TableOrTables("sites.routes.request_headers"), default "no change",
            example r#"{ set = { X-Site = "{host}" }, remove = ["X-Debug"] }"#, by hand;
        /// How the response's header is changed; the tables of a list are applied in order.
        response_headers: Vec<HeaderRules> = Vec::new(),
            TableOrTables("sites.routes.response_headers"), default "no change",
            example r#"{ set = { X-Frame-Options = "DENY" } }"#, by hand;
        /// Error pages of this route, before those of its site.
        error_pages: BTreeMap<u16, PathBuf> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ 404 = "errors/404.html" }"#, by hand;
        /// Whether errors of its application or upstream get the pages of `error_pages`.
        intercept_errors: Option<BTreeSet<u16>> = None,
            FlagOrTexts(crate::error_pages::INTERCEPTED_EXPECTED), default "the site's",
            example r#"["404", "5xx"]"#, only ONLY_ROUTE_WITH_BACKEND, by hand;
        /// Whether its responses get the fields of `security_headers` of its site, or which.
        security_headers: Option<SecurityHeaders> = None,
            OrTable(&Bool, "sites.security_headers"), default "the site's", example "false",
            by hand;
        /// Whether request bodies are read whole before a back end hears of them.
        request_buffering: Option<bool> = None, Bool, default "the upstream's", only ONLY_PROXIED;
        /// Whether responses are taken off the back end faster than the client takes them.
        response_buffering: Option<bool> = None, Bool, default "the upstream's", only ONLY_PROXIED;
        /// Longest request body; above it the answer is 413.
        max_body_size: Option<u64> = None, Size(1), default "`limits.body_bytes`",
            example r#""2GiB""#;
        /// How long nothing at all may arrive of a request body, or be taken of a response, before
        /// the connection is cut.
        body_idle_timeout: Option<Duration> = None, Time(1), default "`limits.body_idle_timeout`",
            example r#""5m""#;
        /// Least rate of a request body, or of a response being taken; 0B/s is no minimum.
        min_body_rate: Option<u64> = None, Rate, default "`limits.min_body_rate`",
            example r#""100B/s""#;
        /// How long its app or upstream may take to begin a response.
        response_timeout: Option<Duration> = None, Time(1),
            default "that of the app or upstream", example r#""5m""#,
            only "a route with app, upstream or split";
        /// Whether responses are compressed for clients that accept it: what the app or upstream
        /// sends without a coding, and files that `files` does not compress. A cache stores what
        /// was made.
        compress: Option<Compression> = None,
            OrTable(&FlagOrChoices(ContentCoding::WORDS), "compress"), default "the site's",
            example r#"{ algorithms = ["gzip"], min_size = "2KiB" }"#,
            only "a route with `files`, an `app` or an `upstream`", by hand;
        /// Caches in front of the app or upstream; a list alone is `stores`.
        cache: Option<RouteCache> = None, OrTable(&Texts(CACHE_EXPECTED), "sites.routes.cache"),
            default "no cache", example r#"["disk1"]"#, only ONLY_ROUTE_WITH_BACKEND, by hand;
    }
}

keys! {
    /// A regular expression over the decoded path. Its dialect is RE2's: no look-around and no
    /// back references, and a match takes linear time.
    ROUTE_PATH_REGEX in "sites.routes.path", "path = { ... } in [[sites.routes]]", "" {
        /// The expression. It may match anywhere in the path: `^` and `$` tie it to its ends.
        "regex": Text("a regular expression such as \"^/p/([0-9]+)$\""), OptionDefault::Required,
            example r#""^/p/([0-9]+)$""#;
    }
}

section! {
    /// Users with passwords. A client that fails again and again waits: 20 attempts at once, then
    /// 10 a minute.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct BasicAuth
    in "sites.routes.basic_auth", "basic_auth = { ... } in [[sites.routes]]", "" {
        /// The name of the protected part, as browsers show it.
        realm: String = "restricted".to_owned(), Text(REALM), example r#""Admin""#,
            by check(crate::basic_auth::is_realm);
    }
    also {
        /// The users.
        "users": Table("sites.routes.basic_auth.users"), OptionDefault::Required,
            example r#"{ file = "htpasswd" }"#;
    }
    plain {
        /// Hashes of the passwords by user.
        users: BTreeMap<String, Secret> = BTreeMap::new();
    }
}

keys! {
    /// The users of a route.
    BASIC_AUTH_USERS in "sites.routes.basic_auth.users", "users = { ... } in basic_auth of [[sites.routes]]", "" {
        /// A file with a user and the hash of the password in each line, as
        /// `penstock hash-password` and `htpasswd -B` make it: bcrypt, argon2id or SHA-1. It is read at start and at a reload.
        "file": Path, OptionDefault::Required, example r#""htpasswd""#;
    }
}

section! {
    /// A service that decides about requests. It gets a GET with the header of the request, and
    /// `X-Forwarded-Method`, `X-Forwarded-Uri` and `X-Forwarded-Host`. With a status of 2xx the
    /// request goes on; any other response is the client's. If the service does not answer, the
    /// client gets 503.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ForwardAuth(url: ServiceUrl)
    in "sites.routes.forward_auth", "forward_auth = { ... } in [[sites.routes]]", "" {
        /// Where it is asked.
        url: ServiceUrl = url, Text(SERVICE_URL), default required,
            example r#""http://127.0.0.1:4180/oauth2/auth""#, by hand;
        /// Fields of its response that the request goes on with, in place of the client's own.
        copy_headers: Vec<String> = Vec::new(), Texts(HEADER_FIELD),
            example r#"["X-User"]"#, by hand;
        /// How long it may take to answer.
        timeout: Duration = Duration::from_secs(10), Time(1);
    }
}

section! {
    /// Pages of other sites that may use a route, by the CORS protocol of the Fetch standard. Their
    /// preflights are answered here. Fields of that protocol that a back end sets are replaced.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Cors
    in "sites.routes.cors", "cors = { ... } in [[sites.routes]]", "" {
        /// Their origins.
        origins: Vec<ValuePattern> = Vec::new(), Texts(CORS_ORIGIN), default required,
            example r#"["https://app.example"]"#, by hand;
        /// Methods that they may use.
        methods: Vec<String> = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
            .map(str::to_owned).into(), Texts(METHOD_EXPECTED), by hand;
        /// Fields that they may send.
        headers: Vec<String> = Vec::new(), Texts(FIELD_EXPECTED), default "those they ask for",
            example r#"["Content-Type", "X-Api-Key"]"#, by hand;
        /// Fields of responses that they may read besides the usual ones.
        expose: Vec<String> = Vec::new(), Texts(FIELD_EXPECTED), example r#"["X-Total"]"#, by hand;
        /// Whether their requests may have cookies and passwords.
        credentials: bool = false, Bool;
        /// How long browsers remember the answer to a preflight.
        max_age: Duration = Duration::from_secs(3600), Time(0);
    }
}

section! {
    /// How often the requests of a route may come, exactly over all loops of a server, and over all
    /// servers that share a Redis.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RateLimitRule(rate: RequestRate)
    in "sites.routes.rate_limit", "rate_limit = { ... } in [[sites.routes]]", "" {
        /// So many requests in a time.
        rate: RequestRate = rate, Text(REQUEST_RATE), default required, example r#""10/s""#, by hand;
        /// How many may come at once.
        burst: Option<u32> = None, Number(1, 1_000_000), default "the number of `rate`",
            example "20";
        /// What is counted: requests of one client (of IPv6 the first 64 bits of its address), of one
        /// user (of `jwt` or `basic_auth`), to one host or path, with one value of a field or cookie, or of the whole route. Requests
        /// without that user, field or cookie are not counted. With several all of them count together.
        "key" => keys: Vec<RateKey> = vec![RateKey::Client], TextOrTexts(RATE_KEY),
            shows r#""client""#, by hand;
        /// How long a request may wait for its turn before it is refused.
        max_delay: Duration = Duration::ZERO, Time(0);
        /// Whether all servers with one `server.redis` share the limit. While Redis is away each
        /// server limits alone.
        shared: Option<bool> = None, Bool, default "`true` with `server.redis`";
    }
}

section! {
    /// Where a route redirects its requests.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Redirect(to: Template)
    in "sites.routes.redirect", "redirect = { ... } in [[sites.routes]]", "" {
        /// The URL, or the path on the same host. It may have the placeholders of
        /// `request_headers`.
        to: Template = to, Text(REDIRECT_TARGET), default required,
            example r#""https://new.example{uri}""#, by hand;
        /// The status: 301 and 308 are kept by browsers for good, 307 and 308 keep the method
        /// (RFC 9110 §15.4).
        status: u16 = 302, Number(301, 308);
    }
}

section! {
    /// The answer of a route, without a back end.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Respond
    in "sites.routes.respond", "respond = { ... } in [[sites.routes]]", "" {
        /// The status.
        status: u16 = 200, Number(200, 599);
        /// The body. It may have the placeholders of `request_headers`.
        body: Option<Template> = None, Text(BODY_TEXT),
            default "no body; of an error the page of `error_pages`",
            example r#""closed until {query.until}\n""#, by hand;
        /// A file with the body, of at most 1MiB, read at start and at a reload.
        file: Option<PathBuf> = None, Path, default "none", example r#""errors/closed.html""#,
            only "an answer without `body`", by hand;
        /// The media type of the body.
        content_type: Option<String> = None, Text(MEDIA_TYPE),
            default "`text/plain` of a `body`, by its ending of a `file`",
            example r#""application/json""#, by check(crate::headers::is_field_value);
        /// Fields of its header.
        headers: BTreeMap<String, Template> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ Allow = "GET, HEAD" }"#, by hand;
    }
}

section! {
    /// How the path is changed before files, app or upstream see it: first `strip_prefix`, then
    /// `regex`, then `add_prefix`.
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
    also {
        /// A regular expression over the decoded path, in the dialect of `path`. Where it matches,
        /// `to` is the path.
        "regex": Text("a regular expression such as \"^/old/(.*)$\""),
            OptionDefault::Described("none"),
            example r#""^/old/(.*)$""#;
        /// The path in place of all of the old one. It may have the placeholders of
        /// `request_headers`; `{re.1}` is a group of `regex`. The query stays, unless `to` has one.
        "to": Text(crate::rewrite::REWRITE_TARGET),
            OptionDefault::Described("required beside `regex`"),
            example r#""/new/{re.1}""#;
    }
    plain {
        /// Expressions with what replaces the paths that they match, of which the first counts.
        rules: Vec<RewriteRule> = Vec::new();
    }
}

/// A regular expression over a path, and the path and query in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewriteRule {
    /// The expression.
    pub regex: PathRegex,
    /// Path and query.
    pub to: Template,
}

section! {
    /// Changes of the request's header, in this order: `remove`, `replace`, `set`, `add`,
    /// `default`. Values may have
    /// placeholders: `{client}`, `{host}`, `{hostname}` (without the port), `{scheme}`, `{method}`,
    /// `{uri}`, `{path}`, `{path.1}` (its first segment), `{query}`, `{query.NAME}`,
    /// `{header.NAME}`, `{cookie.NAME}`, and `{re.1}`, a group of the route's regular expression.
    /// Fields of framing and of the connection are not a route's to change.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HeaderRules
    in "sites.routes.request_headers", "request_headers = { ... } in [[sites.routes]]", "" {
        /// Fields that are dropped.
        remove: Vec<String> = Vec::new(), Texts(HEADER_FIELD), example r#"["X-Debug"]"#, by hand;
        /// Fields that replace all of their name.
        set: BTreeMap<String, Template> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ X-Site = "{host}" }"#, by hand;
        /// Fields that are added to those there are.
        add: BTreeMap<String, Template> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ Via = "1.1 front" }"#, by hand;
        /// Fields that are added where there are none of their name.
        "default" => defaults: BTreeMap<String, Template> = BTreeMap::new(), StringMap, shows "{}",
            example r#"{ Cache-Control = "no-cache" }"#, by hand;
        /// Parts of the values of fields that are replaced.
        replace: BTreeMap<String, ReplaceRule> = BTreeMap::new(),
            NamedTables("sites.routes.request_headers.replace"), default "none", by hand;
        /// Conditions on the request, as the client sent it: a table, or the names of
        /// `[conditions.NAME]` tables.
        "when" => conditions: Conditions = Conditions::default(),
            OrTable(&Texts(CONDITION_NAME), "sites.routes.match"), default "every request",
            example r#"{ method = ["GET"] }"#, by hand;
        /// Statuses (`"404"`) and classes (`"4xx"`) of the responses that are changed.
        status: BTreeSet<u16> = BTreeSet::new(), Texts(crate::headers::STATUS_OR_CLASS), default "every status",
            example r#"["2xx", "404"]"#, only "`response_headers`", by hand;
    }
}

impl Route {
    /// The route once for each of its back ends: itself, or its parts, which have no `split`.
    #[must_use]
    pub fn parts(&self) -> Vec<Cow<'_, Self>> {
        if self.split.is_empty() {
            return vec![Cow::Borrowed(self)];
        }
        let part = |part: &SplitPart| {
            Cow::Owned(Self {
                app: part.app.clone(),
                upstream: part.upstream.clone(),
                split: Vec::new(),
                ..self.clone()
            })
        };
        self.split.iter().map(part).collect()
    }

    /// Whether a back end answers: an application or an upstream.
    #[must_use]
    pub fn has_back_end(&self) -> bool {
        self.app.is_some() || self.upstream.is_some() || !self.split.is_empty()
    }
}

keys! {
    /// A part of the values of a field, and what stands in its place.
    HEADER_REPLACE in "sites.routes.request_headers.replace",
        "replace = { NAME = { ... } } in request_headers and response_headers", "" {
        /// The part: every match of this regular expression, in the dialect of `path`.
        "regex": Text("a regular expression such as \"^http:\""), OptionDefault::Required,
            example r#""^http:""#;
        /// What stands in its place. It may have the placeholders of `request_headers`; `{re.1}` is
        /// a group of `regex`.
        "with": Text("a value without control characters"), OptionDefault::Required,
            example r#""https:""#;
    }
}

/// A part of the values of a field, and what stands in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaceRule {
    /// The part.
    pub regex: PathRegex,
    /// The new part.
    pub with: Template,
}

impl HeaderRules {
    /// Whether they change nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
