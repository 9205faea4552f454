//! How the verbs find the running server, and what authorises them to change it.
//!
//! Used by `admin` and `publish`. A verb that only reads uses the admin interface; one that changes
//! something uses the control socket, or a token if there is no other way.
//!
//! # Invariants
//!
//! - A token is sent only to an address from the command line or the configuration.
//! - A socket that a server named over TCP is used only if it belongs to root or to this user, and
//!   leads to that same server.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_config::{Config, ControlSocket, Invocation, ListenAddr, Server};
use penstock_sys::{account, peer_process};
use serde_json::Value;

use super::ServerLocation;
use super::admin::{ClientStream, RESPONSE_TIMEOUT, send_request};
use crate::{admin_token, control};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdminTarget {
    pub(super) address: ListenAddr,
    /// The token for changes over TCP.
    pub(super) token: Option<String>,
}

impl AdminTarget {
    pub(super) fn without_token(address: ListenAddr) -> Self {
        Self {
            address,
            token: None,
        }
    }

    fn at_socket(path: PathBuf) -> Self {
        Self::without_token(ListenAddr::Unix(path))
    }

    /// The authorization header of a request, with its line end.
    pub(super) fn authorization_header(&self) -> String {
        let token = self.token.as_ref();
        token.map_or_else(String::new, |token| {
            format!("Authorization: Bearer {token}\r\n")
        })
    }
}

/// Finds the address to read from.
///
/// # Errors
/// The configuration's, or that it leads to no server.
pub(super) fn locate_for_reading(to: &ServerLocation) -> Result<AdminTarget, String> {
    if let Some(address) = &to.admin {
        return Ok(AdminTarget::without_token(address.clone()));
    }
    let Some(config) = load_config(to)? else {
        return Ok(AdminTarget::without_token(ListenAddr::loopback(8090)));
    };
    match &config.server.admin {
        Some(admin) => Ok(AdminTarget::without_token(admin.clone())),
        None => control_socket_path(&config.server).map(AdminTarget::at_socket),
    }
}

/// Finds the address for changes.
///
/// # Errors
/// The configuration's, or the addresses that were tried.
pub(super) fn locate_for_changes(to: &ServerLocation) -> Result<AdminTarget, String> {
    let config = match &to.admin {
        // The default configuration file may belong to another server.
        Some(_) if to.config.is_none() => None,
        _ => load_config(to)?,
    };
    let token = config.as_ref().and_then(read_configured_token);
    match (&to.admin, &config) {
        (Some(ListenAddr::Unix(path)), _) => Ok(AdminTarget::at_socket(path.clone())),
        (Some(address), _) => locate_over_tcp(address, token),
        (None, None) => locate_configured_server(&Server::default(), token),
        (None, Some(config)) => locate_configured_server(&config.server, token),
    }
}

/// Finds the server of a configuration: by its socket, else by its admin address.
fn locate_configured_server(
    server: &Server,
    token: Option<Result<String, String>>,
) -> Result<AdminTarget, String> {
    let socket = match control_socket_path(server) {
        Ok(path) => return Ok(AdminTarget::at_socket(path)),
        Err(error) => error,
    };
    match &server.admin {
        Some(admin @ (ListenAddr::Tcp(_) | ListenAddr::Port(_))) => {
            locate_over_tcp(admin, token).map_err(|error| format!("{error} (nor {socket})"))
        }
        _ => Err(format!("no server: {socket}")),
    }
}

fn control_socket_path(server: &Server) -> Result<PathBuf, String> {
    match (&server.control_socket, &server.admin) {
        (ControlSocket::Path(path), _) | (ControlSocket::Auto, Some(ListenAddr::Unix(path))) => {
            Ok(path.clone())
        }
        (ControlSocket::Auto, _) => control::find_control_socket(server),
        (ControlSocket::Off, Some(ListenAddr::Unix(path))) => Ok(path.clone()),
        (ControlSocket::Off, _) => {
            Err("the configuration has `control_socket = \"off\"`".to_owned())
        }
    }
}

/// Finds the server at an admin address: with the token, else by the control socket that it names.
fn locate_over_tcp(
    address: &ListenAddr,
    token: Option<Result<String, String>>,
) -> Result<AdminTarget, String> {
    let unread = match token {
        Some(Ok(token)) => {
            return Ok(AdminTarget {
                address: address.clone(),
                token: Some(token),
            });
        }
        Some(Err(error)) => format!("; server.admin_token: {error}"),
        None => String::new(),
    };
    let asked = status(&AdminTarget::without_token(address.clone()))?;
    let socket = asked["control_socket"].as_str();
    let path = socket.and_then(|socket| socket.strip_prefix("unix:"));
    let path = path.ok_or_else(|| {
        format!(
            "the server at {address} has no control socket: set server.control_socket, or \
             server.admin_token and use -c FILE{unread}"
        )
    })?;
    let target = AdminTarget::at_socket(path.into());
    check_owner(Path::new(path))?;
    let there = status(&target)?;
    if is_same_server(&asked, &there, address) {
        Ok(target)
    } else {
        Err(format!(
            "the server at {address} names unix:{path}, which belongs to another server"
        ))
    }
}

/// Whether two status responses come from one server, which listens on `address`.
fn is_same_server(asked: &Value, there: &Value, address: &ListenAddr) -> bool {
    let port = match address {
        ListenAddr::Tcp(address) => address.port(),
        ListenAddr::Port(port) => *port,
        ListenAddr::Unix(_) => return false,
    };
    let port = format!(":{port}");
    let listeners = there["listeners"].as_array().into_iter().flatten();
    let mut names = listeners.filter_map(Value::as_str);
    asked["pid"].is_u64() && asked["pid"] == there["pid"] && names.any(|name| name.ends_with(&port))
}

/// Checks that root or this user made the socket; root may use any.
fn check_owner(path: &Path) -> Result<(), String> {
    let stream = UnixStream::connect(path);
    let stream = stream.map_err(|error| control::explain_connect(path, &error))?;
    let owner = peer_process::listener_owner(stream.as_fd()).map_err(|error| error.to_string())?;
    let (uid, _) = account::effective_ids();
    if [0, uid].contains(&owner) || uid == 0 {
        return Ok(());
    }
    Err(format!(
        "unix:{} belongs to user {owner}, not to root or user {uid}",
        path.display()
    ))
}

fn status(target: &AdminTarget) -> Result<Value, String> {
    let answer = send_request(target, "GET", "/status.json", RESPONSE_TIMEOUT)?.into_result()?;
    serde_json::from_str(&answer).map_err(|error| format!("unreadable status: {error}"))
}

/// Loads the configuration file; `None` if none is named and none exists here.
fn load_config(to: &ServerLocation) -> Result<Option<Config>, String> {
    let cwd = std::env::current_dir().map_err(|error| error.to_string())?;
    let file = to
        .config
        .clone()
        .unwrap_or_else(|| cwd.join(penstock_config::FILE_NAME));
    if to.config.is_none() && !file.exists() {
        return Ok(None);
    }
    let invocation = Invocation {
        config: Some(file),
        cwd,
        ..Invocation::default()
    };
    let config = penstock_config::resolve(&invocation).map_err(|report| report.to_string())?;
    Ok(Some(config))
}

fn read_configured_token(config: &Config) -> Option<Result<String, String>> {
    let path = config.server.admin_token.as_deref()?;
    Some(admin_token::read_token_file(path))
}

/// Connects to a server; each response may take `patience`.
pub(super) fn connect(
    address: &ListenAddr,
    patience: Duration,
) -> std::io::Result<Box<dyn ClientStream>> {
    let tcp = |address: SocketAddr| {
        let stream = TcpStream::connect_timeout(&address, RESPONSE_TIMEOUT)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Box::new(stream) as Box<dyn ClientStream>)
    };
    match address {
        ListenAddr::Tcp(address) => tcp(*address),
        ListenAddr::Port(port) => tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))),
        ListenAddr::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(patience))?;
            Ok(Box::new(stream))
        }
    }
}

/// Explains why there is no connection, and what to do.
pub(super) fn explain_connect_error(address: &ListenAddr, error: &std::io::Error) -> String {
    match address {
        ListenAddr::Unix(path) => format!("no server: {}", control::explain_connect(path, error)),
        ListenAddr::Tcp(_) | ListenAddr::Port(_) => format!("no server at {address}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_named_socket_is_the_servers_that_was_asked() {
        let address: ListenAddr = "127.0.0.1:8090".parse().unwrap();
        let asked = json!({ "pid": 7 });
        let named = ["http://127.0.0.1:80", "http://0.0.0.0:8090"];
        for (name, there, expected) in [
            ("it", json!({ "pid": 7, "listeners": named }), true),
            (
                "another process",
                json!({ "pid": 8, "listeners": named }),
                false,
            ),
            (
                "another address",
                json!({ "pid": 7, "listeners": ["http://127.0.0.1:8091"] }),
                false,
            ),
            ("none", json!({ "pid": 7 }), false),
            ("nothing", json!({}), false),
        ] {
            assert_eq!(is_same_server(&asked, &there, &address), expected, "{name}");
        }
        assert!(!is_same_server(
            &json!({}),
            &json!({ "listeners": named }),
            &address
        ));
    }

    #[test]
    fn a_token_is_a_field() {
        let mut target = AdminTarget::without_token(ListenAddr::loopback(1));
        assert_eq!(target.authorization_header(), "");
        target.token = Some("abc".to_owned());
        assert_eq!(
            target.authorization_header(),
            "Authorization: Bearer abc\r\n"
        );
    }
}
