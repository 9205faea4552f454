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

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_client::{Address, Client, ClientError, Response as ClientResponse};
use penstock_config::{ControlSocket, Invocation, ListenAddr, Server};
use penstock_runtime::loops::block_on;
use penstock_sys::{account, peer_process};
use serde_json::Value;

use super::ServerLocation;
use super::running_servers::{RunningServer, describe_servers, find_running_servers};
use crate::{admin_token, control};

/// How long a server may take to answer a query.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// More than the status of any server.
pub(super) const MAX_RESPONSE_BYTES: usize = 64 << 20;

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

    pub(super) fn at_socket(path: PathBuf) -> Self {
        Self::without_token(ListenAddr::Unix(path))
    }

    pub(super) fn connect_address(&self) -> Address {
        match &self.address {
            ListenAddr::Tcp(address) => Address::Tcp(*address),
            ListenAddr::Port(port) => Address::Tcp((Ipv4Addr::LOCALHOST, *port).into()),
            ListenAddr::Unix(path) => Address::Unix(path.clone()),
        }
    }

    pub(super) fn encode_request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let authorization = match &self.token {
            Some(token) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    /// Sends a request on a connection of its own; returns the response body.
    pub(super) fn send(
        &self,
        method: &str,
        path: &str,
        body: &str,
        timeout: Duration,
    ) -> Result<String, String> {
        let response = self.try_send(method, path, body, timeout);
        read_response(&response.map_err(|error| self.explain_error(&error))?)
    }

    /// As [`Self::send`], for callers to which the way of a failure matters.
    pub(super) fn try_send(
        &self,
        method: &str,
        path: &str,
        body: &str,
        timeout: Duration,
    ) -> Result<ClientResponse, ClientError> {
        let request = self.encode_request(method, path, body);
        let mut client = Client::new(self.connect_address());
        let exchange = async {
            client.connect(RESPONSE_TIMEOUT).await?;
            client.exchange(&request, timeout, MAX_RESPONSE_BYTES).await
        };
        block_on(exchange).map_err(ClientError::Connect).flatten()
    }

    /// Fetches the server's status.
    pub(super) fn fetch_status(&self) -> Result<Value, String> {
        let answer = self.send("GET", "/status.json", "", RESPONSE_TIMEOUT)?;
        serde_json::from_str(&answer).map_err(|error| format!("unreadable status: {error}"))
    }

    /// Explains why there is no response, and what to do.
    pub(super) fn explain_error(&self, error: &ClientError) -> String {
        match (&self.address, error) {
            (ListenAddr::Unix(path), ClientError::Connect(error)) => {
                format!("no server: {}", control::explain_connect_error(path, error))
            }
            (address, ClientError::Connect(error)) => format!("no server at {address}: {error}"),
            (address, _) => format!("{address}: {error}"),
        }
    }
}

/// The body of a response.
///
/// # Errors
/// The server's message, where it refuses.
pub(super) fn read_response(response: &ClientResponse) -> Result<String, String> {
    let text = String::from_utf8_lossy(&response.body).into_owned();
    if response.status < 300 {
        return Ok(text);
    }
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let error = value["error"].as_str();
    Err(error.unwrap_or_else(|| text.trim_end()).to_owned())
}

/// Finds the target of commands that read.
///
/// # Errors
/// The configuration's, or that it leads to no server.
pub(super) fn locate_read_target(to: &ServerLocation) -> Result<AdminTarget, String> {
    if let Some(address) = &to.admin {
        return Ok(AdminTarget::without_token(address.clone()));
    }
    let server = load_server(to)?;
    if let Some(own) = find_own_server(to)? {
        return Ok(AdminTarget::at_socket(own.socket));
    }
    let admin = match &server {
        Some(server) => server.admin.clone(),
        None => Some(ListenAddr::loopback(8090)),
    };
    let found = match admin {
        Some(admin) => check_listens(AdminTarget::without_token(admin)),
        None => control_socket_path(&server.unwrap_or_default()).map(AdminTarget::at_socket),
    };
    found.map_err(|error| {
        let others = describe_servers(&find_running_servers());
        format!("{error}{others}")
    })
}

/// Checks that a server listens at a target.
///
/// # Errors
/// None does.
fn check_listens(target: AdminTarget) -> Result<AdminTarget, String> {
    let mut client = Client::new(target.connect_address());
    match block_on(client.connect(RESPONSE_TIMEOUT))
        .map_err(ClientError::Connect)
        .flatten()
    {
        Ok(_) => Ok(target),
        Err(error) => Err(target.explain_error(&error)),
    }
}

/// The running server of the file that is named or is here, or else of this folder.
///
/// # Errors
/// There are several.
fn find_own_server(to: &ServerLocation) -> Result<Option<RunningServer>, String> {
    let cwd = std::env::current_dir().map_err(|error| error.to_string())?;
    let file = config_file(to, &cwd);
    let mut all = find_running_servers();
    all.retain(|server| server.serves(file.as_deref(), &cwd));
    match all.len() {
        0 | 1 => Ok(all.pop()),
        several => Err(format!(
            "{several} servers of {} run{}",
            file.as_ref().unwrap_or(&cwd).display(),
            describe_servers(&all)
        )),
    }
}

/// The configuration file that is named, or the one here.
fn config_file(to: &ServerLocation, cwd: &Path) -> Option<PathBuf> {
    let here = cwd.join(penstock_config::FILE_NAME);
    let named = to.config.as_ref().map(|file| cwd.join(file));
    named.or_else(|| here.exists().then_some(here))
}

/// Refuses to change a server of another folder while there are several, of which any may be meant.
///
/// # Errors
/// The servers.
fn refuse_choice(all: &[RunningServer]) -> Result<(), String> {
    match all.len() {
        0 | 1 => Ok(()),
        several => Err(format!(
            "{several} servers run, none of them of this folder{}",
            describe_servers(all)
        )),
    }
}

/// Finds the target of commands that change something.
///
/// # Errors
/// The configuration's, or the addresses that were tried.
pub(super) fn locate_write_target(to: &ServerLocation) -> Result<AdminTarget, String> {
    let server = match &to.admin {
        // The default configuration file may belong to another server.
        Some(_) if to.config.is_none() => None,
        _ => load_server(to)?,
    };
    let token = server.as_ref().and_then(read_configured_token);
    match &to.admin {
        Some(ListenAddr::Unix(path)) => return Ok(AdminTarget::at_socket(path.clone())),
        Some(address) => return locate_over_tcp(address, token),
        None => {}
    }
    if let Some(own) = find_own_server(to)? {
        return Ok(AdminTarget::at_socket(own.socket));
    }
    let all = find_running_servers();
    if server.is_none() {
        refuse_choice(&all)?;
    }
    let found = locate_configured_server(&server.unwrap_or_default(), token);
    found.map_err(|error| format!("{error}{}", describe_servers(&all)))
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
            locate_over_tcp(admin, token).map_err(|error| control::join_attempts(&error, &socket))
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
    let status = AdminTarget::without_token(address.clone()).fetch_status()?;
    let socket = status["control_socket"].as_str();
    let path = socket.and_then(|socket| socket.strip_prefix("unix:"));
    let path = path.ok_or_else(|| {
        format!(
            "the server at {address} has no control socket: set server.control_socket, or \
             server.admin_token and use -c FILE{unread}"
        )
    })?;
    let target = AdminTarget::at_socket(path.into());
    check_owner(Path::new(path))?;
    let socket_status = target.fetch_status()?;
    if is_same_server(&status, &socket_status, address) {
        Ok(target)
    } else {
        Err(format!(
            "the server at {address} names unix:{path}, which belongs to another server"
        ))
    }
}

/// Whether two status responses come from one server, which listens on `address`.
fn is_same_server(status: &Value, socket_status: &Value, address: &ListenAddr) -> bool {
    let port = match address {
        ListenAddr::Tcp(address) => address.port(),
        ListenAddr::Port(port) => *port,
        ListenAddr::Unix(_) => return false,
    };
    let port = format!(":{port}");
    let listeners = socket_status["listeners"].as_array().into_iter().flatten();
    let mut names = listeners.filter_map(Value::as_str);
    status["pid"].is_u64()
        && status["pid"] == socket_status["pid"]
        && names.any(|name| name.ends_with(&port))
}

/// Checks that root or this user made the socket; root may use any.
fn check_owner(path: &Path) -> Result<(), String> {
    let stream = UnixStream::connect(path);
    let stream = stream.map_err(|error| control::explain_connect_error(path, &error))?;
    let owner =
        peer_process::listener_owner_uid(stream.as_fd()).map_err(|error| error.to_string())?;
    let (uid, _) = account::effective_ids();
    if [0, uid].contains(&owner) || uid == 0 {
        return Ok(());
    }
    Err(format!(
        "unix:{} belongs to user {owner}, not to root or user {uid}",
        path.display()
    ))
}

/// The `[server]` table of the configuration file; `None` if none is named and none exists here. A
/// mistake elsewhere in the file does not matter: the server runs with what it has read.
fn load_server(to: &ServerLocation) -> Result<Option<Server>, String> {
    let cwd = std::env::current_dir().map_err(|error| error.to_string())?;
    let file = to
        .config
        .clone()
        .unwrap_or_else(|| cwd.join(penstock_config::FILE_NAME));
    if to.config.is_none() && !file.exists() {
        return Ok(None);
    }
    let invocation = Invocation {
        config: Some(file.clone()),
        cwd,
        ..Invocation::default()
    };
    let errors = match penstock_config::resolve_config(&invocation) {
        Ok(config) => return Ok(Some(config.server)),
        Err(errors) => errors,
    };
    match penstock_config::load_server_table(&file) {
        Ok(server) => Ok(Some(server)),
        Err(_) => Err(format!(
            "{}\n{}",
            errors.to_string().trim_end(),
            suggest_sockets()
        )),
    }
}

/// How to name a server without its file.
fn suggest_sockets() -> String {
    let sockets = control::existing_sockets();
    let sockets: Vec<String> = sockets
        .iter()
        .map(|path| format!("--admin unix:{}", path.display()))
        .collect();
    match sockets.is_empty() {
        true => "to name the running server without the file: --admin ADDRESS".to_owned(),
        false => format!(
            "to name a running server without the file: {}",
            sockets.join(" or ")
        ),
    }
}

fn read_configured_token(server: &Server) -> Option<Result<String, String>> {
    let path = server.admin_token.as_deref()?;
    Some(admin_token::read_token_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_named_socket_is_the_servers_that_was_asked() {
        let address: ListenAddr = "127.0.0.1:8090".parse().unwrap();
        let status = json!({ "pid": 7 });
        let named = ["http://127.0.0.1:80", "http://0.0.0.0:8090"];
        for (name, socket_status, expected) in [
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
            assert_eq!(
                is_same_server(&status, &socket_status, &address),
                expected,
                "{name}"
            );
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
        let request = |target: &AdminTarget| {
            String::from_utf8(target.encode_request("POST", "/reload", "{}")).unwrap()
        };
        assert!(!request(&target).contains("Authorization"));
        target.token = Some("abc".to_owned());
        assert!(request(&target).contains("\r\nAuthorization: Bearer abc\r\n"));
    }
}
