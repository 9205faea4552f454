//! The servers of this machine that this user may ask: found by their control sockets.
//!
//! Used by `target` where a command does not name its server, by `check` for addresses that the
//! running server of the same configuration holds, and at a start to name the owner of an address.
//!
//! # Invariants
//!
//! - No more than [`MAX_SERVERS`] are asked, each for at most [`QUERY_TIMEOUT`].
//! - A socket's file is removed only where no process listens, in a folder of control sockets, which
//!   root and this user alone can write to, and not when it is new: a server that starts makes it
//!   before it listens.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use penstock_client::ClientError;
use penstock_config::ListenAddr;
use serde_json::Value;

use super::target::AdminTarget;
use crate::control;

/// Maximum number of sockets that are tried.
const MAX_SERVERS: usize = 64;

/// How long one server may take to answer.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// Age from which a socket without a listener is a dead server's.
const MIN_DEAD_AGE: Duration = Duration::from_secs(10);

/// A server that answers at its control socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunningServer {
    pub(crate) pid: u32,
    /// The folder that it was started in.
    folder: Option<PathBuf>,
    /// Its configuration file.
    config: Option<PathBuf>,
    /// The addresses that it prints at its start.
    listeners: Vec<String>,
    pub(super) socket: PathBuf,
}

/// The servers that answer, in the order of their sockets' names. Blocks.
pub(crate) fn find_running_servers() -> Vec<RunningServer> {
    let sockets = control::existing_sockets().into_iter().take(MAX_SERVERS);
    let mut all: Vec<RunningServer> = Vec::new();
    for socket in sockets {
        match query(&socket) {
            // Its admin interface may be another socket.
            Ok(Some(found)) if all.iter().any(|server| server.pid == found.pid) => {}
            Ok(found) => all.extend(found),
            Err(error)
                if error.kind() == ErrorKind::ConnectionRefused
                    && control::is_in_own_folder(&socket) =>
            {
                remove_dead(&socket, SystemTime::now());
            }
            // Of another user, or of another program.
            Err(_) => {}
        }
    }
    all
}

/// Asks the server behind a socket; `None` if what answers is none.
///
/// # Errors
/// It cannot be connected to.
fn query(socket: &Path) -> io::Result<Option<RunningServer>> {
    let target = AdminTarget::at_socket(socket.to_owned());
    match target.try_send("GET", "/status.json", "", QUERY_TIMEOUT) {
        Ok(response) => {
            let status = serde_json::from_slice::<Value>(&response.body).ok();
            Ok(status.and_then(|status| RunningServer::from_status(&status, socket)))
        }
        Err(ClientError::Connect(error)) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Removes the socket of a server that was killed.
fn remove_dead(socket: &Path, now: SystemTime) {
    let Ok(about) = socket.symlink_metadata() else {
        return;
    };
    // A connection to any other file is refused, too.
    if !about.file_type().is_socket() {
        return;
    }
    let made = about.modified();
    let age = made.map(|made| now.duration_since(made).unwrap_or_default());
    if age.is_ok_and(|age| age > MIN_DEAD_AGE) {
        // Without the right to, it stays: the next start at its address replaces it.
        let _ = std::fs::remove_file(socket);
    }
}

impl RunningServer {
    fn from_status(status: &Value, socket: &Path) -> Option<Self> {
        let path = |key: &str| status[key].as_str().map(PathBuf::from);
        let listeners = status["listeners"].as_array().into_iter().flatten();
        Some(Self {
            pid: u32::try_from(status["pid"].as_u64()?).ok()?,
            folder: path("folder"),
            config: path("config"),
            listeners: listeners
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
            socket: socket.to_owned(),
        })
    }

    /// Its name for a message: `penstock of /srv/shop/penstock.toml`.
    pub(crate) fn name(&self) -> String {
        match self.config.as_ref().or(self.folder.as_ref()) {
            Some(place) => format!("penstock of {}", place.display()),
            None => "penstock".to_owned(),
        }
    }

    /// Whether it has an address, alone or with others.
    pub(crate) fn listens_at(&self, address: &ListenAddr) -> bool {
        self.listeners.iter().any(|name| {
            let authority = name
                .split_once("://")
                .map_or(name.as_str(), |(_, rest)| rest);
            let own = authority.trim_start_matches('*').parse::<ListenAddr>();
            own.is_ok_and(|own| own == *address || own.overlaps(address))
        })
    }

    /// Whether it serves this configuration file, or without one this folder.
    pub(crate) fn serves(&self, config: Option<&Path>, folder: &Path) -> bool {
        match config {
            Some(file) => {
                let own = self.config.as_deref();
                own.is_some_and(|own| own == file || is_same_file(own, file))
            }
            None => self.folder.as_deref().is_some_and(|own| own == folder),
        }
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(one).is_some_and(|one| Some(one) == real(other))
}

/// The list of servers for a message, each with the option that names it; empty without one.
pub(super) fn describe_servers(servers: &[RunningServer]) -> String {
    let mut text = String::new();
    for server in servers {
        // The control socket is what the option names.
        let socket = ListenAddr::Unix(server.socket.clone()).to_string();
        let others = server.listeners.iter().filter(|name| **name != socket);
        let addresses: Vec<&str> = others.map(String::as_str).collect();
        text.push_str(&format!(
            "\n  {} (process {}) at {}: --admin {socket}",
            server.name(),
            server.pid,
            addresses.join(", ")
        ));
    }
    match text.is_empty() {
        true => text,
        false => format!("\nrunning servers, and the option that names each:{text}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use serde_json::json;

    fn server(status: &Value) -> RunningServer {
        RunningServer::from_status(status, Path::new("/run/penstock/80.sock")).unwrap()
    }

    #[test]
    fn a_server_is_known_by_its_file_or_else_its_folder() {
        let of_file = server(&json!({ "pid": 7, "folder": "/srv/a", "config": "/srv/a/x.toml" }));
        let of_folder = server(&json!({ "pid": 8, "folder": "/srv/a" }));
        let older = server(&json!({ "pid": 9 }));
        let file = Path::new("/srv/a/x.toml");
        for (server, config, folder, expected) in [
            (&of_file, Some(file), "/", true),
            (&of_file, Some(Path::new("/srv/a/y.toml")), "/srv/a", false),
            (&of_file, None, "/srv/a", true),
            (&of_folder, None, "/srv/a", true),
            (&of_folder, None, "/srv", false),
            (&of_folder, Some(file), "/srv/a", false),
            (&older, None, "/srv/a", false),
        ] {
            assert_eq!(
                server.serves(config, Path::new(folder)),
                expected,
                "{server:?} {config:?} {folder}"
            );
        }
    }

    #[test]
    fn a_server_has_the_addresses_that_overlap_with_its_own() {
        let listeners = ["https://127.0.0.1:443", "tcp://*:25", "unix:/run/a.sock"];
        let server = server(&json!({ "pid": 8, "listeners": listeners }));
        for (address, expected) in [
            ("127.0.0.1:443", true),
            (":443", true),
            ("127.0.0.2:443", false),
            ("127.0.0.1:25", true),
            (":26", false),
        ] {
            let address: ListenAddr = address.parse().unwrap();
            assert_eq!(server.listens_at(&address), expected, "{address}");
        }
    }

    #[test]
    fn each_server_is_listed_with_the_option_that_names_it() {
        assert_eq!(describe_servers(&[]), "");
        let listeners = ["http://127.0.0.1:80", "unix:/run/penstock/80.sock"];
        let of_folder = json!({ "pid": 8, "folder": "/srv/a", "listeners": listeners });
        let older = json!({ "pid": 9, "listeners": ["http://127.0.0.1:81"] });
        assert_eq!(
            describe_servers(&[server(&of_folder), server(&older)]),
            "\nrunning servers, and the option that names each:\
             \n  penstock of /srv/a (process 8) at http://127.0.0.1:80: --admin unix:/run/penstock/80.sock\
             \n  penstock (process 9) at http://127.0.0.1:81: --admin unix:/run/penstock/80.sock"
        );
    }

    #[test]
    fn only_an_old_socket_without_a_listener_is_removed() {
        let name = format!("penstock-dead-socket-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        drop(UnixListener::bind(&path).unwrap());
        remove_dead(&path, SystemTime::now());
        assert!(path.exists(), "it may be one of a server that starts");
        remove_dead(&path, SystemTime::now() + MIN_DEAD_AGE * 2);
        assert!(!path.exists());
        std::fs::File::create(&path).unwrap();
        remove_dead(&path, SystemTime::now() + MIN_DEAD_AGE * 2);
        assert!(path.exists(), "it is no socket");
        std::fs::remove_file(&path).unwrap();
    }
}
