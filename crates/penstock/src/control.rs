//! The control socket: where it is created, which processes may use it, and warnings about exposed
//! control interfaces.
//!
//! `server::bound_listeners` opens it, `cli` finds it by the same rules, and [`ControlGate`] checks
//! each caller before `status` gets the request.
//!
//! # Invariants
//!
//! - A socket in a directory that the configuration does not name lies where only root and the user
//!   that starts the server can create, remove or replace files.
//! - A caller is root or the socket's creator, and neither a descendant of this server or its
//!   predecessor nor a process from an application of another or a killed server.
//! - It is created by the user that starts the server, never by the user that a server has become.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use penstock_config::{Config, ControlSocket, ListenAddr};
use penstock_edge::Edge;
use penstock_exchange::{ListenerInfo, TakeoverFuture, TunnelHandler};
use penstock_runtime::{Stream, clock, log_throttle::LogThrottle};
use penstock_sys::account;
use penstock_sys::net::{PeerAddress, is_loopback};
use penstock_sys::peer_process::PeerOrigin;

use crate::inherited_listeners::ListenerRole;
use crate::listeners::{self, Listener, SocketSource};
use crate::server::Server;

/// Maximum number of servers with the same first address.
const MAX_SAME_NAME: usize = 16;

/// Maximum length of a socket's file name without `.sock`; the directories are short.
const MAX_NAME_BYTES: usize = 60;

/// The control socket's file name without `.sock`: the address of the first listener, or the
/// upstream that a worker server joins.
fn socket_name(first: Option<&ListenAddr>, joined: Option<&str>) -> String {
    let text = match (first, joined) {
        (Some(ListenAddr::Tcp(address)), _) => address.to_string(),
        (Some(ListenAddr::Port(port)), _) => port.to_string(),
        // Distinct paths must get distinct names.
        (Some(ListenAddr::Unix(path)), _) => {
            path.to_string_lossy().replace('_', "__").replace('/', "_")
        }
        (None, Some(upstream)) => format!("work_{upstream}"),
        (None, None) => "penstock".to_owned(),
    };
    let plain = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "._-".contains(c) => c,
        _ => '_',
    };
    let name: String = text.trim_start_matches('[').chars().map(plain).collect();
    // The end of a path distinguishes more than its beginning.
    name[name.len().saturating_sub(MAX_NAME_BYTES)..].to_owned()
}

#[derive(Debug, PartialEq, Eq)]
struct SocketDir {
    path: PathBuf,
    /// The permissions to create it with; `None` if it must exist.
    mode: Option<u32>,
}

/// The directories for the control socket of this user's server, in order of preference.
fn candidate_dirs(uid: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<SocketDir> {
    let dir = |path: PathBuf, mode| SocketDir { path, mode };
    // The service manager's; several are separated by colons (systemd.exec(5)).
    let managed = variable("RUNTIME_DIRECTORY");
    let managed = managed.and_then(|folders| std::env::split_paths(&folders).next());
    let managed = managed.filter(|path| path.is_absolute());
    let mut all: Vec<_> = managed.map(|path| dir(path, None)).into_iter().collect();
    let own = variable("XDG_RUNTIME_DIR").filter(|path| path.is_absolute());
    match own.filter(|folder| is_private(folder, uid).is_ok()) {
        _ if uid == 0 => all.push(dir("/run/penstock".into(), Some(0o755))),
        Some(own) => all.push(dir(own.join("penstock"), Some(0o700))),
        None => {}
    }
    all.push(dir(format!("/tmp/penstock-{uid}").into(), Some(0o700)));
    all
}

/// The control sockets in the places where a verb looks for them: folders in which only root and
/// this user can create files.
pub(crate) fn existing_sockets() -> Vec<PathBuf> {
    let uid = account::effective_ids().0;
    let folders = candidate_dirs_for_user().into_iter().map(|it| it.path);
    let folders = folders.chain([PathBuf::from("/run/penstock")]);
    let folders = folders.filter(|folder| is_private(folder, uid).is_ok());
    let files = folders.filter_map(|folder| std::fs::read_dir(folder).ok());
    let files = files.flatten().flatten().map(|entry| entry.path());
    let mut sockets: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|it| it == "sock"))
        .collect();
    sockets.sort();
    sockets.dedup();
    sockets
}

/// Whether a socket is in a folder that only servers of Penstock use. A service's own runtime
/// directory may have sockets of other programs.
pub(crate) fn is_in_own_folder(socket: &Path) -> bool {
    let mut own = candidate_dirs_for_user().into_iter();
    let folder = socket.parent();
    folder == Some(Path::new("/run/penstock"))
        || own.any(|dir| dir.mode.is_some() && Some(dir.path.as_path()) == folder)
}

fn candidate_dirs_for_user() -> Vec<SocketDir> {
    candidate_dirs(account::effective_ids().0, |name| {
        std::env::var_os(name).map(PathBuf::from)
    })
}

impl SocketDir {
    /// Creates the directory if needed, and checks that no other user can put files into it.
    fn prepare(&self, uid: u32) -> Result<(), String> {
        if let Some(mode) = self.mode {
            match std::fs::DirBuilder::new().mode(mode).create(&self.path) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(format!("{}: {error}", self.path.display()));
                }
                // An existing directory gets the same check.
                Ok(()) | Err(_) => {}
            }
        }
        is_private(&self.path, uid)
    }
}

/// Checks that a path is a directory, not a link, where only root and this user can create or
/// remove files.
fn is_private(folder: &Path, uid: u32) -> Result<(), String> {
    let shown = folder.display();
    let about = folder.symlink_metadata();
    let about = about.map_err(|error| format!("{shown}: {error}"))?;
    if !about.is_dir() {
        return Err(format!("{shown}: not a directory"));
    }
    if about.uid() != uid && about.uid() != 0 {
        return Err(format!("{shown}: belongs to user {}", about.uid()));
    }
    if about.mode() & 0o022 != 0 {
        return Err(format!("{shown}: other users may write to it"));
    }
    Ok(())
}

/// Opens the control socket; `first` is the first listener, with its real port.
///
/// # Errors
/// A configured socket that cannot be opened. Without a configured path a failure is only a
/// warning.
pub(crate) fn open_control_socket(
    config: &Config,
    first: Option<&ListenAddr>,
    source: &mut SocketSource<'_>,
    follows: bool,
) -> Result<Option<Listener>, String> {
    let server = &config.server;
    let role = ListenerRole::Control.into();
    match &server.control_socket {
        ControlSocket::Off => return Ok(None),
        ControlSocket::Path(path) => {
            check_socket_creator(
                config,
                ("server.control_socket", path, ListenerRole::Control),
                source,
                follows,
            )?;
            let opened = listeners::open_listener(&ListenAddr::Unix(path.clone()), role, source, 1);
            return opened
                .map(Some)
                .map_err(|error| format!("{error} (server.control_socket)"));
        }
        // The Unix socket of the admin interface takes changes too.
        ControlSocket::Auto if matches!(server.admin, Some(ListenAddr::Unix(_))) => {
            return Ok(None);
        }
        ControlSocket::Auto => {}
    }
    if let Some(wanted) = source.inherited.configured_address(ListenerRole::Control) {
        // Root's socket stays root's: a server that has become another user has other directories.
        return listeners::open_listener(&wanted, role, source, 1).map(Some);
    }
    let (uid, _) = account::effective_ids();
    if let Some(why) = wrong_creator_reason(config, follows) {
        log::warn!(
            "control: no control socket: {why}. `penstock reload` and the other commands do not work"
        );
        return Ok(None);
    }
    let joined = config.join_target.as_ref();
    let name = socket_name(first, joined.map(|joins| joins.upstream.as_str()));
    let mut causes = Vec::new();
    for folder in candidate_dirs_for_user() {
        if let Err(error) = folder.prepare(uid) {
            causes.push(error);
            continue;
        }
        match open_in_dir(&folder.path, &name, source) {
            Ok(opened) => return Ok(Some(opened)),
            Err(error) => causes.push(error),
        }
    }
    log::warn!(
        "control: no control socket: {}. Set server.control_socket to a path in a writable directory. \
         Without it `penstock reload` and the other commands do not work; signals do",
        causes.join("; ")
    );
    Ok(None)
}

/// Why this process must not create a socket for changes: after an upgrade it would belong to the
/// user that applications run as, not to the user that started the first server.
fn wrong_creator_reason(config: &Config, follows: bool) -> Option<String> {
    let (uid, _) = account::effective_ids();
    let is_other = follows && config.server.user.is_some() && uid != 0;
    is_other.then(|| {
        format!(
            "after an upgrade it would belong to user {uid} (server.user), which applications run \
             as: restart the server"
        )
    })
}

/// Refuses to create a socket for changes that would belong to another user; an inherited socket is
/// accepted.
///
/// # Errors
/// The socket, and what to do.
pub(crate) fn check_socket_creator(
    config: &Config,
    (key, path, role): (&str, &Path, ListenerRole),
    source: &SocketSource<'_>,
    follows: bool,
) -> Result<(), String> {
    let inherited = source.inherited.configured_address(role);
    if matches!(inherited, Some(ListenAddr::Unix(inherited)) if inherited == *path) {
        return Ok(());
    }
    match wrong_creator_reason(config, follows) {
        Some(why) => Err(format!(
            "{key}: unix:{} is not created: {why}",
            path.display()
        )),
        None => Ok(()),
    }
}

fn open_in_dir(
    folder: &Path,
    name: &str,
    source: &mut SocketSource<'_>,
) -> Result<Listener, String> {
    for number in 1..=MAX_SAME_NAME {
        let file = match number {
            1 => format!("{name}.sock"),
            number => format!("{name}-{number}.sock"),
        };
        let path = folder.join(file);
        if UnixStream::connect(&path).is_err() {
            let wanted = ListenAddr::Unix(path);
            return listeners::open_listener(&wanted, ListenerRole::Control.into(), source, 1);
        }
    }
    Err(format!(
        "{}: {MAX_SAME_NAME} servers have a socket named {name} there",
        folder.display()
    ))
}

/// Finds the control socket of a server with this configuration: the first that accepts a
/// connection.
///
/// # Errors
/// The paths that were tried.
pub(crate) fn find_control_socket(server: &penstock_config::Server) -> Result<PathBuf, String> {
    let name = socket_name(server.listen.first().map(|it| &it.address), None);
    let uid = account::effective_ids().0;
    let mut all = candidate_dirs_for_user();
    if uid != 0 {
        // Root's socket: without permission to connect, the error says so.
        all.push(SocketDir {
            path: "/run/penstock".into(),
            mode: None,
        });
    }
    let mut causes = Vec::new();
    let mut is_forbidden = false;
    for folder in all {
        let path = folder.path.join(format!("{name}.sock"));
        let connected = match folder.path.starts_with("/tmp") {
            true => is_private(&folder.path, uid),
            false => Ok(()),
        };
        let connected = connected.and_then(|()| {
            UnixStream::connect(&path).map_err(|error| {
                is_forbidden |= error.kind() == std::io::ErrorKind::PermissionDenied;
                format!("unix:{}: {error}", path.display())
            })
        });
        match connected {
            Ok(_) => return Ok(path),
            Err(error) => causes.push(error),
        }
    }
    Err(join_connect_errors(&causes, is_forbidden))
}

/// The causes of all sockets; what to do about a forbidden one comes once.
fn join_connect_errors(causes: &[String], is_forbidden: bool) -> String {
    let hint = if is_forbidden { SOCKET_USERS } else { "" };
    format!("{}{hint}", causes.join("; "))
}

/// What to do where the system forbids to connect to a control socket.
const SOCKET_USERS: &str = ": only root and the user that started the server may use it (try sudo)";

/// One text of two attempts to find a server, in which the users of a socket are named once.
pub(crate) fn join_attempts(first: &str, other: &str) -> String {
    match first.contains(SOCKET_USERS) {
        true => format!("{first} (nor {})", other.replace(SOCKET_USERS, "")),
        false => format!("{first} (nor {other})"),
    }
}

/// Explains why a control socket cannot be connected to, and what to do.
pub(crate) fn explain_connect_error(path: &Path, error: &std::io::Error) -> String {
    let hint = match error.kind() {
        std::io::ErrorKind::PermissionDenied => SOCKET_USERS,
        _ => "",
    };
    format!("unix:{}: {error}{hint}", path.display())
}

/// Control interfaces that this configuration exposes to others, a line each.
pub(crate) fn exposure_warnings(config: &Config) -> Vec<String> {
    let server = &config.server;
    let mut all = Vec::new();
    let (uid, _) = account::effective_ids();
    let admin_socket = match &server.admin {
        Some(ListenAddr::Unix(path)) => Some(("server.admin", path)),
        _ => None,
    };
    let control = match &server.control_socket {
        ControlSocket::Path(path) => Some(("server.control_socket", path)),
        ControlSocket::Auto | ControlSocket::Off => None,
    };
    for (key, path) in admin_socket.into_iter().chain(control) {
        let folder = path.parent().filter(|folder| folder.exists());
        if let Some(error) = folder.and_then(|folder| is_private(folder, uid).err()) {
            all.push(format!(
                "{key}: other users can replace {}: {error}",
                path.display()
            ));
        }
    }
    let is_open = match &server.admin {
        Some(ListenAddr::Tcp(address)) => !is_loopback(*address),
        Some(ListenAddr::Port(_)) => true,
        Some(ListenAddr::Unix(_)) | None => false,
    };
    if let Some(admin) = server.admin.as_ref().filter(|_| is_open) {
        all.push(format!(
            "server.admin: {admin} shows the status of this server to every machine that reaches it: \
             use 127.0.0.1, and server.probes for orchestrators and Prometheus"
        ));
        if server.admin_token.is_some() {
            all.push(format!(
                "server.admin: {admin} accepts changes with the token, which travels unencrypted: \
                 use 127.0.0.1 and a tunnel"
            ));
        }
    }
    all
}

/// Checks each caller of a control socket before its request is read.
#[derive(Debug)]
pub(crate) struct ControlGate {
    owner: u32,
    /// Serves admitted callers with the admin API ([`penstock_status::AdminHandler`]).
    admitted_edge: Arc<Edge>,
    /// Answers refused callers.
    refused_edge: Arc<Edge>,
    server: Weak<Server>,
    log_throttle: LogThrottle,
}

impl ControlGate {
    pub(crate) fn new(
        owner: u32,
        (admitted, refused): (&Arc<Edge>, &Arc<Edge>),
        server: Weak<Server>,
    ) -> Self {
        Self {
            owner,
            admitted_edge: Arc::clone(admitted),
            refused_edge: Arc::clone(refused),
            server,
            log_throttle: LogThrottle::default(),
        }
    }

    /// Admits a caller that may make changes.
    ///
    /// # Errors
    /// The caller, and the reason for the refusal.
    fn check_caller(&self, client: &Stream) -> Result<(), String> {
        let server = running_server(&self.server)?;
        let caller = client.peer_process();
        let caller =
            caller.map_err(|error| format!("a caller that cannot be identified: {error}"))?;
        let pid = caller.pid.unwrap_or_default();
        if caller.uid != 0 && caller.uid != self.owner {
            let (uid, owner) = (caller.uid, self.owner);
            return Err(format!(
                "process {pid} of user {uid}: the socket is for root and user {owner}"
            ));
        }
        match caller.origin(server.predecessor) {
            PeerOrigin::NotDescendant => Ok(()),
            PeerOrigin::Descendant(sender) => {
                let who = server.describe_sender(sender);
                Err(format!(
                    "{who}: application processes cannot control the server"
                ))
            }
            PeerOrigin::Application => Err(format!(
                "process {pid}, which comes from an application of a server that has ended, or of \
                 another server"
            )),
            PeerOrigin::Unknown => Err(format!(
                "process {pid}, which has exited or is hidden, and may come from an application"
            )),
        }
    }
}

/// The server that a caller wants to change.
///
/// # Errors
/// The server has ended: a caller that came from an application could not be recognised.
fn running_server(server: &Weak<Server>) -> Result<Arc<Server>, String> {
    let server = server.upgrade();
    server.ok_or_else(|| "a caller: this server has ended".to_owned())
}

impl TunnelHandler for ControlGate {
    fn serve(
        &self,
        client: Arc<Stream>,
        peer: PeerAddress,
        listener: Arc<ListenerInfo>,
        early: Vec<u8>,
    ) -> TakeoverFuture {
        let edge = match self.check_caller(&client) {
            Ok(()) => &self.admitted_edge,
            Err(who) => {
                if let Some(left_out) = self.log_throttle.admit_line("control", clock::now()) {
                    let more = match left_out {
                        0 => String::new(),
                        count => format!(" ({count} more before)"),
                    };
                    log::error!("control: {}: refused {who}{more}", listener.name);
                }
                &self.refused_edge
            }
        };
        penstock_edge::serve_connection(edge, client, peer, listener, early);
        Box::pin(std::future::ready(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn the_users_of_a_socket_are_named_once() {
        let denied = |path: &str| format!("unix:{path}: Permission denied (os error 13)");
        let causes = [denied("/run/user/1/a.sock"), denied("/run/penstock/a.sock")];
        let text = join_connect_errors(&causes, true);
        assert_eq!(text.matches("only root and the user").count(), 1, "{text}");
        assert!(text.ends_with("(try sudo)"), "{text}");
        assert_eq!(join_connect_errors(&causes[..1], false), causes[0]);
        let both = join_attempts(&text, &text);
        assert_eq!(both.matches("only root and the user").count(), 1, "{both}");
        assert_eq!(join_attempts("a", "b"), "a (nor b)");
    }

    fn named(address: &str) -> String {
        let address: ListenAddr = address.parse().unwrap();
        socket_name(Some(&address), None)
    }

    #[test]
    fn nobody_is_admitted_to_a_server_that_has_ended() {
        let error = running_server(&Weak::new()).unwrap_err();
        assert!(error.contains("this server has ended"), "{error}");
    }

    #[test]
    fn a_socket_is_named_after_the_first_listener() {
        for (address, expected) in [
            ("127.0.0.1:8080", "127.0.0.1_8080"),
            (":80", "80"),
            ("[::1]:8080", "__1__8080"),
            ("unix:/run/a/b.sock", "_run_a_b.sock"),
            ("unix:/run/a_b.sock", "_run_a__b.sock"),
            ("unix:/run/ä b", "_run___b"),
        ] {
            assert_eq!(named(address), expected, "{address}");
        }
        let long = named(&format!("unix:/run/{}/x.sock", "y".repeat(90)));
        assert!(
            long.len() == MAX_NAME_BYTES && long.ends_with("_x.sock"),
            "{long}"
        );
        assert_eq!(socket_name(None, Some("shop")), "work_shop");
        assert_eq!(socket_name(None, None), "penstock");
    }

    #[test]
    fn root_and_others_have_their_own_folders() {
        let none = |_: &str| None;
        let paths = |folders: Vec<SocketDir>| -> Vec<String> {
            let shown = |folder: SocketDir| folder.path.display().to_string();
            folders.into_iter().map(shown).collect()
        };
        assert_eq!(
            paths(candidate_dirs(0, none)),
            ["/run/penstock", "/tmp/penstock-0"]
        );
        assert_eq!(paths(candidate_dirs(7, none)), ["/tmp/penstock-7"]);
        let managed = |name: &str| {
            (name == "RUNTIME_DIRECTORY").then(|| PathBuf::from("/run/site:/run/other"))
        };
        let all = paths(candidate_dirs(7, managed));
        assert_eq!(all, ["/run/site", "/tmp/penstock-7"]);
        // Another user's directory, or one that does not exist, is not used.
        let relative = |_: &str| Some(PathBuf::from("here"));
        assert_eq!(paths(candidate_dirs(7, relative)), ["/tmp/penstock-7"]);
        let elsewhere = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("/nowhere"));
        assert_eq!(paths(candidate_dirs(7, elsewhere)), ["/tmp/penstock-7"]);
    }

    #[test]
    fn folders_of_others_are_not_used() {
        let top = std::env::temp_dir().join(format!("penstock-control-{}", std::process::id()));
        let folder = SocketDir {
            path: top.join("own"),
            mode: Some(0o700),
        };
        std::fs::create_dir_all(&top).unwrap();
        let (uid, _) = account::effective_ids();
        assert_eq!(folder.prepare(uid), Ok(()));
        assert_eq!(folder.prepare(uid), Ok(()), "it exists by now");
        let mode = folder.path.metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        let set = |mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&folder.path, mode).unwrap();
        };
        for mode in [0o770, 0o707, 0o1777] {
            set(mode);
            let error = folder.prepare(uid).unwrap_err();
            assert!(error.ends_with("other users may write to it"), "{error}");
        }
        set(0o700);
        let link = top.join("link");
        symlink(&folder.path, &link).unwrap();
        assert!(
            is_private(&link, uid)
                .unwrap_err()
                .ends_with("not a directory")
        );
        if uid == 0 {
            std::os::unix::fs::chown(&folder.path, Some(12345), None).unwrap();
            let error = folder.prepare(uid).unwrap_err();
            assert!(error.ends_with("belongs to user 12345"), "{error}");
        }
        std::fs::remove_dir_all(top).unwrap();
    }
}
