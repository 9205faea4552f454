//! Bounds on clients and on blocking work: the `[limits]` and `[blocking.NAME]` tables.

use std::path::PathBuf;
use std::time::Duration;

use crate::options::OptionKind::*;

section! {
    /// Every bound on what a client may send, hold or take; the status page shows use against
    /// bound.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Limits
    in "limits", "[limits]", "[limits]" {
        /// Client connections open at once, those of held streams included. Fewer where the
        /// limit of open files is lower: a part of the files is kept for servers, workers and
        /// the admin interface. When all are open, the one that has been idle for longest is
        /// closed for a new one.
        "connections" => max_connections: usize = 100_000, Number(1, 10_000_000);
        /// Connections that one client may have open: one IPv4 address, or one IPv6 network of
        /// 64 bits. One more is closed at once. 0 is no bound. Trusted proxies and Unix sockets
        /// have any number; behind a PROXY protocol header, the client that it names is
        /// counted.
        "connections_per_client" => max_connections_per_client: Option<usize> = None,
            Number(0, 10_000_000), default "half of all connections, and 64 at least",
            example "100";
        /// Longest target of a request line; above it the answer is 414.
        "target_bytes" => max_uri_size: usize = 8 << 10, Size(64);
        /// Longest request head, request line included; above it the answer is 431.
        "header_bytes" => max_header_size: usize = 32 << 10, Size(256);
        /// Most header fields in a request; above it the answer is 431.
        "headers" => max_headers: usize = 100, Number(1, 10_000);
        /// Longest request body; above it the answer is 413. `max_body_size` of a route says
        /// otherwise for its paths.
        "body_bytes" => max_body_size: u64 = 64 << 20, Size(1);
        /// Time for a whole request head to arrive, however it trickles in; after it the answer
        /// is 408. The first one counts from the accept: a connection that sends nothing is
        /// closed then.
        header_timeout: Duration = Duration::from_secs(10), Time(1);
        /// Time for a whole TLS handshake, from the accept.
        tls_handshake_timeout: Duration = Duration::from_secs(10), Time(1);
        /// TLS handshakes in progress at once; one more closes the connection whose handshake
        /// began first.
        max_tls_handshakes: usize = 4096, Number(1, 10_000_000);
        /// How long a connection may stay open between two requests.
        idle_timeout: Duration = Duration::from_secs(75), Time(1);
        /// How long nothing at all may arrive of a request body, or be taken of a response,
        /// before the connection is cut.
        body_idle_timeout: Duration = Duration::from_secs(30), Time(1);
        /// Least rate of a request body or of a response being taken, after `body_rate_grace`;
        /// 0B/s is no minimum.
        min_body_rate: u64 = 500, Rate;
        /// How long a body may be slower than `min_body_rate`.
        body_rate_grace: Duration = Duration::from_secs(10), Time(0);
        /// Request bodies above this go to an unlinked temporary file.
        "body_memory" => max_body_memory: usize = 64 << 10, Size(0);
        /// How much of an answer is kept in memory for a slow client; the rest goes to a
        /// temporary file.
        "response_memory" => max_response_memory: usize = 64 << 10, Size(1);
        /// How much of an answer may wait in that file before the worker has to wait for the
        /// client. More, within `temp_bytes`, while other requests wait for a worker.
        "response_spool" => max_response_spool: u64 = 64 << 20, Size(1);
        /// Least rate at which a client takes a response that has filled its file and so holds a
        /// worker, or a place at an upstream, while other requests wait for one. After
        /// `body_rate_grace` below it the response is cut. More is required the longer a request
        /// waits, up to eight times as much, and sixteen times as much of a client with responses
        /// in more than half of the places. 0B/s cuts none.
        min_busy_rate: u64 = 64 << 10, Rate;
        /// What all temporary files may take together. Then workers wait for their clients, and a
        /// request body that has no room is answered 503. The responses of one client get a
        /// sixteenth of the rest, so that others find room.
        "temp_bytes" => max_temp_size: Option<u64> = None, Size(1),
            default "a tenth of the disk of `temp_dir`, 16GiB at most; of a `temp_dir` in \
                memory (tmpfs) 128MiB, an eighth at most", example r#""4GiB""#;
        /// Longest message of a WebSocket's client, 32MiB at most; above it the connection is
        /// closed with 1009.
        "websocket_message_bytes" => max_websocket_message_size: usize = 1 << 20, Size(1);
        /// Directory of the temporary files.
        temp_dir: PathBuf = std::env::temp_dir(), Path, default "the system's temporary folder",
            example r#""/tmp""#, by hand;
    }
}

section! {
    /// Pools of threads for work that would block an event loop, such as reading cold files;
    /// give each disk its own so that a slow one does not hold up the others. `default` is
    /// always there.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct BlockingPool
    in "blocking.NAME", "[blocking.NAME]", "[blocking.default]" {
        /// Number of threads.
        threads: usize = 32, Number(1, 4096);
        /// Jobs that may wait for a thread; one more is an error that names the pool, and 503.
        /// With 0 a job is taken only by a thread that has nothing to do.
        "max_queue" => max_queued: usize = 65_536, Number(0, 100_000_000);
    }
}
