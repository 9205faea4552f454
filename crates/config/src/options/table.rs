//! The rows of the option table, in the order in which the reference and the example print them.
//!
//! Data only; `options` says what the columns mean and what is tested about them. Adding an option
//! is one row here, one line in the reader of its section and one field in `model`. The rows of back
//! ends are in `upstreams`, those of caches in `caches`, those of held streams in `hub`.

use super::Kind::*;
use super::Opt;
use super::Unset::{Is, Means, Required};
use super::caches::CACHE;
use super::hub::CHANNEL;

/// Every option but those of back ends, caches and held streams.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[Opt] = &[
    row("", "server", Table("server"), Means("every default"), "", "Listeners, loops, admin, access log."),
    row("", "limits", Table("limits"), Means("every default"), "", "Bounds on clients."),
    row("", "blocking", Named("blocking.NAME"), Means("the pool `default`"), "", "Pools for blocking work."),
    row("", "apps", Named("apps.NAME"), Means("none"), "", "Applications."),
    row("", "upstreams", Named("upstreams.NAME"), Means("none"), "", "Back ends."),
    row("", "caches", Named("caches.NAME"), Means("none"), "", "Caches."),
    row("", "hub", Table("hub"), Means("every default"), "", "Held streams."),
    row("", "sites", List("sites"), Means("one site for the only application or upstream"), "", "Sites."),
    row("", "streams", List("streams"), Means("none"), "", "TCP listeners."),

    row("server", "listen", TextsOrTables(ADDRESS, "server.listen"), Is(r#"["127.0.0.1:8080"]"#), r#"["127.0.0.1:8080"]"#,
        "Addresses that clients connect to; port 0 takes a free one and prints it. A file with nothing but streams has none."),
    row("server", "reuse_port", Bool, Is("false"), "true",
        "Whether other servers of the same user may listen on the same TCP ports: the kernel gives each a share of the connections. Without it a second server is refused."),
    row("server", "threads", Count(1, 1024), Means("number of cores"), "2",
        "Number of event loops."),
    row("server", "admin", Text(ADDRESS_OR_OFF), Is(r#""127.0.0.1:8090""#), r#""127.0.0.1:8090""#,
        "Address of the status page, metrics and the admin API, or \"off\". Over TCP it shows the server to whoever reaches it, and takes changes only with `server.admin_token`; a Unix socket is for its owner and root, and takes both."),
    row("server", "control", Text(SOCKET_OR_OFF), Means("a socket named after the first listener, in `/run/penstock` (root), `$RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR/penstock` or `/tmp/penstock-UID`"), r#""unix:/run/penstock/control.sock""#,
        "Unix socket that `penstock reload`, `stop`, `upgrade` and the other commands use; only root and whoever starts the server may connect, and no process that the server has started. \"off\" leaves signals. See admin.md."),
    row("server", "admin_token", Table("server.admin_token"), Means("none: no changes over TCP"), r#"{ file = "/etc/penstock/token" }"#,
        "The secret that a change over TCP needs, as `Authorization: Bearer`."),
    row("server", "probes", Text(ADDRESS), Means("none"), r#"":9090""#,
        "Address where `/healthz`, `/readyz` and `/metrics` answer to any host name, and nothing else does: for orchestrators and Prometheus on other machines."),
    row("server", "access_log", TextOrTable("\"off\", \"stdout\", \"stderr\" or a path", "server.access_log"),
        Is(r#""off""#), r#"{ path = "logs/access.log", format = "combined" }"#,
        "Where every request is logged; a text alone is the path, in the combined format."),
    row("server", "shutdown_timeout", Time(0), Is(r#""30s""#), r#""30s""#,
        "How long a stop waits for requests in progress."),
    row("server", "upgrade_timeout", Time(0), Is(r#""5m""#), r#""5m""#,
        "How long the server that `penstock upgrade` has replaced may finish requests, streams and WebSockets that it has; at least `server.shutdown_timeout`. A stop or the next upgrade leaves it that much."),
    row("server", "drain_idle", Time(0), Is(r#""5s""#), r#""5s""#,
        "How long a stop, or the old server of an upgrade, keeps a connection that waits for its next request, which is then answered with `Connection: close`; at most `limits.idle_timeout`."),
    row("server", "log", Text("\"stdout\", \"stderr\" or a path"), Is(r#""stderr""#), r#""logs/server.log""#,
        "Where the server's own log goes, and what applications print; opened again on SIGUSR1 and `penstock reopen`."),
    row("server", "log_format", OneOf(&["text", "json"]), Is(r#""text""#), r#""json""#,
        "The form of the server's own log: lines for people, or one JSON object a line. Lines of applications that are JSON objects stay as they are."),
    row("server", "log_mask", Texts(crate::server::MASK_EXPECTED), Is(r#"["default"]"#), r#"["default", "voucher", "*_pin"]"#,
        "Parameters of queries whose values stand as `***` in both logs, whatever their case and separators; `*` in front matches the \
         ends of names. `\"default\"` stands for tokens, passwords, API keys, signatures of signed URLs and the like. Passwords in URLs are always masked."),
    row("server", "user", Text("a user's name or number, or `user:group`"), Means("whoever starts it"), r#""www-data""#,
        "Whom the server becomes once its sockets are open and before any application runs; needs to be started as root."),
    row("server", "group", Text("a group's name or number"), Means("the groups of `user`"), r#""www-data""#,
        "The group beside `user`."),
    row("server", "umask", Text("three or four octal digits"), Means("as it is started"), r#""027""#,
        "Permissions that new files do not get, in applications too."),
    row("server", "open_files", Count(64, 100_000_000), Means("as many as the system allows"), "65536",
        "How many files and connections may be open at once."),
    row("server", "directory", Path, Means("where it is started"), r#""/""#,
        "Working directory of the server; every path of the configuration stays as it is."),
    row("server", "trusted_proxies", Texts(NETWORK), Means("this machine: loopback and Unix sockets"),
        r#"["10.0.0.0/8", "unix"]"#,
        "Proxies whose `Forwarded`, `X-Forwarded-*` and `X-Real-IP` are trusted: client, scheme, host, port and prefix that they say are the request's. Left out, this machine is trusted for client and scheme alone."),
    row("server", "client_address", Text("the name of a field such as \"X-Real-IP\""), Means("`X-Forwarded-For`, else `X-Real-IP`; `Forwarded` if there is none of the `X-` fields"), r#""CF-Connecting-IP""#,
        "The one field by which trusted proxies name the client. With `\"Forwarded\"`, scheme and host come from that field, too."),
    row("server", "hide", Texts(HIDE), Is(r#"["default"]"#), r#"["default", "*.psd"]"#,
        "Names that are not found below any folder of files: what `hide` of a route means where it is left out, and what `X-Sendfile` may not name."),
    row("server", "join", Table("server.join"), Means("nowhere"), r#"{ listen = "10.0.0.1:7000", key = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=" }"#,
        "Where `penstock work` on other machines dials in, to become a server of an upstream that is `joined`."),
    row("server", "redis", Text(crate::server::REDIS_EXPECTED), Means("none: this server is alone"), r#""redis://127.0.0.1:6379""#,
        "The Redis or Valkey that several servers share: what is published on one reaches the streams of all, but for \
         Mercure hubs, which stay each server's own. In a name or password \
         what a URL cannot have stands as `%` and two digits."),

    row("server.listen", "address", Text(ADDRESS), Required, r#""127.0.0.1:8080""#,
        "Address that clients connect to."),
    row("server.listen", "mode", Text("three or four octal digits"), Is(r#""0666""#), r#""0660""#,
        "Permissions of a Unix socket's file: whoever may write it may connect."),
    row("server.listen", "owner", Text("`user`, `user:group` or `:group`, by name or number"), Means("`server.user`, or whoever starts it"), r#"":www-data""#,
        "Whose the file of a Unix socket is; another user than the server's needs a start as root."),
    row("server.listen", "proxy_protocol", Bool, Is("false"), "true",
        "Whether its connections begin with a PROXY protocol header, of version 1 or 2."),

    row("server.admin_token", "file", Path, Required, r#""/etc/penstock/token""#,
        "File with the token, for example from `openssl rand -base64 32`; only its owner and its group may read it, and root or whoever starts the server owns it."),

    row("server.join", "listen", Text(ADDRESS), Required, r#""10.0.0.1:7000""#,
        "Address that it listens at: one that only those machines reach, since nothing there is encrypted."),
    row("server.join", "key", Text(crate::join::KEY_EXPECTED), Required, r#""J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=""#,
        "What whoever dials in must know as well, by which each side proves to the other who it is."),

    row("server.access_log", "path", Text("a path, \"stdout\" or \"stderr\""), Required, r#""logs/access.log""#,
        "File that lines are appended to."),
    row("server.access_log", "format", OneOf(&["combined", "json", "dev", "off"]), Is(r#""combined""#), r#""combined""#,
        "The form of a line: dev is for a person at a terminal, off writes none."),

    row("limits", "connections", Count(1, 10_000_000), Is("100000"), "100000",
        "Client connections open at once, those of held streams included. Fewer where the limit of open files is lower: a part of the files is kept for servers, workers and the admin interface. When all are open, the one that has been idle for longest is closed for a new one."),
    row("limits", "connections_per_client", Count(0, 10_000_000), Means("half of all connections, and 64 at least"), "100",
        "Connections that one client may have open: one IPv4 address, or one IPv6 network of 64 bits. One more is closed at once. 0 is no bound. Trusted proxies and Unix sockets have any number; behind a PROXY protocol header, the client that it names is counted."),
    row("limits", "target_bytes", Size(64), Is(r#""8KiB""#), r#""8KiB""#,
        "Longest target of a request line; above it the answer is 414."),
    row("limits", "header_bytes", Size(256), Is(r#""32KiB""#), r#""32KiB""#,
        "Longest request head, request line included; above it the answer is 431."),
    row("limits", "headers", Count(1, 10_000), Is("100"), "100",
        "Most header fields in a request; above it the answer is 431."),
    row("limits", "body_bytes", Size(1), Is(r#""64MiB""#), r#""64MiB""#,
        "Longest request body; above it the answer is 413. `max_body` of a route says otherwise for its paths."),
    row("limits", "header_timeout", Time(1), Is(r#""10s""#), r#""10s""#,
        "Time for a whole request head to arrive, however it trickles in; after it the answer is 408. The first one counts from the accept: a connection that sends nothing is closed then."),
    row("limits", "idle_timeout", Time(1), Is(r#""75s""#), r#""75s""#,
        "How long a connection may stay open between two requests."),
    row("limits", "body_stall", Time(1), Is(r#""30s""#), r#""30s""#,
        "How long nothing at all may arrive of a request body, or be taken of a response, before the connection is cut."),
    row("limits", "body_rate_min", Rate, Is(r#""500B/s""#), r#""500B/s""#,
        "Least rate of a request body or of a response being taken, after `body_rate_grace`; 0B/s is no minimum."),
    row("limits", "body_rate_grace", Time(0), Is(r#""10s""#), r#""10s""#,
        "How long a body may be slower than `body_rate_min`."),
    row("limits", "body_memory", Size(0), Is(r#""64KiB""#), r#""64KiB""#,
        "Request bodies above this go to an unlinked temporary file."),
    row("limits", "response_memory", Size(1), Is(r#""64KiB""#), r#""64KiB""#,
        "How much of an answer is kept in memory for a slow client; the rest goes to a temporary file."),
    row("limits", "response_spool", Size(1), Is(r#""64MiB""#), r#""64MiB""#,
        "How much of an answer may wait in that file before the worker has to wait for the client. More, within `temp_bytes`, while other requests wait for a worker."),
    row("limits", "min_busy_rate", Rate, Is(r#""64KiB/s""#), r#""64KiB/s""#,
        "Least rate at which a client takes a response that has filled its file and so holds a worker, or a place at an upstream, while other requests wait for one. After `body_rate_grace` below it the response is cut. \
         More is required the longer a request waits, up to eight times as much, and sixteen times as much of a client whose responses hold more than half of the places. 0B/s cuts none."),
    row("limits", "temp_bytes", Size(1), Means("a tenth of the disk of `temp_dir`, 16GiB at most; of a `temp_dir` in memory (tmpfs) 128MiB, an eighth at most"), r#""4GiB""#,
        "What all temporary files may take together. Then workers wait for their clients, and a request body that has no room is answered 503. \
         The responses of one client get a sixteenth of what is left, so that others find room."),
    row("limits", "websocket_message_bytes", Size(1), Is(r#""1MiB""#), r#""1MiB""#,
        "Longest message of a WebSocket's client, 32MiB at most; above it the connection is closed with 1009."),
    row("limits", "temp_dir", Path, Means("the system's temporary folder"), r#""/tmp""#,
        "Folder of the temporary files."),

    row("blocking.NAME", "threads", Count(1, 4096), Is("32"), "32",
        "Number of threads."),
    row("blocking.NAME", "max_queue", Count(0, 100_000_000), Is("65536"), "65536",
        "Jobs that may wait for a thread; one more is an error that names the pool, and 503. With 0 a job is taken only by a thread that has nothing to do."),

    row("apps.NAME", "dir", Path, Means("the folder of the file"), r#"".""#,
        "Folder the workers run in."),
    row("apps.NAME", "kind", OneOf(&["wsgi", "asgi", "rack", "command", "fastcgi"]), Means("detected"), r#""wsgi""#,
        "The interface of the application; left out, the loaded object says whether it is wsgi or asgi. `command` and `fastcgi` are programs that serve HTTP or FastCGI."),
    row("apps.NAME", "entry", Text(ENTRY), Means("detected"), r#""app:application""#,
        "What to load: `module:callable`, `module:factory()` or a module alone for wsgi and asgi; a rackup file, `file.rb` or `file.rb:Constant` for rack.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "interpreter", Text("a path or a command name"),
        Means("the virtual environment's in `dir`, else `python3` or `ruby`"), r#""python3""#,
        "What runs the workers; a name without a slash is looked up in PATH.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "command", TextOrTexts(COMMAND), Means("required by its kinds"), r#""thin -p {port} start""#,
        "What each process runs, without a shell; `{port}`, `{socket}` or `{fd}` says where it listens, and a fastcgi \
         program without any of them gets a listening socket as descriptor 0.")
        .only(PROGRAM_KINDS),
    row("apps.NAME", "processes", CountOrTable(1, 1024, "apps.NAME.processes"), Means("number of cores; 1 in development"),
        "{ min = 1, max = 4 }", "Number of worker processes, or bounds on it."),
    row("apps.NAME", "scale", Table("apps.NAME.scale"), Means("every default"), r#"{ up_after = "100ms", spawn_rate = 4 }"#,
        "When the number of processes and threads changes between the bounds of `processes` and `threads`.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "idle_ttl", Time(1), Means("`scale.idle_ttl`"), r#""60s""#,
        "The same as `idle_ttl` in `scale`; one of the two is enough.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "threads", CountOrTable(1, 1024, "apps.NAME.threads"), Is("1"), "5",
        "Threads in each worker process, each with one request at a time, or bounds on them; of a command, requests that a process \
         gets at once. An application with a reactor has one."),
    row("apps.NAME", "io_threads", Count(0, 1024), Is("0"), "4",
        "Threads of each worker process beyond `threads`, for requests that have called `penstock.mark_as_io_bound`: \
         such a request frees its slot, and another takes it.")
        .only(THREADED),
    row("apps.NAME", "async", FlagOrWord(&["gevent"]), Means("true for asgi, else false"), "false",
        "Whether a process serves its requests by a reactor in one thread instead of threads: a task each (`true`: asgi \
         always, rack on a fiber scheduler), or a greenlet each (`\"gevent\"`: wsgi).")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "in_progress_max", Count(1, 1_000_000), Is("1000"), "1000",
        "Requests in progress at once in a process with a reactor, WebSockets and streams included; more wait in the queue.")
        .only(REACTOR),
    row("apps.NAME", "request_buffering", Bool, Means("false for asgi, and for rack with `async = true`; else true"), "false",
        "Whether a request waits until its body has come whole, to memory or a temporary file, before a worker gets it. \
         With `false` the application reads the body as it comes, and its client is read no faster: live uploads, \
         exchanges in both directions. A slow client then occupies a thread, or one of `in_progress_max`.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "queue", Table("apps.NAME.queue"), Means("every default"),
        r#"{ max = 1000, timeout = "30s" }"#, "The queue of requests for a free worker."),
    row("apps.NAME", "sticky", OneOf(&["cookie", "client_address"]), Means("no stickiness"), r#""cookie""#,
        "Keeps a client at one worker process while that lives, by a cookie or by its address: for what a process remembers \
         between requests, such as the sessions of Socket.IO while it polls. Of a `command` or `fastcgi` application it stands in `upstream`.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "websocket_compression", Bool, Is("true"), "true",
        "Whether messages of WebSockets are compressed (`permessage-deflate`) where the client offers it.")
        .only(ASGI),
    row("apps.NAME", "response_timeout", Time(1), Is(r#""60s""#), r#""60s""#,
        "How long a worker may take to answer; after it the answer is 504."),
    row("apps.NAME", "boot_timeout", Time(1), Is(r#""60s""#), r#""60s""#,
        "How long a worker may take to load the application."),
    row("apps.NAME", "isolation", FlagOrTable("apps.NAME.isolation"), Is("true"), r#"{ write_paths = ["uploads"] }"#,
        "Whether its processes gain no privileges (`sudo`, set-user-ID programs), do not reach other processes (signals, memory, \
         abstract sockets), and make no system calls that only debuggers and administrators need. A table is `true`, and limits \
         files and ports as well."),
    row("apps.NAME", "stop_timeout", Time(1), Is(r#""10s""#), r#""10s""#,
        "How long a worker that was asked to end may take before it is killed; 2s in development."),
    row("apps.NAME", "stream_timeout", Time(1), Is(r#""5m""#), r#""5m""#,
        "How long WebSockets and streams may go on in a worker that is being replaced; 2s in development.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "grip", FlagOrTable("apps.NAME.grip"), Is("false"), "true",
        "Whether what the application says by GRIP is obeyed: responses with `Grip-Hold` are held, and of wsgi and rack \
         WebSockets come as requests (WebSocket-over-HTTP). Its workers find in `GRIP_URL` where they publish. A table is `true`. \
         A route may say otherwise."),
    row("apps.NAME", "sendfile", FlagOrPaths, Is("false"), r#"["private"]"#,
        "Whether responses may name another body: a route of the site (`X-Accel-Redirect`), or a file by absolute path below one of \
         these folders (`X-Sendfile`); and bound its rate (`X-Accel-Limit-Rate`). A route may say otherwise."),
    row("apps.NAME", "sendfile_root", Path, Means("none"), r#""public""#,
        "One folder more of `sendfile`.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "preload", FlagOrWord(&["auto"]), Is("\"auto\""), "true",
        "Whether the code is loaded once, in a template process from which the workers are forked: they start in milliseconds \
         and share memory. `\"auto\"`: unless threads that the code has started as it was loaded make that unsafe; then the workers are \
         started one by one. `true`: also then; only an application that says `prevent_fork` is not forked.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "refork_after", CountOrCounts(1, 1_000_000_000), Means("never"), "[500, 1000]",
        "After how many requests of one worker it becomes the template of the others, with all that it has warmed up: the first \
         number for the first time and so on, the last one again and again.")
        .only(PRELOADED),
    row("apps.NAME", "max_surge", Count(1, 1024), Is("1"), "1",
        "How many processes beyond their number a replacement may run at once."),
    row("apps.NAME", "max_unavailable", Count(0, 1024), Is("0"), "1",
        "How many processes a restart may take out before their successors are ready, once the new code has shown that it boots; one always stays."),
    row("apps.NAME", "memory_max", SizeOrTable(1 << 20, "apps.NAME.memory_max"), Means("no limit"), r#""512MiB""#,
        "Memory of a worker (its proportional set size), or bounds on it; a size alone is `hard`."),
    row("apps.NAME", "max_tasks", Count(16, 4_194_304), Means("no limit; with a `user`, 1024 and room for its workers"), "512",
        "Processes and threads at once of its workers and of all that they start: one more is refused (a cgroup; see isolation.md). \
         A change takes a restart."),
    row("apps.NAME", "max_total_memory", Size(16 << 20), Means("no limit"), r#""2GiB""#,
        "Memory of its workers and of all that they start together: what takes more is killed (a cgroup; see isolation.md). \
         A change takes a restart."),
    row("apps.NAME", "max_cpu", Decimal(0.01, 1024.0), Means("no limit"), "1.5",
        "Processors that its workers and all that they start use together: beyond it they wait (a cgroup; see isolation.md). \
         A change takes a restart."),
    row("apps.NAME", "requests_max", Count(1, 1_000_000_000_000), Means("no limit"), "100000",
        "Requests of a worker after which it is replaced, less up to a tenth by chance.")
        .only(SCRIPT_KINDS),
    row("apps.NAME", "age_max", Time(1), Means("no limit"), r#""1d""#,
        "Age at which a worker is replaced, less up to a tenth by chance."),
    row("apps.NAME", "collect_when_idle", Bool, Is("false"), "true",
        "Whether garbage is collected between requests, when the queue is empty, not within them.")
        .only(THREADED),
    row("apps.NAME", "user", Text("a user's name or number, or `user:group`"), Means("`server.user`, or whoever starts the server"), r#""shop""#,
        "Whom its processes run as; needs to be started as root."),
    row("apps.NAME", "group", Text("a group's name or number"), Means("the groups of `user`"), r#""shop""#,
        "The group beside `user`."),
    row("apps.NAME", "env", Map, Is("{}"), r#"{ GREETING = "hello" }"#,
        "Variables added to the workers' environment."),
    row("apps.NAME", "upstream", Table("apps.NAME.upstream"), Means("every default"),
        r#"{ connect_timeout = "1s", health = { path = "/up" } }"#,
        "How its processes are spoken to.")
        .only(PROGRAM_KINDS),

    row("apps.NAME.isolation", "read_paths", Texts(FILE_PATH), Means("any; with `write_paths`, none"), r#"["/srv/shared"]"#,
        "Files and folders that its processes may read, relative to the file's folder, beside `dir`, the interpreter and the folders \
         of the system (isolation.md)."),
    row("apps.NAME.isolation", "write_paths", Texts(FILE_PATH), Means("any; with `read_paths`, none"), r#"["uploads"]"#,
        "Files and folders that they may write to, and read; temporary files go to the first unless `env` has a `TMPDIR`."),
    row("apps.NAME.isolation", "connect_ports", Texts(PORT), Means("any"), r#"["5432", "6379"]"#,
        "TCP ports that they may connect to."),
    row("apps.NAME.isolation", "bind_ports", Texts(PORT), Means("any"), "[]",
        "TCP ports that they may listen on by themselves, beside the port that Penstock gives a program."),

    row("apps.NAME.processes", "min", Count(1, 1024), Is("1"), "1",
        "Processes kept for ever."),
    row("apps.NAME.processes", "max", Count(1, 1024), Means("number of cores, or `min` if that is more"), "4",
        "Processes never exceeded."),

    row("apps.NAME.threads", "min", Count(1, 1024), Is("1"), "2",
        "Threads of each process that always take requests."),
    row("apps.NAME.threads", "max", Count(1, 1024), Means("5, or `min` if that is more"), "16",
        "Threads of each process never exceeded, but for `io_threads`."),

    row("apps.NAME.scale", "up_after", Time(1), Is(r#""100ms""#), r#""100ms""#,
        "One process or thread more when requests have waited this long in the queue."),
    row("apps.NAME.scale", "idle_ttl", Time(1), Is(r#""60s""#), r#""60s""#,
        "One process less, or threads, when so much capacity has not been used for this long."),
    row("apps.NAME.scale", "spawn_rate", Count(1, 1024), Is("4"), "4",
        "Most processes that are started within a second."),

    row("apps.NAME.memory_max", "soft", Size(1 << 20), Means("four fifths of `hard`"), r#""400MiB""#,
        "Bytes at which a worker is replaced after the requests that it has."),
    row("apps.NAME.memory_max", "hard", Size(1 << 20), Means("five quarters of `soft`"), r#""512MiB""#,
        "Bytes at which a worker is killed."),
    row("apps.NAME.memory_max", "samples", Count(1, 1000), Is("3"), "3",
        "How many looks in a row, a few seconds apart, must find a worker above a bound."),

    row("apps.NAME.queue", "max", Count(0, 10_000_000), Is("1000"), "1000",
        "Requests that may wait; one more is answered 503 at once."),
    row("apps.NAME.queue", "timeout", Time(1), Is(r#""30s""#), r#""30s""#,
        "How long a request may wait; after it the answer is 503."),

    row("sites", "hosts", Texts(HOST), Means("any host that no other site names"), r#"["example.com", "*.example.com"]"#,
        "Hosts the site answers for."),
    row("sites", "routes", List("sites.routes"), Required, "",
        "Routes, tried in order."),
    row("sites", "error_pages", Map, Is("{}"), r#"{ 404 = "errors/404.html", 5xx = "errors/50x.html" }"#,
        "Files, of at most 1MiB, that take the place of the server's own error pages, by status or by class (`4xx`, `5xx`); \
         what an application or upstream answers is sent as it is, and so is the server's page for a request that is too \
         broken to tell its site. They are read at start and at a reload."),

    row("sites.routes", "path", Text(PATH), Is(r#""/*""#), r#""/*""#,
        "The path it is for, or every path below one when it ends in `/*`."),
    row("sites.routes", "files", Table("sites.routes.files"), Means("no files"), r#"{ root = "public" }"#,
        "Files to look for first."),
    row("sites.routes", "app", Text("the name of an [apps.NAME] table"), Means("no app"), r#""hello""#,
        "Application that answers what no file did."),
    row("sites.routes", "upstream", Text(UPSTREAM), Means("no upstream"), r#""legacy""#,
        "Upstream that answers what no file did.")
        .only("a route without `app`"),
    row("sites.routes", "hub", TextOrTable(CHANNEL, "sites.routes.hub"), Means("no streams"), r#""news.{path.1}""#,
        "Holds a stream of Server-Sent Events for whoever comes; a text alone is `channel`.")
        .only("a route without `app`, `upstream` and `files`"),
    row("sites.routes", "mercure", Table("sites.routes.mercure"), Means("no Mercure hub"),
        r#"{ publisher_key = "!ChangeThisMercureHubJWTSecretKey!", anonymous = true }"#,
        "Answers as a Mercure hub, of this server alone also with `server.redis`; its clients look for it at the path \
         `/.well-known/mercure`.")
        .only("a route without `app`, `upstream`, `files` and `hub`"),
    row("sites.routes", "grip", Bool, Means("as the application or upstream says"), "true",
        "Whether what the application or upstream says by GRIP is obeyed on this route.")
        .only(BACK_END),
    row("sites.routes", "sendfile", FlagOrPaths, Means("as the application or upstream says"), r#"["private"]"#,
        "Whether its responses may name another body on this route.")
        .only(BACK_END),
    row("sites.routes", "internal", Bool, Is("false"), "true",
        "Whether the route is for internal redirects (`X-Accel-Redirect`) only; for a client it is not there: the next one that matches answers."),
    row("sites.routes", "rewrite", Table("sites.routes.rewrite"), Means("no change"), r#"{ strip_prefix = "/api" }"#,
        "How the path is changed."),
    row("sites.routes", "request_headers", Table("sites.routes.request_headers"), Means("no change"),
        r#"{ set = { X-Site = "{host}" }, remove = ["X-Debug"] }"#,
        "How the request's header is changed."),
    row("sites.routes", "response_headers", Table("sites.routes.response_headers"), Means("no change"),
        r#"{ set = { X-Frame-Options = "DENY" } }"#,
        "How the response's header is changed."),
    row("sites.routes", "request_buffering", Bool, Means("the upstream's"), "false",
        "Whether request bodies are read whole before a back end hears of them.")
        .only(PROXIED),
    row("sites.routes", "response_buffering", Bool, Means("the upstream's"), "false",
        "Whether responses are taken off the back end faster than the client takes them.")
        .only(PROXIED),
    row("sites.routes", "max_body", Size(1), Means("`limits.body_bytes`"), r#""2GiB""#,
        "Longest request body; above it the answer is 413."),
    row("sites.routes", "cache", ListOrTable(CACHE, "sites.routes.cache"), Means("no cache"), r#"["disk1"]"#,
        "Caches in front of the app or upstream; a list alone is `stores`.")
        .only(BACK_END),

    row("sites.routes.files", "root", Path, Required, r#""public""#,
        "Folder of the files; nothing outside it is served."),
    row("sites.routes.files", "try", Texts(TRY), Is(r#"["{path}", "{path}/index.html"]"#),
        r#"["{path}", "{path}/index.html", "{path}.html"]"#,
        "Places to look in, in order; one without `{path}` is the same file for every path."),
    row("sites.routes.files", "blocking", Text("the name of a [blocking.NAME] table"), Is(r#""default""#), r#""default""#,
        "Pool that reads the files."),
    row("sites.routes.files", "listing", Bool, Is("false"), "true",
        "Whether a folder without an index page is answered with a list of what is in it."),
    row("sites.routes.files", "precompressed", FlagOrWords(CODINGS), Is("true"), r#"["br", "gzip"]"#,
        "Codings whose ready-made files (`app.js.zst`, `.br`, `.gz`) are looked for beside a file, the preferred one first."),
    row("sites.routes.files", "compress", FlagOrWords(CODINGS), Is("true"), r#"["zstd", "gzip"]"#,
        "Codings that files of a type that profits are compressed with when they are asked for, the preferred one first."),
    row("sites.routes.files", "immutable", Bool, Is("true"), "false",
        "Whether names with a fingerprint in them, such as `app-3f9a1c07.js`, may be kept by clients for a year without asking (RFC 8246); a rule of `cache_control` comes first."),
    row("sites.routes.files", "cache_control", Map, Is("{}"), r#"{ "*.html" = "no-cache", "/img/*" = "max-age=86400" }"#,
        "`Cache-Control` by a pattern of the file: of its path below the root if it begins with a slash (`/img/*`, `/index.html`), \
         else of its name (`*.css`); `*` stands for anything, and the first that matches counts, in the order of the file."),
    row("sites.routes.files", "types", Map, Is("{}"), r#"{ webmanifest = "application/manifest+json" }"#,
        "Media types by extension, over those that are known."),
    row("sites.routes.files", "symlinks", OneOf(&["inside", "none", "any"]), Is(r#""inside""#), r#""none""#,
        "Which symbolic links below the root are followed: those that stay inside it, none, or any, wherever they lead; others are not found."),
    row("sites.routes.files", "hide", Texts(HIDE), Means("`server.hide`"), r#"["default", "!*.py", "drafts/"]"#,
        "Names that are not found, whatever their case and whatever link leads to them: names (`*.psd`), folders (`drafts/`), paths below \
         the root (`/internal/*`), exceptions (`!*.py`). The last that matches counts. `\"default\"` stands for sources, databases, \
         keys, backups, logs and what holds passwords; names that begin with a dot are never found."),

    row("sites.routes.rewrite", "strip_prefix", Text(PREFIX), Means("nothing"), r#""/api""#,
        "Taken off the front of the path, if it is there."),
    row("sites.routes.rewrite", "add_prefix", Text(PREFIX), Means("nothing"), r#""/v2""#,
        "Put in front."),
    row("sites.routes.rewrite", "response_paths", Bool, Is("true"), "false",
        "Whether `Location`, `Content-Location`, `Refresh` and cookie paths of an upstream are put back under `strip_prefix`."),

    row("sites.routes.request_headers", "remove", Texts(FIELD), Is("[]"), r#"["X-Debug"]"#,
        "Fields that are dropped."),
    row("sites.routes.request_headers", "set", Map, Is("{}"), r#"{ X-Site = "{host}" }"#,
        "Fields that replace all of their name."),
    row("sites.routes.request_headers", "add", Map, Is("{}"), r#"{ Via = "1.1 front" }"#,
        "Fields that are added to those there are."),
];

const V1: &str = "0.1";
pub(super) const ADDRESS: &str = crate::ListenAddr::EXPECTED;
const ADDRESS_OR_OFF: &str =
    "\"off\", or an address such as \"127.0.0.1:8090\" or \"unix:/run/admin.sock\"";
const SOCKET_OR_OFF: &str = "\"off\", or a Unix socket such as \"unix:/run/penstock/control.sock\"";
const ENTRY: &str = "\"module:callable\", \"module:factory()\" or a .ru or .rb file";
pub(super) const SCRIPT_KINDS: &str = "the kinds \"wsgi\", \"asgi\" and \"rack\"";
const BACK_END: &str = "a route with an `app` or `upstream`";
pub(super) const THREADED: &str = "the kinds \"wsgi\" and \"rack\" without `async`";
const ASGI: &str = "the kind \"asgi\"";
const REACTOR: &str = "applications with a reactor: the kind \"asgi\", or `async`";
const PRELOADED: &str = "the kinds \"wsgi\" and \"rack\" without `async`, with `preload`";
const PROGRAM_KINDS: &str = "the kinds \"command\" and \"fastcgi\"";
const COMMAND: &str = "a command such as \"thin -p {port} start\", each quote closed";
const PROXIED: &str = "a route with an `upstream`, or an `app` of kind \"command\" or \"fastcgi\"";
const NETWORK: &str = "\"unix\", an address, or a network such as \"10.0.0.0/8\"";
const PREFIX: &str = "a path such as \"/api\", without a final slash";
const FIELD: &str = crate::headers::FIELD_EXPECTED;
pub(super) const UPSTREAM: &str = "the name of an [upstreams.NAME] table";
const HOST: &str = "a host such as \"example.com\" or \"*.example.com\", without scheme and port";
const PATH: &str = "a path such as \"/about\" or \"/assets/*\"";
const FILE_PATH: &str = "a path, relative to the folder of the file";
const PORT: &str = "a port such as \"5432\"";
const HIDE: &str = crate::hide::HIDE_EXPECTED;
const CODINGS: &[&str] = &["zstd", "br", "gzip"];
const TRY: &str = "a path inside the root such as \"{path}.html\" or \"/index.html\"";

pub(super) const fn row(
    section: &'static str,
    key: &'static str,
    kind: super::Kind,
    default: super::Unset,
    sample: &'static str,
    doc: &'static str,
) -> Opt {
    Opt {
        section,
        key,
        kind,
        default,
        sample,
        only: "",
        doc,
        since: V1,
    }
}

impl Opt {
    /// The row of an option that may be written beside some others only.
    pub(super) const fn only(mut self, what: &'static str) -> Self {
        self.only = what;
        self
    }
}
