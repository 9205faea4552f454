//! What is said about each table of the file, in the order in which the reference and the example
//! print them.
//!
//! Data only. What must stay true: every section that an option stands in is described here, and a
//! table that has the keys of another says so, rather than repeating its rows.

use super::{SectionDoc, SharedKeys};

/// Every table of the file.
pub(crate) const SECTIONS: &[SectionDoc] = &[
    SectionDoc {
        name: "server",
        heading: "[server]",
        example: "[server]",
        description: "Listeners, event loops, the admin address and the access log.",
        shared_keys: None,
    },
    SectionDoc {
        name: "server.listen",
        heading: "listen = [{ ... }] in [server]",
        example: "",
        description: "An address with what is special about its connections.",
        shared_keys: None,
    },
    SectionDoc {
        name: "server.admin_token",
        heading: "admin_token = { ... } in [server]",
        example: "",
        description: "The secret by which changes are made over TCP; see admin.md.",
        shared_keys: None,
    },
    SectionDoc {
        name: "server.join",
        heading: "join = { ... } in [server]",
        example: "",
        description: "Where programs dial in that serve an application elsewhere; see machines.md.",
        shared_keys: None,
    },
    SectionDoc {
        name: "server.access_log",
        heading: "access_log = { ... } in [server]",
        example: "",
        description: "Where requests are logged and what a line looks like.",
        shared_keys: None,
    },
    SectionDoc {
        name: "limits",
        heading: "[limits]",
        example: "[limits]",
        description: "Every bound on what a client may send, hold or take; the status page shows use against bound.",
        shared_keys: None,
    },
    SectionDoc {
        name: "blocking.NAME",
        heading: "[blocking.NAME]",
        example: "[blocking.default]",
        description: "Pools of threads for work that would block an event loop, such as reading cold files; \
              give each disk its own so that a slow one does not hold up the others. `default` is always there.",
        shared_keys: None,
    },
    SectionDoc {
        name: "apps.NAME",
        heading: "[apps.NAME]",
        example: "[apps.hello]",
        description: "An application and its workers: Python or Ruby code that Penstock loads, or any program \
              that serves HTTP or FastCGI.",
        shared_keys: None,
    },
    SectionDoc {
        name: "apps.NAME.processes",
        heading: "processes = { ... } in [apps.NAME]",
        example: "",
        description: "Bounds on the number of worker processes.",
        shared_keys: None,
    },
    SectionDoc {
        name: "apps.NAME.threads",
        heading: "threads = { ... } in [apps.NAME]",
        example: "",
        description: "Bounds on the threads of each worker process (the kinds \"wsgi\" and \"rack\" without `async`): one more takes \
              requests when they wait although the processors have room; see processes.md.",
        shared_keys: None,
    },
    SectionDoc {
        name: "apps.NAME.scale",
        heading: "scale = { ... } in [apps.NAME]",
        example: "",
        description: "When the number of worker processes, and of their threads, changes between its bounds.",
        shared_keys: None,
    },
    SectionDoc {
        name: "apps.NAME.max_memory",
        heading: "max_memory = { ... } in [apps.NAME]",
        example: "",
        description: "Bounds on the memory of a worker, of which one at least is said: `soft` <= `hard`.",
        shared_keys: None,
    },
    SectionDoc {
        name: "apps.NAME.queue",
        heading: "queue = { ... } in [apps.NAME]",
        example: "",
        description: "How many requests may wait for a free worker, and how long.",
        shared_keys: None,
    },
    SectionDoc {
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
                ("joinable", "its servers are its processes"),
                ("join_key", "its servers are its processes"),
                ("secret", "no such application speaks ajp"),
                ("grip", "it stands beside `upstream`"),
                ("sendfile", "it stands beside `upstream`"),
                ("resolve_interval", "there are no names to resolve"),
            ],
        }),
    },
    SectionDoc {
        name: "apps.NAME.isolation",
        heading: "isolation = { ... } in [apps.NAME]",
        example: "",
        description: "Files and TCP ports that the application's processes may use, by Landlock (isolation.md).",
        shared_keys: None,
    },
    SectionDoc {
        name: "apps.NAME.grip",
        heading: "grip = { ... } in [apps.NAME]",
        example: "",
        description: "What the application may say by GRIP (streams.md).",
        shared_keys: None,
    },
    SectionDoc {
        name: "upstreams.NAME.grip",
        heading: "grip = { ... } in [upstreams.NAME]",
        example: "",
        description: "The same for an upstream.",
        shared_keys: Some(SharedKeys {
            section: "apps.NAME.grip",
            except: &[],
        }),
    },
    SectionDoc {
        name: "upstreams.NAME",
        heading: "[upstreams.NAME]",
        example: "# [upstreams.legacy]",
        description: "Back ends behind one name, that other programs start.",
        shared_keys: None,
    },
    SectionDoc {
        name: "upstreams.NAME.servers",
        heading: "servers = [{ ... }] in [upstreams.NAME]",
        example: "",
        description: "One server with what is special about it.",
        shared_keys: None,
    },
    SectionDoc {
        name: "upstreams.NAME.queue",
        heading: "queue = { ... } in [upstreams.NAME]",
        example: "",
        description: "How many requests may wait for a server, and how long.",
        shared_keys: None,
    },
    SectionDoc {
        name: "upstreams.NAME.connections",
        heading: "connections = { ... } in [upstreams.NAME]",
        example: "",
        description: "Connections to each server: `min` <= `soft` <= `max`.",
        shared_keys: None,
    },
    SectionDoc {
        name: "upstreams.NAME.retry",
        heading: "retry = { ... } in [upstreams.NAME]",
        example: "",
        description: "Other servers tried after a failure, when nothing can have happened twice.",
        shared_keys: None,
    },
    SectionDoc {
        name: "upstreams.NAME.health",
        heading: "health = { ... } in [upstreams.NAME]",
        example: "",
        description: "Probes of each server; without a `path` they only connect.",
        shared_keys: None,
    },
    SectionDoc {
        name: "upstreams.NAME.eject",
        heading: "eject = { ... } in [upstreams.NAME]",
        example: "",
        description: "When failures of requests put a server aside.",
        shared_keys: None,
    },
    SectionDoc {
        name: "caches.NAME",
        heading: "[caches.NAME]",
        example: "# [caches.disk1]",
        description: "A cache of responses, that routes name: a disk with a memory tier in front of it, or memory alone.",
        shared_keys: None,
    },
    SectionDoc {
        name: "hub",
        heading: "[hub]",
        example: "[hub]",
        description: "Bounds on streams and long polls that are held open, and on what is published to them. An application or \
              upstream with `grip` holds a connection by answering with GRIP fields.",
        shared_keys: None,
    },
    SectionDoc {
        name: "hub.history",
        heading: "history = { ... } in [hub]",
        example: "",
        description: "How much of each channel is kept for clients that come back with the id of the last event they got; the \
              nearest bound counts.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites",
        heading: "[[sites]]",
        example: "[[sites]]",
        description: "One site. Without any, the only application or upstream answers every host and path, an \
              application after the files of `public/` in its folder if there is one.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes",
        heading: "[[sites.routes]]",
        example: "[[sites.routes]]",
        description: "One route of the site above it. Routes are tried in order; files come before the app or upstream, and \
              what no file answers falls through to it. A route with `hub` or `mercure` has none of these.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.files",
        heading: "files = { ... } in [[sites.routes]]",
        example: "",
        description: "A folder of static files.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.rewrite",
        heading: "rewrite = { ... } in [[sites.routes]]",
        example: "",
        description: "How the path is changed before files, app or upstream see it: first `strip_prefix`, then `add_prefix`.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.request_headers",
        heading: "request_headers = { ... } in [[sites.routes]]",
        example: "",
        description: "What is done to the request's header, in this order: `remove`, `set`, `add`. In values \
              `{client}`, `{host}`, `{scheme}` and `{path}` stand for the request's. Fields of framing and of \
              the connection are not a route's to change.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.response_headers",
        heading: "response_headers = { ... } in [[sites.routes]]",
        example: "",
        description: "The same for the response's header.",
        shared_keys: Some(SharedKeys {
            section: "sites.routes.request_headers",
            except: &[],
        }),
    },
    SectionDoc {
        name: "sites.routes.cache",
        heading: "cache = { ... } in [[sites.routes]]",
        example: "",
        description: "How a route uses its caches.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.cache.key",
        heading: "key = { ... } in cache of [[sites.routes]]",
        example: "",
        description: "What is in the key of an object beside scheme and path. What is left out must not change the \
              response: whoever asks with another value gets the same object.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.cache.key.query",
        heading: "query = { ... } in key of [[sites.routes]]",
        example: "",
        description: "All parameters but some; a name that ends in `*` stands for all that begin so.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.cache.bypass",
        heading: "bypass = { ... } in cache of [[sites.routes]]",
        example: "",
        description: "Requests that the cache neither answers nor learns from.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.hub",
        heading: "hub = { ... } in [[sites.routes]]",
        example: "",
        description: "A route that holds streams of Server-Sent Events itself, each with one channel or several. In their names \
              `{path}` stands for the request's path, `{path.1}` for its first segment and so on, `{query.NAME}` for a \
              parameter of its query; the path is the one after `rewrite`.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.mercure",
        heading: "mercure = { ... } in [[sites.routes]]",
        example: "",
        description: "A Mercure hub: who may publish and subscribe says a JSON Web Token (RFC 7519) of theirs.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.mercure.publisher_key",
        heading: "publisher_key = { ... } in mercure of [[sites.routes]]",
        example: "",
        description: "A key of tokens with its algorithm.",
        shared_keys: None,
    },
    SectionDoc {
        name: "sites.routes.mercure.subscriber_key",
        heading: "subscriber_key = { ... } in mercure of [[sites.routes]]",
        example: "",
        description: "The same for subscribers' tokens.",
        shared_keys: Some(SharedKeys {
            section: "sites.routes.mercure.publisher_key",
            except: &[],
        }),
    },
    SectionDoc {
        name: "tcp",
        heading: "[[tcp]]",
        example: "# [[tcp]]",
        description: "A TCP listener whose connections are relayed to an upstream, with its slots and its queue.",
        shared_keys: None,
    },
];
