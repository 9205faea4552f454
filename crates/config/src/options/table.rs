//! The rows of the option table, in the order in which the reference and the example print them.
//!
//! Data only; `options` says what the columns mean and what is tested about them. Adding an option
//! is one row here, one line in the reader of its section and one field in `model`. The rows of back
//! ends are in `upstreams`, those of caches in `caches`, those of held streams in `hub`.

use super::OptionDefault::{Described, Required, Value};
use super::OptionKind::*;
use super::OptionRow;
use super::caches::CACHE_EXPECTED;
use super::hub::CHANNEL_EXPECTED;

/// Every option but those of back ends, caches and held streams.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[OptionRow] = &[
    option_row("", "server", Table("server"), Described("every default"), "", "Listeners, loops, admin, access log."),
    option_row("", "limits", Table("limits"), Described("every default"), "", "Bounds on clients."),
    option_row("", "blocking", NamedTables("blocking.NAME"), Described("the pool `default`"), "", "Pools for blocking work."),
    option_row("", "apps", NamedTables("apps.NAME"), Described("none"), "", "Applications."),
    option_row("", "upstreams", NamedTables("upstreams.NAME"), Described("none"), "", "Back ends."),
    option_row("", "caches", NamedTables("caches.NAME"), Described("none"), "", "Caches."),
    option_row("", "hub", Table("hub"), Described("every default"), "", "Held streams."),
    option_row("", "sites", Tables("sites"), Described("one site for the only application or upstream"), "", "Sites."),
    option_row("", "tcp", Tables("tcp"), Described("none"), "", "TCP listeners."),

    option_row("server", "listen", TextsOrTables(ADDRESS, "server.listen"), Value(r#"["127.0.0.1:8080"]"#), r#"["127.0.0.1:8080"]"#,
        "Addresses that clients connect to; port 0 takes a free one and prints it. A file with nothing but streams has none."),
    option_row("server", "reuse_port", Bool, Value("false"), "true",
        "Whether other servers of the same user may listen on the same TCP ports: the kernel gives each a share of the connections. Without it a second server is refused."),
    option_row("server", "threads", Number(1, 1024), Described("number of cores"), "2",
        "Number of event loops."),
    option_row("server", "admin", Text(ADDRESS_OR_OFF), Value(r#""127.0.0.1:8090""#), r#""127.0.0.1:8090""#,
        "Address of the status page, metrics and the admin API, or \"off\". Over TCP it shows the server to whoever reaches it, and takes changes only with `server.admin_token`; a Unix socket is for its owner and root, and takes both."),
    option_row("server", "control_socket", Text(SOCKET_OR_OFF), Described("a socket named after the first listener, in `/run/penstock` (root), `$RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR/penstock` or `/tmp/penstock-UID`"), r#""unix:/run/penstock/control.sock""#,
        "Unix socket that `penstock reload`, `stop`, `upgrade` and the other commands use; only root and whoever starts the server may connect, and no process that the server has started. \"off\" leaves signals. See admin.md."),
    option_row("server", "admin_token", Table("server.admin_token"), Described("none: no changes over TCP"), r#"{ file = "/etc/penstock/token" }"#,
        "The secret that a change over TCP needs, as `Authorization: Bearer`."),
    option_row("server", "probes", Text(ADDRESS), Described("none"), r#"":9090""#,
        "Address where `/healthz`, `/readyz` and `/metrics` answer to any host name, and nothing else does: for orchestrators and Prometheus on other machines."),
    option_row("server", "access_log", TextOrTable("\"off\", \"stdout\", \"stderr\" or a path", "server.access_log"),
        Value(r#""off""#), r#"{ path = "logs/access.log", format = "combined" }"#,
        "Where every request is logged; a text alone is the path, in the combined format."),
    option_row("server", "shutdown_timeout", Duration(0), Value(r#""30s""#), r#""30s""#,
        "How long a stop waits for requests in progress."),
    option_row("server", "upgrade_timeout", Duration(0), Value(r#""5m""#), r#""5m""#,
        "How long the server that `penstock upgrade` has replaced may finish requests, streams and WebSockets that it has; at least `server.shutdown_timeout`. A stop or the next upgrade leaves it that much."),
    option_row("server", "keep_alive_drain", Duration(0), Value(r#""5s""#), r#""5s""#,
        "How long a stop, or the old server of an upgrade, keeps a connection that waits for its next request, which is then answered with `Connection: close`; at most `limits.idle_timeout`."),
    option_row("server", "log", Text("\"stdout\", \"stderr\" or a path"), Value(r#""stderr""#), r#""logs/server.log""#,
        "Where the server's own log goes, and what applications print; opened again on SIGUSR1 and `penstock reopen`."),
    option_row("server", "log_format", Choice(&["text", "json"]), Value(r#""text""#), r#""json""#,
        "The form of the server's own log: lines for people, or one JSON object a line. Lines of applications that are JSON objects stay as they are."),
    option_row("server", "log_mask", Texts(crate::server::MASK_EXPECTED), Value(r#"["default"]"#), r#"["default", "voucher", "*_pin"]"#,
        "Parameters of queries whose values stand as `***` in both logs, whatever their case and separators; `*` in front matches the \
         ends of names. `\"default\"` stands for tokens, passwords, API keys, signatures of signed URLs and the like. Passwords in URLs are always masked."),
    option_row("server", "user", Text("a user's name or number, or `user:group`"), Described("whoever starts it"), r#""www-data""#,
        "Whom the server becomes once its sockets are open and before any application runs; needs to be started as root."),
    option_row("server", "group", Text("a group's name or number"), Described("the groups of `user`"), r#""www-data""#,
        "The group beside `user`."),
    option_row("server", "umask", Text("three or four octal digits"), Described("as it is started"), r#""027""#,
        "Permissions that new files do not get, in applications too."),
    option_row("server", "max_open_files", Number(64, 100_000_000), Described("as many as the system allows"), "65536",
        "How many files and connections may be open at once."),
    option_row("server", "dir", Path, Described("where it is started"), r#""/""#,
        "Working directory of the server; every path of the configuration stays as it is."),
    option_row("server", "trusted_proxies", Texts(NETWORK), Described("this machine: loopback and Unix sockets"),
        r#"["10.0.0.0/8", "unix"]"#,
        "Proxies whose `Forwarded`, `X-Forwarded-*` and `X-Real-IP` are trusted: client, scheme, host, port and prefix that they say are the request's. Left out, this machine is trusted for client and scheme alone."),
    option_row("server", "client_address", Text("the name of a field such as \"X-Real-IP\""), Described("`X-Forwarded-For`, else `X-Real-IP`; `Forwarded` if there is none of the `X-` fields"), r#""CF-Connecting-IP""#,
        "The one field by which trusted proxies name the client. With `\"Forwarded\"`, scheme and host come from that field, too."),
    option_row("server", "hide", Texts(HIDE), Value(r#"["default"]"#), r#"["default", "*.psd"]"#,
        "Names that are not found below any folder of files: what `hide` of a route means where it is left out, and what `X-Sendfile` may not name."),
    option_row("server", "join", Table("server.join"), Described("nowhere"), r#"{ listen = "10.0.0.1:7000", key = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=" }"#,
        "Where `penstock work` on other machines dials in, to become a server of an upstream that is `joinable`."),
    option_row("server", "redis", Text(crate::server::REDIS_EXPECTED), Described("none: this server is alone"), r#""redis://127.0.0.1:6379""#,
        "The Redis or Valkey that several servers share: what is published on one reaches the streams of all, but for \
         Mercure hubs, which stay each server's own. In a name or password \
         what a URL cannot have stands as `%` and two digits."),

    option_row("server.listen", "address", Text(ADDRESS), Required, r#""127.0.0.1:8080""#,
        "Address that clients connect to."),
    option_row("server.listen", "mode", Text("three or four octal digits"), Value(r#""0666""#), r#""0660""#,
        "Permissions of a Unix socket's file: whoever may write it may connect."),
    option_row("server.listen", "owner", Text("`user`, `user:group` or `:group`, by name or number"), Described("`server.user`, or whoever starts it"), r#"":www-data""#,
        "Whose the file of a Unix socket is; another user than the server's needs a start as root."),
    option_row("server.listen", "proxy_protocol", Bool, Value("false"), "true",
        "Whether its connections begin with a PROXY protocol header, of version 1 or 2."),

    option_row("server.admin_token", "file", Path, Required, r#""/etc/penstock/token""#,
        "File with the token, for example from `openssl rand -base64 32`; only its owner and its group may read it, and root or whoever starts the server owns it."),

    option_row("server.join", "listen", Text(ADDRESS), Required, r#""10.0.0.1:7000""#,
        "Address that it listens at: one that only those machines reach, since nothing there is encrypted."),
    option_row("server.join", "key", Text(crate::join::JOIN_KEY_EXPECTED), Required, r#""J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=""#,
        "What whoever dials in must know as well, by which each side proves to the other who it is."),

    option_row("server.access_log", "path", Text("a path, \"stdout\" or \"stderr\""), Required, r#""logs/access.log""#,
        "File that lines are appended to."),
    option_row("server.access_log", "format", Choice(&["combined", "json", "dev", "off"]), Value(r#""combined""#), r#""combined""#,
        "The form of a line: dev is for a person at a terminal, off writes none."),

    option_row("limits", "connections", Number(1, 10_000_000), Value("100000"), "100000",
        "Client connections open at once, those of held streams included. Fewer where the limit of open files is lower: a part of the files is kept for servers, workers and the admin interface. When all are open, the one that has been idle for longest is closed for a new one."),
    option_row("limits", "connections_per_client", Number(0, 10_000_000), Described("half of all connections, and 64 at least"), "100",
        "Connections that one client may have open: one IPv4 address, or one IPv6 network of 64 bits. One more is closed at once. 0 is no bound. Trusted proxies and Unix sockets have any number; behind a PROXY protocol header, the client that it names is counted."),
    option_row("limits", "target_bytes", Size(64), Value(r#""8KiB""#), r#""8KiB""#,
        "Longest target of a request line; above it the answer is 414."),
    option_row("limits", "header_bytes", Size(256), Value(r#""32KiB""#), r#""32KiB""#,
        "Longest request head, request line included; above it the answer is 431."),
    option_row("limits", "headers", Number(1, 10_000), Value("100"), "100",
        "Most header fields in a request; above it the answer is 431."),
    option_row("limits", "body_bytes", Size(1), Value(r#""64MiB""#), r#""64MiB""#,
        "Longest request body; above it the answer is 413. `max_body_size` of a route says otherwise for its paths."),
    option_row("limits", "header_timeout", Duration(1), Value(r#""10s""#), r#""10s""#,
        "Time for a whole request head to arrive, however it trickles in; after it the answer is 408. The first one counts from the accept: a connection that sends nothing is closed then."),
    option_row("limits", "idle_timeout", Duration(1), Value(r#""75s""#), r#""75s""#,
        "How long a connection may stay open between two requests."),
    option_row("limits", "body_idle_timeout", Duration(1), Value(r#""30s""#), r#""30s""#,
        "How long nothing at all may arrive of a request body, or be taken of a response, before the connection is cut."),
    option_row("limits", "min_body_rate", Rate, Value(r#""500B/s""#), r#""500B/s""#,
        "Least rate of a request body or of a response being taken, after `body_rate_grace`; 0B/s is no minimum."),
    option_row("limits", "body_rate_grace", Duration(0), Value(r#""10s""#), r#""10s""#,
        "How long a body may be slower than `min_body_rate`."),
    option_row("limits", "body_memory", Size(0), Value(r#""64KiB""#), r#""64KiB""#,
        "Request bodies above this go to an unlinked temporary file."),
    option_row("limits", "response_memory", Size(1), Value(r#""64KiB""#), r#""64KiB""#,
        "How much of an answer is kept in memory for a slow client; the rest goes to a temporary file."),
    option_row("limits", "response_spool", Size(1), Value(r#""64MiB""#), r#""64MiB""#,
        "How much of an answer may wait in that file before the worker has to wait for the client. More, within `temp_bytes`, while other requests wait for a worker."),
    option_row("limits", "min_busy_rate", Rate, Value(r#""64KiB/s""#), r#""64KiB/s""#,
        "Least rate at which a client takes a response that has filled its file and so holds a worker, or a place at an upstream, while other requests wait for one. After `body_rate_grace` below it the response is cut. \
         More is required the longer a request waits, up to eight times as much, and sixteen times as much of a client whose responses hold more than half of the places. 0B/s cuts none."),
    option_row("limits", "temp_bytes", Size(1), Described("a tenth of the disk of `temp_dir`, 16GiB at most; of a `temp_dir` in memory (tmpfs) 128MiB, an eighth at most"), r#""4GiB""#,
        "What all temporary files may take together. Then workers wait for their clients, and a request body that has no room is answered 503. \
         The responses of one client get a sixteenth of what is left, so that others find room."),
    option_row("limits", "websocket_message_bytes", Size(1), Value(r#""1MiB""#), r#""1MiB""#,
        "Longest message of a WebSocket's client, 32MiB at most; above it the connection is closed with 1009."),
    option_row("limits", "temp_dir", Path, Described("the system's temporary folder"), r#""/tmp""#,
        "Folder of the temporary files."),

    option_row("blocking.NAME", "threads", Number(1, 4096), Value("32"), "32",
        "Number of threads."),
    option_row("blocking.NAME", "max_queue", Number(0, 100_000_000), Value("65536"), "65536",
        "Jobs that may wait for a thread; one more is an error that names the pool, and 503. With 0 a job is taken only by a thread that has nothing to do."),

    option_row("apps.NAME", "dir", Path, Described("the folder of the file"), r#"".""#,
        "Folder the workers run in."),
    option_row("apps.NAME", "kind", Choice(&["wsgi", "asgi", "rack", "command", "fastcgi"]), Described("detected"), r#""wsgi""#,
        "The interface of the application; left out, the loaded object says whether it is wsgi or asgi. `command` and `fastcgi` are programs that serve HTTP or FastCGI."),
    option_row("apps.NAME", "entry", Text(ENTRY), Described("detected"), r#""app:application""#,
        "What to load: `module:callable`, `module:factory()` or a module alone for wsgi and asgi; a rackup file, `file.rb` or `file.rb:Constant` for rack.")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "interpreter", Text("a path or a command name"),
        Described("the virtual environment's in `dir`, else `python3` or `ruby`"), r#""python3""#,
        "What runs the workers; a name without a slash is looked up in PATH.")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "command", TextOrTexts(COMMAND), Described("required by its kinds"), r#""thin -p {port} start""#,
        "What each process runs, without a shell; `{port}`, `{socket}` or `{fd}` says where it listens, and a fastcgi \
         program without any of them gets a listening socket as descriptor 0.")
        .only_for(ONLY_PROGRAM_KINDS),
    option_row("apps.NAME", "processes", NumberOrTable(1, 1024, "apps.NAME.processes"), Described("number of cores; 1 in development"),
        "{ min = 1, max = 4 }", "Number of worker processes, or bounds on it."),
    option_row("apps.NAME", "scale", Table("apps.NAME.scale"), Described("every default"), r#"{ up_after = "100ms", max_spawn_rate = 4 }"#,
        "When the number of processes and threads changes between the bounds of `processes` and `threads`.")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "threads", NumberOrTable(1, 1024, "apps.NAME.threads"), Value("1"), "5",
        "Threads in each worker process, each with one request at a time, or bounds on them; of a command, requests that a process \
         gets at once. An application with a reactor has one."),
    option_row("apps.NAME", "io_threads", Number(0, 1024), Value("0"), "4",
        "Threads of each worker process beyond `threads`, for requests that have called `penstock.mark_as_io_bound`: \
         such a request frees its slot, and another takes it.")
        .only_for(ONLY_THREADED),
    option_row("apps.NAME", "async", FlagOrChoice(&["gevent"]), Described("true for asgi, else false"), "false",
        "Whether a process serves its requests by a reactor in one thread instead of threads: a task each (`true`: asgi \
         always, rack on a fiber scheduler), or a greenlet each (`\"gevent\"`: wsgi).")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "max_concurrent", Number(1, 1_000_000), Value("1000"), "1000",
        "Requests in progress at once in a process with a reactor, WebSockets and streams included; more wait in the queue.")
        .only_for(ONLY_REACTOR),
    option_row("apps.NAME", "request_buffering", Bool, Described("false for asgi, and for rack with `async = true`; else true"), "false",
        "Whether a request waits until its body has come whole, to memory or a temporary file, before a worker gets it. \
         With `false` the application reads the body as it comes, and its client is read no faster: live uploads, \
         exchanges in both directions. A slow client then occupies a thread, or one of `max_concurrent`.")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "queue", Table("apps.NAME.queue"), Described("every default"),
        r#"{ max = 1000, timeout = "30s" }"#, "The queue of requests for a free worker."),
    option_row("apps.NAME", "sticky", Choice(&["cookie", "client_ip"]), Described("no stickiness"), r#""cookie""#,
        "Keeps a client at one worker process while that lives, by a cookie or by its address: for what a process remembers \
         between requests, such as the sessions of Socket.IO while it polls. Of a `command` or `fastcgi` application it stands in `upstream`.")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "websocket_compression", Bool, Value("true"), "true",
        "Whether messages of WebSockets are compressed (`permessage-deflate`) where the client offers it.")
        .only_for(ONLY_ASGI),
    option_row("apps.NAME", "response_timeout", Duration(1), Value(r#""60s""#), r#""60s""#,
        "How long a worker may take to answer; after it the answer is 504."),
    option_row("apps.NAME", "boot_timeout", Duration(1), Value(r#""60s""#), r#""60s""#,
        "How long a worker may take to load the application."),
    option_row("apps.NAME", "isolation", FlagOrTable("apps.NAME.isolation"), Value("true"), r#"{ write_paths = ["uploads"] }"#,
        "Whether its processes gain no privileges (`sudo`, set-user-ID programs), do not reach other processes (signals, memory, \
         abstract sockets), and make no system calls that only debuggers and administrators need. A table is `true`, and limits \
         files and ports as well."),
    option_row("apps.NAME", "stop_timeout", Duration(1), Value(r#""10s""#), r#""10s""#,
        "How long a worker that was asked to end may take before it is killed; 2s in development."),
    option_row("apps.NAME", "stream_timeout", Duration(1), Value(r#""5m""#), r#""5m""#,
        "How long WebSockets and streams may go on in a worker that is being replaced; 2s in development.")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "grip", FlagOrTable("apps.NAME.grip"), Value("false"), "true",
        "Whether what the application says by GRIP is obeyed: responses with `Grip-Hold` are held, and of wsgi and rack \
         WebSockets come as requests (WebSocket-over-HTTP). Its workers find in `GRIP_URL` where they publish. A table is `true`. \
         A route may say otherwise."),
    option_row("apps.NAME", "sendfile", FlagOrPaths, Value("false"), r#"["private"]"#,
        "Whether responses may name another body: a route of the site (`X-Accel-Redirect`), or a file by absolute path below one of \
         these folders (`X-Sendfile`); and bound its rate (`X-Accel-Limit-Rate`). A route may say otherwise."),
    option_row("apps.NAME", "sendfile_root", Path, Described("none"), r#""public""#,
        "One folder more of `sendfile`.")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "preload", FlagOrChoice(&["auto"]), Value("\"auto\""), "true",
        "Whether the code is loaded once, in a template process from which the workers are forked: they start in milliseconds \
         and share memory. `\"auto\"`: unless threads that the code has started as it was loaded make that unsafe; then the workers are \
         started one by one. `true`: also then; only an application that says `prevent_fork` is not forked.")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "refork_after", NumberOrNumbers(1, 1_000_000_000), Described("never"), "[500, 1000]",
        "After how many requests of one worker it becomes the template of the others, with all that it has warmed up: the first \
         number for the first time and so on, the last one again and again.")
        .only_for(ONLY_PRELOADED),
    option_row("apps.NAME", "max_surge", Number(1, 1024), Value("1"), "1",
        "How many processes beyond their number a replacement may run at once."),
    option_row("apps.NAME", "max_unavailable", Number(0, 1024), Value("0"), "1",
        "How many processes a restart may take out before their successors are ready, once the new code has shown that it boots; one always stays."),
    option_row("apps.NAME", "max_memory", SizeOrTable(1 << 20, "apps.NAME.max_memory"), Described("no limit"), r#""512MiB""#,
        "Memory of a worker (its proportional set size), or bounds on it; a size alone is `hard`."),
    option_row("apps.NAME", "max_tasks", Number(16, 4_194_304), Described("no limit; with a `user`, 1024 and room for its workers"), "512",
        "Processes and threads at once of its workers and of all that they start: one more is refused (a cgroup; see isolation.md). \
         A change takes a restart."),
    option_row("apps.NAME", "max_total_memory", Size(16 << 20), Described("no limit"), r#""2GiB""#,
        "Memory of its workers and of all that they start together: what takes more is killed (a cgroup; see isolation.md). \
         A change takes a restart."),
    option_row("apps.NAME", "max_cpu", Decimal(0.01, 1024.0), Described("no limit"), "1.5",
        "Processors that its workers and all that they start use together: beyond it they wait (a cgroup; see isolation.md). \
         A change takes a restart."),
    option_row("apps.NAME", "max_requests", Number(1, 1_000_000_000_000), Described("no limit"), "100000",
        "Requests of a worker after which it is replaced, less up to a tenth by chance.")
        .only_for(ONLY_SCRIPT_KINDS),
    option_row("apps.NAME", "max_age", Duration(1), Described("no limit"), r#""1d""#,
        "Age at which a worker is replaced, less up to a tenth by chance."),
    option_row("apps.NAME", "gc_when_idle", Bool, Value("false"), "true",
        "Whether garbage is collected between requests, when the queue is empty, not within them.")
        .only_for(ONLY_THREADED),
    option_row("apps.NAME", "user", Text("a user's name or number, or `user:group`"), Described("`server.user`, or whoever starts the server"), r#""shop""#,
        "Whom its processes run as; needs to be started as root."),
    option_row("apps.NAME", "group", Text("a group's name or number"), Described("the groups of `user`"), r#""shop""#,
        "The group beside `user`."),
    option_row("apps.NAME", "env", StringMap, Value("{}"), r#"{ GREETING = "hello" }"#,
        "Variables added to the workers' environment."),
    option_row("apps.NAME", "upstream", Table("apps.NAME.upstream"), Described("every default"),
        r#"{ connect_timeout = "1s", health = { path = "/up" } }"#,
        "How its processes are spoken to.")
        .only_for(ONLY_PROGRAM_KINDS),

    option_row("apps.NAME.isolation", "read_paths", Texts(FILE_PATH), Described("any; with `write_paths`, none"), r#"["/srv/shared"]"#,
        "Files and folders that its processes may read, relative to the file's folder, beside `dir`, the interpreter and the folders \
         of the system (isolation.md)."),
    option_row("apps.NAME.isolation", "write_paths", Texts(FILE_PATH), Described("any; with `read_paths`, none"), r#"["uploads"]"#,
        "Files and folders that they may write to, and read; temporary files go to the first unless `env` has a `TMPDIR`."),
    option_row("apps.NAME.isolation", "connect_ports", Texts(PORT), Described("any"), r#"["5432", "6379"]"#,
        "TCP ports that they may connect to."),
    option_row("apps.NAME.isolation", "bind_ports", Texts(PORT), Described("any"), "[]",
        "TCP ports that they may listen on by themselves, beside the port that Penstock gives a program."),

    option_row("apps.NAME.processes", "min", Number(1, 1024), Value("1"), "1",
        "Processes kept for ever."),
    option_row("apps.NAME.processes", "max", Number(1, 1024), Described("number of cores, or `min` if that is more"), "4",
        "Processes never exceeded."),

    option_row("apps.NAME.threads", "min", Number(1, 1024), Value("1"), "2",
        "Threads of each process that always take requests."),
    option_row("apps.NAME.threads", "max", Number(1, 1024), Described("5, or `min` if that is more"), "16",
        "Threads of each process never exceeded, but for `io_threads`."),

    option_row("apps.NAME.scale", "up_after", Duration(1), Value(r#""100ms""#), r#""100ms""#,
        "One process or thread more when requests have waited this long in the queue."),
    option_row("apps.NAME.scale", "idle_timeout", Duration(1), Value(r#""60s""#), r#""60s""#,
        "One process less, or threads, when so much capacity has not been used for this long."),
    option_row("apps.NAME.scale", "max_spawn_rate", Number(1, 1024), Value("4"), "4",
        "Most processes that are started within a second."),

    option_row("apps.NAME.max_memory", "soft", Size(1 << 20), Described("four fifths of `hard`"), r#""400MiB""#,
        "Bytes at which a worker is replaced after the requests that it has."),
    option_row("apps.NAME.max_memory", "hard", Size(1 << 20), Described("five quarters of `soft`"), r#""512MiB""#,
        "Bytes at which a worker is killed."),
    option_row("apps.NAME.max_memory", "samples", Number(1, 1000), Value("3"), "3",
        "How many looks in a row, a few seconds apart, must find a worker above a bound."),

    option_row("apps.NAME.queue", "max", Number(0, 10_000_000), Value("1000"), "1000",
        "Requests that may wait; one more is answered 503 at once."),
    option_row("apps.NAME.queue", "timeout", Duration(1), Value(r#""30s""#), r#""30s""#,
        "How long a request may wait; after it the answer is 503."),

    option_row("sites", "hosts", Texts(HOST), Described("any host that no other site names"), r#"["example.com", "*.example.com"]"#,
        "Hosts the site answers for."),
    option_row("sites", "routes", Tables("sites.routes"), Required, "",
        "Routes, tried in order."),
    option_row("sites", "error_pages", StringMap, Value("{}"), r#"{ 404 = "errors/404.html", 5xx = "errors/50x.html" }"#,
        "Files, of at most 1MiB, that take the place of the server's own error pages, by status or by class (`4xx`, `5xx`); \
         what an application or upstream answers is sent as it is, and so is the server's page for a request that is too \
         broken to tell its site. They are read at start and at a reload."),

    option_row("sites.routes", "path", Text(PATH), Value(r#""/*""#), r#""/*""#,
        "The path it is for, or every path below one when it ends in `/*`."),
    option_row("sites.routes", "files", Table("sites.routes.files"), Described("no files"), r#"{ root = "public" }"#,
        "Files to look for first."),
    option_row("sites.routes", "app", Text("the name of an [apps.NAME] table"), Described("no app"), r#""hello""#,
        "Application that answers what no file did."),
    option_row("sites.routes", "upstream", Text(UPSTREAM), Described("no upstream"), r#""legacy""#,
        "Upstream that answers what no file did.")
        .only_for("a route without `app`"),
    option_row("sites.routes", "hub", TextOrTable(CHANNEL_EXPECTED, "sites.routes.hub"), Described("no streams"), r#""news.{path.1}""#,
        "Holds a stream of Server-Sent Events for whoever comes; a text alone is `channel`.")
        .only_for("a route without `app`, `upstream` and `files`"),
    option_row("sites.routes", "mercure", Table("sites.routes.mercure"), Described("no Mercure hub"),
        r#"{ publisher_key = "!ChangeThisMercureHubJWTSecretKey!", anonymous = true }"#,
        "Answers as a Mercure hub, of this server alone also with `server.redis`; its clients look for it at the path \
         `/.well-known/mercure`.")
        .only_for("a route without `app`, `upstream`, `files` and `hub`"),
    option_row("sites.routes", "grip", Bool, Described("as the application or upstream says"), "true",
        "Whether what the application or upstream says by GRIP is obeyed on this route.")
        .only_for(ONLY_ROUTE_WITH_BACKEND),
    option_row("sites.routes", "sendfile", FlagOrPaths, Described("as the application or upstream says"), r#"["private"]"#,
        "Whether its responses may name another body on this route.")
        .only_for(ONLY_ROUTE_WITH_BACKEND),
    option_row("sites.routes", "internal", Bool, Value("false"), "true",
        "Whether the route is for internal redirects (`X-Accel-Redirect`) only; for a client it is not there: the next one that matches answers."),
    option_row("sites.routes", "rewrite", Table("sites.routes.rewrite"), Described("no change"), r#"{ strip_prefix = "/api" }"#,
        "How the path is changed."),
    option_row("sites.routes", "request_headers", Table("sites.routes.request_headers"), Described("no change"),
        r#"{ set = { X-Site = "{host}" }, remove = ["X-Debug"] }"#,
        "How the request's header is changed."),
    option_row("sites.routes", "response_headers", Table("sites.routes.response_headers"), Described("no change"),
        r#"{ set = { X-Frame-Options = "DENY" } }"#,
        "How the response's header is changed."),
    option_row("sites.routes", "request_buffering", Bool, Described("the upstream's"), "false",
        "Whether request bodies are read whole before a back end hears of them.")
        .only_for(ONLY_PROXIED),
    option_row("sites.routes", "response_buffering", Bool, Described("the upstream's"), "false",
        "Whether responses are taken off the back end faster than the client takes them.")
        .only_for(ONLY_PROXIED),
    option_row("sites.routes", "max_body_size", Size(1), Described("`limits.body_bytes`"), r#""2GiB""#,
        "Longest request body; above it the answer is 413."),
    option_row("sites.routes", "cache", ListOrTable(CACHE_EXPECTED, "sites.routes.cache"), Described("no cache"), r#"["disk1"]"#,
        "Caches in front of the app or upstream; a list alone is `stores`.")
        .only_for(ONLY_ROUTE_WITH_BACKEND),

    option_row("sites.routes.files", "root", Path, Required, r#""public""#,
        "Folder of the files; nothing outside it is served."),
    option_row("sites.routes.files", "try", Texts(TRY), Value(r#"["{path}", "{path}/index.html"]"#),
        r#"["{path}", "{path}/index.html", "{path}.html"]"#,
        "Places to look in, in order; one without `{path}` is the same file for every path."),
    option_row("sites.routes.files", "blocking", Text("the name of a [blocking.NAME] table"), Value(r#""default""#), r#""default""#,
        "Pool that reads the files."),
    option_row("sites.routes.files", "listing", Bool, Value("false"), "true",
        "Whether a folder without an index page is answered with a list of what is in it."),
    option_row("sites.routes.files", "precompressed", FlagOrChoices(CODINGS), Value("true"), r#"["br", "gzip"]"#,
        "Codings whose ready-made files (`app.js.zst`, `.br`, `.gz`) are looked for beside a file, the preferred one first."),
    option_row("sites.routes.files", "compress", FlagOrChoices(CODINGS), Value("true"), r#"["zstd", "gzip"]"#,
        "Codings that files of a type that profits are compressed with when they are asked for, the preferred one first."),
    option_row("sites.routes.files", "immutable", Bool, Value("true"), "false",
        "Whether names with a fingerprint in them, such as `app-3f9a1c07.js`, may be kept by clients for a year without asking (RFC 8246); a rule of `cache_control` comes first."),
    option_row("sites.routes.files", "cache_control", StringMap, Value("{}"), r#"{ "*.html" = "no-cache", "/img/*" = "max-age=86400" }"#,
        "`Cache-Control` by a pattern of the file: of its path below the root if it begins with a slash (`/img/*`, `/index.html`), \
         else of its name (`*.css`); `*` stands for anything, and the first that matches counts, in the order of the file."),
    option_row("sites.routes.files", "types", StringMap, Value("{}"), r#"{ webmanifest = "application/manifest+json" }"#,
        "Media types by extension, over those that are known."),
    option_row("sites.routes.files", "symlinks", Choice(&["inside", "none", "any"]), Value(r#""inside""#), r#""none""#,
        "Which symbolic links below the root are followed: those that stay inside it, none, or any, wherever they lead; others are not found."),
    option_row("sites.routes.files", "hide", Texts(HIDE), Described("`server.hide`"), r#"["default", "!*.py", "drafts/"]"#,
        "Names that are not found, whatever their case and whatever link leads to them: names (`*.psd`), folders (`drafts/`), paths below \
         the root (`/internal/*`), exceptions (`!*.py`). The last that matches counts. `\"default\"` stands for sources, databases, \
         keys, backups, logs and what holds passwords; names that begin with a dot are never found."),

    option_row("sites.routes.rewrite", "strip_prefix", Text(PREFIX), Described("nothing"), r#""/api""#,
        "Taken off the front of the path, if it is there."),
    option_row("sites.routes.rewrite", "add_prefix", Text(PREFIX), Described("nothing"), r#""/v2""#,
        "Put in front."),
    option_row("sites.routes.rewrite", "response_paths", Bool, Value("true"), "false",
        "Whether `Location`, `Content-Location`, `Refresh` and cookie paths of an upstream are put back under `strip_prefix`."),

    option_row("sites.routes.request_headers", "remove", Texts(FIELD), Value("[]"), r#"["X-Debug"]"#,
        "Fields that are dropped."),
    option_row("sites.routes.request_headers", "set", StringMap, Value("{}"), r#"{ X-Site = "{host}" }"#,
        "Fields that replace all of their name."),
    option_row("sites.routes.request_headers", "add", StringMap, Value("{}"), r#"{ Via = "1.1 front" }"#,
        "Fields that are added to those there are."),
];

const SINCE_FIRST_VERSION: &str = "0.1";
pub(super) const ADDRESS: &str = crate::ListenAddr::EXPECTED;
const ADDRESS_OR_OFF: &str =
    "\"off\", or an address such as \"127.0.0.1:8090\" or \"unix:/run/admin.sock\"";
const SOCKET_OR_OFF: &str = "\"off\", or a Unix socket such as \"unix:/run/penstock/control.sock\"";
const ENTRY: &str = "\"module:callable\", \"module:factory()\" or a .ru or .rb file";
pub(super) const ONLY_SCRIPT_KINDS: &str = "the kinds \"wsgi\", \"asgi\" and \"rack\"";
const ONLY_ROUTE_WITH_BACKEND: &str = "a route with an `app` or `upstream`";
pub(super) const ONLY_THREADED: &str = "the kinds \"wsgi\" and \"rack\" without `async`";
const ONLY_ASGI: &str = "the kind \"asgi\"";
const ONLY_REACTOR: &str = "applications with a reactor: the kind \"asgi\", or `async`";
const ONLY_PRELOADED: &str = "the kinds \"wsgi\" and \"rack\" without `async`, with `preload`";
const ONLY_PROGRAM_KINDS: &str = "the kinds \"command\" and \"fastcgi\"";
const COMMAND: &str = "a command such as \"thin -p {port} start\", each quote closed";
const ONLY_PROXIED: &str =
    "a route with an `upstream`, or an `app` of kind \"command\" or \"fastcgi\"";
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

pub(super) const fn option_row(
    section: &'static str,
    key: &'static str,
    kind: super::OptionKind,
    default: super::OptionDefault,
    sample: &'static str,
    doc: &'static str,
) -> OptionRow {
    OptionRow {
        section,
        key,
        kind,
        default,
        example: sample,
        only_for: "",
        description: doc,
        since: SINCE_FIRST_VERSION,
    }
}

impl OptionRow {
    /// The row of an option that may be written beside some others only.
    pub(super) const fn only_for(mut self, what: &'static str) -> Self {
        self.only_for = what;
        self
    }
}
