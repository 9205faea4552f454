//! The readiness of a server of its own: it is ready once it answers.
//!
//! A listening socket proves little: many servers listen before they load the application, and on
//! an inherited one every connection succeeds. So the probe connects, half-closes at once, and
//! waits for the server to close in turn, which takes a server that accepts and reads. FastCGI
//! programs are left alone where possible, as some libraries end their program at a connection
//! without a request.
//!
//! # Invariants
//! - Nothing is sent, so no server sees a request.
//! - The caller ends the wait with the process, or at the boot time-out.

use std::future::poll_fn;
use std::io;
use std::time::{Duration, Instant};

use penstock_config::ServerAddr;
use penstock_runtime::{Stream, clock};

/// Between two tries at a server that does not answer yet.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// How long a server that took the trouble to listen may leave the connection open before it is
/// believed to be ready all the same: not every one reads before it has a thread to spare.
pub(super) const PROBE_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a FastCGI program has to live to be taken for ready: one that cannot load its code, or
/// not use its socket, mostly ends sooner.
const MIN_ALIVE_TIME: Duration = Duration::from_millis(500);

/// The same of a job: it loads a whole application before it finds out what is missing.
const MIN_JOB_ALIVE_TIME: Duration = Duration::from_secs(2);

/// What shows that a process is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadinessSign {
    /// It closes a silent connection, or leaves it open for [`PROBE_CLOSE_TIMEOUT`].
    AcceptsConnections,
    /// It closes such a connection: the socket is inherited, so a successful connection proves
    /// nothing.
    ClosesConnections,
    /// Its socket is there, if it has one, and it lives for [`MIN_ALIVE_TIME`] or
    /// [`MIN_JOB_ALIVE_TIME`]: nothing connects.
    StaysAlive,
}

/// How to find out whether a process is ready.
#[derive(Debug)]
pub(super) struct ReadinessProbe {
    /// `None` for a job, which does not listen.
    pub(super) address: Option<ServerAddr>,
    pub(super) sign: ReadinessSign,
    pub(super) deadline: Instant,
    /// What runs, in a word, for messages.
    pub(super) program: String,
}

impl ReadinessProbe {
    /// Waits until the server answers, or has lived for long enough. Cancel safe.
    pub(super) async fn wait_until_ready(&self) {
        if self.sign == ReadinessSign::StaysAlive {
            while !self.has_socket() {
                clock::sleep(PROBE_INTERVAL).await;
            }
            return clock::sleep(match self.address {
                Some(_) => MIN_ALIVE_TIME,
                None => MIN_JOB_ALIVE_TIME,
            })
            .await;
        }
        loop {
            if let Ok(stream) = self.connect().await
                && self.is_closed_by_peer(&stream).await
            {
                return;
            }
            clock::sleep(PROBE_INTERVAL).await;
        }
    }

    /// Whether there is a socket: the file of one that the process makes, any that it inherited.
    fn has_socket(&self) -> bool {
        match &self.address {
            // In a folder of our own for temporary files: not a disk that one waits for.
            Some(ServerAddr::Unix(path)) => path.exists(),
            _ => true,
        }
    }

    async fn connect(&self) -> io::Result<Stream> {
        let stream = match &self.address {
            Some(ServerAddr::Tcp(address)) => Stream::connect_tcp(*address).await?,
            Some(ServerAddr::Unix(path)) => Stream::connect_unix(path).await?,
            Some(ServerAddr::Name { .. } | ServerAddr::Srv(_) | ServerAddr::Joined(_)) | None => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        };
        stream.shutdown_write();
        Ok(stream)
    }

    /// Whether the server has seen the connection; `false` when it was reset, as by a process that
    /// ended with it in its queue.
    async fn is_closed_by_peer(&self, stream: &Stream) -> bool {
        let mut greeting = [0; 64];
        let read = poll_fn(|cx| stream.poll_read(cx, &mut greeting));
        if self.sign == ReadinessSign::ClosesConnections {
            return read.await.is_ok();
        }
        match clock::timeout(PROBE_CLOSE_TIMEOUT, read).await {
            Some(read) => read.is_ok(),
            None => true,
        }
    }
}
