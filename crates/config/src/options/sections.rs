//! The tables of the file, in the order in which the reference and the example print them.
//!
//! # Invariants
//! - A table that has the keys of another one names it in `shared_keys` and repeats nothing.

use super::{SectionDoc, SharedKeys};
use crate::model::*;
use crate::section::Keys as _;

/// Every table of the file but its top level.
pub(crate) const SECTIONS: &[&SectionDoc] = &[
    &Server::DOC,
    &SERVER_LISTEN,
    &ENV_FILE,
    &ADMIN_TOKEN,
    &SERVER_JOIN,
    &crate::secret::SECRET,
    &AccessLog::DOC,
    &NAMED_ACCESS_LOGS,
    &TraceConfig::DOC,
    &Limits::DOC,
    &Tls::DOC,
    &Acme::DOC,
    &ExternalAccount::DOC,
    &EXTERNAL_ACCOUNT_KEY,
    &OnDemand::DOC,
    &BlockingPool::DOC,
    &App::DOC,
    &APP_PROCESSES,
    &APP_THREADS,
    &ScalingConfig::DOC,
    &APP_MAX_MEMORY,
    &APP_QUEUE,
    &APPS_UPSTREAM,
    &Access::DOC,
    &JOB,
    &Grip::DOC,
    &UPSTREAMS_GRIP,
    &Upstream::DOC,
    &UpstreamServer::DOC,
    &UpstreamTls::DOC,
    &UPSTREAM_QUEUE,
    &ConnectionLimits::DOC,
    &RetryPolicy::DOC,
    &HealthCheck::DOC,
    &EjectPolicy::DOC,
    &Cache::DOC,
    &Hub::DOC,
    &HubHistory::DOC,
    &NAMED_CONDITIONS,
    &Site::DOC,
    &CertificateFiles::DOC,
    &ClientCertificates::DOC,
    &Hsts::DOC,
    &SecurityHeaders::DOC,
    &Route::DOC,
    &ROUTE_PATH_REGEX,
    &Conditions::DOC,
    &CONDITIONS_NOT,
    &SplitPart::DOC,
    &SPLIT_MATCH,
    &SplitCookie::DOC,
    &Mirror::DOC,
    &BasicAuth::DOC,
    &BASIC_AUTH_USERS,
    &JwtAuth::DOC,
    &JWT_KEY,
    &SignedUrl::DOC,
    &ForwardAuth::DOC,
    &RateLimitRule::DOC,
    &ConcurrencyRule::DOC,
    &ResponseRate::DOC,
    &Cors::DOC,
    &Redirect::DOC,
    &Respond::DOC,
    &Files::DOC,
    &Rewrite::DOC,
    &HeaderRules::DOC,
    &HEADER_REPLACE,
    &ROUTE_RESPONSE_HEADERS,
    &Compression::DOC,
    &RouteCache::DOC,
    &CacheKey::DOC,
    &CACHE_KEY_QUERY,
    &CacheBypass::DOC,
    &RouteHub::DOC,
    &RouteMercure::DOC,
    &MERCURE_KEY,
    &ROUTE_MERCURE_SUBSCRIBER_KEY,
    &TcpFrontend::DOC,
    &TCP_TLS,
    &TCP_CLIENT_CERTIFICATES,
];

const APPS_UPSTREAM: SectionDoc = SectionDoc {
    name: "apps.NAME.upstream",
    heading: "upstream = { ... } in [apps.NAME]",
    example: "",
    description: "How the processes of an application of kind command or fastcgi are spoken to.",
    shared_keys: Some(SharedKeys {
        section: "upstreams.NAME",
        except: &[
            ("protocol", "the application's `kind` says it"),
            ("servers", "they are the application's processes"),
            ("max_active", "it is the application's `threads`"),
            ("queue", "it stands beside `upstream`"),
            ("response_timeout", "it stands beside `upstream`"),
            ("tls", "its servers are processes of this machine"),
            ("joinable", "its servers are its processes"),
            ("join_key", "its servers are its processes"),
            ("secret", "no such application speaks ajp"),
            ("grip", "it stands beside `upstream`"),
            ("sendfile", "it stands beside `upstream`"),
            ("resolve_interval", "there are no names to resolve"),
        ],
    }),
    options: &[],
};

const UPSTREAMS_GRIP: SectionDoc = SectionDoc {
    name: "upstreams.NAME.grip",
    heading: "grip = { ... } in [upstreams.NAME]",
    example: "",
    description: "The same for an upstream.",
    shared_keys: Some(SharedKeys {
        section: "apps.NAME.grip",
        except: &[],
    }),
    options: &[],
};

const TCP_TLS: SectionDoc = SectionDoc {
    name: "tcp.tls",
    heading: "tls = { ... } in [[tcp]]",
    example: "",
    description: "The certificate of a TCP listener.",
    shared_keys: Some(SharedKeys {
        section: "sites.tls",
        except: &[],
    }),
    options: &[],
};

const TCP_CLIENT_CERTIFICATES: SectionDoc = SectionDoc {
    name: "tcp.client_certificates",
    heading: "client_certificates = { ... } in [[tcp]]",
    example: "",
    description: "The certificates of a TCP listener's clients.",
    shared_keys: Some(SharedKeys {
        section: "sites.client_certificates",
        except: &[],
    }),
    options: &[],
};

const ROUTE_RESPONSE_HEADERS: SectionDoc = SectionDoc {
    name: "sites.routes.response_headers",
    heading: "response_headers = { ... } in [[sites.routes]]",
    example: "",
    description: "The same for the response's header.",
    shared_keys: Some(SharedKeys {
        section: "sites.routes.request_headers",
        except: &[],
    }),
    options: &[],
};

const ROUTE_MERCURE_SUBSCRIBER_KEY: SectionDoc = SectionDoc {
    name: "sites.routes.mercure.subscriber_key",
    heading: "subscriber_key = { ... } in mercure of [[sites.routes]]",
    example: "",
    description: "The same for subscribers' tokens.",
    shared_keys: Some(SharedKeys {
        section: "sites.routes.mercure.publisher_key",
        except: &[],
    }),
    options: &[],
};
